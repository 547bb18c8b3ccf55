//! Busy threads.

use super::*;
use crate::owners::tests::found;

fn bound(cpu: &str, run_ms: u64) -> SampledThread {
    let cpu = CpuSet::parse_list(cpu).unwrap();
    SampledThread { process: Tid(9), name: "spin".to_owned(), cpu, run_ns: run_ms * 1_000_000 }
}

#[test]
fn only_what_ran_nearly_all_the_time_on_one_cpu_counts() {
    check(bound("3", 5_000), bound("3", 5_950), &["spin 3 exclusive"]);
    check(bound("3", 5_000), bound("3", 5_890), &[]);
    check(bound("3", 5_000), bound("4", 6_000), &[]);
    check(bound("3", 5_000), bound("3", 0), &[]);
}

fn check(before: SampledThread, after: SampledThread, expected: &[&str]) {
    let first = Sample::from_threads([(Tid(10), before)]);
    let later = Sample::from_threads([(Tid(10), after), (Tid(11), bound("5", 99_000))]);
    let mut claims = Claims::default();
    first.add_busy(&later, 1_000_000_000, &mut claims);
    assert_eq!(found(&claims), expected);
}

/// A simulated host with a thread on CPU 3, which child processes of a placement may be.
#[test]
fn threads_of_a_known_owner_do_not_count_again() {
    use pinfold_sim::{CgroupVersion, SimBuilder, SimTask};
    let cpu = CpuSet::parse_list("3").unwrap();
    let spin = SimTask::new(50, "spin").child_of(40).with_affinity(cpu.clone());
    let parent = SimTask::new(40, "sh");
    let host = SimBuilder::new(CgroupVersion::V2, 8).task(parent).task(spin).build();
    let busy = |mut claims: Claims| {
        let first = sample(&claims, 0, &host);
        sample(&claims, 1_000_000_000, &host);
        let later = sample(&claims, 0, &host);
        first.add_busy(&later, 1_000_000_000, &mut claims);
        found(&claims)
    };
    assert_eq!(busy(Claims::default()), ["spin 3 exclusive"]);
    let mut claims = Claims::default();
    let owner = Owner::new(&crate::owners::placements::PLACEMENT, "g").of_process(Tid(40));
    claims.add(&owner, cpu, Exclusivity::Dedicated, &Source::default());
    assert_eq!(busy(claims), ["g 3 exclusive"]);
}

fn sample(claims: &Claims, ran_ns: u64, host: &pinfold_sim::SimHost) -> Sample {
    host.edit_task(Tid(50), |task| task.schedstat.run_ns += ran_ns);
    Sample::read(host, claims)
}

/// The processes of Open vSwitch and of containers are not known by their claims.
#[test]
fn threads_on_cpus_of_owners_without_a_process_do_not_count() {
    let mut claims = Claims::default();
    let owner = Owner::new(&crate::owners::openvswitch::KIND, "poll-mode threads");
    let cpus = CpuSet::parse_list("3").unwrap();
    claims.add(&owner, cpus, Exclusivity::Exclusive, &Source::default());
    let first = Sample::from_threads([(Tid(10), bound("3", 0)), (Tid(11), bound("4", 0))]);
    let later = Sample::from_threads([(Tid(10), bound("3", 990)), (Tid(11), bound("4", 990))]);
    first.add_busy(&later, 1_000_000_000, &mut claims);
    assert_eq!(found(&claims), ["poll-mode threads 3 exclusive", "spin 4 exclusive"]);
}

/// One reading: the share since the start of the thread counts.
#[test]
fn bound_threads_that_ran_a_tenth_of_their_time_are_noted() {
    use pinfold_sim::{CgroupVersion, SimBuilder, SimTask};
    let three = CpuSet::parse_list("3").unwrap();
    let tasks = [("idle", "3", 1), ("poll", "3", 10), ("wide", "3-4", 10)];
    let mut host = SimBuilder::new(CgroupVersion::V2, 8).file("/proc/uptime", "100.00 1.00\n");
    for (tid, (name, cpus, run_s)) in (50..).zip(tasks) {
        let mut task = SimTask::new(tid, name).with_affinity(CpuSet::parse_list(cpus).unwrap());
        task.schedstat.run_ns = run_s * 1_000_000_000;
        host = host.task(task);
    }
    let host = host.build();
    let expected = BoundThread { process: Tid(51), name: "poll".to_owned(), cpu: three.clone() };
    assert_eq!(read_bound(&host, &Claims::default()), [expected]);
    let mut claims = Claims::default();
    let owner = Owner::new(&crate::owners::placements::PLACEMENT, "g").of_process(Tid(51));
    claims.add(&owner, three, Exclusivity::Dedicated, &Source::default());
    assert_eq!(read_bound(&host, &claims), []);
}
