//! `stall`: the vnode's own tasks spin in a timer interrupt for the time that a slower CPU would
//! not have had. Ours; see `pinfold_host::Stall` for the mechanism.
//!
//! Only time in which the vnode's tasks run counts, so that sleeping costs nothing and nothing can
//! be saved up: each moment is slowed, not a budget. What the interrupt itself costs is
//! measured at the start, on all cores at once, and counts as taken. Where so little is to be
//! taken that the interrupt costs more, the period is made longer.

use std::collections::BTreeMap;

use pinfold_host::{Stall, StallWish};
use pinfold_model::{Method, PuId, Speed};

use super::{Ground, in_us, steal_of};
use crate::SpeedError;
use crate::calibrate::{Gaps, trimmed_mean};
use crate::emulation::{CoreAccount, Emulation};

/// Without a beat for so long the program stalls nobody any more.
const VOUCH_NS: u64 = 90_000_000;
const BEAT_NS: u64 = 30_000_000;
/// Longest single stall: far below what watchdogs of the kernel look at.
const LONGEST_NS: u64 = 2_000_000;
/// Longest period.
const LONGEST_PERIOD_NS: u64 = 1_000_000;
/// What is taken in a period is at least so many times what the interrupt costs.
const LEAST_SHARE: u64 = 2;
/// While a witness looks, half of the time is taken.
const WITNESS_STEAL: u32 = 500_000;

pub(super) struct Stalling {
    vnode: String,
    stall: Stall,
    usual_ns: u64,
    // What one interrupt costs, and the period, by PU.
    cores: BTreeMap<PuId, Core>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Core {
    cost_ns: u64,
    period_ns: u64,
}

pub(super) fn start(ground: &Ground<'_, '_>) -> Result<Stalling, SpeedError> {
    let Some(group) = &ground.enclosure.perf else {
        return Err(ground.unavailable("there is no cgroup hierarchy with perf_event"));
    };
    let period_ns = ground.node.period();
    let pus = ground.node.pus();
    let stall = Stall::open(ground.host, group, &pus, period_ns)?;
    Ok(Stalling {
        vnode: ground.node.name.clone(),
        stall,
        usual_ns: period_ns,
        cores: pus.iter().map(|pu| (pu, Core { cost_ns: 0, period_ns })).collect(),
    })
}

impl Stalling {
    /// The period in which so much can be taken.
    fn period(&self, cost_ns: u64, speed: Speed) -> Result<u64, SpeedError> {
        let steal = steal_of(speed);
        if steal == 0 {
            return Ok(LONGEST_PERIOD_NS);
        }
        let least = cost_ns.saturating_mul(LEAST_SHARE).saturating_mul(1_000_000) / steal;
        if cost_ns.saturating_mul(1_000_000) / steal > LONGEST_PERIOD_NS {
            return Err(SpeedError::OutOfReach {
                vnode: self.vnode.clone(),
                method: Method::Stall,
                speed,
                why: format!(
                    "one interrupt each {} costs {} here, which is more than is to be taken",
                    in_us(LONGEST_PERIOD_NS),
                    in_us(cost_ns)
                ),
                hint: "ask for 100%, or for a lower speed".to_owned(),
            });
        }
        Ok(self.usual_ns.max(least.min(LONGEST_PERIOD_NS)))
    }
}

impl Emulation for Stalling {
    fn begin_witness(&mut self) -> Result<Option<u64>, SpeedError> {
        let wish = StallWish { stolen: WITNESS_STEAL, cost_ns: 0, longest_ns: LONGEST_NS };
        for pu in self.cores.keys() {
            self.stall.set(*pu, wish)?;
        }
        // Half of what is taken: other gaps are shorter, or rare.
        Ok(Some(self.usual_ns / 4))
    }

    fn end_witness(&mut self, gaps: &Gaps) -> Result<(), SpeedError> {
        for (pu, core) in &mut self.cores {
            let account = self.stall.account(*pu)?;
            let seen = gaps.get(pu).and_then(|gaps| trimmed_mean(gaps));
            let meant = account.stalled_ns.checked_div(account.interrupts);
            let (Some(seen), Some(meant)) = (seen, meant) else {
                return Err(SpeedError::Calibration {
                    vnode: self.vnode.clone(),
                    method: Method::Stall,
                    why: format!("the witness on PU {pu} saw hardly any interrupts"),
                });
            };
            core.cost_ns = seen.saturating_sub(meant);
        }
        Ok(())
    }

    fn set(&mut self, speeds: &[(PuId, Speed)]) -> Result<(), SpeedError> {
        let mut wishes = Vec::with_capacity(speeds.len());
        for (pu, speed) in speeds {
            let Some(core) = self.cores.get(pu) else { continue };
            wishes.push((*pu, *speed, self.period(core.cost_ns, *speed)?));
        }
        for (pu, speed, period_ns) in wishes {
            let Some(core) = self.cores.get_mut(&pu) else { continue };
            core.period_ns = period_ns;
            let stolen = u32::try_from(steal_of(speed)).unwrap_or(0);
            let wish = StallWish { stolen, cost_ns: core.cost_ns, longest_ns: LONGEST_NS };
            self.stall.set(pu, wish)?;
            self.stall.set_period(pu, period_ns)?;
        }
        Ok(())
    }

    fn turn(&mut self, now_ns: u64) -> Result<u64, SpeedError> {
        self.stall.vouch(VOUCH_NS)?;
        Ok(now_ns.saturating_add(BEAT_NS))
    }

    fn observe(&self) -> Result<Vec<CoreAccount>, SpeedError> {
        let account = |(pu, core): (&PuId, &Core)| {
            let account = self.stall.account(*pu)?;
            let cost = account.interrupts.saturating_mul(core.cost_ns);
            let taken_ns = account.stalled_ns.saturating_add(cost);
            Ok(CoreAccount { pu: *pu, wanted_ns: account.ran_ns, taken_ns })
        };
        self.cores.iter().map(account).collect()
    }

    fn notes(&self) -> Vec<String> {
        let note = |(pu, core): (&PuId, &Core)| {
            format!(
                "PU {pu}: an interrupt each {}, which itself costs {}",
                in_us(core.period_ns),
                in_us(core.cost_ns)
            )
        };
        self.cores.iter().map(note).collect()
    }

    fn stop(&mut self) -> Result<(), SpeedError> {
        for pu in self.cores.keys() {
            self.stall.set(*pu, StallWish::default())?;
        }
        Ok(())
    }
}
