//! CPUs that remain for the host: without vCPUs, and without real-time threads.

use pinfold_model::{CpuSet, Policy, Severity};
use pinfold_plan::alternatives::severity;
use pinfold_plan::domain_file::{parse, place};
use pinfold_plan::layout::Pin;

use super::Diagnostic;
use super::descriptions::describe;
use super::lookup::{LintContext, is_real_time, places};
use super::repair::Repair;
use super::text::host::HostFault;

pub(super) fn check(view: &LintContext<'_, '_>, diagnostics: &mut Vec<Diagnostic>) {
    impossible_priorities(view, diagnostics);
    let hostable = match &view.layout.housekeeping {
        Some(pus) => pus.intersection(&view.lookup.online),
        None => view.lookup.usable.difference(&view.lookup.topology.isolated),
    };
    let real_time = view.layout.pins.iter().filter(|pin| is_real_time(pin.policy));
    let real_time: Vec<_> = real_time.collect();
    let burdened = real_time
        .iter()
        .fold(CpuSet::new(), |set, pin| set.union(pin.pus.as_ref().unwrap_or(&view.lookup.usable)));
    if !real_time.is_empty() && hostable.is_subset(&burdened) {
        let fault = HostFault::FifoEverywhere { hostable: &hostable };
        let mut diagnostic = view.diagnostic(Severity::Problem, &fault);
        diagnostic.places = places(real_time.iter().copied());
        diagnostics.push(diagnostic);
        return;
    }
    let left = hostable.difference(&view.tight);
    if left.is_empty() && !view.tight.is_empty() {
        let severity = severity(view.choice(view.tight.len()).with_a_pu_for_the_host());
        let mut diagnostic = view.diagnostic(severity, &HostFault::NoHousekeeping);
        diagnostic.places = places(view.vcpus().map(|(_, pin)| pin));
        diagnostics.push(diagnostic);
        return;
    }
    not_isolated(view, &hostable, diagnostics);
}

/// Priorities that libvirt accepts and the kernel refuses.
fn impossible_priorities(view: &LintContext<'_, '_>, diagnostics: &mut Vec<Diagnostic>) {
    if let Some(text) = &view.layout.text {
        impossible_schedulers(view, text, diagnostics);
        return;
    }
    for pin in view.layout.pins.iter().filter(|pin| match pin.policy {
        Some(Policy::Fifo { priority } | Policy::RoundRobin { priority }) => {
            !(1..=99).contains(&priority)
        }
        _ => false,
    }) {
        let fault = HostFault::PriorityRange { whose: describe(&pin.role) };
        let mut diagnostic = view.diagnostic(Severity::Problem, &fault);
        diagnostic.places = places([pin]);
        diagnostic.instead = vec!["priority='1'".to_owned()];
        diagnostics.push(diagnostic);
    }
}

/// The elements of a domain file with such a priority, each with its replacement.
fn impossible_schedulers(
    view: &LintContext<'_, '_>,
    text: &str,
    diagnostics: &mut Vec<Diagnostic>,
) {
    let Ok(document) = parse(text) else { return };
    let root = document.root_element();
    let tunes = root.children().filter(|child| child.has_tag_name("cputune"));
    for node in tunes.flat_map(|tune| tune.children()) {
        let (tag, threads, of) = match node.tag_name().name() {
            "vcpusched" => ("vcpusched", "vcpus", "the vCPUs"),
            "iothreadsched" => ("iothreadsched", "iothreads", "the iothreads"),
            "emulatorsched" => ("emulatorsched", "", "the emulator"),
            _ => continue,
        };
        let policy = node.attribute("scheduler").unwrap_or_default();
        let priority = node.attribute("priority").and_then(|text| text.trim().parse::<i64>().ok());
        if !["fifo", "rr"].contains(&policy) || priority.is_none_or(|it| (1..=99).contains(&it)) {
            continue;
        }
        let list = node.attribute(threads).unwrap_or_default();
        let fault =
            HostFault::PriorityRange { whose: format!("{of} {list}").trim_end().to_owned() };
        let mut diagnostic = view.diagnostic(Severity::Problem, &fault);
        diagnostic.places = vec![place(node)];
        let end = format!("scheduler='{policy}' priority='1'/>");
        let path = &["cputune"];
        diagnostic.repairs = vec![match threads {
            "" => Repair::set_element(path, tag, format!("<{tag} {end}")),
            _ => {
                let line = format!("<{tag} {threads}='{list}' {end}");
                Repair::put_keyed(path, tag, threads, list, line)
            }
        }];
        diagnostics.push(diagnostic);
    }
}

/// Pinned vCPUs whose CPUs the host's tasks may use; a libvirt file cannot change that.
fn not_isolated(view: &LintContext<'_, '_>, hostable: &CpuSet, diagnostics: &mut Vec<Diagnostic>) {
    let open = view.tight.intersection(hostable).difference(&view.layout.exclusive);
    if open.is_empty() {
        return;
    }
    let mut diagnostic = view.diagnostic(Severity::Note, &HostFault::NotIsolated { open: &open });
    let on_them = |pin: &&Pin| pin.pus.as_ref().is_some_and(|pus| !pus.is_disjoint(&open));
    diagnostic.places = places(view.vcpus().map(|(_, pin)| pin).find(on_them));
    diagnostics.push(diagnostic);
    above_interrupts(view, &open, diagnostics);
}

/// Real-time vCPUs above the kernel's interrupt threads, on CPUs that the host uses.
fn above_interrupts(
    context: &LintContext<'_, '_>,
    open: &CpuSet,
    diagnostics: &mut Vec<Diagnostic>,
) {
    /// `MAX_RT_PRIO / 2`, the priority that `sched_set_fifo` gives to interrupt threads.
    const OF_INTERRUPTS: u8 = 50;
    let above: Vec<&Pin> = context
        .vcpus()
        .map(|(_, pin)| pin)
        .filter(|pin| {
            pin.pus.as_ref().is_some_and(|pus| !pus.is_disjoint(open))
                && priority(pin) > OF_INTERRUPTS
        })
        .collect();
    let Some(highest) = above.iter().map(|pin| priority(pin)).max() else { return };
    let fault = HostFault::AboveInterrupts { open, priority: highest, interrupts: OF_INTERRUPTS };
    let mut diagnostic = context.diagnostic(Severity::Warning, &fault);
    diagnostic.places = places(above.first().copied());
    // No other placement changes it.
    diagnostic.is_final = true;
    diagnostics.push(diagnostic);
}

fn priority(pin: &Pin) -> u8 {
    match pin.policy {
        Some(Policy::Fifo { priority } | Policy::RoundRobin { priority }) => priority,
        Some(Policy::Other { .. } | Policy::Batch { .. } | Policy::Idle | Policy::Slice { .. }) => {
            0
        }
        Some(Policy::Deadline { .. } | Policy::Unknown { .. }) | None => 0,
    }
}
