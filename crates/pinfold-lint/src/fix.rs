//! A domain file with all advice of its check applied.

use pinfold_model::{Request, Severity, Topology};
use pinfold_plan::domain_file::DomainError;
use pinfold_plan::layout::Layout;

use super::lookup::{CpuIndex, LintContext};
use super::one_layout::of_one;
use super::{Diagnostic, advice, repair};

/// Maximum number of rounds: a repair may reveal another fault, but no file needs more.
const ROUNDS: usize = 3;

/// A domain file after its repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RepairedFile {
    /// The file; if it has no warning, the unchanged input.
    pub text: String,
    /// The faults that were repaired, worst first.
    pub done: Vec<Diagnostic>,
    /// The remaining faults, which no change of the file removes.
    pub left: Vec<Diagnostic>,
    /// Parts of the new placement that libvirt cannot express, and elements of the file that were
    /// replaced.
    pub notes: Vec<String>,
}

/// Applies the advice for everything worse than a note.
///
/// ```
/// use pinfold_model::Request;
///
/// // Both vCPUs are on one CPU.
/// let xml = "<domain type='kvm'><name>vm</name><memory unit='MiB'>512</memory><vcpu>2</vcpu>\
///            <cputune><vcpupin vcpu='0' cpuset='2'/><vcpupin vcpu='1' cpuset='2'/></cputune>\
///            </domain>";
/// let topology = pinfold_samples::from_description("core:4 pu:2");
/// let conditions = Request::from_vnodes(Vec::new());
/// let fixed = pinfold_lint::fix(xml, "vm.xml", &topology, &conditions)?;
/// assert!(!fixed.done.is_empty());
/// assert_ne!(fixed.text, xml);
/// # Ok::<(), pinfold_plan::domain_file::DomainError>(())
/// ```
///
/// # Errors
/// [`DomainError`] if the text is no domain file, or cannot be changed.
pub fn fix(
    xml: &str,
    source: &str,
    topology: &Topology,
    conditions: &Request,
) -> Result<RepairedFile, DomainError> {
    let lookup = CpuIndex::new(topology, conditions);
    let mut fixed = RepairedFile {
        text: xml.to_owned(),
        done: Vec::new(),
        left: Vec::new(),
        notes: Vec::new(),
    };
    for round in 0..=ROUNDS {
        let layout = Layout::of_text(&fixed.text, source)?;
        let view = LintContext::new(&layout, &lookup);
        let mut diagnostics = of_one(&view, None);
        let target = advice::add_advice(&mut diagnostics, &view, conditions);
        diagnostics.retain(|diagnostic| diagnostic.severity >= Severity::Warning);
        let mut text = fixed.text.clone();
        if let Some(target) = target {
            text = target.layout.text.unwrap_or(text);
            fixed.notes.extend(target.notes);
        }
        text = repair::apply(&text, diagnostics.iter().flat_map(|diagnostic| &diagnostic.repairs))?;
        if text == fixed.text || round == ROUNDS {
            fixed.left = diagnostics;
            // A fault that the written file still has, even as a note, was not repaired.
            let still = of_one(&view, None);
            fixed.done.retain(|diagnostic| still.iter().all(|other| other.name != diagnostic.name));
            break;
        }
        fixed.text = text;
        fixed.done.append(&mut diagnostics);
    }
    Ok(fixed)
}
