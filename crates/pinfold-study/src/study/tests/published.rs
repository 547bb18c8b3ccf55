//! The rules of the statements with the sources' own numbers, which must agree, and with contrary
//! numbers, which must differ.
//!
//! Where a figure of a source is a picture and its text only says "proportional", the number is
//! that of the law.

use std::collections::BTreeMap;

use pinfold_study::study::expr::{Argument, Expr, ExprError, Scope, Value};
use pinfold_study::study::{Claim, Study, from_toml};

const CPU_EMULATION: &str = include_str!("../../../../../studies/cpu-emulation.toml");
const KVM_OVERHEAD: &str = include_str!("../../../../../studies/kvm-overhead.toml");
const VM_LATENCY: &str = include_str!("../../../../../studies/vm-latency.toml");
const QEMU_SCALING: &str = include_str!("../../../../../studies/qemu-scaling.toml");
const NUMA: &str = include_str!("../../../../../studies/numa-interference.toml");

/// Answers the functions of a rule from a table: `value(gap.max, strategy=balanced)`, with the
/// arguments in alphabetical order.
struct Numbers<'a> {
    study: &'a Study,
    machine: &'a [(&'static str, f64)],
    number: &'a dyn Fn(&str, &Picks) -> Option<f64>,
}

/// The figure, and the levels that a function asks for.
struct Picks {
    figure: String,
    levels: BTreeMap<String, String>,
}

impl Picks {
    fn level(&self, name: &str) -> &str {
        self.levels.get(name).map_or("", String::as_str)
    }

    fn speed(&self) -> f64 {
        self.level("speed").parse().unwrap()
    }
}

impl Scope for Numbers<'_> {
    fn value(&self, name: &str) -> Option<Value> {
        if name == "host_cpufreq" {
            // The processors of Buchert 2011 have 11 frequencies.
            return Some(Value::Truth(true));
        }
        let of_machine = self.machine.iter().find(|(known, _)| *known == name);
        let value = of_machine.map(|(_, number)| Value::Number(*number));
        value.or_else(|| self.study.values.get(name).map(|level| level.value.clone()))
    }

    fn call(&self, function: &str, arguments: &[Argument]) -> Option<Result<Value, ExprError>> {
        let (first, rest) = arguments.split_first()?;
        let levels = rest.iter().map(|pick| {
            let value = pick.value.evaluate(self).unwrap().to_string();
            (pick.name.clone().unwrap(), value)
        });
        let figure = first.value.as_name().unwrap().to_owned();
        let picks = Picks { figure, levels: levels.collect() };
        let number = (self.number)(function, &picks);
        Some(number.map(Value::Number).ok_or_else(|| {
            let Picks { figure, levels } = &picks;
            ExprError::new(0, format!("no number for {function}({figure}, {levels:?})"))
        }))
    }
}

fn claim<'s>(study: &'s Study, source: &str) -> &'s Claim {
    let mut found = study.claims.iter().filter(|claim| claim.source.starts_with(source));
    let claim = found.next().unwrap_or_else(|| panic!("no statement {source:?}"));
    assert!(found.next().is_none() && !claim.is_own, "{source}");
    claim
}

fn decide(claim: &Claim, scope: &dyn Scope) -> bool {
    let rule: &Expr = &claim.agree.expr;
    rule.decide(scope).unwrap_or_else(|error| panic!("{}: {}", claim.source, error.why)).unwrap()
}

/// Mean and longest stall of each load state.
type Stalls = [(f64, f64); 4];

