//! Tasks that share a CPU or a core with a vCPU: the emulator, iothreads, the host's tasks;
//! real-time threads.

use pinfold_model::{CpuSet, Role, Severity};
use pinfold_plan::avoidable::severity;
use pinfold_plan::domain_file::Place;
use pinfold_plan::layout::Pin;
use pinfold_plan::text::verb;

use super::Diagnostic;
use super::lookup::{LintContext, cpus, describe, describe_vcpus, is_real_time, places};

pub(super) fn check(view: &LintContext<'_, '_>, flaws: &mut Vec<Diagnostic>) {
    for pin in &view.layout.pins {
        match pin.role {
            Role::Emulator => {
                helper(view, pin, flaws);
                far(view, pin, flaws);
            }
            Role::Iothread(_) | Role::Vhost(_) => {
                helper(view, pin, flaws);
                far(view, pin, flaws);
            }
            Role::Vcpu(_) | Role::Worker | Role::Task => {}
        }
    }
    siblings_of_host(view, flaws);
    mixed_kinds(view, flaws);
}

/// CPUs for the emulator and the iothreads of a machine whose vCPUs are on `held`: off the vCPUs'
/// cores and near them, if possible; none that the user's conditions exclude.
pub(super) fn better_place(view: &LintContext<'_, '_>, held: &CpuSet) -> CpuSet {
    let free = view.lookup.permitted.difference(held).difference(&view.lookup.topology.isolated);
    let off_cores = free.difference(&view.lookup.whole_cores(held));
    let nodes = view.lookup.nodes_of(held);
    let mut there = CpuSet::new();
    for node in view.lookup.topology.nodes.iter().filter(|node| nodes.contains(&node.id)) {
        there.add(&node.pus);
    }
    let choices = [off_cores.intersection(&there), free.intersection(&there), off_cores, free];
    choices.into_iter().find(|set| !set.is_empty()).unwrap_or_default()
}

/// The emulator, an iothread or a vhost worker on the CPUs of vCPUs.
fn helper(view: &LintContext<'_, '_>, pin: &Pin, flaws: &mut Vec<Diagnostic>) {
    let role = describe(&pin.role);
    let mask = pin.pus.clone().unwrap_or_else(|| view.lookup.usable.clone());
    let common = mask.intersection(&view.held);
    let floats = |(_, vcpu): (u32, &Pin)| vcpu.pus.as_ref().is_some_and(|pus| pus.is_subset(&mask));
    let float_together = view.tight.is_empty() && view.vcpus().all(floats);
    let real_time: CpuSet = view
        .vcpus()
        .filter(|(_, vcpu)| is_real_time(vcpu.policy))
        .filter_map(|(_, vcpu)| vcpu.pus.as_ref())
        .collect::<CpuSet>();
    let starves = !mask.is_empty() && mask.is_subset(&real_time) && !is_real_time(pin.policy);
    // Threads that all float over a part of the host do not take a vCPU's own CPU. But the kernel
    // never takes a CPU from a real-time vCPU.
    if common.is_empty() || float_together && real_time.is_disjoint(&mask) {
        return;
    }
    let name = match (&pin.role, starves) {
        (_, true) => "fifo-starves",
        (Role::Emulator, false) => "emulator-on-vcpu",
        (_, false) => "iothread-on-vcpu",
    };
    let severity = match starves {
        // At times a CPU may carry no vCPU.
        true if float_together => Severity::Warning,
        true => Severity::Problem,
        false => severity(view.choice(view.held.len()).with_free_helpers(&view.held)),
    };
    let what = match (&pin.pus, mask.is_subset(&view.held)) {
        (None, _) => {
            format!("{role} has no pin: it may run on {}, which belong to vCPUs", cpus(&common))
        }
        (Some(_), true) => {
            format!("{role} runs on {} only, which belong to vCPUs", cpus(&mask))
        }
        (Some(_), false) => {
            format!("{role} may run on {}, which belong to vCPUs", cpus(&common))
        }
    };
    let what = if starves { format!("{what} under a real-time policy") } else { what };
    let mut flaw = view.flaw(severity, name, what);
    flaw.places = match pin.pus {
        // One of the vCPUs' pins is shown; the map shows the others.
        Some(_) => {
            let meets =
                |vcpu: &&Pin| vcpu.pus.as_ref().is_some_and(|pus| !pus.is_disjoint(&common));
            let first = view.vcpus().map(|(_, vcpu)| vcpu).find(meets);
            places(std::iter::once(pin).chain(first))
        }
        None => vec![Place::said(format!("nowhere: {role} is not mentioned"))],
    };
    flaw.cost = cost(&pin.role, starves);
    flaws.push(flaw);
}

/// True if a thread on `pus` is on other nodes than the vCPUs on `held`, although one of the vCPUs'
/// nodes has room for it.
pub(super) fn is_far(view: &LintContext<'_, '_>, pus: &CpuSet, held: &CpuSet) -> bool {
    let (own, theirs) = (view.lookup.nodes_of(pus), view.lookup.nodes_of(held));
    let room = better_place(view, held).difference(&view.layout.exclusive);
    let has_room = view.lookup.nodes_of(&room).iter().any(|node| theirs.contains(node));
    !own.is_empty() && !theirs.is_empty() && has_room && own.iter().all(|n| !theirs.contains(n))
}

