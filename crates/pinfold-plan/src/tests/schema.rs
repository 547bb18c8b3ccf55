//! The JSON format: round trip, golden text, and errors that name the field.

use pinfold_model::tunables::{TUNABLES, Value, Values};
use pinfold_model::{
    CpuSet, Finding, GuestTopology, IrqPlan, IsolationScope, MemoryPlan, NodeId, Plan, PlannedCpus,
    Policy, PuId, Role, Severity, Speed, ThreadPlan, Tuning, VnodeKind, VnodePlan,
};
use proptest::prelude::*;

use super::auto;
use super::machine::i7_4790k;
use crate::plan;
use crate::schema::{SchemaError, from_json, to_json, to_json_line};

const GOLDEN: &str = include_str!("golden/plan-1.json");

#[test]
fn the_first_version_of_the_format_is_read_and_written() {
    let layout = from_json(GOLDEN).unwrap();
    assert_eq!(to_json(&layout), GOLDEN);
    assert_eq!((layout.strategy.as_str(), layout.isolation), ("balanced", IsolationScope::Host));
    assert_eq!(super::pins(&layout), "1,5,2,6,3");
    let policy = |role: &Role| layout.vnodes[0].thread(role).unwrap().policy;
    assert_eq!(policy(&Role::Vcpu(0)), Some(Policy::RoundRobin { priority: 1 }));
    assert_eq!(policy(&Role::Emulator), Some(Policy::Other { nice: -5 }));
    assert_eq!(policy(&Role::Iothread("disk".to_owned())), None);
    assert_eq!((layout.housekeeping, layout.exclusive), (super::set("0,4"), super::set("1-3,5-7")));
    assert_eq!(layout.findings.len(), 2);
}

#[track_caller]
fn refused(from: &str, to: &str, error: &str) -> SchemaError {
    let text = to_json(&plan("low-latency", &i7_4790k().build(), &auto()).unwrap());
    assert!(text.contains(from), "{from} is not in the text");
    let found = from_json(&text.replacen(from, to, 1)).unwrap_err();
    assert_eq!(found.to_string(), error);
    found
}

#[test]
fn errors_name_the_field() {
    refused(
        "\"pus\": \"2\"",
        "\"pus\": \"3-2\"",
        "vnodes[0].threads[1].pus: \"3-2\" is not a list of PUs: \"3-2\": the range runs backwards",
    );
    refused(
        "\"pus\": \"2\"",
        "\"pus\": 2",
        "vnodes[0].threads[1].pus: invalid type: integer `2`, expected a string at line 18 column 18",
    );
    refused(
        "\"pus\": \"2\"",
        "\"pus\": \"\"",
        "vnodes[0].threads[1].pus: vcpu(1) has no PU to run on",
    );
    refused(
        "\"pus\": \"2\"",
        "\"cpus\": \"2\"",
        "vnodes[0].threads[1].cpus: unknown field `cpus`, expected one of `role`, `pus`, `policy`, \
         `reason` at line 18 column 16",
    );
    refused(
        "vcpu(1)",
        "vcpu(one)",
        "vnodes[0].threads[1].role: \"vcpu(one)\" is not a role; there are vcpu(N), emulator, \
         iothread(ID), vhost(N), worker, task",
    );
    refused("vcpu(1)", "vcpu(0)", "vnodes[0].threads[1].role: vcpu(0) is planned twice");
    refused("vcpu(1)", "vcpu(7)", "vnodes[0].threads: the vCPUs are not in ascending order");
    refused(
        "\"policy\": null",
        "\"policy\": {\"fifo\": {\"priority\": 100}}",
        "vnodes[0].threads[0].policy: the real-time priority 100 is not in 1 to 99",
    );
    refused("\"cores\": 3", "\"cores\": 4", "vnodes[0].guest: 1×4×1 is not the number of vCPUs, 3");
    refused(
        "\"cores\": 3",
        "\"cores\": 4294967295",
        "vnodes[0].guest: 1×4294967295×1 is not the number of vCPUs, 3",
    );
}

#[test]
fn plans_that_would_harm_the_host_are_refused() {
    refused(
        "\"housekeeping_pus\": \"0,4\"",
        "\"housekeeping_pus\": \"\"",
        "housekeeping_pus: the host's own tasks would have no PU",
    );
    refused(
        "\"housekeeping_pus\": \"0,4\"",
        "\"housekeeping_pus\": \"0-2\"",
        "exclusive_pus: the PUs 1-2 are also in housekeeping_pus",
    );
    refused(
        "\"isolation\": \"host\"",
        "\"isolation\": \"none\"",
        "exclusive_pus: the isolation is none, so nothing is kept off any PU",
    );
    refused(
        "\"pus\": \"1\",\n          \"policy\": null",
        "\"pus\": \"0,4\",\n          \"policy\": {\"fifo\": {\"priority\": 1}}",
        "housekeeping_pus: real-time threads may run on all of 0,4, so none is left for the host \
         alone",
    );
}