/// Stalls (mean and longest in µs) of Lindroth 2017, in the states host/guest idle/idle,
/// loaded/idle, idle/loaded, loaded/loaded.
const STALLS: [(&str, &str, Stalls); 5] = [
    (
        "low-latency",
        "usual",
        [(17.2778, 70.0), (21.4856, 72.0), (19.7144, 103.0), (21.8189, 139.0)],
    ),
    (
        "low-latency-rt",
        "usual",
        [(17.6511, 61.0), (20.24, 57.0), (18.9244, 108.0), (20.4228, 122.0)],
    ),
    (
        "balanced-shared",
        "usual",
        [(17.4906, 89.0), (22.7317, 95.0), (82.3694, 9_458.0), (141.2461, 20_757.0)],
    ),
    ("balanced", "apart", [(18.3933, 106.0), (20.2006, 77.0), (23.1694, 110.0), (23.2572, 120.0)]),
    (
        "max-performance",
        "usual",
        [(185.42, 6_311.0), (3835.9333, 97_234.0), (1891.43, 31_015.0), (8459.255, 51_665.0)],
    ),
];
/// His reads: the longest in µs, and reads per second.
const READS: [(&str, &str, f64, f64); 6] = [
    ("low-latency", "usual", 1_306.0, 18_454.0),
    ("balanced-shared", "usual", 7_348.0, 15_715.0),
    ("balanced", "usual", 46_852.0, 15_893.0),
    ("balanced", "real-time", 2_640.0, 18_140.0),
    ("balanced", "apart", 1_192.0, 17_377.0),
    ("max-performance", "usual", 112_484.0, 10_845.0),
];

fn lindroth(function: &str, picks: &Picks) -> Option<f64> {
    assert_eq!(function, "value");
    let (strategy, emulator) = (picks.level("strategy"), picks.level("emulator"));
    // Three vCPUs in both forms of low latency, six in the balanced ones, eight in the last.
    let vcpus = match strategy {
        "low-latency" | "low-latency-rt" => "3",
        "balanced" | "balanced-shared" => "6",
        _ => "8",
    };
    assert_eq!(picks.level("n_vcpu"), vcpus, "{strategy}");
    let (host, guest) = (picks.level("host_load"), picks.level("guest_load"));
    if guest == "loaded-no-disk" {
        let mean = picks.figure == "gap.mean" && strategy == "balanced-shared";
        return (mean && host == "loaded").then_some(57472.8);
    }
    let state = usize::from(host == "loaded") + 2 * usize::from(guest == "loaded");
    let stalls = STALLS.iter().find(|row| (row.0, row.1) == (strategy, emulator));
    let reads = READS.iter().find(|row| (row.0, row.1) == (strategy, emulator));
    match picks.figure.as_str() {
        "gap.mean" => Some(stalls?.2[state].0 * 1e3),
        "gap.max" => Some(stalls?.2[state].1 * 1e3),
        "io.max" => Some(reads?.2 * 1e3),
        "iops" => Some(reads?.3),
        _ => None,
    }
}

const I7_4790K: &[(&str, f64)] = &[("host_cores", 4.0), ("host_pus", 8.0)];

/// Each rule must differ when the layouts have swapped their numbers.
#[test]
fn the_numbers_of_lindroth_pass_their_rules() {
    let study = from_toml(VM_LATENCY).unwrap();
    check(&study, "Balanced with the emulator on the vCPUs' CPUs", &constant);
    check(&study, "An emulator on the host's CPUs", &constant);
    check(&study, "An emulator on its own sibling costs", &constant);
    check(&study, "max-performance is terrible", &constant);
    check(&study, "Only low latency", &constant);
    // The loaded host doubles everything.
    check(&study, "Low latency: the host's load", &|_: &str, picks: &Picks| {
        Some(if picks.level("host_load") == "loaded" { 2e6 } else { 1e6 })
    });
    // Real time, or the split, doubles everything.
    check(&study, "Real-time priority changes little", &rest);
    check(&study, "The stalls of balanced", &rest);
    assert_eq!(study.claims.iter().filter(|claim| !claim.is_own).count(), 8);
}

fn check(study: &Study, source: &str, contrary: &dyn Fn(&str, &Picks) -> Option<f64>) {
    let claim = claim(study, source);
    assert!(decide(claim, &Numbers { study, machine: I7_4790K, number: &lindroth }), "{source}");
    assert!(
        !decide(claim, &Numbers { study, machine: I7_4790K, number: contrary }),
        "contrary: {source}"
    );
}

