//! Injects stalls of known length, and reads the kernel's trace of each.
//!
//! A thread of our own with the highest real-time priority spins for a given time at random moments
//! on the benchmark's CPU. The thread that ran there is stopped for longer than the spin: from the
//! time for which the timer was set until the switch back, which is the length that counts. The
//! switch is in the kernel's trace. The timer interrupt is not used as the start of the stall,
//! because in a virtual machine the thread stops some 10 to 40 µs before the first line of the
//! interrupt handler runs; [`before_handler`] measures that on ordinary ticks. `schedstat` does not
//! include the interrupt either.

use std::thread::JoinHandle;

use pinfold_host::process::{self, Child, Signaled, Stdio};
use pinfold_host::{Clock as _, Host as _, HostMut as _, LiveHost, SystemClock, paths};
use pinfold_model::{CpuSet, Policy, PuId, Tid};

use super::NS_PER_MS;
use crate::arguments::Failure;
use crate::benchmarks::perf_in_own_mounts;

const HIGHEST: u8 = 99;
const NAME: &str = "injector";
/// Time from the start of perf until its events are enabled.
const PERF_STARTS_NS: u64 = 1_000 * NS_PER_MS;
const PERF_ENDS_NS: u64 = 20_000 * NS_PER_MS;
/// Name of the timer interrupt in the trace of the architecture's kernel.
const INTERRUPT: &str = if cfg!(target_arch = "x86_64") {
    "irq_vectors:local_timer_entry"
} else {
    "irq:irq_handler_entry"
};
/// Less than one second, because of real-time throttling.
const READS_FOR_NS: u64 = 900 * NS_PER_MS;
/// A switch later than this after the time of a timer was not caused by it.
const LATEST_NS: f64 = 500_000.0;
/// Minimum duration of an interrupt.
const LEAST_GAP_NS: u64 = 1_000;
const SWITCH: &str = "sched:sched_switch";

/// A thread that stalls a CPU and returns its measurements.
pub struct Injector<T>(JoinHandle<Result<T, String>>);

impl<T> Injector<T> {
    /// Waits for its end.
    pub fn finish(self) -> Result<T, Failure> {
        Ok(self.0.join().map_err(|_| "the injector fell over")??)
    }
}

/// Stalls the CPU regardless of the running task. Returns the duration of each spin (ns).
pub fn anyhow(pu: PuId, starts: Vec<u64>, length_ns: u64) -> Result<Injector<Vec<f64>>, Failure> {
    begin(pu, move |_| {
        Ok(starts
            .into_iter()
            .map(|start| {
                SystemClock.sleep_ns(u64::saturating_sub(start, SystemClock.now_ns()));
                spin(length_ns)
            })
            .collect())
    })
}

/// The stalled thread, and the times for which the timers of the stalls were set.
pub struct Stalled {
    thread: Tid,
    due: Vec<u64>,
}

/// A stall that stopped a thread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stall {
    /// The time for which its timer was set, by the monotonic clock (ns).
    pub due: f64,
    /// Time from then until the thread had its CPU again (ns).
    pub length: f64,
}

/// Stalls a thread with this policy of a process, only while it runs: a stall while it sleeps would
/// not be visible.
pub fn of(
    (process, policy): (Tid, Policy),
    pu: PuId,
    starts: Vec<u64>,
    length_ns: u64,
) -> Result<Injector<Stalled>, Failure> {
    begin(pu, move |host| {
        let first = starts.first().copied().unwrap_or(0);
        SystemClock.sleep_until(first.saturating_sub(NS_PER_MS));
        let mut stalled = Stalled { thread: thread_of(host, process, policy)?, due: Vec::new() };
        for start in starts {
            let mut due = start.max(SystemClock.now_ns() + NS_PER_MS);
            SystemClock.sleep_until(due);
            // While our thread runs, the other does not: it is runnable if it was spinning, else
            // asleep.
            while !is_runnable(host, (process, stalled.thread))? {
                due = SystemClock.now_ns() + NS_PER_MS;
                SystemClock.sleep_until(due);
            }
            stalled.due.push(due);
            spin(length_ns);
        }
        Ok(stalled)
    })
}

