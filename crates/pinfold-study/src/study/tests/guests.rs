//! Studies with guests: cells with a guest, contradictory levels, boot times.

use pinfold_model::{Accelerator, Isa};

use super::super::*;
use super::world::FACTS;

const STUDY: &str = r#"
name = "guests"
repetitions = 2
share = ["workload", "n_threads"]
probes = ["migrations", "lock_time"]
[[factor]]
name = "isa"
levels = ["native", "riscv64"]
[[factor]]
name = "accelerator"
levels = ["native", "tcg", "tcg-single"]
[[factor]]
name = "n_vcpu"
levels = [2, 128]
[[factor]]
name = "n_threads"
levels = [1, 2]
[[factor]]
name = "guest_load"
levels = ["idle", "loaded-no-disk"]
[[workload]]
name = "a"
pinload = ["parallel", "fft", "--affinity", "{places}"]
lasts = "1s"
[[workload]]
name = "b"
command = ["b", "{n_threads}"]
guest-program = "programs/{isa}/b"
lasts = "1s"
[[table]]
name = "moves"
figure = "migrations"
rows = ["n_vcpu"]
"#;

fn guest_of(text: &str, name: &str) -> Result<Option<GuestRequest>, String> {
    let study = from_toml(text).unwrap();
    let cells = Cells::new(&study, &FACTS).unwrap();
    let cell = cells.all.iter().find(|cell| cell.name(&study).starts_with(name)).unwrap();
    cell.guest(&study)
}

#[test]
fn levels_say_which_guest() {
    let guest =
        |accelerator, vcpus| Ok(Some(GuestRequest { isa: Some(Isa::Riscv), accelerator, vcpus }));
    check("isa native, accelerator native, n_vcpu 2, n_threads 1, guest_load idle", Ok(None));
    check("isa riscv64, accelerator tcg, n_vcpu 2", guest(Accelerator::TcgMulti, 2));
    check("isa riscv64, accelerator tcg-single, n_vcpu 128", guest(Accelerator::TcgSingle, 128));
    check(
        "isa native, accelerator tcg",
        Err("isa native is not a guest, but accelerator tcg runs one"),
    );
    check(
        "isa riscv64, accelerator native",
        Err("isa riscv64 is a guest, but accelerator native runs none"),
    );
    check(
        "isa native, accelerator native, n_vcpu 2, n_threads 1, guest_load loaded-no-disk",
        Err("guest_load loaded-no-disk needs a guest, but native is not a guest"),
    );
}

fn check(levels: &str, expected: Result<Option<GuestRequest>, &str>) {
    let found = guest_of(STUDY, &format!("a: {levels}"));
    assert_eq!(found, expected.map_err(str::to_owned), "{levels}");
}

#[test]
fn without_the_two_factors_vcpus_or_a_load_ask_for_a_guest() {
    let text = study_without(&["isa", "accelerator"]).replace("programs/{isa}/b", "b");
    assert_eq!(
        guest_of(&text, "a: n_vcpu 2, n_threads 1, guest_load idle").unwrap(),
        own_request(2)
    );
    let text = study_without(&["isa", "accelerator", "n_vcpu"]).replace("programs/{isa}/b", "b");
    let text = text.replace("[\"n_vcpu\"]", "[\"n_threads\"]");
    assert_eq!(guest_of(&text, "a: n_threads 1, guest_load idle").unwrap(), None);
    assert_eq!(
        guest_of(&text, "a: n_threads 1, guest_load loaded-no-disk").unwrap(),
        own_request(1)
    );
}

fn own_request(vcpus: u32) -> Option<GuestRequest> {
    Some(GuestRequest { isa: None, accelerator: Accelerator::TcgMulti, vcpus })
}

fn study_without(names: &[&str]) -> String {
    let tables = STUDY.split("[[factor]]\n");
    let kept: Vec<&str> = tables
        .filter(|table| !names.iter().any(|name| table.contains(&format!("name = \"{name}\"\n"))))
        .collect();
    kept.join("[[factor]]\n")
}

#[test]
fn programs_of_guests_are_named_by_cell() {
    let study = from_toml(STUDY).unwrap();
    let cells = Cells::new(&study, &FACTS).unwrap();
    assert_eq!(path(&cells, &study, "a: isa riscv64"), None);
    assert_eq!(path(&cells, &study, "b: isa riscv64").as_deref(), Some("programs/riscv64/b"));
}

fn path(cells: &Cells, study: &Study, name: &str) -> Option<String> {
    let cell = cells.all.iter().find(|cell| cell.name(study).starts_with(name)).unwrap();
    cell.guest_program(study).unwrap()
}

