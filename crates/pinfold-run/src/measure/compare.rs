//! Compares two plans, or a guest with this machine.
//!
//! Both are measured in interleaved order: each block measures both sides once, in random order, so
//! that changes of the machine affect both equally.

use pinfold_model::{CpuSet, Plan};
use pinfold_probe::registry::Probe;
use pinfold_stats::compare::{self, Comparison};
use pinfold_stats::random::Pcg32;
use pinfold_study::measured::{MeasuredBlock, Stolen};

use super::guest::Guest;
use super::place::HostPlace;
use super::run_block::{Reader, Taking};
use super::{Bench, ProbeOptions};
use crate::message::say;
use crate::vcpus::Vcpus;
use crate::{Exit, Failure, inputs, interrupt};

/// What is compared, and how often.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// This machine.
    pub bench: &'a Bench,
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

/// Compares two plans, in the guest if one is named.
///
/// # Errors
/// [`Failure`] if the probe cannot run under one of them, or the user interrupted.
pub fn plans(
    request: &Request<'_>,
    (first, second): (&str, &str),
    guest: Option<&str>,
) -> Result<(Sides, Comparison), Failure> {
    let Request { bench, probe, how, blocks, state } = *request;
    let names = (first.to_owned(), second.to_owned());
    let plans = (inputs::read_plan(first)?, inputs::read_plan(second)?);
    let mut remarks = vec![format!("seed {}", bench.seed)];
    if plans.0.same_placement(&plans.1) {
        remarks.push("both plans place alike: this shows the noise, not a difference".to_owned());
    }
    let (one, other) = match guest {
        Some(wanted) => {
            interrupt::install()?;
            let guest = Guest::open(bench, wanted, state)?;
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
                let place = HostPlace::of_plan(bench, plan, (file, (None, None)), how)?;
                Taking::with(bench, probe, (how, place), Reader::Own)
            };
            let (one, other) = (place(&plans.0, first)?, place(&plans.1, second)?);
            remarks.push(format!("{}: {}", names.0, one.place()));
            remarks.push(format!("{}: {}", names.1, other.place()));
            interleaved(bench, blocks, |side| if side == 0 { one.take() } else { other.take() })?
        }
    };
    let stolen = [Stolen::of(&one), Stolen::of(&other)];
    let sides = Sides { first: names.0, second: names.1, stolen, remarks };
    Ok((sides, compared(&one, &other)))
}

/// Compares a guest with this machine.
///
/// # Errors
/// [`Failure`] if the probe cannot run in one of them, or the user interrupted.
pub fn against_native(request: &Request<'_>, wanted: &str) -> Result<(Sides, Comparison), Failure> {
    let Request { bench, probe, how, blocks, state } = *request;
    interrupt::install()?;
    let guest = Guest::open(bench, wanted, state)?;
    // Without --cpus the native probe gets as many CPUs as the guest has.
    let mut native = how.clone();
    if native.cpus.is_none() && native.node.is_none() {
        let many: CpuSet = bench.topology.inherited().iter().take(guest.cpus()).collect();
        native.cpus = Some(many.to_string());
    }
    let native = HostPlace::of_words(bench, &native)?;
    let taking = Taking::with(bench, probe, (how, native), Reader::Own)?;
    let (inside, outside) = interleaved(bench, blocks, |side| {
        if side == 0 { guest.take(probe, how, None) } else { taking.take() }
    })?;
    let mut remarks = vec![format!("seed {}", bench.seed)];
    if guest.tool() != bench.version {
        remarks.push(format!("the guest runs {}, this machine {}", guest.tool(), bench.version));
    }
    let sides = Sides {
        first: guest.place(how),
        second: format!("native, {}", taking.place()),
        stolen: [Stolen::of(&inside), Stolen::of(&outside)],
        remarks,
    };
    Ok((sides, compared(&inside, &outside)))
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
            interrupt::check()?;
            let taken = take(side)?;
            if side == 0 { first.push(taken) } else { second.push(taken) }
        }
    }
    Ok((first, second))
}

/// The comparison of two sides, block by block.
#[must_use]
pub fn compared(one: &[MeasuredBlock], other: &[MeasuredBlock]) -> Comparison {
    let figures = |blocks: &[MeasuredBlock]| -> Vec<_> {
        blocks.iter().map(|block| block.figures.clone()).collect()
    };
    compare::compare(&figures(one), &figures(other))
}
