//! Threads of this test wait for each other and are traced.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;

use pinfold_model::CpuSet;

use super::*;
use crate::process::own_tid;
use crate::{HostMut as _, LiveHost, paths, schedstat};

/// Starts a trace of these threads; `None`, with a message, if this machine does not support it.
fn watch(host: &LiveHost, tids: &[Tid]) -> Option<SchedTracer> {
    unless_refused(SchedTracer::open(host, tids))
}

fn unless_refused(watch: Result<SchedTracer, HostError>) -> Option<SchedTracer> {
    match watch {
        Ok(watch) => Some(watch),
        Err(error) => {
            println!("skipped: {error}: {:?}", error.errno());
            assert!(!crate::process::is_root() || error.errno().is_some(), "{error}");
            None
        }
    }
}

/// The first two numbers of the kernel release.
fn linux(host: &LiveHost) -> (u32, u32) {
    let release = host.read_text(&paths::kernel_release()).unwrap();
    let mut numbers = release.split(['.', '-']).map(|part| part.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

/// Waits until a thread sleeps and has left its CPU: it has no events until it is woken. Its state
/// alone changes before it leaves the CPU.
fn asleep(host: &LiveHost, tid: Tid) {
    loop {
        let before = switches(host, tid);
        SystemClock.sleep_ns(20_000_000);
        if before.0 && switches(host, tid) == before {
            return;
        }
    }
}

fn switches(host: &LiveHost, tid: Tid) -> (bool, String) {
    let stat = host.read_text(&paths::task_stat(tid, tid)).unwrap();
    let status = host.read_text(&paths::task_file(tid, tid, "status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("voluntary_ctxt_switches"));
    (stat.contains(") S "), line.unwrap().to_owned())
}

/// Waits until a thread no longer exists. `join` returns earlier: on a busy machine, other threads
/// run in between.
fn leave(host: &LiveHost, tid: Tid) {
    while host.exists(&paths::task_stat(crate::process::own_pid(), tid)) {
        SystemClock.sleep_ns(1_000_000);
    }
}

/// Run time of a thread of this process (ns).
fn ran(tid: Tid) -> u64 {
    let text = LiveHost::new().unwrap().read_text(&paths::task_schedstat(tid, tid));
    schedstat::parse(&text.unwrap()).unwrap().run_ns
}

#[test]
fn a_thread_next_to_another_on_one_pu_waits_and_the_other_is_named() {
    let host = LiveHost::new().unwrap();
    let pu = CpuSet::single(host.affinity(Tid(0)).unwrap().first().unwrap());
    let over = Arc::new(AtomicBool::new(false));
    let (report, reported) = mpsc::channel();
    let (end, seen) = (Arc::clone(&over), report.clone());
    let pinned = pu.clone();
    let hog = thread::Builder::new().name("the-hog".to_owned()).spawn(move || {
        LiveHost::new().unwrap().set_affinity(Tid(0), &pinned).unwrap();
        seen.send(own_tid()).unwrap();
        while !end.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
    });
    let hog_tid = reported.recv().unwrap();
    let (go, gone) = mpsc::channel::<()>();
    let victim = thread::spawn(move || {
        LiveHost::new().unwrap().set_affinity(Tid(0), &pu).unwrap();
        report.send(own_tid()).unwrap();
        gone.recv().unwrap();
        // Runs for long enough that the hog also gets enough CPU time, whatever else is on this
        // CPU.
        let enough = ran(hog_tid) + 100_000_000;
        let mut naps = 0;
        while naps < 40 || ran(hog_tid) < enough {
            SystemClock.sleep_ns(1_000_000);
            naps += 1;
        }
        // A new thread, which is traced without being added.
        let spawned = thread::spawn(|| {
            SystemClock.sleep_ns(1_000_000);
            own_tid()
        });
        leave(&LiveHost::new().unwrap(), spawned.join().unwrap());
    });
    let victim_tid = reported.recv().unwrap();
    let open = watch(&host, &[victim_tid]);
    go.send(()).unwrap();
    victim.join().unwrap();
    leave(&host, victim_tid);
    over.store(true, Ordering::Relaxed);
    hog.unwrap().join().unwrap();
    let Some(open) = open else { return };
    let reading = open.close(&host).unwrap();
    assert_eq!((reading.lost_new_threads, reading.nameless), (0, 0));
    let [account, born] = &reading.accounts[..] else { panic!("{reading:?}") };
    assert_eq!(account.tid, victim_tid);
    assert!(account.has_ended && born.has_ended);
    // 40 sleeps, the start and the join each cause a wait; preemptions add more.
    assert!(account.count >= 42, "{account:?}");
    assert_eq!(account.buckets.iter().sum::<u64>(), account.count);
    assert!(account.sum_ns >= account.worst.as_ref().unwrap().wait_ns);
    let hog = account.runners.iter().find(|runner| runner.name == "the-hog").unwrap();
    assert_eq!(hog.tid, hog_tid);
    assert!(hog.count > 0 && hog.ns > 0);
    assert_eq!(born.creator, Some((0, crate::process::own_pid())));
    assert_eq!(born.process, Some(crate::process::own_pid()));
    assert!(born.count >= 2, "{born:?}");
    let worst = account.worst.as_ref().unwrap();
    assert!(worst.until_ns > reading.began_ns && worst.until_ns < reading.ended_ns);
    assert_eq!(worst.slices.last().unwrap().until_ns, worst.until_ns);
    assert!(worst.slices.is_sorted_by_key(|slice| slice.until_ns), "{worst:?}");
    println!("{} waits, {} ns, worst {worst:?}", account.count, account.sum_ns);
    println!("wakers {:?} runners {:?}", account.wakers, account.runners);
}

#[test]
fn events_that_the_kernel_keeps_from_the_programs_are_counted() {
    // A process that reads a map value disables the record programs on its CPU meanwhile; they then
    // miss the timer wake-ups of another thread there.
    const MOST_NS: u64 = 30_000_000_000;
    let host = LiveHost::new().unwrap();
    if linux(&host) < (6, 7) {
        println!("skipped: Linux before 6.7 does not count them");
        return;
    }
    let pu = CpuSet::single(host.affinity(Tid(0)).unwrap().first().unwrap());
    let until = SystemClock.now_ns() + MOST_NS;
    loop {
        let open = unless_refused(SchedTracer::open_at_records(&host, &[own_tid()]));
        let Some(open) = open else { return };
        let over = Arc::new(AtomicBool::new(false));
        let (end, pinned) = (Arc::clone(&over), pu.clone());
        let sleeper = thread::spawn(move || {
            LiveHost::new().unwrap().set_affinity(Tid(0), &pinned).unwrap();
            while !end.load(Ordering::Relaxed) {
                SystemClock.sleep_ns(20_000);
            }
        });
        let pinned = pu.clone();
        thread::scope(|scope| {
            scope.spawn(|| {
                LiveHost::new().unwrap().set_affinity(Tid(0), &pinned).unwrap();
                let round_end = SystemClock.now_ns() + 300_000_000;
                while SystemClock.now_ns() < round_end {
                    assert!(open.tasks.get(&0, 0).is_err(), "nobody watches the idle task");
                }
            });
        });
        over.store(true, Ordering::Relaxed);
        sleeper.join().unwrap();
        if open.close(&host).unwrap().missed > 0 {
            return;
        }
        assert!(SystemClock.now_ns() < until, "none was counted in 30 s");
    }
}

/// A trace with record programs and one with argument programs, as far as this machine supports
/// them.
fn both(host: &LiveHost, tid: Tid) -> [Option<SchedTracer>; 2] {
    let by_records = unless_refused(SchedTracer::open_at_records(host, &[tid]));
    // Permission for records is also sufficient for arguments, if the kernel supports those.
    let by_arguments = match Btf::from_sys_fs() {
        Ok(types) if by_records.is_some() && linux(host) >= (5, 18) => {
            Some(SchedTracer::open_with(host, &[tid], Some(&types)).unwrap())
        }
        _ => {
            println!("skipped: there is no BTF here, or Linux is older than 5.18");
            None
        }
    };
    [by_records, by_arguments]
}

/// Both traces start during one sleep of the thread and end during another, without events of the
/// thread at either moment. Events of other tasks are then seen by both or by neither.
#[test]
fn programs_for_arguments_and_for_records_agree() {
    const NAPS: u64 = 200;
    let host = LiveHost::new().unwrap();
    let (report, reported) = mpsc::channel();
    let (go, gone) = mpsc::channel::<()>();
    let sleeper = thread::spawn(move || {
        report.send(own_tid()).unwrap();
        gone.recv().unwrap();
        for _ in 0..NAPS {
            SystemClock.sleep_ns(100_000);
            thread::yield_now();
        }
        report.send(own_tid()).unwrap();
        gone.recv().unwrap();
    });
    let tid = reported.recv().unwrap();
    asleep(&host, tid);
    let watches = both(&host, tid);
    go.send(()).unwrap();
    reported.recv().unwrap();
    asleep(&host, tid);
    let napped = watches.map(|watch| read(&host, watch));
    let watches = both(&host, tid);
    go.send(()).unwrap();
    sleeper.join().unwrap();
    leave(&host, tid);
    for reading in watches.map(|watch| read(&host, watch)).iter().flatten() {
        assert!(reading.accounts[0].has_ended, "{:?}", reading.accounts[0]);
    }
    for reading in napped.iter().flatten() {
        let account = &reading.accounts[0];
        // A nap whose timer expires before the thread has gone to sleep wakes nothing.
        let woken: u64 = account.wakers.iter().map(|(_, n)| n).sum();
        assert!(woken > NAPS / 2, "{account:?}");
        // The test may start the naps before the thread has left its CPU: that wakes nothing either.
        assert!(account.count + 1 >= woken, "{account:?}");
    }
    let [Some(one), Some(other)] = &napped else { return };
    if one.missed + other.missed == 0 {
        assert_eq!(all(one), all(other));
    }
}

fn read(host: &LiveHost, watch: Option<SchedTracer>) -> Option<SchedReading> {
    watch.map(|watch| watch.close(host).unwrap())
}

fn all(reading: &SchedReading) -> (u64, u64, u64, u64, u64, Vec<(String, u64)>) {
    let SchedAccount { count, preempted, unseen, moves, moves_waiting, .. } = reading.accounts[0];
    (count, preempted, unseen, moves, moves_waiting, reading.accounts[0].wakers.clone())
}
