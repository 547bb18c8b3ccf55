//! A simulated machine that runs trials, for the tests of the engine.

use pinfold_study::RunError;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pinfold_host::{Clock as _, SimClock};
use pinfold_model::{Accelerator, Family, Figure, Origin, Unit};

use pinfold_stats::random::Pcg32;
use pinfold_study::store::{HostChange, OpenRun, SessionRecord, Store};
use pinfold_study::study::*;

/// Three methods at two speeds, on one and two cores.
pub const STUDY: &str = r#"
name = "toy"
seed = 5
repetitions = 8
share = ["workload"]
together = ["cores"]
constraints = ["method == 'none' -> speed == 1", "method != 'none' -> speed < 1"]
[baseline]
method = "none"
speed = 1
[[factor]]
name = "method"
levels = ["none", "stall", "quota"]
[[factor]]
name = "speed"
levels = [1, 0.5]
[[factor]]
name = "cores"
levels = [1, 2, 8]
[[skip]]
when = "cores > host_pus"
reason = "too few CPUs"
[[workload]]
name = "a"
command = ["a", "--cores={cores}"]
lasts = "1s"
[[workload.figure]]
name = "rate"
unit = "per-second"
json = "rate"
[[workload]]
name = "b"
command = ["b"]
lasts = "cores * 0.5"
[[workload.figure]]
name = "rate"
unit = "per-second"
json = "rate"
[[plot]]
name = "plot"
figure = "rate"
show = "ratio"
x = "speed"
series = "method"
ideal = "speed"
[[claim]]
source = "stall is true"
see = "{round(ratio(rate, method = 'stall'), 1)}"
agree = "abs(error(rate, method = 'stall')) < 5"
[[claim]]
source = "eight cores are faster"
see = "{value(rate, cores = 8)}"
agree = "value(rate, cores = 8) > value(rate, cores = 1)"
[quick]
note = "two blocks"
repetitions = 2
levels = { cores = [1] }
"#;

pub const FACTS: HostFacts =
    HostFacts { pus: 2, cores: 2, nodes: 1, packages: 1, smt: false, cpufreq: false };

/// How a trial fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    Once,
    Always,
    Fatal,
    StartFails,
}

pub struct World {
    pub store: Store,
    pub machine: Machine,
    pub clock: Arc<SimClock>,
    pub stop: AtomicBool,
    pub seen: Vec<Event>,
    pub path: String,
    _folder: tempfile::TempDir,
}

pub struct Machine {
    clock: Arc<SimClock>,
    generator: Pcg32,
    /// By the cell's name.
    pub troubles: BTreeMap<String, Trouble>,
    tried: BTreeSet<TrialSlot>,
    /// Trials that were run to their end, in order.
    pub ran: Vec<TrialSlot>,
    pub starts: usize,
    pub stop_at: Option<usize>,
    /// Findings of each placement.
    pub findings: Vec<&'static str>,
    stop: bool,
}

pub fn origin() -> Origin {
    Origin {
        fingerprint: "c0ffee".to_owned(),
        kernel: "6.12.1".to_owned(),
        cmdline: "quiet".to_owned(),
        cpu_model: "Test CPU".to_owned(),
        hypervisor: None,
        qemu: None,
        accelerator: Accelerator::Kvm,
        guest_kernel: None,
        pinfold: "0.1.0".to_owned(),
        seed: 1,
    }
}

