//! `pinfold tune`: finds the best placement for a virtual machine on this host.
//!
//! ```text
//! subject (demo or the user's) ─► candidates ─► trial start ─► design ─► starts ─► verdicts ─► page
//! ```
//!
//! The design, the store and the statistics are in `pinfold-study`; this module starts the machine
//! ([`starter`]), measures in it ([`measure`]) and prints the result.

mod boot_priority;
mod candidates;
mod guest_image;
pub mod loads;
mod measure;
mod persist;
mod preview;
mod print;
mod scratch;
mod starter;
mod subject;

pub use guest_image::{GuestImage, Shape, lacking};
pub use measure::Running;
pub use persist::Kept;
pub use print::{page_of, show_result, write_page};
pub use scratch::Scratch;
pub use starter::{Facts, VmStarter};
pub use subject::Subject;

use pinfold_host::{Clock, LiveHost, SystemClock, files};
use pinfold_model::{Accelerator, Finding, LoadState, Metric, Origin, Plan, Topology};
use pinfold_probe::pinload::Pinload;
use pinfold_run::{Exit, Failure, host, inputs, interrupt, time};
use pinfold_study::store::{OpenRun, Store};
use pinfold_study::tune::{
    self as study, Candidate, Costs, Environment, Goal, Outcome, TuneConfig, TuneError,
};

use self::measure::{PER_OBSERVED_S, PER_STATE_S};
use self::subject::Inside;
use crate::cli::{self, TuneArgs};
use crate::common;
use crate::output::say;
use crate::progress::Bar;

/// Shortest observation of the spin-gap benchmark in one load state (seconds).
const SHORTEST_LOOK_S: f64 = 0.25;
const LONGEST_LOOK_S: f64 = 5.0;
/// The load states that are measured if the budget is short.
const HEAVIEST_AND_LIGHTEST: [LoadState; 2] = [LoadState::ALL[0], LoadState::BOTH];

/// The data of a run.
struct Bench<'a> {
    arguments: &'a TuneArgs,
    host: &'a LiveHost,
    clock: &'a SystemClock,
    topology: &'a Topology,
    candidates: Vec<Candidate>,
    findings: Vec<Finding>,
}

/// Runs the tuning and prints the result.
pub fn tune(arguments: &TuneArgs, state: Option<&str>) -> Result<(), Failure> {
    let host = host::live()?;
    let clock = SystemClock;
    interrupt::install()?;
    let topology = inputs::topology(&host, None)?;
    let scratch = Scratch::new(&host)?;
    let mut subject = Subject::prepare(arguments, &scratch, &host)?;
    let open = || {
        Store::open_or_create(&arguments.store.path)
            .map_err(|e| Failure::from_error(Exit::Input, &e, e.hint()))
    };
    // A refused run leaves no store behind.
    let (mut store, candidates, findings) = match arguments.resume {
        Some(run) => {
            let store = open()?;
            let candidates = persist::candidates(&store, run, subject.vcpus)?;
            (store, candidates, Vec::new())
        }
        None => {
            let (candidates, findings) = candidates::candidates(arguments, &subject, &topology)?;
            (open()?, candidates, findings)
        }
    };
    let bench =
        Bench { arguments, host: &host, clock: &clock, topology: &topology, candidates, findings };
    let state = host::state(state)?;
    let pinload = Pinload::install()?;
    let facts = bench.trial(&mut subject, &pinload, &state)?;
    let mut starter = bench.starter(&subject, &pinload, &state)?;
    let run = bench.open_run(&mut store, &subject, &facts)?;
    let mut progress = Bar::new("starts");
    let outcome = study::run(
        &mut store,
        run,
        &mut Environment {
            runner: &mut starter,
            clock: &clock,
            progress: &mut progress,
            stop: interrupt::flag(),
            node: "",
        },
    );
    progress.finish();
    match outcome.map_err(|e| Failure::from_error(Exit::Vm, &e, e.hint()))? {
        Outcome::Finished => print::report(arguments, &store, run.id(), &topology),
        Outcome::Interrupted { done, total } => Err(Failure::new(
            Exit::Interrupted,
            format!(
                "interrupted after {done} of {total} starts; they are kept in {}",
                arguments.store.path
            ),
        )
        .with_hint(format!("go on with the same command and --resume {}", run.id()))),
    }
}

