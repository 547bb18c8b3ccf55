//! Real-time burners: threads that take a share of each period on their CPU, in phase, out of phase
//! or in step by a barrier.
//!
//! A burner with a share sleeps until multiples of the period on the monotonic clock. Other threads
//! on its CPU stop when its timer fires, so the burned time counts from the timer's expiry. A
//! burner that burned too long, because the kernel delayed it, burns less in the next period. It
//! burns only while its supervisor sends heartbeats, and it is a thread of its supervisor, so it
//! ends with it.

use super::Facts;
use crate::units::in_us;
use crate::vnode_cgroup::VnodeCgroup;
use std::hint;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use pinfold_host::{Clock as _, HostError, HostMut, SystemClock, paths, process, schedstat};
use pinfold_model::{CpuSet, Policy, PuId, Tid};

use super::{HEARTBEAT_TIMEOUT_NS, MethodContext};
use crate::SpeedError;
use crate::emulation::HelperTime;
use crate::node::Node;

/// Higher than the priority of any thread in a plan.
pub(super) const PRIORITY: u8 = 98;
/// Sleep of a burner without a share; setting a share wakes it.
const IDLE: Duration = Duration::from_millis(100);
/// Maximum time from the timer to the burner that counts as burned; longer delays have another
/// cause.
const MOST_ENTRY_NS: u64 = 50_000;

/// Data that a burner and its supervisor share.
#[derive(Debug, Default)]
struct Shared {
    is_over: AtomicBool,
    until_ns: AtomicU64,
    // Share of the time to burn, in millionths.
    steal: AtomicU64,
    burned_ns: AtomicU64,
    turns: AtomicU64,
    // Periods that were skipped, because the burner was not on its CPU.
    wrong_cpu_turns: AtomicU64,
}

/// When the burners of a vnode burn.
#[derive(Clone)]
pub(super) struct BurnSchedule {
    pub period_ns: u64,
    /// Delay of the burn after multiples of the period.
    pub offset_ns: u64,
    /// Where the burners meet between burn and sleep, instead of keeping to the clock.
    pub barrier: Option<Arc<Barrier>>,
}

impl BurnSchedule {
    /// Burns begin at multiples of the period.
    pub(super) fn in_phase(period_ns: u64) -> Self {
        Self { period_ns, offset_ns: 0, barrier: None }
    }
}

/// A barrier that a burner can leave alone when it is stopped, which that of POSIX does not allow.
pub(super) struct Barrier {
    count: usize,
    state: Mutex<Arrivals>,
    released: Condvar,
}

#[derive(Default)]
struct Arrivals {
    waiting: usize,
    generation: u64,
}

impl Barrier {
    pub(super) fn new(count: usize) -> Arc<Self> {
        let state = Mutex::new(Arrivals::default());
        Arc::new(Self { count, state, released: Condvar::new() })
    }

