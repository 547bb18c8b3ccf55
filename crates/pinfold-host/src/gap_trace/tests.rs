//! Threads of this test wait for each other and are traced.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::{HostMut as _, LiveHost, MicroGuest, Work, process};

#[test]
fn symbols_have_their_modules_and_hidden_ones_are_none() {
    let symbols = symbols_of(
        "ffffffff81000000 T first\nffffffff81000100 t work\t[mod]\nffffffff81000080 d data\n",
    );
    assert_eq!(symbols.name(0xffff_ffff_8100_0104).as_deref(), Some("work [mod]"));
    assert_eq!(symbols.name(0xffff_ffff_8100_00ff).as_deref(), Some("first"));
    assert_eq!(symbols.name(1), None);
    assert_eq!(symbols.address("first"), Some(0xffff_ffff_8100_0000));
    assert!(symbols_of("0000000000000000 T first\n").names.is_empty());
}

fn symbols_of(text: &str) -> KernelSymbols {
    KernelSymbols { names: text.lines().filter_map(KernelSymbols::line).collect() }
}

/// `struct gap` of the BPF program, of thread 42 on CPU 3 from 1,000 to 9,000 ns, without slices:
/// its kind, `woken_ns` and `exit`.
fn record(kind: u32, woken_ns: u64, exit: u64) -> Vec<u8> {
    let mut bytes = vec![0; SLICES_AT];
    for (at, long) in [(0, 1_000_u64), (8, 9_000), (16, woken_ns), (24, 1_000), (80, exit)] {
        bytes[at..at + 8].copy_from_slice(&long.to_ne_bytes());
    }
    for (at, int) in [(32, 42_u32), (36, 3), (40, kind), (60, 41)] {
        bytes[at..at + 4].copy_from_slice(&int.to_ne_bytes());
    }
    bytes
}

#[test]
fn a_record_of_an_exit_has_its_reason() {
    let symbols = KernelSymbols::default();
    let read = |record: &[u8]| parse(record, &VecDeque::new(), &symbols).unwrap();
    // SVM 0x72, of the kernel; without a reason; KVM_EXIT_IO, of user space.
    let cpuid = 0x72 | 2 << 32;
    let gap = read(&record(3, cpuid + 1, 0));
    assert_eq!((gap.kind, gap.kernel_exit, gap.exit), (GapKind::Exit, Some(cpuid), None));
    assert_eq!((gap.tid, gap.process, gap.cpu, gap.woken_ns), (Tid(42), Tid(41), PuId(3), None));
    assert_eq!(read(&record(3, 0, 0)).kernel_exit, None);
    assert_eq!(read(&record(3, 0, 2 + 1)).exit.as_deref(), Some("IO"));
    // The same places of other records have another meaning.
    let waiting = read(&record(0, 5_000, 0));
    assert_eq!((waiting.kernel_exit, waiting.woken_ns), (None, Some(5_000)));
    let unseen = read(&record(2, 0, 700));
    assert_eq!((unseen.exit, unseen.steal_ns), (None, 700));
}

/// `struct slice` of a task.
fn task_slice(from_ns: u64, until_ns: u64, tid: u32, name: &[u8; 3]) -> Vec<u8> {
    let mut bytes = vec![0; SLICE];
    bytes[..8].copy_from_slice(&from_ns.to_ne_bytes());
    bytes[8..16].copy_from_slice(&until_ns.to_ne_bytes());
    bytes[28..32].copy_from_slice(&tid.to_ne_bytes());
    bytes[40..43].copy_from_slice(name);
    bytes
}

/// The slices of a gap of thread 42 on CPU 3 that lasts since 1,000 ns, at 9,000 ns.
fn open_slices(state: &[u8; CPU]) -> Vec<GapSlice> {
    let thread = GapThread {
        since_ns: 1_000,
        arrived_ns: 1_000,
        marks: 1,
        process: 41,
        cpu: 3,
        state: 2,
        ..GapThread::default()
    };
    let record = open_record(42, &thread, state, 9_000);
    let gap = parse(&record, &VecDeque::new(), &KernelSymbols::default()).unwrap();
    assert_eq!((gap.tid, gap.process, gap.cpu), (Tid(42), Tid(41), PuId(3)));
    assert_eq!(gap.kind, GapKind::Waiting { is_preempted: true });
    assert_eq!((gap.from_ns, gap.until_ns), (1_000, 9_000));
    gap.slices
}

