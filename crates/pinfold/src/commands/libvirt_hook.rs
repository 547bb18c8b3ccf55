//! `pinfold libvirt-hook`: the program that libvirt calls when a domain starts and stops.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use pinfold_run::libvirt_hook::{handle, log_unknown_call, report_surplus};
use pinfold_run::{Failure, HookEvent};

use crate::cli::{Cli, Command, LibvirtHookArgs, layout};
use crate::environment;

/// Number of the arguments of libvirt that every version has: domain, operation, phase.
const LEAST: usize = 3;

/// True if libvirt has called its hook, whatever else is wrong with the command line.
pub fn is_called() -> bool {
    let mut words = std::env::args_os().skip(1);
    // Options of the program may stand before it, a domain's name only behind it.
    let first = words.find(|word| {
        let word = word.to_string_lossy();
        layout::command().find_subcommand(word.as_ref()).is_some()
    });
    first.is_some_and(|word| word == "libvirt-hook") && words.count() >= LEAST
}

/// The command line without options that this version does not know, which are kept as surplus
/// arguments; the error if that is not its only fault.
pub fn parse_known(mut error: clap::Error) -> Result<Cli, clap::Error> {
    let mut words: Vec<OsString> = std::env::args_os().collect();
    let mut unknown = Vec::new();
    loop {
        let Some(place) = unknown_option(&error, &words) else { return Err(error) };
        unknown.push(words.remove(place));
        match environment::parse_from(&words) {
            Ok(mut cli) => {
                if let Some(Command::LibvirtHook(arguments)) = &mut cli.command {
                    arguments.more.extend(unknown);
                }
                return Ok(cli);
            }
            Err(next) => error = next,
        }
    }
}

/// The position of the option that is not known; before the command, an option is a mistake of the
/// user.
fn unknown_option(error: &clap::Error, words: &[OsString]) -> Option<usize> {
    if error.kind() != ErrorKind::UnknownArgument {
        return None;
    }
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let command = words.iter().position(|word| word == "libvirt-hook")?;
    let place = words.iter().rposition(|word| {
        let word = word.to_string_lossy();
        word.split('=').next() == Some(option)
    });
    place.filter(|place| *place > command + LEAST)
}

/// Prints and logs why the arguments were not understood, and succeeds: libvirt does not start a
/// domain whose hook fails.
pub fn ignore(error: clap::Error) -> ExitCode {
    let text = error.to_string();
    // The usage follows an empty line.
    let why: Vec<&str> = text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
    log_unknown_call(&why.join(" "));
    let _its_code = environment::explain(error);
    ExitCode::SUCCESS
}

/// Handles one event of the domain's life cycle, and never fails.
pub fn libvirt_hook(arguments: &LibvirtHookArgs, state: Option<&str>) -> Result<(), Failure> {
    let event = HookEvent {
        domain: arguments.domain.clone(),
        operation: arguments.operation.clone(),
        phase: arguments.phase.clone(),
        plans: arguments.plans.clone(),
        domains: arguments.domains.clone(),
        run_dir: arguments.run_dir.clone(),
        is_late: arguments.late,
    };
    let surplus = arguments.more.iter().map(|word| word.to_string_lossy().into_owned());
    report_surplus(&event, &surplus.collect::<Vec<_>>());
    handle(&event, state);
    Ok(())
}
