//! A simulated host with a simulated machine, for the tests of the engine.

use crate::error::RunError;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};

use pinfold_host::{Clock, SimClock};
use pinfold_model::{
    CpuSet, IsolationScope, LoadState, Metric, Origin, Plan, PuId, Role, Speed, ThreadPlan,
    VnodeKind, VnodePlan,
};
use pinfold_stats::random::Pcg32;

use super::super::*;
use crate::fixture;
use crate::store::{HostChange, OpenRun, Phase, RunId, SessionRecord, Store};

/// Costs of a start in the simulation (seconds).
pub const COSTS: Costs = Costs { start_s: 2.0, state_s: 0.1, per_observed_s: 1.0 };

/// A run without a race: three screening blocks, no candidate is dropped by a test.
pub fn config(goal: Goal) -> TuneConfig {
    TuneConfig { race: None, screening_blocks: 3, ..racing(goal) }
}

/// A run with the defaults.
pub fn racing(goal: Goal) -> TuneConfig {
    TuneConfig { load_states: LoadState::ALL.to_vec(), ..TuneConfig::new(goal, 400.0, 11, COSTS) }
}

/// How a start of the simulation fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    Once,
    Twice,
    Fatal,
    NotANumber,
    MissingState,
    Drops,
}

/// A recorded update.
#[derive(Clone, Debug)]
pub struct RecordedUpdate {
    pub event: Event,
    pub done: u64,
    pub total: u64,
    pub left_s: f64,
}

pub struct World {
    pub candidates: Vec<Candidate>,
    pub store: Store,
    pub seen: Vec<RecordedUpdate>,
    /// Standard deviation of the logarithms between starts.
    pub noise: f64,
    /// Starts take the predicted time multiplied by this factor.
    pub slowness: f64,
    pub budget_s: f64,
    pub stop: AtomicBool,
    pub clock: SimClock,
    pub machine: Machine,
    _folder: tempfile::TempDir,
}

/// The state of the machine: survives interruptions of the engine, like a real host.
#[derive(Default)]
pub struct Machine {
    /// Stall under full load (ns) and rate (per second) of each candidate.
    pub levels: Vec<(f64, f64)>,
    /// By phase, block and candidate.
    pub troubles: BTreeMap<(Phase, u32, usize), Trouble>,
    /// Candidates that never start.
    pub broken: BTreeSet<usize>,
    /// The requests, in order.
    pub requests: Vec<StartRequest>,
    /// By confirmation block: true disturbs the baseline's first start, false its second.
    pub spoiled: Vec<bool>,
    /// Set the stop flag after this number of requests.
    pub stop_at: Option<usize>,
    calls: BTreeMap<(Phase, u32, usize), u32>,
}

impl World {
    pub fn new(candidates: &[(&str, f64, f64)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.sqlite");
        let places = (1_u32..).zip(candidates);
        Self {
            candidates: places.map(|(place, (name, ..))| candidate(name, place, 2)).collect(),
            store: Store::open_or_create(path.to_str().unwrap()).unwrap(),
            seen: Vec::new(),
            noise: 0.15,
            slowness: 1.0,
            budget_s: 400.0,
            stop: AtomicBool::new(false),
            clock: SimClock::at(1_700_000_000_000_000_000),
            machine: Machine {
                levels: candidates.iter().map(|&(_, gap, rate)| (gap, rate)).collect(),
                ..Machine::default()
            },
            _folder: folder,
        }
    }

    pub fn place_like(&mut self, name: &str, other: &str) {
        let plan = plan_of(&self.candidates, other);
        let one = self.candidates.iter_mut().find(|candidate| candidate.name == name).unwrap();
        one.plan = Plan { strategy: name.to_owned(), ..plan };
    }

    pub fn stop_after(&mut self, starts: usize) {
        self.machine.stop_at = Some(starts);
    }

    pub fn list_started(&self) -> Vec<usize> {
        self.machine.requests.iter().map(|request| request.candidate).collect()
    }

    pub fn create(&mut self, config: &TuneConfig) -> Result<Created, RunError> {
        self.budget_s = config.budget_s;
        let now = self.clock.unix_seconds();
        create(&mut self.store, config, &self.candidates, &fixture::origin(), now)
    }

    pub fn go(&mut self, open: OpenRun) -> Result<Outcome, RunError> {
        let mut starter = WorldStarter {
            machine: &mut self.machine,
            clock: &self.clock,
            stop: &self.stop,
            noise: self.noise,
            slowness: self.slowness,
        };
        let seen = &mut self.seen;
        let mut progress = |update: &Update<'_>| {
            let Update { done, total, left_s, .. } = *update;
            seen.push(RecordedUpdate { event: update.event.clone(), done, total, left_s });
        };
        let mut environment = Environment {
            runner: &mut starter,
            clock: &self.clock,
            progress: &mut progress,
            stop: &self.stop,
            node: "",
        };
        run(&mut self.store, open, &mut environment)
    }

