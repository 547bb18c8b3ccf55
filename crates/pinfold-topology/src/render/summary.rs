//! The lines below the tree: properties of the whole machine, and the findings.

use pinfold_model::text::count_noun;
use pinfold_model::{CpuSet, Finding, Smt, Topology};

/// Maximum number of frequency domains that are listed.
const DOMAINS_SHOWN: usize = 8;

/// One line per property; empty and default values are left out.
pub(super) fn facts(topology: &Topology) -> Vec<String> {
    let online = topology.online();
    let allowed = if topology.allowed == online {
        format!("{} (all)", topology.allowed)
    } else if topology.allowed.is_empty() {
        "none".to_owned()
    } else {
        topology.allowed.to_string()
    };
    let mut lines = vec![line("online", &online.to_string()), line("allowed", &allowed)];
    let sets = [
        ("offline", &topology.offline),
        ("isolated", &topology.isolated),
        ("nohz_full", &topology.nohz_full),
    ];
    lines.extend(
        sets.iter()
            .filter(|(_, set)| !set.is_empty())
            .map(|(name, set)| line(name, &set.to_string())),
    );
    lines.push(line("SMT", smt(topology.smt)));
    if !topology.l2_domains.is_empty() {
        lines.push(line("shared L2", &domains(&topology.l2_domains)));
    }
    if !topology.frequency_domains.is_empty() {
        lines.push(line("frequency", &domains(&topology.frequency_domains)));
    }
    if let Some(hypervisor) = &topology.hypervisor {
        lines.push(line("guest of", hypervisor));
    }
    lines.push(line("fingerprint", &topology.fingerprint));
    lines
}

fn line(name: &str, value: &str) -> String {
    format!("{name:<12} {value}")
}

fn smt(smt: Smt) -> &'static str {
    match smt {
        Smt::On => "on",
        Smt::Off => "off (the CPU has it)",
        Smt::NotSupported => "not supported",
        Smt::Unknown => "unknown",
    }
}

fn domains(domains: &[CpuSet]) -> String {
    if domains.iter().all(|domain| domain.len() == 1) {
        return "each PU on its own".to_owned();
    }
    let shown: Vec<String> =
        domains.iter().take(DOMAINS_SHOWN).map(|domain| format!("{{{domain}}}")).collect();
    let more = if domains.len() > DOMAINS_SHOWN { " …" } else { "" };
    format!("{}: {}{more}", count(domains.len(), "domain"), shown.join(" "))
}

/// A finding with its hint; the caller folds the lines.
pub(super) fn finding(finding: &Finding) -> Vec<String> {
    let head = format!("{}: {}: {}", finding.severity, finding.subject, finding.text);
    let hint = finding.hint.iter().map(|hint| format!("  → {hint}"));
    [head].into_iter().chain(hint).collect()
}

/// A number with its noun: `1 core`, `4 cores`, `no cores`.
pub(super) fn count(number: usize, thing: &str) -> String {
    match number {
        0 => format!("no {thing}s"),
        _ => count_noun(number, thing),
    }
}

/// A size as ` (8 MiB)`, ` (5.2 GiB)`; empty if it is unknown.
pub(super) fn size(bytes: u64) -> String {
    const UNITS: [(u64, &str); 4] =
        [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    if bytes == 0 {
        return String::new();
    }
    match UNITS.iter().find(|(unit, _)| bytes >= *unit) {
        None => format!(" ({bytes} B)"),
        Some((unit, name)) => {
            // Rounded to tenths; 128 bits, so that no size overflows.
            let tenths = (u128::from(bytes) * 10 + u128::from(*unit) / 2) / u128::from(*unit);
            match (tenths / 10, tenths % 10) {
                (whole, 0) => format!(" ({whole} {name})"),
                (whole, tenth) => format!(" ({whole}.{tenth} {name})"),
            }
        }
    }
}
