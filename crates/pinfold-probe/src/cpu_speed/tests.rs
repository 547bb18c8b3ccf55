//! Arguments and parsing, as tables.

use pinfold_model::{CpuSet, PuId};

use super::*;

const MS: u64 = 1_000_000;

fn micro(kind: MicroKind, amount: Amount) -> MicroBenchmark {
    MicroBenchmark { kind, amount }
}

fn pin_progress(mut progress: Progress, set: CpuSet) -> Progress {
    progress.pinned = Some(set);
    progress
}

#[test]
fn arguments() {
    fn check(benchmark: &impl SpeedBenchmark, expected: &str) {
        assert_eq!(benchmark.argv().join(" "), expected);
    }
    let [cpu, udp, sleep, memory, processes, threads] = MicroBenchmark::all_of_the_paper();
    check(&cpu, "micro cpu --seconds 3.000000000");
    check(&udp, "micro udp --seconds 1.000000000");
    check(&sleep, "micro sleep --seconds 1.000000000 --sleep-seconds 1.000000000");
    check(&memory, "micro memory --seconds 1.000000000 --memory-mib 128");
    check(&processes, "micro processes --seconds 1.000000000 --workers 5");
    check(&threads, "micro threads --seconds 1.000000000 --workers 5");
    check(&micro(MicroKind::Threads(2), Amount::Units(7)), "micro threads --units 7 --workers 2");
    check(
        &Progress::new(Workers::Threads(2), 1_500),
        "progress --seconds 1.500000000 --threads 2 --gap-min-ns 20000 --max-stops 100000",
    );
    check(
        &pin_progress(Progress::new(Workers::Processes(5), 10), CpuSet::first_n(2)),
        "progress --seconds 0.010000000 --processes 5 --gap-min-ns 20000 --max-stops 100000 --cpus 0-1",
    );
    check(
        &Burst::new(900, 500, 2_000 * MS),
        "burst --seconds 2.000000000 --units 900 --sleep-us 500 --max-samples 200000",
    );
    check(&Churn::new(ChurnKind::Fork, MS), "churn fork --seconds 0.001000000 --units 1500");
    check(&Churn::new(ChurnKind::Spawn, MS), "churn spawn --seconds 0.001000000 --units 1500");
    check(&Churn::new(ChurnKind::Pipe, MS), "churn pipe --seconds 0.001000000 --units 1500");
}

