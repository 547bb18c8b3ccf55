//! `low-latency`: each vCPU alone on a core, the emulator on the siblings.
//!
//! Lindroth 2017 on an i7-4790K (siblings 0,4 1,5 2,6 3,7): vcpupin 1, 2, 3; emulatorpin 5-7; guest
//! topology 1×3×1; the host's tasks on core 0. The vCPU shares its core's caches and execution
//! units only with the emulator, which works mostly while the vCPU waits for it. No vCPU is ever on
//! the host core.
//!
//! If the machine has a weaker part that is free (efficiency cores, the die with the smaller
//! cache), the emulator runs there with the host's tasks and the siblings stay idle. Without SMT
//! there are no siblings: the emulator then uses the host core, or the vCPUs' node. `auto` gives
//! one vCPU per core of the preferred part, minus the host core.

use pinfold_model::text::pus_text;
use pinfold_model::{CpuSet, Finding, Plan, Policy, PuId, Request, Role, Topology};

use super::{Strategy, StrategyKind, TrialOrder};
use crate::cores::available::AvailableCpus;
use crate::cores::available_core::AvailableCore;
use crate::cores::emulator_cpus::{EmulatorCpus, EmulatorCpusRule};
use crate::cores::host_share::HostShare;
use crate::cores::select::Count;
use crate::error::PlanError;
use crate::guest::topology::GuestSmt;
use crate::placement::builder::{PlanBuilder, select_available_cpus};
use crate::placement::exclusive_cores::{
    ExclusiveCores, Spread, Terms, assign_cores, choose_host_core,
};
use crate::placement::rules::{Isolated, Rules};
use crate::placement::vnode_builder::VnodeBuilder;

pub(super) const STRATEGY: Strategy = Strategy {
    name: "low-latency",
    summary: "each vCPU alone on a core, never the host's; the emulator on weaker cores, else on \
              the cores' siblings, else on the host's core",
    source: "Lindroth 2017, i7-4790K: vcpupin 1, 2, 3; emulatorpin 5-7; topology 1×3×1; \
             the host on core 0",
    kind: StrategyKind::Shape,
    rules: Rules {
        has_own_cores: true,
        takes_emulator_request: false,
        isolated: Isolated::Preferred,
    },
    turns: TrialOrder {
        fallback: Some(0),
        auto: Some(1),
        again: Some(0),
        check: Some(2),
        demo: Some(3),
    },
    is_divided: true,
    plan,
};

fn plan(topology: &Topology, request: &Request) -> Result<Plan, PlanError> {
    let available = select_available_cpus(topology, request, Count::Cores)?;
    let builder = PlanBuilder::new(STRATEGY.name, STRATEGY.rules, &available, request)?;
    let host = choose_host_core(&builder, Count::Cores);
    one_per_core(builder, &host, None, Spread::Nodes)
}

/// A plan with each vCPU alone on a core, and the host on none of these. Threads of virtual
/// machines have `policy`, unless they share the host's CPUs.
pub(super) fn one_per_core(
    mut builder: PlanBuilder<'_>,
    host: &HostShare,
    policy: Option<Policy>,
    spread: Spread,
) -> Result<Plan, PlanError> {
    let available = builder.available;
    let candidates = available.without(host);
    let why = format!(
        "each vCPU needs a core of its own, and {} with the host",
        host.with_verb("stays", "stay")
    );
    let enclosures = assign_cores(
        &builder,
        &candidates,
        &Terms { count: Count::Cores, host: Some(host), auto_is_all: false, spread, why },
    )?;
    let mut on_host = None;
    for (place, exclusive_cores) in enclosures.vnodes.iter().enumerate() {
        let mut vnode_builder = builder.open(place);
        let is_vm = matches!(vnode_builder.asked.work, pinfold_model::Work::Vm(_));
        let home = available.choose_emulator_cpus(host, &exclusive_cores.pins, &enclosures.all);
        // On several isolated siblings, the emulator's threads would all stay on the first one.
        let unbalanced = exclusive_cores.rest.intersection(&available.topology.isolated).len() > 1;
        let beside = is_vm
            && !exclusive_cores.rest.is_empty()
            && home.kind != EmulatorCpusRule::Weak
            && !unbalanced;
        if let (Some(policy), true) = (policy, is_vm) {
            vnode_builder.policies = [Some(policy), beside.then_some(policy)];
        }
        let near = if enclosures.choice {
            format!("chosen because it is near the cores of the other {}s", vnode_builder.unit())
        } else {
            "like every core outside the host's".to_owned()
        };
        for (vcpu, pin) in exclusive_cores.pins.iter().enumerate() {
            let reason = exclusive_cores
                .core(vcpu)
                .map(|core| {
                    format!(
                        "{}, {near}; {}; {} the host's",
                        vcpu_place(available, core, *pin),
                        of_siblings(core, *pin, beside),
                        host.with_verb("is", "are")
                    )
                })
                .unwrap_or_default();
            vnode_builder.vcpu(CpuSet::single(*pin), reason);
        }
        if beside {
            beside_vcpus(&mut vnode_builder, exclusive_cores, host);
        } else {
            with_host(&mut vnode_builder, &home, unbalanced);
        }
        on_host = on_host.or((is_vm && !beside).then_some((home, unbalanced)));
        builder.finish_vnode(vnode_builder, GuestSmt::None)?;
    }
    builder.defer_finding(move |ended| {
        let (home, unbalanced) = on_host?;
        // A pin by hand may have moved the emulators.
        let emulators = ended.pus(|role| *role == Role::Emulator);
        if emulators.is_disjoint(&home.pus) { None } else { no_siblings(&home, unbalanced, policy) }
    });
    builder.finish_isolated(enclosures.reserve(available, host))
}