impl World {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("store.sqlite").to_str().unwrap().to_owned();
        let clock = Arc::new(SimClock::at(1_700_000_000_000_000_000));
        Self {
            store: Store::open_or_create(&path).unwrap(),
            machine: Machine {
                clock: Arc::clone(&clock),
                generator: Pcg32::new(1, 0),
                troubles: BTreeMap::new(),
                tried: BTreeSet::new(),
                ran: Vec::new(),
                starts: 0,
                stop_at: None,
                findings: Vec::new(),
                stop: false,
            },
            clock,
            stop: AtomicBool::new(false),
            seen: Vec::new(),
            path,
            _folder: folder,
        }
    }

    pub fn create(&mut self, toml: &str, quick: bool) -> Result<OpenRun, RunError> {
        let study = from_toml(toml).unwrap();
        let new = NewStudy {
            study: &study,
            form: &PresetSelection::from_preset(quick.then_some(QUICK)),
            command: "pinfold study run toy.toml",
            origin: &origin(),
            facts: &FACTS,
            now_unix_s: 1_700_000_000,
        };
        create(&mut self.store, &new, &self.machine)
    }

    pub fn open(&mut self, run: OpenRun, origin: Origin) -> Result<OpenRun, RunError> {
        let now = SessionRecord { began_unix_s: 1_700_000_100, origin };
        Ok(self.store.open_run(run.id(), &now, HostChange::Refuse)?)
    }

    pub fn run(&mut self, open: OpenRun) -> Result<Outcome, RunError> {
        self.stop.store(false, Ordering::SeqCst);
        let (seen, stop, machine) = (&mut self.seen, &self.stop, &mut self.machine);
        machine.stop = false;
        let stop_at = machine.stop_at;
        let mut done = 0;
        let mut watch = |update: &Update<'_>| {
            seen.push(update.event.clone());
            done += 1;
            if stop_at == Some(done) {
                stop.store(true, Ordering::SeqCst);
            }
            assert!(update.done <= update.total && update.left_s >= 0.0);
        };
        run(
            &mut self.store,
            open,
            &mut Environment {
                runner: machine,
                clock: &*self.clock,
                progress: &mut watch,
                stop,
                node: "",
            },
        )
    }
}

impl Machine {
    fn result(&mut self, wanted: TrialRequest<'_>) -> TrialResult {
        let speed = wanted
            .cell
            .level_with_effect(wanted.study, &FactorEffect::Speed)
            .and_then(Level::number)
            .unwrap();
        let is_quota = wanted.cell.level(wanted.study, "method") == Some("quota");
        let noise = 1.0 + (self.generator.unit() - 0.5) * 0.01;
        // A quota that slows too little.
        let rate = 1e6 * noise * if is_quota { speed + 0.2 } else { speed };
        let figure = Figure {
            probe: "rate".to_owned(),
            labels: BTreeMap::new(),
            unit: Unit::PerSecond,
            family: Family::Capacity,
            cpu: None,
            duration_ns: 1_000_000_000,
            samples: vec![rate; 3],
            dropped: 0,
            disturbed: 0,
            flags: Vec::new(),
        };
        self.clock.sleep_ns(1_000_000_000);
        let mut figures = vec![figure.clone()];
        if !self.findings.is_empty() {
            let flags = self.findings.iter().map(|finding| format!("{FINDING}{finding}"));
            figures.push(Figure {
                probe: APPLY.to_owned(),
                family: Family::Count,
                samples: Vec::new(),
                flags: flags.collect(),
                ..figure
            });
        }
        TrialResult { figures, work_ns: 990_000_000 }
    }
}

impl Runner for Machine {
    fn refusal(&self, study: &Study, cell: &Cell) -> Option<String> {
        let slow = cell.level(study, "method") == Some("quota");
        (slow && cell.level(study, "cores") == Some("2")).then(|| "no second quota".to_owned())
    }

    fn start(
        &mut self,
        request: &StartRequest<'_>,
        finished: &mut Finished<'_>,
    ) -> Result<(), TrialError> {
        self.starts += 1;
        for (index, (wanted, slot)) in request.requests().zip(request.trials).enumerate() {
            let fresh = self.tried.insert(*slot);
            let trouble = self.troubles.get(&wanted.cell.name(wanted.study)).copied();
            let next = match trouble {
                Some(Trouble::StartFails) => {
                    return Err(TrialError::from_message("the start broke"));
                }
                Some(Trouble::Fatal) => finished(index, Err(TrialError::fatal("no rights"))),
                Some(Trouble::Always) => finished(index, Err(TrialError::from_message("it broke"))),
                Some(Trouble::Once) if fresh => {
                    finished(index, Err(TrialError::from_message("it broke once")))
                }
                Some(Trouble::Once) | None => {
                    let result = self.result(wanted);
                    self.ran.push(*slot);
                    finished(index, Ok(result))
                }
            };
            if next == NextStep::Stop {
                return Ok(());
            }
        }
        assert!(self.clock.now_ns() > 0);
        Ok(())
    }
}
