//! A check as text for a terminal: a map of the machine's cores, then the flaws, worst first.
//!
//! ```text
//! win10.xml: win10, 4 vCPUs on Intel(R) Core(TM) i7-4790K
//!
//!   core 0   CPU 0 vCPU 0       CPU 4 –
//!
//! WARNING  the guest takes the vCPUs 0-1 for threads of one core, but …
//!   where    win10.xml:14  <topology sockets='1' cores='2' threads='2'/>
//!   cost     the guest's scheduler …
//!   instead  <vcpupin vcpu='1' cpuset='4'/>
//!   name     guest-siblings-lie
//! ```

use pinfold_model::text::counted;
use pinfold_model::{Severity, Source, Topology};
use pinfold_plan::layout::Layout;
use pinfold_plan::{Sheet, picture};

use super::Diagnostic;

/// Column of the text after the labels.
const INDENT: usize = 11;
/// Maximum number of positions of one flaw, and of lines of its advice.
const MOST_PLACES: usize = 6;
const MOST_LINES: usize = 40;

/// The check of `layouts` on the machine of `topology` as text, in lines of at most `columns`.
#[must_use]
pub fn render(
    layouts: &[Layout],
    flaws: &[Diagnostic],
    (topology, columns): (&Topology, usize),
) -> String {
    let mut sheet = Sheet::new(columns);
    for layout in layouts {
        sheet.labelled("", 0, &head(layout, topology));
    }
    sheet.line("");
    let picture = picture(layouts, topology, columns);
    if !picture.is_empty() {
        sheet.line(&picture);
        sheet.line("");
    }
    for (index, flaw) in flaws.iter().enumerate() {
        if index > 0 {
            sheet.line("");
        }
        one(&mut sheet, flaw, layouts.len() > 1);
    }
    sheet.into_text()
}

/// Number of findings of each severity, in one line.
#[must_use]
pub fn counts(flaws: &[Diagnostic]) -> String {
    let of = |severity: Severity| flaws.iter().filter(|flaw| flaw.severity == severity).count();
    let parts: Vec<String> = [
        (of(Severity::Problem), "problem"),
        (of(Severity::Warning), "warning"),
        (of(Severity::Note), "note"),
    ]
    .into_iter()
    .filter(|(count, _)| *count > 0)
    .map(|(count, noun)| counted(count, noun))
    .collect();
    if parts.is_empty() { "nothing is wrong with it".to_owned() } else { parts.join(", ") }
}

fn head(layout: &Layout, topology: &Topology) -> String {
    let host = match (&topology.model, &topology.source) {
        (Some(model), _) => model,
        (None, Source::Live) => "this machine",
        (None, Source::Captured(input) | Source::Synthetic(input)) => input,
    };
    let name = if layout.name.is_empty() { "a machine without name" } else { &layout.name };
    let shape = match &layout.guest {
        Some(guest) if guest.threads > 1 => format!(
            ", shown to the guest as {} with {} threads each",
            counted(guest.cores.len(), "core"),
            guest.threads
        ),
        Some(guest) if guest.sockets > 1 => {
            format!(", shown to the guest as {} sockets", guest.sockets)
        }
        Some(guest) => format!(", shown to the guest as {}", counted(guest.cores.len(), "core")),
        None => String::new(),
    };
    let size = match layout.vcpus {
        0 => "a process group".to_owned(),
        vcpus => counted(vcpus as usize, "vCPU"),
    };
    format!(
        "{}: {name}, {size}{shape}, on {host} ({}, {} CPUs)",
        layout.source,
        counted(topology.cores.len(), "core"),
        topology.pus.len()
    )
}

fn one(sheet: &mut Sheet, flaw: &Diagnostic, several: bool) {
    let severity = match flaw.severity {
        Severity::Problem => "PROBLEM",
        Severity::Warning => "WARNING",
        Severity::Note => "NOTE",
    };
    let vm = if several { format!("{}: ", flaw.vm) } else { String::new() };
    sheet.labelled(severity, 9, &format!("{vm}{}", flaw.what));
    for (index, place) in flaw.places.iter().take(MOST_PLACES).enumerate() {
        let label = if index == 0 { "  where" } else { "" };
        match (place.line, place.file.as_str()) {
            // XML is shown as in the file.
            (Some(line), file) if place.text.contains('<') => {
                verbatim(sheet, label, &format!("{file}:{line}  {}", place.text));
            }
            (Some(line), file) => {
                sheet.labelled(label, INDENT, &format!("{file}:{line}  {}", place.text));
            }
            (None, "") => sheet.labelled(label, INDENT, &place.text),
            (None, file) if place.text.is_empty() => verbatim(sheet, label, file),
            (None, file) => sheet.labelled(label, INDENT, &format!("{file}: {}", place.text)),
        }
    }
    if flaw.places.len() > MOST_PLACES {
        verbatim(sheet, "", &format!("… and {} more", flaw.places.len() - MOST_PLACES));
    }
    if !flaw.cost.is_empty() {
        sheet.labelled("  cost", INDENT, &flaw.cost);
    }
    for (index, line) in flaw.instead.iter().take(MOST_LINES).enumerate() {
        let label = if index == 0 { "  instead" } else { "" };
        if line.starts_with(['<', '"']) {
            verbatim(sheet, label, line)
        } else {
            sheet.labelled(label, INDENT, line)
        }
    }
    if flaw.instead.len() > MOST_LINES {
        verbatim(sheet, "", &format!("… and {} lines more", flaw.instead.len() - MOST_LINES));
    }
    verbatim(sheet, "  name", flaw.name);
}

/// A line that is not wrapped, so that it can be copied.
fn verbatim(sheet: &mut Sheet, label: &str, line: &str) {
    sheet.line(&format!("{label:INDENT$}{line}"));
}
