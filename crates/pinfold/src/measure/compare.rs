//! `pinfold compare`: two files, two plans, or a guest with this machine.
//!
//! Plans and guests are measured in interleaved order: each block measures both sides once, in
//! random order, so that changes of the machine affect both equally. Files cannot be interleaved,
//! and the output says so.

use pinfold_probe::registry::Probe;
use pinfold_run::measure::{self, ComparedSides, ProbeOptions, Request};
use pinfold_run::{Exit, Failure};
use pinfold_stats::compare::Comparison;

use clap::Parser as _;

use super::{bench, find, show};
use crate::cli::measure::{CompareArgs, ProbeLine};
use crate::output::{self, print_data};
use crate::screen;

/// Runs the comparison.
pub fn compare(arguments: &CompareArgs, state: Option<&str>) -> Result<(), Failure> {
    match (&arguments.files[..], &arguments.plans[..], &arguments.guest) {
        ([first, second], [], None) if arguments.probe.is_empty() => {
            let (sides, found) = measure::files(first, second)?;
            report(&sides, &found, arguments)
        }
        ([], [first, second], guest) => measure_sides(arguments, state, |request| {
            measure::plans(request, first, second, guest.as_deref())
        }),
        ([], [], Some(guest)) if arguments.native => {
            measure_sides(arguments, state, |request| measure::against_native(request, guest))
        }
        (_, _, _) => Err(Failure::new(Exit::Input, "compare needs two sides").with_hint(
            "two files: pinfold compare A.json B.json\n  \
             two plans: pinfold compare --plan A.json --plan B.json -- wakeup\n  \
             a guest:   pinfold compare --guest demo --native -- wakeup",
        )),
    }
}

/// Measures both sides, and prints the comparison.
fn measure_sides(
    arguments: &CompareArgs,
    state: Option<&str>,
    measure: impl FnOnce(&Request<'_>) -> Result<(ComparedSides, Comparison), Failure>,
) -> Result<(), Failure> {
    let (probe, how) = probe_of(arguments)?;
    let (bench, blocks) = (bench(arguments.seed)?, arguments.blocks);
    let (sides, found) = measure(&Request { bench: &bench, probe, how: &how, blocks, state })?;
    report(&sides, &found, arguments)
}

/// The probe after `--`.
fn probe_of(arguments: &CompareArgs) -> Result<(&'static Probe, ProbeOptions), Failure> {
    if arguments.probe.is_empty() {
        return Err(Failure::new(Exit::Input, "no probe was given")
            .with_hint("give it last, with its options: … -- wakeup --seconds 1"));
    }
    let line = ProbeLine::try_parse_from(&arguments.probe).map_err(|error| {
        let text = error.to_string();
        Failure::new(Exit::Input, text.trim_start_matches("error: ").trim_end().to_owned())
    })?;
    Ok((find(&line.probe)?, line.how.into()))
}

fn report(
    sides: &ComparedSides,
    found: &Comparison,
    arguments: &CompareArgs,
) -> Result<(), Failure> {
    if found.rows.is_empty() {
        let why = found.unmatched.join("; ");
        return Err(Failure::new(Exit::Input, format!("nothing can be compared: {why}"))
            .with_hint("compare two measurements of the same probe with the same settings"));
    }
    if arguments.json {
        print_data(&show::comparison_json(sides, found).to_string())
    } else {
        let (tone, text) = show::answer(found);
        output::answer(tone, &text);
        print_data(&screen::fit_width(&show::comparison(sides, found)));
    }
    Ok(())
}