fn begin<T: Send + 'static>(
    pu: PuId,
    work: impl FnOnce(&LiveHost) -> Result<T, String> + Send + 'static,
) -> Result<Injector<T>, Failure> {
    let place = move || -> Result<LiveHost, pinfold_host::HostError> {
        let host = LiveHost::new()?;
        let tid = process::own_tid();
        host.set_affinity(tid, &CpuSet::single(pu))?;
        host.set_policy(tid, Policy::Fifo { priority: HIGHEST })?;
        Ok(host)
    };
    let thread = std::thread::Builder::new().name(NAME.to_owned());
    Ok(Injector(thread.spawn(move || work(&place().map_err(reported)?))?))
}

fn reported(error: pinfold_host::HostError) -> String {
    format!("the {NAME}: {error}")
}

/// Spins for this time and returns the actual duration (ns).
fn spin(length_ns: u64) -> f64 {
    let begin = SystemClock.now_ns();
    let mut now = begin;
    while now - begin < length_ns {
        now = SystemClock.now_ns();
    }
    (now - begin) as f64
}

fn thread_of(host: &LiveHost, process: Tid, policy: Policy) -> Result<Tid, String> {
    for name in host.list(&paths::task_dir(process)).map_err(reported)? {
        let Ok(tid) = name.parse().map(Tid) else { continue };
        if host.policy(tid).map_err(reported)? == policy {
            return Ok(tid);
        }
    }
    Err(format!("the {NAME}: the benchmark has no thread with {policy} (is this root?)"))
}

fn is_runnable(host: &LiveHost, (process, tid): (Tid, Tid)) -> Result<bool, String> {
    let text = host.read_text(&paths::task_stat(process, tid)).map_err(reported)?;
    let (_, after) = text.rsplit_once(") ").ok_or("the injector: a thread has no state")?;
    Ok(after.starts_with('R'))
}

/// The kernel's trace of one CPU, from [`Trace::begin`] on.
pub struct Trace {
    perf: Child,
    file: String,
}

impl Trace {
    /// Starts to trace into a file.
    pub fn begin(file: String, pu: PuId) -> Result<Self, Failure> {
        let perf = perf_in_own_mounts()
            .args(["record", "-q", "-k", "CLOCK_MONOTONIC", "-m", "4M", "-C", &pu.to_string()])
            .args(["-e", INTERRUPT, "-e", SWITCH, "-o", &file])
            .die_with_parent(true)
            .stdin(Stdio::Null)
            .start()?;
        SystemClock.sleep_ns(PERF_STARTS_NS);
        Ok(Self { perf, file })
    }

    /// Ends the trace, and returns those stalls that stopped their thread.
    pub fn stalls_of(self, stalled: &Stalled) -> Result<Vec<Stall>, Failure> {
        let stalls = stalls_in(&self.end()?, stalled);
        if stalls.is_empty() { Err("perf traced no stall".into()) } else { Ok(stalls) }
    }

    fn end(mut self) -> Result<Vec<Event>, Failure> {
        self.perf.signal(Signaled::Interrupt)?;
        if self.perf.wait_for(&SystemClock, PERF_ENDS_NS)?.is_none() {
            return Err("perf record did not end".into());
        }
        let output = perf_in_own_mounts()
            .args(["script", "--ns", "-F", "time,event,trace", "-i", &self.file])
            .capture(PERF_ENDS_NS)?;
        if !output.status.success() {
            return Err(format!("perf script: {}", output.stderr_text().trim()).into());
        }
        let events = events_in(&output.stdout_text())?;
        if events.is_empty() {
            Err(format!("perf traced nothing: {}", output.stderr_text().trim()).into())
        } else {
            Ok(events)
        }
    }
}

/// An event of the kernel with its monotonic time (ns).
#[derive(Debug, PartialEq)]
struct Event {
    at: f64,
    what: String,
}

fn events_in(text: &str) -> Result<Vec<Event>, Failure> {
    let one = |line: &str| {
        let (time, what) = line.trim_start().split_once(": ")?;
        let at = time.parse::<f64>().ok()? * 1e9;
        Some(Event { at, what: what.trim_start().to_owned() })
    };
    let reported =
        |line| one(line).ok_or_else(|| format!("perf script prints no time: {line}").into());
    text.lines().map(reported).collect()
}

