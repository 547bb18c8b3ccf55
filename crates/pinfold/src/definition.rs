//! Completions and man pages, from the one definition of the command line.
//!
//! A shell's completion asks this program, with [`VARIABLE`] in its environment, so that it knows
//! the CPUs, domains and placements of this host.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;

use clap::builder::ValueHint;
use clap::{Arg, Command};
use clap_complete::engine::{
    ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter as _,
};
use clap_complete::env::Shells;
use clap_complete::{CompleteEnv, Shell};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};
use pinfold_host::files;
use pinfold_run::completions::{self, Candidate};
use pinfold_run::{Exit, Failure};

use crate::cli::{CompletionsArgs, ManArgs, layout};
use crate::output;

/// The shell that asks for a completion.
const VARIABLE: &str = "PINFOLD_COMPLETE";
/// zsh calls the file itself the first time, and only defines the function then.
const ZSH_FIRST: &str =
    "if [[ $funcstack[1] == _pinfold ]]; then _clap_dynamic_completer_pinfold; fi";

/// Prints what may follow and ends the process, if a shell asks for that.
pub fn complete() {
    CompleteEnv::with_factory(|| with_values(layout::command())).var(VARIABLE).complete();
}

/// Prints the completions of a shell.
pub fn completions(arguments: &CompletionsArgs) -> Result<(), Failure> {
    let shells = Shells::builtins();
    let shell = shells.completer(&arguments.shell.to_string());
    let shell = shell.ok_or_else(|| Failure::new(Exit::Input, "unknown shell"))?;
    let mut script = Vec::new();
    let written = shell.write_registration(VARIABLE, "pinfold", "pinfold", "pinfold", &mut script);
    written.map_err(not_written)?;
    let first = if arguments.shell == Shell::Zsh { ZSH_FIRST } else { "" };
    output::document(&format!("{}\n{first}\n", String::from_utf8_lossy(&script).trim()));
    Ok(())
}

/// Writes a man page for each command into a folder.
pub fn man(arguments: &ManArgs) -> Result<(), Failure> {
    files::make_dirs(&arguments.folder)?;
    let mut root = layout::with_examples();
    root.build();
    pages(&root, &arguments.folder)
}

fn pages(command: &Command, folder: &str) -> Result<(), Failure> {
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        pages(inner, folder)?;
    }
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").to_owned();
    let page = Man::new(command.clone().override_usage(usage).after_help(None))
        .source(concat!("pinfold ", env!("CARGO_PKG_VERSION")))
        .manual("Pinfold");
    let mut text = Vec::new();
    page.render(&mut text).map_err(not_written)?;
    let end = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let end = if command.get_name() == "pinfold" { exit_status(&end) } else { examples(&end) };
    text.extend(end.render().into_bytes());
    // Not every locale has the character.
    let text = String::from_utf8_lossy(&text).replace('…', "\\&...");
    Ok(files::write_atomic(&format!("{folder}/{}", page.get_filename()), text.as_bytes())?)
}

/// The examples of a command, and where the exit codes are.
fn examples(help: &str) -> Roff {
    let mut section = Roff::new();
    if !help.is_empty() {
        section.control("SH", ["EXAMPLES"]).control("EX", []);
        for line in help.lines().skip(1) {
            section.text([roman(line.trim_start())]);
        }
        section.control("EE", []);
    }
    section.control("SH", ["SEE ALSO"]).text([roman("pinfold(1), also for the exit codes")]);
    section
}

/// The list of exit codes as a list of man, and the sentences after it.
fn exit_status(help: &str) -> Roff {
    let mut section = Roff::new();
    section.control("SH", ["EXIT STATUS"]);
    for line in help.lines().skip(1) {
        let text = line.trim_start();
        match (line.len() - text.len(), text.split_once("  ")) {
            (2, Some((code, meaning))) => {
                section.control("TP", []).text([roman(code)]).text([roman(meaning)])
            }
            (0, _) if line.starts_with('`') => section.control("PP", []).text([roman(text)]),
            _ => section.text([roman(text)]),
        };
    }
    section
}

fn not_written(error: io::Error) -> Failure {
    Failure::new(Exit::Host, format!("cannot write the text: {error}"))
}

/// The definition, with what completes the values of its arguments.
fn with_values(command: Command) -> Command {
    let name = command.get_name().to_owned();
    command.mut_args(|argument| with_value(&name, argument)).mut_subcommands(with_values)
}

fn with_value(command: &str, argument: Arg) -> Arg {
    let list = match (command, argument.get_id().as_str()) {
        (_, "strategy" | "strategies") => completions::strategies,
        (_, "avoid" | "host_pus" | "cpus" | "pus" | "pu") => {
            return argument.add(ArgValueCompleter::new(cpus));
        }
        (_, "node") => completions::nodes,
        (_, "libvirt" | "domain" | "machine") => completions::domains,
        ("attach" | "exec" | "shell" | "set" | "verify" | "measure", "vnode") => vnodes,
        ("journal", "id") => placements,
        ("undo" | "status" | "watch", "id") => list_placements,
        (_, "probe") => completions::probes,
        (_, "method") => completions::methods,
        ("check" | "run", "file") => return argument.add(ArgValueCompleter::new(studies)),
        _ => {
            let name = argument.get_value_names().and_then(|names| names.first());
            return match name.map_or("", |name| name.as_str()) {
                "DIR" => argument.value_hint(ValueHint::DirPath),
                "FILE" | "FILE|DESCRIPTION" | "PATH" | "STORE" | "SOCKET" | "COMMAND" => {
                    argument.value_hint(ValueHint::AnyPath)
                }
                _ => argument,
            };
        }
    };
    argument.add(ArgValueCompleter::new(move |word: &OsStr| beginning("", word, list())))
}

/// The candidates that begin with the word, after a part of it that stays.
fn beginning(kept: &str, word: &OsStr, all: Vec<Candidate>) -> Vec<CompletionCandidate> {
    let word = word.to_string_lossy().into_owned();
    let all = all.into_iter().map(|(value, what)| (format!("{kept}{value}"), what));
    let fitting = all.filter(|(value, _)| value.starts_with(&word));
    fitting.map(|(value, what)| CompletionCandidate::new(value).help(Some(what.into()))).collect()
}

/// The CPUs after the last comma or hyphen of a list.
fn cpus(word: &OsStr) -> Vec<CompletionCandidate> {
    let list = word.to_string_lossy();
    let kept = list.rfind([',', '-']).map_or("", |at| list.split_at(at + 1).0);
    beginning(kept, word, completions::cpus())
}

/// The included studies and all paths.
fn studies(word: &OsStr) -> Vec<CompletionCandidate> {
    let mut all = beginning("", word, completions::studies());
    all.extend(PathCompleter::any().complete(word));
    all
}

fn vnodes() -> Vec<Candidate> {
    completions::vnodes(state().as_deref())
}

fn placements() -> Vec<Candidate> {
    completions::placements(state().as_deref())
}

/// The active placements by ID and by name.
fn list_placements() -> Vec<Candidate> {
    let placements = placements();
    // What has no name, a platform, is described in its place.
    let named = placements.iter().filter(|(_, name)| !name.contains(' '));
    let names = named.map(|(id, name)| (name.clone(), id.clone()));
    names.collect::<BTreeMap<_, _>>().into_iter().chain(placements.clone()).collect()
}

/// The environment is all that a completion has of the options before.
fn state() -> Option<String> {
    std::env::var("PINFOLD_STATE_DIR").ok()
}