/// No layout differs from another in any state.
fn constant(_: &str, _: &Picks) -> Option<f64> {
    Some(2e6)
}

fn rest(_: &str, picks: &Picks) -> Option<f64> {
    let is_plain = picks.level("strategy") == "low-latency";
    Some(if is_plain { 1e6 } else { 2e6 })
}

#[test]
fn the_numbers_of_kuehn_and_baum_pass_their_rules() {
    fn check(study: &Study, source: &str, numbers: [f64; 2], contrary: [f64; 2]) {
        let claim = claim(study, source);
        let of = |[near, far]: [f64; 2]| {
            move |_: &str, picks: &Picks| {
                let is_far =
                    picks.level("memory_node") == "far" || picks.level("neighbour") == "other-node";
                Some(if is_far { far } else { near })
            }
        };
        let decided = |numbers: [f64; 2]| {
            decide(claim, &Numbers { study, machine: &[], number: &of(numbers) })
        };
        assert!(decided(numbers) && !decided(contrary), "{source}");
    }

    let study = from_toml(NUMA).unwrap();
    // 5800 µs next to a loaded guest on the node, 1140 µs alone or next to one on another node.
    check(&study, "An operating system on the same node", [5_800.0 / 1_140.0, 1.0], [1.02, 1.0]);
    check(&study, "An operating system on another node", [5_800.0 / 1_140.0, 1.0], [5.0, 4.0]);
    check(&study, "Beyond the last cache", [4.7e9, 3.6e9], [4.7e9, 4.6e9]);
    // The source's steps are a picture; the test has their order.
    let steps = claim(&study, "Bandwidth depends on the size");
    let decided = |smallest: f64| {
        decide(steps, &Numbers { study: &study, machine: &[], number: &number(smallest) })
    };
    assert!(decided(4e10) && !decided(4.7e9));
    assert_eq!(study.claims.iter().filter(|claim| !claim.is_own).count(), 4);
}

fn number(smallest: f64) -> impl Fn(&str, &Picks) -> Option<f64> {
    move |_: &str, picks: &Picks| {
        Some(if picks.level("bytes") == "16384" { smallest } else { 4.7e9 })
    }
}

/// What Buchert 2011 reports: the share of full speed at a speed, with five tasks.
fn buchert(picks: &Picks, speed: f64) -> f64 {
    let cores: f64 = picks.level("cores").parse().unwrap();
    let (method, workload) = (picks.level("method"), picks.level("workload"));
    let is_group = workload == "processes" || workload == "threads";
    match (method, workload) {
        ("lim", "sleep") => speed + 0.25,
        ("lim", "processes") if cores > 5.0 => speed,
        // Faster than the unmodified machine, which puts two of them on one of the four cores.
        ("lim", "processes") if cores == 4.0 && speed > 0.8 => 1.1,
        ("lim", "processes") => (5.0 * speed / cores).min(1.0),
        ("gov", "memory") => 0.8,
        ("lim", "threads") => speed / cores,
        ("lim" | "fracas", "udp") if speed > 0.7 => 0.95,
        ("fracas", _) if is_group => (speed / cores) / (speed / cores + 1.0 - speed),
        ("hogs", "cpu") if picks.level("variant") == "unsynchronised" => speed + 0.2,
        _ => speed,
    }
}

/// How its results vary, in the order that its text states.
fn variation_of_buchert(picks: &Picks) -> f64 {
    match (picks.level("workload"), picks.level("method")) {
        ("cpu", "fracas") | ("sleep", "gov") => 0.001,
        (_, "hogs") => 0.002,
        (_, "lim") => 0.02,
        _ => 0.003,
    }
}