/// From the time that a stall was due until the thread has its CPU again, for stalls that stopped
/// it.
fn stalls_in(events: &[Event], stalled: &Stalled) -> Vec<Stall> {
    let next = format!("next_comm={NAME} ");
    let left = format!("prev_pid={} ", stalled.thread);
    let back = format!("next_pid={} ", stalled.thread);
    let mut away = None;
    let mut stalls = Vec::new();
    for Event { at, what } in events.iter().filter(|event| event.what.starts_with(SWITCH)) {
        if what.contains(&left) && what.contains(&next) {
            let mut due = stalled.due.iter().map(|due| *due as f64);
            away = due.rfind(|due| (at - LATEST_NS..*at).contains(due));
        } else if what.contains(&back)
            && let Some(due) = away.take()
        {
            stalls.push(Stall { due, length: at - due });
        }
    }
    stalls
}

/// How long a thread is already stopped when the first line of a tick's handler runs (ns): one of
/// our threads reads the clock continuously, and each tick falls between two readings.
pub fn before_handler(file: String, pu: PuId, policy: Policy) -> Result<Vec<f64>, Failure> {
    let trace = Trace::begin(file, pu)?;
    let thread = std::thread::Builder::new().name("reader".to_owned());
    let read = move || -> Result<Vec<(u64, u64)>, pinfold_host::HostError> {
        let host = LiveHost::new()?;
        host.set_affinity(process::own_tid(), &CpuSet::single(pu))?;
        host.set_policy(process::own_tid(), policy)?;
        let (mut gaps, begin) = (Vec::new(), SystemClock.now_ns());
        let mut last = begin;
        while last - begin < READS_FOR_NS {
            let now = SystemClock.now_ns();
            if now - last > LEAST_GAP_NS {
                gaps.push((last, now));
            }
            last = now;
        }
        Ok(gaps)
    };
    let gaps = thread.spawn(read)?.join().map_err(|_| "the reader fell over")??;
    let events = trace.end()?;
    let ticks = events.iter().filter(|event| event.what.starts_with(INTERRUPT));
    let before: Vec<f64> = ticks
        .filter_map(|tick| {
            let index = gaps.partition_point(|(_, end)| (*end as f64) < tick.at);
            let (begin, _) = gaps.get(index).filter(|(begin, _)| (*begin as f64) < tick.at)?;
            Some(tick.at - *begin as f64)
        })
        .collect();
    if before.is_empty() { Err("no tick fell between two readings".into()) } else { Ok(before) }
}

#[cfg(test)]
mod tests {
    use super::{INTERRUPT, Stalled, Tid, events_in, stalls_in};

    #[test]
    fn a_stall_is_from_when_it_was_due_until_the_switch_back() {
        let text = format!(
            "  62.332024161: {INTERRUPT}: vector=236
  62.333449434: {INTERRUPT}: vector=236
  62.333473360:            sched:sched_switch: prev_comm=pinload-9-0 prev_pid=10 prev_prio=19 prev_state=R ==> next_comm=injector next_pid=8 next_prio=0
  62.333900000: {INTERRUPT}: vector=236
  62.334595094:            sched:sched_switch: prev_comm=injector prev_pid=8 prev_prio=0 prev_state=S ==> next_comm=pinload-9-0 next_pid=10 next_prio=19
  62.335228443:            sched:sched_switch: prev_comm=pinload-9-0 prev_pid=10 prev_prio=19 prev_state=S ==> next_comm=swapper/1 next_pid=0 next_prio=120
  62.340000000:            sched:sched_switch: prev_comm=swapper/1 prev_pid=0 prev_prio=120 prev_state=R ==> next_comm=pinload-9-0 next_pid=10 next_prio=19
"
        );
        let events = events_in(&text).unwrap();
        let due = vec![62_300_000_000, 62_333_437_000, 62_335_000_000];
        let of = |thread| stalls_in(&events, &Stalled { thread: Tid(thread), due: due.clone() });
        let stalls = of(10);
        assert!(stalls.len() == 1 && (stalls[0].length - 1_158_094.0).abs() < 1.0, "{stalls:?}");
        assert!((stalls[0].due - 62_333_437_000.0).abs() < 1.0, "{stalls:?}");
        assert!(of(8).is_empty(), "nobody stalls the injector");
        let missed = Stalled { thread: Tid(10), due: vec![62_300_000_000] };
        assert!(stalls_in(&events, &missed).is_empty(), "that timer was long over");
        let wrong = events_in("now: nothing").unwrap_err().to_string();
        assert!(wrong.contains("no time: now: nothing"), "{wrong}");
    }
}
