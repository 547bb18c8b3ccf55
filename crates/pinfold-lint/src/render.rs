//! A check as text for a terminal: a map of the machine's cores, then the diagnostics, worst first.
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

use pinfold_model::text::count_noun;
use pinfold_model::{Severity, Source, Topology};
use pinfold_plan::layout::Layout;
use pinfold_plan::{Sheet, picture};

use super::Diagnostic;

/// Column of the text after the labels.
const INDENT: usize = 11;
/// Maximum number of positions of one diagnostic, and of lines of its advice.
const MOST_PLACES: usize = 6;
const MOST_LINES: usize = 40;

/// The check of `layouts` on the machine of `topology` as text, in lines of at most `columns`.
///
/// ```
/// use pinfold_plan::layout::Layout;
///
/// // Both vCPUs are on one CPU.
/// let xml = "<domain type='kvm'><name>vm</name><memory unit='MiB'>512</memory><vcpu>2</vcpu>\
///            <cputune><vcpupin vcpu='0' cpuset='2'/><vcpupin vcpu='1' cpuset='2'/></cputune>\
///            </domain>";
/// let topology = pinfold_samples::from_description("core:4 pu:2");
/// let layouts = [Layout::of_text(xml, "vm.xml")?];
/// let diagnostics = pinfold_lint::lint(&layouts, &topology);
/// let text = pinfold_lint::render(&layouts, &diagnostics, &topology, 80);
/// assert!(text.contains("vm.xml:1"));
/// # Ok::<(), pinfold_plan::domain_file::DomainError>(())
/// ```
pub fn render(
    layouts: &[Layout],
    diagnostics: &[Diagnostic],
    topology: &Topology,
    columns: usize,
) -> String {
    let mut sheet = Sheet::new(columns);
    for layout in layouts {
        sheet.add_label("", 0, &head(layout, topology));
    }
    sheet.line("");
    let picture = picture(layouts, topology, columns);
    if !picture.is_empty() {
        sheet.line(&picture);
        sheet.line("");
    }
    for (index, diagnostic) in diagnostics.iter().enumerate() {
        if index > 0 {
            sheet.line("");
        }
        one(&mut sheet, diagnostic, layouts.len() > 1);
    }
    sheet.into_text()
}

/// Number of findings of each severity, in one line.
pub fn counts(diagnostics: &[Diagnostic]) -> String {
    let parts: Vec<String> = [
        (count_of(diagnostics, Severity::Problem), "problem"),
        (count_of(diagnostics, Severity::Warning), "warning"),
        (count_of(diagnostics, Severity::Note), "note"),
    ]
    .into_iter()
    .filter(|(count, _)| *count > 0)
    .map(|(count, noun)| count_noun(count, noun))
    .collect();
    if parts.is_empty() { "no findings".to_owned() } else { parts.join(", ") }
}

fn count_of(diagnostics: &[Diagnostic], severity: Severity) -> usize {
    diagnostics.iter().filter(|diagnostic| diagnostic.severity == severity).count()
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
            count_noun(guest.cores.len(), "core"),
            guest.threads
        ),
        Some(guest) if guest.sockets > 1 => {
            format!(", shown to the guest as {} sockets", guest.sockets)
        }
        Some(guest) => format!(", shown to the guest as {}", count_noun(guest.cores.len(), "core")),
        None => String::new(),
    };
    let size = match layout.vcpus {
        0 => "a process group".to_owned(),
        vcpus => count_noun(vcpus as usize, "vCPU"),
    };
    format!(
        "{}: {name}, {size}{shape}, on {host} ({}, {} CPUs)",
        layout.source,
        count_noun(topology.cores.len(), "core"),
        topology.pus.len()
    )
}

fn one(sheet: &mut Sheet, diagnostic: &Diagnostic, several: bool) {
    let severity = match diagnostic.severity {
        Severity::Problem => "PROBLEM",
        Severity::Warning => "WARNING",
        Severity::Note => "NOTE",
    };
    let vm = if several { format!("{}: ", diagnostic.vm) } else { String::new() };
    sheet.add_label(severity, 9, &format!("{vm}{}", diagnostic.what));
    for (index, place) in diagnostic.places.iter().take(MOST_PLACES).enumerate() {
        let label = if index == 0 { "  where" } else { "" };
        match (place.line, place.file.as_str()) {
            // XML is shown as in the file.
            (Some(line), file) if place.text.contains('<') => {
                verbatim(sheet, label, &format!("{file}:{line}  {}", place.text));
            }
            (Some(line), file) => {
                sheet.add_label(label, INDENT, &format!("{file}:{line}  {}", place.text));
            }
            (None, "") => sheet.add_label(label, INDENT, &place.text),
            (None, file) if place.text.is_empty() => verbatim(sheet, label, file),
            (None, file) => sheet.add_label(label, INDENT, &format!("{file}: {}", place.text)),
        }
    }
    if diagnostic.places.len() > MOST_PLACES {
        verbatim(sheet, "", &format!("… and {} more", diagnostic.places.len() - MOST_PLACES));
    }
    if !diagnostic.cost.is_empty() {
        sheet.add_label("  cost", INDENT, &diagnostic.cost);
    }
    for (index, line) in diagnostic.instead.iter().take(MOST_LINES).enumerate() {
        let label = if index == 0 { "  instead" } else { "" };
        if line.starts_with(['<', '"']) {
            verbatim(sheet, label, line)
        } else {
            sheet.add_label(label, INDENT, line)
        }
    }
    if diagnostic.instead.len() > MOST_LINES {
        verbatim(sheet, "", &format!("… and {} lines more", diagnostic.instead.len() - MOST_LINES));
    }
    verbatim(sheet, "  name", diagnostic.name);
}

/// A line that is not wrapped, so that it can be copied.
fn verbatim(sheet: &mut Sheet, label: &str, line: &str) {
    sheet.line(&format!("{label:INDENT$}{line}"));
}
