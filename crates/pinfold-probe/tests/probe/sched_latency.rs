//! Scheduler latency of real threads: a child of the test beside a known hog.

use crate::common::{SECOND, eventually, further_threads, own_pus, program};
use pinfold_host::process::{Child, Signaled, Spawn, find_program, is_root};
use pinfold_host::{Clock as _, Host as _, LiveHost, SystemClock, paths, proc_stat};
use pinfold_model::{CpuSet, Role, TaskId, Tid};
use pinfold_probe::sched_latency::{Level, SchedLatency, start, start_with_schedstat};

fn task(host: &LiveHost, tid: Tid) -> TaskId {
    let text = host.read_text(&paths::process_stat(tid)).unwrap();
    proc_stat::parse(&text).unwrap().task()
}

/// A program of pinload on one CPU, and the thread of it that works.
fn on_one_pu(path: &str, arguments: &str) -> (Child, Tid) {
    let host = LiveHost::new().unwrap();
    let pu = CpuSet::single(own_pus().first().unwrap());
    let words = arguments.split(' ');
    let child = Spawn::new(path).args(words).affinity(pu).start().unwrap();
    let mut threads = Vec::new();
    assert!(eventually(|| {
        threads = further_threads(&host, child.pid());
        !threads.is_empty()
    }));
    (child, threads[0])
}

/// Why not every wait could be seen, if so.
fn sums_only(found: &SchedLatency) -> Option<&str> {
    match &found.level {
        Level::Tracepoints => None,
        Level::Schedstat { why } => Some(why),
    }
}

/// The times of a thread by the kernel's statistics.
fn times(host: &LiveHost, tid: Tid) -> pinfold_host::schedstat::SchedStat {
    let path = paths::task_schedstat(tid, tid);
    pinfold_host::schedstat::parse(&host.read_text(&path).unwrap()).unwrap()
}

/// Both ways of measuring at the same time.
struct Both {
    traced: SchedLatency,
    summed: SchedLatency,
}

fn watch_next_to_a_hog(host: &LiveHost, victim: &mut Child, victim_tid: Tid, hog_tid: Tid) -> Both {
    let threads = [(task(host, victim_tid), Role::Vcpu(0))];
    // So that no wait is under way at the start.
    victim.signal(Signaled::Stop).unwrap();
    let is_stopped = || {
        let text = host.read_text(&paths::process_stat(victim_tid)).unwrap();
        proc_stat::parse(&text).unwrap().state == 'T'
    };
    assert!(eventually(is_stopped));
    let bpf = start(host, &SystemClock, &threads).unwrap();
    victim.signal(Signaled::Continue).unwrap();
    let slices = times(host, victim_tid).slices;
    assert!(eventually(|| times(host, victim_tid).slices > slices + 2));
    let sums = start_with_schedstat(host, &SystemClock, &threads).unwrap();
    // Both want the whole CPU, so they take turns, whoever else is there.
    let (before, hogs) = (times(host, victim_tid), times(host, hog_tid));
    assert!(eventually(|| {
        let (now, of_hog) = (times(host, victim_tid), times(host, hog_tid));
        now.delay_ns > before.delay_ns + SECOND / 5
            && now.slices > before.slices + 50
            && of_hog.run_ns > hogs.run_ns + SECOND / 5
    }));
    let summed = sums.stop(host, &SystemClock).unwrap();
    Both { traced: bpf.stop(host, &SystemClock).unwrap(), summed }
}

