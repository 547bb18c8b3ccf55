//! Arguments and parsing, as tables.

use pinfold_host::{Clock as _, Host as _, LiveHost, SystemClock};
use pinfold_model::{CpuSet, PuId};

use super::*;

fn cpu0(benchmark: Benchmark) -> Benchmark {
    benchmark.on(Cpus::These(CpuSet::single(PuId(0))))
}

#[test]
fn arguments() {
    check(
        cpu0(Benchmark::spin_gap(1_500_000_000)).under(SchedPolicy::Fifo(50)),
        "spin-gap --seconds 1.500000000 --cpus 0 --policy fifo:50 --max-samples 200000 \
         --duty 50 --period-us 10000 --floor-ns 1000",
    );
    check(
        Benchmark::wakeup(1),
        "wakeup --seconds 0.000000001 --cpus all --policy other --max-samples 200000 --period-us 1000",
    );
    check(
        Benchmark::wakeup(1).kept_awake(),
        "wakeup --seconds 0.000000001 --cpus all --policy other --max-samples 200000 --period-us 1000 --dma-latency",
    );
    check(
        Benchmark::compute(2_000_000_000).on(Cpus::These(CpuSet::first_n(3))),
        "compute --seconds 2.000000000 --cpus 0-2 --policy other --max-samples 200000 --window-ms 5",
    );
    check(
        Benchmark::io_latency(Disk::Ahci, IoTarget::Device("/dev/sda".to_owned()), 1_000_000_000),
        "io-latency --seconds 1.000000000 --policy other --max-samples 200000 --device /dev/sda \
         --block 4096 --seed 1 --direct",
    );
}

fn check(benchmark: Benchmark, expected: &str) {
    assert_eq!(benchmark.argv().join(" "), expected);
}

#[test]
fn metrics() {
    let target = IoTarget::File("/f".to_owned());
    check_metric(Benchmark::spin_gap(1), Metric::SpinGap);
    check_metric(Benchmark::wakeup(1), Metric::Wakeup);
    check_metric(Benchmark::compute(1), Metric::ComputeRate);
    check_metric(Benchmark::io_latency(Disk::Ahci, target.clone(), 1), Metric::IoAhci);
    check_metric(Benchmark::io_latency(Disk::Virtio, target, 1), Metric::IoVirtio);
}

fn check_metric(benchmark: Benchmark, metric: Metric) {
    assert_eq!(benchmark.metric(), metric);
}

/// A valid line with one part replaced.
fn line(from: &str, to: &str) -> String {
    let good = r#"{"probe":"spin-gap","cpu":0,"duration_ns":1000,"observed_ns":500,"unit":"ns","floor_ns":100,"dropped":2,"clock":"tsc","flags":["migrated"],"samples":[120,340]}"#;
    assert!(good.contains(from), "{from}");
    good.replace(from, to)
}

#[test]
fn a_good_line_is_a_series() {
    let series = cpu0(Benchmark::spin_gap(1000)).parse(&line("", "")).unwrap();
    let expected = Series {
        metric: Metric::SpinGap,
        cpu: 0,
        duration_ns: 1000,
        observed_ns: 500,
        dropped: 2,
        samples: vec![120.0, 340.0],
        flags: vec!["migrated".to_owned()],
    };
    assert_eq!(series, [expected]);
    let none = cpu0(Benchmark::spin_gap(1000)).parse(&line("[120,340]", "[]")).unwrap();
    assert_eq!(none[0].samples, [0.0; 0], "no gap above the floor is a result");
}

#[test]
fn lines_come_back_by_ascending_cpu() {
    let output = format!("{}\n{}\n", line("\"cpu\":0", "\"cpu\":3"), line("", ""));
    assert_eq!(cpus(&output), [0, 3]);
}

fn cpus(output: &str) -> Vec<u32> {
    let series = Benchmark::spin_gap(1000).parse(output).unwrap();
    series.iter().map(|series| series.cpu).collect()
}

