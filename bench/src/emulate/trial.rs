//! One run of a slowed load between two at full speed, on the same CPUs, and its result.

use pinfold_host::{Clock as _, Host as _, LiveHost, SystemClock, paths};
use pinfold_model::CpuSet;
use pinfold_probe::cpu_speed::Stop;
use serde_json::{Value, json};

use super::judge::{self, Stops};
use super::load::{Load, Reading};
use super::subject::CoreShare;
use crate::arguments::Failure;

/// Above this steal share, the run is repeated.
const STEAL_LIMIT: f64 = 0.015;
const MOST_REPEATS: u32 = 3;
/// Unit of the kernel's times in `/proc/stat`, on every architecture.
const TICK_NS: f64 = 1e7;
/// Stops in this part of the counted time are kept, for the pictures.
pub const KEPT_NS: (u64, u64) = (50_000_000, 250_000_000);

/// The position of a trial in the experiment.
#[derive(Clone, Debug, PartialEq)]
pub struct TrialPosition {
    /// The experiment.
    pub experiment: &'static str,
    /// Name of the subject.
    pub subject: String,
    /// Number of the repetition.
    pub block: u32,
}

/// What a trial runs.
#[derive(Clone, Debug)]
pub struct TrialRequest {
    /// Its position.
    pub place: TrialPosition,
    /// The load.
    pub load: Load,
    /// Requested speed.
    pub speed: f64,
}

/// A trial.
#[derive(Clone, Debug, PartialEq)]
pub struct Trial {
    /// Its position.
    pub place: TrialPosition,
    /// The load's name.
    pub load: String,
    /// Requested speed.
    pub asked: f64,
    /// Achieved speed: the rate divided by the mean of those before and after.
    pub achieved: f64,
    /// For bursts, the same including the delay of each start.
    pub achieved_with_wait: Option<f64>,
    /// Rates: slowed, before, after.
    pub rates: [f64; 3],
    /// Unevenness in windows of 1, 10, 100 ms.
    pub unevenness: [Option<f64>; 3],
    /// Number and length of its stops.
    pub stops: Option<Stops>,
    /// Some of its stops.
    pub kept_stops: Vec<Stop>,
    /// Largest steal share of any of the CPUs in any of the three runs.
    pub steal: f64,
    /// Number of repetitions of its runs because of steal time.
    pub repeats: u32,
}

/// A run, with its steal time.
#[derive(Clone, Debug)]
pub struct Run<T> {
    /// Its result.
    pub gave: T,
    /// Largest steal share of its CPUs.
    pub steal: f64,
    /// Number of repetitions because of steal time.
    pub repeats: u32,
}

impl<T> Run<T> {
    /// A part of its result.
    pub fn part<P>(&self, part: impl FnOnce(&T) -> P) -> Run<P> {
        Run { gave: part(&self.gave), steal: self.steal, repeats: self.repeats }
    }
}

/// A run at full speed.
#[derive(Clone, Debug)]
pub struct Baseline {
    load: Load,
    run: Run<Reading>,
}

impl Trial {
    /// True if it was kept despite steal time, because its repetitions were no better.
    pub fn is_disturbed(&self) -> bool {
        is_disturbed(self.steal)
    }

    /// Achieved minus requested speed, in points.
    pub fn error(&self) -> f64 {
        judge::error_points(self.achieved, self.asked)
    }

    /// As JSON.
    pub fn to_json(&self) -> Value {
        let stops: Vec<(u64, u64)> =
            self.kept_stops.iter().map(|stop| (stop.start_ns, stop.length_ns)).collect();
        json!({
            "experiment": self.place.experiment, "subject": self.place.subject,
            "block": self.place.block, "load": self.load, "asked": self.asked,
            "achieved": self.achieved, "achieved_with_wait": self.achieved_with_wait,
            "rate_per_second": self.rates[0], "rate_before_per_second": self.rates[1],
            "rate_after_per_second": self.rates[2], "unevenness_1_10_100_ms": self.unevenness,
            "stops_per_second": self.stops.map(|stops| stops.per_second),
            "stops_p50_p95_p99_longest_ns": self.stops.map(|stops| stops.quantiles_ns),
            "some_stops_ns": stops,
            "steal": self.steal, "repeats": self.repeats,
        })
    }
}

/// Runs a trial in a turn. `last` is the previous baseline, and is replaced by the new one.
pub fn run(
    host: &LiveHost,
    turn: &mut CoreShare<'_>,
    request: TrialRequest,
    last: &mut Option<Baseline>,
) -> Result<Trial, Failure> {
    let load = request.load;
    let fresh = last.take().filter(|last| last.load == load.shorten());
    let before = match fresh {
        Some(before) => before,
        None => baseline(host, turn, load)?,
    };
    turn.set(request.speed)?;
    let slowed = run_undisturbed(host, &turn.pus, || turn.run(load))?;
    turn.set(1.0)?;
    let after = baseline(host, turn, load)?;
    let trial = judge_runs(request, [&slowed, &before.run, &after.run]);
    // Its repetitions are counted here, and not again in the next trial.
    *last = Some(Baseline { run: Run { repeats: 0, ..after.run }, ..after });
    Ok(trial)
}

fn baseline(host: &LiveHost, turn: &CoreShare<'_>, load: Load) -> Result<Baseline, Failure> {
    let load = load.shorten();
    Ok(Baseline { load, run: run_undisturbed(host, &turn.pus, || turn.baseline(load))? })
}

