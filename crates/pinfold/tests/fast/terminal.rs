//! What commands print: as wide as the terminal is, JSON where it is asked for, and a first line
//! that answers.

use std::io::Read as _;

use crate::common::{self, Checked as _, PINFOLD, RYZEN, Sandbox, skip};
use pinfold_host::process::{Output, Stdio, find_program, is_root};

const DESKTOP: &str = RYZEN;
const DOMAIN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/examples/desktop.xml");
const STUDY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../studies/cpu-emulation.toml");

/// Commands that show something, and need neither rights nor time.
const SHOWN: [&[&str]; 14] = [
    &["topo"],
    &["topo", "--input", DESKTOP],
    &["doctor"],
    &["plan", "--list"],
    &["plan", "-s", "balanced", "--vcpus", "16", "--input", DESKTOP],
    &["plan", "-s", "balanced", "--vcpus", "16", "--input", DESKTOP, "--explain"],
    &["plan", "-s", "low-latency", "--vcpus", "12", "--input", SMT4],
    &["plan", "-s", "low-latency", "--vcpus", "12", "--input", SMT4, "--explain"],
    &["plan", "--check", DOMAIN, "--input", DESKTOP],
    &["emulate", "methods"],
    &["measure", "--list"],
    &["journal"],
    &["status"],
    &["study", "check", STUDY, "--quick"],
];
/// The machine of `power9-smt4.synthetic`.
const SMT4: &str = "package:2 [numa(memory=256GiB)] l3:8(size=10MiB) core:2 pu:4";

/// Commands that end with an error: one of each class of them.
const REFUSED: [&[&str]; 24] = [
    &["plan", "--bogus"],
    &["apply", "--json"],
    &["apply"],
    &["apply", "--pid", "1", "--qmp", "none"],
    &["undo", "no-such-placement"],
    &["journal", "no-such-placement"],
    &["emulate", "status"],
    &["emulate", "down"],
    &["emulate", "up", "no-such-platform.toml"],
    &["watch", "--metrics-port", "99999999"],
    &["watch", "--metrics-port", "0"],
    &["watch", "--metrics-port", "9478", "--gaps", "9us"],
    &["plan", "--tunable", "foo=bar", "--input", DESKTOP],
    &["plan", "--vcpus", "0"],
    &["plan", "--vcpus", "100", "-s", "low-latency", "--input", DESKTOP],
    &["plan", "-s", "no-such-strategy"],
    &["plan", "--check"],
    &["plan", "--check", "no-such-file.xml"],
    &["plan", "--avoid", "0-4000", "--input", DESKTOP],
    &["run", "--", "ls"],
    &["measure", "no-such-probe"],
    &["compare", "no-such-file.json"],
    &["study", "check", "no-such-study.toml"],
    &["report", "--store", "no-such-store.sqlite"],
];

/// The help of every command.
fn helps() -> Vec<Vec<String>> {
    let all = every_command().into_iter();
    let words = all.map(|command| command.split(' ').map(str::to_owned).collect());
    [Vec::new()]
        .into_iter()
        .chain(words)
        .map(|mut words| {
            words.push("--help".to_owned());
            words
        })
        .collect()
}

/// Runs Pinfold with variables set, its state in a folder of the test.
fn run(variables: &[&str], arguments: &[&str]) -> Output {
    // The same folder for all, so that what names it is the same.
    let state = concat!("PINFOLD_STATE_DIR=", env!("CARGO_TARGET_TMPDIR"), "/terminal-state");
    let unset = ["-u", "COLUMNS", "-u", "NO_COLOR"];
    let words = [&unset[..], &[state], variables, &[PINFOLD], arguments].concat();
    common::run("env", words)
}

/// True for what may be wider: a word that cannot be broken behind its label, and a line that is to
/// be copied (a command, an element of a domain file, kernel parameters).
fn is_unbreakable(line: &str) -> bool {
    let line = line.trim_start_matches([' ', '│', '├', '└', '─', '→']);
    let line = line.trim_start_matches("where").trim_start();
    let is_copied = ["pinfold ", "sudo ", "<", "line "].iter().any(|start| line.starts_with(start));
    let are_parameters = line.split(' ').all(|word| word.contains('='));
    is_copied || are_parameters || line.contains(" <") || !line.contains(' ')
}

