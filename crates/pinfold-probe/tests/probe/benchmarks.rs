//! The benchmarks on the host: structure and invariants, never speed.

use crate::common::{MS, PATIENCE, a_pu, eventually, further_threads, own_pus, program, stderr_of};
use pinfold_host::process::{Signaled, capture, find_program};
use pinfold_host::{Clock as _, Host as _, LiveHost, SystemClock, paths, proc_stat};
use pinfold_model::{CpuSet, Metric, PuId, Tid};
use pinfold_probe::benchmarks::{Benchmark, BenchmarkError, Cpus, Disk, IoTarget, SchedPolicy};

const SHORT: u64 = 200 * MS;

#[test]
fn spin_gap_sees_each_cpu_once_and_only_gaps_above_its_floor() {
    let program = program();
    for policy in [SchedPolicy::Other, SchedPolicy::Fifo(2)] {
        let benchmark = Benchmark::spin_gap(SHORT).under(policy);
        let all = benchmark.run_on_host(&program.pinload).unwrap();
        let cpus: CpuSet = all.iter().map(|series| PuId(series.cpu)).collect();
        assert_eq!(cpus, own_pus());
        for series in &all {
            // The sum against the observed time is checked by the parser.
            assert!(series.samples.iter().all(|gap| *gap >= 1_000.0), "{series:?}");
            assert!(series.observed_ns >= 10 * MS / 2, "{series:?}");
            assert_eq!(series.metric, Metric::SpinGap);
        }
    }
}

#[test]
fn a_full_recorder_counts_what_it_drops_and_keeps_the_worst() {
    let program = program();
    let mut benchmark = Benchmark::spin_gap(SHORT).on(Cpus::These(CpuSet::single(a_pu())));
    benchmark.max_samples = 2;
    let mut argv = benchmark.argv();
    let floor = argv.iter().position(|argument| argument == "--floor-ns").unwrap();
    argv[floor + 1] = "1".to_owned();
    let output = capture(&program.pinload.path(), &argv, PATIENCE).unwrap().stdout_text();
    let series = &benchmark.parse(&output).unwrap()[0];
    assert_eq!(series.samples.len(), 2);
    assert!(series.dropped > 0, "the timer interrupt alone makes more gaps: {series:?}");
    assert!(series.flags.iter().any(|flag| flag == "floor-raised"), "{series:?}");
}

#[test]
fn wake_ups_have_one_sample_per_period_even_if_late() {
    let program = program();
    let benchmark = Benchmark::wakeup(SHORT).on(Cpus::These(CpuSet::single(a_pu())));
    let series = &benchmark.run_on_host(&program.pinload).unwrap()[0];
    assert_eq!(series.samples.len(), 200);
    assert_eq!(series.dropped, 0);
}

#[test]
fn compute_counts_verified_rounds() {
    let program = program();
    let benchmark = Benchmark::compute(SHORT).on(Cpus::These(CpuSet::single(a_pu())));
    let output =
        capture(&program.pinload.path(), benchmark.argv(), PATIENCE).unwrap().stdout_text();
    assert!(output.contains("\"checksum\":834560368"), "{output}");
    let series = &benchmark.parse(&output).unwrap()[0];
    assert!(
        series.samples.iter().all(|rate| *rate > 0.0) && series.samples.len() <= 41,
        "{series:?}"
    );
}

#[test]
fn io_latency_reads_what_is_there_and_names_what_is_not() {
    let program = program();
    let good = benchmark(&program.file("blocks", 1 << 20)).run_on_host(&program.pinload).unwrap();
    assert_eq!((good.len(), good[0].metric), (1, Metric::IoVirtio));
    assert!(!good[0].samples.is_empty());
    let check = |path: &str, expected: &str| {
        let error = benchmark(path).run_on_host(&program.pinload).unwrap_err();
        assert!(matches!(error, BenchmarkError::Failed { .. }), "{error}");
        assert!(error.to_string().contains(expected), "{error} should hold {expected:?}");
    };
    check("/none", "No such file or directory");
    check("/proc", "Is a directory");
    check("/dev/null", "Block device required");
    check(&program.file("small", 4095), "smaller than one block");
}

fn benchmark(path: &str) -> Benchmark {
    Benchmark::io_latency(Disk::Virtio, IoTarget::File(path.to_owned()), SHORT)
}

