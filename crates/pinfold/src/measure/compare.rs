//! `pinfold compare`: two files, two plans, or a guest with this machine.
//!
//! Plans and guests are measured in interleaved order: each block measures both sides once, in
//! random order, so that changes of the machine affect both equally. Files cannot be interleaved,
//! and the output says so.

use pinfold_host::files;
use pinfold_model::{CpuSet, Family, Plan};
use pinfold_probe::registry::Probe;
use pinfold_run::{Exit, Failure, inputs, interrupt, vcpus::Vcpus};
use pinfold_study::compare::{self, Comparison};
use pinfold_study::measured::{MeasuredBlock, Measurement, Stolen, from_json};
use pinfold_study::random::Pcg32;

use clap::Parser as _;

use super::cpus::HostPlace;
use super::guest::Guest;
use super::run_block::{Reader, Taking};
use super::{Bench, find, show};
use crate::cli::measure::{CompareArgs, ProbeArgs, ProbeLine};
use crate::output::{self, data, say};
use crate::screen;

/// The two sides of a comparison.
pub struct Sides {
    /// Name of the first side.
    pub first: String,
    /// Name of the second side.
    pub second: String,
    /// Steal time of each side.
    pub stolen: [Stolen; 2],
    /// Remarks for the reader.
    pub remarks: Vec<String>,
}

