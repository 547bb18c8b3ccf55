//! Tests of the parsers of reference tools, with recorded output (`fixtures/reference_tools/`).

use pinfold_model::{CpuSet, Family, Unit};

use super::*;

const CYCLICTEST: &str = include_str!("../../../../fixtures/reference_tools/cyclictest.json");
const OSLAT: &str = include_str!("../../../../fixtures/reference_tools/oslat.json");
const LIKWID: &str = include_str!("../../../../fixtures/reference_tools/likwid-bench.txt");
const PERF: &str = include_str!("../../../../fixtures/reference_tools/perf-bench.txt");
const CYCLIC: &str = include_str!("../../../../fixtures/reference_tools/stress-ng-cyclic.txt");
const SWITCH: &str = include_str!("../../../../fixtures/reference_tools/stress-ng-switch.txt");
const FIO: &str = include_str!("../../../../fixtures/reference_tools/fio.json");

fn figure(probe: &str, labels: &[(&str, &str)]) -> Figure {
    Figure {
        probe: probe.to_owned(),
        labels: labels.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect(),
        unit: Unit::Nanoseconds,
        family: Family::Tail,
        cpu: Some(3),
        duration_ns: 1,
        samples: vec![1.0],
        dropped: 0,
        disturbed: 0,
        flags: Vec::new(),
    }
}

fn settings() -> Settings {
    Settings {
        duration_ns: 1_500_000_000,
        cpus: CpuSet::parse_list("1,3").unwrap(),
        policy: SchedPolicy::Fifo(80),
        period_us: Some(500),
        duty_percent: None,
        keep_awake: false,
        target: Some(IoTarget::File("/tmp/a:b".to_owned())),
        more: Vec::new(),
    }
}

/// Value of one statistic, rounded to a millionth.
fn value(
    reference_tool: ReferenceTool,
    text: &str,
    ours: &[Figure],
    statistic: Statistic,
) -> Option<f64> {
    let found = reference_tool.parse(text, ours).unwrap();
    let reading = found.readings.iter().find(|reading| reading.statistic == statistic)?;
    Some((reading.value * 1e6).round() / 1e6)
}

#[test]
fn real_outputs_are_read() {
    let wakeup = [figure("wakeup", &[])];
    let switch = [figure("context-switch", &[])];
    let cyclic = |what| value(ReferenceTool::Cyclictest, CYCLICTEST, &wakeup, what);
    // 22.11 µs on average; the median of 2000 is in the bucket of 16 µs; 0.5 µs is added for
    // truncation.
    assert_eq!(cyclic(Statistic::Mean), Some(22_610.0));
    assert_eq!(cyclic(Statistic::Max), Some(2_359_500.0));
    assert_eq!(cyclic(Statistic::P999), None, "2000 samples carry no such quantile");
    assert!(cyclic(Statistic::Median).is_some());
    assert_eq!(
        (
            value(ReferenceTool::Oslat, OSLAT, &[], Statistic::Max),
            value(ReferenceTool::Oslat, OSLAT, &[], Statistic::Mean)
        ),
        (Some(49_210_500.0), None)
    );
    let likwid = value(ReferenceTool::LikwidBench, LIKWID, &[], Statistic::Median).unwrap();
    assert!((1e9..1e12).contains(&likwid), "{likwid}");
    // 20,000 round trips of two switches in 1.126 s.
    assert_eq!(value(ReferenceTool::Perf, PERF, &switch, Statistic::Mean), Some(28_150.0));
    let stress = |text, ours, what| value(ReferenceTool::StressNg, text, ours, what);
    assert_eq!(stress(CYCLIC, &wakeup, Statistic::Mean), Some(66_628.08));
    assert_eq!(stress(CYCLIC, &wakeup, Statistic::Max), Some(5_627_705.0));
    assert_eq!(stress(CYCLIC, &wakeup, Statistic::Median), Some(56_920.0));
    assert_eq!(stress(SWITCH, &switch, Statistic::Mean), Some(8_014.83));
    assert_eq!(fio(Statistic::Mean), Some(70_123.766_789));
    assert_eq!(fio(Statistic::Max), Some(7_409_752.0));
    assert!(fio(Statistic::P999).unwrap() > fio(Statistic::Median).unwrap());
}

