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
use std::thread;

use pinfold_host::{Clock as _, SystemClock};
use pinfold_model::{CpuSet, Method, PuId, Speed, Variant};

use super::burner::{self, BEAT_NS, Burning, THROTTLE_FLOOR};
use super::{Ground, in_us, steal_of};
use crate::SpeedError;
use crate::calibrate::trimmed_mean;
use crate::emulation::{CoreAccount, Emulation};

/// The witness looks for so long, while half of the time is taken.
const WITNESS_NS: u64 = 600_000_000;
const WITNESS_STEAL: u64 = 500_000;
pub(super) struct Hogs {
    vnode: String,
    period_ns: u64,
    started_ns: u64,
    is_throttled: bool,
    burners: BTreeMap<PuId, Burning>,
}

pub(super) fn start(ground: &Ground<'_, '_>) -> Result<Hogs, SpeedError> {
    let period_ns = ground.node.period();
    let mut hogs = Hogs {
        vnode: ground.node.name.clone(),
        period_ns,
        started_ns: ground.clock.now_ns(),
        is_throttled: burner::is_throttled(ground.host),
        burners: BTreeMap::new(),
    };
    let pus = ground.node.pus();
    let is_alone = ground.node.variant == Variant::AsPublished;
    let count = u64::try_from(pus.len()).unwrap_or(1).max(1);
    for (index, pu) in (0..).zip(pus.iter()) {
        let offset_ns = if is_alone { period_ns / count * index } else { 0 };
        hogs.burners.insert(pu, Burning::start(ground, pu, (period_ns, offset_ns))?);
    }
    if !is_alone {
        hogs.calibrate(ground, &pus)?;
    }
    Ok(hogs)
}

impl Hogs {
    /// Measures what the switches of a turn cost on each core, all of them at once.
    fn calibrate(&mut self, ground: &Ground<'_, '_>, pus: &CpuSet) -> Result<(), SpeedError> {
        for burner in self.burners.values() {
            burner.set_steal(WITNESS_STEAL);
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
        for (pu, burner) in &self.burners {
            let (burned_ns, turns) = burner.burned();
            let seen = gaps.get(pu).and_then(|gaps| trimmed_mean(gaps));
            let meant = burned_ns.checked_div(turns);
            let (Some(seen), Some(meant)) = (seen, meant) else {
                return Err(SpeedError::Calibration {
                    vnode: self.vnode.clone(),
                    method: Method::Hogs,
                    why: format!("the witness on PU {pu} saw hardly any turns"),
                });
            };
            let cost = i64::try_from(seen).unwrap_or(0) - i64::try_from(meant).unwrap_or(0);
            burner.set_cost(cost);
        }
        Ok(())
    }

    fn vouch(&self) {
        self.burners.values().for_each(Burning::vouch);
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
            if let Some(burner) = self.burners.get(pu) {
                burner.set_steal(steal_of(*speed));
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
        let account = |(pu, burner): (&PuId, &Burning)| {
            let (burned_ns, turns) = burner.burned();
            let cost = i64::try_from(turns).unwrap_or(0).saturating_mul(burner.cost());
            CoreAccount { pu: *pu, wanted_ns, taken_ns: burned_ns.saturating_add_signed(cost) }
        };
        Ok(self.burners.iter().map(account).collect())
    }

    fn notes(&self) -> Vec<String> {
        let note = |(pu, burner): (&PuId, &Burning)| {
            let cost = burner.cost();
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
        burner::stop(self.burners.values_mut());
        Ok(())
    }
}