fn answer(of: fn(&Picks, f64) -> f64, function: &str, picks: &Picks) -> Option<f64> {
    match function {
        "ratio" => Some(of(picks, picks.speed())),
        "smallest" | "largest" | "spread" => {
            let mut picks = Picks { figure: picks.figure.clone(), levels: picks.levels.clone() };
            if picks.level("cores").is_empty() {
                picks.levels.insert("cores".to_owned(), "2".to_owned());
            }
            let errors = [0.25, 0.5, 0.75].map(|speed| (of(&picks, speed) - speed) * 100.0);
            let (low, high) = (
                errors.iter().copied().fold(f64::INFINITY, f64::min),
                errors.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            );
            Some(match function {
                "smallest" => low,
                "largest" => high,
                _ if picks.level("method") == "lim" => 100.0,
                _ => high - low,
            })
        }
        _ => None,
    }
}

/// Fracas as the text has it: n times too slow on n cores.
fn fracas_in_words(function: &str, picks: &Picks) -> Option<f64> {
    answer(|picks, speed| speed / picks.level("cores").parse::<f64>().unwrap(), function, picks)
}

#[test]
fn the_numbers_of_buchert_pass_their_rules() {
    fn check(study: &Study, source: &str, contrary: fn(&Picks, f64) -> f64) {
        let claim = claim(study, source);
        let decided = |of: fn(&Picks, f64) -> f64| {
            decide(
                claim,
                &Numbers {
                    study,
                    machine: &[],
                    number: &|function: &str, picks: &Picks| answer(of, function, picks),
                },
            )
        };
        assert!(decided(buchert), "{source}");
        assert!(!decided(contrary), "contrary: {source}");
    }

    let study = from_toml(CPU_EMULATION).unwrap();
    check(&study, "CPU-Hogs slows one core", too_fast);
    check(&study, "Fracas slows one core", too_fast);
    check(&study, "CPU-Gov slows one core", too_fast);
    check(&study, "CPU-Hogs is proportional", too_fast);
    check(&study, "CPU-Gov is proportional", too_fast);
    check(&study, "A single task on several cores", too_fast);
    check(&study, "CPU-Lim is accurate with threads on one core", too_fast);
    check(&study, "The speed of memory is nearly linear", |_, speed| speed + 0.2);
    check(&study, "Without the barrier", right);
    check(&study, "Fracas fails with several tasks", right);
    check(&study, "CPU-Lim uses the CPU time", right);
    check(&study, "CPU-Lim slows k processes", right);
    check(&study, "CPU-Lim slows the threads", right);
    check(&study, "The speed of sending datagrams", right);
    check(&study, "CPU-Lim is accurate with processes that have a core each", too_fast);
    check(&study, "Five processes on four cores are faster", |_, _| 0.99);
    check(&study, "The speed of memory under CPU-Gov", right);
    let fracas = claim(&study, "Fracas fails with several tasks");
    let words = Numbers { study: &study, machine: &[], number: &fracas_in_words };
    assert!(decide(fracas, &words));
    let improvement = claim(&study, "The new methods");
    let decided = |lim: f64| {
        decide(improvement, &Numbers { study: &study, machine: &[], number: &answer_of(lim) })
    };
    assert!(decided(80.0) && !decided(2.0));
    // The statements on how results vary are the next test's.
    assert_eq!(study.claims.iter().filter(|claim| !claim.is_own).count(), 15 + 3 + 4);
}

fn answer_of(lim: f64) -> impl Fn(&str, &Picks) -> Option<f64> {
    move |_: &str, picks: &Picks| Some(if picks.level("method") == "lim" { lim } else { 4.0 })
}

fn too_fast(_: &Picks, speed: f64) -> f64 {
    speed + 0.1
}

fn right(_: &Picks, speed: f64) -> f64 {
    speed
}