fn fio(what: Statistic) -> Option<f64> {
    value(ReferenceTool::Fio, FIO, &[], what)
}

#[test]
fn every_read_of_fio_comes_back_from_its_bins() {
    let figure = fio::samples(FIO).unwrap();
    assert_eq!(figure.samples.len(), 27_756);
    assert_eq!(figure.samples.last(), Some(&7_409_752.0));
    let mean = figure.samples.iter().sum::<f64>() / 27_756.0;
    assert!((mean / 70_123.77 - 1.0).abs() < 0.01, "{mean}");
    assert!(figure.samples.is_sorted());
    let missing = FIO.replacen("\"N\" : 27756", "\"N\" : 27757", 3);
    assert!(fio::samples(&missing).is_err_and(|why| why.contains("in its bins")));
}

#[test]
fn garbage_and_nothing_are_errors_that_name_the_reference_tool() {
    let switch = [figure("context-switch", &[])];
    for reference_tool in ReferenceTool::ALL {
        for text in ["", "garbage", "{}", "null", "\u{0}", "Cycles:\t-1", "NaN", "inf"] {
            let error = reference_tool.parse(text, &switch).unwrap_err();
            assert!(error.to_string().contains(reference_tool.name()), "{text:?}: {error}");
            assert!(
                error.hint().is_some_and(|hint| hint.contains(reference_tool.describe_tried()))
            );
        }
    }
    let none = CYCLICTEST.replace("\"cycles\": 2000", "\"cycles\": 0");
    check(ReferenceTool::Cyclictest, none, "no cycle");
    let few = CYCLICTEST.replace("\"cycles\": 2000", "\"cycles\": 7");
    check(ReferenceTool::Cyclictest, few, "of 7 cycles");
    check(
        ReferenceTool::Oslat,
        OSLAT.replace("\"0\": {", "\"0\": { \"x\": 1,").replace("1.999", "0"),
        "no reading",
    );
    check(ReferenceTool::Fio, FIO.replacen("\"error\" : 0", "\"error\" : 5", 1), "the error 5");
    check(
        ReferenceTool::LikwidBench,
        LIKWID.replace("Cycle Clock", "Clock"),
        "has no line \"Cycle Clock\"",
    );
    check(ReferenceTool::Perf, "0".to_owned(), "a time of 0 s");
}

fn check(reference_tool: ReferenceTool, text: String, expected: &str) {
    let reported = reference_tool.parse(&text, &[]).unwrap_err().to_string();
    assert!(reported.contains(expected), "{reported}");
}

