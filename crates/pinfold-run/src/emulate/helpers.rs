//! The helper processes of the methods: reference runs and burners, both `pinload`.

use std::io::Read as _;
use std::sync::Mutex;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use crate::{Failure, host};
use pinfold_emulate::{
    BackgroundReferenceRun, Burner, Calibration, Calibrations, Cleanup, Effort, HelperSpawner,
    ReferenceRun, SpeedError, Throughput, Watchdog, Window,
};
use pinfold_host::process::{self, Child, Heartbeat, Spawn, Stdio};
use pinfold_host::{LiveHost, SystemClock, with_causes};
use pinfold_model::{CpuSet, Policy, PuId};
use pinfold_probe::cpu_speed::{
    Progress, ProgressOutcome, SpeedBenchmark as _, WorkerProgress, Workers,
};
use pinfold_probe::loads::{HostLoads, LoadDuration, LoadKind, LoadSpec, Placement};
use pinfold_probe::pinload::Pinload;

use super::stored_costs::StoredCosts;
use crate::helper_program::{Helper, HelperProgram};
use crate::message::say;

/// Programs from a copy of `pinload` that this process has installed.
pub struct HelperProcesses<'p> {
    pinload: &'p Pinload,
    /// The program of the sentinels.
    program: &'p HelperProgram,
    kept: StoredCosts<'p>,
    renews: bool,
    effort: Effort,
    messages: Mutex<Vec<String>>,
}

impl<'p> HelperProcesses<'p> {
    /// The programs of this copy, with the file of their costs.
    pub fn new(pinload: &'p Pinload, program: &'p HelperProgram, kept: StoredCosts<'p>) -> Self {
        let (renews, effort) = (true, Effort::Full);
        Self { pinload, program, kept, renews, effort, messages: Mutex::default() }
    }

    /// The messages about the start so far; each is returned once.
    pub fn messages(&self) -> Vec<String> {
        self.messages.lock().map(|mut messages| std::mem::take(&mut *messages)).unwrap_or_default()
    }

    /// The same with another effort before a vnode starts.
    pub fn with_effort(self, effort: Effort) -> Self {
        Self { effort, ..self }
    }

    /// For vnodes in which a measurement runs: no reference run at the same time.
    pub fn without_renewal(self) -> Self {
        Self { renews: false, ..self }
    }
}

/// Time without heartbeats after which a burner pauses: the vnode is at full speed again within 100
/// ms.
const BURNER_SILENCE_NS: u64 = 90_000_000;
/// Nice value of the reference runs before a vnode is up: next to other tasks they get most of the
/// CPU, for a sixth of a second each.
const WITNESS_NICE: i8 = -20;
/// Length of the windows of a reference run (ms): several ticks of the kernel. There are as many as
/// fit.
const WINDOW_MS: usize = 20;
/// Stops of at least this length (ns), or of four units of work, are recorded: even with a short
/// period, an interrupted timer tick with a stall is longer.
const STOP_NS: u64 = 1_000;

/// One worker on each CPU, with all stops recorded.
fn benchmark(pus: &CpuSet, duration_ns: u64) -> Progress {
    let workers = Workers::Threads(u32::try_from(pus.len()).unwrap_or(u32::MAX));
    let duration_ms = u32::try_from(duration_ns / 1_000_000).unwrap_or(u32::MAX);
    Progress {
        pinned: Some(pus.clone()),
        gap_min_ns: STOP_NS,
        ..Progress::new(workers, duration_ms)
    }
}

fn speed_error(why: String) -> SpeedError {
    SpeedError::HelperSpawner { what: "the witness", why }
}