    pub fn reopen(&mut self, run: RunId, origin: Origin, on_change: HostChange) -> OpenRun {
        self.stop.store(false, Ordering::SeqCst);
        let now = SessionRecord { began_unix_s: self.clock.unix_seconds(), origin };
        self.store.open_run(run, &now, on_change).unwrap()
    }

    pub fn tune(&mut self, config: &TuneConfig) -> Result<TuneReport, RunError> {
        let created = self.create(config)?;
        self.go(created.run)?;
        analyse(&self.store, created.run.id())
    }
}

fn plan_of(candidates: &[Candidate], name: &str) -> Plan {
    candidates.iter().find(|candidate| candidate.name == name).unwrap().plan.clone()
}

pub fn candidate(name: &str, place: u32, vcpus: u32) -> Candidate {
    let plan = Plan {
        strategy: name.to_owned(),
        fingerprint: "c0ffee".to_owned(),
        vnodes: vec![VnodePlan {
            name: "guest".to_owned(),
            kind: VnodeKind::VirtualMachine,
            threads: (0..vcpus)
                .map(|index| thread(Role::Vcpu(index), place * 8 + index))
                .chain([thread(Role::Emulator, 0)])
                .collect(),
            guest: None,
            memory: None,
            speed: Speed::FULL,
        }],
        irqs: Vec::new(),
        tuning: pinfold_model::Tuning::default(),
        cpus: None,
        housekeeping: CpuSet::single(PuId(0)),
        exclusive: CpuSet::new(),
        isolation: IsolationScope::None,
        avoid_pus: pinfold_model::CpuSet::new(),
        moved: Vec::new(),
        housekeeping_reason: "of the test".to_owned(),
        findings: Vec::new(),
    };
    let plan_json = format!("{{\"strategy\":\"{name}\"}}");
    Candidate { name: name.to_owned(), plan, plan_json }
}

fn thread(role: Role, pu: u32) -> ThreadPlan {
    ThreadPlan {
        role,
        pus: CpuSet::single(PuId(pu)),
        policy: None,
        reason: "of the test".to_owned(),
    }
}

struct WorldStarter<'a> {
    machine: &'a mut Machine,
    clock: &'a SimClock,
    stop: &'a AtomicBool,
    noise: f64,
    slowness: f64,
}

