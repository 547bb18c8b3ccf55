//! `pinfold exits` on machines of this test's own: its micro-guest, and QEMUs with a few bytes of
//! firmware.

use std::sync::LazyLock;

use crate::common::machine::{Machine, QEMU};
use crate::common::{
    Checked as _, PINFOLD, SECOND_NS, Sandbox, TIMEOUT_NS, assert_parts, is_missing, pinfold, run,
    skip,
};
use pinfold_host::process::{Output, Spawn, Stdio, is_root};
use pinfold_host::{Clock as _, SystemClock};
use serde_json::Value;

/// `mov dx, 0x5a0; again: out dx, al; jmp again`
const BUSY: &[u8] = &[0xba, 0xa0, 0x05, 0xee, 0xeb, 0xfd];

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

/// Why machines cannot be watched here, found once for all tests.
static WHY_NOT: LazyLock<Option<String>> = LazyLock::new(|| {
    if is_root() {
        let output = pinfold(["exits", "--micro-guest"]);
        (code(&output) != Some(0)).then(|| output.stderr_text())
    } else {
        Some("watching exits takes root".to_owned())
    }
});

/// True, and said, if machines cannot be watched here.
fn cannot_run() -> bool {
    if is_missing(&[QEMU]) {
        return true;
    }
    let why = &*WHY_NOT;
    if let Some(why) = why {
        skip(why);
    }
    why.is_some()
}

/// A machine whose firmware ends in this code at the reset vector.
fn start(accelerator: &str, more: &str) -> Machine {
    let mut rom = vec![0xf4; 64 * 1024];
    let at = rom.len() - 16;
    rom[at..at + BUSY.len()].copy_from_slice(BUSY);
    let sandbox = Sandbox::new();
    let rom = sandbox.write("rom", rom);
    let words =
        format!("-M microvm -accel {accelerator} -no-user-config -m 16M -bios {rom} {more}");
    Machine::start_in(sandbox, &words).expect("QEMU is installed")
}

fn exits(machine: &Machine, more: &[&str]) -> Output {
    pinfold([&["exits", "--qmp", &machine.qmp()], more].concat())
}

/// Every row of times is one of a sample that exists.
fn check_rows(answer: &Value) {
    for row in answer["rows"].as_array().expect("rows") {
        let number = |key: &str| row[key].as_f64();
        let count = number("count").expect("a count");
        assert!(count >= 1.0, "{row}");
        let (min, mean, max) = (number("min_ns"), number("mean_ns"), number("max_ns"));
        assert!(min <= mean && mean <= max && min.is_some(), "{row}");
        assert_eq!(row["std_dev_ns"].is_null(), count < 2.0, "{row}");
        assert!(number("share").is_some_and(|share| (0.0..=1.01).contains(&share)), "{row}");
    }
}

#[test]
fn the_micro_guest_is_counted_exactly() {
    if cannot_run() {
        return;
    }
    let output = pinfold(["exits", "--micro-guest", "--json"]);
    assert_eq!(code(&output), Some(0), "{}", output.stderr_text());
    let answer = output.json();
    check_rows(&answer);
    let seen: Vec<(&str, Option<u64>)> = answer["expected"]
        .as_array()
        .expect("rows")
        .iter()
        .map(|row| (row["what"].as_str().expect("a name"), row["counted"].as_u64()))
        .collect();
    let expected = [
        ("CPUID", (answer["level"] == "A").then_some(500)),
        ("RDMSR", (answer["level"] == "A").then_some(500)),
        ("port writes", Some(1_000)),
        ("MMIO writes", Some(200)),
    ];
    assert_eq!(seen, expected);
    let per_event = &answer["cost"]["per_event"];
    let of = |key: &str| per_event[key].as_f64().expect("a number");
    assert!(of("low_ns") <= of("median_ns") && of("median_ns") <= of("high_ns"), "{per_event}");
    let text = pinfold(["exits", "--micro-guest"]).stdout_text();
    assert_parts(&text, &["level ", "port writes: exact", "0x5a0 write × 1,000", "Overhead: "]);
}