/// Each must differ when another method is the steady one.
#[test]
fn the_variations_of_buchert_pass_their_rules() {
    fn check(study: &Study, source: &str, steady: &str) {
        let claim = claim(study, source);
        let decided = |of: &dyn Fn(&Picks) -> f64| {
            decide(
                claim,
                &Numbers {
                    study,
                    machine: &[],
                    number: &|function: &str, picks: &Picks| {
                        (function == "variation").then(|| of(picks))
                    },
                },
            )
        };
        assert!(decided(&variation_of_buchert), "{source}");
        assert!(
            !decided(&|picks: &Picks| if picks.level("method") == steady { 0.001 } else { 0.002 }),
            "contrary: {source}"
        );
    }

    let study = from_toml(CPU_EMULATION).unwrap();
    check(&study, "On one core the results of Fracas vary least", "lim");
    check(&study, "With a sleep in between the results of CPU-Gov", "hogs");
    check(&study, "On several cores the results of CPU-Hogs", "gov");
    check(&study, "The speed of memory under CPU-Lim fluctuates", "fracas");
}

/// The exit table of Crăciun 2016 (10 s): exits, their mean and their sum in cycles.
const EXITS: [(&str, f64, f64, f64); 5] = [
    ("DABT_IO_MEM_IPI", 157_225.0, 13_385.0, 2_104_548_054.0),
    ("IRQ", 159_395.0, 6_792.0, 1_082_746_418.0),
    ("TIMEINGUEST", 316_620.0, 47_376.0, 15_000_203_563.0),
    ("DESCHEDULED: preempted", 2.0, 7_036.0, 14_072.0),
    ("DESCHEDULED: asleep", 0.0, 0.0, 0.0),
];

/// Its charts are pictures: where a rule is about one, the number is what the conclusion says.
fn craciun(function: &str, picks: &Picks) -> Option<f64> {
    match (function, picks.figure.as_str(), picks.level("workload")) {
        ("value", "exits", "switch-unique") => {
            let row = EXITS.iter().find(|row| row.0 == picks.level("type"))?;
            match picks.level("statistic") {
                "per-second" => Some(row.1 / 10.0),
                "mean" => Some(row.2),
                "share" => Some(row.3 / EXITS.iter().map(|row| row.3).sum::<f64>()),
                _ => None,
            }
        }
        ("value", "exits", "compute") => {
            Some(if picks.level("statistic") == "share" { 0.999 } else { 200.0 })
        }
        ("value", "latency" | "speed", _) | ("ratio", ..) => Some(1.0),
        _ => None,
    }
}

#[test]
fn the_numbers_of_craciun_pass_their_rules() {
    fn check(study: &Study, source: &str, contrary: &dyn Fn(&str, &Picks) -> Option<f64>) {
        let claim = claim(study, source);
        assert!(decide(claim, &Numbers { study, machine: &[], number: &craciun }), "{source}");
        assert!(
            !decide(claim, &Numbers { study, machine: &[], number: contrary }),
            "contrary: {source}"
        );
    }

    let study = from_toml(KVM_OVERHEAD).unwrap();
    check(&study, "The costs come from exits", &answer_others);
    check(&study, "Most of it is the emulation", &answer_others);
    check(&study, "The exit of an interprocessor interrupt", &answer_others);
    check(&study, "Each interprocessor interrupt comes", &answer_others);
    check(&study, "A program that only computes causes few exits", &answer_others);
    check(&study, "A program that only computes runs", &|_, _| Some(0.8));
    check(&study, "Memory-related tests", &slow);
    check(&study, "The number of page-table levels", &slow);
    assert_eq!(study.claims.iter().filter(|claim| !claim.is_own).count(), 8);
}

/// The guest has half of the time, interrupts of both kinds a tenth each.
fn answer_others(_: &str, picks: &Picks) -> Option<f64> {
    match (picks.level("type"), picks.level("statistic")) {
        ("TIMEINGUEST", "share") => Some(0.5),
        ("DABT_IO_MEM_IPI" | "IRQ", "share") => Some(0.1),
        ("DABT_IO_MEM_IPI", "per-second") => Some(1e3),
        ("IRQ", "mean" | "per-second") => Some(1e4),
        ("DABT_IO_MEM_IPI", "mean") => Some(5e3),
        _ => Some(0.0),
    }
}