impl Starter for WorldStarter<'_> {
    fn start(&mut self, request: &StartRequest) -> Result<StartResult, TrialError> {
        let states = request.load_states.len();
        let taken_s = COSTS.start(states, request.observation_s) * self.slowness;
        let taken = std::time::Duration::from_secs_f64(taken_s);
        self.clock.sleep_ns(u64::try_from(taken.as_nanos()).unwrap());
        self.machine.requests.push(request.clone());
        if self.machine.stop_at == Some(self.machine.requests.len()) {
            self.stop.store(true, Ordering::SeqCst);
        }
        let slot = (request.phase, request.block, request.candidate);
        let call = self.machine.calls.entry(slot).or_insert(0);
        *call += 1;
        let call = *call;
        if self.machine.broken.contains(&request.candidate) {
            return Err(TrialError::from_message("it never starts"));
        }
        let trouble = self.machine.troubles.get(&slot).copied();
        match trouble {
            Some(Trouble::Once) if call == 1 => {
                return Err(TrialError::from_message("it stumbled"));
            }
            Some(Trouble::Twice) => return Err(TrialError::from_message("QEMU said no")),
            Some(Trouble::Fatal) if call == 1 => {
                return Err(TrialError::fatal("there is no QEMU").with_hint("install it"));
            }
            Some(_) | None => {}
        }
        let mut result = self.measure(request, call);
        match trouble {
            Some(Trouble::NotANumber) => result.cells[0].series[0].samples[0] = f64::NAN,
            Some(Trouble::MissingState) => drop(result.cells.pop()),
            Some(Trouble::Drops) => {
                let series = result.cells.iter_mut().flat_map(|cell| &mut cell.series);
                series.for_each(|series| series.dropped = 9);
            }
            Some(Trouble::Once | Trouble::Twice | Trouble::Fatal) | None => {}
        }
        Ok(result)
    }
}

impl WorldStarter<'_> {
    fn measure(&self, request: &StartRequest, call: u32) -> StartResult {
        let phase = match request.phase {
            Phase::Screening => 1,
            Phase::Confirmation => 2,
        };
        let stream = (phase << 40)
            | (u64::from(request.block) << 16)
            | (u64::from(call) << 8)
            | request.candidate as u64;
        let mut generator = Pcg32::new(77, stream);
        let (mut gap_ns, rate) = self.machine.levels[request.candidate];
        let spoiled = self.machine.spoiled.get(request.block as usize);
        if request.candidate == 0 && spoiled.is_some_and(|first| *first == (call == 1)) {
            gap_ns *= 4.0;
        }
        let gap_ns = gap_ns * self.spread(&mut generator);
        let rate = rate * self.spread(&mut generator).powf(0.1);
        let cells = request.load_states.iter().map(|&load| {
            let weight = 1.0 + f64::from(u8::from(load.host)) * 9.0;
            let worst = gap_ns * weight / 10.0;
            cell(load, worst, rate / weight.sqrt(), &mut generator)
        });
        StartResult { cells: cells.collect() }
    }

    /// Random deviation of this start.
    fn spread(&self, generator: &mut Pcg32) -> f64 {
        (self.noise * (generator.unit() * 3.4 - 1.7)).exp()
    }
}

fn cell(load: LoadState, worst_ns: f64, rate: f64, generator: &mut Pcg32) -> CellResult {
    let mut series = Vec::new();
    for cpu in 0..2 {
        series.push(fixture::series(Metric::SpinGap, cpu, some_samples(120, worst_ns, generator)));
        series.push(fixture::series(
            Metric::Wakeup,
            cpu,
            some_samples(120, worst_ns * 1.5, generator),
        ));
        series.push(fixture::series(Metric::ComputeRate, cpu, vec![rate; 40]));
    }
    series.push(fixture::series(Metric::IoAhci, 0, some_samples(60, worst_ns * 3.0, generator)));
    series.push(fixture::series(Metric::IoVirtio, 0, some_samples(60, worst_ns * 2.0, generator)));
    let roles = vec![fixture::role_stats(Role::Vcpu(0)), fixture::role_stats(Role::Emulator)];
    CellResult { load, series, roles, roles_ns: Some(1_000) }
}

fn some_samples(count: usize, most: f64, generator: &mut Pcg32) -> Vec<f64> {
    let mut samples: Vec<f64> = (1..count).map(|_| most * generator.unit().powi(4) + 1.0).collect();
    samples.push(most);
    samples
}
