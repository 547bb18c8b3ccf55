//! Settings of a machine on a simulated host.

use pinfold_model::{PuId, Tid};
use pinfold_sim::{CgroupVersion, SimBuilder, SimHost, SimTask};

use super::*;

const QEMU: u32 = 200;

/// A QEMU whose vCPU has CPU 1.
fn pinned_host() -> SimBuilder {
    builder().task(thread(201, "CPU 0/TCG", Some(1)))
}

fn builder() -> SimBuilder {
    SimBuilder::new(CgroupVersion::V2, 4).task(SimTask::new(QEMU, "qemu-system-x86_64"))
}

fn thread(tid: u32, name: &str, cpu: Option<u32>) -> SimTask {
    let mut task = SimTask::new(tid, name).thread_of(QEMU);
    task.asked = cpu.map(|cpu| CpuSet::single(PuId(cpu)));
    task
}

/// What is tried, and the findings.
struct Found {
    candidates: Vec<Placed>,
    findings: Vec<String>,
}

impl Found {
    fn new(host: &SimHost, asked: &[&str]) -> Result<Self, Failure> {
        let found = pinfold_vm::discover(host, Tid(QEMU), None)?;
        let vm = Vm {
            name: "a".to_owned(),
            asked: format!("--pid {QEMU}"),
            findings: Vec::new(),
            found,
            monitor: None,
            domain: None,
        };
        let topology = pinfold_topology::read_input(host, "core:4 pu:1").expect("a topology");
        let asked: Vec<String> = asked.iter().map(|words| (*words).to_owned()).collect();
        let mut findings = Vec::new();
        let candidates = candidates(&asked, host, &vm, &topology, &mut findings)?;
        let findings = findings.iter().map(ToString::to_string).collect();
        Ok(Self { candidates, findings })
    }

    fn names(&self) -> Vec<&str> {
        self.candidates.iter().map(|one| one.name.as_str()).collect()
    }
}

fn apply(words: &[&str]) -> Option<Next> {
    Some(Next::Apply(words.iter().map(|word| (*word).to_owned()).collect()))
}

#[test]
fn a_profile_stands_for_its_tunables() {
    let host = pinned_host().tunables().build();
    let found = Found::new(&host, &["latency", "timer-migration=off"]).expect("settings");
    let tried = [
        "timer-migration=off",
        "stat-interval=10",
        "numa-balancing=off",
        "khugepaged-defrag=off",
        "halt-poll-ns=400000",
        "wake-up-us=20",
        "governor=performance",
        "policy:vcpu=slice:500",
    ];
    assert_eq!(found.names(), tried);
    let all = found.findings.join("\n");
    for key in ["new-irqs", "workqueues", "writeback", "watchdog-cpus"] {
        let part = format!("note: {key}=housekeeping: was not tried: without isolation");
        assert!(all.contains(&part), "{all}");
    }
    assert!(all.contains("note: ksm=stop: is the present setting"), "{all}");
    assert_eq!(found.findings.len(), 5, "{all}");
    for one in &found.candidates {
        assert!(one.is_setting);
        assert_eq!(is_of_host(&one.plan), !one.name.starts_with("policy:"), "{}", one.name);
    }
}

#[test]
fn a_setting_leaves_the_threads_where_they_are() {
    let host = pinned_host().tunables().build();
    let found = Found::new(&host, &["timer-migration=off", "policy:vcpu=batch"]).expect("settings");
    let changes = found.candidates.iter().map(|one| {
        let planned = plan_steps(&host, &one.plan, &one.target).expect("steps");
        planned.steps.iter().map(|step| step.change.to_string()).collect::<Vec<_>>().join("; ")
    });
    let changes: Vec<String> = changes.collect();
    assert!(changes[0].contains("/proc/sys/kernel/timer_migration"), "{changes:?}");
    assert!(changes[1].contains("batch") && changes[1].contains("201"), "{changes:?}");
    assert!(changes.iter().all(|change| !change.contains("; ")), "{changes:?}");
    assert!(!is_of_host(&found.candidates[1].plan));
}

#[test]
fn the_command_keeps_the_present_placement() {
    let host = pinned_host().tunables().build();
    let found = Found::new(&host, &["timer-migration=off"]).expect("settings");
    let pins = ["--strategy", "none", "--pin", "vcpu=1", "--pin", "emulator=0-3"];
    let command = apply(&[&pins[..], &["--tunable", "timer-migration=off"]].concat());
    assert_eq!(found.candidates[0].next, command);
    let floating = builder().task(thread(201, "CPU 0/TCG", None)).tunables().build();
    let found = Found::new(&floating, &["timer-migration=off"]).expect("settings");
    let command = apply(&["--strategy", "none", "--tunable", "timer-migration=off"]);
    assert_eq!(found.candidates[0].next, command);
}

