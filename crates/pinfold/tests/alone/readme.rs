//! Every command of the README, the guide, the FAQ and the pages on libvirt, measuring and exits is
//! run, or parsed where it needs a machine of the reader's.

use crate::common::{
    Checked as _, PINFOLD, ROOT, Sandbox, WITHOUT_CLAIMS, pinfold, split_words, take_turn, until,
};
use pinfold_host::process::{Child, Spawn, Stdio};
use pinfold_host::{Host as _, LiveHost};

const PAGES: [&str; 6] = [
    "README.md",
    "docs/guide.md",
    "docs/faq.md",
    "docs/libvirt.md",
    "docs/measuring.md",
    "docs/exits.md",
];
const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/examples/desktop.xml");

/// The `pinfold …` lines of a page's shell blocks, without their comments.
fn commands(page: &str) -> Vec<String> {
    let text =
        pinfold_host::files::read_text(&format!("{ROOT}/{page}")).expect("the page is there");
    let mut inside = false;
    let mut found = Vec::new();
    for line in text.lines() {
        if line.starts_with("```") {
            inside = line.starts_with("```sh");
        } else if inside && line.starts_with("pinfold ") {
            let line = line.split("  #").next().unwrap_or(line);
            found.push(line.split(" > ").next().unwrap_or(line).trim().to_owned());
        }
    }
    found
}

/// A word of a command; files of the pages are named from the repository's root.
fn from_root(word: &String) -> String {
    if ["docs/", "fixtures/", "studies/"].iter().any(|folder| word.starts_with(folder)) {
        format!("{ROOT}/{word}")
    } else {
        word.clone()
    }
}

/// Until its command runs, or it was refused: else its node may end before it has begun.
fn wait_for_command(host: &LiveHost, task: &mut Child) {
    let children = format!("/proc/{0}/task/{0}/children", task.pid());
    until(|| {
        let has_command = host.read_text(&children).is_ok_and(|text| !text.is_empty());
        has_command || task.try_wait().is_ok_and(|status| status.is_some())
    });
}

#[test]
fn the_commands_of_readme_and_guide_work() {
    let _turn = take_turn();
    let sandbox = Sandbox::new();
    let state = sandbox.root();
    let commands = PAGES.map(commands);
    assert!(commands.iter().all(|page| page.len() >= 5), "{commands:?}");
    let host = LiveHost::new().expect("a host");
    let facts = pinfold_emulate::Facts::find(&host).expect("facts");
    let cores = pinfold_host::Host::affinity(&host, pinfold_model::Tid(0)).expect("a mask").len();
    let has_vnodes = pinfold_emulate::best(&facts).is_some() && cores > 1;
    let mut background = Vec::new();
    for line in commands.into_iter().flatten() {
        let is_background = line.ends_with(" &");
        let words = split_words(line.trim_end_matches(" &"));
        // A running machine, or a store.
        let command = words.get(1).map_or("", String::as_str);
        let names_machine = matches!(command, "status" | "undo")
            && words.get(2).is_some_and(|word| !word.starts_with('-'))
            || words.iter().any(|word| word == "NAME");
        let needs_more = names_machine
            || matches!(command, "run" | "quiet" | "apply" | "top" | "tune" | "report" | "exits");
        let mut arguments = vec!["--state-dir".to_owned(), state.clone()];
        if needs_more {
            // Parsing only: the help of the very command, with its options checked by clap.
            let options = words.iter().filter(|word| word.starts_with("--") && word.len() > 2);
            let help = pinfold([command, "--help-all"]);
            let help = help.stdout_text();
            for option in options {
                assert!(help.contains(option.as_str()), "{line}: {option} is not an option");
            }
            continue;
        }
        arguments.extend(words[1..].iter().map(from_root));
        if is_background {
            let task = Spawn::new(PINFOLD).args(&arguments).stdin(Stdio::Null).stdout(Stdio::Null);
            let task =
                task.env(WITHOUT_CLAIMS, "true").stderr(Stdio::Null).die_with_parent(true).start();
            let mut task = task.expect("starts");
            wait_for_command(&host, &mut task);
            background.push((line, task));
            continue;
        }
        let output = pinfold(&arguments);
        let code = output.status.code();
        // The doctor may find that the main job cannot run here: that is an answer.
        // So may the review of the example, which was made to have faults.
        let answers = command == "doctor" || words.iter().any(|word| word == "--check");
        let fine = code == Some(0) || (answers && code == Some(1));
        // Without the rights, or with one core, there are no vnodes, and the rest has no platform.
        let vnodes = command == "emulate" && matches!(code, Some(1..=3));
        let no_vnodes = vnodes && !output.stderr.is_empty() && !has_vnodes;
        // A file system without O_DIRECT has nothing for `io` to time, and says so.
        let no_direct = command == "measure" && words[2] == "io" && code == Some(3);
        // A host of one core has no low-latency placement, and says so.
        let refused = command == "plan" && code == Some(2) && !output.stderr.is_empty();
        assert!(
            fine || refused || no_vnodes || no_direct,
            "{line}: {code:?}\n{}",
            output.stderr_text()
        );
    }
    // They end by themselves, or with their node; Pinfold's own exit codes are those of an error.
    for (line, mut task) in background {
        let code = task.wait().expect("ends").code();
        assert!(!has_vnodes || !matches!(code, Some(1..=5)), "{line}: {code:?}");
    }
}

