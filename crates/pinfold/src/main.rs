//! The binary: arguments → request → call → text.
//!
//! Each command is one file in `commands/`. Commands call the libraries, print data to standard
//! output and everything else to standard error, and exit with a documented code. Logic that other
//! programs could use is in the libraries.

mod cli;
mod commands;
mod common;
mod definition;
mod environment;
mod measure;
mod output;
mod progress;
mod screen;
mod study;
mod tune;

use std::process::ExitCode;

use pinfold_host::process;
use pinfold_model::command;
use pinfold_run::{Failure, end_waiter, message, rt_watchdog};

use cli::Command;
use commands::{
    advise, apply, claims, doctor, emulate, exits, help, journal, libvirt_hook, overview, plan,
    quiet, report, run, status, top, topo, undo, watch,
};

fn main() -> ExitCode {
    if let Some(words) = advise::numad_arguments() {
        return advise::run_as_numad(&words);
    }
    definition::complete();
    message::set_sink(output::print_message);
    let cli = match environment::parse() {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() && libvirt_hook::is_called() => {
            match libvirt_hook::parse_known(error) {
                Ok(cli) => cli,
                Err(error) => return libvirt_hook::ignore(error),
            }
        }
        Err(error) => return environment::explain(error),
    };
    let state = cli.state_dir.as_deref();
    let options = state.map(|path| format!("--state-dir {}", command::quote(path)));
    options.into_iter().for_each(command::set_global_options);
    let Some(command) = &cli.command else {
        return print_result(overview::overview(state));
    };
    let result = match command {
        Command::Topo(arguments) => topo::topo(arguments, state),
        Command::Doctor(arguments) => doctor::doctor(arguments),
        Command::Claims(arguments) => claims::claims(arguments, state),
        Command::Advise(arguments) => advise::advise(arguments, state),
        Command::Plan(arguments) => plan::plan(arguments, state),
        Command::Run(arguments) => run::run(arguments, state),
        Command::Quiet(arguments) => quiet::quiet(arguments, state),
        Command::Apply(arguments) => apply::apply(arguments, state),
        Command::Status(arguments) => status::status(arguments, state),
        Command::Top(arguments) => top::top(arguments, state),
        Command::Undo(arguments) => undo::undo(arguments, state),
        Command::Watch(arguments) => watch::watch(arguments, state),
        Command::Journal(arguments) => journal::journal(arguments, state),
        Command::LibvirtHook(arguments) => libvirt_hook::libvirt_hook(arguments, state),
        Command::Guard(arguments) => rt_watchdog::guard(&arguments.id, state),
        Command::EndWaiter(arguments) => end_waiter::wait(&arguments.id, state),
        Command::Emulate(arguments) => emulate::emulate(arguments, state),
        Command::Sentinel(arguments) => emulate::sentinel(arguments),
        Command::Measure(arguments) => measure::measure(arguments, state),
        Command::Compare(arguments) => measure::compare(arguments, state),
        Command::Tune(arguments) => tune::tune(arguments, state),
        Command::Exits(arguments) => exits::exits(arguments),
        Command::MicroGuest => exits::micro_guest(),
        Command::Study(arguments) => study::study(arguments, state),
        Command::Gate(arguments) => study::gate(arguments),
        Command::Report(arguments) => report::report(arguments),
        Command::Help(arguments) => help::help(arguments),
        Command::Version(arguments) => help::version(arguments),
        Command::Completions(arguments) => definition::completions(arguments),
        Command::Man(arguments) => definition::man(arguments),
    };
    print_result(result)
}

/// Prints a failure, and returns its exit code.
fn print_result(result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let failure = failure.for_user(process::is_root(), &environment::command_line());
            output::print_message(&failure.to_string());
            ExitCode::from(failure.exit.code())
        }
    }
}