#[test]
fn texts_that_are_no_plan() {
    let check = |text: &str, error: &str, hint: &str| {
        let found = from_json(text).unwrap_err();
        assert_eq!(found.to_string(), error);
        assert_eq!(found.hint().unwrap_or_default(), hint);
    };
    let written = "a plan is written by `pinfold plan --json`";
    check("", "the text is not JSON: EOF while parsing a value at line 1 column 0", written);
    check("{}", "the format is missing, not \"pinfold-plan/1\"", written);
    check("[]", "the format is missing, not \"pinfold-plan/1\"", written);
    check(
        "{\"format\": \"pinfold-plan/9\", \"new\": 1}",
        "the format is \"pinfold-plan/9\", not \"pinfold-plan/1\"",
        "it was written by another version of Pinfold; plan anew",
    );
    let missing = from_json("{\"format\": \"pinfold-plan/1\"}").unwrap_err();
    assert!(missing.to_string().contains("missing field `strategy`"), "{missing}");
    refused(
        "\"strategy\": \"low-latency\"",
        "\"strategy\": \"low-latency\", \"strategy\": \"none\"",
        "plan: duplicate field `strategy` at line 3 column 39",
    );
}

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof!["[ -~]{0,12}", "\\PC{0,8}", Just("\n\u{0}\"\\--'".to_owned())]
}

/// A name or a sentence that is printed.
fn any_line() -> impl Strategy<Value = String> {
    any_text().prop_map(|text| pinfold_model::shown::name(&text).into_owned())
}

/// A text in a plan cannot imitate other lines of Pinfold's output.
#[test]
fn a_line_break_in_a_plan_makes_no_line() {
    let refused = |name: &str, change: &dyn Fn(&mut serde_json::Value)| {
        let mut value: serde_json::Value = serde_json::from_str(GOLDEN).unwrap();
        change(&mut value);
        let error = from_json(&value.to_string()).unwrap_err().to_string();
        assert!(error.starts_with(name), "{error}");
        assert!(error.contains("x\\u000ano placement is active"), "{error}");
        assert!(!error.contains('\n'), "{error}");
    };
    let bad = "x\nno placement is active";
    refused("strategy: ", &|plan| plan["strategy"] = bad.into());
    refused("fingerprint: ", &|plan| plan["fingerprint"] = bad.into());
    refused("vnodes[0].threads[0].role: ", &|plan| {
        plan["vnodes"][0]["threads"][0]["role"] = format!("iothread({bad})").into();
    });
    refused("x\\u000ano", &|plan| plan[bad] = 1.into());
    let mut value: serde_json::Value = serde_json::from_str(GOLDEN).unwrap();
    value["vnodes"][0]["threads"][0]["reason"] = bad.into();
    let plan = from_json(&value.to_string()).unwrap();
    assert_eq!(plan.vnodes[0].threads[0].reason, "x\\u000ano placement is active");
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
        (1_u8..100).prop_map(|priority| Some(Policy::Fifo { priority })),
        (1_u8..100).prop_map(|priority| Some(Policy::RoundRobin { priority })),
        (1_u64..9, 0_u64..9, 0_u64..9).prop_map(|(runtime_ns, deadline, period)| {
            let deadline_ns = runtime_ns + deadline;
            Some(Policy::Deadline { runtime_ns, deadline_ns, period_ns: deadline_ns + period })
        }),
        any::<u32>().prop_map(|number| Some(Policy::Unknown(number))),
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
            let thread =
                |(role, (pus, policy, reason)): (Role, (CpuSet, Option<Policy>, String))| {
                    // Only a vCPU may have a deadline.
                    let fits = |policy: &Policy| {
                        matches!(role, Role::Vcpu(_)) || !matches!(policy, Policy::Deadline { .. })
                    };
                    // A CPU without vCPUs, so that no real-time vCPU starves a thread for which it
                    // waits.
                    let own = CpuSet::single(PuId(501));
                    let pus = if matches!(role, Role::Vcpu(_)) { pus } else { pus.union(&own) };
                    ThreadPlan { policy: policy.filter(fits), role, pus, reason }
                };
            roles.into_iter().zip(bodies).map(thread).collect()
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
                (values, _) => values.parse(("", tunable.example), &CpuSet::new()).unwrap(),
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
        l3: caches.into_iter().zip([0, 96 << 20, u64::MAX]).collect(),
        nodes: nodes.into_iter().zip(0..).map(|(cpus, node)| (NodeId(node), cpus)).collect(),
    });
    prop::option::of(record)
}

/// Valid plans with arbitrary texts.
fn any_plan() -> impl Strategy<Value = Plan> {
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
            reason: strategy.clone(),
        });
        let speed = Speed::from_millionths(speed).unwrap();
        let irq = |pus| IrqPlan { device: strategy.clone(), pus, reason: strategy.clone() };
        let irqs = irqs.into_iter().map(irq).collect();
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
            housekeeping_reason,
            findings,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, ..ProptestConfig::default() })]

    #[test]
    fn plan_to_text_to_plan_is_the_identity(layout in any_plan()) {
        let line = to_json_line(&layout);
        prop_assert!(!line.contains('\n'));
        prop_assert_eq!(from_json(&line), Ok(layout.clone()));
        prop_assert_eq!(from_json(&to_json(&layout)), Ok(layout));
    }

    #[test]
    fn foreign_texts_stay_data(layout in any_plan()) {
        super::libvirt::parse(&super::libvirt::libvirt(&layout).unwrap());
        let argv = [layout.vnodes[0].name.clone(), layout.strategy.clone()];
        super::qemu::assert_sh_reads(&super::qemu::qemu(&layout, &argv).unwrap());
    }

    #[test]
    fn no_text_panics(text in "\\PC{0,64}", cut in 0_usize..4000) {
        let broken: String = GOLDEN.chars().take(cut).chain(text.chars()).collect();
        prop_assert!(from_json(&text).is_err());
        prop_assert!(from_json(&broken).is_err() || cut >= GOLDEN.chars().count());
    }
}
