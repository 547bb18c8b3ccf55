//! Finds the best placement for a virtual machine on this host.
//!
//! ```text
//! subject (demo or the user's) ─► candidates ─► trial start ─► design ─► starts ─► verdicts
//! ```
//!
//! The design, the store and the statistics are in `pinfold-study`; the guest is started and
//! measured by [`crate::guest`].

mod candidates;
pub mod live;
mod persist;

pub use persist::PageData;

use pinfold_host::files::{self, StateDir};
use pinfold_host::{Clock as _, LiveHost, SystemClock};
use pinfold_model::{Accelerator, CpuSet, Finding, LoadState, Metric, Origin, Plan, Topology};
use pinfold_probe::pinload::Pinload;
use pinfold_study::RunError;
use pinfold_study::store::{OpenRun, RunId, Store};
use pinfold_study::tune::{
    self as study, Candidate, Costs, Created, Environment, Goal, Outcome, Progress, TuneConfig,
};

use crate::guest::{Facts, PER_OBSERVED_S, PER_STATE_S, StartCoordination, Subject, VmStarter};
use crate::message::say;
use crate::start_lock::StartLock;
use crate::{Exit, Failure, HelperProgram, ended_placements, host, interrupt};

/// Shortest observation of the spin-gap benchmark in one load state (seconds).
const MIN_OBSERVATION_S: f64 = 0.25;
const LONGEST_LOOK_S: f64 = 5.0;
/// The load states that are measured if the budget is short.
const HEAVIEST_AND_LIGHTEST: [LoadState; 2] = [LoadState::ALL[0], LoadState::BOTH];

/// What a tuning run looks for, and where its results go.
#[derive(Clone, Debug)]
pub struct Options {
    /// What to look for.
    pub goal: Goal,
    /// Placements with a longer worst gap are rejected (ns).
    pub max_gap_ns: Option<u64>,
    /// Time that it may take (ns).
    pub budget_ns: u64,
    /// Strategies to try; empty for all.
    pub strategies: Vec<String>,
    /// True to measure every placement in every block.
    pub full: bool,
    /// CPUs that nothing may use.
    pub avoid: CpuSet,
    /// True to plan as if the host had no other owners of CPUs.
    pub ignore_claims: bool,
    /// Path of the store.
    pub store: String,
    /// An interrupted run of the store, to be resumed.
    pub resume: Option<i64>,
    /// Seed of the random order; `None` to take one from the clock.
    pub seed: Option<u64>,
    /// The command line, for the report.
    pub command: String,
}

/// What the caller shows while a run is in progress.
pub struct Display<'a> {
    /// Called before the first start that counts, with the findings so far.
    pub begins: &'a dyn Fn(&Created, Accelerator, &[Finding]),
    /// Receives the progress.
    pub progress: &'a mut dyn Progress,
}

/// The data of a run.
struct Tuning<'a> {
    options: &'a Options,
    host: &'a LiveHost,
    topology: &'a Topology,
    candidates: Vec<Candidate>,
    findings: Vec<Finding>,
    pinload: Pinload,
    state: &'a StateDir,
    program: &'a HelperProgram,
    order: &'a StartCoordination,
}

/// The host of a tuning run.
#[derive(Clone, Copy)]
pub struct TuningHost<'a> {
    /// Access to it.
    pub host: &'a LiveHost,
    /// Its topology.
    pub topology: &'a Topology,
    /// The state directory, if it is not the usual one.
    pub state: Option<&'a str>,
    /// The program of the watchdogs.
    pub program: &'a HelperProgram,
}

