//! `tune` on a running machine: placements and settings are applied in place, in short windows.
//!
//! ```text
//! one window of the present placement, not counted: what the machine waits, what a window costs
//!   ─► blocks: the present placement twice and each candidate once, in random order
//!      window = place ─► wash-out ─► observe
//!   ─► verdicts ─► the machine as it was
//! ```
//!
//! The whole search has one journal, which stays open: no other Pinfold process works on the
//! machine meanwhile, and `LiveMachine` has a process that reverts it if this one is
//! killed. Pages of memory stay where they are. Nothing here is stored: what was found is the
//! [`LiveReport`].

mod machine;
mod placed;
mod plans;
mod settings;
mod verdicts;
mod window;

use pinfold_apply::{JournalError, Journals};
use pinfold_host::{Clock as _, LiveHost, SystemClock};
use pinfold_model::text::count_noun;
use pinfold_model::{CpuSet, Finding};
use pinfold_stats::random::Pcg32;
use pinfold_stats::{Direction, Interval, LEAST_BLOCKS, Verdict, blocks_needed};
use pinfold_study::tune::MOST_RACE_BLOCKS;
use pinfold_vm::VmSelector;

use self::machine::LiveMachine;
use self::plans::Source;
use self::verdicts::{Lane, Settled};
use self::window::{Observation, Stop, Window};
use crate::message::say;
use crate::rt_watchdog::Supervision;
use crate::start_lock::StartLock;
use crate::target::Vm;
use crate::{
    Exit, Failure, HelperProgram, claims, ended_placements, host, inputs, interrupt, time,
};

/// Label of the present placement.
pub const PRESENT: &str = "present";
/// Label of the same placement, measured a second time in each block.
pub const PRESENT_AGAIN: &str = "present (again)";

/// The level of the verdicts, and the margin within which ratios are the same.
const ALPHA: f64 = 0.05;
const MARGIN: f64 = 0.02;
const SECOND_NS: u64 = 1_000_000_000;
/// Shortest and longest observation of a window.
const SHORTEST_NS: u64 = SECOND_NS / 4;
const LONGEST_NS: u64 = 5 * SECOND_NS;
/// Largest number of blocks, whatever the budget.
const MOST_BLOCKS: u32 = 2 * MOST_RACE_BLOCKS;
/// A command that takes longer than this many times its first run, or [`LONGEST_NS`], hangs.
const TIMES_THE_TRIAL: u64 = 10;
/// Fewest blocks for which a search begins.
const FEWEST_BLOCKS: u32 = 2;

/// A command that prints the figure of a window.
#[derive(Clone, Debug)]
pub struct FigureCommand {
    /// The command, split at blanks outside quotes when it is run.
    pub command: String,
    /// Which figures are better.
    pub direction: Direction,
}

/// What a search looks for.
#[derive(Clone, Debug)]
pub struct Options {
    /// The machine.
    pub selector: VmSelector,
    /// What prints the figure; `None` for the longest wait of a vCPU.
    pub figure: Option<FigureCommand>,
    /// A candidate is dropped if a vCPU waits for a larger share of a window than under the present
    /// placement, by this.
    pub max_harm: f64,
    /// Time that it may take (ns).
    pub budget_ns: u64,
    /// Strategies to try; empty for all, or for none if there are settings.
    pub strategies: Vec<String>,
    /// Settings to try on the present placement: tunables as `--tunable` takes them, or profiles.
    pub settings: Vec<String>,
    /// CPUs that nothing may use.
    pub avoid: CpuSet,
    /// True to plan as if the host had no other owners of CPUs.
    pub ignore_claims: bool,
    /// Seed of the random order; `None` to take one from the clock.
    pub seed: Option<u64>,
}

/// The host of a search.
#[derive(Clone, Copy)]
pub struct SearchHost<'a> {
    /// Access to it.
    pub host: &'a LiveHost,
    /// The state directory, if it is not the usual one.
    pub state: Option<&'a str>,
    /// The program of the helper processes.
    pub program: &'a HelperProgram,
}

/// What the figure of a window is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FigureSource {
    /// The longest wait of a vCPU for a CPU (ns), of each wait that BPF recorded.
    LongestWait,
    /// The time for which the vCPUs waited in each second (ns), from the kernel's sums.
    WaitSum {
        /// Why there are no single waits.
        why: String,
    },
    /// The number that a command printed.
    Command(String),
}

/// What makes a candidate stay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// `pinfold apply` to the machine with these arguments.
    Apply(Vec<String>),
    /// Commands of a shell, where apply would move threads of the machine.
    Shell(Vec<String>),
}

