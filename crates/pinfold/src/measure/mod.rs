//! `pinfold measure` and `pinfold compare`: one probe, and two of them side by side.
//!
//! ```text
//! place (CPUs, plan, vnode, guest) ─► run, block by block ─► figures ─► table, chart, file
//!                                          └── reference tool, other plan, native ─► ratio, verdict
//! ```
//!
//! The probes are placed and run by [`pinfold_run::measure`]; this module shows the result.

mod compare;
mod observe;
mod show;

use indicatif::{ProgressBar, ProgressStyle};
use pinfold_host::files;
use pinfold_model::Figure;
use pinfold_probe::registry::{self, PROBES, Probe};
use pinfold_run::measure::{
    self as library, Against, GuestRequest, Instrument, MeasurementContext, PlaceRequest,
    ProbeOptions,
};
use pinfold_run::{Exit, Failure, HelperProgram};
use pinfold_study::measured::to_json;

use crate::cli::measure::MeasureArgs;
use crate::output::{is_stderr_terminal, print_data, print_message};
use crate::screen;

pub use compare::compare;

/// Default number of blocks of a comparison.
const COMPARED_BLOCKS: u32 = 8;
/// Measures, or lists what can be measured.
pub fn measure(arguments: &MeasureArgs, state: Option<&str>) -> Result<(), Failure> {
    let Some(name) = arguments.probe.as_deref().filter(|_| !arguments.list) else {
        return list(arguments);
    };
    if let Some(instrument) = Instrument::find(name) {
        return observe::measure(instrument, arguments, state);
    }
    let probe = find(name)?;
    if !arguments.observed.targets().is_empty() || arguments.observes() {
        return Err(Failure::new(
            Exit::Input,
            format!("{name} cannot observe threads of other processes"),
        )
        .with_hint("sched, counters, locks, exits and gaps can; --guest measures inside a guest"));
    }
    if arguments.how.more == ["--help"] {
        print_data(&library::options(probe)?);
        return Ok(());
    }
    let (bench, how) = (bench(arguments.seed)?, ProbeOptions::from(arguments.how.clone()));
    let place = PlaceRequest {
        plan: arguments.plan.as_deref(),
        vnode: arguments.vnode.as_deref(),
        role: arguments.role.as_deref(),
        how: &how,
        state,
    };
    if let Some(tool) = &arguments.against {
        let blocks = arguments.blocks.unwrap_or(COMPARED_BLOCKS);
        let (reported, checks) = library::against(&bench, probe, Against { tool, blocks }, &place)?;
        if arguments.json {
            print_data(&show::cross_check_json(&reported, &checks).to_string())
        } else {
            print_data(&screen::fit_width(&show::cross_check(&reported, &checks)))
        }
        return Ok(());
    }
    let blocks = arguments.blocks.unwrap_or(1);
    let measurement = match &arguments.guest {
        Some(guest) => {
            library::in_guest(&bench, probe, GuestRequest { guest, how: &how, state }, blocks)?
        }
        None => library::on_host(&bench, probe, &place, blocks)?,
    };
    if let Some(path) = &arguments.save {
        let text = to_json(&measurement)
            .map_err(|error| Failure::from_error(Exit::Host, &error, error.hint()))?;
        files::write_atomic(path, text.as_bytes())?;
        print_message(&format!("saved to {path}; `pinfold compare` compares two such files"));
    }
    if arguments.json {
        print_data(&show::json(&measurement, probe)?)
    } else {
        print_data(&screen::fit_width(&show::text(&measurement, probe)))
    }
    show::warnings(&measurement).iter().for_each(|warning| print_message(warning));
    Ok(())
}

fn list(arguments: &MeasureArgs) -> Result<(), Failure> {
    if arguments.json {
        print_data(&show::list_json())
    } else {
        print_data(&show::list())
    }
    Ok(())
}

/// The probe with this name, or a failure with the most similar name.
fn find(name: &str) -> Result<&'static Probe, Failure> {
    registry::find(name).ok_or_else(|| {
        let outside = Instrument::ALL.iter().map(|one| one.name());
        let known = PROBES.iter().map(|probe| probe.name).chain(outside);
        let hint = match pinfold_model::closest(name, known) {
            Some(nearest) => format!("did you mean {nearest}? "),
            None => String::new(),
        };
        Failure::new(Exit::Input, format!("there is no probe {name:?}"))
            .with_hint(format!("{hint}`pinfold measure --list` shows all probes"))
    })
}

/// This machine, for measurements.
fn bench(seed: Option<u64>) -> Result<MeasurementContext, Failure> {
    let mut command: Vec<String> = std::env::args().collect();
    if let Some(program) = command.first_mut() {
        *program = "pinfold".to_owned();
    }
    MeasurementContext::new(seed, command, spinner, HelperProgram::own()?)
}

/// Shows the figures of a block as they arrive, without any activity of ours in between.
fn spinner(probe: &Probe) -> Box<dyn FnMut(&Figure)> {
    /// Removed from the terminal at the end of the block.
    struct Line(ProgressBar);
    impl Drop for Line {
        fn drop(&mut self) {
            self.0.finish_and_clear();
        }
    }
    if !(probe.has_several_figures() && is_stderr_terminal()) {
        return Box::new(|_| {});
    }
    let line = Line(ProgressBar::new_spinner());
    if let Ok(style) = ProgressStyle::with_template("{pos} figures, {elapsed}: {msg}") {
        line.0.set_style(style);
    }
    Box::new(move |figure| {
        let Line(line) = &line;
        line.inc(1);
        line.set_message(show::format_arrived_figure(figure));
    })
}