/// Runs the tuning to its end; the store has the result. Signals must be
/// [caught](interrupt::install) before.
///
/// ```no_run
/// use pinfold_run::guest::{Scratch, Subject};
/// use pinfold_run::tune::{Display, Options, TuningHost, tune};
/// use pinfold_run::{Failure, HelperProgram, host, inputs, interrupt};
///
/// fn tune_demo_guest(options: &Options) -> Result<(), Failure> {
///     interrupt::install()?;
///     let host = host::live()?;
///     let (topology, program) = (inputs::topology(&host, None)?, HelperProgram::at("pinfold"));
///     let mut subject = Subject::demo(1, &Scratch::new(&host)?)?;
///     let on = TuningHost { host: &host, topology: &topology, state: None, program: &program };
///     let progress = &mut |_: &pinfold_study::tune::Update<'_>| {};
///     let display = Display { begins: &|_, _, _| {}, progress };
///     let (store, run) = tune(options, on, &mut subject, display)?;
///     println!("run {run} in {}", store.path());
///     Ok(())
/// }
/// ```
///
/// # Errors
/// [`Failure`]: the guest cannot be started, or the run was interrupted and can be resumed.
pub fn tune(
    options: &Options,
    TuningHost { host, topology, state, program }: TuningHost<'_>,
    subject: &mut Subject,
    display: Display<'_>,
) -> Result<(Store, RunId), Failure> {
    let state = &host::state(state)?;
    ended_placements::clear_up_in(host, &host::journals(state, &SystemClock)?)?;
    let order =
        StartCoordination { ignore_claims: options.ignore_claims, ..StartCoordination::default() };
    let is_new = !files::exists(&options.store);
    let (mut store, candidates, findings) = match options.resume {
        Some(run) => {
            let store = Store::open_or_create(&options.store)?;
            let candidates = persist::candidates(&store, run, subject.vcpus)?;
            (store, candidates, Vec::new())
        }
        None => {
            order.starting.set(Some(StartLock::wait(state)?));
            let claims = order.claims(host, state)?;
            let (candidates, findings) =
                candidates::candidates(options, subject, topology, &claims)?;
            order.reported.replace(findings.clone());
            (Store::open_or_create(&options.store)?, candidates, findings)
        }
    };
    let pinload = Pinload::install()?;
    let tuning = Tuning {
        options,
        host,
        topology,
        candidates,
        findings,
        pinload,
        state,
        program,
        order: &order,
    };
    let run = match tuning.begin(&mut store, subject, display.begins) {
        Ok(run) => run,
        Err(failure) => {
            if is_new {
                // A refused run leaves no store behind.
                drop(store);
                files::remove(&options.store)?;
            }
            return Err(failure);
        }
    };
    tuning.finish(store, run, subject, display.progress)
}