/// The result of one candidate.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Its strategy or setting, or that it is the present placement.
    pub name: String,
    /// True for a setting on the present placement.
    pub is_setting: bool,
    /// Other candidates that are the same.
    pub same: Vec<String>,
    /// What makes it stay; `None` for the present placement, and if no command does.
    pub next: Option<Next>,
    /// Number of its windows.
    pub windows: usize,
    /// Median of its figures.
    pub figure: Option<f64>,
    /// Ratio of its figures to those of the present placement, with its 95 % interval.
    pub ratio: Option<Interval>,
    /// p-value after Holm's correction.
    pub p_holm: Option<f64>,
    /// Better or worse than the present placement; `None` for that one, and if it was dropped.
    pub verdict: Option<Verdict>,
    /// Why it was dropped.
    pub dropped: Option<String>,
    /// 99th percentile of all waits of its vCPUs (ns); `None` with too few waits or only sums.
    pub p99_ns: Option<u64>,
    /// Longest wait of its vCPUs (ns); `None` with only sums.
    pub longest_ns: Option<u64>,
    /// Share of the time for which its vCPUs waited.
    pub share: Option<f64>,
}

/// How long the machine was left alone after each change of its placement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WashOut {
    /// Median (ns).
    pub median_ns: u64,
    /// Longest (ns).
    pub longest_ns: u64,
    /// Number of windows in which vCPUs still changed their CPU at the end of the longest wait.
    pub unsettled: usize,
    /// Number of windows.
    pub windows: usize,
}

/// The result of a search.
#[derive(Clone, Debug)]
pub struct LiveReport {
    /// Name of the machine.
    pub machine: String,
    /// What the figure is.
    pub source: FigureSource,
    /// Which figures are better.
    pub direction: Direction,
    /// The present placement twice, then the candidates.
    pub rows: Vec<Row>,
    /// The row that is shown to be better than the present placement, by the most.
    pub winner: Option<usize>,
    /// Complete blocks, and the number that a verdict needs.
    pub blocks: u32,
    /// Number of blocks from which a verdict is possible.
    pub needed: u32,
    /// Observation time of a window (ns).
    pub window_ns: u64,
    /// The wash-out of the windows.
    pub wash_out: WashOut,
    /// Duration of the search (ns).
    pub took_ns: u64,
    /// Seed of the random order.
    pub seed: u64,
    /// What limits the result.
    pub findings: Vec<Finding>,
}

/// Searches until the budget is used, and leaves the machine as it was. Signals must be
/// [caught](interrupt::install) before.
///
/// # Errors
/// [`Failure`]: the machine ended, paused or was changed by its owner, the figure's command failed,
/// or the user interrupted. The machine is as it was, but for what its owner changed; if not, the
/// exit code is [`Exit::Residue`].
pub fn search(options: &Options, on: SearchHost<'_>) -> Result<LiveReport, Failure> {
    let began_ns = SystemClock.now_ns();
    ended_placements::revert_ended(on.host, on.state)?;
    let state = host::state(on.state)?;
    let journals = host::journals(&state, &SystemClock)?;
    let topology = inputs::topology(on.host, None)?.without_free_memory();
    let vm = Vm::find(on.host, &options.selector)?;
    require_unplaced(on.host, &journals, &vm)?;
    let starting = StartLock::wait(&state)?;
    let claims = if options.ignore_claims {
        claims::Claims::default()
    } else {
        claims::for_plan(on.host, on.state)?.without_machine(on.host, vm.found.pid, &vm.name)
    };
    let source = Source { options, host: on.host, vm: &vm, topology: &topology, claims: &claims };
    let (candidates, findings) = plans::candidates(source)?;
    let supervision = Supervision { journals: &journals, program: on.program };
    let name = vm.name.clone();
    let mut machine = LiveMachine::begin(on.host, vm, options, &candidates[0], supervision)?;
    drop(starting);
    let lanes = Lane::all(candidates);
    let refused = Vec::new();
    let mut search = Search { options, machine: &mut machine, lanes, refused, began_ns, findings };
    let found = search.run(name);
    end(machine.end(), found)
}

/// A machine that is placed is not as its owner left it, and another search may work on it.
fn require_unplaced(host: &LiveHost, journals: &Journals<'_>, vm: &Vm) -> Result<(), Failure> {
    let Some(id) = journals.active_of(host, vm.found.pid)? else { return Ok(()) };
    match journals.reopen(&id)? {
        Some(journal) if !journal.record().has_ended() => {
            let vm_name = vm.name.clone();
            Err(JournalError::Active { id, vm_name }.into())
        }
        Some(_) | None => Ok(()),
    }
}

/// The result, or the worse of two failures.
fn end(
    reverted: Result<(), Failure>,
    found: Result<LiveReport, Failure>,
) -> Result<LiveReport, Failure> {
    match (reverted, found) {
        (Ok(()), Ok(report)) => Ok(report),
        (Err(left), Ok(_)) => Err(left),
        (Err(left), Err(failure)) => {
            say(&failure.to_string());
            Err(left)
        }
        (Ok(()), Err(failure)) => {
            let message = format!("{}; what the search changed was reverted", failure.message);
            Err(Failure { message, ..failure })
        }
    }
}

