//! The memory instruments on the host: what they prove, label and refuse, never how fast it is.

use std::collections::BTreeSet;

use crate::common::{MS, PATIENCE, Program, a_pu, own_pus, program};
use pinfold_host::process::{Output, capture};
use pinfold_host::{Host as _, LiveHost, paths};
use pinfold_model::{Family, Figure, NodeId, Unit};
use pinfold_probe::cpu_speed::SpeedBenchmark as _;
use pinfold_probe::figures::{Instrument, parse};
use pinfold_probe::memory::{
    Bandwidth, Chase, Interferer, InterfererOperation, Loads, Loop64, Operation, Order, Pages,
    Place, Sizes, StreamVariant, Width, Windows,
};

const WINDOWS: Windows = Windows { count: 30, length_us: 100 };

/// Its figures; `None`, after a line that says so, if other work leaves it no window.
fn run(program: &Program, instrument: &Instrument) -> Option<Vec<Figure>> {
    let output = capture(&program.pinload.path(), instrument.argv(), 2 * PATIENCE).unwrap();
    let text = output.stderr_text();
    if text.contains("too busy to measure") {
        println!("skipped: {}", text.trim());
        return None;
    }
    assert!(output.status.success(), "{instrument:?}: {text}");
    let figures = instrument.parse(&output.stdout_text()).unwrap();
    // In a short window a thread of traffic may not have had its turn.
    let samples = figures
        .iter()
        .filter(|figure: &&Figure| {
            figure.family == Family::Capacity && figure.probe != "chase-traffic"
        })
        .flat_map(|figure| &figure.samples);
    assert!(samples.copied().all(|sample| sample > 0.0));
    Some(figures)
}

fn words(program: &Program, arguments: &str) -> Output {
    capture(&program.pinload.path(), arguments.split(' '), PATIENCE).unwrap()
}

fn labels<'f>(figures: &'f [Figure], name: &str) -> Vec<&'f str> {
    figures.iter().map(|figure| figure.labels[name].as_str()).collect()
}

const OPERATIONS: [Operation; 10] = [
    Operation::Read,
    Operation::Write,
    Operation::Copy,
    Operation::WriteNonTemporal,
    Operation::CopyNonTemporal,
    Operation::ReadPartial,
    Operation::WritePartial,
    Operation::ModifyPartial,
    Operation::CopyPartial,
    Operation::Fill,
];

/// Each operation proves what it did, or `pinload` fails.
#[test]
fn every_operation_of_every_width_does_what_it_says() {
    let program = program();
    let mut ran = BTreeSet::new();
    for width in
        [Width::Scalar, Width::Bits128, Width::Avx2, Width::Avx512, Width::Neon, Width::Rvv]
    {
        let operations: Vec<Operation> = match width {
            // Arm has them for vectors only, RISC-V has none.
            Width::Rvv => [Operation::Read, Operation::Write, Operation::Copy].to_vec(),
            Width::Scalar if !cfg!(target_arch = "x86_64") => OPERATIONS[5..].to_vec(),
            Width::Auto | Width::Scalar | Width::Bits128 => OPERATIONS.to_vec(),
            Width::Avx2 | Width::Avx512 | Width::Neon => OPERATIONS.to_vec(),
        };
        let bandwidth = Bandwidth {
            sizes: Sizes { from: 4096, to: 24_576, steps: 2 },
            operations: operations.clone(),
            width,
            place: Place { pu: Some(a_pu()), ..Place::default() },
            windows: WINDOWS,
        };
        let instrument = bandwidth.instrument();
        let output = capture(&program.pinload.path(), instrument.argv(), 2 * PATIENCE).unwrap();
        let text = output.stderr_text();
        if output.status.code() == Some(2) {
            // Another architecture's, or this CPU is older.
            let reported =
                text.contains("cannot run here: the CPU") || text.contains("not a width of");
            assert!(reported, "{text}");
            assert_ne!(width, Width::Scalar, "{text}");
            continue;
        }
        let Some(figures) = run(&program, &instrument) else { return };
        assert_eq!(figures.len(), 6 * operations.len(), "4, 6, 8, 12, 16 and 24 KiB");
        assert!(figures.iter().all(|figure| figure.unit == Unit::BytesPerSecond
            && figure.cpu == Some(a_pu().0)
            && figure.labels["pages"] == "4k"));
        let names: Vec<&str> = operations.iter().map(|operation| operation.name()).collect();
        assert_eq!(labels(&figures[..operations.len()], "operation"), names);
        assert_eq!(figures[0].labels["width"], width.name());
        ran.insert(width.name());
    }
    assert!(
        ran.contains("scalar") && ran.len() >= if cfg!(target_arch = "riscv64") { 1 } else { 2 }
    );
}