impl Bench<'_> {
    fn starter<'s>(
        &'s self,
        subject: &'s Subject,
        pinload: &'s Pinload,
        state: &'s files::StateDir,
    ) -> Result<VmStarter<'s>, Failure> {
        let io_directory = files::cache_dir()?;
        files::make_dirs(&io_directory)?;
        let pus = u32::try_from(self.topology.allowed.len()).unwrap_or(u32::MAX);
        let plans: Vec<Plan> = self.candidates.iter().map(|one| one.plan.clone()).collect();
        Ok(VmStarter {
            host: self.host,
            clock: self.clock,
            state,
            subject,
            plans,
            pinload,
            pus,
            io_directory,
        })
    }

    /// One start that is not counted, to determine whether KVM works for the demo guest, how long a
    /// start takes, and QEMU's version.
    fn trial(
        &self,
        subject: &mut Subject,
        pinload: &Pinload,
        state: &files::StateDir,
    ) -> Result<Facts, Failure> {
        if subject.demo.is_some() {
            say("Trying a start under KVM …");
            match self.one_start(subject, pinload, state) {
                Ok(facts) => return Ok(facts),
                Err(failure) if failure.exit == Exit::Vm => {
                    let why = failure.message.lines().last().unwrap_or("").to_owned();
                    subject.findings.push(Finding::warning(
                        "accelerator",
                        format!("KVM does not run this guest here ({why}), so TCG was measured"),
                    ));
                    say("KVM does not run it here: going on with TCG (QEMU's translator).");
                    subject.use_accelerator(Accelerator::TcgMulti);
                }
                Err(failure) => return Err(failure),
            }
        }
        self.one_start(subject, pinload, state)
    }

    fn one_start(
        &self,
        subject: &Subject,
        pinload: &Pinload,
        state: &files::StateDir,
    ) -> Result<Facts, Failure> {
        let mut reported = None;
        let starter = self.starter(subject, pinload, state)?;
        starter.with_guest(&self.candidates[0].plan, |_, facts| {
            reported = Some(Facts { qemu: facts.qemu.clone(), ..*facts });
            Ok(())
        })?;
        reported.ok_or_else(|| Failure::new(Exit::Vm, "the trial start gave no facts"))
    }

    /// Creates a run that fits the budget, or opens the interrupted one.
    fn open_run(
        &self,
        store: &mut Store,
        subject: &Subject,
        facts: &Facts,
    ) -> Result<OpenRun, Failure> {
        let seed =
            self.arguments.seed.unwrap_or_else(|| self.clock.now_ns() ^ self.clock.unix_seconds());
        let origin = self.origin(subject, facts, seed)?;
        if let Some(run) = self.arguments.resume {
            return persist::resume(store, run, &origin, self.clock);
        }
        let mut config = self.config(subject, facts, seed)?;
        let mut kept = Kept {
            command: common::command_line(),
            guest: subject.describe(),
            argv: subject.command.clone(),
            capture: pinfold_topology::capture(self.host)
                .map_err(|e| Failure::from_error(Exit::Host, &e, e.hint()))?,
            findings: [self.findings.clone(), subject.findings.clone()].concat(),
        };
        let mut create = |config: &mut TuneConfig, kept: &Kept| {
            config.context = persist::context(kept)?;
            let now = self.clock.unix_seconds();
            Ok::<_, Failure>(study::create(store, config, &self.candidates, &origin, now))
        };
        let mut created = create(&mut config, &kept)?;
        if let Err(TuneError::Budget { needed_s, .. }) = &created
            && config.load_states.len() > HEAVIEST_AND_LIGHTEST.len()
        {
            kept.findings.push(
                Finding::warning(
                    "load states",
                    "the budget allows only idle/idle and loaded/loaded, not the two between",
                )
                .with_hint(format!("--budget {:.0}s allows all four", needed_s.ceil())),
            );
            config.load_states = HEAVIEST_AND_LIGHTEST.to_vec();
            created = create(&mut config, &kept)?;
        }
        let created = created.map_err(|e| Failure::from_error(Exit::Input, &e, e.hint()))?;
        preview::announce(&created, facts.accelerator, &kept.findings);
        Ok(created.run)
    }

    fn config(&self, subject: &Subject, facts: &Facts, seed: u64) -> Result<TuneConfig, Failure> {
        let goal = match self.arguments.goal {
            cli::Goal::Latency => Goal::Latency,
            cli::Goal::Throughput => Goal::Throughput,
            cli::Goal::Balanced => Goal::Balanced,
        };
        let budget_ns = time::parse_ns("--budget", &self.arguments.budget)?;
        let start_s = facts.boot_ns as f64 / 1e9 + 0.2; // shutdown and undo
        let costs = Costs { start_s, state_s: PER_STATE_S, per_observed_s: PER_OBSERVED_S };
        let mut config = TuneConfig::new(goal, budget_ns as f64 / 1e9, seed, costs);
        config.observation.min_s = SHORTEST_LOOK_S;
        config.observation.max_s = LONGEST_LOOK_S;
        if self.arguments.full {
            config = config.in_full();
        }
        let max_gap = self.arguments.max_gap.as_deref();
        config.max_gap_ns = max_gap.map(|text| time::parse_ns("--max-gap", text)).transpose()?;
        if matches!(subject.inside, Inside::Nothing { .. }) {
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