/// Asserts that no line that could be broken is wider than the columns.
fn fits(arguments: &[&str], variables: &[&str], columns: usize) {
    let output = run(variables, arguments);
    let text = output.stdout_text() + &output.stderr_text();
    let mut is_continued = false;
    for line in text.lines() {
        let is_copied = std::mem::replace(&mut is_continued, line.ends_with('\\'));
        let fits = line.chars().count() <= columns || is_copied || is_unbreakable(line);
        assert!(fits, "{arguments:?} {variables:?} in {columns}: {line:?}\n{text}");
    }
    assert!(!text.contains('\u{1b}'), "{arguments:?}: no colour in a pipe");
}

#[test]
fn lines_fit_the_columns_that_are_asked_for() {
    for columns in [40, 80, 200] {
        for arguments in SHOWN.iter().chain(&REFUSED) {
            fits(arguments, &[&format!("COLUMNS={columns}")], columns);
        }
    }
}

#[test]
fn help_fits_the_columns_and_80_where_none_are_known() {
    for help in helps() {
        let arguments: Vec<&str> = help.iter().map(String::as_str).collect();
        for columns in [40, 80, 200] {
            fits(&arguments, &[&format!("COLUMNS={columns}")], columns);
        }
        fits(&arguments, &[], 80);
    }
}

/// Where no width is known pictures and tables take 80 columns, and sentences of messages are one
/// line each, for programs that search.
#[test]
fn without_a_width_only_sentences_are_wider_than_80_columns() {
    for arguments in SHOWN.iter().chain(&REFUSED) {
        let known = run(&["COLUMNS=80"], arguments);
        for variables in [&[][..], &["COLUMNS=0"]] {
            let output = run(variables, arguments);
            assert_eq!(
                flat(output.stdout_text() + &output.stderr_text()),
                flat(known.stdout_text() + &known.stderr_text()),
                "{arguments:?} {variables:?}"
            );
            let text = output.stdout_text();
            for line in text
                .lines()
                .filter(|line| line.contains(|letter| ('\u{2500}'..='\u{259f}').contains(&letter)))
            {
                assert!(line.chars().count() <= 80, "{arguments:?} {variables:?}: {line}");
            }
        }
    }
}

/// A command on lines of its own has no backticks, and a backslash where it is broken.
fn flat(text: String) -> String {
    let text = text.replace(" \\\n", " ").replace('`', "");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
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
    assert_eq!(first(&["status"]), "no placement is active");
    assert!(first(&["doctor"]).starts_with("pinfold tune can"), "{}", first(&["doctor"]));
    let check = first(&["plan", "--check", DOMAIN, "--input", DESKTOP]);
    assert!(check.contains("warning") || check.contains("note"), "{check}");
    let plan = first(&["plan", "-s", "balanced", "--vcpus", "16", "--input", DESKTOP]);
    assert!(plan.starts_with("balanced for vm: 16 vCPUs pinned to"), "{plan}");
}

fn first(arguments: &[&str]) -> String {
    run(&[], arguments).stdout_text().lines().next().unwrap_or_default().to_owned()
}