#[test]
fn reference_tools_are_called_for_what_ours_measures() {
    let folder = tempfile::tempdir().unwrap();
    let scratch = StateDir::open(&folder.path().join("s").to_string_lossy()).unwrap();
    // 1.5 s with a period of 500 µs are 3000 wake-ups.
    let cyclic = ["-t 2 -a 1,3 -i 500 -l 3000 -p 80", "--default-system"];
    assert_words(ReferenceTool::Cyclictest, &[figure("wakeup", &[])], &cyclic, &scratch);
    let awake = Settings { keep_awake: true, ..settings() };
    let calls = ReferenceTool::Cyclictest.calls(&awake, &[], &scratch).unwrap();
    assert!(!calls[0].argv.contains(&"--default-system".to_owned()), "it keeps them awake itself");
    let reported = ReferenceTool::Oslat.calls(&awake, &[], &scratch).err().unwrap().to_string();
    assert!(reported.contains("keep CPUs awake"), "{reported}");
    assert_words(ReferenceTool::Oslat, &[], &["-c 1,3 -D 2", "-f 80"], &scratch);
    let one = Settings { cpus: CpuSet::parse_list("3").unwrap(), ..settings() };
    let cyclic = ReferenceTool::StressNg.calls(&one, &[], &scratch).unwrap().remove(0);
    let words_of_cyclic = cyclic.argv.join(" ");
    for expected in ["--cyclic 1", "--cyclic-sleep 500000", "--cyclic-prio 80"] {
        assert!(words_of_cyclic.contains(expected), "{words_of_cyclic}");
    }
    let reported =
        ReferenceTool::StressNg.calls(&settings(), &[], &scratch).err().unwrap().to_string();
    assert!(reported.contains("name one CPU"), "{reported}");
    let fio = ReferenceTool::Fio.calls(
        &Settings { policy: SchedPolicy::Other, ..settings() },
        &[],
        &scratch,
    );
    let fio = fio.unwrap().remove(0).argv.join(" ");
    for expected in ["--filename=/tmp/a\\:b", "--readonly", "--runtime=1"] {
        assert!(fio.contains(expected), "{fio}");
    }
    let switch = [figure("context-switch", &[])];
    assert_words(ReferenceTool::Perf, &switch, &["bench --format=simple sched pipe"], &scratch);
    assert_words(ReferenceTool::StressNg, &switch, &["--switch 1"], &scratch);
    let block = |operation, width| {
        figure("bandwidth", &[("bytes", "24576"), ("operation", operation), ("width", width)])
    };
    let blocks = [block("read", "avx2"), block("copy", "scalar"), block("fill", "libc")];
    let plain = Settings { policy: SchedPolicy::Other, ..settings() };
    let calls = ReferenceTool::LikwidBench.calls(&plain, &blocks, &scratch).unwrap();
    let calls: Vec<String> = calls.into_iter().map(|call| call.argv.join(" ")).collect();
    assert_eq!(calls, ["-t load_avx -w N:24576B:1 -s 2", "-t copy -w N:24576B:1 -s 2"]);
    for (reference_tool, ours) in
        [(ReferenceTool::LikwidBench, &blocks[2..]), (ReferenceTool::Perf, &blocks[..])]
    {
        assert!(matches!(
            reference_tool.calls(&plain, ours, &scratch),
            Err(ReferenceToolError::Cannot { .. })
        ));
    }
    let reported = ReferenceTool::StressNg.calls(&plain, &[], &scratch).err().unwrap().to_string();
    assert!(reported.contains("--policy fifo:N"), "{reported}");
}

fn words(reference_tool: ReferenceTool, ours: &[Figure], scratch: &StateDir) -> Vec<String> {
    let calls = reference_tool.calls(&settings(), ours, scratch).unwrap();
    calls.into_iter().map(|call| call.argv.join(" ")).collect()
}

fn assert_words(
    reference_tool: ReferenceTool,
    ours: &[Figure],
    expected: &[&str],
    scratch: &StateDir,
) {
    let words = words(reference_tool, ours, scratch);
    assert_eq!(words.len(), 1);
    for one in expected {
        assert!(words[0].contains(one), "{one}: {words:?}");
    }
}