#[test]
fn a_machine_of_kvm_is_watched_and_its_end_is_reported() {
    if cannot_run() {
        return;
    }
    let mut machine = start("kvm", "");
    let output = exits(&machine, &["--seconds", "1", "--top", "5", "--json"]);
    assert_eq!(code(&output), Some(0), "{}", output.stderr_text());
    check_watched(&output.json());
    let words = ["exits", "--pid", &machine.pid(), "--seconds", "1", "--per-vcpu", "--top", "5"];
    let text = pinfold(words).stdout_text();
    assert!(text.contains("\nvCPU 0\n") && text.contains("0x5a0 write"), "{text}");
    // Addresses make each exit dearer: without being asked for they are not watched.
    let answer = exits(&machine, &["--seconds", "1", "--json"]).json();
    assert!(answer["addresses"].as_array().is_some_and(Vec::is_empty), "{answer}");
    if answer["level"] == "B" {
        assert_eq!(answer["cost"]["events_per_exit"].as_f64().map(f64::round), Some(3.0));
    }
    let mut watching = Spawn::new(PINFOLD)
        .args(["exits", "--pid", &machine.pid(), "--seconds", "600"])
        .stdout(Stdio::Null)
        .stderr(Stdio::Null)
        .start()
        .expect("it starts");
    SystemClock.sleep_ns(SECOND_NS);
    machine.qemu.kill().expect("QEMU ends");
    let end = watching.wait_for(&SystemClock, TIMEOUT_NS).expect("it ends");
    assert_eq!(end.and_then(|status| status.code()), Some(4), "its end is told");
}

/// Rows, addresses and vCPUs of a machine that writes to one port.
fn check_watched(answer: &Value) {
    check_rows(answer);
    assert!(answer["level"] == "A" || answer["level"] == "B", "{answer}");
    let rows = answer["rows"].as_array().expect("rows");
    let exits = rows
        .iter()
        .find(|row: &&Value| ["IO", "io", "IO_INSTRUCTION"].iter().any(|name| row["type"] == *name))
        .and_then(|row| row["count"].as_u64())
        .expect("exits");
    let port = &answer["addresses"][0];
    assert_eq!((port["address"].as_u64(), &port["access"]), (Some(0x5a0), &"write".into()));
    // The last exit may not have ended.
    assert!(port["count"].as_u64().is_some_and(|count| count.abs_diff(exits) <= 1), "{answer}");
    assert_eq!(
        answer["rows"].as_array().map(Vec::len),
        answer["vcpus"][0]["rows"].as_array().map(Vec::len)
    );
    assert!(!answer["cost"].is_null(), "{answer}");
}
#[test]
fn without_rights_kvms_own_counts_are_taken() {
    if cannot_run() || is_missing(&["setpriv"]) {
        return;
    }
    let machine = start("kvm", "");
    let output = powerless(&["--qmp", &machine.qmp(), "--seconds", "1", "--json"]);
    assert_eq!(code(&output), Some(0), "{}", output.stderr_text());
    let answer = output.json();
    assert_eq!(answer["level"], "C", "{answer}");
    assert_eq!(answer["rows"][0]["type"], "all exits", "{answer}");
    assert!(answer["rows"][0]["count"].as_u64() > Some(10), "{answer}");
    for absent in ["min_ns", "mean_ns", "max_ns", "std_dev_ns", "sum_ns", "share"] {
        assert!(answer["rows"][0][absent].is_null(), "{absent}: {answer}");
    }
    assert!(answer["cost"].is_null() && answer["events"].is_null(), "{answer}");
    let why = answer["findings"].to_string();
    assert!(why.contains("does not permit this user") && why.contains("CAP_BPF"), "{why}");
    let output = powerless(&["--pid", &machine.pid(), "--seconds", "1"]);
    assert_eq!(code(&output), Some(3), "{}", output.stderr_text());
    assert!(output.stderr_text().contains("CAP_BPF"), "{}", output.stderr_text());
    let output = powerless(&["--micro-guest"]);
    assert_eq!(code(&output), Some(3), "{}", output.stderr_text());
}