fn vcpu_place(available: &AvailableCpus<'_>, core: &AvailableCore, pin: PuId) -> String {
    let which = if core.pus.first() == Some(&pin) {
        "the first of its core"
    } else {
        "the CPU of its core to which no helper is pinned"
    };
    format!("CPU {pin} is {which} ({})", available.place(pin))
}

/// What happens to the siblings of a vCPU's CPU; `beside` if the emulator runs on them.
fn of_siblings(core: &AvailableCore, pin: PuId, beside: bool) -> String {
    let siblings = core.set().difference(&CpuSet::single(pin));
    match (siblings.is_empty(), beside) {
        (true, _) => "it has no sibling to share with".to_owned(),
        (false, _) if !core.of_helpers.is_empty() => {
            format!("helpers are pinned to its sibling {siblings} by hand")
        }
        (false, true) => format!("its sibling {siblings} goes to the emulator, not to a vCPU"),
        (false, false) => format!("its sibling {siblings} stays idle"),
    }
}

fn beside_vcpus(
    vnode_builder: &mut VnodeBuilder<'_>,
    exclusive_cores: &ExclusiveCores<'_>,
    host: &HostShare,
) {
    let siblings = &exclusive_cores.rest;
    vnode_builder.emulator(siblings, || {
        format!(
            "the emulator runs on {}, the siblings of the vCPUs' CPUs: near their caches, never on \
             a vCPU's CPU, and not on the host's {}",
            pus_text(siblings),
            host.name()
        )
    });
}

fn with_host(vnode_builder: &mut VnodeBuilder<'_>, home: &EmulatorCpus, unbalanced: bool) {
    vnode_builder.emulator(&home.pus, || {
        let why = match home.kind {
            _ if unbalanced => "because the kernel does not balance threads over isolated siblings",
            EmulatorCpusRule::Weak => "so that the vCPUs' cores run nothing else",
            EmulatorCpusRule::Host | EmulatorCpusRule::Near => {
                "because the vCPUs' cores have no siblings"
            }
        };
        format!("the emulator runs on {} {}, {why}", pus_text(&home.pus), home.what)
    });
}

/// The finding about an emulator that shares CPUs with the host's tasks, if that has a cost.
fn no_siblings(home: &EmulatorCpus, unbalanced: bool, policy: Option<Policy>) -> Option<Finding> {
    let rights = match policy {
        Some(policy) => format!(
            "; it does not get {policy} there, because a real-time thread could block the host's \
             tasks on their last CPUs"
        ),
        None if home.kind == EmulatorCpusRule::Weak || unbalanced => return None,
        None => String::new(),
    };
    let with_siblings = unbalanced || home.kind == EmulatorCpusRule::Weak;
    let text = if with_siblings {
        format!("the emulator shares CPUs {} with the host's tasks{rights}", home.what)
    } else {
        format!(
            "the vCPUs' cores have one available CPU each, so the emulator shares CPUs with the \
             host's tasks: its work waits when the host is busy{rights}"
        )
    };
    let subject = if with_siblings { "emulator" } else { "smt" };
    Some(Finding::note(subject, text))
}