fn slow(_: &str, picks: &Picks) -> Option<f64> {
    Some(if picks.level("page_table_levels") == "4" { 0.8 } else { 1.2 })
}

/// Migrations and L1 misses (millions) of Badaroux 2021, tables I and II, floating and pinned.
fn badaroux_events(isa: &str, figure: &str, threads: &str) -> Option<[f64; 2]> {
    match (isa, figure, threads) {
        ("riscv64", "process_migrations", "16") => Some([23_692.0, 91_564.0]),
        ("riscv64", "process_migrations", "128") => Some([324_423_980.0, 2_958_824.0]),
        ("aarch64", "process_migrations", "64") => Some([744_645_854.0, 7_170_919.0]),
        ("riscv64", "process_l1d_misses", "32") => Some([168_547.0, 164_196.0]),
        ("aarch64", "process_l1d_misses", "32") => Some([1_046_410.0, 975_366.0]),
        _ => None,
    }
}

/// His numbers; the curves of times, which are pictures, have the shape that his text states.
fn badaroux(function: &str, picks: &Picks) -> Option<f64> {
    let (isa, strategy) = (picks.level("isa"), picks.level("strategy"));
    let threads = picks.level("n_threads");
    let pinned = usize::from(strategy == "compact");
    match (function, picks.figure.as_str()) {
        ("value", "time") => {
            let threads: f64 = threads.parse().unwrap();
            let beyond = if isa == "native" { 1.0 } else { (threads / 32.0).max(1.0) };
            let roi = if picks.level("part") == "roi" { 0.95 } else { 1.0 };
            let smt = if picks.level("smt") != "off" {
                1.0
            } else if threads > 16.0 {
                0.97
            } else {
                0.72
            };
            let idle = if picks.level("guest") == "n_c = 128" { 1.03 } else { 1.0 };
            Some(1e9 / threads.min(32.0) * beyond * roi * smt * idle)
        }
        ("ratio", "time") => Some(1.0),
        // isolcpus with 30 threads: four programs gain 4 to 16 %, others lose.
        ("smallest", "time") => Some(0.84),
        ("largest", "time") => Some(1.05),
        ("value", "futex_lock") => Some(1.0),
        ("value", "futex_cycles") => Some(if threads == "128" { 0.7 } else { 0.05 }),
        ("sum", figure) => badaroux_events(isa, figure, threads).map(|row| row[pinned]),
        _ => None,
    }
}

/// Statements on times that fall up to the number of host CPUs.
const SCALING: [&str; 5] = [
    "The emulator scales",
    "Pinned guests scale",
    "Floating Arm guests scale",
    "Pinned Arm guests scale",
    "Native times fall",
];