fn powerless(arguments: &[&str]) -> Output {
    let words = ["--no-new-privs", "--bounding-set=-all", PINFOLD, "exits"];
    run("setpriv", [&words, arguments].concat())
}

#[test]
fn machines_without_exits_are_distinguished() {
    if cannot_run() {
        return;
    }
    let translated = start("tcg,thread=multi", "");
    let output = exits(&translated, &["--seconds", "1"]);
    assert_eq!(code(&output), Some(1));
    let said = output.stderr_text();
    assert!(said.contains("so there are no exits") && said.contains("-accel kvm"), "{said}");
    assert!(output.stdout_text().is_empty(), "no table of nothing");
    let stopped = start("kvm", "-S");
    let output = pinfold(["exits", "--pid", &stopped.pid(), "--look", "300ms"]);
    let said = output.stderr_text();
    assert_eq!(code(&output), Some(1), "{said}");
    assert!(said.contains("no exit in 0.3 s") && said.contains("give it work"), "{said}");
    let output = exits(&stopped, &["--look", "300ms", "--seconds", "1", "--json"]);
    assert_eq!(code(&output), Some(1), "{}", output.stderr_text());
    let answer = output.json();
    assert_eq!((&answer["level"], &answer["rows"]), (&"C".into(), &Value::Array(Vec::new())));
    assert!(answer["findings"].to_string().contains("no exits occurred"), "{answer}");
}

/// The samples of `IO` per second, block by block.
fn rates(measurement: &Value) -> Vec<f64> {
    let blocks = measurement["blocks"].as_array().expect("blocks");
    let figures = blocks.iter().filter_map(|block| {
        block["figures"].as_array()?.iter().find(|figure| {
            let label = |key: &str| figure["labels"][key].as_str().expect("a label");
            ["IO", "io", "IO_INSTRUCTION"].contains(&label("type"))
                && (label("statistic"), label("vcpu")) == ("per-second", "all")
        })
    });
    figures.filter_map(|figure| figure["samples"][0].as_f64()).collect()
}

