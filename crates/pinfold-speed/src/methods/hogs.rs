//! `hogs`: a real-time burner on each core, all cores in step. CPU-Hogs of Buchert 2011, made
//! finer.
//!
//! The paper's burners wait for each other at a barrier; here all of them sleep until the same
//! multiples of the period on the machine's clock, which keeps them in step without a wait.
//! A burner that wakes late, or is held up by the kernel, makes good for it in the next
//! turn, and what the two switches of a turn cost the vnode besides is measured at the start
//! on all cores at once.
//!
//! As published: each core on its own (the paper's Fig. 3), and the cost is not known.

use std::collections::BTreeMap;
use std::hint;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use pinfold_host::{Clock as _, HostError, SystemClock, paths, process};
use pinfold_model::{CpuSet, Method, Policy, PuId, Speed, Tid, Variant};

use super::{Ground, in_us, steal_of};
use crate::SpeedError;
use crate::calibrate::trimmed_mean;
use crate::emulation::{CoreAccount, Emulation};

/// Above every thread that a plan gives real-time rights.
const PRIORITY: u8 = 98;
/// Without a beat for so long nobody burns any more.
const VOUCH_NS: u64 = 90_000_000;
const BEAT_NS: u64 = 30_000_000;
/// The witness looks for so long, while half of the time is taken.
const WITNESS_NS: u64 = 600_000_000;
const WITNESS_STEAL: u64 = 500_000;
/// The kernel takes so much of each second from real-time threads.
const THROTTLE_FLOOR: u32 = 50_000;

/// What a burner and its supervisor tell each other.
#[derive(Debug, Default)]
struct Shared {
    is_over: AtomicBool,
    until_ns: AtomicU64,
    // Millionths of the time.
    steal: AtomicU64,
    cost_ns: AtomicI64,
    burned_ns: AtomicU64,
    turns: AtomicU64,
}

pub(super) struct Hogs {
    vnode: String,
    period_ns: u64,
    started_ns: u64,
    is_throttled: bool,
    burners: BTreeMap<PuId, (Arc<Shared>, Option<JoinHandle<()>>)>,
}

pub(super) fn start(ground: &Ground<'_, '_>) -> Result<Hogs, SpeedError> {
    let period_ns = ground.node.period();
    let is_throttled = ground
        .host
        .read_text(&paths::sysctl_kernel("sched_rt_runtime_us"))
        .is_ok_and(|text| text.trim() != "-1");
    process::lock_memory()?;
    let mut hogs = Hogs {
        vnode: ground.node.name.clone(),
        period_ns,
        started_ns: ground.clock.now_ns(),
        is_throttled,
        burners: BTreeMap::new(),
    };
    let pus = ground.node.pus();
    let is_alone = ground.node.variant == Variant::AsPublished;
    let count = u64::try_from(pus.len()).unwrap_or(1).max(1);
    for (index, pu) in (0..).zip(pus.iter()) {
        let offset_ns = if is_alone { period_ns / count * index } else { 0 };
        let burner = hogs.burner(ground, pu, offset_ns)?;
        hogs.burners.insert(pu, burner);
    }
    if !is_alone {
        hogs.calibrate(ground, &pus)?;
    }
    Ok(hogs)
}

impl Hogs {
    fn burner(
        &self,
        ground: &Ground<'_, '_>,
        pu: PuId,
        offset_ns: u64,
    ) -> Result<(Arc<Shared>, Option<JoinHandle<()>>), SpeedError> {
        let shared = Arc::new(Shared::default());
        let (mine, period_ns) = (Arc::clone(&shared), self.period_ns);
        let (tell, told) = mpsc::channel::<Tid>();
        let (go, gone) = mpsc::channel::<()>();
        let thread = thread::Builder::new().name(format!("hog-{pu}")).spawn(move || {
            // Whoever does not listen or does not say go has failed and ends us.
            if tell.send(process::own_tid()).is_ok() && gone.recv().is_ok() {
                burn(&mine, period_ns, offset_ns);
            }
        });
        let failed = |why: String| SpeedError::Outside { what: "a burner", why };
        let thread = thread.map_err(|error| failed(error.to_string()))?;
        let tid = told.recv().map_err(|error| failed(error.to_string()))?;
        let placed = ground
            .host
            .set_affinity(tid, &CpuSet::single(pu))
            .and_then(|()| ground.host.set_policy(tid, Policy::Fifo { priority: PRIORITY }));
        placed.map_err(|error| self.refused(error))?;
        go.send(()).map_err(|error| failed(error.to_string()))?;
        Ok((shared, Some(thread)))
    }

    fn refused(&self, error: HostError) -> SpeedError {
        let is_right = matches!(&error, HostError::Thread { call: "sched_setattr", .. });
        if !is_right {
            return error.into();
        }
        SpeedError::Unavailable {
            vnode: self.vnode.clone(),
            method: Method::Hogs,
            why: "the kernel gives no real-time rights".to_owned(),
            hint: "run it as root; under RT_GROUP_SCHED from the root group of the cpu hierarchy, \
                   or use stall or quota"
                .to_owned(),
        }
    }