#[test]
fn reads_that_go_through_the_page_cache_are_flagged() {
    let program = program();
    let path = program.file("blocks", 1 << 16);
    let arguments = format!("io-latency --seconds 0.05 --file {path}");
    let output = capture(&program.pinload.path(), arguments.split(' '), PATIENCE).unwrap();
    assert!(output.stdout_text().contains("\"buffered\""), "{output:?}");
}

#[test]
fn fifo_that_is_refused_is_flagged_and_measured_anyway() {
    let Some(setpriv) = find_program("setpriv") else {
        eprintln!("skipped: setpriv (util-linux) is not here to take the right away");
        return;
    };
    let program = program();
    let benchmark = Benchmark::spin_gap(SHORT)
        .on(Cpus::These(CpuSet::single(a_pu())))
        .under(SchedPolicy::Fifo(2));
    let mut argv = vec!["--bounding-set=-sys_nice".to_owned(), program.pinload.path()];
    argv.extend(benchmark.argv());
    let output = capture(&setpriv, &argv, PATIENCE).unwrap();
    if !output.status.success() && output.stderr_text().starts_with("setpriv") {
        eprintln!("skipped: {}", output.stderr_text().trim());
        return;
    }
    let series = &benchmark.parse(&output.stdout_text()).unwrap()[0];
    assert!(series.flags.iter().any(|flag| flag == "fifo-refused"), "{series:?}");
}

/// True if all threads of a process are stopped, or it has ended.
fn is_still(host: &LiveHost, pid: Tid) -> bool {
    let tids = further_threads(host, pid).into_iter().chain([pid]);
    let state = |tid| {
        let text = host.read_text(&paths::task_stat(pid, tid)).ok()?;
        Some(proc_stat::parse(&text).unwrap().state)
    };
    tids.filter_map(state).all(|state| matches!(state, 'T' | 'Z'))
}

/// Output of a benchmark that is stopped repeatedly while it measures, the number of stops, and the
/// shortest stop (ns).
fn stopped_again_and_again(
    program: &crate::common::Program,
    benchmark: &Benchmark,
) -> (String, u32, u64) {
    let host = LiveHost::new().unwrap();
    let arguments = benchmark.argv().join(" ").replace("--duty 50", "--duty 100");
    let mut child = program.start(&arguments);
    let pid = child.pid();
    // The thread must be beyond its preparations: it has spun for 50 ms.
    assert!(eventually(|| has_ended(&mut child) || crate::common::work_ns(&host, pid) > 50 * MS));
    let (mut stops, mut shortest) = (0, u64::MAX);
    while !has_ended(&mut child) && child.signal(Signaled::Stop).is_ok() {
        assert!(eventually(|| is_still(&host, pid)));
        let begin = SystemClock.now_ns();
        SystemClock.sleep_ns(10 * MS);
        shortest = shortest.min(SystemClock.now_ns() - begin);
        stops += 1;
        child.signal(Signaled::Continue).unwrap();
        SystemClock.sleep_ns(20 * MS);
    }
    let mut output = String::new();
    std::io::Read::read_to_string(&mut child.stdout().unwrap(), &mut output).unwrap();
    assert!(child.wait().unwrap().success(), "{}", stderr_of(&mut child));
    (output, stops, shortest)
}

fn has_ended(child: &mut pinfold_host::process::Child) -> bool {
    child.try_wait().unwrap().is_some()
}

#[test]
fn an_injected_stall_is_seen_as_one_gap_of_at_least_its_length() {
    let program = program();
    let benchmark = Benchmark::spin_gap(1000 * MS).on(Cpus::These(CpuSet::single(a_pu())));
    let until = SystemClock.now_ns() + PATIENCE;
    // On a crowded machine the second may be nearly over before the first stop.
    let (output, shortest) = loop {
        let (output, stops, shortest) = stopped_again_and_again(&program, &benchmark);
        if stops >= 5 {
            break (output, shortest);
        }
        assert!(SystemClock.now_ns() < until, "only {stops} stops fell into the measuring");
    };
    let series = &benchmark.parse(&output).unwrap()[0];
    let worst = series.samples.iter().copied().fold(0.0, f64::max);
    assert!(worst >= shortest as f64, "worst gap {worst} ns, each stop at least {shortest} ns");
}
