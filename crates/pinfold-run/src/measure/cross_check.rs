//! `pinfold measure PROBE --against TOOL`: runs our probe and a reference tool in the same blocks,
//! so that users can check the accuracy of the benchmark.

use pinfold_model::{CpuSet, Figure, Statistic, Unit};
use pinfold_probe::benchmarks::SchedPolicy;
use pinfold_probe::job::without_skipped;
use pinfold_probe::reference_tools::{Found, ReferenceTool};
use pinfold_probe::registry::Probe;
use pinfold_stats::random::Pcg32;
use pinfold_stats::{Block, Direction, Interval, median, of_samples, ratio_interval};
use pinfold_study::measured::StealTime;

use super::place::{HostPlace, PlaceRequest};
use super::run_block::{Conditions, PreparedProbe, Reader, reference_tool_failure};
use super::{MeasurementContext, announcement};
use crate::message::say;
use crate::{Exit, Failure};

/// One statistic of our probe and of the reference tool, block by block.
pub struct CrossCheck {
    /// The figure, if there are several.
    pub figure: String,
    /// The statistic.
    pub statistic: Statistic,
    /// Unit of both.
    pub unit: Unit,
    /// Values of our probe.
    pub ours: Vec<f64>,
    /// Values of the reference tool.
    pub theirs: Vec<f64>,
}

impl CrossCheck {
    /// The median ratio.
    pub fn ratio(&self) -> Option<f64> {
        let ratios: Vec<f64> = self.blocks().iter().filter_map(Block::ratio).collect();
        median(&ratios)
    }

    /// Its interval, with at least two blocks.
    pub fn interval(&self) -> Option<Interval> {
        ratio_interval(&self.blocks())
    }

    fn blocks(&self) -> Vec<Block> {
        let pairs = self.ours.iter().zip(&self.theirs);
        pairs.map(|(ours, theirs)| Block::pair(*ours, *theirs)).collect()
    }
}

/// The settings of a cross-check.
pub struct Reported {
    /// Our probe.
    pub probe: &'static str,
    /// The reference tool.
    pub reference_tool: &'static str,
    /// Where both ran.
    pub place: String,
    /// Number of blocks.
    pub blocks: u32,
    /// Remarks for the reader.
    pub remarks: Vec<String>,
}

/// A cross-check.
#[derive(Clone, Copy, Debug)]
pub struct Against<'a> {
    /// Name of the reference tool.
    pub tool: &'a str,
    /// Number of blocks.
    pub blocks: u32,
}

/// Measures with the probe and with the reference tool of this name, in the same blocks.
///
/// # Errors
/// [`Failure`] if one of them cannot measure this, or nothing can be compared.
pub fn against(
    bench: &MeasurementContext,
    probe: &Probe,
    Against { tool: name, blocks }: Against<'_>,
    request: &PlaceRequest<'_>,
) -> Result<(Reported, Vec<CrossCheck>), Failure> {
    let reference_tool = reference_tool_of(probe, name)?;
    reference_tool.program().map_err(|error| reference_tool_failure(&error))?;
    let place = HostPlace::find(bench, request)?;
    if reference_tool.is_busy(probe.name) && matches!(place.policy, SchedPolicy::Fifo(_)) {
        spare_a_pu(bench, reference_tool, &place)?;
    }
    if request.how.duty.is_some() {
        let text =
            format!("{name} spins continuously, so the probe that is compared with it must too");
        return Err(Failure::new(Exit::Input, text).with_hint("omit --duty"));
    }
    let conditions = Conditions { how: request.how, place, reader: Reader::Own };
    let mut taking = PreparedProbe::new(bench, probe, conditions)?;
    reference_tool.check(taking.settings()).map_err(|error| reference_tool_failure(&error))?;
    taking.change(|settings| reference_tool.settings_for_ours(probe.name, settings))?;
    say(&announcement(probe, blocks, 2.0 * taking.seconds()));
    let mut random = Pcg32::new(bench.seed, 0);
    let mut checks: Vec<CrossCheck> = Vec::new();
    // Our figures determine how some tools are called: one block that is not counted.
    let sample = taking.take()?.figures;
    let mut taken = Vec::new();
    for block in 1..=blocks {
        say(&format!("block {block} of {blocks}"));
        let (ours, theirs) = match random.draw_below(2) {
            0 => {
                let ours = taking.take()?;
                (ours, taking.reference_tool(reference_tool, &sample)?)
            }
            _ => {
                let theirs = taking.reference_tool(reference_tool, &sample)?;
                (taking.take()?, theirs)
            }
        };
        add(&mut checks, probe, &ours.figures, &theirs);
        taken.push(ours);
    }
    // A statistic that some block lacks (too few samples for a quantile) cannot be paired.
    checks.retain(|check| u32::try_from(check.ours.len()) == Ok(blocks));
    if checks.is_empty() {
        return Err(Failure::new(
            Exit::Host,
            format!("no figure of {} has a counterpart in {}", reference_tool.name(), probe.name),
        )
        .with_hint("measure longer, with --seconds"));
    }
    let stolen = StealTime::from_blocks(&taken);
    let stolen =
        stolen.is_reportable().then(|| format!("stolen time while Pinfold's probe ran: {stolen}"));
    let remarks =
        [reference_tool.remark().map(str::to_owned), stolen, Some(format!("seed {}", bench.seed))];
    let reported = Reported {
        probe: probe.name,
        reference_tool: reference_tool.name(),
        place: taking.place(),
        blocks,
        remarks: remarks.into_iter().flatten().collect(),
    };
    Ok((reported, checks))
}