/// `--into` says which machine is planned, whatever is printed of the plan.
#[test]
fn the_machine_of_a_domain_file_is_planned_without_a_format() {
    let _turn = take_turn();
    let words =
        ["plan", "-s", "balanced", "--input", "package:1 l3:1 core:4 pu:2", "--into", EXAMPLE];
    for more in [&[][..], &["--explain"]] {
        let output = pinfold([&words[..], more].concat());
        output.expect_code(0);
        let text = output.stdout_text();
        assert!(text.starts_with("balanced for desktop: 6 vCPUs"), "{text}");
    }
}

#[test]
fn bad_input_is_reported_with_a_hint() {
    let _turn = take_turn();
    check(&["plan", "--strategy", "balancd"], 2, "did you mean balanced?");
    check(&["plan", "--strategy", "none", "--vcpus", "many"], 2, "neither a number");
    check(&["plan", "--strategy", "none", "--avoid", "8-3"], 2, "backwards");
    check(&["plan", "--strategy", "none", "--avoid", "60000"], 2, "has no CPU 60000");
    check(&["plan", "--strategy", "none", "--vcpus", "99999"], 2, "at most");
    check(&["plan", "--check"], 2, "nothing to check");
    check(&["plan", "--check", "/nonexistent/a.xml"], 2, "/nonexistent/a.xml");
    check(
        &["plan", "--check", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")],
        2,
        "neither a plan",
    );
    check(&["plan", "--check", "--all", "--pid", "1"], 2, "cannot be used with");
    check(&["plan", "--libvirt", "a", "-s", "none"], 2, "--check --libvirt NAME");
    check(&["plan", "-s", "none", "--emit", "virsh", "--into", EXAMPLE], 2, "needs --emit libvirt");
    check(&["topo", "--input", "/nonexistent/host.xml"], 2, "/nonexistent/host.xml");
    check(&["apply", "--qmp", "/nonexistent/qmp", "--strategy", "none"], 4, "no such socket");
    check(&["apply", "--pid", "1", "--strategy", "none"], 4, "not QEMU");
    check(&["report", "--store", "/nonexistent/store"], 2, "/nonexistent/store");
    check(&["tune", "--budget", "10", "--demo"], 2, "\"10\": is not a time");
    check(&["tune", "--budget", "10s", "--demo", "--strategies", "nonsense"], 2, "nonsense");
}

fn check(arguments: &[&str], code: i32, reported: &str) {
    let output = pinfold(arguments);
    let said = output.stderr_text();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
    assert!(said.contains(reported), "{arguments:?}: {said}");
}
