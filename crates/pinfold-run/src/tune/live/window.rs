//! One window: the wash-out after a change of the placement, and the observation.
//!
//! The wash-out ends when no vCPU has changed its CPU for [`QUIET_NS`], and at the latest after
//! [`LONGEST_WASH_OUT_NS`]: vCPUs that float may never settle.

use std::collections::BTreeMap;

use pinfold_host::proc_stat::{self, ProcStat};
use pinfold_host::process::Spawn;
use pinfold_host::{Clock as _, SystemClock, paths};
use pinfold_model::command::split_command;
use pinfold_model::{Tid, escape};
use pinfold_probe::histogram::Histogram;
use pinfold_probe::sched_latency::{self, Level, RoleLatency, SchedLatency};

use super::machine::{LiveMachine, VcpuTimes};
use super::{FigureCommand, FigureSource, Options};
use crate::measure::watch_failure;
use crate::study::job::{EndSignal, Job};
use crate::{Exit, Failure};

/// Time without a change of CPU after which the wash-out ends.
const QUIET_NS: u64 = 100_000_000;
/// Longest wash-out.
const LONGEST_WASH_OUT_NS: u64 = 500_000_000;
/// Interval of reading the CPUs of the vCPUs in the wash-out.
const GLANCE_NS: u64 = 10_000_000;
/// Interval of the checks while a window is observed.
const CHECK_NS: u64 = 50_000_000;
/// The state of a thread that runs or waits for a CPU.
const RUNNABLE: char = 'R';
/// Waits below this are not distinguished: a window without a wait has a figure too (ns).
const FLOOR_NS: f64 = 1_000.0;

/// What a window is.
#[derive(Clone, Copy)]
pub(super) struct Window<'a> {
    /// Length of the observation (ns); a command takes its own time.
    pub observe_ns: u64,
    /// The window ends as soon as a vCPU has waited for more than this share of it.
    pub most_share: Option<f64>,
    /// What is measured.
    pub options: &'a Options,
}

/// What was found in a window.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Observation {
    /// The figure.
    pub figure: f64,
    /// What it is.
    pub source: FigureSource,
    /// The largest share of the time for which a vCPU waited.
    pub share: f64,
    /// The waits of all vCPUs; `None` with only sums.
    pub waits: Option<Histogram>,
    /// Length of the observation (ns).
    pub observed_ns: u64,
    /// Length of the wash-out (ns).
    pub wash_out_ns: u64,
    /// True if the vCPUs had stopped to change their CPU.
    pub is_settled: bool,
}

/// Why a window has no figure.
pub(super) enum Stop {
    /// Its placement is dropped.
    Harmful(String),
    /// The search ends.
    Failed(Failure),
}

impl<E: Into<Failure>> From<E> for Stop {
    fn from(error: E) -> Self {
        Stop::Failed(error.into())
    }
}

/// The begin of an observation.
struct WindowBegin {
    at_ns: u64,
    times: VcpuTimes,
}

struct WashedOut {
    took_ns: u64,
    is_settled: bool,
}

impl LiveMachine<'_, '_> {
    /// Waits for the end of the wash-out, then observes; a command may take `limit_ns`.
    pub fn observe(&self, window: &Window<'_>, limit_ns: u64) -> Result<Observation, Stop> {
        self.check_whole()?;
        let washed_out = self.wash_out()?;
        let watching = sched_latency::start(self.host, &SystemClock, self.tasks());
        let watching = watching.map_err(watch_failure)?;
        // Loading and removing the programs takes longer than a short window.
        let begin = WindowBegin { at_ns: SystemClock.now_ns(), times: self.vcpu_times()? };
        let printed = match &window.options.figure {
            None => self.wait(window, &begin).map(|()| None),
            Some(figure) => self.run_command(figure, window, &begin, limit_ns).map(Some),
        };
        let observed_ns = SystemClock.now_ns().saturating_sub(begin.at_ns);
        let after = self.vcpu_times();
        let latency = watching.stop(self.host, &SystemClock);
        let printed = printed?;
        let (after, latency) = (after?, latency?);
        self.check()?;
        let has_run = after.run_ns > begin.times.run_ns;
        if !has_run && self.vcpu_places()?.values().all(|place| place.state != RUNNABLE) {
            return Err(self.stop_failure("is paused: its vCPUs did not run").into());
        }
        let waits = waits_of(&latency);
        let (source, figure) = match (&window.options.figure, printed) {
            (Some(figure), Some(printed)) => {
                (FigureSource::Command(figure.command.clone()), printed)
            }
            (_, _) => figure_of(&latency, waits.as_ref()),
        };
        Ok(Observation {
            figure,
            source,
            share: share(has_run, after.longest_delay_since(&begin.times), observed_ns),
            waits,
            observed_ns,
            wash_out_ns: washed_out.took_ns,
            is_settled: washed_out.is_settled,
        })
    }

