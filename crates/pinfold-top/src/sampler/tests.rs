//! Processes of this test share a CPU.

use super::*;
use pinfold_host::process::{Child, Spawn};
use pinfold_host::{LiveHost, SimClock, SystemClock};
use pinfold_model::CpuSet;

/// A shell that spins on this CPU until it is dropped.
fn spinner(cpu: &CpuSet) -> Child {
    let spawn = Spawn::new("sh").args(["-c", "while :; do :; done"]).die_with_parent(true);
    spawn.affinity(cpu.clone()).start().unwrap()
}

fn machine(host: &dyn Host, pid: Tid) -> Machine {
    let started = proc_stat::at(host, &paths::task_stat(pid, pid)).unwrap().unwrap();
    let task = TaskId { tid: pid, start_time: started.start_time };
    let thread = Thread { task, role: Role::Vcpu(0), name: "spins".to_owned() };
    Machine { name: "web".to_owned(), pid, threads: vec![thread], placement: None, exits: None }
}

/// Processes that spin on one CPU: the first waits because of another one.
fn check(host: &LiveHost, mut sampler: Sampler<'_>, method: Method) {
    let cpu: CpuSet = host.affinity(Tid(0)).unwrap().iter().take(1).collect();
    let subject = spinner(&cpu);
    // Other tasks of this host run there too.
    let others: Vec<Child> = (0..4).map(|_| spinner(&cpu)).collect();
    let machines = vec![machine(host, subject.pid())];
    sampler.set_machines(machines, vec!["a note".to_owned()], &SystemClock);
    if sampler.method() != method {
        println!("skipped: {:?}", sampler.notes);
        return;
    }
    let expected: Vec<String> =
        others.iter().map(|other| format!("sh ({})", other.pid())).collect();
    let end = SystemClock.now_ns() + 2 * MINUTE_NS;
    loop {
        SystemClock.sleep_ns(MINUTE_NS / 120);
        let snapshot = sampler.sample(SystemClock.now_ns());
        let thread = &snapshot.machines[0].threads[0];
        assert_eq!((thread.tid, thread.role.as_str()), (subject.pid().0, "vcpu(0)"));
        assert_eq!(snapshot.notes[0], "a note");
        assert_eq!(snapshot.method, Some(method));
        assert!(thread.because_share.is_none() || method == Method::Bpf);
        let cause = thread.because_of.as_ref().filter(|cause| expected.contains(cause));
        if let Some(cause) = cause
            && thread.ready_share > 0.1
        {
            let sentence = snapshot.worst().unwrap();
            assert!(sentence.contains("vcpu(0) on CPU "), "{sentence}");
            assert!(sentence.ends_with(cause), "{sentence}");
            break;
        }
        assert!(SystemClock.now_ns() < end, "{thread:?}");
    }
    drop(subject);
    while !sampler.sample(SystemClock.now_ns()).machines[0].threads.is_empty() {
        assert!(SystemClock.now_ns() < end, "a thread that has ended is left out");
    }
}

#[test]
fn exits_are_a_rate_from_the_second_count_on() {
    let host = LiveHost::new().unwrap();
    let mut sampler = Sampler::from_proc(&host, 0, "it is not asked for");
    for (second, exits, expected) in
        [(1, Some(1000), None), (6, Some(1500), Some(100.0)), (11, None, None), (16, Some(9), None)]
    {
        let machine = Machine {
            name: "web".to_owned(),
            pid: Tid(1),
            threads: Vec::new(),
            placement: None,
            exits,
        };
        let clock = SimClock::at(second * 1_000_000_000);
        sampler.set_machines(vec![machine], Vec::new(), &clock);
        let snapshot = sampler.sample(second * 1_000_000_000 + 1);
        assert_eq!(snapshot.machines[0].exits_per_second, expected, "second {second}");
    }
}

#[test]
fn a_task_that_shares_the_cpu_is_the_cause_by_bpf() {
    let host = LiveHost::new().unwrap();
    check(&host, Sampler::new(&host, SystemClock.now_ns()), Method::Bpf);
}

#[test]
fn a_task_that_shares_the_cpu_is_the_cause_by_proc() {
    let host = LiveHost::new().unwrap();
    let sampler = Sampler::from_proc(&host, SystemClock.now_ns(), "it is not asked for");
    check(&host, sampler, Method::Proc);
}
