//! A plan checked against a host other than the one it was made for.

use pinfold_model::{Plan, Severity};
use pinfold_samples::auto;
use pinfold_samples::machine::{Machine, i7_4790k};

use crate::{plan, validate};

fn made() -> Plan {
    plan("low-latency", &i7_4790k().build(), &auto()).unwrap()
}

#[track_caller]
fn found(machine: &Machine, layout: &Plan, expected: &[(Severity, &str)]) {
    let found: Vec<(Severity, String)> = validate(layout, &machine.build())
        .into_iter()
        .map(|finding| (finding.severity, finding.text))
        .collect();
    let found: Vec<(Severity, &str)> =
        found.iter().map(|(severity, text)| (*severity, text.as_str())).collect();
    assert_eq!(found, expected);
}

#[test]
fn on_its_own_host() {
    found(&i7_4790k(), &made(), &[]);
}

#[test]
fn on_another_host() {
    let share = (Severity::Warning, "CPU 4 of the host's CPUs is not online");
    let other =
        (Severity::Warning, "the plan was made for the host test-0-7, this host is test-0-3,5-7");
    found(&i7_4790k().offline("4"), &without_record(), &[other, share]);
    let same = "the online CPUs have changed since the plan was made; the CPUs that it uses have \
                not";
    found(&i7_4790k().offline("4"), &made(), &[share, (Severity::Note, same)]);
    let offline = (Severity::Warning, "CPU 7 of the plan is offline, usable once online");
    let other =
        (Severity::Warning, "the plan was made for the host test-0-7, this host is test-0-6");
    found(&i7_4790k().offline("7"), &without_record(), &[other, offline]);
    let later = "`pinfold apply` brings the CPUs online that the plan uses, and then compares this \
                 host with the host of the plan";
    found(&i7_4790k().offline("7"), &made(), &[offline, (Severity::Note, later)]);
    found(
        &pinfold_samples::machine::plain(6),
        &without_record(),
        &[
            (Severity::Problem, "the CPUs 6-7 of the plan do not exist on this host"),
            (Severity::Warning, "the plan was made for the host test-0-7, this host is test-0-5"),
        ],
    );
}

fn without_record() -> Plan {
    pinfold_model::Plan { cpus: None, ..made() }
}

#[test]
fn where_it_may_not_be() {
    found(
        &i7_4790k().allowed("0-2,4-6"),
        &made(),
        &[(
            Severity::Problem,
            "the CPUs 3,7 of the plan must not be used: not in the cpuset of this process's cgroup",
        )],
    );
}

#[test]
fn the_cpus_of_a_tunable_are_named_with_its_key_and_value() {
    let mut layout = made();
    layout.irqs.push(pinfold_model::IrqPlan {
        device: pinfold_model::IrqPlan::ALL.to_owned(),
        pus: pinfold_samples::set("0,99"),
        reason: String::new(),
    });
    let text = "CPU 99 of irq:all=0,99 does not exist on this host";
    found(&i7_4790k(), &layout, &[(Severity::Problem, text)]);
    layout.irqs.clear();
    layout.tuning = pinfold_model::Tuning::from_words(&["workqueues=64"]).unwrap();
    let text = "CPU 64 of workqueues=64 does not exist on this host";
    found(&i7_4790k(), &layout, &[(Severity::Problem, text)]);
}

#[test]
fn work_of_the_host_on_exclusive_cpus_is_a_warning() {
    for tunable in ["new-irqs", "workqueues"] {
        let mut layout = made();
        layout.exclusive = pinfold_samples::set("1,5");
        layout.tuning = pinfold_model::Tuning::from_words(&[&format!("{tunable}=0,5")]).unwrap();
        let text = format!("{tunable}=0,5 contradicts the isolation: CPU 5 is exclusive");
        found(&i7_4790k(), &layout, &[(Severity::Warning, &text)]);
        layout.tuning = pinfold_model::Tuning::from_words(&[&format!("{tunable}=0")]).unwrap();
        found(&i7_4790k(), &layout, &[]);
    }
    let mut layout = made();
    layout.exclusive = pinfold_samples::set("1,5");
    layout.irqs.push(pinfold_model::IrqPlan {
        device: pinfold_model::IrqPlan::ALL.to_owned(),
        pus: pinfold_samples::set("1"),
        reason: String::new(),
    });
    let text = "irq:all=1 contradicts the isolation: CPU 1 is exclusive";
    found(&i7_4790k(), &layout, &[(Severity::Warning, text)]);
}

/// A pool on another node, or one that is too small, does not start the machine.
#[test]
fn pools_hold_the_pages_of_the_machine_on_its_nodes() {
    let mut topology = pinfold_samples::machine::dual_e5_2670().build();
    topology.nodes.iter_mut().for_each(|node| node.memory_bytes = 64 << 30);
    let mut request = pinfold_samples::exactly(4);
    let page = 1 << 30;
    request.vnodes[0].memory =
        Some(pinfold_model::MemoryRequest { bytes: 8 << 30, page_bytes: Some(page) });
    let mut layout = crate::plan("balanced", &topology, &request).unwrap();
    assert_eq!(layout.vnodes[0].memory.as_ref().unwrap().nodes, [pinfold_model::NodeId(1)]);
    let mut check = |pools: &[&str], expected: &[(Severity, &str)]| {
        layout.tuning = pinfold_model::Tuning::from_words(pools).unwrap();
        let findings = crate::validate(&layout, &topology);
        let found = findings.iter().map(|it| (it.severity, it.text.as_str())).collect::<Vec<_>>();
        assert_eq!(found, expected, "{pools:?}");
    };
    check(&["huge-pages=1:1048576:8"], &[]);
    let none = "vm does not start: on node 1 it needs 8 pages of 1048576 KiB, and there are";
    let wrong_node = format!("{none} 0");
    check(&["huge-pages=0:1048576:8"], &[(Severity::Warning, &wrong_node)]);
    let too_small = format!("{none} 4");
    check(&["huge-pages=1:1048576:4"], &[(Severity::Warning, &too_small)]);
    check(&["huge-pages=1:2048:100"], &[]);
    let both = "all its pools together (71680 MiB) do not fit into node 1, which has 65536 MiB of \
                memory";
    check(&["huge-pages=1:1048576:60", "huge-pages=1:2048:5120"], &[(Severity::Problem, both)]);
    let boot = "on x86 the kernel keeps CPU 0 online (since Linux 6.5, before that by default)";
    check(&["offline=0"], &[(Severity::Warning, boot)]);
}

#[test]
fn a_plan_that_breaks_the_rules() {
    let mut layout = made();
    layout.housekeeping = pinfold_samples::set("");
    found(
        &i7_4790k(),
        &layout,
        &[(Severity::Problem, "housekeeping_pus: the host's own tasks would have no CPU")],
    );
}