    fn wash_out(&self) -> Result<WashedOut, Failure> {
        let begin_ns = SystemClock.now_ns();
        let (mut places, mut changed_ns) = (self.vcpu_places()?, begin_ns);
        loop {
            SystemClock.sleep_ns(GLANCE_NS);
            self.check()?;
            let (now, now_ns) = (self.vcpu_places()?, SystemClock.now_ns());
            let has_moved = places.iter().any(|(tid, place)| {
                now.get(tid).is_some_and(|now| now.processor != place.processor)
            });
            if has_moved || !self.are_allowed(&now) {
                changed_ns = now_ns;
            }
            places = now;
            let took_ns = now_ns.saturating_sub(begin_ns);
            let is_settled = now_ns.saturating_sub(changed_ns) >= QUIET_NS;
            if is_settled || took_ns >= LONGEST_WASH_OUT_NS {
                return Ok(WashedOut { took_ns, is_settled });
            }
        }
    }

    /// Each vCPU: the CPU on which it runs or ran last, and whether it can run.
    fn vcpu_places(&self) -> Result<BTreeMap<Tid, ProcStat>, Failure> {
        let mut places = BTreeMap::new();
        for tid in self.vcpus() {
            let stat = proc_stat::at(self.host, &paths::process_stat(tid))?;
            places.extend(stat.map(|stat| (tid, stat)));
        }
        Ok(places)
    }

    /// False while a vCPU that can run has not left the CPUs of the placement before. One that
    /// sleeps leaves them when it wakes.
    fn are_allowed(&self, places: &BTreeMap<Tid, ProcStat>) -> bool {
        places.iter().filter(|(_, place)| place.state == RUNNABLE).all(|(tid, place)| {
            let mask = self.mask(*tid);
            mask.is_none_or(|mask| mask.iter().any(|allowed| allowed.0 == place.processor))
        })
    }

    fn wait(&self, window: &Window<'_>, begin: &WindowBegin) -> Result<(), Stop> {
        let end_ns = begin.at_ns.saturating_add(window.observe_ns);
        loop {
            let left_ns = end_ns.saturating_sub(SystemClock.now_ns());
            if left_ns == 0 {
                return Ok(());
            }
            SystemClock.sleep_ns(left_ns.min(CHECK_NS));
            self.check()?;
            self.check_harm(window, begin)?;
        }
    }

    /// Stops a window in which a vCPU has waited too long already.
    fn check_harm(&self, window: &Window<'_>, begin: &WindowBegin) -> Result<(), Stop> {
        let Some(most) = window.most_share else { return Ok(()) };
        let elapsed_ns = SystemClock.now_ns().saturating_sub(begin.at_ns);
        // A wait that began before counts with its whole length.
        let waited_ns = self.vcpu_times()?.longest_delay_since(&begin.times).min(elapsed_ns);
        let window_ns = window.observe_ns.max(elapsed_ns);
        if waited_ns as f64 <= most * window_ns as f64 {
            return Ok(());
        }
        Err(Stop::Harmful(format!(
            "a vCPU waited {:.0} ms in a window of {:.0} ms; --max-harm allows {:.0} %",
            waited_ns as f64 / 1e6,
            window_ns as f64 / 1e6,
            most * 100.0
        )))
    }

