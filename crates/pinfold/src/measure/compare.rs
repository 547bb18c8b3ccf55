//! `pinfold compare`: two files, two plans, or a guest with this machine.
//!
//! Plans and guests are measured in interleaved order: each block measures both sides once, in
//! random order, so that changes of the machine affect both equally. Files cannot be interleaved,
//! and the output says so.

use pinfold_host::files;
use pinfold_model::Family;
use pinfold_probe::registry::Probe;
use pinfold_run::measure::{self, ProbeOptions, Request, Sides, compared};
use pinfold_run::{Exit, Failure, inputs};
use pinfold_stats::compare::Comparison;
use pinfold_study::measured::{Measurement, Stolen, from_json};

use clap::Parser as _;

use super::{bench, find, show};
use crate::cli::measure::{CompareArgs, ProbeLine};
use crate::output::{self, data};
use crate::screen;

/// Runs the comparison.
pub fn compare(arguments: &CompareArgs, state: Option<&str>) -> Result<(), Failure> {
    match (&arguments.files[..], &arguments.plans[..], &arguments.guest) {
        ([first, second], [], None) if arguments.probe.is_empty() => {
            files((first, second), arguments)
        }
        ([], [first, second], guest) => measured(arguments, state, |request| {
            measure::plans(request, (first, second), guest.as_deref())
        }),
        ([], [], Some(guest)) if arguments.native => {
            measured(arguments, state, |request| measure::against_native(request, guest))
        }
        (_, _, _) => Err(Failure::new(Exit::Input, "there are no two sides to compare").with_hint(
            "two files: pinfold compare A.json B.json\n  \
             two plans: pinfold compare --plan A.json --plan B.json -- wakeup\n  \
             a guest:   pinfold compare --guest demo --native -- wakeup",
        )),
    }
}

/// Measures both sides, and prints the comparison.
fn measured(
    arguments: &CompareArgs,
    state: Option<&str>,
    measure: impl FnOnce(&Request<'_>) -> Result<(Sides, Comparison), Failure>,
) -> Result<(), Failure> {
    let (probe, how) = probe_of(arguments)?;
    let (bench, blocks) = (bench(arguments.seed)?, arguments.blocks);
    let (sides, found) = measure(&Request { bench: &bench, probe, how: &how, blocks, state })?;
    report(&sides, &found, arguments)
}

fn files((first, second): (&str, &str), arguments: &CompareArgs) -> Result<(), Failure> {
    let (one, other) = (read(first)?, read(second)?);
    let mut remarks = vec![
        "the two were not measured in the same blocks: what changed on the machine between them is in the ratio"
            .to_owned(),
    ];
    if one.origin.fingerprint != other.origin.fingerprint {
        remarks.push("the two are of different machines".to_owned());
    }
    if one.origin.kernel != other.origin.kernel {
        remarks.push(format!(
            "the two ran under different kernels: {} and {}",
            one.origin.kernel, other.origin.kernel
        ));
    }
    if one.tool != other.tool {
        remarks.push(format!("measured by {} and by {}", one.tool, other.tool));
    }
    remarks.extend(durations(&one, &other));
    let sides = Sides {
        first: format!("{first} ({})", one.place),
        second: format!("{second} ({})", other.place),
        stolen: [Stolen::of(&one.blocks), Stolen::of(&other.blocks)],
        remarks,
    };
    report(&sides, &compared(&one.blocks, &other.blocks), arguments)
}

/// A side that was observed for longer has higher counts and a larger maximum.
fn durations(one: &Measurement, other: &Measurement) -> Option<String> {
    let of = |measurement: &Measurement, family: Family| {
        let figures = measurement.blocks.first()?.figures.iter();
        figures.filter(|figure| figure.family == family).map(|f| f.duration_ns).max()
    };
    let unequal = |family: Family| {
        let (first, second) = (of(one, family)? as f64, of(other, family)? as f64);
        // The time that a heavily loaded machine adds to the observation is less.
        let is_alike = (first - second).abs() <= 0.1 * first.max(second);
        (!is_alike).then_some((first, second))
    };
    let reported = |(first, second): (f64, f64), what: &str| {
        let time = pinfold_report::format::duration;
        format!(
            "the first was looked at for {}, the second for {}: {what}",
            time(first),
            time(second)
        )
    };
    let counts = unequal(Family::Count)
        .map(|times| reported(times, "rates and shares compare, counts and sums do not"));
    counts.or_else(|| {
        unequal(Family::Tail).map(|times| {
            reported(
                times,
                "medians and shares compare, the longest grows with the time of looking",
            )
        })
    })
}

fn read(path: &str) -> Result<Measurement, Failure> {
    let text = files::read_text(path).map_err(|error| inputs::input_failure(&error))?;
    from_json(&text).map_err(|error| {
        let failure = Failure::from_error(Exit::Input, &error, error.hint());
        Failure { message: format!("{path}: {}", failure.message), ..failure }
    })
}

/// The probe after `--`.
fn probe_of(arguments: &CompareArgs) -> Result<(&'static Probe, ProbeOptions), Failure> {
    if arguments.probe.is_empty() {
        return Err(Failure::new(Exit::Input, "no probe was named")
            .with_hint("name it last, with its options: … -- wakeup --seconds 1"));
    }
    let line = ProbeLine::try_parse_from(&arguments.probe).map_err(|error| {
        let text = error.to_string();
        Failure::new(Exit::Input, text.trim_start_matches("error: ").trim_end().to_owned())
    })?;
    Ok((find(&line.probe)?, line.how.into()))
}

fn report(sides: &Sides, found: &Comparison, arguments: &CompareArgs) -> Result<(), Failure> {
    if found.rows.is_empty() {
        let why = found.unmatched.join("; ");
        let hint = match arguments.native {
            true => {
                "guest and host see different caches, which the sizes of this probe follow: \
                 compare another one, such as compute or micro-memory"
            }
            false => "compare two measurements of the same probe with the same settings",
        };
        return Err(
            Failure::new(Exit::Input, format!("nothing can be compared: {why}")).with_hint(hint)
        );
    }
    match arguments.json {
        true => data(&show::comparison_json(sides, found).to_string()),
        false => {
            let (tone, text) = show::answer(found);
            output::answer(tone, &text);
            data(&screen::fitted(&show::comparison(sides, found)));
        }
    }
    Ok(())
}
