//! The benchmarks of speed on the host: structure and invariants, never speed.

use std::io::{BufRead as _, BufReader};

use crate::common::{MS, PATIENCE, a_pu, children, eventually, own_pus, program};
use pinfold_host::process::{Signaled, Spawn, Stdio, capture, signal, task_alive};
use pinfold_host::{Clock as _, LiveHost, SystemClock, files};
use pinfold_model::{CpuSet, PuId, Tid};
use pinfold_probe::benchmarks::BenchmarkError;
use pinfold_probe::cpu_speed::{
    Amount, Burst, Churn, ChurnKind, MicroBenchmark, MicroKind, Progress, SpeedBenchmark, Workers,
};
use pinfold_probe::loads::{Placement, threads_of};

const SHORT: u64 = 40 * MS;

/// On a crowded machine nothing may be done in the 20 ms of such a run, which is refused; then it
/// is run again.
fn run<Benchmark: SpeedBenchmark>(benchmark: &Benchmark) -> Benchmark::Outcome {
    let program = program();
    let until = SystemClock.now_ns() + PATIENCE;
    loop {
        match benchmark.run_on_host(&program.pinload, &Placement::default()) {
            Ok(outcome) => return outcome,
            Err(error) if error.to_string().contains("reports 0 units") => {
                assert!(SystemClock.now_ns() < until, "{error}");
            }
            Err(error) => panic!("{error}"),
        }
    }
}

const KINDS: [MicroKind; 7] = [
    MicroKind::Cpu,
    MicroKind::Udp,
    MicroKind::Sleep { sleep_ns: SHORT },
    MicroKind::Memory { mib: 1 },
    MicroKind::Processes(3),
    MicroKind::Threads(3),
    MicroKind::Cache { kib: 64 },
];

#[test]
fn each_micro_benchmark_lasts_as_long_as_asked_for() {
    for kind in KINDS {
        let outcome = run(&MicroBenchmark { kind, amount: Amount::Time(SHORT) });
        let stretches = if matches!(kind, MicroKind::Sleep { .. }) { 2 } else { 1 };
        assert!(outcome.working_ns >= stretches * SHORT, "{kind:?}: {outcome:?}");
        assert!(outcome.cpu_ns > 0, "{kind:?}: {outcome:?}");
        // The sleep is all that lies between the two times, and is no shorter than asked for.
        let asleep = outcome.elapsed_ns - outcome.working_ns;
        assert!(asleep == 0 || stretches == 2 && asleep >= SHORT, "{kind:?}: {outcome:?}");
    }
}

#[test]
fn each_micro_benchmark_does_as_much_as_asked_for() {
    for kind in KINDS {
        // The units of each worker are checked by the parser.
        let outcome = run(&MicroBenchmark { kind, amount: Amount::Units(20) });
        let workers = outcome.worker_units.len() as u64;
        let stretches = if matches!(kind, MicroKind::Sleep { .. }) { 2 } else { 1 };
        assert_eq!(outcome.units, 20 * workers * stretches, "{kind:?}: {outcome:?}");
    }
}

/// They are sent in a network namespace of their own: the host's loopback interface has none of
/// them.
#[test]
fn datagrams_do_not_reach_the_network_of_the_host() {
    let before = packets();
    let amount = Amount::Time(4 * SHORT);
    let sent = run(&MicroBenchmark { kind: MicroKind::Udp, amount }).units;
    let received = packets() - before;
    assert!(sent > 1_000 && received < sent / 2, "{sent} sent, {received} on the host");
}