/// The results of the workers, in whole windows.
fn rates(outcome: &ProgressOutcome) -> Result<Throughput, SpeedError> {
    let window = |worker: &WorkerProgress, (begin, ms): (usize, &[u32])| {
        let (from_ns, to_ns) = (at_ns(begin), at_ns(begin + WINDOW_MS));
        let own_ns = worker.own_ns(outcome.unit_ns, from_ns, to_ns);
        let units = ms.iter().copied().map(u64::from).sum();
        let (own_ns, span_ns) = (
            own_ns.ok_or_else(|| {
                speed_error("it was stopped more often than it can record".to_owned())
            })?,
            to_ns - from_ns,
        );
        Ok::<_, SpeedError>(Window { units, own_ns, span_ns })
    };
    let witnessed = |worker: &WorkerProgress| {
        let whole = worker.windows.chunks_exact(WINDOW_MS);
        // The threads do not start at the same time.
        let numbered = (0..).step_by(WINDOW_MS).zip(whole).skip(1);
        let windows = numbered.map(|one| window(worker, one)).collect::<Result<_, _>>()?;
        let elapsed_ns = outcome.elapsed_ns.saturating_sub(worker.late_ns);
        let end_ns = u64::try_from(worker.windows.len()).unwrap_or(0).saturating_mul(1_000_000);
        let total_own_ns = worker.own_ns(outcome.unit_ns, worker.late_ns, end_ns).unwrap_or(0);
        let cpu_ns = worker.cpu_ns;
        Ok::<_, SpeedError>(ReferenceRun { windows, total_own_ns, cpu_ns, elapsed_ns })
    };
    let placed = outcome.workers.iter().filter_map(|worker| Some((worker.cpu?, worker)));
    placed.map(|(cpu, worker)| Ok((cpu, witnessed(worker)?))).collect()
}

fn at_ns(ms: usize) -> u64 {
    u64::try_from(ms).unwrap_or(u64::MAX).saturating_mul(1_000_000)
}

impl HelperSpawner for HelperProcesses<'_> {
    fn load_calibrations(&self) -> Calibrations {
        self.kept.load()
    }

    fn effort(&self) -> Effort {
        self.effort
    }

    fn store_calibration(&self, calibration: &Calibration) {
        self.kept.add(calibration);
    }

    fn report(&self, message: &str) {
        say(message);
        if let Ok(mut messages) = self.messages.lock() {
            messages.push(message.to_owned());
        }
    }

    fn measure_throughput(
        &self,
        entries: &[String],
        pus: &CpuSet,
        duration_ns: u64,
    ) -> Result<Throughput, SpeedError> {
        let benchmark = benchmark(pus, duration_ns);
        let output = Spawn::new(&self.pinload.path())
            .args(benchmark.argv())
            .cgroup_files(entries.to_vec())
            .affinity(pus.clone())
            .policy(Some(Policy::Other { nice: WITNESS_NICE }))
            .capture(benchmark.timeout_ns())?;
        if !output.status.success() {
            return Err(speed_error(process::describe(output.status)));
        }
        let outcome = benchmark.parse(&output.stdout_text());
        let outcome = outcome.map_err(|error| speed_error(error.to_string()))?;
        rates(&outcome)
    }

    fn start_reference_run(
        &self,
        entries: &[String],
        pus: &CpuSet,
        duration_ns: u64,
    ) -> Result<Option<Box<dyn BackgroundReferenceRun>>, SpeedError> {
        if !self.renews {
            return Ok(None);
        }
        let benchmark = benchmark(pus, duration_ns);
        let mut child = Spawn::new(&self.pinload.path())
            .args(benchmark.argv())
            .cgroup_files(entries.to_vec())
            .affinity(pus.clone())
            .policy(Some(Policy::Idle))
            .die_with_parent(true)
            .own_group()
            .stdin(Stdio::Null)
            .stdout(Stdio::Pipe)
            .stderr(Stdio::Null)
            .start()?;
        let (report, output) = mpsc::channel();
        let mut pipe = child.stdout().ok_or_else(|| speed_error("it has no output".to_owned()))?;
        // The output is larger than a pipe buffer. The thread ends with the pipe.
        std::thread::Builder::new()
            .name("witness".to_owned())
            .spawn(move || {
                let mut text = Vec::new();
                // An incomplete line is discarded, and the receiver may be gone.
                match pipe.read_to_end(&mut text) {
                    Ok(_) | Err(_) => report.send(text).ok(),
                }
            })
            .map_err(|error| speed_error(error.to_string()))?;
        Ok(Some(Box::new(Watched { child, output, benchmark })))
    }

    fn spawn_burner(&self, entries: &[String], pu: PuId) -> Result<Box<dyn Burner>, SpeedError> {
        let life = LoadDuration::WhileHeartbeat { silence_ns: BURNER_SILENCE_NS };
        let spec = LoadSpec { kind: LoadKind::Cpu, threads: 1, life };
        let placement =
            Placement { cgroup_files: entries.to_vec(), affinity: Some(CpuSet::single(pu)) };
        let loads =
            HostLoads::start(&self.pinload.path(), &[spec], &placement).map_err(|error| {
                SpeedError::HelperSpawner { what: "a burner", why: with_causes(&error) }
            })?;
        Ok(Box::new(Burning { loads }))
    }

    fn spawn_watchdog(&self, what: Cleanup) -> Result<Box<dyn Watchdog>, SpeedError> {
        let mut child = self
            .program
            .spawn(Helper::Sentinel(&what))
            .stdin(Stdio::Pipe)
            .stdout(Stdio::Null)
            .stderr(Stdio::Null)
            .own_group()
            .start()?;
        let pipe = child.stdin().ok_or_else(|| SpeedError::HelperSpawner {
            what: "the sentinel",
            why: "it has no standard input".to_owned(),
        })?;
        Ok(Box::new(Watching { beat: Some(Heartbeat::over(pipe)?), child: Some(child) }))
    }
}

