//! Stalls of known length, and what the kernel's trace tells of each.
//!
//! A thread of our own at the highest real-time priority spins for a given time at random moments
//! on the ruler's PU. That takes a thread there away for longer than it spins: from the interrupt
//! that wakes ours until the switch back, which is the length that counts. `schedstat` would leave
//! out the interrupt, which in a virtual machine takes 20 µs and more. What even the trace leaves
//! out is the time from the moment at which the hypervisor, or the hardware, takes the thread away
//! until the handler's first line: [`before_handler`] looks at that on ordinary ticks.

use std::thread::JoinHandle;

use pinfold_host::process::{self, Child, Signaled, Spawn, Stdio};
use pinfold_host::{Clock as _, Host as _, HostMut as _, LiveHost, SystemClock, paths};
use pinfold_model::{CpuSet, Policy, PuId, Tid};

use super::NS_PER_MS;
use crate::Failure;

const HIGHEST: u8 = 99;
const NAME: &str = "injector";
/// From the start of perf until its events are on.
const PERF_STARTS_NS: u64 = 1_000 * NS_PER_MS;
const PERF_ENDS_NS: u64 = 20_000 * NS_PER_MS;
/// The interrupt of a timer, as the architecture's kernel traces it.
const INTERRUPT: &str = if cfg!(target_arch = "x86_64") {
    "irq_vectors:local_timer_entry"
} else {
    "irq:irq_handler_entry"
};
/// Less than a second of it may be real-time.
const READS_FOR_NS: u64 = 900 * NS_PER_MS;
/// No interrupt is so short.
const LEAST_GAP_NS: u64 = 1_000;
const WAKING: &str = "sched:sched_waking";
const SWITCH: &str = "sched:sched_switch";

/// A thread that stalls a PU; it gives what it learned.
pub struct Injector<T>(JoinHandle<Result<T, String>>);

impl<T> Injector<T> {
    /// Waits until it is done.
    pub fn finish(self) -> Result<T, Failure> {
        Ok(self.0.join().map_err(|_| "the injector fell over")??)
    }
}

/// Stalls whatever runs there. Gives for how long ours spun each time (ns).
pub fn anyhow(pu: PuId, starts: Vec<u64>, length_ns: u64) -> Result<Injector<Vec<f64>>, Failure> {
    begin(pu, move |_| {
        let one = |start| {
            SystemClock.sleep_ns(u64::saturating_sub(start, SystemClock.now_ns()));
            spin(length_ns)
        };
        Ok(starts.into_iter().map(one).collect())
    })
}

