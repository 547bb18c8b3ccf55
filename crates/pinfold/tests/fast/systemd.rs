//! The unit files are taken by systemd's own checker, and their commands by Pinfold.

use crate::common::{PINFOLD, Sandbox, is_missing, pinfold, run};
use pinfold_host::files;

const UNITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/systemd");

fn units() -> Vec<(String, String)> {
    let names = files::list(UNITS).expect("the folder is there");
    let text = |name: &String| files::read_text(&format!("{UNITS}/{name}")).expect("text");
    names.into_iter().map(|name| (name.clone(), text(&name))).collect()
}

#[test]
fn systemd_takes_the_unit_files() {
    if is_missing(&["systemd-analyze"]) {
        return;
    }
    let sandbox = Sandbox::new();
    let mut files = Vec::new();
    for (name, text) in units() {
        // A template is checked as an instance, and the command must be there to be run.
        let file = format!("{}/{}", sandbox.root(), name.replace('@', "@vm1"));
        let text = text.replace("/usr/bin/pinfold", PINFOLD);
        files::write_atomic(&file, text.as_bytes()).expect("written");
        files.push(file);
    }
    assert!(files.len() >= 3, "{files:?}");
    for file in &files {
        let words = ["verify", "--man=no", "--recursive-errors=no", file];
        let output = run("systemd-analyze", words);
        let said = output.stderr_text();
        assert!(output.status.success() && said.trim().is_empty(), "{file}: {said}");
    }
    // The checker sees what is wrong at all.
    let bad = format!("{}/bad.service", sandbox.root());
    files::write_atomic(&bad, b"[Service]\nType=sometimes\nExecStart=/bin/true\n")
        .expect("written");
    let output = run("systemd-analyze", ["verify", "--man=no", &bad]);
    assert!(output.stderr_text().contains("sometimes"));
}

#[test]
fn a_unit_that_watches_may_get_messages_about_new_threads() {
    let watches = |text: &str| {
        let mut lines = text.lines().filter(|line| line.starts_with("ExecStart="));
        lines.any(|line| line.contains("pinfold watch") || line.ends_with(" --watch"))
    };
    let watching: Vec<_> = units().into_iter().filter(|(_, text)| watches(text)).collect();
    assert_eq!(watching.len(), 2);
    for (name, text) in watching {
        let mut sets = text.lines().filter(|line| line.starts_with("CapabilityBoundingSet="));
        assert!(sets.any(|line| line.contains("CAP_PERFMON")), "{name}");
        assert!(text.contains("\nLimitNOFILE=") && text.contains("\nLimitMEMLOCK="), "{name}");
    }
}

#[test]
fn the_units_commands_are_pinfolds() {
    for (name, text) in units() {
        let lines = text.lines().filter_map(|line| line.strip_prefix("ExecStart=/usr/bin/pinfold"));
        let commands: Vec<&str> = lines.collect();
        assert!(!commands.is_empty(), "{name} runs pinfold");
        for command in commands {
            // Parsed to its end: help is shown only if nothing before it is wrong.
            let words = command.split_whitespace().map(|word| word.replace("%I", "vm1"));
            let words: Vec<String> = words.chain(["--help-all".to_owned()]).collect();
            let output = pinfold(&words);
            assert!(output.status.success(), "{name}: {}", output.stderr_text());
            let help = output.stdout_text();
            for option in words.iter().filter(|word| word.starts_with("--")) {
                assert!(help.contains(option.as_str()), "{name}: {option} is not an option");
            }
        }
    }
}
