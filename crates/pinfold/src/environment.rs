//! Options from environment variables, and unknown variables.
//!
//! `PINFOLD_STATE_DIR` sets `--state-dir`, and so on: the help of each option names its variable. A
//! variable with this prefix that belongs to no option is reported, because it is probably a
//! mistake.

use std::collections::BTreeSet;
use std::error::Error as _;
use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};
use clap::{Command, FromArgMatches as _};
use pinfold_model::closest;
use pinfold_model::command::quote;
use pinfold_plan::strategies;
use pinfold_run::Exit;

use crate::cli::{Cli, layout};
use crate::{common, output, screen};

/// Prefix of the variables of this program.
const PREFIX: &str = "PINFOLD_";
/// Variables of the test suite.
const TESTS: [&str; 2] = ["PINFOLD_TEST_", "PINFOLD_BLESS"];
/// Maximum width of the help.
const HELP_COLUMNS: u16 = 100;

/// Parses the command line, with the options from the environment.
///
/// # Errors
/// If it is not a valid command line.
pub fn parse() -> Result<Cli, clap::Error> {
    parse_from(&std::env::args_os().collect::<Vec<_>>())
}

/// The same with another command line.
///
/// # Errors
/// As [`parse`].
pub fn parse_from(words: &[OsString]) -> Result<Cli, clap::Error> {
    let command = layout::command().term_width(help_columns());
    let known = variables(&command);
    let matches = command.clone().try_get_matches_from(words)?;
    // Commands that Pinfold starts itself were checked by the command that the user typed.
    let is_hidden = matches.subcommand_name().and_then(|name| command.find_subcommand(name));
    if !is_hidden.is_some_and(Command::is_hide_set) {
        let names = std::env::vars_os().map(|(name, _)| name);
        unknown(names, &known).iter().for_each(|name| {
            let name = output::name(name);
            let known = known.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            output::print_message(&format!(
                "warning: the environment variable {name} is ignored (known: {known})"
            ));
        });
    }
    Cli::from_arg_matches(&matches)
}

/// Width of the help.
pub fn help_columns() -> usize {
    screen::width().min(HELP_COLUMNS).into()
}

/// Words that people type for commands and options of other names.
const MEANT: [(&str, &str); 14] = [
    ("htop", "`pinfold top` shows which machine waits for a CPU now, and why"),
    ("check", "`pinfold plan --check FILE` checks a domain file or a plan"),
    ("pin", "`pinfold apply NAME -s balanced` pins a running machine"),
    ("start", "`pinfold run -- qemu-system-x86_64 …` starts a machine under a plan"),
    ("list", "`pinfold plan --list` lists strategies, `pinfold status` active placements"),
    ("oslat", "`pinfold measure spin-gap` measures OS noise as oslat does"),
    ("cyclictest", "`pinfold measure wakeup` measures wake-ups as cyclictest does"),
    ("latency", "`pinfold measure` lists what can be measured"),
    ("taskset", "`pinfold run --cores N -- COMMAND` runs a command on cores of its own"),
    ("-w", "`pinfold advise --vcpus N --memory MIB` is what `numad -w N:MIB` asks"),
    ("--node", "`--avoid CPUS` excludes the CPUs of other nodes; `pinfold topo` lists them"),
    ("--numa", "`--avoid CPUS` excludes the CPUs of other nodes; `pinfold topo` lists them"),
    ("--cpus", "`--vcpus N` is the number of vCPUs, `--avoid CPUS` excludes host CPUs"),
    ("--cpuset", "`--vcpus N` is the number of vCPUs, `--avoid CPUS` excludes host CPUs"),
];

/// Values of the options that are written most often, for a command line without one.
const EXAMPLES: [&str; 14] = [
    "--avoid 0,16",
    "--cores 1",
    "--emit libvirt",
    "--free 2",
    "--group name=bench,cores=2",
    "--input example:ryzen-7950x3d",
    "--into vm.xml",
    "--isolate host",
    "--metrics /run/pinfold.sock",
    "--pid 4321",
    "--speed 40%",
    "--strategy balanced",
    "--vcpus 4",
    "--vm name=web,vcpus=4",
];

/// Prints the help, or the error in a command line.
pub fn explain(mut error: clap::Error) -> ExitCode {
    let hint = hint(&error);
    if hint.is_some() {
        for kind in [
            ContextKind::Suggested,
            ContextKind::SuggestedSubcommand,
            ContextKind::SuggestedArg,
            ContextKind::Usage,
        ] {
            error.remove(kind);
        }
    }
    output::usage(&error);
    if let Some(hint) = hint {
        output::print_message(&hint);
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(Exit::Input.code()))
}