/// Stalls a process's thread of this policy, only at moments at which it runs: a stall while it
/// sleeps is seen by nobody. Gives the thread.
pub fn of(
    (process, policy): (Tid, Policy),
    pu: PuId,
    starts: Vec<u64>,
    length_ns: u64,
) -> Result<Injector<Tid>, Failure> {
    begin(pu, move |host| {
        let first = starts.first().copied().unwrap_or(0);
        SystemClock.sleep_ns(first.saturating_sub(SystemClock.now_ns()));
        let spinner = thread_of(host, process, policy)?;
        for start in starts {
            SystemClock.sleep_ns(start.saturating_sub(SystemClock.now_ns()));
            // While we run it does not: it is runnable if it was spinning, else asleep.
            while !is_runnable(host, (process, spinner))? {
                SystemClock.sleep_ns(NS_PER_MS);
            }
            spin(length_ns);
        }
        Ok(spinner)
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
    Ok(Injector(thread.spawn(move || work(&place().map_err(told)?))?))
}

fn told(error: pinfold_host::HostError) -> String {
    format!("the {NAME}: {error}")
}

/// Spins for so long; gives how long that really was (ns).
fn spin(length_ns: u64) -> f64 {
    let begin = SystemClock.now_ns();
    let mut now = begin;
    while now - begin < length_ns {
        now = SystemClock.now_ns();
    }
    (now - begin) as f64
}

fn thread_of(host: &LiveHost, process: Tid, policy: Policy) -> Result<Tid, String> {
    for name in host.list(&paths::task_dir(process)).map_err(told)? {
        let Ok(tid) = name.parse().map(Tid) else { continue };
        if host.policy(tid).map_err(told)? == policy {
            return Ok(tid);
        }
    }
    Err(format!("the {NAME}: the ruler has no thread with {policy} (is this root?)"))
}

fn is_runnable(host: &LiveHost, (process, tid): (Tid, Tid)) -> Result<bool, String> {
    let text = host.read_text(&paths::task_stat(process, tid)).map_err(told)?;
    let (_, after) = text.rsplit_once(") ").ok_or("the injector: a thread has no state")?;
    Ok(after.starts_with('R'))
}

/// What the kernel traces on one PU, from [`Trace::begin`] on.
pub struct Trace {
    perf: Child,
    file: String,
}

impl Trace {
    /// Begins to trace into a file.
    pub fn begin(file: String, pu: PuId) -> Result<Self, Failure> {
        let perf = in_own_mounts()
            .args(["record", "-q", "-k", "CLOCK_MONOTONIC", "-m", "4M", "-C", &pu.to_string()])
            .args(["-e", INTERRUPT, "-e", WAKING, "-e", SWITCH, "-o", &file])
            .die_with_parent(true)
            .stdin(Stdio::Null)
            .start()?;
        SystemClock.sleep_ns(PERF_STARTS_NS);
        Ok(Self { perf, file })
    }

    /// Ends, and gives how long each stall took this thread away (ns).
    pub fn stalls_of(self, thread: Tid) -> Result<Vec<f64>, Failure> {
        let stalls = stalls_in(&self.end()?, thread);
        match stalls.is_empty() {
            true => Err("perf traced no stall".into()),
            false => Ok(stalls),
        }
    }

    fn end(mut self) -> Result<Vec<Event>, Failure> {
        self.perf.signal(Signaled::Interrupt)?;
        if self.perf.wait_for(&SystemClock, PERF_ENDS_NS)?.is_none() {
            return Err("perf record did not end".into());
        }
        let output = in_own_mounts()
            .args(["script", "--ns", "-F", "time,event,trace", "-i", &self.file])
            .capture(PERF_ENDS_NS)?;
        if !output.status.success() {
            return Err(format!("perf script: {}", output.stderr_text().trim()).into());
        }
        let events = events_in(&output.stdout_text())?;
        match events.is_empty() {
            true => Err(format!("perf traced nothing: {}", output.stderr_text().trim()).into()),
            false => Ok(events),
        }
    }
}

/// perf mounts the trace file system where it is not mounted: seen by nobody else here.
fn in_own_mounts() -> Spawn {
    Spawn::new("unshare").args(["--mount", "perf"]).env("LC_ALL", "C")
}

/// What the kernel told at a time of its monotonic clock (ns).
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
    let told = |line| one(line).ok_or_else(|| format!("perf script tells no time: {line}").into());
    text.lines().map(told).collect()
}

/// From the interrupt that wakes the injector, which takes the thread's PU, until the thread has
/// the PU again.
fn stalls_in(events: &[Event], thread: Tid) -> Vec<f64> {
    let (waking, next) = (format!("comm={NAME} "), format!("next_comm={NAME} "));
    let (left, back) = (format!("prev_pid={thread} "), format!("next_pid={thread} "));
    let (mut interrupted, mut woken, mut away) = (None, None, None);
    let mut stalls = Vec::new();
    for Event { at, what } in events {
        if what.starts_with(INTERRUPT) {
            interrupted = Some(*at);
        } else if what.starts_with(WAKING) && what.contains(&waking) {
            woken = interrupted;
        } else if what.starts_with(SWITCH) {
            if what.contains(&left) && what.contains(&next) {
                away = woken.take();
            } else if what.contains(&back)
                && let Some(since) = away.take()
            {
                stalls.push(at - since);
            }
        }
    }
    stalls
}

/// For how long a thread has stood still already when the first line of a tick's handler runs
/// (ns): one of ours reads the clock without a pause, and each tick falls between two readings.
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
    use super::{INTERRUPT, Tid, events_in, stalls_in};

    #[test]
    fn a_stall_is_from_the_interrupt_that_brought_it_until_the_switch_back() {
        let text = format!(
            "  62.332024161: {INTERRUPT}: vector=236
  62.333449434: {INTERRUPT}: vector=236
  62.333460001:            sched:sched_waking: comm=injector pid=8 prio=0 target_cpu=001
  62.333473360:            sched:sched_switch: prev_comm=pinload-9-0 prev_pid=10 prev_prio=19 prev_state=R ==> next_comm=injector next_pid=8 next_prio=0
  62.333900000: {INTERRUPT}: vector=236
  62.334595094:            sched:sched_switch: prev_comm=injector prev_pid=8 prev_prio=0 prev_state=S ==> next_comm=pinload-9-0 next_pid=10 next_prio=19
  62.335228443:            sched:sched_switch: prev_comm=pinload-9-0 prev_pid=10 prev_prio=19 prev_state=S ==> next_comm=swapper/1 next_pid=0 next_prio=120
  62.340000000:            sched:sched_switch: prev_comm=swapper/1 prev_pid=0 prev_prio=120 prev_state=R ==> next_comm=pinload-9-0 next_pid=10 next_prio=19
"
        );
        let events = events_in(&text).unwrap();
        let stalls = stalls_in(&events, Tid(10));
        assert!(stalls.len() == 1 && (stalls[0] - 1_145_660.0).abs() < 1.0, "{stalls:?}");
        assert!(stalls_in(&events, Tid(8)).is_empty(), "nobody stalls the injector");
        let wrong = events_in("now: nothing").unwrap_err().to_string();
        assert!(wrong.contains("no time: now: nothing"), "{wrong}");
    }
}