/// Runs the comparison.
pub fn compare(arguments: &CompareArgs, state: Option<&str>) -> Result<(), Failure> {
    match (&arguments.files[..], &arguments.plans[..], &arguments.guest) {
        ([first, second], [], None) if arguments.probe.is_empty() => {
            files((first, second), arguments)
        }
        ([], [first, second], guest) => plans((first, second), guest.as_deref(), arguments, state),
        ([], [], Some(guest)) if arguments.native => against_native(guest, arguments, state),
        (_, _, _) => Err(Failure::new(Exit::Input, "there are no two sides to compare").with_hint(
            "two files: pinfold compare A.json B.json\n  \
             two plans: pinfold compare --plan A.json --plan B.json -- wakeup\n  \
             a guest:   pinfold compare --guest demo --native -- wakeup",
        )),
    }
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

fn plans(
    (first, second): (&str, &str),
    guest: Option<&str>,
    arguments: &CompareArgs,
    state: Option<&str>,
) -> Result<(), Failure> {
    let (probe, how) = probe_of(arguments)?;
    let bench = Bench::new(arguments.seed)?;
    let names = (first.to_owned(), second.to_owned());
    let plans = (inputs::read_plan(first)?, inputs::read_plan(second)?);
    let mut remarks = vec![format!("seed {}", bench.seed)];
    if plans.0.same_placement(&plans.1) {
        remarks.push("both plans place alike: this shows the noise, not a difference".to_owned());
    }
    let (one, other) = match guest {
        Some(wanted) => {
            interrupt::install()?;
            let guest = Guest::open(&bench, wanted, state)?;
            if !guest.takes_plans() {
                return Err(Failure::new(
                    Exit::Input,
                    "--guest SOCKET with --plan: only the demo guest is started under a plan",
                )
                .with_hint(
                    "give --guest demo; `pinfold tune` starts your own machine under plans",
                ));
            }
            let one = Vcpus::counted(1..=1);
            let check = |file: &str| inputs::plan_for_host(file, &bench.topology, &one);
            let plans: (Plan, Plan) = (check(first)?, check(second)?);
            remarks.push(format!("each block starts the guest twice; {}", guest.place(&how)));
            let taken = interleaved(&bench, arguments.blocks, |side| {
                let plan = if side == 0 { &plans.0 } else { &plans.1 };
                guest.take(probe, &how, Some(plan))
            })?;
            remarks.push(guest.tool());
            taken
        }
        None => {
            let place = |plan: &Plan, file: &str| {
                let place = HostPlace::of_plan(&bench, plan, (file, (None, None)), &how)?;
                Taking::with(&bench, probe, (&how, place), Reader::Own)
            };
            let (one, other) = (place(&plans.0, first)?, place(&plans.1, second)?);
            remarks.push(format!("{}: {}", names.0, one.place()));
            remarks.push(format!("{}: {}", names.1, other.place()));
            interleaved(&bench, arguments.blocks, |side| {
                if side == 0 { one.take() } else { other.take() }
            })?
        }
    };
    let stolen = [Stolen::of(&one), Stolen::of(&other)];
    let sides = Sides { first: names.0, second: names.1, stolen, remarks };
    report(&sides, &compared(&one, &other), arguments)
}

fn against_native(
    wanted: &str,
    arguments: &CompareArgs,
    state: Option<&str>,
) -> Result<(), Failure> {
    let (probe, how) = probe_of(arguments)?;
    let bench = Bench::new(arguments.seed)?;
    interrupt::install()?;
    let guest = Guest::open(&bench, wanted, state)?;
    // Without --cpus the native probe gets as many CPUs as the guest has.
    let mut native = how.clone();
    if native.cpus.is_none() && native.node.is_none() {
        let many: CpuSet = bench.topology.inherited().iter().take(guest.cpus()).collect();
        native.cpus = Some(many.to_string());
    }
    let native = HostPlace::of_words(&bench, &native)?;
    let taking = Taking::with(&bench, probe, (&how, native), Reader::Own)?;
    let (inside, outside) = interleaved(&bench, arguments.blocks, |side| {
        if side == 0 { guest.take(probe, &how, None) } else { taking.take() }
    })?;
    let mut remarks = vec![format!("seed {}", bench.seed)];
    if guest.tool() != bench.version {
        remarks.push(format!("the guest runs {}, this machine {}", guest.tool(), bench.version));
    }
    let sides = Sides {
        first: guest.place(&how),
        second: format!("native, {}", taking.place()),
        stolen: [Stolen::of(&inside), Stolen::of(&outside)],
        remarks,
    };
    report(&sides, &compared(&inside, &outside), arguments)
}

/// The probe after `--`.
fn probe_of(arguments: &CompareArgs) -> Result<(&'static Probe, ProbeArgs), Failure> {
    if arguments.probe.is_empty() {
        return Err(Failure::new(Exit::Input, "no probe was named")
            .with_hint("name it last, with its options: … -- wakeup --seconds 1"));
    }
    let line = ProbeLine::try_parse_from(&arguments.probe).map_err(|error| {
        let text = error.to_string();
        Failure::new(Exit::Input, text.trim_start_matches("error: ").trim_end().to_owned())
    })?;
    Ok((find(&line.probe)?, line.how))
}

/// Measures both sides in each block, in random order.
fn interleaved(
    bench: &Bench,
    blocks: u32,
    mut take: impl FnMut(usize) -> Result<MeasuredBlock, Failure>,
) -> Result<(Vec<MeasuredBlock>, Vec<MeasuredBlock>), Failure> {
    let mut random = Pcg32::new(bench.seed, 0);
    let (mut first, mut second) = (Vec::new(), Vec::new());
    for block in 1..=blocks {
        say(&format!("block {block} of {blocks}"));
        let mut order = [0, 1];
        random.shuffle(&mut order);
        for side in order {
            if interrupt::requested() {
                return Err(Failure::new(Exit::Interrupted, "interrupted"));
            }
            let taken = take(side)?;
            if side == 0 { first.push(taken) } else { second.push(taken) }
        }
    }
    Ok((first, second))
}

fn compared(one: &[MeasuredBlock], other: &[MeasuredBlock]) -> Comparison {
    let figures = |blocks: &[MeasuredBlock]| -> Vec<_> {
        blocks.iter().map(|block| block.figures.clone()).collect()
    };
    compare::compare(&figures(one), &figures(other))
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
