//! `stall`: the vnode's own tasks spin in a timer interrupt for the time that a slower CPU would
//! not have had. Ours; see `pinfold_host::Stall` for the mechanism.
//!
//! Only time in which the vnode's tasks run counts, so that sleeping costs nothing and nothing can
//! be saved up: each moment is slowed, not a budget. A stall begins when its interrupt was due; what
//! the interrupt costs beside it is measured at the start, on all cores at once, and counts as
//! taken. Where so little is to be
//! taken that the interrupt costs more, or so little is left that late interrupts have no room,
//! the period is made longer.

use std::collections::BTreeMap;

use pinfold_host::{Stall, StallWish};
use pinfold_model::{Method, PuId, Speed};

use super::{BEAT_NS, Ground, VOUCH_NS, in_us, steal_of};
use crate::SpeedError;
use crate::calibrate::{Costs, Spent};
use crate::emulation::{CoreAccount, Emulation};

/// Longest single stall, the most that may be owed.
const LONGEST_NS: u64 = 2_000_000;
/// Longest period.
const LONGEST_PERIOD_NS: u64 = 1_000_000;
/// What is taken in a period is at least so many times what the interrupt costs, the way into it
/// included.
const LEAST_SHARE: u64 = 2;
/// What is left of a period is at least this, where the longest has it.
const LEAST_LEFT_NS: u64 = 20_000;
/// A stall ends so long before the next interrupt.
const MARGIN_NS: u64 = 5_000;

pub(super) struct Stalling {
    vnode: String,
    stall: Stall,
    usual_ns: u64,
    cores: BTreeMap<PuId, Core>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Core {
    spent: Spent,
    // The way into an interrupt, which is part of each stall.
    entry_ns: u64,
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
        cores: pus.iter().map(|pu| (pu, Core { period_ns, ..Core::default() })).collect(),
    })
}

impl Stalling {
    /// What an interrupt may cost, as long as that is not known (ns).
    fn guess(&self) -> u64 {
        self.usual_ns / 8
    }

    /// The period in which so many millionths are taken while a witness looks: no less than the
    /// way into the interrupt, and not all of it.
    fn period_to_witness(&self, millionths: u32) -> u64 {
        let (taken, guess) = (u64::from(millionths), self.guess());
        let left = 1_000_000_u64.saturating_sub(taken).max(1);
        let roomy = LEAST_LEFT_NS.saturating_add(guess) * 1_000_000 / left;
        let worth = LEAST_SHARE * guess * 1_000_000 / taken.max(1);
        self.usual_ns.max(roomy.max(worth).min(LONGEST_PERIOD_NS))
    }

    /// The period in which so much can be taken, and the share that is to be stalled.
    fn turn_of(&self, core: Core, speed: Speed) -> Result<(u64, u64), SpeedError> {
        let lost = steal_of(speed);
        if lost == 0 {
            return Ok((self.usual_ns, 0));
        }
        let cost = core.spent.cost;
        let least_ns = u64::try_from(cost.extra(0)).unwrap_or(0).saturating_add(core.entry_ns);
        let period_of =
            |times: u64| least_ns.saturating_mul(times).saturating_mul(1_000_000) / lost;
        if period_of(1) > LONGEST_PERIOD_NS {
            return Err(SpeedError::OutOfReach {
                vnode: self.vnode.clone(),
                method: Method::Stall,
                speed,
                why: format!(
                    "one interrupt each {} costs {} here, which is more than is to be taken",
                    in_us(LONGEST_PERIOD_NS),
                    in_us(least_ns)
                ),
                hint: "ask for 100%, or for a lower speed".to_owned(),
            });
        }
        let left = u64::from(speed.millionths()).max(1);
        let roomy = (LEAST_LEFT_NS * 1_000_000 / left).max(period_of(LEAST_SHARE));
        let period_ns = self.usual_ns.max(roomy.min(LONGEST_PERIOD_NS));
        Ok((period_ns, cost.share(lost, period_ns)))
    }
}

/// So many millionths of each period, of which an interrupt costs `extra_ns`.
///
/// A stall that reaches beyond the next interrupt makes that one late, which then owes as much
/// again: where there is room to pay late debts within the period, no stall leaves it. Interrupts
/// are a little early and late anyway: what is within a twentieth, or half of the room, is paid at
/// once.
fn wish(stolen: u32, period_ns: u64, extra_ns: i64) -> StallWish {
    let share_ns = period_ns.saturating_mul(stolen.into()) / 1_000_000;
    let room_ns = period_ns.saturating_sub(MARGIN_NS).saturating_sub_signed(extra_ns.max(0));
    let (usual_ns, longest_ns) = match room_ns.checked_sub(share_ns) {
        Some(spare_ns) if spare_ns >= MARGIN_NS => {
            (share_ns + (share_ns / 20).min(spare_ns / 2), room_ns)
        }
        Some(_) | None => (LONGEST_NS, LONGEST_NS),
    };
    StallWish { stolen, usual_ns, longest_ns }
}

