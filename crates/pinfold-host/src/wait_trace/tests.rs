//! Values as the program leaves them in its maps, and a trace of two threads of this test.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;

use pinfold_model::CpuSet;

use super::*;
use crate::process::{is_root, own_pu, own_tid};
use crate::{Clock as _, HostMut as _, LiveHost, SystemClock};

const ASLEEP: u32 = 3;
const TID: Tid = Tid(10);

fn name(text: &str) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..text.len()].copy_from_slice(text.as_bytes());
    bytes
}

fn cause(tid: u32, text: &str, ns: u64) -> RawCause {
    RawCause { ns, tid, unused: 0, name: name(text) }
}

/// One thread at 10,000, whose CPU 3 has had the task 77 since 9,000; the interval 5 began at 8,000.
fn reading(raw: RawThread) -> WaitReading {
    let occupant = RawOccupant { since_ns: 9000, tid: 77, unused: 0, name: name("hog") };
    WaitReading {
        at_ns: 10_000,
        before_ns: 8000,
        interval: 5,
        threads: Table::from([(TID.0, raw)]),
        occupants: vec![
            Entry { key: 2, value: RawOccupant::default() },
            Entry { key: 3, value: occupant },
        ],
    }
}

/// A thread that has run 100 and waited 200, in this state since 8,500.
fn raw(state: u32) -> RawThread {
    let mut causes = [RawCause::default(); 4];
    causes[0] = cause(50, "less", 40);
    causes[1] = cause(51, "more", 600);
    RawThread {
        since_ns: 8500,
        counted_ns: 9200,
        run_ns: 100,
        ready_ns: 200,
        moves: 3,
        longest_ns: 60,
        interval: 5,
        state,
        cpu: 3,
        causes,
        ..RawThread::default()
    }
}

#[test]
fn what_has_not_ended_counts_until_now() {
    fn check(state: u32, first: FirstState, run: u64, ready: u64, waiting: Option<u64>) {
        let found = reading(raw(state)).thread(TID, first).unwrap();
        assert_eq!((found.cpu, found.moves, found.longest_ns), (3, 3, 60));
        let found = (found.run_ns, found.ready_ns, found.waiting_since_ns);
        assert_eq!(found, (run, ready, waiting), "state {state}, {first:?}");
    }

    check(RUNNING, FirstState::Asleep, 1600, 200, None);
    check(WAITING, FirstState::Asleep, 100, 1700, Some(8500));
    check(ASLEEP, FirstState::Waiting, 100, 200, None);
    check(UNSEEN, FirstState::Running, 1600, 200, None);
    check(UNSEEN, FirstState::Waiting, 100, 1700, Some(8500));
    check(UNSEEN, FirstState::Asleep, 100, 200, None);
    assert_eq!(reading(raw(ENDED)).thread(TID, FirstState::Asleep), None);
    assert_eq!(reading(raw(RUNNING)).thread(Tid(11), FirstState::Asleep), None);
}

#[test]
fn the_cause_is_the_task_that_ran_longest_meanwhile() {
    fn check(raw: RawThread, expected: Option<(u32, &str, u64)>) {
        let found = reading(raw).cause(TID, FirstState::Asleep);
        let expected =
            expected.map(|(tid, name, ns)| WaitCause { tid: Tid(tid), name: name.to_owned(), ns });
        assert_eq!(found, expected);
    }

    // A wait that has ended: what the program added up.
    check(raw(RUNNING), Some((51, "more", 600)));
    // One that lasts: also the task on the CPU, from 9,200 on, as the slices before are counted.
    check(raw(WAITING), Some((77, "hog", 800)));
    let mut other = raw(WAITING);
    other.causes[0].tid = 77;
    check(other, Some((77, "less", 840)));
    // Values of an interval before say nothing about this one.
    check(RawThread { interval: 4, ..raw(RUNNING) }, None);
    check(RawThread { interval: 4, ..raw(WAITING) }, Some((77, "hog", 800)));
    assert_eq!(
        reading(RawThread { interval: 4, ..raw(ASLEEP) })
            .thread(TID, FirstState::Asleep)
            .map(|found| found.longest_ns),
        Some(0)
    );
    // No task has come to CPU 2 yet.
    check(RawThread { cpu: 2, interval: 4, ..raw(WAITING) }, None);
    assert!(reading(raw(WAITING)).is_blind(2) && !reading(raw(WAITING)).is_blind(3));
    // Before it was added, and before this interval, nothing counts.
    let late = RawThread { state: UNSEEN, counted_ns: 9900, since_ns: 9900, interval: 0, ..raw(0) };
    let found = reading(late).cause(TID, FirstState::Waiting).unwrap();
    assert_eq!((found.tid, found.ns), (Tid(77), 100));
    assert_eq!(reading(late).cause(TID, FirstState::Asleep), None);
}

