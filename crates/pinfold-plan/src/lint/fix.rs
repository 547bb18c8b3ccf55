//! A domain file with all of its review's advice followed.

use pinfold_model::{Request, Severity, Topology};

use super::lookup::{LintContext, Lookup};
use super::{Diagnostic, Layout, advice, of_one, repair};
use crate::domain_file::DomainError;

/// A repair may show what another one hid; no file needs more rounds.
const ROUNDS: usize = 3;

/// A domain file after its review.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fixed {
    /// The file; without a warning in it the very text that was handed in.
    pub text: String,
    /// What was wrong with it, worst first.
    pub done: Vec<Diagnostic>,
    /// What is still wrong, because no change of the file removes it.
    pub left: Vec<Diagnostic>,
    /// What libvirt cannot say of the new placement, and what of the file had to give way.
    pub notes: Vec<String>,
}

/// Follows the advice for everything that is worse than a note.
///
/// # Errors
/// [`DomainError`] if the text is no domain file, or one that cannot be changed.
pub fn fix(
    xml: &str,
    source: &str,
    topology: &Topology,
    conditions: &Request,
) -> Result<Fixed, DomainError> {
    let lookup = Lookup::of(topology, conditions);
    let mut fixed =
        Fixed { text: xml.to_owned(), done: Vec::new(), left: Vec::new(), notes: Vec::new() };
    for round in 0..=ROUNDS {
        let layout = Layout::of_text(&fixed.text, source)?;
        let view = LintContext::of(&layout, &lookup);
        let mut flaws = of_one(&view, None);
        let target = advice::give(&mut flaws, &view, conditions);
        flaws.retain(|flaw| flaw.severity >= Severity::Warning);
        let mut text = fixed.text.clone();
        if let Some(target) = target {
            text = target.layout.text.unwrap_or(text);
            fixed.notes.extend(target.notes);
        }
        text = repair::apply(&text, flaws.iter().flat_map(|flaw| &flaw.repairs))?;
        if text == fixed.text || round == ROUNDS {
            fixed.left = flaws;
            // What the file that is written still has, even as a note, is not done.
            let still = of_one(&view, None);
            fixed.done.retain(|flaw| still.iter().all(|other| other.name != flaw.name));
            break;
        }
        fixed.text = text;
        fixed.done.append(&mut flaws);
    }
    Ok(fixed)
}