    /// Waits until all burners have arrived, or until this one is stopped or gets no heartbeat.
    fn wait(&self, shared: &Shared) {
        let mut arrivals = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        arrivals.waiting += 1;
        if arrivals.waiting == self.count {
            arrivals.waiting = 0;
            arrivals.generation += 1;
            self.released.notify_all();
            return;
        }
        let generation = arrivals.generation;
        while arrivals.generation == generation {
            if shared.is_over.load(Ordering::Relaxed)
                || SystemClock.now_ns() >= shared.until_ns.load(Ordering::Relaxed)
            {
                arrivals.waiting -= 1;
                return;
            }
            let woken = self.released.wait_timeout(arrivals, IDLE);
            arrivals = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// A running burner; it ends when this is dropped.
pub(super) struct Burning {
    shared: Arc<Shared>,
    tid: Tid,
    thread: Option<JoinHandle<()>>,
}

impl Burning {
    /// Starts a burner with share 0.
    pub(super) fn start(
        context: &MethodContext<'_, '_>,
        pu: PuId,
        pace: BurnSchedule,
    ) -> Result<Self, SpeedError> {
        process::lock_memory()?;
        let shared = Arc::new(Shared::default());
        let mine = Arc::clone(&shared);
        let (report, reported) = mpsc::channel::<Tid>();
        let (go, gone) = mpsc::channel::<()>();
        let thread = thread::Builder::new().name(format!("hog-{pu}")).spawn(move || {
            // If the other end does not receive or does not send, it has failed, and this thread
            // ends.
            if report.send(process::own_tid()).is_ok() && gone.recv().is_ok() {
                match &pace.barrier {
                    Some(barrier) => burn_in_step(&mine, pu, pace.period_ns, barrier),
                    None => burn(&mine, pu, pace.period_ns, pace.offset_ns),
                }
            }
        });
        let thread = thread.map_err(|error| fail(error.to_string()))?;
        let tid = reported.recv().map_err(|error| fail(error.to_string()))?;
        let placed = context
            .host
            .set_affinity(tid, &CpuSet::single(pu))
            .and_then(|()| context.host.set_policy(tid, Policy::Fifo { priority: PRIORITY }));
        placed.map_err(|error| refuse_node(context.node, error))?;
        go.send(()).map_err(|error| fail(error.to_string()))?;
        Ok(Self { shared, tid, thread: Some(thread) })
    }

    /// Sets the share of the time to burn, in millionths.
    pub(super) fn set_steal(&self, millionths: u64) {
        self.shared.steal.store(millionths, Ordering::Relaxed);
        self.wake();
    }

    fn wake(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }

    /// Burned time in nanoseconds, and number of periods.
    pub(super) fn burned_time(&self) -> (u64, u64) {
        (load(&self.shared.burned_ns), load(&self.shared.turns))
    }

    /// Its CPU time by the kernel, with what it counts as burned.
    pub(super) fn time(&self, host: &dyn HostMut) -> Result<HelperTime, HostError> {
        let path = paths::task_schedstat(process::own_pid(), self.tid);
        let text = host.read_text(&path)?;
        let stat = schedstat::parse(&text).map_err(|error| error.at(&path))?;
        let (taken_ns, turns) = self.burned_time();
        Ok(HelperTime { ran_ns: stat.run_ns, taken_ns, turns })
    }

    /// A note for the status; `None` as long as it stays on its CPU.
    pub(super) fn note(&self, pu: PuId) -> Option<String> {
        let strayed = self.shared.wrong_cpu_turns.load(Ordering::Relaxed);
        (strayed > 0).then(|| {
            format!(
                "CPU {pu}: {strayed} turns were skipped, because the kernel ran the burner on \
                 another CPU: is the CPU offline?"
            )
        })
    }

    /// Heartbeat: lets it burn until the next timeout.
    pub(super) fn extend_deadline(&self) {
        let until = SystemClock.now_ns().saturating_add(HEARTBEAT_TIMEOUT_NS);
        self.shared.until_ns.store(until, Ordering::Relaxed);
    }
}

fn fail(why: String) -> SpeedError {
    SpeedError::HelperSpawner { what: "a burner", why }
}

fn load(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

/// Ends burners and waits for them.
pub(super) fn stop<'b>(burners: impl Iterator<Item = &'b mut Burning>) {
    let burners: Vec<&mut Burning> = burners.collect();
    for burner in &burners {
        burner.shared.is_over.store(true, Ordering::Relaxed);
        burner.wake();
    }
    for burner in burners {
        if let Some(thread) = burner.thread.take() {
            // A thread that panicked does not burn either.
            match thread.join() {
                Ok(()) | Err(_) => {}
            }
        }
    }
}

impl Drop for Burning {
    fn drop(&mut self) {
        stop([self].into_iter());
    }
}

/// Why a host does not support it.
pub(super) fn refuse(facts: &Facts) -> Option<String> {
    facts.no_real_time.clone()
}

/// What it starts and writes while its vnode is active.
pub(super) fn describe(node: &Node, _: &VnodeCgroup) -> Vec<String> {
    let each = in_us(node.period());
    node.cores
        .iter()
        .map(|(pu, _)| {
            format!("start a burner on CPU {pu}: a thread with SCHED_FIFO {PRIORITY}, every {each}")
        })
        .collect()
}

/// Why the kernel does not allow a real-time thread of this process; `None` if it does. Tried with
/// a thread that only waits.
pub(super) fn refusal(host: &dyn HostMut) -> Result<Option<String>, SpeedError> {
    fn fail(why: String) -> SpeedError {
        SpeedError::HelperSpawner { what: "a thread to check real-time permission", why }
    }

    let (report, reported) = mpsc::channel::<Tid>();
    let (go, gone) = mpsc::channel::<()>();
    let thread = thread::Builder::new().name("rights".to_owned()).spawn(move || {
        if report.send(process::own_tid()).is_ok() {
            // Until the sender is dropped.
            match gone.recv() {
                Ok(()) | Err(_) => {}
            }
        }
    });
    let thread = thread.map_err(|error| fail(error.to_string()))?;
    let tid = reported.recv().map_err(|error| fail(error.to_string()))?;
    let answer = host.set_policy(tid, Policy::Fifo { priority: PRIORITY });
    drop(go);
    match thread.join() {
        Ok(()) | Err(_) => {}
    }
    match answer {
        Ok(()) => Ok(None),
        Err(error) if is_right(&error) => Ok(Some(format!("{NO_RIGHTS} (CAP_SYS_NICE)"))),
        Err(error) => Err(error.into()),
    }
}

const NO_RIGHTS: &str = "the kernel does not permit real-time threads";

fn is_right(error: &HostError) -> bool {
    matches!(error, HostError::Thread { call: "sched_setattr", .. })
}

fn refuse_node(node: &Node, error: HostError) -> SpeedError {
    if !is_right(&error) {
        return error.into();
    }
    SpeedError::Unavailable {
        vnode: node.name.clone(),
        method: node.method,
        why: NO_RIGHTS.to_owned(),
        hint: "run it as root; under RT_GROUP_SCHED from the root group of the cpu hierarchy, \
               or use stall or quota"
            .to_owned(),
    }
}

/// Main loop of a burner: wakes at multiples of the period, burns the time that is owed, sleeps.
fn burn(shared: &Shared, pu: PuId, period_ns: u64, offset_ns: u64) {
    let clock = SystemClock;
    let mut owed_ns = 0_i64;
    let mut at = (clock.now_ns() / period_ns + 1) * period_ns + offset_ns;
    while !shared.is_over.load(Ordering::Relaxed) {
        clock.sleep_until(at);
        let woken = clock.now_ns();
        let start = woken - woken.saturating_sub(at).min(MOST_ENTRY_NS);
        // Skip periods that were missed.
        at = at.saturating_add(period_ns).max((start / period_ns) * period_ns + offset_ns);
        let steal = shared.steal.load(Ordering::Relaxed);
        if steal == 0 {
            // Waking in each period without need would slow down a core at full speed.
            owed_ns = 0;
            thread::park();
            at = (clock.now_ns() / period_ns + 1) * period_ns + offset_ns;
            continue;
        }
        if start >= shared.until_ns.load(Ordering::Relaxed) {
            owed_ns = 0;
            continue;
        }
        // When a CPU goes offline, the kernel moves its threads to other CPUs, which must not be
        // slowed down.
        if process::own_pu() != pu {
            owed_ns = 0;
            shared.wrong_cpu_turns.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        owed_ns += i64::try_from(period_ns * steal / 1_000_000).unwrap_or(0);
        let longest = i64::try_from(period_ns).unwrap_or(i64::MAX);
        owed_ns = owed_ns.clamp(-longest, longest);
        if owed_ns <= 0 {
            continue;
        }
        let burned = spin(shared, start, owed_ns.unsigned_abs());
        owed_ns -= i64::try_from(burned).unwrap_or(0);
    }
}

/// The loop of CPU-Hogs as published: burn, meet the other burners at the barrier, sleep.
fn burn_in_step(shared: &Shared, pu: PuId, period_ns: u64, barrier: &Barrier) {
    let clock = SystemClock;
    while !shared.is_over.load(Ordering::Relaxed) {
        let steal = shared.steal.load(Ordering::Relaxed);
        if steal == 0 {
            thread::park();
            continue;
        }
        let start = clock.now_ns();
        let is_strayed = process::own_pu() != pu;
        if is_strayed {
            shared.wrong_cpu_turns.fetch_add(1, Ordering::Relaxed);
        }
        if is_strayed || start >= shared.until_ns.load(Ordering::Relaxed) {
            clock.sleep_until(start.saturating_add(period_ns));
            continue;
        }
        let burn_ns = period_ns * steal / 1_000_000;
        spin(shared, start, burn_ns);
        barrier.wait(shared);
        clock.sleep_until(clock.now_ns().saturating_add(period_ns - burn_ns));
    }
}

/// Occupies the CPU until `burn_ns` after `start`, counts the turn, and returns the burned time.
fn spin(shared: &Shared, start: u64, burn_ns: u64) -> u64 {
    let clock = SystemClock;
    let end = start.saturating_add(burn_ns);
    let mut now = clock.now_ns();
    while now < end {
        hint::spin_loop();
        now = clock.now_ns();
    }
    let burned = now.saturating_sub(start);
    shared.burned_ns.fetch_add(burned, Ordering::Relaxed);
    shared.turns.fetch_add(1, Ordering::Relaxed);
    burned
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No machine has this CPU, so the burner is always on another one.
    #[test]
    fn a_burner_that_is_not_on_its_pu_burns_nothing() {
        let shared = Arc::new(Shared::default());
        shared.until_ns.store(u64::MAX, Ordering::Relaxed);
        shared.steal.store(500_000, Ordering::Relaxed);
        let (mine, pu) = (Arc::clone(&shared), PuId(8_191));
        let thread = thread::spawn(move || burn(&mine, pu, 1_000_000, 0));
        let tid = process::own_tid();
        let mut burning = Burning { shared: Arc::clone(&shared), tid, thread: Some(thread) };
        while shared.wrong_cpu_turns.load(Ordering::Relaxed) < 3 {
            assert_eq!(burning.burned_time(), (0, 0));
            SystemClock.sleep_ns(1_000_000);
        }
        stop([&mut burning].into_iter());
        assert_eq!(burning.burned_time(), (0, 0));
        let note = burning.note(pu).unwrap();
        assert!(note.contains("turns were skipped"), "{note}");
    }

    #[test]
    fn a_burner_without_a_share_does_not_run() {
        let shared = Arc::new(Shared::default());
        let (mine, (report, reported)) = (Arc::clone(&shared), mpsc::channel());
        let thread = thread::spawn(move || {
            report.send(process::own_tid()).unwrap();
            burn(&mine, process::own_pu(), 500_000, 0);
        });
        let tid = reported.recv().unwrap();
        let mut burning = Burning { shared: Arc::clone(&shared), tid, thread: Some(thread) };
        burning.extend_deadline();
        let host = pinfold_host::LiveHost::new().unwrap();
        // Once it has come to rest, it does not even wake.
        let mut before = u64::MAX;
        loop {
            let ran_ns = burning.time(&host).unwrap().ran_ns;
            if ran_ns == before {
                break;
            }
            before = ran_ns;
            SystemClock.sleep_ns(50_000_000);
        }
        assert_eq!(burning.burned_time(), (0, 0));
        stop([&mut burning].into_iter());
    }

    /// The second burner burns four times as long; neither has more than one turn more.
    #[test]
    fn burners_meet_at_the_barrier() {
        let barrier = Barrier::new(2);
        let burners: Vec<_> = [100_000, 400_000]
            .map(|steal| {
                let shared = Arc::new(Shared::default());
                shared.until_ns.store(u64::MAX, Ordering::Relaxed);
                shared.steal.store(steal, Ordering::Relaxed);
                let (mine, barrier) = (Arc::clone(&shared), Arc::clone(&barrier));
                let thread = thread::spawn(move || {
                    let pu = process::own_pu();
                    let host = pinfold_host::LiveHost::new().unwrap();
                    host.set_affinity(process::own_tid(), &CpuSet::single(pu)).unwrap();
                    burn_in_step(&mine, pu, 1_000_000, &barrier);
                });
                Burning { shared, tid: process::own_tid(), thread: Some(thread) }
            })
            .into_iter()
            .collect();
        while turns(&burners[0]) < 20 {
            SystemClock.sleep_ns(1_000_000);
            // At each moment the counts differ by at most one.
            let (before, second, after) =
                (turns(&burners[0]), turns(&burners[1]), turns(&burners[0]));
            assert!(before <= second + 1 && second <= after + 1, "{before} {second} {after}");
        }
        // One that waits alone burns no more, and is stopped too.
        let mut burners = burners;
        let mut first = burners.remove(0);
        stop([&mut first].into_iter());
        SystemClock.sleep_ns(25_000_000);
        assert!(turns(&burners[0]) <= turns(&first) + 1);
        stop(burners.iter_mut());
    }

    fn turns(burner: &Burning) -> u64 {
        burner.burned_time().1
    }
}