struct Search<'s, 'm, 'c> {
    options: &'s Options,
    machine: &'m mut LiveMachine<'s, 'c>,
    lanes: Vec<Lane>,
    /// Why placements cannot be applied.
    refused: Vec<String>,
    began_ns: u64,
    findings: Vec<Finding>,
}

impl Search<'_, '_, '_> {
    fn run(&mut self, machine: String) -> Result<LiveReport, Failure> {
        let seed = self.options.seed.unwrap_or_else(|| SystemClock.now_ns());
        let first = Window { observe_ns: SECOND_NS, most_share: None, options: self.options };
        let begin_ns = SystemClock.now_ns();
        let trial = self.trial(&first)?;
        let rivals = u32::try_from(self.lanes.len() - 2).unwrap_or(u32::MAX);
        let needed = blocks_needed(rivals, ALPHA);
        // Placing takes time too, which the trial has not needed.
        let mut overhead_ns =
            SystemClock.now_ns().saturating_sub(begin_ns + trial.observed_ns) * 5 / 4;
        let mut observe_ns = self.check_budget(&trial, overhead_ns, needed)?;
        let most_share = Some(trial.share + self.options.max_harm);
        let mut random = Pcg32::new(seed, 0);
        let mut blocks = 0;
        while blocks < MOST_BLOCKS && self.has_rivals() {
            // Within a block all windows are equally long.
            if blocks < needed && self.options.figure.is_none() {
                observe_ns = self.window_length(overhead_ns, needed - blocks);
            }
            let windows = self.running();
            if self.left_ns() < windows * (observe_ns + overhead_ns) {
                break;
            }
            say(&self.progress(blocks, needed));
            let begin_ns = SystemClock.now_ns();
            let window = Window { observe_ns, most_share, options: self.options };
            self.block(&mut random, &window, &trial)?;
            if self.refused.len() + 2 == self.lanes.len()
                && let Some(why) = self.refused.first()
            {
                return Err(Failure::new(Exit::Host, format!("nothing was tried: {why}"))
                    .with_hint("run the search as the user who owns the machine, or as root"));
            }
            let took_ns = SystemClock.now_ns().saturating_sub(begin_ns) / windows;
            overhead_ns = overhead_ns.midpoint(took_ns.saturating_sub(observe_ns));
            blocks += 1;
        }
        let direction = self.options.figure.as_ref();
        let direction = direction.map_or(Direction::LowerIsBetter, |figure| figure.direction);
        let Settled { rows, winner } = verdicts::judge(&self.lanes, direction, blocks, needed);
        self.report_limits(&rows, blocks, needed);
        Ok(LiveReport {
            machine,
            source: trial.source,
            direction,
            rows,
            winner,
            blocks,
            needed,
            window_ns: verdicts::window_length(&self.lanes),
            wash_out: verdicts::wash_out(&self.lanes),
            took_ns: SystemClock.now_ns().saturating_sub(self.began_ns),
            seed,
            findings: std::mem::take(&mut self.findings),
        })
    }

    /// A window of the present placement, which shows that the machine runs.
    fn trial(&mut self, window: &Window<'_>) -> Result<Observation, Failure> {
        // A command that takes longer does not fit into the budget.
        let limit_ns = self.left_ns() / (u64::from(FEWEST_BLOCKS) * self.lanes.len() as u64);
        match self.machine.observe(window, limit_ns) {
            Ok(trial) => Ok(trial),
            Err(Stop::Failed(failure)) => Err(failure),
            Err(Stop::Harmful(why)) => Err(Failure::new(Exit::Vm, why)),
        }
    }

    /// How long each window observes, so that the budget allows so many more blocks.
    fn window_length(&self, overhead_ns: u64, blocks: u32) -> u64 {
        let share_ns = self.left_ns() / (u64::from(blocks) * self.running());
        share_ns.saturating_sub(overhead_ns + overhead_ns / 10).clamp(SHORTEST_NS, LONGEST_NS)
    }

    /// The length of the first windows; fails if the budget does not allow a few blocks.
    fn check_budget(
        &mut self,
        trial: &Observation,
        overhead_ns: u64,
        needed: u32,
    ) -> Result<u64, Failure> {
        let windows = self.running();
        // A command takes as long as it takes.
        let observe_ns = match &self.options.figure {
            Some(_) => trial.observed_ns,
            None => self.window_length(overhead_ns, needed),
        };
        let left_ns = self.left_ns();
        let window_ns = observe_ns + overhead_ns;
        let blocks = left_ns / (windows * window_ns).max(1);
        if blocks >= u64::from(needed) {
            return Ok(observe_ns);
        }
        let least_ns = self.options.budget_ns - left_ns + windows * window_ns * u64::from(needed);
        let hint = format!(
            "set --budget to {} or more, or try less (--strategies, --try)",
            time::wait(least_ns + least_ns / 10)
        );
        if blocks < u64::from(FEWEST_BLOCKS) {
            let text = format!(
                "--budget {} is too short for {} of {} each",
                time::wait(self.options.budget_ns),
                count_noun(self.lanes.len(), "window"),
                time::wait(window_ns)
            );
            return Err(Failure::new(Exit::Input, text).with_hint(hint));
        }
        let text = format!("it allows about {blocks} blocks; a verdict needs {needed}");
        say(&Finding::warning("budget", text).with_hint(hint).to_string());
        Ok(observe_ns)
    }

    fn left_ns(&self) -> u64 {
        let spent_ns = SystemClock.now_ns().saturating_sub(self.began_ns);
        // The rest is for what a block takes longer than the one before, and for the end.
        (self.options.budget_ns / 100 * 97).saturating_sub(spent_ns)
    }

    /// Number of placements that were not dropped: the windows of a block.
    fn running(&self) -> u64 {
        self.lanes.iter().filter(|lane| lane.dropped.is_none()).count() as u64
    }

    /// True while there is a candidate that was not dropped.
    fn has_rivals(&self) -> bool {
        self.lanes.iter().any(|lane| lane.placed.is_some() && lane.dropped.is_none())
    }

    fn progress(&self, blocks: u32, needed: u32) -> String {
        format!(
            "block {}: {}; {needed} blocks are needed for a verdict, {} left",
            blocks + 1,
            count_noun(self.running(), "window"),
            time::wait(self.left_ns())
        )
    }

    /// One block: each placement that was not dropped, once.
    fn block(
        &mut self,
        random: &mut Pcg32,
        window: &Window<'_>,
        trial: &Observation,
    ) -> Result<(), Failure> {
        let mut order: Vec<usize> = (0..self.lanes.len()).collect();
        random.shuffle(&mut order);
        self.lanes.iter_mut().for_each(|lane| lane.windows.push(None));
        for index in order {
            if self.lanes[index].dropped.is_some() {
                continue;
            }
            let limit_ns = LONGEST_NS.max(trial.observed_ns * TIMES_THE_TRIAL);
            let lane = &mut self.lanes[index];
            let placed = self.machine.place(lane.placed.as_ref())?;
            let observed = match placed {
                Some(why) => {
                    let why = format!("it cannot be applied: {why}");
                    self.refused.push(why.clone());
                    Err(Stop::Harmful(why))
                }
                None => self.machine.observe(
                    &Window {
                        most_share: window.most_share.filter(|_| lane.placed.is_some()),
                        ..*window
                    },
                    limit_ns,
                ),
            };
            match observed {
                Ok(observed) if observed.source != trial.source => return Err(changed_source()),
                Ok(observed) => lane.add(observed),
                Err(Stop::Failed(failure)) => return Err(failure),
                Err(Stop::Harmful(why)) => {
                    self.machine.place(None)?;
                    say(&format!("{}: dropped: {why}", lane.name));
                    lane.dropped = Some(why);
                }
            }
            interrupt::check()?;
        }
        Ok(())
    }

    fn report_limits(&mut self, rows: &[Row], blocks: u32, needed: u32) {
        let mut candidates = self.lanes.iter().filter_map(|lane| lane.placed.as_ref());
        if candidates.clone().any(|placed| !placed.is_setting) {
            self.findings.push(Finding::note(
                "memory",
                "only threads were moved: the guest's memory stayed where it is, so the result \
                 holds for that memory",
            ));
        }
        if candidates.any(|placed| settings::is_of_host(&placed.plan)) {
            let text = "settings of the host acted on all its machines in their windows";
            self.findings.push(Finding::note("host", text));
        }
        let differs = matches!(rows[1].verdict, Some(Verdict::Better | Verdict::Worse));
        if differs {
            let text = "the two measurements of the present placement differ from each other: the \
                        load of this host changes with the order of the windows, and no verdict \
                        counts";
            self.findings.push(
                Finding::warning("A/A", text).with_hint("repeat it while the load is steadier"),
            );
        }
        if blocks < needed.max(LEAST_BLOCKS) && self.has_rivals() {
            let text = format!("{blocks} blocks were measured; a verdict needs {needed}");
            self.findings.push(
                Finding::warning("budget", text)
                    .with_hint("set a longer --budget, or try less (--strategies, --try)"),
            );
        }
    }
}

fn changed_source() -> Failure {
    let text = "the waits of the vCPUs could be recorded in some windows only";
    Failure::new(Exit::Host, text).with_hint("`pinfold measure sched` shows why; run it again")
}
