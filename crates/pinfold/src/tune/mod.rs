//! `pinfold tune`: finds the best placement for a virtual machine on this host.
//!
//! The run is in [`pinfold_run::tune`]; this module reads the arguments and prints the result.

mod live;
mod preview;
mod print;

use pinfold_plan::in_turn;
use pinfold_run::guest::{Scratch, Subject, UserGuest};
use pinfold_run::tune::{Display, Options, TuningHost};
use pinfold_run::{Failure, HelperProgram, host, inputs, interrupt, machine_run, time};
use pinfold_study::tune::Goal;

use crate::cli::{self, TuneArgs};
use crate::common;
use crate::progress::Bar;

pub use print::show_result;

/// Runs the tuning and prints the result.
pub fn tune(arguments: &TuneArgs, state: Option<&str>) -> Result<(), Failure> {
    let host = host::live()?;
    interrupt::install()?;
    if let Some(selector) = arguments.vm.selector() {
        return live::tune(arguments, &host, selector, state);
    }
    let topology = inputs::topology(&host, None)?;
    let avoid = inputs::pus("--avoid", &arguments.avoid)?;
    inputs::require_known("--avoid", &avoid, &topology)?;
    let max_gap = arguments.max_gap.as_deref();
    let options = Options {
        goal: match arguments.goal {
            cli::Goal::Latency => Goal::Latency,
            cli::Goal::Throughput => Goal::Throughput,
            cli::Goal::Balanced => Goal::Balanced,
        },
        max_gap_ns: max_gap.map(|text| time::parse_ns("--max-gap", text)).transpose()?,
        budget_ns: time::parse_ns("--budget", budget(arguments))?,
        strategies: if arguments.demo && arguments.strategies.is_empty() {
            // They fit into the default budget on any machine.
            let tried = in_turn(|turns| turns.demo).into_iter();
            tried.map(|strategy| strategy.name.to_owned()).collect()
        } else {
            arguments.strategies.clone()
        },
        full: arguments.full,
        avoid,
        ignore_claims: arguments.ignore_claims,
        store: arguments.store.path.clone(),
        resume: arguments.resume,
        seed: arguments.seed,
        command: common::command_line(),
    };
    let scratch = Scratch::new(&host)?;
    let mut subject = subject(arguments, &scratch)?;
    let mut bar = Bar::new("starts");
    let display = Display { begins: &preview::announce, progress: &mut bar };
    let program = HelperProgram::own()?;
    let on = TuningHost { host: &host, topology: &topology, state, program: &program };
    let (store, run) = pinfold_run::tune::tune(&options, on, &mut subject, display)?;
    print::report(arguments, &store, run, &topology)
}

/// The budget of a run that starts machines.
fn budget(arguments: &TuneArgs) -> &str {
    arguments.budget.as_deref().unwrap_or("10m")
}

/// The subject of the command line.
fn subject(arguments: &TuneArgs, scratch: &Scratch) -> Result<Subject, Failure> {
    if arguments.demo {
        return Subject::demo(arguments.vcpus, scratch);
    }
    machine_run::require_machine(&arguments.command)?;
    let settle_ns =
        if arguments.agent { None } else { Some(time::parse_ns("--settle", &arguments.settle)?) };
    let start_timeout_ns = time::parse_ns("--start-timeout", &arguments.start_timeout)?;
    let command = arguments.command.clone();
    Ok(Subject::user(UserGuest { command, settle_ns, start_timeout_ns }, scratch))
}