/// A thread that spins on a CPU.
struct Spinner {
    tid: Tid,
    thread: thread::JoinHandle<()>,
}

/// Starts it, and waits until it does nothing but spin: before, it may sleep in the kernel.
fn start_spinner(name: &'static str, cpu: &CpuSet, over: &Arc<AtomicBool>) -> Spinner {
    let (over, cpu) = (Arc::clone(over), cpu.clone());
    let spins = Arc::new(AtomicU32::new(0));
    let reported = Arc::clone(&spins);
    let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
        LiveHost::new().unwrap().set_affinity(Tid(0), &cpu).unwrap();
        let tid = own_tid().0;
        while !over.load(Ordering::Relaxed) {
            reported.store(tid, Ordering::Relaxed);
            std::hint::spin_loop();
        }
    });
    let thread = thread.unwrap();
    while spins.load(Ordering::Relaxed) == 0 {
        SystemClock.sleep_ns(1_000_000);
    }
    Spinner { tid: Tid(spins.load(Ordering::Relaxed)), thread }
}

#[test]
fn a_thread_next_to_another_waits_for_that_one() {
    let host = LiveHost::new().unwrap();
    let mut tracer = match WaitTracer::open(&host, 64, SystemClock.now_ns()) {
        Ok(tracer) => tracer,
        Err(error) => {
            println!("skipped: {error}: {:?}", error.errno());
            assert!(!is_root() || error.errno().is_some(), "{error}");
            return;
        }
    };
    let cpu = CpuSet::single(host.affinity(Tid(0)).unwrap().first().unwrap());
    let over = Arc::new(AtomicBool::new(false));
    let workers = ["the-subject", "the-hog"].map(|name| start_spinner(name, &cpu, &over));
    let [subject, hog] = workers.each_ref().map(|worker| worker.tid);
    let mut began = SystemClock.now_ns();
    tracer.add(subject, cpu.first().unwrap().0, began).unwrap();
    tracer.add(own_tid(), own_pu().0, began).unwrap();
    let mut before = ThreadWait::default();
    let mut lost = 0;
    loop {
        SystemClock.sleep_ns(100_000_000);
        let now = SystemClock.now_ns();
        let reading = tracer.read(now).unwrap();
        let found = reading.thread(subject, FirstState::Waiting).unwrap();
        let totals = tracer.totals(&host).unwrap();
        if totals.lost > lost {
            // Some kernels report no event of some tasks. Another start finds a time without them.
            lost = totals.lost;
            tracer.remove(subject);
            (began, before) = (SystemClock.now_ns(), ThreadWait::default());
            tracer.add(subject, cpu.first().unwrap().0, began).unwrap();
            continue;
        }
        // Two threads that spin share a CPU: all of the time is one or the other.
        let all = began..=SystemClock.now_ns();
        let sum = began + found.run_ns + found.ready_ns;
        assert!(sum >= now && all.contains(&sum), "{found:?}");
        assert!(found.run_ns >= before.run_ns && found.ready_ns >= before.ready_ns);
        assert!(found.longest_ns <= found.ready_ns, "{found:?}");
        before = found;
        let cause = reading.cause(subject, FirstState::Waiting);
        let is_named = cause.is_some_and(|c| (c.tid, c.name.as_str()) == (hog, "the-hog"));
        if is_named && found.run_ns > 0 && found.ready_ns > 0 {
            break;
        }
    }
    let own = tracer.read(SystemClock.now_ns()).unwrap();
    assert!(own.thread(own_tid(), FirstState::Running).unwrap().run_ns > 0);
    over.store(true, Ordering::Relaxed);
    workers.into_iter().for_each(|worker| worker.thread.join().unwrap());
    loop {
        let reading = tracer.read(SystemClock.now_ns()).unwrap();
        if reading.thread(subject, FirstState::Running).is_none() {
            break;
        }
        SystemClock.sleep_ns(1_000_000);
    }
    tracer.remove(subject);
    tracer.remove(subject);
    assert!(tracer.read(SystemClock.now_ns()).unwrap().threads.len() == 1);
}
