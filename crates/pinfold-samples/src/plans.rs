//! Plans: what tests read of them, and random ones with arbitrary texts.

use pinfold_model::tunables::{TUNABLES, Value, Values};
use pinfold_model::{
    CpuSet, Finding, GuestTopology, IrqPlan, IsolationScope, MemoryPlan, NodeId, Plan,
    PlannedCache, PlannedCpus, PlannedNode, Policy, PuId, Role, Severity, Speed, ThreadPlan,
    Tuning, VnodeKind, VnodePlan,
};
use proptest::prelude::{Just, Strategy, any, prop, prop_oneof};

/// The vCPUs' CPUs in order, `1,5,2` for pinned ones.
pub fn pins(plan: &Plan) -> String {
    let pus: Vec<String> = plan.vnodes[0].vcpus().map(|vcpu| vcpu.pus.to_string()).collect();
    pus.join(",")
}

/// The CPUs of the emulator.
#[must_use]
pub fn emulator(plan: &Plan) -> String {
    plan.vnodes[0].thread(&Role::Emulator).unwrap().pus.to_string()
}

/// Sockets, cores and threads of the guest: `1×3×2`.
pub fn shape(plan: &Plan) -> String {
    let guest = plan.vnodes[0].guest.as_ref().unwrap();
    format!("{}×{}×{}", guest.sockets, guest.cores, guest.threads)
}

/// True if there is a finding with this subject whose text contains `text`.
pub fn finds(plan: &Plan, subject: &str, text: &str) -> bool {
    plan.findings.iter().any(|found| found.subject == subject && found.text.contains(text))
}

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof!["[ -~]{0,12}", "\\PC{0,8}", Just("\n\u{0}\"\\--'".to_owned())]
}

/// A name or a sentence that is printed.
fn any_line() -> impl Strategy<Value = String> {
    any_text().prop_map(|text| pinfold_model::escape::name(&text).into_owned())
}

fn any_pus() -> impl Strategy<Value = CpuSet> {
    prop::collection::vec(0_u32..400, 1..6).prop_map(|pus| pus.into_iter().map(PuId).collect())
}

fn any_policy() -> impl Strategy<Value = Option<Policy>> {
    prop_oneof![
        Just(None),
        (-20_i8..20).prop_map(|nice| Some(Policy::Other { nice })),
        (-20_i8..20).prop_map(|nice| Some(Policy::Batch { nice })),
        Just(Some(Policy::Idle)),
        (proptest::option::of(-20_i8..20), 100_000_u64..=100_000_000)
            .prop_map(|(nice, slice_ns)| Some(Policy::Slice { nice, slice_ns })),
        (1_u8..100).prop_map(|priority| Some(Policy::Fifo { priority })),
        (1_u8..100).prop_map(|priority| Some(Policy::RoundRobin { priority })),
        (1_u64..9, 0_u64..9, 0_u64..9).prop_map(|(runtime_ns, deadline, period)| {
            let deadline_ns = runtime_ns + deadline;
            Some(Policy::Deadline { runtime_ns, deadline_ns, period_ns: deadline_ns + period })
        }),
        any::<u32>().prop_map(|number| Some(Policy::Unknown { number })),
    ]
}

fn any_thread() -> impl Strategy<Value = (CpuSet, Option<Policy>, String)> {
    (any_pus(), any_policy(), any_line())
}

fn any_threads() -> impl Strategy<Value = Vec<ThreadPlan>> {
    let iothreads = prop::collection::btree_set(any_line(), 0..3);
    let others = (iothreads, 0_u32..2, any::<bool>(), any::<bool>());
    (0_u32..4, others, prop::collection::vec(any_thread(), 12)).prop_map(
        |(vcpus, (iothreads, vhosts, worker, emulator), bodies)| {
            let mut roles: Vec<Role> = (0..vcpus).map(Role::Vcpu).collect();
            roles.extend(emulator.then_some(Role::Emulator));
            roles.extend(iothreads.into_iter().map(Role::Iothread));
            roles.extend((0..vhosts).map(Role::Vhost));
            roles.extend(worker.then_some(Role::Worker));
            roles
                .into_iter()
                .zip(bodies)
                .map(|(role, (pus, policy, reason)): (Role, (CpuSet, Option<Policy>, String))| {
                    // Only a vCPU may have a deadline.
                    // A CPU without vCPUs, so that no real-time vCPU starves a thread for which it
                    // waits.
                    let own = CpuSet::single(PuId(501));
                    let pus = if matches!(role, Role::Vcpu(_)) { pus } else { pus.union(&own) };
                    ThreadPlan {
                        policy: policy.filter(|policy| {
                            matches!(role, Role::Vcpu(_))
                                || !matches!(policy, Policy::Deadline { .. })
                        }),
                        role,
                        pus,
                        reason,
                    }
                })
                .collect()
        },
    )
}

