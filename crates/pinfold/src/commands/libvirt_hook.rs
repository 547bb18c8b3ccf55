//! `pinfold libvirt-hook`: the program that libvirt calls when a domain starts and stops.

use std::process::ExitCode;

use pinfold_run::libvirt_hook::{handle, log_unknown_call};
use pinfold_run::{Failure, HookEvent};

use crate::cli::{LibvirtHookArgs, layout};
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

/// Prints and logs why the arguments were not understood, and succeeds: libvirt does not start a
/// domain whose hook fails.
pub fn ignore(error: clap::Error) -> ExitCode {
    let text = error.to_string();
    log_unknown_call(text.lines().next().unwrap_or_default());
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
    handle(&event, state);
    Ok(())
}
