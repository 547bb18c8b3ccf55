//! What commands print: as wide as the terminal is, JSON where it is asked for, and a first line
//! that answers.

#![expect(clippy::expect_used, reason = "a test that cannot go on fails")]

use pinfold_host::process::{Output, capture};

const PINFOLD: &str = env!("CARGO_BIN_EXE_pinfold");
const MINUTE_NS: u64 = 60_000_000_000;
const DESKTOP: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/hosts/ryzen-7950x3d.xml");
const DOMAIN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/examples/desktop.xml");
const STUDY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../studies/cpu-emulation.toml");

/// Commands that show something, and need neither rights nor time.
const SHOWN: [&[&str]; 12] = [
    &["topo"],
    &["topo", "--input", DESKTOP],
    &["doctor"],
    &["plan", "--list"],
    &["plan", "-s", "balanced", "--vcpus", "16", "--input", DESKTOP],
    &["plan", "-s", "balanced", "--vcpus", "16", "--input", DESKTOP, "--explain"],
    &["plan", "--check", DOMAIN, "--input", DESKTOP],
    &["emulate", "methods"],
    &["measure", "--list"],
    &["journal"],
    &["status"],
    &["study", "check", STUDY, "--quick"],
];

/// Runs Pinfold with variables set, its state in a folder of the test.
fn run(variables: &[&str], arguments: &[&str]) -> Output {
    let folder = tempfile::tempdir().expect("a folder");
    let state = format!("PINFOLD_STATE_DIR={}/state", folder.path().display());
    let unset = ["-u", "COLUMNS", "-u", "NO_COLOR"];
    let words = [&unset[..], &[state.as_str()], variables, &[PINFOLD], arguments].concat();
    capture("env", words, MINUTE_NS).expect("pinfold runs")
}

/// True for what may be wider: a word that cannot be broken, a line that is to be copied.
fn is_unbreakable(line: &str, columns: usize) -> bool {
    let words = line.trim_start();
    let longest = words.split(' ').map(|word| word.chars().count()).max().unwrap_or(0);
    longest + 24 > columns || words.contains("<")
}

#[test]
fn lines_fit_the_columns_that_are_asked_for() {
    for columns in [40, 60, 80, 200] {
        for arguments in SHOWN {
            let output = run(&[&format!("COLUMNS={columns}")], arguments);
            let text = output.stdout_text() + &output.stderr_text();
            for line in text.lines().filter(|line| line.chars().count() > columns) {
                assert!(is_unbreakable(line, columns), "{arguments:?} in {columns}: {line}");
            }
            assert!(!text.contains('\u{1b}'), "{arguments:?}: no colour in a pipe");
        }
    }
}

#[test]
fn tables_in_a_pipe_fit_80_columns_and_have_no_lines_between_rows() {
    for arguments in SHOWN {
        let text = run(&[], arguments).stdout_text();
        let rules = text.lines().filter(|line| line.starts_with(['─', '═'])).count();
        assert!(rules <= 3, "{arguments:?}: {rules} rules\n{text}");
        for line in text.lines().filter(|line| line.starts_with(['─', '═'])) {
            assert!(line.chars().count() <= 80, "{arguments:?}: {line}");
        }
    }
}

#[test]
fn zero_columns_mean_that_the_width_is_not_known() {
    let plain = run(&[], &["plan", "--list"]).stdout_text();
    assert_eq!(run(&["COLUMNS=0"], &["plan", "--list"]).stdout_text(), plain);
    assert_eq!(run(&["COLUMNS=none"], &["plan", "--list"]).stdout_text(), plain);
}

#[test]
fn the_first_line_answers() {
    let first = |arguments: &[&str]| {
        run(&[], arguments).stdout_text().lines().next().unwrap_or_default().to_owned()
    };
    assert_eq!(first(&["status"]), "nothing is in force");
    assert!(first(&["doctor"]).starts_with("pinfold tune can"), "{}", first(&["doctor"]));
    let check = first(&["plan", "--check", DOMAIN, "--input", DESKTOP]);
    assert!(check.contains("warning") || check.contains("note"), "{check}");
    let plan = first(&["plan", "-s", "balanced", "--vcpus", "16", "--input", DESKTOP]);
    assert!(plan.starts_with("balanced for vm: 16 vCPUs pinned to"), "{plan}");
}