#[test]
fn blocks_are_marked_with_the_cache_that_holds_them() {
    let program = program();
    let bandwidth = Bandwidth {
        sizes: Sizes { from: 4096, to: 8 << 20, steps: 1 },
        operations: vec![Operation::Read],
        width: Width::Auto,
        place: Place { pu: Some(a_pu()), ..Place::default() },
        windows: WINDOWS,
    };
    let Some(figures) = run(&program, &bandwidth.instrument()) else { return };
    let sizes: Vec<u64> = (0..12).map(|doubling| 4096 << doubling).collect();
    let bytes: Vec<u64> =
        labels(&figures, "bytes").iter().map(|text| text.parse().unwrap()).collect();
    assert_eq!(bytes, sizes);
    // "L1d 32K, L2 1024K, L3 32768K"
    let caches = &figures[0].labels["caches"];
    if caches == "unknown" {
        println!("skipped: sysfs tells no cache sizes here");
        return;
    }
    let caches: Vec<(&str, u64)> = caches
        .split(", ")
        .map(|cache| cache.split_once(' ').unwrap())
        .map(|(name, size)| (name, size.trim_end_matches('K').parse::<u64>().unwrap() * 1024))
        .collect();
    for figure in &figures {
        let bytes: u64 = figure.labels["bytes"].parse().unwrap();
        let holds = caches.iter().find(|(_, size)| bytes <= *size);
        let expected = holds.map_or("memory", |(name, _)| name);
        assert_eq!(figure.labels["level"], expected, "{bytes} of {caches:?}");
    }
    let second = caches.get(1).unwrap_or(&caches[0]).1;
    let reported = format!("best of 4 up to {}K", second / 1024);
    assert!(figures.iter().all(|figure| figure.labels["page_sets"] == reported), "{reported}");
}

#[test]
fn the_loops_of_stream_are_proven_and_labelled_as_a_variant() {
    let program = program();
    let stream = StreamVariant { array_mib: Some(3), windows: WINDOWS, ..StreamVariant::default() };
    let Some(figures) = run(&program, &stream.instrument()) else { return };
    let has_nt = !cfg!(target_arch = "riscv64");
    assert_eq!(figures.len(), if has_nt { 8 } else { 4 });
    assert!(figures.iter().all(|figure| is_flagged(figure) != has_nt));
    assert!(figures.iter().all(|figure| figure.labels["kind"] == "variant of STREAM"));
    assert_eq!(labels(&figures[..4], "loop"), ["copy", "scale", "add", "triad"]);
    assert!(figures.iter().all(|figure| figure.labels["array_bytes"] == (3 << 20).to_string()));
    // Arrays of 3 MiB are too small for any machine with a third cache, and that is said.
    let small = figures[0].flags.iter().any(|flag| flag.contains("last-caches"));
    assert!(small || figures[0].labels["caches"] == "unknown", "{:?}", figures[0].flags);
}

fn is_flagged(figure: &Figure) -> bool {
    figure.flags.iter().any(|flag| flag.starts_with("no-non-temporal"))
}

#[test]
fn a_chase_meets_every_line_alone_and_next_to_copies() {
    let program = program();
    let mut chase = Chase {
        sizes: Sizes { from: 1024, to: 256 << 10, steps: 2 },
        order: Order::Both,
        loads: None,
        place: Place { pages: Pages::Huge, ..Place::default() },
        windows: WINDOWS,
    };
    let Some(figures) = run(&program, &chase.instrument()) else { return };
    assert_eq!(figures.len(), 2 * 17);
    assert!(figures.iter().all(|figure| figure.unit == Unit::Nanoseconds));
    let wished = figures[0].labels["pages"] == "huge";
    let reported = figures[0].flags.iter().any(|flag| flag.starts_with("huge-pages"));
    assert!(wished || reported, "{:?}", figures[0]);

    let loads = Loads {
        threads: 2,
        pus: own_pus().iter().collect(),
        node: None,
        mib: 4,
        delays_ns: vec![0, 100_000],
    };
    chase.loads = Some(loads);
    chase.sizes = Sizes::one(1 << 20);
    chase.order = Order::Random;
    let Some(figures) = run(&program, &chase.instrument()) else { return };
    let probes: Vec<&str> = figures.iter().map(|figure| figure.probe.as_str()).collect();
    assert_eq!(probes, ["chase", "chase-traffic", "chase", "chase-traffic"]);
    for pair in figures.chunks(2) {
        assert_eq!(pair[0].labels, pair[1].labels);
        assert_eq!(pair[0].samples.len(), pair[1].samples.len());
    }
    assert_eq!(labels(&figures, "delay_ns"), ["0", "0", "100000", "100000"]);
}