    fn run_command(
        &self,
        figure: &FigureCommand,
        window: &Window<'_>,
        begin: &WindowBegin,
        limit_ns: u64,
    ) -> Result<f64, Stop> {
        let signal = EndSignal::new();
        let signal = signal.map_err(|error| Failure::new(Exit::Host, error.to_string()))?;
        let words = split_command(&figure.command)
            .ok_or_else(|| figure_failure(figure, "a quote is not closed"))?;
        let (program, words) =
            words.split_first().ok_or_else(|| figure_failure(figure, "it has no program"))?;
        let spawn = Spawn::new(program).args(words).die_with_parent(true);
        let job = Job::start(spawn, limit_ns, &signal);
        let mut job = job.map_err(|error| figure_failure(figure, &error.message))?;
        loop {
            if let Some(ended) = job.poll_result() {
                let ended = ended.map_err(|error| figure_failure(figure, &error.message))?;
                let number = parse_figure(&ended.stdout);
                return Ok(number.map_err(|why| figure_failure(figure, &why))?);
            }
            SystemClock.sleep_ns(CHECK_NS);
            self.check()?;
            self.check_harm(window, begin)?;
        }
    }
}

impl VcpuTimes {
    /// The longest time that a vCPU has waited since (ns).
    fn longest_delay_since(&self, before: &VcpuTimes) -> u64 {
        let delays = self
            .delays_ns
            .iter()
            .filter_map(|(tid, now)| Some(now.saturating_sub(*before.delays_ns.get(tid)?)));
        delays.max().unwrap_or(0)
    }
}

/// The share of a window for which a vCPU waited. A wait that began before counts with its whole
/// length; the kernel adds a wait when it ends, so the vCPUs of a machine that has not run waited for
/// the whole window.
fn share(has_run: bool, waited_ns: u64, observed_ns: u64) -> f64 {
    if has_run { (waited_ns as f64 / observed_ns.max(1) as f64).min(1.0) } else { 1.0 }
}

fn figure_failure(figure: &FigureCommand, why: &str) -> Failure {
    let command = escape::short_name(&figure.command);
    Failure::new(Exit::Input, format!("--figure {command}: {why}"))
        .with_hint("the command must print one number above zero, within the budget")
}

/// The number that a command printed.
fn parse_figure(printed: &str) -> Result<f64, String> {
    let text = printed.trim();
    if text.is_empty() {
        return Err("it printed nothing".to_owned());
    }
    let number = text.parse::<f64>().ok().filter(|number| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| {
        format!("it printed {:?}, not a number above zero", escape::short_name(text))
    })
}

fn vcpu_roles(latency: &SchedLatency) -> impl Iterator<Item = &RoleLatency> {
    latency.roles.iter().filter(|one| one.role.is_vcpu())
}

/// The waits of all vCPUs; `None` if only sums are known.
fn waits_of(latency: &SchedLatency) -> Option<Histogram> {
    let mut all = Histogram::default();
    for role in vcpu_roles(latency) {
        all.join(&role.waits.as_ref()?.histogram);
    }
    Some(all)
}

/// The figure of the waits.
fn figure_of(latency: &SchedLatency, waits: Option<&Histogram>) -> (FigureSource, f64) {
    match &latency.level {
        Level::Tracepoints => {
            let open = vcpu_roles(latency).filter_map(|role| role.waits.as_ref());
            let open = open.flat_map(|one| &one.open).map(|(_, ns)| *ns).max().unwrap_or(0);
            let longest = waits.and_then(Histogram::max_ns).unwrap_or(0).max(open);
            (FigureSource::LongestWait, (longest as f64).max(FLOOR_NS))
        }
        Level::Schedstat { why } => {
            let sum: u64 = vcpu_roles(latency).map(|role| role.sum_ns).sum();
            let seconds = latency.duration_ns.max(1) as f64 / 1e9;
            let source = FigureSource::WaitSum { why: why.clone() };
            (source, (sum as f64 / seconds).max(FLOOR_NS))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_one_number_above_zero() {
        assert_eq!(parse_figure(" 12.5\n"), Ok(12.5));
        assert_eq!(parse_figure("1e3"), Ok(1000.0));
        assert_eq!(parse_figure("\n").unwrap_err(), "it printed nothing");
        for text in ["NaN", "inf", "0", "-3", "12 ms", "1\n2"] {
            assert!(parse_figure(text).unwrap_err().contains("not a number above zero"), "{text}");
        }
    }
    #[test]
    fn vcpus_that_got_no_cpu_have_waited_for_the_whole_window() {
        assert_eq!([share(true, 25, 100), share(true, 300, 100)], [0.25, 1.0]);
        assert_eq!(share(false, 0, 100), 1.0);
    }
}
