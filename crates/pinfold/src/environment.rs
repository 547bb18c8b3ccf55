//! Options from environment variables, and unknown variables.
//!
//! `PINFOLD_STATE_DIR` sets `--state-dir`, and so on: the help of each option names its variable. A
//! variable with this prefix that belongs to no option is reported, because it is probably a
//! mistake.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Command, FromArgMatches as _};
use pinfold_model::command::quote;
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
    let command = layout::command().term_width(help_columns());
    let known = variables(&command);
    let matches = command.clone().try_get_matches()?;
    // Commands that Pinfold starts itself were checked by the command that the user typed.
    let is_hidden = matches.subcommand_name().and_then(|name| command.find_subcommand(name));
    if !is_hidden.is_some_and(Command::is_hide_set) {
        let names = std::env::vars_os().map(|(name, _)| name);
        unknown(names, &known).iter().for_each(|name| {
            let name = output::name(name);
            let known = known.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
            output::say(&format!(
                "warning: the variable {name} has no meaning here ({known} have)"
            ));
        });
    }
    Cli::from_arg_matches(&matches)
}

/// Width of the help.
pub fn help_columns() -> usize {
    screen::width().min(HELP_COLUMNS).into()
}

/// Prints the help, or the error in a command line.
pub fn explain(error: &clap::Error) -> ExitCode {
    output::usage(error);
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(Exit::Input.code()))
}

/// The command line as it was typed, with the environment variables of this program before it,
/// because `sudo` does not pass them on.
pub fn again() -> String {
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