#[test]
fn reference_tools_are_held_where_ours_ran_and_under_its_policy() {
    let folder = tempfile::tempdir().unwrap();
    let scratch = StateDir::open(&folder.path().join("s").to_string_lossy()).unwrap();
    let pu = CpuSet::parse_list("3").unwrap();
    let plain = Settings { policy: SchedPolicy::Other, ..settings() };
    let call = |reference_tool: ReferenceTool, settings: &Settings, ours: &[Figure]| {
        reference_tool.calls(settings, ours, &scratch).map(|mut calls| calls.remove(0))
    };
    // Of the two CPUs in the settings, ours used the second.
    let switch = [figure("context-switch", &[])];
    for reference_tool in [ReferenceTool::Perf, ReferenceTool::StressNg] {
        let found = call(reference_tool, &settings(), &switch).unwrap();
        assert_eq!(found.mask.as_ref(), Some(&pu), "{}", reference_tool.name());
        assert_eq!(found.policy, Some(Policy::Fifo { priority: 80 }), "{}", reference_tool.name());
        assert_eq!(call(reference_tool, &plain, &switch).unwrap().policy, None);
        let mut apart = switch.clone();
        apart[0].cpu = None;
        let reported = call(reference_tool, &settings(), &apart).err().unwrap().to_string();
        assert!(reported.contains("omit --placement"), "{reported}");
    }
    let labels = [("bytes", "24576"), ("operation", "read"), ("width", "avx2")];
    let found = call(ReferenceTool::LikwidBench, &plain, &[figure("bandwidth", &labels)]).unwrap();
    assert_eq!(found.mask, Some(pu));
    // Ours reads from all of them.
    let all = CpuSet::parse_list("1,3").unwrap();
    assert_eq!(call(ReferenceTool::Fio, &plain, &[]).unwrap().mask, Some(all));
    for reference_tool in [ReferenceTool::Fio, ReferenceTool::LikwidBench] {
        let reported = call(reference_tool, &settings(), &[]).err().unwrap().to_string();
        assert!(reported.contains("--policy other"), "{reported}");
    }
    let mut buffered = figure("io-latency", &[]);
    buffered.flags.push("buffered".to_owned());
    let reported = call(ReferenceTool::Fio, &plain, &[buffered]).err().unwrap().to_string();
    assert!(reported.contains("page cache") && reported.contains("--file"), "{reported}");
}

#[test]
fn names_lead_back_and_say_what_to_install() {
    for reference_tool in ReferenceTool::ALL {
        assert_eq!(ReferenceTool::from_name(reference_tool.name()), Some(reference_tool));
        let hint = ReferenceToolError::NotInstalled(reference_tool).hint().unwrap();
        assert_eq!(hint, format!("apt-get install {}", reference_tool.package()));
    }
    assert_eq!(ReferenceTool::from_name("cyclictests"), None);
}

/// The reference tools that are installed here print what their parsers expect.
#[test]
fn installed_reference_tools_are_understood() {
    let folder = tempfile::tempdir().unwrap();
    let scratch = StateDir::open(&folder.path().join("s").to_string_lossy()).unwrap();
    let blocks = folder.path().join("blocks").to_string_lossy().into_owned();
    pinfold_host::files::write_atomic(&blocks, &vec![7; 1 << 20]).unwrap();
    let host = pinfold_host::LiveHost::new().unwrap();
    let mask = pinfold_host::Host::affinity(&host, pinfold_model::Tid(0)).unwrap();
    let settings = Settings {
        duration_ns: 200_000_000,
        cpus: mask.iter().take(1).collect(),
        policy: SchedPolicy::Other,
        period_us: Some(1_000),
        target: Some(IoTarget::File(blocks)),
        ..settings()
    };
    let bandwidth =
        figure("bandwidth", &[("bytes", "24576"), ("operation", "read"), ("width", "scalar")]);
    let first = mask.iter().next().map(|pu| pu.0);
    let ours = [figure("context-switch", &[]), bandwidth].map(|one| Figure { cpu: first, ..one });
    for reference_tool in ReferenceTool::ALL {
        let found = match reference_tool.run(&settings, &ours, &Placement::default(), &scratch) {
            Ok(found) => found,
            Err(ReferenceToolError::NotInstalled(_)) => {
                println!("skipped: {} is not installed", reference_tool.name());
                continue;
            }
            // The test machine may not allow it: no O_DIRECT, no perf in a container.
            Err(error @ ReferenceToolError::Failed { .. }) => {
                println!("skipped: {error}");
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        assert!(!found.readings.is_empty(), "{}", reference_tool.name());
        assert!(found.readings.iter().all(|reading| reading.value > 0.0), "{found:?}");
    }
}