#[test]
fn the_64_mb_loop_keeps_every_pass_and_lists_the_disturbed_ones() {
    let program = program();
    let interferer =
        Interferer { operation: InterfererOperation::Copy, pu: Some(a_pu()), node: None };
    for fifo in [None, Some(2)] {
        let loop64 = Loop64 {
            duration_ns: 200 * MS,
            fifo,
            interferer: Some(interferer),
            place: Place { pu: Some(a_pu()), ..Place::default() },
        };
        let figures = run(&program, &loop64.instrument()).unwrap();
        assert_eq!(figures.len(), 5, "passes and disturbed passes of both, and the traffic");
        for half in [&figures[..2], &figures[2..4]] {
            let passes = half[0].samples.len() as f64;
            assert!(passes > 0.0 && half[0].samples.iter().all(|sample| *sample > 0.0));
            assert!(half[1].samples.iter().all(|index| *index < passes));
            assert!(half[0].flags.contains(&"interrupts-not-masked".to_owned()));
            assert_eq!((half[0].family, half[1].family), (Family::Tail, Family::Place));
            let last = half[0].labels["caches"].rsplit(' ').next().unwrap_or_default();
            let last: u64 = last.trim_end_matches('K').parse().unwrap_or(0);
            let flagged = half[0].flags.iter().any(|flag| flag.starts_with("fits-in-last-cache"));
            assert_eq!(flagged, last >= 64 * 1024, "{last} KiB, {:?}", half[0].flags);
        }
        assert_eq!(labels(&figures, "interferer"), ["none", "none", "copy", "copy", "copy"]);
        let policy = if fifo.is_some() { "fifo:2 half of the time" } else { "other" };
        assert_eq!(figures[0].labels["policy"], policy);
    }
}

/// Each pass checks the sum of its words, which it has only if it met each page once.
#[test]
fn the_64_mb_loop_has_independent_and_dependent_accesses() {
    let program = program();
    for accesses in ["independent", "dependent"] {
        let place = Place { pu: Some(a_pu()), ..Place::default() };
        let loop64 = Loop64 { duration_ns: 100 * MS, fifo: None, interferer: None, place };
        let mut instrument = loop64.instrument();
        instrument.arguments.extend(["--accesses", accesses].map(str::to_owned));
        let figures = run(&program, &instrument).unwrap();
        assert_eq!(figures.len(), 2);
        assert_eq!(figures[0].labels["accesses"], accesses);
        assert!(figures[0].samples.iter().all(|sample| *sample > 0.0));
    }
}

#[test]
fn memory_lies_on_the_node_that_was_asked_for() {
    let program = program();
    let host = LiveHost::new().unwrap();
    let online = host.read_text(&paths::node_state("has_memory")).unwrap_or_default();
    let Some(node) = online.trim().split(['-', ',']).next_back().and_then(|last| last.parse().ok())
    else {
        println!("skipped: this kernel has no NUMA nodes");
        return;
    };
    let bandwidth = Bandwidth {
        sizes: Sizes::one(4096),
        operations: vec![Operation::Read],
        width: Width::Auto,
        place: Place { pu: Some(a_pu()), node: Some(NodeId(node)), pages: Pages::Small },
        windows: WINDOWS,
    };
    let Some(figures) = run(&program, &bandwidth.instrument()) else { return };
    assert_eq!(figures[0].labels["node"], node.to_string());
    assert!(["local", "remote"].contains(&figures[0].labels["placement"].as_str()));
}

#[test]
fn more_than_a_gibibyte_is_measured_where_there_is_so_much() {
    let program = program();
    let size = "1073742848"; // 1 GiB and 1 KiB
    let output = words(
        &program,
        &format!("bandwidth --from {size} --to 1025M --steps 1 --operations read --windows 30"),
    );
    let text = output.stderr_text();
    if text.contains("MiB are free") || text.contains("too busy to measure") {
        println!("skipped: {}", text.trim());
        return;
    }
    assert!(output.status.success(), "{text}");
    let figures = parse("bandwidth", &output.stdout_text()).unwrap();
    assert_eq!(labels(&figures, "bytes"), [size]);
}

#[test]
fn what_the_host_cannot_do_is_refused_with_the_reason() {
    let program = program();
    let foreign = if cfg!(target_arch = "aarch64") { "avx2" } else { "neon" };
    let not_here = "is not a width of this architecture; the widest here is ";
    check(&format!("bandwidth --width {foreign}"), 2, not_here, &program);
    check(&format!("stream-variant --width {foreign}"), 2, not_here, &program);
    let cpu = a_pu();
    let no_node = "is not a node that has memory; nodes here: ";
    check("bandwidth --node 1023", 2, no_node, &program);
    check(&format!("chase --loads 1 --load-node 1023 --load-cpus {cpu}"), 2, no_node, &program);
    let beside = format!("--interferer read --interferer-cpu {cpu} --interferer-node x");
    check(&format!("loop64 --seconds 1 {beside}"), 2, no_node, &program);
    // 4 TiB.
    check("bandwidth --to 4096G", 1, "--to: 4194306 MiB are wanted, ", &program);
    check("chase --to 1024G", 1, "MiB are free", &program);
    check(
        "stream-variant --array-mib 1048576",
        1,
        "MiB are free; ask for less or free some",
        &program,
    );
}

fn check(arguments: &str, code: i32, expected: &str, program: &Program) {
    let output = words(program, arguments);
    let text = output.stderr_text();
    assert_eq!(output.status.code(), Some(code), "{arguments}: {text}");
    assert!(text.contains(expected), "{arguments}: {text} should hold {expected:?}");
    assert_eq!(output.stdout, b"", "{arguments}");
}