#[test]
fn boots_are_predicted_once_per_start() {
    let text = STUDY.replace(r#"["native", "tcg", "tcg-single"]"#, r#"["tcg"]"#);
    let text = text.replace(r#"["native", "riscv64"]"#, r#"["riscv64"]"#);
    let seconds = |vcpus: &str, share: &str| {
        let text = text.replace("[2, 128]", vcpus).replace(r#"["workload", "n_threads"]"#, share);
        let study = from_toml(&text).unwrap();
        let cells = Cells::new(&study, &FACTS).unwrap();
        predict(&study, &cells, &FACTS).unwrap().seconds()
    };
    // Eight trials and their twin in two blocks: more starts, and more vCPUs, take longer.
    let shared = seconds("[2]", r#"["workload", "n_threads"]"#);
    assert!(seconds("[2]", "[]") > 1.5 * shared, "{shared}");
    assert!(seconds("[128]", r#"["workload", "n_threads"]"#) > 4.0 * shared, "{shared}");
}

#[test]
fn a_trial_under_load_is_predicted_to_take_longer() {
    // Five trials (a twin among them) in each of two blocks, each with the start and end of loads.
    let more = seconds("loaded") - seconds("idle");
    assert!((more - 10.0 * 0.2).abs() < 1e-9, "{more}");
}

fn seconds(load: &str) -> f64 {
    let text = STUDY
        .replace(r#"["native", "tcg", "tcg-single"]"#, r#"["tcg"]"#)
        .replace(r#"["native", "riscv64"]"#, r#"["riscv64"]"#)
        .replace("[2, 128]", "[2]")
        .replace(r#"["idle", "loaded-no-disk"]"#, &format!("[{load:?}]"));
    let study = from_toml(&text).unwrap();
    let cells = Cells::new(&study, &FACTS).unwrap();
    predict(&study, &cells, &FACTS).unwrap().seconds()
}

#[test]
fn boots_of_other_machines_are_predicted() {
    fn check(boot: f64, machines: u32, neighbour: &str, kind: &str, boots: f64) {
        let more = seconds(machines, neighbour, kind) - seconds(1, "none", "thread");
        assert!((more - boots * boot).abs() < 1e-9, "{machines} {neighbour} {kind}: {more}");
    }

    fn seconds(machines: u32, neighbour: &str, kind: &str) -> f64 {
        let text = format!(
            r#"
name = "others"
repetitions = 1
[[factor]]
name = "accelerator"
levels = ["tcg"]
[[factor]]
name = "machines"
levels = [{machines}]
[[factor]]
name = "neighbour"
levels = ["{neighbour}"]
[[factor]]
name = "neighbour_kind"
levels = ["{kind}"]
[[workload]]
name = "a"
pinload = ["loop64"]
lasts = "1s"
"#
        );
        let study = from_toml(&text).unwrap();
        let cells = Cells::new(&study, &FACTS).unwrap();
        predict(&study, &cells, &FACTS).unwrap().seconds()
    }

    let boot = seconds(2, "none", "thread") - seconds(1, "none", "thread");
    assert!(boot > 1.0, "{boot}");
    check(boot, 1, "same-node", "thread", 0.0);
    check(boot, 1, "none", "guest", 0.0);
    check(boot, 1, "same-node", "guest", 1.0);
    check(boot, 3, "other-node", "guest", 3.0);
}

#[test]
fn bad_guests_are_reported_with_their_place() {
    fn check(from: &str, to: &str, expected: &str) {
        let error = from_toml(&STUDY.replace(from, to)).unwrap_err();
        let hint = error.hint().unwrap_or_default();
        assert!(format!("{error}; {hint}").contains(expected), "{error}; {hint}");
    }

    check("\"riscv64\"", "\"riscv\"", "there is no instruction set \"riscv\"");
    check("\"tcg-single\"", "\"hvf\"", "available: native, kvm, tcg, tcg-single");
    check("loaded-no-disk", "busy", "available: idle, loaded, loaded-no-disk");
    check("[2, 128]", "[0]", "0 is not a whole number of at least 1");
    check(
        "\"n_threads\"]",
        "\"n_vcpu\"]",
        "line 4, column 22: share: each level of n_vcpu needs a separate start",
    );
    check("command = [\"b\", \"{n_threads}\"]", "pinload = [\"b\"]", "pinload is in every guest");
    check("programs/{isa}", "programs/{ISA}", "{ISA} is not known");
    check("\"lock_time\"", "\"locks\"", "available: steal, busy, migrations, switches");
}