/// A reference run while vnodes are active.
struct Watched {
    child: Child,
    output: Receiver<Vec<u8>>,
    benchmark: Progress,
}

impl BackgroundReferenceRun for Watched {
    fn poll(&mut self) -> Result<Option<Throughput>, SpeedError> {
        let Some(status) = self.child.try_wait()? else { return Ok(None) };
        if !status.success() {
            return Err(speed_error(process::describe(status)));
        }
        let output = self.output.recv().map_err(|error| speed_error(error.to_string()))?;
        let outcome = self.benchmark.parse(&String::from_utf8_lossy(&output));
        rates(&outcome.map_err(|error| speed_error(error.to_string()))?).map(Some)
    }
}

/// Time that a sentinel has to release and exit after its pipe was closed.
const SENTINEL_END_NS: u64 = 2_000_000_000;
/// Time without heartbeats after which it releases.
const SILENCE: Duration = Duration::from_millis(100);

struct Watching {
    beat: Option<Heartbeat>,
    child: Option<Child>,
}

impl Watchdog for Watching {
    fn beat(&mut self) -> Result<(), SpeedError> {
        let received = self.beat.as_mut().is_some_and(|beat| beat.send(b'.'));
        received.then_some(()).ok_or_else(|| SpeedError::HelperSpawner {
            what: "the sentinel",
            why: "it has ended".to_owned(),
        })
    }
}

/// Its pipe is closed first, so that it releases before it exits.
impl Drop for Watching {
    fn drop(&mut self) {
        drop(self.beat.take());
        if let Some(mut child) = self.child.take() {
            match child.wait_for(&SystemClock, SENTINEL_END_NS) {
                Ok(_) | Err(_) => {}
            }
        }
    }
}

/// Releases what a supervisor froze or stopped, when the heartbeats stop.
pub fn sentinel(what: &Cleanup) -> Result<(), Failure> {
    let host = LiveHost::new()?;
    let release = || pinfold_emulate::release(&host, what).map_err(Failure::from);
    let beats = host::receive_heartbeats();
    loop {
        match beats.recv_timeout(SILENCE) {
            Ok(_) => {}
            Err(RecvTimeoutError::Timeout) => release()?,
            Err(RecvTimeoutError::Disconnected) => return release(),
        }
    }
}

/// Loads end when they are dropped.
struct Burning {
    loads: HostLoads,
}

impl Burner for Burning {
    fn check(&self) -> Result<(), SpeedError> {
        self.loads.check().map_err(|error| SpeedError::HelperSpawner {
            what: "a burner",
            why: with_causes(&error),
        })
    }
}