    /// Measures what the switches of a turn cost on each core, all of them at once.
    fn calibrate(&mut self, ground: &Ground<'_, '_>, pus: &CpuSet) -> Result<(), SpeedError> {
        for (shared, _) in self.burners.values() {
            shared.steal.store(WITNESS_STEAL, Ordering::Relaxed);
        }
        let (outside, entries) = (ground.outside, ground.enclosure.entries());
        let floor_ns = self.period_ns / 4;
        let gaps = thread::scope(|scope| {
            let looking = scope.spawn(move || outside.gaps(&entries, pus, (WITNESS_NS, floor_ns)));
            while !looking.is_finished() {
                self.vouch();
                ground.clock.sleep_ns(BEAT_NS / 3);
            }
            looking.join().unwrap_or_else(|_| {
                Err(SpeedError::Outside { what: "the witness", why: "it panicked".to_owned() })
            })
        })?;
        for (pu, (shared, _)) in &self.burners {
            let turns = shared.turns.load(Ordering::Relaxed);
            let seen = gaps.get(pu).and_then(|gaps| trimmed_mean(gaps));
            let meant = shared.burned_ns.load(Ordering::Relaxed).checked_div(turns);
            let (Some(seen), Some(meant)) = (seen, meant) else {
                return Err(SpeedError::Calibration {
                    vnode: self.vnode.clone(),
                    method: Method::Hogs,
                    why: format!("the witness on PU {pu} saw hardly any turns"),
                });
            };
            let cost = i64::try_from(seen).unwrap_or(0) - i64::try_from(meant).unwrap_or(0);
            shared.cost_ns.store(cost, Ordering::Relaxed);
        }
        Ok(())
    }

    fn vouch(&self) {
        let until = SystemClock.now_ns().saturating_add(VOUCH_NS);
        for (shared, _) in self.burners.values() {
            shared.until_ns.store(until, Ordering::Relaxed);
        }
    }
}

/// What a burner does: wake at multiples of the period, burn what is owed, sleep.
fn burn(shared: &Shared, period_ns: u64, offset_ns: u64) {
    let clock = SystemClock;
    let mut owed_ns = 0_i64;
    let mut at = (clock.now_ns() / period_ns + 1) * period_ns + offset_ns;
    while !shared.is_over.load(Ordering::Relaxed) {
        clock.sleep_until(at);
        let start = clock.now_ns();
        // Turns that were slept through are over.
        at = at.saturating_add(period_ns).max((start / period_ns) * period_ns + offset_ns);
        let steal = shared.steal.load(Ordering::Relaxed);
        if steal == 0 || start >= shared.until_ns.load(Ordering::Relaxed) {
            owed_ns = 0;
            continue;
        }
        let cost_ns = shared.cost_ns.load(Ordering::Relaxed);
        owed_ns += i64::try_from(period_ns * steal / 1_000_000).unwrap_or(0) - cost_ns;
        let longest = i64::try_from(period_ns).unwrap_or(i64::MAX);
        owed_ns = owed_ns.clamp(-longest, longest);
        if owed_ns <= 0 {
            continue;
        }
        let end = start.saturating_add(owed_ns.unsigned_abs());
        let mut now = start;
        while now < end {
            hint::spin_loop();
            now = clock.now_ns();
        }
        let burned = now - start;
        owed_ns -= i64::try_from(burned).unwrap_or(0);
        shared.burned_ns.fetch_add(burned, Ordering::Relaxed);
        shared.turns.fetch_add(1, Ordering::Relaxed);
    }
}

impl Emulation for Hogs {
    fn set(&mut self, speeds: &[(PuId, Speed)]) -> Result<(), SpeedError> {
        let slowest = speeds.iter().map(|(_, speed)| *speed).min();
        if let Some(speed) = slowest.filter(|speed| speed.millionths() < THROTTLE_FLOOR)
            && self.is_throttled
        {
            return Err(SpeedError::OutOfReach {
                vnode: self.vnode.clone(),
                method: Method::Hogs,
                speed,
                why: "the kernel keeps 5 % of each second from real-time threads".to_owned(),
                hint: "ask for 5% or more, or use stall".to_owned(),
            });
        }
        for (pu, speed) in speeds {
            if let Some((shared, _)) = self.burners.get(pu) {
                shared.steal.store(steal_of(*speed), Ordering::Relaxed);
            }
        }
        self.vouch();
        Ok(())
    }

    fn turn(&mut self, now_ns: u64) -> Result<u64, SpeedError> {
        self.vouch();
        Ok(now_ns.saturating_add(BEAT_NS))
    }

    fn observe(&self) -> Result<Vec<CoreAccount>, SpeedError> {
        let wanted_ns = SystemClock.now_ns().saturating_sub(self.started_ns);
        let account = |(pu, (shared, _)): (&PuId, &(Arc<Shared>, Option<JoinHandle<()>>))| {
            let turns = i64::try_from(shared.turns.load(Ordering::Relaxed)).unwrap_or(0);
            let cost = turns.saturating_mul(shared.cost_ns.load(Ordering::Relaxed));
            let burned = shared.burned_ns.load(Ordering::Relaxed);
            CoreAccount { pu: *pu, wanted_ns, taken_ns: burned.saturating_add_signed(cost) }
        };
        Ok(self.burners.iter().map(account).collect())
    }

    fn notes(&self) -> Vec<String> {
        let note = |(pu, (shared, _)): (&PuId, &(Arc<Shared>, Option<JoinHandle<()>>))| {
            let cost = shared.cost_ns.load(Ordering::Relaxed);
            let sign = if cost < 0 { "-" } else { "" };
            let cost = in_us(cost.unsigned_abs());
            format!(
                "PU {pu}: a turn each {}, which itself costs {sign}{cost}",
                in_us(self.period_ns)
            )
        };
        self.burners.iter().map(note).collect()
    }

    fn stop(&mut self) -> Result<(), SpeedError> {
        for (shared, _) in self.burners.values() {
            shared.is_over.store(true, Ordering::Relaxed);
        }
        for (_, thread) in self.burners.values_mut() {
            if let Some(thread) = thread.take() {
                // One that panicked burns no more either.
                match thread.join() {
                    Ok(()) | Err(_) => {}
                }
            }
        }
        Ok(())
    }
}

impl Drop for Hogs {
    fn drop(&mut self) {
        match self.stop() {
            Ok(()) | Err(_) => {}
        }
    }
}
