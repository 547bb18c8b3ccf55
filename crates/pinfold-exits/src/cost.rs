//! Overhead of observing exits: CPU time of a micro-guest with and without observation, in pairs.
//!
//! Blocks alternate (without, with, with, without, …), so that slow changes of the machine affect
//! both equally. Each block is several short runs with a fixed number of port writes of the
//! micro-guest, and the run with the least CPU time counts: cache interference by other tasks can
//! only increase it, and time in which other tasks run is not CPU time of the guest. The cost of an
//! event is the difference of a pair divided by the number of events that the kernel processed in a
//! run.

use pinfold_host::{Clock, ExitCounter, ExitScope, Host, VcpuRun, Work};

use crate::error::ExitsError;

/// Number of pairs of blocks.
const PAIRS: usize = 15;
/// Number of runs in a block.
const RUNS: u64 = 10;
/// Target CPU time of a run (ns).
const RUN_NS: u64 = 3_000_000;
const FEWEST: u32 = 100;
const MOST: u32 = 5_000;

/// A median with a distribution-free confidence interval of at least 95 %.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The median.
    pub median: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// Overhead of observing exits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// CPU time per event (ns); can be negative if it is below the noise.
    pub per_event_ns: Interval,
    /// CPU time per exit (ns).
    pub per_exit_ns: Interval,
    /// CPU time of an exit without observation (ns): the median of the minima of the blocks.
    pub unwatched_ns: f64,
    /// Events per exit.
    pub events_per_exit: f64,
    /// Number of pairs of blocks.
    pub pairs: usize,
    /// Number of runs in a block, of which the fastest counts.
    pub runs: u64,
    /// Number of exits in a run.
    pub exits: u32,
}

/// Runs the micro-guest.
pub trait MicroRunner {
    /// The vCPU thread of the micro-guest.
    fn thread(&self) -> pinfold_model::Tid;

    /// Runs the work once.
    ///
    /// # Errors
    /// [`ExitsError`] if the run fails or does something else.
    fn run(&mut self, work: Work) -> Result<VcpuRun, ExitsError>;
}

/// Measures the overhead on a live micro-guest, for this kind of observation.
///
/// # Errors
/// [`ExitsError`] of the runner or of the observation; [`ExitsError::Silent`] if no event fires.
pub fn measure(
    host: &dyn Host,
    clock: &dyn Clock,
    scope: ExitScope,
    runner: &mut dyn MicroRunner,
) -> Result<Cost, ExitsError> {
    let began = clock.now_ns();
    let first = runner.run(Work { out: FEWEST, ..Work::default() })?;
    let each = (first.cpu_ns / u64::from(FEWEST)).max(1);
    let exits = u32::try_from(RUN_NS / each).unwrap_or(MOST).clamp(FEWEST, MOST);
    let work = Work { out: exits, ..Work::default() };
    let mut pairs = Vec::with_capacity(PAIRS);
    let mut counter = None;
    for pair in 0..PAIRS {
        // The counter of the second block of one pair continues into the first block of the next
        // pair.
        let is_watched_first = pair % 2 == 1;
        let mut block = |is_watched: bool| -> Result<(u64, u64), ExitsError> {
            let watching = match (is_watched, counter.take()) {
                (true, None) => Some(open(host, scope, runner)?),
                (true, Some(counter)) => Some(counter),
                (false, _) => None,
            };
            let seen = |watching: &Option<ExitCounter>| watching.as_ref().map_or(Ok(0), events);
            let before = seen(&watching)?;
            let least = quickest(runner, work)?;
            let after = seen(&watching)?;
            counter = watching;
            Ok((least, after.saturating_sub(before) / RUNS))
        };
        let one = block(is_watched_first)?;
        let other = block(!is_watched_first)?;
        let (watched, plain) = if is_watched_first { (one, other) } else { (other, one) };
        pairs.push(Pair { watched_ns: watched.0, plain_ns: plain.0, events: watched.1 });
    }
    let timeout_ns = clock.now_ns().saturating_sub(began);
    summary(&pairs, exits).ok_or(ExitsError::Silent { timeout_ns })
}

fn open(
    host: &dyn Host,
    scope: ExitScope,
    runner: &dyn MicroRunner,
) -> Result<ExitCounter, ExitsError> {
    let mut counter = ExitCounter::open(host, scope, &[runner.thread()])
        .map_err(|error| ExitsError::explain(host, error))?;
    counter.start(host)?;
    Ok(counter)
}

/// The least CPU time of the runs of a block (ns).
fn quickest(runner: &mut dyn MicroRunner, work: Work) -> Result<u64, ExitsError> {
    let mut least = u64::MAX;
    for _ in 0..RUNS {
        least = least.min(runner.run(work)?.cpu_ns);
    }
    Ok(least)
}

fn events(counter: &ExitCounter) -> Result<u64, ExitsError> {
    Ok(counter.read()?.iter().map(|(_, thread)| thread.events).sum())
}

/// One block with and one without observation.
#[derive(Clone, Copy, Debug)]
struct Pair {
    watched_ns: u64,
    plain_ns: u64,
    events: u64,
}

