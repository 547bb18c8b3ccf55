//! The measurements in one load state of one start: benchmarks inside the guest, kernel statistics
//! of its threads outside.

use std::sync::Arc;

use pinfold_host::{Clock, LiveHost};
use pinfold_model::{LoadState, Series, Tid};
use pinfold_probe::agent::Agent;
use pinfold_probe::benchmarks::{Benchmark, IoTarget, SchedPolicy};
use pinfold_probe::roles::{self, Snapshot};
use pinfold_probe::run_delay::{self, ObservationTimes};
use pinfold_study::store::CellResult;
use pinfold_vm::threads::DiscoveredVm;

use super::loads::{GuestLoads, HostLoadControl};
use super::subject::GuestAccess;
use crate::{Exit, Failure, interrupt};

/// Priority of the spin-gap benchmark: above the guest's load, so that it measures only the host.
const GAP_PRIORITY: u8 = 80;
/// Time for loads to start or to end.
const SETTLE_NS: u64 = 150_000_000;
/// Windows of the measurement from the host: interval of reading the run delay.
const WINDOW_NS: u64 = 10_000_000;

/// Number of console lines that are shown.
const LINES: usize = 3;

/// Duration of the other benchmarks as a share of the spin-gap benchmark's.
const WAKEUP_SHARE: f64 = 0.5;
const OTHER_SHARE: f64 = 0.2;

/// Seconds per observed second with all benchmarks in sequence.
pub const PER_OBSERVED_S: f64 = 1.0 + WAKEUP_SHARE + 3.0 * OTHER_SHARE;
/// Additional seconds of a load state: settling, and starting and ending five benchmarks, which
/// takes 0.04 s each in an idle guest and up to 0.5 s in a heavily loaded one. The mean over the
/// four load states of measured runs.
pub const PER_STATE_S: f64 = 0.9;

/// A guest that runs and is placed.
pub struct Running<'a> {
    /// The host.
    pub host: &'a LiveHost,
    /// The clock.
    pub clock: &'a dyn Clock,
    /// Process of the guest.
    pub pid: Tid,
    /// Threads of the guest.
    pub found: &'a DiscoveredVm,
    /// Its agent, if it has one.
    pub agent: Option<Arc<Agent>>,
    /// How it is measured from inside.
    pub inside: &'a GuestAccess,
    /// Number of its vCPUs.
    pub vcpus: u32,
    /// The host's loads.
    pub host_side: &'a HostLoadControl,
    /// The file with the output of its console, if known.
    pub console: Option<&'a str>,
}

impl Running<'_> {
    /// Measures one load state.
    pub fn cell(&self, load: LoadState, observation_s: f64) -> Result<CellResult, Failure> {
        self.host_side.set(load.host).map_err(|e| Failure::from_error(Exit::Host, &e, e.hint()))?;
        let guest_side = match &self.agent {
            Some(agent) if load.guest => {
                let disk = self.inside.disks().last().map(|(_, device)| *device);
                Some(GuestLoads::start(agent, self.vcpus, disk).map_err(|e| guest_failure(&e))?)
            }
            Some(_) | None => None,
        };
        self.clock.sleep_ns(SETTLE_NS);
        let begin_ns = self.clock.now_ns();
        let before = self.snapshot()?;
        let series = match &self.agent {
            Some(agent) => self.inside(agent, observation_s)?,
            None => self.measure_outside(observation_s)?,
        };
        // An interrupted measurement is discarded.
        interrupt::check()?;
        let after = self.snapshot()?;
        let elapsed_ns = self.clock.now_ns().saturating_sub(begin_ns);
        let roles = after.since(&before);
        let roles_ns = Some(after.covers_ns(&before, elapsed_ns));
        if let (Some(agent), Some(side)) = (&self.agent, guest_side) {
            let all_run = side.all_run(agent);
            side.stop(agent).map_err(|e| guest_failure(&e))?;
            if !all_run {
                return Err(Failure::new(
                    Exit::Vm,
                    "a load in the guest exited during the measurement",
                ));
            }
        }
        self.host_side.set(false).map_err(|e| Failure::from_error(Exit::Host, &e, e.hint()))?;
        Ok(CellResult { load, series, roles, roles_ns })
    }

    /// The end of its console output.
    pub fn last_lines(&self) -> String {
        self.console.map(last_lines).unwrap_or_default()
    }

    fn snapshot(&self) -> Result<Snapshot, Failure> {
        roles::snapshot(self.host, self.pid, &self.found.tasks())
            .map_err(|error| Failure::from_error(Exit::Vm, &error, None))
    }

    /// Runs the benchmarks in sequence.
    fn inside(&self, agent: &Agent, observation_s: f64) -> Result<Vec<Series>, Failure> {
        let mut benchmarks = vec![
            Benchmark::spin_gap(part_ns(1.0, observation_s)).under(SchedPolicy::Fifo(GAP_PRIORITY)),
            Benchmark::wakeup(part_ns(WAKEUP_SHARE, observation_s)),
            Benchmark::compute(part_ns(OTHER_SHARE, observation_s)),
        ];
        for (disk, device) in self.inside.disks() {
            let target = IoTarget::Device((*device).to_owned());
            benchmarks.push(Benchmark::io_latency(
                *disk,
                target,
                part_ns(OTHER_SHARE, observation_s),
            ));
        }
        let mut series = Vec::new();
        for benchmark in benchmarks {
            let measured = benchmark.run_in_guest(agent);
            series.extend(measured.map_err(|e| Failure::from_error(Exit::Vm, &e, e.hint()))?);
        }
        Ok(series)
    }

    /// Without an agent: how long the vCPUs waited for a CPU, window by window.
    fn measure_outside(&self, observation_s: f64) -> Result<Vec<Series>, Failure> {
        let duration_ns = nanoseconds(observation_s * PER_OBSERVED_S);
        let goes_on = &|| !interrupt::is_requested();
        let watch = ObservationTimes { duration_ns, window_ns: WINDOW_NS, goes_on };
        run_delay::series(self.host, self.clock, &self.found.tasks(), &watch)
            .map_err(|error| Failure::from_error(Exit::Vm, &error, None))
    }
}

fn part_ns(share: f64, observation_s: f64) -> u64 {
    nanoseconds(observation_s * share)
}

/// The last lines of a console, joined.
pub fn last_lines(path: &str) -> String {
    let Ok(bytes) = pinfold_host::files::read(path) else { return String::new() };
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let last = lines.len().saturating_sub(LINES);
    // The cause of a kernel panic is printed before the register dump.
    let cause = lines[..last].iter().rfind(|line| line.contains("Kernel panic"));
    cause.into_iter().chain(&lines[last..]).copied().collect::<Vec<_>>().join(" | ")
}

/// The failure if a guest ended during the measurement.
fn guest_failure(error: &pinfold_probe::agent::AgentError) -> Failure {
    Failure::from_error(Exit::Vm, error, error.hint())
}

/// Seconds as whole nanoseconds; observation times are small and positive.
fn nanoseconds(seconds: f64) -> u64 {
    let time = std::time::Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default();
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