/// A run with little steal time, or the last of several attempts.
pub fn run_undisturbed<T>(
    host: &LiveHost,
    pus: &CpuSet,
    run: impl Fn() -> Result<T, Failure>,
) -> Result<Run<T>, Failure> {
    let mut repeats = 0;
    loop {
        let (gave, steal) = run_with_steal(host, pus, &run)?;
        if steal <= STEAL_LIMIT || repeats == MOST_REPEATS {
            return Ok(Run { gave, steal, repeats });
        }
        repeats += 1;
    }
}

/// True if the steal share exceeds the limit.
pub fn is_disturbed(steal: f64) -> bool {
    steal > STEAL_LIMIT
}

/// The trial of a slowed run, computed with those before and after it.
pub fn judge_runs(request: TrialRequest, runs: [&Run<Reading>; 3]) -> Trial {
    let TrialRequest { place, load, speed } = request;
    let [reading, before, after] = runs.map(|run| &run.gave);
    let full = f64::midpoint(before.rate, after.rate);
    let full_with_wait =
        before.rate_with_wait.zip(after.rate_with_wait).map(|(a, b)| f64::midpoint(a, b));
    let first = reading.begin_ns;
    let (from, to) = (first + KEPT_NS.0, first + KEPT_NS.1);
    let kept = reading.stops.iter().filter(|stop| stop.start_ns < to && end_of(stop) > from);
    let kept = kept.map(|stop| Stop { start_ns: stop.start_ns.saturating_sub(first), ..*stop });
    Trial {
        place,
        load: load.name(),
        asked: speed,
        achieved: reading.rate / full,
        achieved_with_wait: reading
            .rate_with_wait
            .zip(full_with_wait)
            .map(|(rate, full)| rate / full),
        rates: [reading.rate, before.rate, after.rate],
        unevenness: [1, 10, 100]
            .map(|width| judge::unevenness(&reading.windows, full / 1e3, width)),
        stops: judge::stops(&reading.stops, reading.windows.len()),
        kept_stops: kept.collect(),
        steal: runs.iter().map(|run| run.steal).fold(0.0, f64::max),
        repeats: runs.iter().map(|run| run.repeats).sum(),
    }
}

fn end_of(stop: &Stop) -> u64 {
    stop.start_ns.saturating_add(stop.length_ns)
}

/// The result of a run, and the largest steal share of its CPUs.
fn run_with_steal<T>(
    host: &LiveHost,
    pus: &CpuSet,
    run: impl FnOnce() -> Result<T, Failure>,
) -> Result<(T, f64), Failure> {
    let (begin, before) =
        (SystemClock.now_ns(), stolen_ticks(&host.read_text(&paths::kernel_stat())?, pus));
    let gave = run()?;
    let (end, after) =
        (SystemClock.now_ns(), stolen_ticks(&host.read_text(&paths::kernel_stat())?, pus));
    let elapsed = end.saturating_sub(begin).max(1) as f64;
    let ticks = before.iter().zip(&after).map(|(before, after)| after.saturating_sub(*before));
    Ok((gave, ticks.max().unwrap_or(0) as f64 * TICK_NS / elapsed))
}

/// Stolen ticks of each of the CPUs in the text of `/proc/stat`; 0 for a missing CPU.
fn stolen_ticks(text: &str, pus: &CpuSet) -> Vec<u64> {
    let of = |pu: pinfold_model::PuId| {
        let name = format!("cpu{pu}");
        let line = text.lines().find(|line| line.split(' ').next() == Some(name.as_str()))?;
        line.split_ascii_whitespace().nth(8)?.parse().ok()
    };
    pus.iter().map(|pu| of(pu).unwrap_or(0)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinfold_probe::cpu_speed::Workers;

    #[test]
    fn stolen_ticks_are_those_of_the_pus() {
        let text =
            "cpu  1 2 3 4 5 6 7 80 9 10\ncpu1 1 2 3 4 5 6 7 8 9 10\ncpu12 1 2 3 4 5 6 7 33 9 10\n";
        let check = |list: &str, expected: &[u64]| {
            assert_eq!(stolen_ticks(text, &CpuSet::parse_list(list).unwrap()), expected, "{list}");
        };
        check("1", &[8]);
        check("1,12", &[8, 33]);
        check("2", &[0]);
    }

    #[test]
    fn achieved_is_over_the_mean_of_both_baselines() {
        let load = Load::Work(Workers::Threads(1), 1_000);
        let place = TrialPosition { experiment: "spin", subject: "x".to_owned(), block: 0 };
        let runs = [&run_at(60.0, 25.0, 1), &run_at(90.0, 45.0, 0), &run_at(110.0, 55.0, 2)];
        let trial = judge_runs(TrialRequest { place, load, speed: 0.5 }, runs);
        assert_eq!((trial.steal, trial.repeats), (0.011, 3));
        assert!((trial.achieved - 0.6).abs() < 1e-12 && (trial.error() - 10.0).abs() < 1e-9);
        assert_eq!(trial.achieved_with_wait, Some(0.5));
        assert_eq!((trial.unevenness, trial.stops), ([None; 3], None));
    }

    fn run_at(rate: f64, wait: f64, repeats: u32) -> Run<Reading> {
        Run {
            gave: Reading { rate, rate_with_wait: Some(wait), ..Reading::default() },
            steal: rate / 1e4,
            repeats,
        }
    }
}
