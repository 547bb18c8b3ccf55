//! `pinfold exits`: prints the VM exits of a virtual machine.

pub mod text;

use pinfold_run::exits::{ExitOptions, ObservationSettings, micro_watched, of_machine};
use pinfold_run::target::Vm;
use pinfold_run::{Failure, HelperProgram, exits, host, interrupt};

use crate::cli::exits::{ExitObservationArgs, ExitsArgs};
use crate::output::print_data;
use crate::{common, screen};

/// Observes a machine and prints the table.
pub fn exits(arguments: &ExitsArgs) -> Result<(), Failure> {
    let host = host::live()?;
    let observation_settings =
        observation_settings(&arguments.how, arguments.seconds.saturating_mul(1_000_000_000))?;
    interrupt::install()?;
    let program = HelperProgram::own()?;
    let answer = if arguments.micro_guest {
        micro_watched(&host, &program, observation_settings.addresses)?
    } else {
        let mut answer = of_machine(
            &host,
            Vm::find(&host, &common::vm(&arguments.vm)?)?,
            &observation_settings,
        )?;
        answer.measure_cost(&host, &program);
        answer
    };
    print_data(&if arguments.json {
        text::json(&answer).to_string()
    } else {
        screen::fit_width(&text::table(&answer, &arguments.how))
    });
    answer.verdict()
}

/// The settings of an observation from the command line, with this duration.
pub fn observation_settings(
    how: &ExitObservationArgs,
    duration_ns: u64,
) -> Result<ObservationSettings, Failure> {
    ObservationSettings::from_options(ExitOptions {
        look: how.look.as_deref(),
        distributor: how.distributor.as_deref(),
        addresses: how.top.is_some_and(|top| top > 0),
        duration_ns,
    })
}

/// `pinfold micro-guest`: the guest of `exits --micro-guest`.
pub fn micro_guest() -> Result<(), Failure> {
    exits::micro_guest(print_data)
}