fn packets() -> u64 {
    let text = files::read_text("/proc/net/dev").unwrap();
    let lo = text.lines().find_map(|line| line.trim_start().strip_prefix("lo:")).unwrap();
    lo.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn progress_has_a_window_for_each_millisecond_of_each_worker() {
    for workers in [Workers::Threads(2), Workers::Processes(3)] {
        // Sums, windows and stops are checked by the parser.
        let outcome = run(&Progress::new(workers, 40));
        assert_eq!(outcome.workers.len(), workers.count() as usize);
        assert!(outcome.workers.iter().all(|worker| worker.windows.len() == 40));
        assert!(outcome.cpu_ns > 0, "{outcome:?}");
    }
}

#[test]
fn pinned_workers_take_the_cpus_in_turn() {
    let set = own_pus();
    let count = u32::try_from(set.len()).unwrap() + 1;
    let mut benchmark = Progress::new(Workers::Processes(count), 20);
    benchmark.pinned = Some(set.clone());
    let cpus: Vec<_> = run(&benchmark).workers.iter().map(|worker| worker.cpu).collect();
    let mut expected: Vec<_> = set.iter().map(Some).collect();
    expected.push(set.first());
    assert_eq!(cpus, expected);
}

#[test]
fn two_workers_on_one_cpu_stop_for_each_other() {
    // Each stop that is dropped was one too: a crowded machine makes more of them.
    let mut benchmark = Progress::new(Workers::Threads(2), 100);
    benchmark.pinned = Some(CpuSet::single(a_pu()));
    benchmark.gap_min_ns = 1_000;
    benchmark.max_stops = 1;
    // Until both had the CPU again and again within a run: others may have had it all the time.
    let until = SystemClock.now_ns() + PATIENCE;
    let outcome = loop {
        let outcome = run(&benchmark);
        let dropped = outcome.workers.iter().map(|worker| worker.dropped_stops).max();
        if dropped > Some(0) || SystemClock.now_ns() > until {
            break outcome;
        }
    };
    assert!(outcome.workers.iter().any(|worker| worker.stops.len() == 1), "{outcome:?}");
    assert!(outcome.workers.iter().any(|worker| worker.dropped_stops > 0), "{outcome:?}");
}

#[test]
fn bursts_come_one_by_one_and_fill_the_memory() {
    let mut benchmark = Burst::new(100, 1_000, SHORT);
    let outcome = run(&benchmark);
    assert!(outcome.elapsed_ns >= SHORT && outcome.dropped == 0, "{outcome:?}");
    benchmark.max_samples = 1;
    benchmark.sleep_us = 10;
    let outcome = run(&benchmark);
    assert!(outcome.bursts.len() == 1 && outcome.dropped > 0, "{outcome:?}");
    // A sleep that is longer than the whole: one burst comes nevertheless.
    assert_eq!(run(&Burst::new(1, 20_000, 10 * MS)).bursts.len(), 1);
}

#[test]
fn churn_counts_the_work_of_children_that_were_waited_for() {
    for kind in [ChurnKind::Fork, ChurnKind::Spawn, ChurnKind::Pipe] {
        // Units, rounds and children are checked by the parser.
        let outcome = run(&Churn::new(kind, SHORT));
        assert!(outcome.elapsed_ns >= SHORT && outcome.cpu_ns > 0, "{kind:?}: {outcome:?}");
    }
}

#[test]
fn a_placement_that_cannot_be_and_a_wrong_argument_are_reported() {
    let program = program();
    let check = |workers: u32, placement: &Placement| {
        let benchmark =
            MicroBenchmark { kind: MicroKind::Threads(workers), amount: Amount::Units(1) };
        benchmark.run_on_host(&program.pinload, placement).unwrap_err()
    };
    let cgroup_files = vec!["/none/tasks".to_owned()];
    let no_cgroup = check(1, &Placement { cgroup_files, affinity: None });
    assert!(matches!(no_cgroup, BenchmarkError::Host(_)), "{no_cgroup}");
    // No kernel knows so many CPUs.
    let affinity = Some(CpuSet::single(PuId(60_000)));
    let no_pu = check(1, &Placement { cgroup_files: Vec::new(), affinity });
    assert!(matches!(no_pu, BenchmarkError::Host(_)), "{no_pu}");
    let no_workers = check(0, &Placement::default());
    assert!(matches!(no_workers, BenchmarkError::Failed { .. }), "{no_workers}");
    assert!(no_workers.to_string().contains("--workers: \"0\""), "{no_workers}");
}

#[test]
fn the_child_of_churn_is_a_program_of_its_own() {
    let program = program();
    let output =
        capture(&program.pinload.path(), ["churn", "child", "--units", "10"], PATIENCE).unwrap();
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
}

#[test]
fn workers_end_with_the_benchmark_and_the_benchmark_with_its_parent() {
    let program = program();
    let host = LiveHost::new().unwrap();
    for benchmark in [
        "micro processes --seconds 600 --workers 3",
        "progress --seconds 600 --processes 3",
        "churn pipe --seconds 600",
    ] {
        let script = format!("{} {benchmark} & echo $!; wait", program.pinload.path());
        let mut shell = Spawn::new("/bin/sh")
            .args(["-c", script.as_str()])
            .stdin(Stdio::Null)
            .stdout(Stdio::Pipe)
            .start()
            .unwrap();
        let mut line = String::new();
        BufReader::new(shell.stdout().unwrap()).read_line(&mut line).unwrap();
        let pid = Tid(line.trim().parse().unwrap());
        let wanted = if benchmark.contains('3') { 3 } else { 1 };
        assert!(eventually(|| children(&host, pid).len() == wanted), "{benchmark}");
        let mut all = children(&host, pid);
        all.extend(threads_of(&host, pid).unwrap());
        shell.kill().unwrap();
        assert!(
            eventually(|| all.iter().all(|task| !task_alive(&host, *task).unwrap())),
            "{benchmark}"
        );
    }
}

#[test]
fn a_worker_that_is_killed_fails_the_benchmark() {
    let program = program();
    let host = LiveHost::new().unwrap();
    for benchmark in ["micro processes --seconds 600", "progress --seconds 600 --processes 5"] {
        let mut child = program.start(benchmark);
        assert!(eventually(|| children(&host, child.pid()).len() == 5), "{benchmark}");
        let workers = children(&host, child.pid());
        signal(workers[2].tid, Signaled::Kill).unwrap();
        let status = child.wait_for(&SystemClock, PATIENCE).unwrap();
        let text = crate::common::stderr_of(&mut child);
        assert_eq!(status.and_then(|status| status.code()), Some(1), "{text}");
        assert!(text.contains("ended by signal 9"), "{text}");
        assert!(
            eventually(|| workers.iter().all(|task| !task_alive(&host, *task).unwrap())),
            "the others end too"
        );
    }
}