/// The emulator, an iothread or a vhost worker on another node than all vCPUs. For the emulator it
/// is a note, because few requests wait for it if iothreads and vhost serve the devices.
fn far(view: &LintContext<'_, '_>, pin: &Pin, flaws: &mut Vec<Diagnostic>) {
    let Some(pus) = pin.pus.as_ref().filter(|pus| is_far(view, pus, &view.tight)) else { return };
    let nodes = |pus: &CpuSet| super::lookup::spoken(&view.lookup.nodes_of(pus));
    let is_emulator = pin.role == Role::Emulator;
    let (severity, name) = match is_emulator {
        true => (Severity::Note, "emulator-far"),
        false => (Severity::Warning, "iothread-far"),
    };
    let mut flaw = view.flaw(
        severity,
        name,
        format!(
            "{} runs on {}, which belong to {}; the vCPUs run on {}",
            describe(&pin.role),
            cpus(pus),
            nodes(pus),
            nodes(&view.tight)
        ),
    );
    let first = view.vcpus().map(|(_, vcpu)| vcpu).next();
    flaw.places = places(std::iter::once(pin).chain(first));
    flaw.cost =
        "each request crosses the interconnect with its rings and buffers, and each wake-up \
                 between the two does"
            .to_owned();
    if is_emulator {
        flaw.instead = vec![view.write_pin(&pin.role, &better_place(view, &view.held))];
    }
    flaws.push(flaw);
}

fn cost(role: &Role, starves: bool) -> String {
    match (role, starves) {
        (_, true) => {
            "a vCPU that spins under FIFO or RR never lets it run: the guest hangs when it \
                      waits for a disk, a timer or the monitor, often already at boot"
                .to_owned()
        }
        (Role::Emulator, false) => "main loop, timers and worker threads push a vCPU off its CPU \
                                    whenever a device needs them; the guest sees it as a stall"
            .to_owned(),
        (_, false) => "each request of its disk or queue pushes a vCPU off its CPU, and a polling \
                       one takes the whole CPU"
            .to_owned(),
    }
}

/// Siblings of the vCPUs' CPUs that the host's tasks may use.
fn siblings_of_host(view: &LintContext<'_, '_>, flaws: &mut Vec<Diagnostic>) {
    let pinned = &view.tight;
    let taken =
        |role: &Role| view.layout.pin(role).and_then(|pin| pin.pus.clone()).unwrap_or_default();
    let others = view
        .lookup
        .whole_cores(pinned)
        .difference(&view.held)
        .difference(&view.lookup.topology.isolated)
        .difference(&view.layout.exclusive)
        .difference(&taken(&Role::Emulator))
        .intersection(&view.lookup.online);
    if others.is_empty() {
        return;
    }
    let mut flaw = view.flaw(
        Severity::Note,
        "sibling-left-to-host",
        format!(
            "{} {} left to the host's tasks",
            cpus(&others),
            verb(
                &others,
                "shares its core with a vCPU and is",
                "share their cores with vCPUs and are",
            )
        ),
    );
    let shares = |pin: &&Pin| {
        let cores = pin.pus.as_ref().map(|pus| view.lookup.whole_cores(pus));
        cores.is_some_and(|cores| !cores.is_disjoint(&others))
    };
    flaw.places = places(view.vcpus().map(|(_, pin)| pin).find(shares));
    flaw.cost = "a busy sibling takes a third to a half of a vCPU's speed away".to_owned();
    flaw.instead = vec![
        "give the siblings to the machine too (two vCPUs for each core, shown as threads), \
         or keep tasks off them:"
            .to_owned(),
    ];
    flaws.push(flaw);
}

/// vCPUs on fast and on slow cores.
fn mixed_kinds(view: &LintContext<'_, '_>, flaws: &mut Vec<Diagnostic>) {
    let kind = |pin: &Pin| {
        let pu = pin.pus.as_ref().filter(|pus| pus.len() == 1)?.first()?;
        Some(view.lookup.pu(pu)?.kind)
    };
    let kinds: Vec<_> =
        view.vcpus().filter_map(|(index, pin)| Some((index, pin, kind(pin)?))).collect();
    let Some(fastest) = kinds.iter().map(|(_, _, kind)| *kind).min() else {
        return;
    };
    let slower: Vec<_> = kinds.iter().filter(|(_, _, kind)| *kind != fastest).collect();
    if slower.is_empty() {
        return;
    }
    let mut flaw = view.flaw(
        severity(view.choice(kinds.len()).of_one_kind()),
        "mixed-cores",
        format!(
            "{} {} pinned to slower cores than the others",
            describe_vcpus(slower.iter().map(|(index, _, _)| *index)),
            if slower.len() == 1 { "is" } else { "are" }
        ),
    );
    flaw.places = places(slower.iter().map(|(_, pin, _)| *pin));
    flaw.cost = "no guest topology can say so: the guest gives its slow CPUs the same share, and \
                 what waits for all of them waits for the slowest"
        .to_owned();
    flaws.push(flaw);
}