#[test]
fn the_numbers_of_badaroux_pass_their_rules() {
    fn constant(_: &str, _: &Picks) -> Option<f64> {
        Some(1e6)
    }

    let study = from_toml(QEMU_SCALING).unwrap();
    let machine: &[(&str, f64)] = &[("host_cores", 16.0), ("host_pus", 32.0)];
    let check = |source: &str, contrary: &dyn Fn(&str, &Picks) -> Option<f64>| {
        let claim = claim(&study, source);
        assert!(decide(claim, &Numbers { study: &study, machine, number: &badaroux }), "{source}");
        assert!(
            !decide(claim, &Numbers { study: &study, machine, number: contrary }),
            "contrary: {source}"
        );
    };
    // Everything that is placed is a fifth faster.
    for source in [
        "Pinning the vCPUs of RISC-V guests",
        "Pinning the vCPUs of Arm guests",
        "Pinning the vCPUs does not help RISC-V guests with more threads",
        "Pinning the vCPUs does not help Arm guests with more threads",
        "Thread affinity",
        "isolcpus makes no difference",
        "With twice as many threads as isolcpus leaves",
        "L1 data cache misses of pinned and floating RISC-V",
        "L1 data cache misses of pinned and floating Arm",
    ] {
        check(source, &|_function: &str, picks: &Picks| match picks.figure.as_str() {
            "process_l1d_misses" => {
                Some(if picks.level("strategy") == "compact" { 2.0 } else { 1.0 })
            }
            _ => Some(0.8),
        });
    }
    for source in SCALING {
        check(source, &constant);
    }
    check("With more threads than cores, floating", &|_: &str, picks: &Picks| {
        Some(if picks.level("smt") == "off" { 0.7 } else { 1.0 })
    });
    check("With as many threads as cores, floating", &constant);
    check("The same holds for pinned guests", &constant);
    check("With as many threads as isolcpus leaves", &constant);
    check("Beyond the host CPUs pinned QEMU of RISC-V", &constant);
    check("Beyond the host CPUs pinned QEMU of Arm", &constant);
    check("Below the number of host CPUs", &constant);
    check("With four times as many threads", &constant);
    check("Its futex is that of QEMU's global mutex", &|_, _| Some(0.1));
    check("Natively times stay", &other_answer);
    check("T_full is close to T_roi", &other_answer);
    check("T_full of pinned guests", &other_answer);
    check("128 floating vCPUs", &other_answer);
    check("128 pinned vCPUs of which", &other_answer);
    assert_eq!(study.claims.iter().filter(|claim| !claim.is_own).count(), 28);
}

/// Times that fall with the threads beyond the host's CPUs, a serial program, slow idle vCPUs.
fn other_answer(_: &str, picks: &Picks) -> Option<f64> {
    let threads: f64 = picks.level("n_threads").parse().unwrap();
    let roi = if picks.level("part") == "roi" { 0.3 } else { 1.0 };
    let idle = if picks.level("guest") == "n_c = 128" { 1.5 } else { 1.0 };
    Some(1e9 / threads * roi * idle)
}

/// Each value of a source stands for another quantity, and its ratio is one of the source's sums.
#[test]
fn published_values_are_those_of_the_sources() {
    fn answer_of(study: &Study, place: &str, quantity: &str) -> f64 {
        let mut found = study.published.iter().filter(|value| value.place == place);
        found.find(|value| value.quantity.contains(quantity)).unwrap().value
    }

    let study = from_toml(QEMU_SCALING).unwrap();
    assert!(
        (answer_of(&study, "table I, n_t = 128", "migrations") - 2_958_824.0 / 324_423_980.0).abs()
            < 1e-4
    );
    assert!(
        (answer_of(&study, "table II, n_t = 96", "L1") - 1_454_464.0 / 1_809_297.0).abs() < 1e-3
    );
    for ratio in study.published.iter().filter(|value| value.place.starts_with("table")) {
        if ratio.unit.is_some() {
            continue;
        }
        let what = if ratio.quantity.contains("migrations") { "migrations" } else { "L1" };
        let [floating, pinned] = ["floating, sum", "pinned, sum"].map(|end| {
            let [migrations, misses] = sums(&study, &ratio.place, end);
            if what == "migrations" { migrations } else { misses }
        });
        let error = (ratio.value / (pinned / floating) - 1.0).abs();
        assert!(error < 6e-3, "{} {what}: {} of {floating}, {pinned}", ratio.place, ratio.value);
    }
    assert_eq!(study.published.iter().filter(|value| value.unit.is_none()).count(), 45);
}

/// Each ratio is that of the two sums.
fn sums(study: &Study, place: &str, what: &str) -> [f64; 2] {
    let rows = study.published.iter().filter(|value| value.place == place);
    let mut found = rows.filter(|value| value.quantity.ends_with(what)).map(|one| one.value);
    let both = [found.next().unwrap(), found.next().unwrap()];
    assert!(found.next().is_none(), "{place} {what}");
    both
}
