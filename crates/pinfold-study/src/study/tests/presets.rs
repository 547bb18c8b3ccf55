//! The presets of the studies that ship.

use super::super::*;
use super::world::FACTS;

const STUDIES: [(&str, &str); 5] = [
    ("cpu-emulation", include_str!("../../../../../studies/cpu-emulation.toml")),
    ("qemu-scaling", include_str!("../../../../../studies/qemu-scaling.toml")),
    ("kvm-overhead", include_str!("../../../../../studies/kvm-overhead.toml")),
    ("vm-latency", include_str!("../../../../../studies/vm-latency.toml")),
    ("numa-interference", include_str!("../../../../../studies/numa-interference.toml")),
];

/// Hosts of two CPUs, and one with all that the sources had.
const HOSTS: [HostFacts; 2] =
    [FACTS, HostFacts { pus: 32, cores: 16, nodes: 4, packages: 4, smt: true, cpufreq: true }];

fn form(text: &str, preset: &str) -> Study {
    from_toml(text).unwrap().apply_preset(&PresetSelection::from_preset(Some(preset))).unwrap()
}

#[test]
fn every_study_has_each_preset_and_it_has_cells_and_a_prediction() {
    for (name, text) in STUDIES {
        let presets: Vec<String> = from_toml(text).unwrap().presets.into_keys().collect();
        assert_eq!(presets, ["evening", "long", QUICK, "source"], "{name}");
        for preset in presets {
            let study = form(text, &preset);
            for facts in HOSTS {
                let cells = Cells::new(&study, &facts).unwrap_or_else(|error| {
                    panic!("{name}, {preset}, {} CPUs: {error:?}", facts.pus)
                });
                let prediction = predict(&study, &cells, &facts).unwrap();
                assert!(prediction.cells > 0 && prediction.seconds() > 0.0, "{name}, {preset}");
            }
        }
    }
}

/// All five on two CPUs; they have enough blocks for intervals and for settled statements.
#[test]
fn the_long_forms_take_at_most_90_minutes_together() {
    let mut seconds = 0.0;
    for (name, text) in STUDIES {
        let study = form(text, "long");
        assert!(study.repetitions >= INTERVAL_BLOCKS, "{name}");
        let cells = Cells::new(&study, &FACTS).unwrap();
        let prediction = predict(&study, &cells, &FACTS).unwrap();
        println!("{name}: {:.0} s", prediction.seconds());
        seconds += prediction.seconds();
    }
    assert!(seconds <= 90.0 * 60.0, "{seconds} s");
}

/// The designs of the sources, as far as their texts state them.
#[test]
fn the_source_forms_have_the_design_of_the_source() {
    let buchert = read_form("cpu-emulation");
    assert_eq!((buchert.repetitions, levels(&buchert, "cores").len()), (40, 4));
    assert_eq!((value(&buchert, "long_s"), value(&buchert, "short_s")), ("3".into(), "1".into()));
    assert!(!levels(&buchert, "method").iter().any(|one| one == "stall" || one == "quota"));
    // Each of five tasks does the same work; the result is that of one until the last join.
    for name in ["processes", "threads"] {
        let tasks = buchert.workloads.iter().find(|workload| workload.name == name).unwrap();
        let words = tasks.program.words().join(" ");
        assert!(words.contains("--units {task_units} --workers 5"), "{words}");
        assert_eq!(tasks.figures.len(), 1);
    }
    let badaroux = read_form("qemu-scaling");
    let threads = levels(&badaroux, "n_threads");
    for wanted in ["1", "2", "4", "8", "16", "24", "32", "48", "64", "96", "128"] {
        assert!(threads.iter().any(|level| level == wanted), "{wanted}");
    }
    assert_eq!((badaroux.repetitions, badaroux.workloads.len()), (10, 15));
    assert_eq!(value(&badaroux, "size"), "large");
    let lindroth = read_form("vm-latency");
    assert_eq!((lindroth.repetitions, value(&lindroth, "gap_s")), (1, "1800".to_owned()));
    assert_eq!(value(&lindroth, "real_time_guest"), "true");
    for study in [read_form("kvm-overhead"), read_form("numa-interference")] {
        assert_eq!(levels(&study, "accelerator"), ["native", "kvm"], "{}", study.name);
    }
}

fn read_form(wanted: &str) -> Study {
    let (_, text) = STUDIES.into_iter().find(|(name, _)| *name == wanted).unwrap();
    form(text, "source")
}

fn levels(study: &Study, factor: &str) -> Vec<String> {
    let factor = study.factor(factor).unwrap();
    factor.levels.iter().map(|level| level.text.clone()).collect()
}

fn value(study: &Study, name: &str) -> String {
    study.values[name].text.clone()
}

/// What this host cannot run of a source's design is named, with the reason.
#[test]
fn the_source_forms_say_what_the_host_lacks() {
    check("qemu-scaling", "no SMT to turn off");
    check("qemu-scaling", "need a host of at least 16 CPUs");
    check("cpu-emulation", "more cores than this host has CPUs");
}

fn check(study: &str, wanted: &str) {
    let found = reasons(study);
    assert!(found.iter().any(|reason| reason.contains(wanted)), "{study}: {wanted}");
}

fn reasons(wanted: &str) -> Vec<String> {
    let (_, text) = STUDIES.into_iter().find(|(name, _)| *name == wanted).unwrap();
    let cells = Cells::new(&form(text, "source"), &FACTS).unwrap();
    cells.all.into_iter().filter_map(|cell| cell.skipped).collect()
}

/// The rows of the lab that pages name are rows of its table.
#[test]
fn lab_rows_are_cases_of_the_lab() {
    let table = include_str!("../../../../../docs/lab.md");
    let rows: Vec<LabRow> =
        STUDIES.iter().flat_map(|(_, text)| from_toml(text).unwrap().lab).collect();
    assert!(!rows.is_empty());
    for row in rows {
        assert!(table.contains(&format!("\n| {} | ", row.case)), "{row:?}");
    }
}