/// What was probably meant by a command line with an error.
fn hint(error: &clap::Error) -> Option<String> {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        Some(_) | None => None,
    };
    if error.source().is_some_and(|source| {
        source.is::<std::num::ParseIntError>() || source.is::<std::num::ParseFloatError>()
    }) {
        return Some("write a number without a unit".to_owned());
    }
    let word = context(ContextKind::InvalidSubcommand).or(context(ContextKind::InvalidArg))?;
    // "--vcpus <N|auto>": the name of an option without its value.
    let is_empty = context(ContextKind::InvalidValue).is_some_and(|value| value.is_empty());
    if is_empty {
        let option = word.split(' ').next();
        let example = EXAMPLES.iter().find(|example| example.split(' ').next() == option);
        return example.map(|example| format!("for example: {example}"));
    }
    let is_zero = context(ContextKind::InvalidValue).is_some_and(|value| value == "0");
    if is_zero && word.starts_with("--vcpus") {
        return Some("a machine has at least 1 vCPU, for example: --vcpus 4".to_owned());
    }
    if let Some((_, meant)) = MEANT.iter().find(|(typed, _)| *typed == word) {
        return Some((*meant).to_owned());
    }
    let is_command = context(ContextKind::InvalidSubcommand).is_some();
    if is_command && error.get(ContextKind::SuggestedSubcommand).is_none() {
        let names = strategies().iter().map(|strategy| strategy.name);
        return closest(&word, names).map(|name| format!("`pinfold plan -s {name}` plans with it"));
    }
    if word.starts_with('-') && word[1..].starts_with(|letter: char| letter.is_ascii_digit()) {
        return Some(format!("{word} is negative; write a number of at least 1"));
    }
    let typed: Vec<String> = std::env::args().collect();
    if let Some(hint) = joint_plan_hint(&typed).filter(|_| !word.starts_with('-')) {
        return Some(hint);
    }
    (typed.iter().any(|one| one == "run") && !word.starts_with('-'))
        .then(|| format!("write -- before the command: `pinfold run -- {}`", quote(&word)))
}

/// What to write instead of `apply A B --plan FILE`.
fn joint_plan_hint(typed: &[String]) -> Option<String> {
    let is_apply = typed.iter().any(|one| one == "apply");
    let mut after = typed.iter().skip_while(|one| *one != "--plan").skip(1);
    let joined = typed.iter().find_map(|one| one.strip_prefix("--plan="));
    let plan = after.next().map(String::as_str).or(joined).filter(|_| is_apply)?;
    let plan = quote(plan);
    Some(format!("`pinfold apply --plan {plan}` applies the plan to all machines that it names"))
}

/// The command line as it was typed, with the environment variables of this program before it,
/// because `sudo` does not pass them on.
pub fn command_line() -> String {
    let set = std::env::vars().filter(|(name, _)| is_ours(name));
    let set = set.map(|(name, value)| format!("{name}={} ", quote(&value)));
    format!("{}{}", set.collect::<String>(), common::command_line())
}

fn is_ours(name: &str) -> bool {
    name.starts_with(PREFIX) && !TESTS.iter().any(|test| name.starts_with(test))
}

/// The variables of all options.
fn variables(command: &Command) -> BTreeSet<String> {
    let own = command.get_arguments().filter_map(|argument| argument.get_env());
    let own = own.map(|name| name.to_string_lossy().into_owned());
    own.chain(command.get_subcommands().flat_map(variables)).collect()
}

fn unknown(names: impl Iterator<Item = OsString>, known: &BTreeSet<String>) -> Vec<String> {
    names
        .map(|name| name.to_string_lossy().into_owned())
        .filter(|name| is_ours(name) && !known.contains(name))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_that_no_option_has_are_named() {
        let known = variables(&layout::command());
        for name in ["PINFOLD_STATE_DIR", "PINFOLD_STORE", "PINFOLD_REPORT"] {
            assert!(known.contains(name), "{name}");
        }
        let set = ["PINFOLD_STATE_DIR", "PINFOLD_STAET_DIR", "PINFOLD_TEST_SIZE", "HOME"];
        let found = unknown(set.into_iter().map(OsString::from), &known);
        assert_eq!(found, ["PINFOLD_STAET_DIR"]);
    }
}