#[test]
fn measure_takes_exits_and_compare_two_of_them() {
    if cannot_run() {
        return;
    }
    let machine = start("kvm", "");
    let sandbox = Sandbox::new();
    let measure = |more: &[&str]| {
        pinfold([&["measure", "exits", "--pid", &machine.pid(), "--seconds", "0.3"], more].concat())
    };
    let (one, other) = (sandbox.path("a.json"), sandbox.path("b.json"));
    let output = measure(&["--blocks", "2", "--save", &one, "--json"]);
    assert_eq!(code(&output), Some(0), "{}", output.stderr_text());
    let reported = output.json();
    let rates = rates(&reported["measurement"]);
    assert!(rates.len() == 2 && rates.iter().all(|rate| *rate > 1.0), "{reported}");
    let found = reported["found"].as_array().expect("blocks");
    assert_eq!((found.len(), &found[0]["format"]), (2, &"pinfold-exits/1".into()));
    // What watching costs is measured once, after the last block.
    assert!(found[0]["cost"].is_null() && found[1]["cost"].is_object(), "{reported}");
    assert!(
        !reported["measurement"]["blocks"][0]["figures"]
            .clone()
            .as_array()
            .expect("figures")
            .iter()
            .any(|figure: &Value| figure["labels"]["vcpu"] == "0")
    );
    let words = ["measure", "exits", "--pid", &machine.pid(), "--seconds", "0.3", "--per-vcpu"];
    let narrow = [&words[..], &["--top", "5", "--save", &other]].concat();
    let output = Spawn::new(PINFOLD).args(narrow).env("COLUMNS", "80").capture(TIMEOUT_NS);
    let output = output.expect("it runs");
    let text = output.stdout_text();
    assert_eq!(code(&output), Some(0), "{}", output.stderr_text());
    assert_parts(
        &text,
        &["exits: why a KVM machine exits", "level ", "vCPU 0", "0x5a0 write", "Overhead: "],
    );
    // The name of a row has a line of its own where the table would be too wide.
    let is_row = |line: &str, row: &str| line == row || line.starts_with(&format!("{row} "));
    assert!(text.lines().any(|line| line.trim_start().starts_with("DESCHEDULED:")), "{text}");
    assert!(text.lines().any(|line| is_row(line.trim_start(), "IO")), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(text.contains("GUEST_AND_KVM") || text.contains("TIMEINGUEST"), "{text}");
    let output = pinfold(["compare", &one, &other, "--json"]);
    assert_eq!(code(&output), Some(0), "{}", output.stderr_text());
    let compared = output.json();
    let rows = compared["rows"].as_array().expect("rows");
    // Without an exit of its kind a row has no ratio.
    let is_rate = |row: &&Value| {
        let is_seen = ["first", "second"].iter().all(|side| row[side].as_f64() > Some(0.0));
        row["labels"]["statistic"] == "per-second" && is_seen
    };
    let row = rows.iter().find(is_rate).expect("a row");
    assert!(row["ratio"].as_f64().is_some_and(|ratio| ratio > 0.0), "{row}");
    assert!(row["verdict"].is_null(), "more exits are neither better nor worse: {row}");
    assert!(compared["unmatched"].to_string().contains("vcpu=0"), "{compared}");
}

#[test]
fn measure_says_why_there_are_no_exits() {
    fn powerless(words: &[&str]) -> Output {
        let all = [&["--no-new-privs", "--bounding-set=-all", PINFOLD], words].concat();
        run("setpriv", all)
    }

    if cannot_run() || is_missing(&["setpriv"]) {
        return;
    }
    let translated = start("tcg,thread=multi", "");
    let words = ["measure", "exits", "--seconds", "0.3", "--qmp"];
    check(&pinfold([&words[..], &[&translated.qmp()]].concat()), 1, "so there are no exits");
    let stopped = start("kvm", "-S");
    let silent = ["measure", "exits", "--look", "300ms", "--pid", &stopped.pid()];
    check(&pinfold(silent), 1, "no exit in 0.3 s");
    let socket = stopped.qmp();
    let counts = [&words[..], &[&socket, "--look", "300ms"]].concat();
    check(&pinfold(counts), 1, "made no exits");
    let machine = start("kvm", "");
    check(&powerless(&["measure", "exits", "--pid", &machine.pid()]), 3, "CAP_BPF");
    let output = powerless(&[&words[..], &[&machine.qmp(), "--json"]].concat());
    assert_eq!(code(&output), Some(0), "{}", output.stderr_text());
    let reported = output.json();
    assert_eq!(reported["found"][0]["level"], "C", "{reported}");
    // Counts have no times: no figure of a time, and none that is 0.
    let figures = reported["measurement"]["blocks"][0]["figures"].as_array().expect("figures");
    assert!(
        !figures.is_empty() && figures.iter().all(|figure| figure["unit"] != "ns"),
        "{reported}"
    );
}

fn check(output: &Output, expected: i32, reported: &str) {
    let said = output.stderr_text();
    assert_eq!(code(output), Some(expected), "{said}");
    assert!(said.contains(reported), "{reported}: {said}");
    assert!(output.stdout_text().is_empty(), "no table of nothing");
}

#[test]
fn bad_input_is_reported_with_a_hint() {
    fn check(arguments: &[&str], expected: i32, reported: &str) {
        let output = pinfold(arguments);
        let said = output.stderr_text();
        assert_eq!(code(&output), Some(expected), "{arguments:?}: {said}");
        assert!(said.contains(reported), "{arguments:?}: {said}");
    }

    check(&["exits"], 2, "--qmp, --libvirt or --pid");
    check(&["exits", "--pid", "1"], 4, "not QEMU");
    check(&["exits", "--qmp", "/nonexistent/qmp"], 4, "no such socket");
    check(&["exits", "--micro-guest", "--pid", "1"], 2, "cannot be used with");
    check(&["exits", "--pid", "1", "--seconds", "0"], 2, "--seconds");
    check(&["exits", "--pid", "1", "--look", "10"], 2, "write a time with its unit");
    check(&["exits", "--pid", "1", "--distributor", "here"], 2, "hexadecimal");
}