#[test]
fn a_plan_is_drawn_and_its_reasons_are_folded() {
    let base = ["plan", "-s", "balanced", "--vcpus", "16", "--input", DESKTOP];
    let plan = run(&[], &base).stdout_text();
    let cores = "  cores 0-7   CPU 0-7 vCPU 0,2,…,14     CPU 16-23 vCPU 1,3,…,15";
    assert!(plan.lines().any(|line| line == cores), "{plan}");
    let order = "CPU 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23";
    let words = plan.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains(&format!("vcpu(0-15) {order}")), "{plan}");
    let why = run(&[], &[&base[..], &["--explain"]].concat()).stdout_text();
    assert_eq!(why.matches("is a thread of a core").count(), 1, "{why}");
    let flat = why.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(flat.contains("carries a vCPU too; the others likewise"), "{why}");
}

/// Each command that has `--json`, with arguments that end at once; `None` where it takes a
/// machine or a measurement, which other tests do.
const IN_JSON: [(&str, Option<&[&str]>); 17] = [
    ("topo", Some(&[])),
    ("doctor", Some(&[])),
    ("plan", Some(&["--list"])),
    ("status", Some(&[])),
    ("watch", None),
    ("journal", Some(&[])),
    ("emulate methods", Some(&[])),
    ("emulate status", Some(&[])),
    ("emulate verify", None),
    ("measure", Some(&["--list"])),
    ("compare", None),
    ("tune", None),
    ("exits", None),
    ("study check", Some(&[STUDY])),
    ("study status", None),
    ("study diff", None),
    ("plan --check", Some(&[DOMAIN])),
];

/// The commands that a help text lists.
fn commands(path: &[&str]) -> Vec<String> {
    let help = run(&[], &[path, &["--help"]].concat()).stdout_text();
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = listed.take_while(|line| line.starts_with("  "));
    let names = names.filter(|line| !line.starts_with("   "));
    names.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

#[test]
fn every_command_prints_json_or_refuses_it() {
    let mut all = Vec::new();
    for name in commands(&[]).into_iter().filter(|name| name != "help") {
        let below = commands(&[&name]);
        match below.is_empty() {
            true => all.push(name),
            false => all.extend(
                below.into_iter().filter(|one| one != "help").map(|one| format!("{name} {one}")),
            ),
        }
    }
    assert!(all.len() > 20, "{all:?}");
    for command in all {
        let words: Vec<&str> = command.split(' ').collect();
        let known = IN_JSON.iter().find(|(name, _)| *name == command);
        let help = run(&[], &[&words[..], &["--help"]].concat()).stdout_text();
        let has_json = help.lines().any(|line| line.trim_start().starts_with("--json"));
        assert_eq!(known.is_some(), has_json, "{command}: is it in the table of this test?");
        if !has_json {
            let refused = run(&[], &[&words[..], &["--json"]].concat());
            assert_eq!(refused.status.code(), Some(2), "{command} --json");
            assert!(refused.stdout_text().is_empty(), "{command} --json");
        }
    }
    for (command, arguments) in IN_JSON {
        let Some(arguments) = arguments else { continue };
        let words: Vec<&str> = command.split(' ').chain(arguments.iter().copied()).collect();
        let text = run(&["COLUMNS=40"], &[&words[..], &["--json"]].concat()).stdout_text();
        let value: serde_json::Value = serde_json::from_str(&text).expect(command);
        assert!(value.is_object(), "{command}: {text}");
    }
}

#[test]
fn a_variable_that_no_option_has_is_reported() {
    let said = run(&["PINFOLD_STAET_DIR=x"], &["status"]).stderr_text();
    assert!(said.contains("PINFOLD_STAET_DIR") && said.contains("PINFOLD_STATE_DIR"), "{said}");
    assert_eq!(run(&["PINFOLD_TEST_X=1"], &["status"]).stderr_text(), "");
}

#[test]
fn what_cannot_be_meant_says_what_can() {
    let said = |arguments: &[&str]| {
        let output = run(&[], arguments);
        assert!(!output.status.success(), "{arguments:?}");
        output.stderr_text()
    };
    assert!(said(&["plan", "--vcpus", "0"]).contains("has at least one vCPU"));
    assert!(said(&["run", "--", "ls"]).contains("pinfold run --cores 1 -- ls"));
}