fn reference_tool_of(probe: &Probe, name: &str) -> Result<ReferenceTool, Failure> {
    let known = ReferenceTool::ALL.map(ReferenceTool::name).join(", ");
    let reference_tool = ReferenceTool::from_name(name).ok_or_else(|| {
        Failure::new(Exit::Input, format!("--against: there is no reference tool {name:?}"))
            .with_hint(format!("reference tools are {known}"))
    })?;
    if probe.reference_tools.contains(&reference_tool) {
        return Ok(reference_tool);
    }
    let fitting: Vec<&str> = probe.reference_tools.iter().map(|one| one.name()).collect();
    let hint = if fitting.is_empty() {
        "no reference tool measures exactly that".to_owned()
    } else {
        format!("for {} there is {}", probe.name, fitting.join(", "))
    };
    Err(Failure::new(Exit::Input, format!("{name} does not measure what {} does", probe.name))
        .with_hint(hint))
}

/// A thread that spins under SCHED_FIFO must leave a CPU to all other tasks.
fn spare_a_pu(
    bench: &MeasurementContext,
    reference_tool: ReferenceTool,
    place: &HostPlace,
) -> Result<(), Failure> {
    // All tools except oslat are pinned to one CPU.
    let many = if reference_tool == ReferenceTool::Oslat { place.pus.len() } else { 1 };
    let pus: CpuSet = place.pus.iter().take(many).collect();
    if !bench.topology.online().difference(&pus).is_empty() {
        return Ok(());
    }
    let name = reference_tool.name();
    let text = format!("{name} under fifo on every CPU would starve this machine");
    Err(Failure::new(Exit::Input, text)
        .with_hint("leave one CPU out with --cpus, or use --policy other"))
}

/// Adds the values of a block to the rows.
fn add(checks: &mut Vec<CrossCheck>, probe: &Probe, ours: &[Figure], theirs: &Found) {
    let direction = match probe.unit.higher_is_better() {
        Some(true) => Direction::HigherIsBetter,
        Some(false) | None => Direction::LowerIsBetter,
    };
    for reading in &theirs.readings {
        let mut samples = Vec::new();
        ours.iter()
            .filter(|figure| {
                reading.labels.iter().all(|(name, text)| figure.labels.get(name) == Some(text))
            })
            .for_each(|figure| samples.extend(without_skipped(figure)));
        let Some(value) = of_samples(&samples, reading.statistic, direction) else { continue };
        let figure: Vec<String> =
            reading.labels.iter().map(|(name, text)| format!("{name}={text}")).collect();
        let figure = figure.join(" ");
        match checks
            .iter_mut()
            .find(|check| check.figure == figure && check.statistic == reading.statistic)
        {
            Some(check) => {
                check.ours.push(value);
                check.theirs.push(reading.value);
            }
            None => checks.push(CrossCheck {
                figure,
                statistic: reading.statistic,
                unit: probe.unit,
                ours: vec![value],
                theirs: vec![reading.value],
            }),
        }
    }
}