impl Emulation for Stalling {
    fn turn_to_witness(&self, millionths: u32) -> Option<u64> {
        Some(self.period_to_witness(millionths))
    }

    fn take(&mut self, millionths: u32) -> Result<(), SpeedError> {
        let period_ns = self.period_to_witness(millionths);
        let extra_ns = i64::try_from(self.guess()).unwrap_or(0);
        let wish = wish(millionths, period_ns, extra_ns);
        for pu in self.cores.keys() {
            self.stall.set(*pu, wish)?;
            self.stall.set_period(*pu, period_ns)?;
        }
        Ok(())
    }

    fn learn(&mut self, costs: &Costs) -> Result<(), SpeedError> {
        for (pu, core) in &mut self.cores {
            let cost = costs.get(pu).ok_or_else(|| SpeedError::Calibration {
                vnode: self.vnode.clone(),
                method: Method::Stall,
                why: format!("the witness could not work on PU {pu}"),
            })?;
            // What came before was the witness's.
            let before = self.stall.account(*pu)?;
            core.spent = Spent::after(*cost, before.interrupts);
            core.entry_ns = before.entry_ns.checked_div(before.interrupts).unwrap_or(0);
        }
        Ok(())
    }

    fn set(&mut self, speeds: &[(PuId, Speed)]) -> Result<(), SpeedError> {
        let mut wishes = Vec::with_capacity(speeds.len());
        for (pu, speed) in speeds {
            let Some(core) = self.cores.get(pu) else { continue };
            wishes.push((*pu, self.turn_of(*core, *speed)?));
        }
        for (pu, (period_ns, share)) in wishes {
            let account = self.stall.account(pu)?;
            let Some(core) = self.cores.get_mut(&pu) else { continue };
            core.spent.change(share, account.interrupts);
            core.period_ns = period_ns;
            let stolen = u32::try_from(share).unwrap_or(0);
            self.stall.set(pu, wish(stolen, period_ns, core.spent.extra()))?;
            self.stall.set_period(pu, period_ns)?;
        }
        Ok(())
    }

    fn turn(&mut self, now_ns: u64) -> Result<u64, SpeedError> {
        self.stall.vouch(VOUCH_NS);
        Ok(now_ns.saturating_add(BEAT_NS))
    }

    fn observe(&self) -> Result<Vec<CoreAccount>, SpeedError> {
        let account = |(pu, core): (&PuId, &Core)| {
            let account = self.stall.account(*pu)?;
            let extras_ns = core.spent.extras(account.interrupts);
            let taken_ns = account.stalled_ns.saturating_add_signed(extras_ns);
            Ok(CoreAccount { pu: *pu, wanted_ns: account.ran_ns, taken_ns })
        };
        self.cores.iter().map(account).collect()
    }

    fn notes(&self) -> Vec<String> {
        let note = |(pu, core): (&PuId, &Core)| {
            let (period, cost) = (in_us(core.period_ns), core.spent.in_words());
            let entry = match core.entry_ns {
                0 => String::new(),
                entry_ns => format!(", after {} on the way into it", in_us(entry_ns)),
            };
            format!("PU {pu}: an interrupt each {period}, {cost}{entry}")
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

#[cfg(test)]
mod tests {
    use super::{LONGEST_NS, wish};

    #[test]
    fn a_stall_stays_in_its_period_where_late_debts_have_room() {
        let check = |stolen: u32, extra_ns: i64, expected: (u64, u64)| {
            let wish = wish(stolen, 200_000, extra_ns);
            assert_eq!((wish.usual_ns, wish.longest_ns), expected, "{stolen}");
            assert_eq!(wish.stolen, stolen);
        };
        check(500_000, 0, (105_000, 195_000));
        check(430_000, 14_000, (90_300, 181_000));
        check(430_000, -3_000, (90_300, 195_000));
        check(680_000, 14_000, (142_800, 181_000));
        check(830_000, 14_000, (173_500, 181_000));
        check(880_000, 14_000, (178_500, 181_000));
        check(890_000, 14_000, (LONGEST_NS, LONGEST_NS));
    }
}
