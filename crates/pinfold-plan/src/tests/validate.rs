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
    let without_record = || pinfold_model::Plan { cpus: None, ..made() };
    let share = (Severity::Warning, "CPU 4 of the host's share is not online");
    let other =
        (Severity::Warning, "the plan was made for the host test-0-7, this host is test-0-3,5-7");
    found(&i7_4790k().offline("4"), &without_record(), &[other, share]);
    let same = "other CPUs are online than when the plan was made; those that it uses are the same";
    found(&i7_4790k().offline("4"), &made(), &[share, (Severity::Note, same)]);
    let offline = (Severity::Warning, "CPU 7 of the plan is offline, usable once online");
    let other =
        (Severity::Warning, "the plan was made for the host test-0-7, this host is test-0-6");
    found(&i7_4790k().offline("7"), &without_record(), &[other, offline]);
    let later = "`pinfold apply` brings the CPUs online that the plan uses, and then compares this \
                 host with the plan's";
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

#[test]
fn where_it_may_not_be() {
    found(
        &i7_4790k().allowed("0-2,4-6"),
        &made(),
        &[(
            Severity::Problem,
            "the CPUs 3,7 of the plan may not be used: the cpuset of this process's cgroup lacks them",
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
    layout.tuning = pinfold_model::Tuning::of(&["workqueues=64"]).unwrap();
    let text = "CPU 64 of workqueues=64 does not exist on this host";
    found(&i7_4790k(), &layout, &[(Severity::Problem, text)]);
}

#[test]
fn work_of_the_host_on_exclusive_cpus_is_a_warning() {
    for tunable in ["new-irqs", "workqueues"] {
        let mut layout = made();
        layout.exclusive = pinfold_samples::set("1,5");
        layout.tuning = pinfold_model::Tuning::of(&[&format!("{tunable}=0,5")]).unwrap();
        let text = format!("{tunable}=0,5 contradicts the isolation: CPU 5 is exclusive");
        found(&i7_4790k(), &layout, &[(Severity::Warning, &text)]);
        layout.tuning = pinfold_model::Tuning::of(&[&format!("{tunable}=0")]).unwrap();
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
