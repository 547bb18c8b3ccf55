//! Compares two files, two plans, or a guest with this machine.
//!
//! Plans and guests are measured in interleaved order: each block measures both sides once, in
//! random order, so that changes of the machine affect both equally.

use pinfold_host::files::read_text;
use pinfold_model::{CpuSet, Family, Plan};
use pinfold_probe::registry::Probe;
use pinfold_stats::compare::{self, Comparison};
use pinfold_stats::random::Pcg32;
use pinfold_study::measured::{MeasuredBlock, Measurement, StealTime, from_json};

use super::guest::Guest;
use super::place::{HostPlace, PlaceRequest};
use super::run_block::{Conditions, PreparedProbe, Reader};
use super::{MeasurementContext, ProbeOptions};
use crate::message::say;
use crate::vcpus::Vcpus;
use crate::{Exit, Failure, inputs, interrupt};

/// What is compared, and how often.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// This machine.
    pub bench: &'a MeasurementContext,
    /// The probe of both sides.
    pub probe: &'a Probe,
    /// Its options.
    pub how: &'a ProbeOptions,
    /// Number of blocks.
    pub blocks: u32,
    /// The state directory.
    pub state: Option<&'a str>,
}

/// The two sides of a comparison.
pub struct ComparedSides {
    /// Name of the first side.
    pub first: String,
    /// Name of the second side.
    pub second: String,
    /// Steal time of each side.
    pub stolen: [StealTime; 2],
    /// Remarks for the reader.
    pub remarks: Vec<String>,
}

