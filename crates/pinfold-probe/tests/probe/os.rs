//! The instruments of the operating system on the host: structure and invariants, never speed.

use std::collections::BTreeSet;

use crate::common::{MS, PATIENCE, Program, a_pu, children, eventually, own_pus, program};
use pinfold_host::process::{Output, Signaled, capture, find_program, signal, task_alive};
use pinfold_host::{Clock as _, Host as _, LiveHost, SystemClock, files, paths};
use pinfold_model::{CpuSet, Family, Figure, Unit};
use pinfold_probe::benchmarks::{Benchmark, Cpus, OpenLoop, SchedPolicy};
use pinfold_probe::cpu_speed::SpeedBenchmark as _;
use pinfold_probe::figures::{self, Instrument};
use pinfold_probe::loads::{Placement, threads_of};
use pinfold_probe::memory::Sizes;
use pinfold_probe::os::{
    Intmix, IpcBandwidth, Operation, OsLatency, Switch, SwitchPlacement, Transport,
};

const SHORT: u64 = 30 * MS;

/// A crowded machine may disturb each of the few windows of such a run, which is refused; then it
/// is run again.
fn run(instrument: &Instrument) -> Vec<Figure> {
    let program = program();
    let until = SystemClock.now_ns() + PATIENCE;
    loop {
        match instrument.run_on_host(&program.pinload, &Placement::default()) {
            Ok(figures) => return figures,
            Err(error) if error.to_string().contains("too busy to measure") => {
                assert!(SystemClock.now_ns() < until, "{error}");
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// What an instrument says that cannot work.
fn refuse(instrument: &Instrument) -> String {
    instrument.run_on_host(&program().pinload, &Placement::default()).unwrap_err().to_string()
}

fn median(figure: &Figure) -> f64 {
    let mut sorted = figure.samples.clone();
    sorted.sort_unstable_by(f64::total_cmp);
    f64::midpoint(sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2])
}

fn find_labelled<'f>(figures: &'f [Figure], labels: &[(&str, &str)]) -> &'f Figure {
    let found: Vec<_> = figures
        .iter()
        .filter(|figure| {
            labels
                .iter()
                .all(|(name, text)| figure.labels.get(*name).is_some_and(|label| label == text))
        })
        .collect();
    assert_eq!(found.len(), 1, "{labels:?}");
    found[0]
}

/// The four figures of a ring belong together.
fn check_ring(figures: &[Figure], processes: &str, kib: &str) {
    let [raw, overhead, net, hop] = ["raw", "overhead", "net", "hop"].map(|part| {
        find_labelled(figures, &[("processes", processes), ("kib", kib), ("part", part)])
    });
    assert_eq!((raw.family, hop.family, raw.unit), (Family::Capacity, Family::Tail, hop.unit));
    let cost = median(overhead);
    assert_eq!(raw.samples.len(), net.samples.len());
    for (raw, net) in raw.samples.iter().zip(&net.samples) {
        assert!((raw - cost - net).abs() <= 1e-6 * raw, "{raw} less {cost} is not {net}");
    }
    let negative = net.samples.iter().filter(|net| **net < 0.0).count();
    let reported = net.flags.iter().any(|flag| *flag == format!("negative {negative}"));
    assert_eq!(reported, negative > 0, "{:?}", net.flags);
    if hop.dropped == 0 {
        // The token is always somewhere: its steps are all of the time.
        let sum: f64 = hop.samples.iter().sum();
        let whole = hop.duration_ns as f64;
        assert!((sum / whole - 1.0).abs() < 1e-4, "steps of {sum} ns in {whole} ns");
    }
}

#[test]
fn a_ring_has_raw_overhead_net_and_every_step() {
    let switch = Switch::new(&[2, 5, 96], &[0, 16], SHORT);
    let figures = run(&switch.instrument());
    assert_eq!(figures.len(), 2 * 3 * 4);
    for processes in ["2", "5", "96"] {
        for kib in ["0", "16"] {
            check_ring(&figures, processes, kib);
        }
    }
    assert!(figures.iter().all(|figure| figure.cpu.is_some() && figure.unit == Unit::Nanoseconds));
}

#[test]
fn rings_run_where_they_are_placed() {
    let mut switch = Switch::new(&[3], &[4], SHORT);
    switch.placement = SwitchPlacement::Balanced;
    let figures = run(&switch.instrument());
    check_ring(&figures, "3", "4");
    assert!(figures.iter().all(|figure| figure.cpu.is_none()));
    assert_eq!(figures[0].labels["placement"], "balanced");
    if own_pus().len() < 2 {
        eprintln!("skipped: two CPUs are needed for one each");
        return;
    }
    switch.processes = vec![2];
    switch.placement = SwitchPlacement::Unique;
    check_ring(&run(&switch.instrument()), "2", "4");
    switch.cpus = Some(CpuSet::single(a_pu()));
    let reported = refuse(&switch.instrument());
    assert!(reported.contains("unique needs a CPU for each of 2 processes"), "{reported}");
}

#[test]
fn a_ring_under_fifo_says_if_it_was_refused() {
    let mut switch = Switch::new(&[2], &[0], SHORT);
    switch.policy = SchedPolicy::Fifo(2);
    let figures = run(&switch.instrument());
    assert!(figures.iter().all(|figure| figure.labels["policy"] == "fifo:2"));
    let Some(setpriv) = find_program("setpriv") else {
        eprintln!("skipped: setpriv (util-linux) is not here to take the right away");
        return;
    };
    let program = program();
    let mut argv = vec!["--bounding-set=-sys_nice".to_owned(), program.pinload.path()];
    argv.extend(switch.instrument().argv());
    let output = capture(&setpriv, &argv, PATIENCE).unwrap();
    if !output.status.success() && output.stderr_text().starts_with("setpriv") {
        eprintln!("skipped: {}", output.stderr_text().trim());
        return;
    }
    let figures = figures::parse("switch", &output.stdout_text()).unwrap();
    assert!(
        figures
            .iter()
            .all(|figure: &Figure| figure.flags.iter().any(|flag| flag == "fifo-refused")),
        "{:?}",
        figures[0].flags
    );
}

#[test]
fn a_full_memory_of_steps_keeps_the_worst_and_counts_the_rest() {
    let mut instrument = Switch::new(&[2], &[0], SHORT).instrument();
    instrument.arguments.extend(["--max-samples".to_owned(), "4".to_owned()]);
    let figures = run(&instrument);
    let hop = find_labelled(&figures, &[("part", "hop")]);
    assert_eq!(hop.samples.len(), 6); // three of each process
    assert!(hop.dropped > 0, "{hop:?}");
}

#[test]
fn more_than_there_is_is_refused_with_a_hint() {
    let reported = refuse(&Switch::new(&[0], &[0], SHORT).instrument());
    assert!(
        reported.contains("--processes: \"0\" is not a list of integers from 2 to 512"),
        "{reported}"
    );
    let available = LiveHost::new().unwrap().read_text(&paths::meminfo()).unwrap();
    let available = available.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib: u64 = available.unwrap().trim().trim_end_matches(" kB").parse().unwrap();
    if kib >= 512 * 1_048_576 {
        eprintln!("skipped: this machine has room for half a TiB");
        return;
    }
    let reported = refuse(&Switch::new(&[2, 512], &[0, 1_048_576], SHORT).instrument());
    assert!(reported.contains("512 processes of 1048576 KiB need 524288 MiB, and"), "{reported}");
    assert!(reported.contains("use fewer or less"), "{reported}");
    let mut latency = OsLatency::new(SHORT);
    latency.rss_mib = 524_288;
    let reported = refuse(&latency.instrument());
    assert!(reported.contains("--rss-mib: 524288 MiB, and"), "{reported}");
}

#[test]
fn every_transport_has_a_figure() {
    let program = program();
    let folder = folder(&program);
    let mut bandwidth = IpcBandwidth::new(SHORT);
    bandwidth.file = Sizes { from: 4096, to: 8192, steps: 1 };
    bandwidth.directory = Some(folder.clone());
    for cpus in [None, Some(CpuSet::single(a_pu()))] {
        bandwidth.cpus = cpus;
        let figures = run(&bandwidth.instrument());
        let names: Vec<_> =
            figures.iter().map(|one| name(one).join(" ").trim().to_owned()).collect();
        let (between, of_file) = Transport::ALL.split_at(2);
        let by_size = ["4096", "8192"].into_iter().flat_map(|bytes| {
            of_file.iter().map(move |transport| format!("{} {bytes}", transport.name()))
        });
        let between = between.iter().map(|transport| transport.name().to_owned());
        assert_eq!(names, between.chain(by_size).collect::<Vec<_>>());
        for figure in &figures {
            assert_eq!((figure.unit, figure.family), (Unit::BytesPerSecond, Family::Capacity));
            assert!(figure.samples.iter().all(|rate| *rate > 0.0), "{figure:?}");
            assert_eq!(
                figure.labels.contains_key("filesystem"),
                figure.labels.contains_key("bytes")
            );
        }
    }
    assert_eq!(files::list(&folder).unwrap(), Vec::<String>::new(), "nothing is left behind");
}

fn name(one: &Figure) -> [String; 2] {
    [one.labels["transport"].clone(), one.labels.get("bytes").cloned().unwrap_or_default()]
}

#[test]
fn a_place_without_room_or_right_is_reported() {
    let mut bandwidth = IpcBandwidth::new(SHORT);
    bandwidth.directory = Some("/proc".to_owned());
    let reported = refuse(&bandwidth.instrument());
    assert!(reported.contains("--directory: cannot make a folder in /proc"), "{reported}");
    let mut latency = OsLatency::new(SHORT);
    latency.directory = Some("/none".to_owned());
    latency.operations = vec![Operation::Create0k];
    let reported = refuse(&latency.instrument());
    assert!(
        reported.contains("cannot make a folder in /none: No such file or directory"),
        "{reported}"
    );
    let program = program();
    let folder = folder(&program);
    let script = format!(
        "mount -t tmpfs -o size=1m none {folder} || exit 77\n\
         exec {} ipc-bandwidth --seconds 0.03 --directory {folder}",
        program.pinload.path()
    );
    let output = match in_own_mounts(&script) {
        Ok(output) => output,
        Err(why) => {
            eprintln!("skipped: {why}");
            return;
        }
    };
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let reported = output.stderr_text();
    assert!(
        reported.contains("cannot write 8192 KiB") && reported.contains("No space left"),
        "{reported}"
    );
}

/// Runs a script in a mount namespace of its own, or why that is not allowed.
fn in_own_mounts(script: &str) -> Result<Output, String> {
    let unshare = find_program("unshare").ok_or("unshare (util-linux) is not here")?;
    let output = capture(&unshare, ["-m", "/bin/sh", "-c", script], PATIENCE).unwrap();
    let reported = output.stderr_text();
    let refused = output.status.code() == Some(77) || reported.starts_with("unshare");
    if refused { Err(format!("no mounts of its own: {}", reported.trim())) } else { Ok(output) }
}

/// An empty folder.
fn folder(program: &Program) -> String {
    let folder = program.folder.path().join("files").to_str().unwrap().to_owned();
    files::make_dirs(&folder).unwrap();
    folder
}

#[test]
fn every_operation_has_a_figure_and_forks_report_their_parent() {
    let program = program();
    let folder = folder(&program);
    let mut latency = OsLatency::new(SHORT);
    latency.directory = Some(folder.clone());
    latency.cpus = Some(CpuSet::single(a_pu()));
    latency.descriptors = vec![1, 200];
    let figures = run(&latency.instrument());
    for operation in Operation::ALL {
        let name = operation.name();
        if matches!(operation, Operation::Select | Operation::Poll) {
            for count in ["1", "200"] {
                find_labelled(&figures, &[("operation", name), ("descriptors", count)]);
            }
        } else {
            find_labelled(&figures, &[("operation", name)]);
        }
    }
    assert_eq!(figures.len(), Operation::ALL.len() + 2);
    assert!(figures.iter().all(|figure| figure.samples.iter().all(|ns| *ns > 0.0)));
    assert_eq!(files::list(&folder).unwrap(), Vec::<String>::new(), "nothing is left behind");
    latency.operations = vec![Operation::ForkExit];
    latency.rss_mib = 40;
    let figures = run(&latency.instrument());
    let resident = figures[0].flags.iter().find_map(|flag| flag.strip_prefix("resident-kib "));
    assert!(resident.unwrap().parse::<u64>().unwrap() >= 40 * 1024, "{:?}", figures[0].flags);
    assert_eq!(figures[0].labels["rss-mib"], "40");
}

#[test]
fn scores_are_given_by_part_and_per_mhz_of_a_named_clock() {
    let figures = run(&Intmix { cpus: None, duration_ns: SHORT }.instrument());
    let (scores, per_mhz): (Vec<Figure>, Vec<Figure>) =
        figures.into_iter().partition(|figure| figure.unit == Unit::PerSecond);
    for cpu in own_pus().iter() {
        let parts: BTreeSet<_> = scores
            .iter()
            .filter(|figure| figure.cpu == Some(cpu.0))
            .map(|figure| figure.labels["part"].as_str())
            .collect();
        assert_eq!(parts, BTreeSet::from(["all", "crc", "list", "matrix", "states"]));
    }
    if per_mhz.is_empty() {
        eprintln!("skipped: this machine tells nothing of the clock of its CPUs");
    }
    for figure in &per_mhz {
        assert_eq!(figure.unit, Unit::PerSecondPerMhz);
        assert!(["tsc", "cpufreq"].contains(&figure.labels["clock"].as_str()), "{figure:?}");
        let reported = figure.flags.iter().find_map(|flag| flag.strip_prefix("clock ")).unwrap();
        let mhz: f64 = reported.trim_end_matches(" MHz").parse().unwrap();
        let score = scores
            .iter()
            .find(|one| one.cpu == figure.cpu && one.labels["part"] == figure.labels["part"])
            .unwrap();
        let ratio = score.samples[0] / figure.samples[0];
        assert!((ratio / mhz - 1.0).abs() < 1e-3, "{ratio} of {mhz} MHz");
    }
}

#[test]
fn a_request_for_cpus_that_stay_awake_is_made_or_refused_and_reported() {
    let program = program();
    let reported = program.file("told", 0);
    let benchmark = Benchmark::wakeup(SHORT).on(Cpus::These(CpuSet::single(a_pu()))).kept_awake();
    let words = benchmark.argv().join(" ");
    // Ordinary files in the place of the kernel's: the machine itself is not touched.
    let cases = [
        (format!("mount --bind {reported} /dev/cpu_dma_latency || exit 77"), "dma-latency-0"),
        ("mount -t tmpfs none /dev || exit 77".to_owned(), "dma-latency-refused"),
    ];
    for (place, flag) in cases {
        let script = format!("{place}\nexec {} {words}", program.pinload.path());
        let output = match in_own_mounts(&script) {
            Ok(output) => output,
            Err(why) => {
                eprintln!("skipped: {why}");
                return;
            }
        };
        let series = &benchmark.parse(&output.stdout_text()).unwrap()[0];
        assert!(series.flags.iter().any(|one| one == flag), "{:?}", series.flags);
    }
    assert_eq!(files::read_text(&reported).unwrap(), "\0\0\0\0", "0 µs, as a 32-bit number");
}

/// Output of a benchmark that is stopped for 30 ms repeatedly while it runs.
fn stopped_again_and_again(program: &Program, benchmark: &Benchmark) -> String {
    let mut child = program.start(&benchmark.argv().join(" "));
    let host = LiveHost::new().unwrap();
    assert!(eventually(|| crate::common::work_ns(&host, child.pid()) > 0));
    while child.try_wait().unwrap().is_none() {
        SystemClock.sleep_ns(20 * MS);
        // One that ends meanwhile needs no signal.
        if child.signal(Signaled::Stop).is_ok() {
            SystemClock.sleep_ns(30 * MS);
            child.signal(Signaled::Continue).unwrap();
        }
    }
    let mut output = String::new();
    std::io::Read::read_to_string(&mut child.stdout().unwrap(), &mut output).unwrap();
    assert!(child.wait().unwrap().success());
    output
}

#[test]
fn periods_that_a_stopped_sleeper_missed_are_distinguished() {
    let program = program();
    let benchmark = Benchmark::wakeup(400 * MS).on(Cpus::These(CpuSet::single(a_pu())));
    // On a crowded machine no stop may fall into the 400 ms of the measurement.
    let until = SystemClock.now_ns() + PATIENCE;
    let (output, series, apart) = loop {
        let output = stopped_again_and_again(&program, &benchmark);
        let series = benchmark.parse(&output).unwrap().remove(0);
        let apart = OpenLoop::new(&series, 1_000).unwrap();
        assert_eq!(apart.every_period.len(), 400, "the schedule never shifts");
        assert_eq!(apart.woken.len() + apart.skipped, 400);
        if apart.skipped >= 28 {
            break (output, series, apart);
        }
        assert!(SystemClock.now_ns() < until, "{} periods skipped", apart.skipped);
    };
    assert!(output.contains(&format!("\"skipped\":{},", apart.skipped)), "the ruler counts alike");
    let [raw, every] = apart.figures(&series);
    assert!(every.samples.iter().sum::<f64>() > raw.samples.iter().sum::<f64>());
}

#[test]
fn all_ends_when_the_instrument_is_killed_and_its_files_go() {
    let program = program();
    let host = LiveHost::new().unwrap();
    let folder = folder(&program);
    for (words, wanted) in [
        ("switch --seconds 600 --cpus all --processes 3 --placement balanced".to_owned(), 3),
        // The writer; the process that removes the folder.
        ("ipc-bandwidth --seconds 600 --transports pipe".to_owned(), 1),
        (format!("ipc-bandwidth --seconds 600 --transports file --directory {folder}"), 1),
        (format!("os-latency --seconds 600 --operations create-10k --directory {folder}"), 1),
    ] {
        let mut child = program.start(&words);
        assert!(eventually(|| children(&host, child.pid()).len() == wanted), "{words}");
        let mut all = children(&host, child.pid());
        all.extend(threads_of(&host, child.pid()).unwrap());
        child.kill().unwrap();
        assert!(
            eventually(|| all.iter().all(|task| !task_alive(&host, *task).unwrap())
                && files::list(&folder).unwrap().is_empty()),
            "{words}"
        );
    }
}

#[test]
fn a_process_of_a_ring_that_is_killed_fails_it() {
    let program = program();
    let host = LiveHost::new().unwrap();
    let mut child = program.start("switch --seconds 600 --cpus all --processes 5");
    assert!(eventually(|| children(&host, child.pid()).len() == 5));
    let members = children(&host, child.pid());
    signal(members[2].tid, Signaled::Kill).unwrap();
    let status = child.wait_for(&SystemClock, PATIENCE).unwrap();
    let text = crate::common::stderr_of(&mut child);
    assert_eq!(status.and_then(|status| status.code()), Some(1), "{text}");
    assert!(text.contains("ended by signal 9"), "{text}");
    assert!(eventually(|| members.iter().all(|task| !task_alive(&host, *task).unwrap())));
}