/// Checks that a valid line with each of these replacements is rejected with this text.
fn refuse<Benchmark: SpeedBenchmark>(
    benchmark: &Benchmark,
    good: &str,
    wrong: &[(&str, &str, &str)],
) where
    Benchmark::Outcome: std::fmt::Debug,
{
    for (from, to, part) in wrong {
        assert!(good.contains(from), "{from}");
        let error = benchmark.parse(&good.replace(from, to)).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(part) && error.hint().is_some(), "{text} should hold {part:?}");
    }
    let output = |output: &str| benchmark.parse(output).unwrap_err().to_string();
    assert!(output("").contains("has 0 lines"));
    assert!(output("Segmentation fault").contains("line 1"));
    assert!(output(&format!("{good}\n{good}")).contains("has 2 lines"));
    assert!(output(r#"{"probe":"spin-gap"}"#).contains("is of the benchmark \"spin-gap\""));
}

#[test]
fn micro_lines() {
    let good = r#"{"probe":"micro-threads","units":12,"elapsed_ns":30,"working_ns":24,"cpu_ns":9,"workers":[6,6]}"#;
    let benchmark = micro(MicroKind::Threads(2), Amount::Units(6));
    let outcome = benchmark.parse(good).unwrap();
    let expected = MicroOutcome {
        units: 12,
        elapsed_ns: 30,
        working_ns: 24,
        cpu_ns: 9,
        worker_units: vec![6, 6],
        flags: Vec::new(),
    };
    assert_eq!(outcome, expected);
    let reported = good.replace('}', r#","flags":["fits-in-last-cache 128 of 480 MiB"]}"#);
    assert_eq!(benchmark.parse(&reported).unwrap().flags, ["fits-in-last-cache 128 of 480 MiB"]);
    assert!((outcome.per_second() - 4e8).abs() < 1.0);
    refuse(
        &benchmark,
        good,
        &[
            ("\"elapsed_ns\":30", "\"elapsed_ns\":0", "12 units in 0 ns"),
            ("\"units\":12", "\"units\":13", "13 units whose parts are 12"),
            ("[6,6]", "[5,7]", "5 units of a worker instead of 6"),
            ("[6,6]", "[12]", "1 workers instead of 2"),
            ("[6,6]", "[6,-6]", "not a result"),
            ("[6,6]", "[18446744073709551615,13]", "whose parts are 18446744073709551628"),
            ("\"working_ns\":24", "\"working_ns\":31", "worked for 31 of 30 ns"),
            ("\"working_ns\":24", "\"working_ns\":0", "worked for 0 of 30 ns"),
            ("\"cpu_ns\":9,", "", "missing field"),
        ],
    );
    let none = good.replace("12", "0").replace("[6,6]", "[0,0]");
    let by_time = micro(MicroKind::Threads(2), Amount::Time(1));
    assert!(by_time.parse(&none).unwrap_err().to_string().contains("0 units in 30 ns"));
    let sleep = good.replace("threads", "sleep").replace("[6,6]", "[12]");
    micro(MicroKind::Sleep { sleep_ns: 6 }, Amount::Units(6)).parse(&sleep).unwrap();
}

#[test]
fn progress_lines() {
    let good = concat!(
        r#"{"probe":"progress","kind":"threads","start_ns":5,"window_ns":1000000,"gap_min_ns":20000,"unit_ns":600,"elapsed_ns":2000000,"#,
        r#""units":11,"cpu_ns":7,"workers":["#,
        r#"{"cpu":null,"units":5,"cpu_ns":3,"late_ns":1,"dropped":4,"windows":[2,3],"stops":[[10,20000],[20010,30000]]},"#,
        r#"{"cpu":null,"units":6,"cpu_ns":4,"late_ns":0,"dropped":0,"windows":[6,0],"stops":[]}]}"#,
    );
    let benchmark = Progress::new(Workers::Threads(2), 2);
    let outcome = benchmark.parse(good).unwrap();
    assert_eq!((outcome.units, outcome.elapsed_ns, outcome.cpu_ns), (11, 2 * MS, 7));
    let first = WorkerProgress {
        cpu: None,
        units: 5,
        cpu_ns: 3,
        late_ns: 1,
        windows: vec![2, 3],
        stops: vec![
            Stop { start_ns: 10, length_ns: 20_000 },
            Stop { start_ns: 20_010, length_ns: 30_000 },
        ],
        dropped_stops: 4,
    };
    assert_eq!(outcome.workers[0], first);
    assert_eq!(outcome.unit_ns, 600);
    let own = |from, to| WorkerProgress { dropped_stops: 0, ..first.clone() }.own_ns(600, from, to);
    assert_eq!(own(0, MS), Some(MS - 50_000 + 2 * 600));
    assert_eq!(own(10_000, 30_000), Some(600), "parts of both stops");
    assert_eq!(own(MS, 2 * MS), Some(MS));
    assert_eq!(first.own_ns(600, 0, MS), None, "four stops are missing");
    refuse(
        &benchmark,
        good,
        &[
            ("\"units\":11", "\"units\":12", "12 units whose parts are 11"),
            ("[6,0]", "[6,1]", "6 units whose parts are 7"),
            ("[6,0]", "[6]", "1 windows instead of 2"),
            ("[6,0]", "[6,-0.5]", "not a result"),
            ("\"cpu_ns\":7", "\"cpu_ns\":8", "8 ns of CPU time whose parts are 7"),
            ("\"threads\"", "\"processes\"", "is of \"processes\""),
            ("2000000", "3000000", "lasted 3000000 ns instead of 2 ms"),
            ("null,\"units\":6", "1,\"units\":6", "on the CPU"),
            ("[20010,30000]", "[20009,30000]", "a stop of 30000 ns at 20009 ns"),
            ("[20010,30000]", "[20010,19999]", "a stop of 19999 ns at 20010 ns"),
            ("[20010,30000]", "[2000000,30000]", "a stop of 30000 ns at 2000000 ns"),
            ("[20010,30000]", "[20010,18446744073709551615]", "a stop of 18446744073709551615"),
        ],
    );
    let three = Progress::new(Workers::Threads(3), 2).parse(good).unwrap_err();
    assert!(three.to_string().contains("2 workers instead of 3"), "{three}");
    let on_cpu_1 = pin_progress(benchmark, CpuSet::single(PuId(1)));
    let outcome = on_cpu_1.parse(&good.replace("null", "1")).unwrap();
    assert_eq!(outcome.workers[1].cpu, Some(PuId(1)));
    assert!(on_cpu_1.parse(good).is_err() && on_cpu_1.parse(&good.replace("null", "0")).is_err());
}

#[test]
fn burst_lines() {
    let good = r#"{"probe":"burst","units":900,"sleep_ns":1000,"elapsed_ns":3600,"cpu_ns":1500,"dropped":1,"burst_ns":[600,700],"late_ns":[100,200]}"#;
    let benchmark = Burst::new(900, 1, MS);
    let outcome = benchmark.parse(good).unwrap();
    assert_eq!(
        outcome.bursts,
        [BurstSample { burst_ns: 600, late_ns: 100 }, BurstSample { burst_ns: 700, late_ns: 200 }]
    );
    assert_eq!((outcome.elapsed_ns, outcome.cpu_ns, outcome.dropped), (3_600, 1_500, 1));
    refuse(
        &benchmark,
        good,
        &[
            ("900", "901", "is of bursts of 901 units after 1000 ns"),
            ("\"sleep_ns\":1000", "\"sleep_ns\":1001", "900 units after 1001 ns"),
            ("[600,700]", "[600]", "1 bursts and 2 starts"),
            ("3600", "3599", "3600 ns of bursts and sleeps in 3599 ns"),
            ("[600,700]", "[600,0]", "holds"),
            ("[600,700]", "[600,18446744073709551615]", "ns of bursts and sleeps"),
            ("[600,700]", "[600,1e3]", "not a result"),
        ],
    );
    let none = good.replace("[600,700]", "[]").replace("[100,200]", "[]");
    assert!(benchmark.parse(&none).unwrap_err().to_string().contains("0 bursts"));
}

#[test]
fn churn_lines() {
    let good =
        r#"{"probe":"churn-fork","units":3000,"elapsed_ns":9,"cpu_ns":8,"rounds":2,"children":2}"#;
    let benchmark = Churn::new(ChurnKind::Fork, MS);
    let expected = ChurnOutcome { units: 3_000, elapsed_ns: 9, cpu_ns: 8, rounds: 2, children: 2 };
    assert_eq!(benchmark.parse(good).unwrap(), expected);
    refuse(
        &benchmark,
        good,
        &[
            ("3000", "3001", "3001 units in 2 rounds of 2 children"),
            ("\"children\":2", "\"children\":1", "of 1 children"),
            ("3000", "0", "0 units"),
            ("\"rounds\":2", "\"rounds\":18446744073709551615", "rounds of 2 children"),
        ],
    );
    let pipe = good.replace("fork", "pipe").replace("3000", "6000");
    let benchmark = Churn::new(ChurnKind::Pipe, MS);
    assert!(benchmark.parse(&pipe).is_err());
    let pipe = pipe.replace("\"children\":2", "\"children\":1");
    assert_eq!(benchmark.parse(&pipe).unwrap().units, 6_000);
}