#[test]
fn bad_output_is_refused_with_what_is_wrong() {
    fn check(output: &str, part: &str) {
        let error = cpu0(Benchmark::spin_gap(1000)).parse(output).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(part) && error.hint().is_some(), "{text} should hold {part:?}");
    }

    check("", "is empty");
    check("Segmentation fault", "line 1 of the output of spin-gap is not a result");
    check(&line("340", "NaN"), "not a result");
    check(&line("340", "null"), "not a result");
    check(&line("340", "1e999"), "not a result");
    check(&line("340", "-1"), "holds the sample -1");
    check(&line("340", "381"), "501 ns of gaps in 500 ns");
    check(&line("\"observed_ns\":500", "\"observed_ns\":0"), "observed 0 of 1000 ns");
    check(&line("\"observed_ns\":500", "\"observed_ns\":1001"), "observed 1001 of 1000 ns");
    check(&line("\"ns\"", "\"us\""), "unit \"us\"");
    check(&line("\"spin-gap\"", "\"wakeup\""), "of the benchmark \"wakeup\"");
    check(&line("\"dropped\":2,", ""), "missing field");
    check(&line("\"cpu\":0", "\"cpu\":1"), "has no line for CPU 0");
    check(&format!("{0}\n{0}", line("", "")), "two lines for CPU 0");
    check(&format!("{}\n{}", line("", ""), line("\"cpu\":0", "\"cpu\":1")), "has a line for CPU 1");
    let wakeup = cpu0(Benchmark::wakeup(1000))
        .parse(&line("spin-gap", "wakeup").replace("[120,340]", "[]"))
        .unwrap_err();
    assert!(wakeup.to_string().contains("holds no samples"), "{wakeup}");
}

#[test]
fn gaps_have_their_moments_where_they_were_reported() {
    let benchmark = cpu0(Benchmark::spin_gap(1000));
    let gaps = benchmark.gaps(&reported_line("\"start_ns\":7000,\"begins_ns\":[30,200]")).unwrap();
    let expected = [(7_030, 120.0), (7_200, 340.0)];
    assert_eq!(gaps, expected.map(|(start_ns, length_ns)| Gap { start_ns, length_ns }));
    let old = benchmark.gaps(&line("", "")).unwrap_err().to_string();
    assert!(old.contains("does not report when its samples began"), "{old}");
    for (members, part) in [
        ("\"start_ns\":7000,\"begins_ns\":[30]", "1 begins of 2 gaps"),
        ("\"begins_ns\":[30,200]", "only one of start_ns and begins_ns"),
        ("\"start_ns\":18446744073709551615,\"begins_ns\":[1,2]", "end after the clock's range"),
    ] {
        let error = benchmark.parse(&reported_line(members)).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}

fn reported_line(members: &str) -> String {
    line("\"flags\"", &format!("{members},\"flags\""))
}

#[test]
fn gaps_begin_while_their_benchmark_runs() {
    let folder = tempfile::tempdir().unwrap();
    let pinload = Pinload::install_in(&folder.path().join("bin").to_string_lossy()).unwrap();
    let kind = Kind::SpinGap { duty_percent: 50, period_us: 1_000, floor_ns: 1 };
    let mut benchmark = Benchmark { kind, ..Benchmark::spin_gap(100_000_000) };
    let own = LiveHost::new().unwrap().affinity(process::own_tid()).unwrap();
    benchmark.cpus = Cpus::These(own.iter().take(1).collect());
    for max_samples in [200_000, 1] {
        benchmark.max_samples = max_samples;
        let before = SystemClock.now_ns();
        let output =
            process::capture(&pinload.path(), benchmark.argv(), benchmark.timeout_ns()).unwrap();
        let after = SystemClock.now_ns();
        let gaps = benchmark.gaps(&output.stdout_text()).unwrap();
        assert!(!gaps.is_empty(), "the floor is that of the loop itself");
        for gap in &gaps {
            let end = gap.start_ns as f64 + gap.length_ns;
            assert!(before <= gap.start_ns && end <= after as f64, "{gap:?} {before} {after}");
        }
        let is_ascending = gaps.windows(2).all(|pair| pair[0].start_ns < pair[1].start_ns);
        assert!(is_ascending, "{gaps:?}");
    }
}