#[test]
fn a_gap_that_lasts_on_has_the_task_that_runs_now() {
    let mut state = [0; CPU];
    assert_eq!(open_slices(&state), [], "its CPU was not switched");
    state[SLICES_AT..SLICES_AT + SLICE].copy_from_slice(&task_slice(500, 2_000, 50, b"one"));
    // The program writes the end of this slice when it is over.
    state[NOW_AT..SLICES_AT].copy_from_slice(&task_slice(2_000, 0, 51, b"hog"));
    let found: Vec<_> = open_slices(&state)
        .into_iter()
        .map(|slice| {
            let Occupant::Task(task) = slice.occupant else { panic!("{:?}", slice.occupant) };
            (task.name, slice.from_ns, slice.until_ns)
        })
        .collect();
    assert_eq!(found, [("one".to_owned(), 1_000, 2_000), ("hog".to_owned(), 2_000, 9_000)]);
}

fn traced(tid: Tid) -> TracedThread {
    TracedThread { tid, owner: 7, follows_processes: false }
}

/// Two threads of this process on one CPU: each is the culprit of the other.
#[test]
fn a_thread_that_waits_has_the_task_that_ran() {
    let host = LiveHost::new().unwrap();
    let ends = Arc::new(AtomicBool::new(false));
    let (sender, receiver) = std::sync::mpsc::channel();
    let threads: Vec<_> = (0..2)
        .map(|_| {
            let (ends, sender) = (Arc::clone(&ends), sender.clone());
            std::thread::spawn(move || {
                sender.send(process::own_tid()).unwrap();
                while !ends.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        })
        .collect();
    let [one, other] = [receiver.recv().unwrap(), receiver.recv().unwrap()];
    let cpu = host.affinity(one).unwrap().first().unwrap();
    for tid in [one, other] {
        host.set_affinity(tid, &[cpu].into_iter().collect()).unwrap();
    }
    let found = match GapTracer::open(&host, &[traced(one)], 500_000) {
        Ok(mut tracer) => {
            let end = SystemClock.now_ns() + 120_000_000_000;
            let found = loop {
                let of_other = |slice: &GapSlice| matches!(&slice.occupant, Occupant::Task(task) if task.tid == other);
                let mut gaps = tracer.take();
                gaps.retain(|gap| gap.slices.iter().any(of_other));
                match gaps.pop() {
                    Some(gap) => break Some(gap),
                    None if SystemClock.now_ns() > end => break None,
                    None => SystemClock.sleep_ns(10_000_000),
                }
            };
            Ok((found, tracer.close(&host).unwrap().1))
        }
        Err(error) => Err(error),
    };
    ends.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    match found {
        Ok((gap, totals)) => {
            let gap = gap.expect("it waited for the other");
            println!("{gap:?}\n{totals:?}");
            assert_eq!((gap.tid, gap.cpu, gap.owner), (one, cpu, 7));
            assert_eq!(gap.kind, GapKind::Waiting { is_preempted: true });
            assert!(
                gap.slices.iter().all(|s| gap.from_ns <= s.from_ns && s.until_ns <= gap.until_ns)
            );
            assert_eq!(totals.threads.iter().map(|thread| thread.tid).collect::<Vec<_>>(), [one]);
        }
        Err(error) => println!("skipped: {error}"),
    }
}

/// A guest whose only work are writes to a port, which KVM passes on to this process.
#[test]
fn exits_of_a_vcpu_have_their_reason() {
    let host = LiveHost::new().unwrap();
    let mut guest = match MicroGuest::new() {
        Ok(guest) => guest,
        Err(error) => return println!("skipped: {error}"),
    };
    // Each exit is longer than this.
    let mut tracer = match GapTracer::open(&host, &[traced(process::own_tid())], 100) {
        Ok(tracer) => tracer,
        Err(error) => return println!("skipped: {error}"),
    };
    match guest.run(Work { out: 100, cpuid: 100, ..Work::default() }) {
        Ok(run) => assert_eq!(run.out, 100),
        Err(error) => return println!("skipped: {error}"),
    }
    let gaps = tracer.take();
    let exits = gaps.iter().filter(|gap| gap.kind == GapKind::Exit);
    let reasons: Vec<_> = exits.map(|gap| gap.exit.as_deref()).collect();
    assert!(reasons.contains(&Some("IO")), "{} gaps, {reasons:?}", gaps.len());
    // Some hosts have no event of an exit that the kernel handles.
    let mut of_kernel = gaps.iter().filter(|gap| gap.kind == GapKind::Exit && gap.exit.is_none());
    let kernel: Vec<u64> = gaps.iter().filter_map(|gap| gap.kernel_exit).collect();
    println!("exits that the kernel handled: {kernel:x?}");
    if exit_record().is_some() && of_kernel.next().is_some() {
        // VMX 10, SVM 0x72: CPUID.
        let cpuid = [10 | 1 << 32, 0x72 | 2 << 32];
        assert!(kernel.iter().any(|reason| cpuid.contains(reason)), "{kernel:x?}");
    }
}
