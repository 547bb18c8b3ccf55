//! The completions load in their shells and give values of this host; the man pages are there and
//! without errors.

use crate::common::{Checked as _, PINFOLD, Sandbox, is_missing, pinfold, run, skip};
use pinfold_host::process::find_program;
use pinfold_host::{LiveHost, files};

/// Calls the function that the completions register, as bash does.
const BASH: &str = r#"
source "$0/completions"
complete -p pinfold > /dev/null || exit 1
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_TYPE=9
_clap_complete_pinfold pinfold "${COMP_WORDS[COMP_CWORD]}"
printf '%s\n' "${COMPREPLY[@]}"
"#;
/// Finds the completions as a file of `fpath`; outside its line editor zsh has no `_describe`.
const ZSH: &str = r#"
fpath=("$0" $fpath)
autoload -Uz compinit && compinit -u -D
words=("$@") CURRENT=$#
_describe() { print -l -- "${(@)${(P)@[-1]}%%:*}" }
[[ $_comps[pinfold] == _pinfold ]] || exit 1
_pinfold
"#;
const FISH: &str = "source $argv[1]/completions; complete -C \"$argv[2..]\"";

/// A folder with this program and the completions of a shell.
fn folder(shell: &str) -> Sandbox {
    let sandbox = Sandbox::new();
    run("ln", ["-s", PINFOLD, &sandbox.path("pinfold")]).expect_success();
    let text = pinfold(["completions", shell]).stdout;
    for name in ["completions", "_pinfold"] {
        sandbox.write(name, &text);
    }
    sandbox
}

/// Completes the last word, and returns the values.
fn completed(shell: &str, folder: &str, words: &[&str]) -> Vec<String> {
    let start = match shell {
        "bash" => ["bash", "--norc", "-c", BASH].as_slice(),
        "zsh" => &["zsh", "-f", "-c", ZSH],
        _ => &["fish", "--no-config", "-c", FISH, "--"],
    };
    let path = format!("PATH={folder}:{}", std::env::var("PATH").expect("a path"));
    let words = [&[path.as_str()], start, &[folder, "pinfold"], words].concat();
    let output = run("env", &words);
    assert!(output.status.success(), "{words:?}: {}", output.stderr_text());
    let text = output.stdout_text();
    text.lines().map(|line| line.split('\t').next().unwrap_or(line).to_owned()).collect()
}

#[test]
fn each_shell_completes_commands_strategies_and_cpus() {
    let host = LiveHost::new().expect("a host");
    let topology = pinfold_topology::discover(&host).expect("a topology");
    let cpus: Vec<String> = topology.pus.iter().map(|pu| pu.os.0.to_string()).collect();
    let strategies: Vec<&str> = pinfold_plan::strategies().iter().map(|one| one.name).collect();
    for shell in ["bash", "zsh", "fish"] {
        if find_program(shell).is_none() {
            skip(format!("{shell} is not installed"));
            continue;
        }
        let sandbox = folder(shell);
        let folder = sandbox.root();
        let check = |words: &[&str]| completed(shell, &folder, words);
        assert_eq!(check(&["plan", "--strategy", ""]), strategies, "{shell}");
        assert_eq!(check(&["plan", "--strategy", "low-l"]), ["low-latency", "low-latency-rt"]);
        assert_eq!(check(&["plan", "--avoid", ""]), cpus, "{shell}");
        let lists: Vec<String> = cpus.iter().map(|cpu| format!("5,3-{cpu}")).collect();
        assert_eq!(check(&["measure", "wakeup", "--cpus", "5,3-"]), lists, "{shell}");
        assert_eq!(check(&["libvirt"]), ["libvirt-hook"], "{shell}");
        assert!(check(&["undo", "--"]).contains(&"--left".to_owned()), "{shell}");
        assert!(!check(&[""]).contains(&"guard".to_owned()), "{shell}: a hidden command");
    }
}

/// What a shell gets for the last word.
fn candidates(words: &[&str]) -> Vec<String> {
    let words = [&["PINFOLD_COMPLETE=fish", PINFOLD, "--", "pinfold"], words].concat();
    let output = run("env", &words);
    assert!(output.status.success() && output.stderr.is_empty(), "{}", output.stderr_text());
    let text = output.stdout_text();
    text.lines().map(|line| line.split('\t').next().unwrap_or(line).to_owned()).collect()
}

#[test]
fn probes_methods_nodes_and_files_are_candidates() {
    assert!(candidates(&["measure", ""]).contains(&"spin-gap".to_owned()));
    assert!(candidates(&["compare", "--guest", "demo", "--", "wake"]).is_empty());
    assert!(candidates(&["run", "--method", ""]).contains(&"stall".to_owned()));
    assert_eq!(candidates(&["measure", "wakeup", "--node", "0"]), ["0"]);
    let folder = format!("{}/tests/com", env!("CARGO_MANIFEST_DIR"));
    let found = candidates(&["plan", "--input", &folder]);
    assert!(found.contains(&format!("{folder}mon/")), "{found:?}");
    assert_eq!(candidates(&["plan", "--emit", "libv"]), ["libvirt"]);
    assert_eq!(candidates(&["completions", "z"]), ["zsh"]);
    assert!(candidates(&["undo", "no-such-id"]).is_empty());
}

#[test]
fn each_command_has_a_man_page_without_warnings() {
    let sandbox = Sandbox::new();
    let folder = sandbox.root();
    pinfold(["man", &folder]).expect_success();
    let names = files::list(&folder).expect("pages");
    for name in ["pinfold.1", "pinfold-plan.1", "pinfold-emulate-up.1", "pinfold-study-run.1"] {
        assert!(names.contains(&name.to_owned()), "{names:?}");
    }
    assert!(!names.contains(&"pinfold-guard.1".to_owned()), "a hidden command");
    if is_missing(&["man"]) {
        return;
    }
    for name in names {
        let path = format!("{folder}/{name}");
        let words = ["MANWIDTH=80", "man", "--warnings", "--local-file", &path];
        let output = run("env", words);
        assert_eq!(output.stderr_text(), "", "{name}");
        let text = output.stdout_text();
        for heading in ["NAME", "SYNOPSIS", "GLOBAL OPTIONS"] {
            assert!(text.lines().any(|line| line == heading), "{name}: {heading}\n{text}");
        }
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{name}\n{text}");
    }
}