/// Compares two saved measurements.
///
/// # Errors
/// [`Failure`] if one of them cannot be read.
pub fn files(first: &str, second: &str) -> Result<(ComparedSides, Comparison), Failure> {
    let (one, other) = (read(first)?, read(second)?);
    let mut remarks = vec![
        "the two were not measured in the same blocks: changes of the machine between them affect \
         the ratio"
            .to_owned(),
    ];
    if one.origin.fingerprint != other.origin.fingerprint {
        remarks.push("the two were measured on different machines".to_owned());
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
    let sides = ComparedSides {
        first: format!("{first} ({})", one.place),
        second: format!("{second} ({})", other.place),
        stolen: [StealTime::from_blocks(&one.blocks), StealTime::from_blocks(&other.blocks)],
        remarks,
    };
    Ok((sides, compare_blocks(&one.blocks, &other.blocks)))
}

/// A side that was observed for longer has higher counts and a larger maximum.
fn durations(one: &Measurement, other: &Measurement) -> Option<String> {
    let unequal = |family: Family| {
        let (first, second) = (longest_ns(one, family)? as f64, longest_ns(other, family)? as f64);
        // The time that a heavily loaded machine adds to the observation is less.
        let is_alike = (first - second).abs() <= 0.1 * first.max(second);
        (!is_alike).then_some((first, second))
    };
    let reported = |(first, second): (f64, f64), what: &str| {
        let time = pinfold_report::format::duration;
        format!(
            "the first was observed for {}, the second for {}: {what}",
            time(first),
            time(second)
        )
    };
    let counts = unequal(Family::Count)
        .map(|times| reported(times, "rates and shares can be compared, counts and sums cannot"));
    counts.or_else(|| {
        unequal(Family::Tail).map(|times| {
            reported(
                times,
                "medians and shares can be compared; the maximum grows with the duration",
            )
        })
    })
}

fn longest_ns(measurement: &Measurement, family: Family) -> Option<u64> {
    let figures = measurement.blocks.first()?.figures.iter();
    figures.filter(|figure| figure.family == family).map(|f| f.duration_ns).max()
}

fn read(path: &str) -> Result<Measurement, Failure> {
    let text = read_text(path).map_err(|error| inputs::input_failure(&error))?;
    from_json(&text).map_err(|error| {
        let failure = Failure::from_error(Exit::Input, &error, error.hint());
        Failure { message: format!("{path}: {}", failure.message), ..failure }
    })
}

/// Compares two plans, in the guest if one is named.
///
/// # Errors
/// [`Failure`] if the probe cannot run under one of them, or the user interrupted.
pub fn plans(
    request: &Request<'_>,
    first: &str,
    second: &str,
    guest: Option<&str>,
) -> Result<(ComparedSides, Comparison), Failure> {
    let Request { bench, probe, how, blocks, state } = *request;
    let names = (first.to_owned(), second.to_owned());
    let plans = (inputs::read_plan(first)?, inputs::read_plan(second)?);
    let mut remarks = vec![format!("seed {}", bench.seed)];
    if plans.0.same_placement(&plans.1) {
        remarks.push(
            "both plans give the same placement: this shows the noise, not a difference".to_owned(),
        );
    }
    let (one, other) = match guest {
        Some(wanted) => {
            interrupt::install()?;
            let guest = Guest::open(bench, wanted, state)?;
            if !guest.takes_plans() {
                return Err(Failure::new(
                    Exit::Input,
                    "--guest SOCKET with --plan: only the demo guest can be started under a plan",
                )
                .with_hint(
                    "use --guest demo; `pinfold tune` starts your own machine under plans",
                ));
            }
            let one = Vcpus::from_range(1..=1);
            let check = |file: &str| inputs::plan_for_host(file, None, &[], &bench.topology, &one);
            let plans: (Plan, Plan) = (check(first)?, check(second)?);
            remarks.push(format!("each block starts the guest twice; {}", guest.place(how)));
            let taken = interleaved(bench, blocks, |side| {
                let plan = if side == 0 { &plans.0 } else { &plans.1 };
                guest.take(probe, how, Some(plan))
            })?;
            remarks.push(guest.tool());
            taken
        }
        None => {
            let place = |plan: &Plan, file: &str| {
                let request =
                    PlaceRequest { plan: Some(file), vnode: None, role: None, how, state: None };
                let place = HostPlace::of_plan(bench, plan, file, &request)?;
                PreparedProbe::new(bench, probe, Conditions { how, place, reader: Reader::Own })
            };
            let (one, other) = (place(&plans.0, first)?, place(&plans.1, second)?);
            remarks.push(format!("{}: {}", names.0, one.place()));
            remarks.push(format!("{}: {}", names.1, other.place()));
            interleaved(bench, blocks, |side| if side == 0 { one.take() } else { other.take() })?
        }
    };
    let stolen = [StealTime::from_blocks(&one), StealTime::from_blocks(&other)];
    let sides = ComparedSides { first: names.0, second: names.1, stolen, remarks };
    Ok((sides, compare_blocks(&one, &other)))
}

/// Compares a guest with this machine.
///
/// # Errors
/// [`Failure`] if the probe cannot run in one of them, or the user interrupted.
pub fn against_native(
    request: &Request<'_>,
    wanted: &str,
) -> Result<(ComparedSides, Comparison), Failure> {
    let Request { bench, probe, how, blocks, state } = *request;
    interrupt::install()?;
    let guest = Guest::open(bench, wanted, state)?;
    // Without --cpus the native probe gets as many CPUs as the guest has.
    let mut native = how.clone();
    if native.cpus.is_none() && native.node.is_none() {
        let many: CpuSet = bench.topology.inherited_cpus().iter().take(guest.cpus()).collect();
        native.cpus = Some(many.to_string());
    }
    let native = HostPlace::of_words(bench, &native)?;
    let taking =
        PreparedProbe::new(bench, probe, Conditions { how, place: native, reader: Reader::Own })?;
    let (inside, outside) = interleaved(bench, blocks, |side| {
        if side == 0 { guest.take(probe, how, None) } else { taking.take() }
    })?;
    let mut remarks = vec![format!("seed {}", bench.seed)];
    if guest.tool() != bench.version {
        remarks.push(format!("the guest runs {}, this machine {}", guest.tool(), bench.version));
    }
    let sides = ComparedSides {
        first: guest.place(how),
        second: format!("native, {}", taking.place()),
        stolen: [StealTime::from_blocks(&inside), StealTime::from_blocks(&outside)],
        remarks,
    };
    Ok((sides, compare_blocks(&inside, &outside)))
}

/// Measures both sides in each block, in random order.
fn interleaved(
    bench: &MeasurementContext,
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
            interrupt::check()?;
            let taken = take(side)?;
            if side == 0 { first.push(taken) } else { second.push(taken) }
        }
    }
    Ok((first, second))
}

/// The comparison of two sides, block by block.
fn compare_blocks(one: &[MeasuredBlock], other: &[MeasuredBlock]) -> Comparison {
    compare::compare(&figures_of(one), &figures_of(other))
}

fn figures_of(blocks: &[MeasuredBlock]) -> Vec<Vec<pinfold_model::Figure>> {
    blocks.iter().map(|block| block.figures.clone()).collect()
}
