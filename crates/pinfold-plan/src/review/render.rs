//! A review as text for a terminal: a map of the machine's cores, then the flaws, worst first.
//!
//! ```text
//! win10.xml: win10, 4 vCPUs on Intel(R) Core(TM) i7-4790K
//!
//!   core 0   PU 0 vCPU 0       PU 4 host
//!
//! WARNING  the guest takes the vCPUs 0-1 for threads of one core, but …
//!   where    line 14  <topology sockets='1' cores='2' threads='2'/>
//!   cost     the guest's scheduler …
//!   instead  <vcpupin vcpu='1' cpuset='4'/>
//!   name     guest-siblings-lie
//! ```

use pinfold_model::{CpuSet, PuId, Role, Severity, Topology};

use super::{Flaw, Layout};
use crate::draft::counted;

const WIDTH: usize = 100;
/// The column of what follows the labels.
const INDENT: usize = 11;
/// The most lines of the map, and of the places of one flaw.
const MOST_CORES: usize = 24;
const MOST_PLACES: usize = 6;
const MOST_LINES: usize = 40;

/// The review of `layouts` on the machine of `topology` as text.
#[must_use]
pub fn render(layouts: &[Layout], flaws: &[Flaw], topology: &Topology) -> String {
    let mut text = String::new();
    for layout in layouts {
        text.push_str(&head(layout, topology));
    }
    map(&mut text, layouts, topology);
    for flaw in flaws {
        one(&mut text, flaw, layouts.len() > 1);
    }
    text.push_str(&counts(flaws));
    text
}

fn head(layout: &Layout, topology: &Topology) -> String {
    let host = topology.model.as_deref().unwrap_or("this machine");
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
    format!(
        "{}: {name}, {}{shape}, on {host} ({}, {} PUs)\n",
        layout.source,
        counted(layout.vcpus as usize, "vCPU"),
        counted(topology.cores.len(), "core"),
        topology.pus.len()
    )
}

/// The cores that a vCPU is pinned to, with who is on each of their PUs.
fn map(text: &mut String, layouts: &[Layout], topology: &Topology) {
    let bound: CpuSet = layouts
        .iter()
        .flat_map(|layout| &layout.pins)
        .filter(|pin| matches!(pin.role, Role::Vcpu(_)))
        .filter_map(|pin| pin.pus.as_ref())
        .filter(|pus| pus.len() < topology.pus.len())
        .fold(CpuSet::new(), |set, pus| set.union(pus));
    let used: Vec<_> = topology.cores.iter().filter(|core| !core.pus.is_disjoint(&bound)).collect();
    if used.is_empty() {
        text.push('\n');
        return;
    }
    text.push('\n');
    let rows: Vec<(String, Vec<(PuId, String)>)> = used
        .iter()
        .take(MOST_CORES)
        .map(|core| {
            let pus = core.pus.iter().map(|pu| (pu, who(layouts, pu, topology)));
            (format!("core {}", core.id), pus.collect())
        })
        .collect();
    let cell = |(pu, who): &(PuId, String)| format!("PU {pu} {who}");
    let width = rows.iter().flat_map(|(_, pus)| pus).map(|pu| cell(pu).chars().count()).max();
    let (width, label) =
        (width.unwrap_or(0), rows.iter().map(|row| row.0.len()).max().unwrap_or(0));
    for (name, pus) in &rows {
        let cells: Vec<String> = pus.iter().map(|pu| format!("{:width$}", cell(pu))).collect();
        let line = format!("  {name:label$}   {}", cells.join("   "));
        text.push_str(line.trim_end());
        text.push('\n');
    }
    let rest = topology.cores.len() - rows.len();
    if used.len() > rows.len() {
        text.push_str(&format!(
            "  … and {} more with vCPUs\n",
            counted(used.len() - rows.len(), "core")
        ));
    } else if rest > 0 {
        text.push_str(&format!("  … and {} without a vCPU\n", counted(rest, "core")));
    }
    text.push('\n');
}

/// Who is pinned to a PU: vCPUs, then the emulator, else nobody.
fn who(layouts: &[Layout], pu: PuId, topology: &Topology) -> String {
    let several = layouts.len() > 1;
    let mut names = Vec::new();
    for layout in layouts {
        let here = layout.pins.iter().filter(|pin| {
            pin.pus.as_ref().is_some_and(|pus| pus.contains(pu) && pus.len() < topology.pus.len())
        });
        for pin in here {
            let kind = if matches!(pin.role, Role::Vcpu(_)) { "vCPU " } else { "" };
            let role = format!("{kind}{}", pin.role.short());
            names.push(if several { format!("{}/{role}", layout.name) } else { role });
        }
    }
    let isolated = topology.isolated.contains(pu);
    match (names.len(), isolated) {
        (0, true) => "(isolated)".to_owned(),
        (0, false) => "–".to_owned(),
        (1..=3, _) => names.join(" + "),
        (count, _) => format!("{} + {} more", names[..2].join(" + "), count - 2),
    }
}

fn one(text: &mut String, flaw: &Flaw, several: bool) {
    let severity = match flaw.severity {
        Severity::Problem => "PROBLEM",
        Severity::Warning => "WARNING",
        Severity::Note => "NOTE",
    };
    let vm = if several { format!("{}: ", flaw.vm) } else { String::new() };
    wrap(text, severity, 9, &format!("{vm}{}", flaw.what));
    for (index, place) in flaw.places.iter().take(MOST_PLACES).enumerate() {
        let line = match place.line {
            Some(line) => format!("line {line:<4} {}", place.text),
            None => place.text.clone(),
        };
        verbatim(text, if index == 0 { "  where" } else { "" }, &line);
    }
    if flaw.places.len() > MOST_PLACES {
        verbatim(text, "", &format!("… and {} more", flaw.places.len() - MOST_PLACES));
    }
    if !flaw.cost.is_empty() {
        wrap(text, "  cost", INDENT, &flaw.cost);
    }
    for (index, line) in flaw.instead.iter().take(MOST_LINES).enumerate() {
        let label = if index == 0 { "  instead" } else { "" };
        match line.starts_with(['<', '"']) {
            true => verbatim(text, label, line),
            false => wrap(text, label, INDENT, line),
        }
    }
    if flaw.instead.len() > MOST_LINES {
        verbatim(text, "", &format!("… and {} lines more", flaw.instead.len() - MOST_LINES));
    }
    verbatim(text, "  name", flaw.name);
    text.push('\n');
}

fn counts(flaws: &[Flaw]) -> String {
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
    if parts.is_empty() {
        "nothing is wrong with it\n".to_owned()
    } else {
        format!("{}\n", parts.join(", "))
    }
}

/// One line that is not wrapped: it is to be copied.
fn verbatim(text: &mut String, label: &str, line: &str) {
    text.push_str(&format!("{label:INDENT$}{line}\n"));
}

/// Words under each other, at most [`WIDTH`] columns.
fn wrap(text: &mut String, label: &str, indent: usize, words: &str) {
    let mut line = format!("{label:indent$}");
    let mut column = indent;
    for word in words.split_whitespace() {
        let length = word.chars().count();
        if column > indent && column + 1 + length > WIDTH {
            text.push_str(line.trim_end());
            text.push('\n');
            line = " ".repeat(indent);
            column = indent;
        }
        if column > indent {
            line.push(' ');
            column += 1;
        }
        line.push_str(word);
        column += length;
    }
    text.push_str(line.trim_end());
    text.push('\n');
}