#[test]
fn a_thread_next_to_a_hog_is_delayed_by_that_hog() {
    /// Times that it is watched, until the kernel has reported all events.
    const ATTEMPTS: u32 = 10;
    let program = program();
    let host = LiveHost::new().unwrap();
    let path = program.pinload.path();
    let (mut hog, hog_tid) = on_one_pu(&path, "load cpu --threads 1 --seconds 600");
    let (mut victim, victim_tid) = on_one_pu(&path, "load cpu --threads 1 --seconds 600");
    let both = (0..ATTEMPTS).find_map(|_| {
        let both = watch_next_to_a_hog(&host, &mut victim, victim_tid, hog_tid);
        Some(both).filter(|both| both.traced.unseen() == 0)
    });
    let Both { traced: found, summed: sums } = both.expect("all waits are traced");
    hog.kill().unwrap();
    victim.kill().unwrap();
    let Level::Schedstat { .. } = sums.level else { panic!("{sums:?}") };
    assert!(sums.roles.iter().any(|one| one.role == Role::Vcpu(0) && one.sum_ns > 0));
    if let Some(why) = sums_only(&found) {
        return println!("skipped: {why}");
    }
    let vcpu = found.roles.iter().find(|one| one.role == Role::Vcpu(0)).unwrap();
    let waits = vcpu.waits.as_ref().unwrap();
    assert_eq!(waits.histogram.count(), vcpu.count);
    assert_eq!(waits.histogram.filled_buckets().map(|(_, n)| n).sum::<u64>(), vcpu.count);
    assert!(waits.preempted > 0, "{waits:?}");
    // The watch began earlier and ended later than the sums.
    let sum = sums.roles.iter().find(|one| one.role == Role::Vcpu(0)).unwrap().sum_ns;
    let open: u64 = waits.open.iter().map(|(_, ns)| ns).sum();
    assert!(vcpu.sum_ns + open >= sum, "{} of {sum}: {found:?}", vcpu.sum_ns + open);
    let hog = waits.instead.iter().find(|one| one.tid == hog_tid);
    let hog = hog.unwrap_or_else(|| panic!("{:?}", waits.instead));
    assert!(hog.ns > 0 && hog.count > 0);
    // The main thread of the machine has no role of its own and is in all the same.
    let emulator = found.roles.iter().find(|one| one.role == Role::Emulator).unwrap();
    assert_eq!(emulator.threads, 1);
    let figures = found.figures();
    let max = figures.iter().find(|one| one.labels["quantity"] == "max").unwrap();
    assert_eq!(max.samples[0], waits.histogram.max_ns().unwrap() as f64);
    println!("{}", waits.worst.as_ref().unwrap());
}

#[test]
fn a_machine_that_dies_meanwhile_keeps_its_account() {
    let program = program();
    let host = LiveHost::new().unwrap();
    let path = program.pinload.path();
    let (mut victim, tid) = on_one_pu(&path, "load cpu --threads 1 --seconds 600");
    let threads = [(task(&host, tid), Role::Vcpu(0)), (victim.task(), Role::Emulator)];
    let bpf = start(&host, &SystemClock, &threads).unwrap();
    let sums = start_with_schedstat(&host, &SystemClock, &threads).unwrap();
    victim.kill().unwrap();
    let sums = sums.stop(&host, &SystemClock).unwrap();
    let lost = sums.lost.last().unwrap();
    assert_eq!(lost, "2 threads that exited during the measurement");
    let found = bpf.stop(&host, &SystemClock).unwrap();
    if let Some(why) = sums_only(&found) {
        println!("skipped: {why}");
    } else {
        let ended = |role| found.roles.iter().find(|one| one.role == role).unwrap().ended;
        assert_eq!((ended(Role::Vcpu(0)), ended(Role::Emulator)), (1, 1), "{found:?}");
    }
}

/// The test calls itself as another user.
#[test]
fn without_rights_the_sums_remain_and_the_reason_is_reported() {
    const MARK: &str = "PINFOLD_TEST_AS_NOBODY";
    if std::env::var_os(MARK).is_none() {
        let Some(setpriv) = find_program("setpriv").filter(|_| is_root()) else {
            return println!("skipped: needs root and setpriv");
        };
        let itself = std::env::current_exe().unwrap();
        let name = "without_rights_the_sums_remain_and_the_reason_is_reported";
        let words = ["--reuid=65534", "--regid=65534", "--clear-groups"];
        let mut child = Spawn::new(&setpriv)
            .args(words)
            .args([itself.to_str().unwrap(), "--exact", name, "--nocapture"])
            .env(MARK, "1")
            .start()
            .unwrap();
        let status = child.wait().unwrap();
        if status.code() == Some(126) {
            return println!("skipped: another user may not run this test's program");
        }
        assert!(status.success(), "{status}");
        return;
    }
    let host = LiveHost::new().unwrap();
    let own = task(&host, pinfold_host::process::own_tid());
    let watching = start(&host, &SystemClock, &[(own, Role::Task)]).unwrap();
    SystemClock.sleep_ns(1_000_000);
    let found = watching.stop(&host, &SystemClock).unwrap();
    let Level::Schedstat { why } = &found.level else { panic!("{found:?}") };
    println!("{why}");
    assert!(why.contains("denied") || why.contains("not permitted"), "{why}");
    assert!(found.roles[0].count > 0 && found.roles[0].waits.is_none());
}