/// A directory that cannot be created, as of a user without a home.
#[test]
fn reading_needs_no_state_directory() {
    let none = "/proc/none/pinfold";
    for arguments in [&[][..], &["status"], &["status", "--json"], &["journal"]] {
        let arguments = [&["--state-dir", none], arguments].concat();
        let output = run(&[], &arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", output.stderr_text());
        let empty = run(&["PINFOLD_STATE_DIR="], &arguments[2..]);
        assert_eq!(empty.status.code(), Some(2), "{arguments:?}: {}", empty.stderr_text());
        assert!(empty.stderr_text().contains("PINFOLD_STATE_DIR"), "{}", empty.stderr_text());
    }
    run(&[], &["--state-dir", none, "journal", "7-1"]).expect_code(2);
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
    assert_eq!(why.matches("belongs to a core reserved for").count(), 1, "{why}");
    let flat = why.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(flat.contains("has a vCPU too; the same for the others"), "{why}");
}

/// Each command that has `--json`, with arguments that end at once; `None` where it takes a
/// machine or a measurement, which other tests do.
const IN_JSON: [(&str, Option<&[&str]>); 21] = [
    ("advise", Some(&["--vcpus", "1"])),
    ("claims", Some(&["--seconds", "0"])),
    ("topo", Some(&[])),
    ("doctor", Some(&[])),
    ("plan", Some(&["--list"])),
    ("status", Some(&[])),
    ("top", Some(&["--once"])),
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
    ("version", Some(&[])),
];

/// The commands that a help text lists.
fn commands(path: &[&str]) -> Vec<String> {
    let help = run(&[], &[path, &["--help"]].concat()).stdout_text();
    // The commands of the program are in groups.
    let listed = help.lines().skip_while(|line| !matches!(*line, "Commands:" | "See:")).skip(1);
    let names = listed.take_while(|line| !line.is_empty());
    let names = names.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

fn every_command() -> Vec<String> {
    let mut all = Vec::new();
    for name in commands(&[]).into_iter().filter(|name| name != "help") {
        let below = commands(&[&name]);
        if below.is_empty() {
            all.push(name)
        } else {
            all.extend(
                below.into_iter().filter(|one| one != "help").map(|one| format!("{name} {one}")),
            )
        }
    }
    assert!(all.len() > 20, "{all:?}");
    all
}

#[test]
fn every_command_prints_json_or_refuses_it() {
    for command in every_command() {
        let words: Vec<&str> = command.split(' ').collect();
        let known = IN_JSON.iter().find(|(name, _)| *name == command);
        let help = run(&[], &[&words[..], &["--help-all"]].concat()).stdout_text();
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
    assert!(said_of_failure(&["plan", "--vcpus", "0"]).contains("has at least one vCPU"));
    assert!(said_of_failure(&["run", "--", "ls"]).contains("run --cores 1 -- ls"));
}

fn said_of_failure(arguments: &[&str]) -> String {
    let output = run(&[], arguments);
    assert!(!output.status.success(), "{arguments:?}");
    output.stderr_text()
}

#[test]
fn missing_rights_say_how_to_have_them_with_the_variables_that_are_set() {
    let Some(setpriv) = find_program("setpriv").filter(|_| is_root()) else {
        return skip("needs root and setpriv");
    };
    let unset = "--unset=PINFOLD_IGNORE_CLAIMS";
    let user =
        [unset, "PINFOLD_STATE_DIR=/root/pinfold-none", &setpriv, "--reuid=65534", "--regid=65534"];
    let words = [&user[..], &["--clear-groups", PINFOLD, "undo", "--all"]].concat();
    let output = common::run("env", words);
    if matches!(output.status.code(), Some(126 | 127)) {
        return skip("another user may not run this program");
    }
    let said = output.stderr_text();
    assert_eq!(output.status.code(), Some(3), "{said}");
    let command = "(`sudo PINFOLD_STATE_DIR=/root/pinfold-none pinfold undo --all`)";
    assert!(said.contains(&format!("run it as root {command}")), "{said}");
}

/// As before `| head -1`: the reader has gone, which is no error.
#[test]
fn a_closed_pipe_ends_a_command_quietly() {
    let sandbox = Sandbox::new();
    let lines = [
        "status",
        "status --json",
        "journal",
        "claims --seconds 0",
        "claims --seconds 0 --json",
        "topo",
        "topo --json",
        "topo --capture",
        "doctor",
        "plan --list",
        "plan -s balanced --vcpus 2 --input example:ryzen-7950x3d",
        "plan -s balanced --vcpus 2 --input example:ryzen-7950x3d --emit libvirt",
        "advise --vcpus 1",
        "measure --list",
        "emulate methods",
        "help",
        "help formats",
        "help files",
        "--help",
        "run --help",
        "completions bash",
        "version",
        "top --once",
    ];
    for line in lines {
        let words: Vec<&str> = line.split(' ').collect();
        let spawn = sandbox.spawn(&words).stdout(Stdio::Pipe).stderr(Stdio::Pipe);
        let mut child = spawn.die_with_parent(true).start().expect("it starts");
        drop(child.stdout());
        let mut said = String::new();
        child.stderr().expect("a pipe").read_to_string(&mut said).expect("text");
        let status = child.wait().expect("it ends");
        assert!(!said.contains("panicked"), "{line}: {said}");
        assert_eq!(status.code(), Some(0), "{line}: {said}");
    }
}