impl Tuning<'_> {
    /// Makes the starts of a run.
    fn finish(
        &self,
        mut store: Store,
        run: OpenRun,
        subject: &Subject,
        progress: &mut dyn Progress,
    ) -> Result<(Store, RunId), Failure> {
        let mut starter = self.starter(subject)?;
        let outcome = study::run(
            &mut store,
            run,
            &mut Environment {
                runner: &mut starter,
                clock: &SystemClock,
                progress,
                stop: interrupt::flag(),
                node: "",
            },
        );
        progress.finish();
        match outcome.map_err(|e| Failure::from_error(Exit::Vm, &e, e.hint()))? {
            Outcome::Finished => Ok((store, run.id())),
            Outcome::Interrupted { done, total } => {
                let path = &self.options.store;
                let text = format!(
                    "interrupted after {done} of {total} starts; they are stored in {path}"
                );
                let hint = format!("continue with the same command and --resume {}", run.id());
                Err(Failure::new(Exit::Interrupted, text).with_hint(hint))
            }
        }
    }

    /// The start that is not counted, and the run that fits the budget.
    fn begin(
        &self,
        store: &mut Store,
        subject: &mut Subject,
        begins: &dyn Fn(&Created, Accelerator, &[Finding]),
    ) -> Result<OpenRun, Failure> {
        let facts = self.trial(subject)?;
        self.open_run(store, subject, &facts, begins)
    }

    fn starter<'s>(&'s self, subject: &'s Subject) -> Result<VmStarter<'s>, Failure> {
        let io_directory = files::cache_dir()?;
        files::make_dirs(&io_directory)?;
        let pus = u32::try_from(self.topology.allowed.len()).unwrap_or(u32::MAX);
        let plans: Vec<Plan> = self.candidates.iter().map(|one| one.plan.clone()).collect();
        Ok(VmStarter {
            host: self.host,
            clock: &SystemClock,
            state: self.state,
            program: self.program,
            subject,
            plans,
            pinload: &self.pinload,
            pus,
            io_directory,
            memory_node: None,
            order: Some(self.order),
        })
    }

    /// One start that is not counted, to determine whether KVM works for the demo guest, how long a
    /// start takes, and QEMU's version.
    fn trial(&self, subject: &mut Subject) -> Result<Facts, Failure> {
        if subject.demo.is_some() {
            say("Trying a start under KVM …");
            match self.one_start(subject) {
                Ok(facts) => return Ok(facts),
                Err(failure) if failure.exit == Exit::Vm => {
                    let why = failure.message.lines().last().unwrap_or("").to_owned();
                    subject.findings.push(Finding::warning(
                        "accelerator",
                        format!(
                            "KVM does not work for this guest here ({why}), so TCG was measured"
                        ),
                    ));
                    say("KVM does not work here: continuing with TCG (QEMU's translator).");
                    subject.use_accelerator(Accelerator::TcgMulti);
                }
                Err(failure) => return Err(failure),
            }
        }
        self.one_start(subject)
    }

    fn one_start(&self, subject: &Subject) -> Result<Facts, Failure> {
        let mut reported = None;
        self.starter(subject)?.with_guest(&self.candidates[0].plan, |_, facts| {
            reported = Some(facts.clone());
            Ok(())
        })?;
        reported.ok_or_else(|| Failure::new(Exit::Vm, "the trial start reported no data"))
    }

    /// Creates a run that fits the budget, or opens the interrupted one.
    fn open_run(
        &self,
        store: &mut Store,
        subject: &Subject,
        facts: &Facts,
        begins: &dyn Fn(&Created, Accelerator, &[Finding]),
    ) -> Result<OpenRun, Failure> {
        let clock = SystemClock;
        let seed = self.options.seed.unwrap_or_else(|| clock.now_ns() ^ clock.unix_seconds());
        let origin = self.origin(subject, facts, seed)?;
        if let Some(run) = self.options.resume {
            return persist::resume(store, run, &origin, &clock);
        }
        let mut config = self.config(subject, facts, seed)?;
        let mut kept = PageData {
            command: self.options.command.clone(),
            guest: subject.describe(),
            argv: subject.command.clone(),
            capture: pinfold_topology::capture(self.host)
                .map_err(|e| Failure::from_error(Exit::Host, &e, e.hint()))?,
            findings: [self.findings.clone(), subject.findings.clone()].concat(),
        };
        let mut create = |config: &mut TuneConfig, kept: &PageData| {
            config.context = persist::context(kept)?;
            let now = clock.unix_seconds();
            Ok::<_, Failure>(study::create(store, config, &self.candidates, &origin, now))
        };
        let mut created = create(&mut config, &kept)?;
        if let Err(RunError::Budget { needed_s, .. }) = &created
            && config.load_states.len() > HEAVIEST_AND_LIGHTEST.len()
        {
            kept.findings.push(
                Finding::warning(
                    "load states",
                    "the budget allows only idle/idle and loaded/loaded, not the two other load \
                     states",
                )
                .with_hint(format!("--budget {:.0}s allows all four", needed_s.ceil())),
            );
            config.load_states = HEAVIEST_AND_LIGHTEST.to_vec();
            created = create(&mut config, &kept)?;
        }
        let created = created?;
        begins(&created, facts.accelerator, &kept.findings);
        Ok(created.run)
    }

    fn config(&self, subject: &Subject, facts: &Facts, seed: u64) -> Result<TuneConfig, Failure> {
        let goal = self.options.goal;
        let start_s = facts.boot_ns as f64 / 1e9 + 0.2; // shutdown and undo
        let costs = Costs { start_s, state_s: PER_STATE_S, per_observed_s: PER_OBSERVED_S };
        let budget_s = self.options.budget_ns as f64 / 1e9;
        let mut config = TuneConfig::new(goal, budget_s, seed, costs);
        config.observation.min_s = MIN_OBSERVATION_S;
        config.observation.max_s = LONGEST_LOOK_S;
        if self.options.full {
            config = config.without_race();
        }
        config.max_gap_ns = self.options.max_gap_ns;
        if !subject.inside.has_agent() {
            // The user's guest cannot be loaded: only the host's load can be set.
            config.load_states.retain(|load| !load.guest);
            config.gap_metric = Metric::RunDelay;
            if goal != Goal::Latency {
                return Err(Failure::new(
                    Exit::Input,
                    format!("--goal {} needs to measure inside the guest", goal.name()),
                )
                .with_hint("run `pinload agent` in it and give --agent, or use --goal latency"));
            }
        }
        Ok(config)
    }

    fn origin(&self, subject: &Subject, facts: &Facts, seed: u64) -> Result<Origin, Failure> {
        Ok(Origin {
            qemu: Some(facts.qemu.clone()),
            accelerator: facts.accelerator,
            guest_kernel: subject.kernel.as_ref().map(pinfold_vm::guest::GuestKernel::origin),
            ..host::origin(self.host, self.topology, seed)?
        })
    }
}