#[test]
fn without_such_a_command_the_file_is_written() {
    // Another thread without a role of its own has other CPUs than the main thread.
    let host = pinned_host().task(thread(202, "call_rcu", Some(3))).tunables().build();
    let found = Found::new(&host, &["timer-migration=off", "policy:vcpu=batch"]).expect("settings");
    let file = "echo 0 > /proc/sys/kernel/timer_migration".to_owned();
    assert_eq!(found.candidates[0].next, Some(Next::Shell(vec![file])));
    assert_eq!(found.candidates[1].next, None);
    for one in &found.candidates {
        let steps = plan_steps(&host, &one.plan, &one.target).expect("steps").steps;
        assert!(steps.iter().all(|step| step.change.as_set_affinity().is_none()), "{steps:?}");
    }
}

#[test]
fn the_same_and_the_present_setting_are_not_tried_again() {
    let host = pinned_host().tunables().build();
    let asked = ["policy:vcpu=batch", "policy:vcpu=batch:0", "policy:vcpu=other"];
    let found = Found::new(&host, &asked).expect("settings");
    assert_eq!(
        (found.names(), found.candidates[0].same.as_slice()),
        (vec!["policy:vcpu=batch"], ["policy:vcpu=batch:0".to_owned()].as_slice())
    );
    assert_eq!(found.findings, ["note: policy:vcpu=other: is the present setting"]);
}

#[test]
fn what_the_host_lacks_is_a_finding() {
    let found = Found::new(&pinned_host().build(), &["timer-migration=off"]).expect("settings");
    assert!(found.candidates.is_empty());
    let part = "was not tried: this host has no /proc/sys/kernel/timer_migration";
    assert!(found.findings[0].contains(part), "{:?}", found.findings);
}

#[test]
fn a_policy_that_starves_the_emulator_is_refused() {
    let words = ["policy:vcpu=fifo:1"];
    let floating = builder().task(thread(201, "CPU 0/TCG", None)).tunables().build();
    let Err(failure) = Found::new(&floating, &words) else { panic!("it is tried") };
    let message = failure.message;
    assert!(message.starts_with("--try policy:vcpu=fifo:1: ") && message.contains("would wait"));
    let found = Found::new(&pinned_host().tunables().build(), &words).expect("settings");
    assert_eq!(found.names(), words);
}

#[test]
fn what_is_no_setting_is_refused_with_advice() {
    let cases = [
        ("timer-migraton=off", "there is no tunable", "did you mean timer-migration?"),
        ("timer-migration=maybe", "\"maybe\" is not one of on, off", ""),
        ("timer-migration", "the value is missing", "write timer-migration=VALUE"),
        ("policy:vcpu", "the value is missing", "write policy:ROLE=VALUE"),
        ("policy:vcpu=fast", "\"fast\" is not a scheduling policy", "policies are"),
        ("policy:gpu=batch", "there is no thread \"gpu\"", "roles are"),
        ("latensy", "no such tunable or profile", "did you mean latency?"),
        ("", "no such tunable or profile", "a profile: latency"),
        ("none", "this is a strategy", "--strategies none"),
        ("compact", "this is a strategy", "--strategies compact"),
        ("required=yes", "cannot be tried in windows", "leave it out"),
        ("required=no", "cannot be tried in windows", "leave it out"),
        ("partition=isolated", "the threads move into another group", "leave it out"),
        ("offline=3", "a CPU that goes offline", "leave it out"),
        ("smt=off", "a CPU that goes offline", "leave it out"),
        ("huge-pages=0:2048:4", "a pool that is made later", "leave it out"),
        ("share=L3:0=f", "their group of resctrl", "leave it out"),
        ("thp=never", "memory that is touched later", "leave it out"),
        ("ksm=run", "stay merged", "leave it out"),
        ("ksm=unmerge", "merged again only much later", "leave it out"),
        ("numa-balancing=on", "stay where they are", "leave it out"),
        ("khugepaged-defrag=on", "huge pages that were made stay", "leave it out"),
        ("max-khz=0", "0 is not a frequency", ""),
    ];
    let host = pinned_host().tunables().build();
    for (words, why, hint) in cases {
        let Err(failure) = Found::new(&host, &["timer-migration=off", words]) else {
            panic!("{words:?} is tried");
        };
        assert_eq!(failure.exit, Exit::Input, "{words}: {failure}");
        let message = &failure.message;
        assert!(message.starts_with("--try") && message.contains(why), "{words}: {message}");
        let advice = failure.hint.unwrap_or_default();
        assert!(advice.contains(hint), "{words}: {advice}");
    }
}