/// `None` if no event was counted.
fn summary(pairs: &[Pair], exits: u32) -> Option<Cost> {
    if pairs.iter().any(|pair| pair.events == 0) {
        return None;
    }
    let exits_of_all = f64::from(exits);
    let of = |each: fn(&Pair, f64) -> f64| -> Vec<f64> {
        pairs.iter().map(|pair| each(pair, exits_of_all)).collect()
    };
    let per_event: Vec<f64> =
        pairs.iter().map(|pair| difference(pair) / pair.events as f64).collect();
    let per_exit: Vec<f64> = pairs.iter().map(|pair| difference(pair) / exits_of_all).collect();
    Some(Cost {
        per_event_ns: interval(per_event)?,
        per_exit_ns: interval(per_exit)?,
        unwatched_ns: interval(of(|pair, exits| pair.plain_ns as f64 / exits))?.median,
        events_per_exit: interval(of(|pair, exits| pair.events as f64 / exits))?.median,
        pairs: pairs.len(),
        runs: RUNS,
        exits,
    })
}

fn difference(pair: &Pair) -> f64 {
    pair.watched_ns as f64 - pair.plain_ns as f64
}

/// The median, and the narrowest pair of order statistics that covers it with 95 % confidence (the
/// binomial interval of the sign test). `None` for fewer than six values, which cannot give one.
fn interval(mut values: Vec<f64>) -> Option<Interval> {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    // Probability that fewer than `rank` of n values are below the median: sum of C(n, i) / 2^n.
    let mut term = 0.5_f64.powi(i32::try_from(n).ok()?);
    let (mut below, mut rank) = (0.0, 0);
    while below + term <= 0.025 {
        below += term;
        term *= (n - rank) as f64 / (rank + 1) as f64;
        rank += 1;
    }
    if rank == 0 {
        return None;
    }
    let middle = n / 2;
    let median = match n % 2 {
        1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    };
    Some(Interval { median, low: values[rank - 1], high: values[n - rank] })
}

#[cfg(test)]
mod tests {
    use pinfold_host::{LiveHost, MicroGuest, SystemClock, process};
    use pinfold_model::Tid;

    use super::*;

    #[test]
    fn the_interval_is_that_of_the_sign_test() {
        // Conover, Practical Nonparametric Statistics: n = 15 gives ranks 4 and 12 (96.5 %).
        let found = interval((1..=15).map(f64::from).collect()).unwrap();
        assert_eq!(found, Interval { median: 8.0, low: 4.0, high: 12.0 });
        let six = interval(vec![6.0, 5.0, 4.0, 3.0, 2.0, 1.0]).unwrap();
        assert_eq!(six, Interval { median: 3.5, low: 1.0, high: 6.0 });
        assert_eq!(interval(vec![1.0; 5]), None);
        assert_eq!(interval(Vec::new()), None);
    }

    #[test]
    fn the_cost_is_the_difference_of_pairs() {
        let pairs: Vec<Pair> = (0..15)
            .map(|n| Pair {
                watched_ns: 1_000_000 + (40_000 + n * 1_000),
                plain_ns: 1_000_000,
                events: 400,
            })
            .collect();
        let cost = summary(&pairs, 100).unwrap();
        assert_eq!(cost.per_event_ns.median, 117.5);
        assert_eq!(cost.per_exit_ns.median, 470.0);
        assert_eq!((cost.unwatched_ns, cost.events_per_exit), (10_000.0, 4.0));
        assert!(summary(&[Pair { events: 0, ..pairs[0] }; 15], 100).is_none(), "nothing fired");
    }

    struct ThreadVcpu(MicroGuest);

    impl MicroRunner for ThreadVcpu {
        fn thread(&self) -> Tid {
            process::own_tid()
        }

        fn run(&mut self, work: Work) -> Result<VcpuRun, ExitsError> {
            Ok(self.0.run(work)?)
        }
    }

    #[test]
    fn it_is_measured_on_a_live_guest() {
        let host = LiveHost::new().unwrap();
        let mut guest = match MicroGuest::new() {
            Ok(guest) => ThreadVcpu(guest),
            Err(error) => {
                println!("skipped: no KVM here: {error}");
                return;
            }
        };
        let work = Work { out: 5, ..Work::default() };
        let thread = crate::VcpuThread { vcpu: 0, task: task(&host) };
        let look = match crate::EventSurvey::begin(&host, &[thread]) {
            Ok(look) => look,
            Err(error) => {
                println!("skipped: {error}");
                return;
            }
        };
        guest.run(work).unwrap();
        let source = look.find_fired().unwrap().expect("some of the events fire");
        drop(look);
        let scope = crate::from_source(source);
        let cost = measure(&host, &SystemClock, scope, &mut guest).unwrap();
        assert!(cost.events_per_exit >= 2.0, "{cost:?}");
        assert!(cost.per_event_ns.low <= cost.per_event_ns.median, "{cost:?}");
        assert!(cost.per_event_ns.median <= cost.per_event_ns.high, "{cost:?}");
        println!("{source:?}: {cost:?}");
    }

    fn task(host: &LiveHost) -> pinfold_model::TaskId {
        let tid = process::own_tid();
        let text = host.read_text(&pinfold_host::paths::process_stat(tid)).unwrap();
        pinfold_host::proc_stat::parse(&text).unwrap().task()
    }
}