fn any_finding() -> impl Strategy<Value = Finding> {
    let severity = prop::sample::select(vec![Severity::Note, Severity::Warning, Severity::Problem]);
    (severity, any_line(), any_line(), prop::option::of(any_line()))
        .prop_map(|(severity, subject, text, hint)| Finding { severity, subject, text, hint })
}

/// Each tunable or none, with its example or a value that depends on a number.
fn any_tuning() -> impl Strategy<Value = Tuning> {
    let all = prop::collection::vec(prop::option::of(1_u32..1000), TUNABLES.len());
    (all, any::<bool>()).prop_map(|(numbers, required)| {
        let mut tuning = Tuning::default();
        for (tunable, number) in TUNABLES.into_iter().zip(numbers) {
            let Some(number) = number.filter(|_| !tunable.field.is_empty()) else { continue };
            let value = match (tunable.values, tunable.key) {
                // The minimum frequency is below the maximum.
                (Values::Number { .. }, "max-khz") => Value::Number(1000),
                (Values::Number { .. }, _) => Value::Number(u64::from(number)),
                (values, _) => values.parse("", tunable.example, &CpuSet::new()).unwrap(),
            };
            tuning.set(tunable, value);
        }
        tuning.required = required;
        tuning
    })
}

/// A record of CPUs, or none as in plans of older versions.
fn any_cpus() -> impl Strategy<Value = Option<PlannedCpus>> {
    let sets = || prop::collection::vec(any_pus(), 0..3);
    let model = prop::option::of(any_line());
    let record = (model, any_pus(), sets(), sets(), sets());
    let record = record.prop_map(|(model, online, cores, caches, nodes)| PlannedCpus {
        model,
        nohz_full: cores.first().cloned().unwrap_or_default(),
        online,
        cores,
        l3: caches
            .into_iter()
            .zip([0, 96 << 20, u64::MAX])
            .map(|(cpus, size_bytes)| PlannedCache { cpus, size_bytes })
            .collect(),
        nodes: nodes
            .into_iter()
            .zip(0..)
            .map(|(cpus, node)| PlannedNode { node: NodeId(node), cpus })
            .collect(),
    });
    prop::option::of(record)
}

/// Valid plans with arbitrary texts.
pub fn any_plan() -> impl Strategy<Value = Plan> {
    let texts = (any_text(), any_line(), any_line(), any_line(), any_line());
    let sets = (any_pus(), any_pus(), any::<bool>());
    let findings = prop::collection::vec(any_finding(), 0..3);
    let nodes = prop::collection::btree_set(0_u32..64, 1..4);
    let nodes = prop::option::of((nodes, any::<Option<u64>>(), any::<Option<u64>>()));
    let irqs = prop::collection::vec(any_pus(), 0..3);
    let more = (nodes, 1_u32..=1_000_000, irqs, any_tuning(), any_cpus());
    let parts = (texts, any_threads(), sets, findings, more);
    parts.prop_map(|(texts, threads, sets, findings, (nodes, speed, irqs, tuning, cpus))| {
        let (name, strategy, fingerprint, housekeeping_reason, reason) = texts;
        // A CPU without threads, so that no real-time thread can starve the host.
        let housekeeping = sets.0.union(&CpuSet::single(PuId(500)));
        let exclusive = sets.1.difference(&housekeeping);
        let scope = if sets.2 { IsolationScope::Own } else { IsolationScope::Host };
        let isolation = if exclusive.is_empty() { IsolationScope::None } else { scope };
        let vcpus = threads.iter().filter(|thread| matches!(thread.role, Role::Vcpu(_))).count();
        let cores = u32::try_from(vcpus).unwrap();
        let guest = (cores > 0).then_some(GuestTopology { sockets: 1, cores, threads: 1, reason });
        let kind = if cores > 0 { VnodeKind::VirtualMachine } else { VnodeKind::ProcessGroup };
        let memory = nodes.map(|(nodes, bytes, page_bytes)| MemoryPlan {
            nodes: nodes.into_iter().map(NodeId).collect(),
            bytes,
            page_bytes,
            is_preferred: false,
            reason: strategy.clone(),
        });
        let speed = Speed::from_millionths(speed).unwrap();
        let irqs = irqs
            .into_iter()
            .map(|pus| IrqPlan { device: strategy.clone(), pus, reason: strategy.clone() })
            .collect();
        Plan {
            strategy,
            fingerprint,
            vnodes: vec![VnodePlan { name, kind, threads, guest, memory, speed }],
            irqs,
            tuning,
            cpus,
            housekeeping,
            exclusive,
            isolation,
            avoid_pus: pinfold_model::CpuSet::new(),
            moved: Vec::new(),
            housekeeping_reason,
            findings,
        }
    })
}
