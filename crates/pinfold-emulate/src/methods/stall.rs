//! `stall`: the vnode's own tasks spin in a timer interrupt for the time that a slower CPU would
//! lose. Pinfold's own method; the mechanism is in `pinfold_host::Stall`.
//!
//! Only the run time of the vnode's tasks counts, so sleeping costs nothing and saves no budget:
//! the speed is reduced at each moment. A stall counts from when its interrupt was due. The
//! remaining overhead of the interrupt is measured at the start, on all cores at once, and counts
//! as taken. The period is increased if the time to take is shorter than the overhead, or if the
//! remaining time leaves no room for late interrupts.
//!
//! After each stall a program refills caches and predictors, which no measurement with a spinning
//! thread shows, and which longer periods make rarer. Unless the period is requested, it is
//! therefore the longest one while the vnode's tasks keep a core busy: a burst of that length is
//! long compared to any period. Within 10 ms of a pause it is short again, so that short bursts are
//! slowed evenly.

use super::Facts;
use crate::node::Node;
use crate::vnode_cgroup::VnodeCgroup;
use std::collections::BTreeMap;

use pinfold_host::{
    Host, HostError, HostMut, Stall, StallAccount, StallConfig, paths, with_causes,
};
use pinfold_model::{CpuSet, Method, PuId, Speed};

use super::perf_sample_rate::Allowed;
use super::{HEARTBEAT_NS, HEARTBEAT_TIMEOUT_NS, MethodContext, steal_of};
use crate::SpeedError;
use crate::cost::{Cost, Costs, PeriodOverhead, Source};
use crate::emulation::{ChargedTo, CoreAccount, CoreShare, Emulation};
use crate::hierarchies::Hierarchies;
use crate::units::{MS, in_us};

/// Longest single stall, and the maximum time that may be owed.
const LONGEST_NS: u64 = 2_000_000;
/// Longest period.
const LONGEST_PERIOD_NS: u64 = 1_000_000;
/// Minimum duration for which a core is busy before it has the longest period.
const BUSY_NS: u64 = 80 * MS;
/// Interval of the heartbeat while a core is busy, so that a pause is seen soon.
const BUSY_HEARTBEAT_NS: u64 = 10 * MS;
/// Minimum run time of a core that is busy, in percent.
const BUSY_PERCENT: u64 = 90;
/// Minimum ratio of the time taken per period to the cost of the interrupt, including the interrupt
/// entry.
const LEAST_SHARE: u64 = 2;
/// Minimum remaining time per period, if the longest period allows it.
const LEAST_LEFT_NS: u64 = 20_000;
/// Minimum time between the end of a stall and the next interrupt.
const MARGIN_NS: u64 = 5_000;

/// Interval at which the kernel's limit on interrupts is checked.
const LOOK_NS: u64 = crate::units::S;
/// Smaller values in the statistics arise between two steps of this code, and are not reported.
const MIN_REPORTED_NS: u64 = 1_000_000;

pub(super) struct Stalling<'h> {
    vnode: String,
    host: &'h dyn HostMut,
    stall: Stall,
    // The requested period or the default, and the period that the kernel allows.
    asked_ns: u64,
    usual_ns: u64,
    // True for the default period: longer on busy cores, but not during a reference run.
    is_default: bool,
    is_held: bool,
    allowed: Allowed,
    look_ns: u64,
    // Time of the last heartbeat.
    beat_ns: u64,
    cores: BTreeMap<PuId, Core>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Core {
    spent: PeriodOverhead,
    period_ns: u64,
    speed: Option<Speed>,
    // The statistics at the time when that speed was set.
    before: StallAccount,
    // Run time at the last heartbeat, and for how long its tasks have kept it busy.
    ran_ns: u64,
    busy_ns: u64,
}

impl Core {
    /// Updates how long it has been busy, after an interval.
    fn observe(&mut self, ran_ns: u64, interval_ns: u64) {
        let new_ns = ran_ns.saturating_sub(std::mem::replace(&mut self.ran_ns, ran_ns));
        // The run time is that at the last interrupt.
        let is_busy = new_ns.saturating_add(self.period_ns) >= interval_ns / 100 * BUSY_PERCENT;
        self.busy_ns = if is_busy { self.busy_ns.saturating_add(interval_ns) } else { 0 };
    }

    fn is_busy(&self) -> bool {
        self.busy_ns >= BUSY_NS
    }
}

/// Why it is not available on a host; `None` if it is. Tried with a timer that is not started.
pub(super) fn refusal(
    host: &dyn Host,
    hierarchies: &Hierarchies,
) -> Result<Option<String>, HostError> {
    let Some(place) = &hierarchies.perf else {
        return Ok(Some("cgroup version 2 is not mounted".to_owned()));
    };
    let pu = host
        .read_text(&paths::cpu_online())
        .ok()
        .and_then(|text: String| CpuSet::parse_list(text.trim()).ok()?.first())
        .unwrap_or(PuId(0));
    if let Err(error) = Stall::open(host, &place.root, &CpuSet::single(pu), LONGEST_PERIOD_NS) {
        return Ok(Some(with_causes(&error)));
    }
    Ok(Allowed::find(host)?.refusal(LONGEST_PERIOD_NS))
}

/// Why a host does not support it.
pub(super) fn refuse(facts: &Facts) -> Option<String> {
    facts.no_stall.clone()
}

/// What it starts and writes while its vnode is active.
pub(super) fn describe(node: &Node, cgroup: &VnodeCgroup) -> Vec<String> {
    let group = cgroup.perf.as_deref().unwrap_or_default();
    let each = in_us(node.period());
    let mut lines = vec!["load the BPF program stall".to_owned()];
    lines.extend(node.cores.iter().map(|(pu, _)| {
        format!(
            "attach it to a timer (perf_event, cpu-clock) on CPU {pu} that counts while tasks of \
             {group} run, with a period of {each} or more"
        )
    }));
    lines
}

pub(super) fn start<'h>(context: &MethodContext<'h, '_>) -> Result<Stalling<'h>, SpeedError> {
    let Some(group) = &context.cgroup.perf else {
        return Err(context.unavailable("there is no cgroup hierarchy with perf_event"));
    };
    let allowed = Allowed::find(context.host)?;
    if let Some(why) = allowed.refusal(LONGEST_PERIOD_NS) {
        return Err(context.unavailable(&why));
    }
    let asked_ns = context.node.period();
    let period_ns = asked_ns.max(allowed.shortest_ns().unwrap_or(0));
    let pus = context.node.pus();
    let stall = Stall::open(context.host, group, &pus, period_ns)?;
    Ok(Stalling {
        vnode: context.node.name.clone(),
        host: context.host,
        stall,
        asked_ns,
        usual_ns: period_ns,
        is_default: context.node.period_ns.is_none(),
        is_held: false,
        allowed,
        look_ns: context.clock.now_ns().saturating_add(LOOK_NS),
        beat_ns: context.clock.now_ns(),
        cores: pus.iter().map(|pu| (pu, Core { period_ns, ..Core::default() })).collect(),
    })
}

impl Stalling<'_> {
    /// Checks whether the kernel or another program changed the limit, and adapts the periods: to
    /// the shortest allowed one, or to the longest if none is allowed.
    fn look(&mut self) -> Result<(), SpeedError> {
        let allowed = Allowed::find(self.host)?;
        if std::mem::replace(&mut self.allowed, allowed) == allowed {
            return Ok(());
        }
        let shortest_ns = allowed.shortest_ns().unwrap_or(u64::MAX);
        self.usual_ns = self.asked_ns.max(shortest_ns.min(LONGEST_PERIOD_NS));
        let speeds = self.cores.iter().filter_map(|(pu, core)| Some((*pu, core.speed?)));
        let speeds: Vec<(PuId, Speed)> = speeds.collect();
        self.set(&speeds)
    }

    /// Changes the periods of cores that have become busy, or have paused.
    fn adapt(&mut self, now_ns: u64) -> Result<(), SpeedError> {
        let interval_ns = now_ns.saturating_sub(std::mem::replace(&mut self.beat_ns, now_ns));
        let mut changed = Vec::new();
        for (pu, core) in &mut self.cores {
            let Some(speed) = core.speed.filter(|speed| *speed != Speed::FULL) else {
                // At full speed no run time is counted.
                core.busy_ns = 0;
                continue;
            };
            let was_busy = core.is_busy();
            core.observe(self.stall.account(*pu)?.ran_ns, interval_ns);
            if self.is_held {
                core.busy_ns = 0;
            }
            if core.is_busy() != was_busy {
                changed.push((*pu, speed));
            }
        }
        self.set(&changed)
    }

    /// Estimated cost of an interrupt (ns), while it is unknown.
    fn guess(&self) -> u64 {
        self.usual_ns / 8
    }

    /// The period for taking this share during a reference run: the time taken is longer than the
    /// interrupt entry, and some time remains.
    fn period_to_witness(&self, millionths: u32) -> u64 {
        let (taken, guess) = (u64::from(millionths), self.guess());
        let left = 1_000_000_u64.saturating_sub(taken).max(1);
        let roomy = LEAST_LEFT_NS.saturating_add(guess) * 1_000_000 / left;
        let worth = LEAST_SHARE * guess * 1_000_000 / taken.max(1);
        self.usual_ns.max(roomy.max(worth).min(LONGEST_PERIOD_NS))
    }

    /// The period that allows this speed, and the share to stall.
    fn turn_of(&self, core: Core, speed: Speed) -> Result<(u64, u64), SpeedError> {
        let lost = steal_of(speed);
        if lost == 0 {
            return Ok((self.usual_ns, 0));
        }
        let is_long = self.is_default && core.is_busy();
        let usual_ns = if is_long { LONGEST_PERIOD_NS } else { self.usual_ns };
        let cost = core.spent.cost;
        let least_ns = u64::try_from(cost.extra(0)).unwrap_or(0).saturating_add(cost.entry_ns);
        if period_of(least_ns, lost, 1) > LONGEST_PERIOD_NS {
            let most = LONGEST_PERIOD_NS.saturating_sub(least_ns) * 1000 / LONGEST_PERIOD_NS;
            return Err(SpeedError::OutOfReach {
                vnode: self.vnode.clone(),
                method: Method::Stall,
                speed,
                why: format!(
                    "one interrupt every {} costs {} here, more than the requested slowdown",
                    in_us(LONGEST_PERIOD_NS),
                    in_us(least_ns)
                ),
                hint: format!("use 100%, or at most {}.{}%", most / 10, most % 10),
            });
        }
        let left = u64::from(speed.millionths()).max(1);
        let roomy = (LEAST_LEFT_NS * 1_000_000 / left).max(period_of(least_ns, lost, LEAST_SHARE));
        let period_ns = usual_ns.max(roomy.min(LONGEST_PERIOD_NS));
        Ok((period_ns, cost.share(lost, period_ns)))
    }
}

fn period_of(least_ns: u64, lost: u64, times: u64) -> u64 {
    least_ns.saturating_mul(times).saturating_mul(1_000_000) / lost
}

/// Time that a core was too fast since its speed was set, as a message; `None` if negligible.
fn describe_missed(pu: PuId, before: StallAccount, now: StallAccount) -> Option<String> {
    fn ms(ns: u64) -> String {
        format!("{}.{} ms", ns / 1_000_000, ns % 1_000_000 / 100_000)
    }

    let lost_ns = now.lost_ns.saturating_sub(before.lost_ns);
    let full_ns = now.full_ns.saturating_sub(before.full_ns);
    let mut reported = Vec::new();
    if lost_ns >= MIN_REPORTED_NS {
        reported.push(format!("{} were skipped, because interrupts came too late", ms(lost_ns)));
    }
    if full_ns >= MIN_REPORTED_NS {
        reported.push(format!("{} were at full speed, because no heartbeat arrived", ms(full_ns)));
    }
    (!reported.is_empty()).then(|| format!("CPU {pu}: {}", reported.join("; ")))
}

/// Configuration for taking a share of each period in which an interrupt has the overhead
/// `extra_ns`.
///
/// A stall that exceeds the period delays the next interrupt, which then owes as much again. If the
/// period has room for late debts, no stall exceeds it. Interrupts always jitter a little: a debt
/// within a twentieth of the stall, or half of the room, is paid at once.
fn stall_config(stolen: u32, period_ns: u64, extra_ns: i64) -> StallConfig {
    let share_ns = period_ns.saturating_mul(stolen.into()) / 1_000_000;
    let room_ns = period_ns.saturating_sub(MARGIN_NS).saturating_sub_signed(extra_ns.max(0));
    let (usual_ns, longest_ns) = match room_ns.checked_sub(share_ns) {
        Some(spare_ns) if spare_ns >= MARGIN_NS => {
            (share_ns + (share_ns / 20).min(spare_ns / 2), room_ns)
        }
        Some(_) | None => (LONGEST_NS, LONGEST_NS),
    };
    StallConfig { stolen, usual_ns, longest_ns }
}

impl Emulation for Stalling<'_> {
    fn calibration_period(&self, millionths: u32) -> Option<u64> {
        Some(self.period_to_witness(millionths))
    }

    fn charged_to(&self) -> Option<ChargedTo> {
        Some(ChargedTo::Tasks)
    }

    fn steal_share(&mut self, millionths: u32) -> Result<(), SpeedError> {
        let period_ns = self.period_to_witness(millionths);
        let extra_ns = i64::try_from(self.guess()).unwrap_or(0);
        let stall_config = stall_config(millionths, period_ns, extra_ns);
        for pu in self.cores.keys() {
            self.stall.set(*pu, stall_config)?;
            self.stall.set_period(*pu, period_ns)?;
        }
        Ok(())
    }

    fn set_costs(&mut self, costs: &Costs) -> Result<(), SpeedError> {
        for (pu, core) in &mut self.cores {
            // Earlier interrupts belong to the reference run.
            let before = self.stall.account(*pu)?;
            core.spent = PeriodOverhead::after(
                costs.get(pu).copied().unwrap_or_default(),
                before.interrupts,
            );
            if let Some(entry_ns) = before.entry_ns.checked_div(before.interrupts) {
                core.spent.cost.entry_ns = entry_ns;
            }
        }
        Ok(())
    }

    fn costs(&self) -> Costs {
        self.cores.iter().map(|(pu, core)| (*pu, core.spent.known_cost())).collect()
    }

    fn taken_shares(&self) -> BTreeMap<PuId, CoreShare> {
        self.cores
            .iter()
            .filter_map(|(pu, core): (&PuId, &Core)| {
                let turn = CoreShare {
                    share: u32::try_from(core.spent.share).unwrap_or(0),
                    period_ns: core.period_ns,
                    // A stall is an interrupt in the task's own CPU time.
                    left: 1_000_000,
                    cost: core.spent.cost,
                    is_known: !core.spent.is_unknown(),
                    is_measured: core.spent.source == Source::Measured,
                };
                (turn.share > 0).then_some((*pu, turn))
            })
            .collect()
    }

    fn hold_periods(&mut self, is_held: bool) {
        self.is_held = is_held;
    }

    fn replace_costs(&mut self, costs: &BTreeMap<PuId, Cost>) -> Result<(), SpeedError> {
        for (pu, cost) in costs {
            let account = self.stall.account(*pu)?;
            if let Some(core) = self.cores.get_mut(pu) {
                core.spent.renew(*cost, account.interrupts);
            }
        }
        Ok(())
    }

    fn uncalibrated_cpus(&self) -> CpuSet {
        let unknown = self.cores.iter().filter(|(_, core)| core.spent.is_unknown());
        unknown.map(|(pu, _)| *pu).collect()
    }

    fn check_speeds(&self, speeds: &[(PuId, Speed)]) -> Result<(), SpeedError> {
        speeds.iter().try_for_each(|(pu, speed)| {
            self.cores.get(pu).map_or(Ok(()), |core| self.turn_of(*core, *speed).map(|_| ()))
        })
    }

    fn set(&mut self, speeds: &[(PuId, Speed)]) -> Result<(), SpeedError> {
        let mut stall_configs = Vec::with_capacity(speeds.len());
        for (pu, speed) in speeds {
            let Some(core) = self.cores.get(pu) else { continue };
            stall_configs.push((*pu, *speed, self.turn_of(*core, *speed)?));
        }
        self.stall.extend_deadline(HEARTBEAT_TIMEOUT_NS);
        for (pu, speed, (period_ns, share)) in stall_configs {
            let account = self.stall.account(pu)?;
            let Some(core) = self.cores.get_mut(&pu) else { continue };
            core.spent.change(share, account.interrupts);
            core.period_ns = period_ns;
            if core.speed.replace(speed) != Some(speed) {
                core.before = account;
            }
            let stolen = u32::try_from(share).unwrap_or(0);
            self.stall.set(pu, stall_config(stolen, period_ns, core.spent.extra()))?;
            self.stall.set_period(pu, period_ns)?;
        }
        Ok(())
    }

    fn tick(&mut self, now_ns: u64) -> Result<u64, SpeedError> {
        self.stall.extend_deadline(HEARTBEAT_TIMEOUT_NS);
        if now_ns >= self.look_ns {
            self.look_ns = now_ns.saturating_add(LOOK_NS);
            self.look()?;
        }
        self.adapt(now_ns)?;
        let is_busy = self.is_default && self.cores.values().any(Core::is_busy);
        Ok(now_ns.saturating_add(if is_busy { BUSY_HEARTBEAT_NS } else { HEARTBEAT_NS }))
    }

    fn observe(&self) -> Result<Vec<CoreAccount>, SpeedError> {
        // At full speed the timer is off, and the run time is not counted.
        self.cores
            .iter()
            .filter(|(_, core)| core.speed != Some(Speed::FULL))
            .map(|(pu, core)| {
                let account = self.stall.account(*pu)?;
                let extras_ns = core.spent.extras(account.interrupts);
                let taken_ns = account.stalled_ns.saturating_add_signed(extras_ns);
                let (wanted_ns, ran_ns) = (account.ran_ns, Some(account.ran_ns));
                Ok(CoreAccount { pu: *pu, wanted_ns, taken_ns, ran_ns })
            })
            .collect()
    }

    fn notes(&self) -> Vec<String> {
        let missed = self.cores.iter().filter_map(|(pu, core)| {
            // Statistics that cannot be read are left out.
            let account = self.stall.account(*pu).ok()?;
            core.speed.filter(|speed| *speed != Speed::FULL)?;
            describe_missed(*pu, core.before, account)
        });
        let mut notes: Vec<String> = self
            .cores
            .iter()
            .filter(|(_, core)| core.speed != Some(Speed::FULL))
            .map(|(pu, core): (&PuId, &Core)| {
                let (period, cost) = (in_us(core.period_ns), core.spent.describe());
                let entry = match core.spent.cost.entry_ns {
                    0 => String::new(),
                    entry_ns => format!(", plus {} to enter it", in_us(entry_ns)),
                };
                format!("CPU {pu}: an interrupt every {period}, {cost}{entry}")
            })
            .chain(missed)
            .collect();
        if let Some(why) = self.allowed.refusal(LONGEST_PERIOD_NS) {
            notes.push(format!("faster than requested: {why}"));
        } else if self.usual_ns > self.asked_ns {
            let (asked, usual) = (in_us(self.asked_ns), in_us(self.usual_ns));
            let rate = self.allowed.rate.unwrap_or(0);
            notes.push(format!(
                "a period of {asked} becomes {usual}, because kernel.perf_event_max_sample_rate is \
                 {rate}"
            ));
        }
        notes
    }

    fn stop(&mut self) -> Result<(), SpeedError> {
        for pu in self.cores.keys() {
            self.stall.set(*pu, StallConfig::default())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use pinfold_host::StallAccount;
    use pinfold_model::PuId;

    use super::{Core, LONGEST_NS, describe_missed, stall_config};

    #[test]
    fn what_was_not_taken_is_reported_since_the_speed_was_set() {
        fn check(before: StallAccount, lost_ns: u64, full_ns: u64, expected: Option<&str>) {
            let now = StallAccount { lost_ns, full_ns, ..before };
            assert_eq!(describe_missed(PuId(2), before, now).as_deref(), expected);
        }

        let before = StallAccount { lost_ns: 5_000_000, full_ns: 7_000_000, ..Default::default() };
        check(before, 5_000_000, 7_900_000, None);
        check(
            before,
            8_200_000,
            7_000_000,
            Some("CPU 2: 3.2 ms were skipped, because interrupts came too late"),
        );
        check(
            before,
            5_000_000,
            9_000_000,
            Some("CPU 2: 2.0 ms were at full speed, because no heartbeat arrived"),
        );
    }

    #[test]
    fn a_core_is_busy_after_two_heartbeats_and_idle_after_one_pause() {
        let mut core = Core::default();
        core.observe(39_000_000, 40_000_000);
        assert!(!core.is_busy());
        core.observe(78_000_000, 40_000_000);
        assert!(core.is_busy());
        core.period_ns = 1_000_000;
        core.observe(86_100_000, 10_000_000);
        assert!(core.is_busy(), "the last interrupt was 1 ms ago");
        core.observe(93_900_000, 10_000_000);
        assert!(!core.is_busy(), "it paused for more than 1 ms");
    }

    #[test]
    fn a_stall_stays_in_its_period_where_late_debts_have_room() {
        check(500_000, 0, (105_000, 195_000));
        check(430_000, 14_000, (90_300, 181_000));
        check(430_000, -3_000, (90_300, 195_000));
        check(680_000, 14_000, (142_800, 181_000));
        check(830_000, 14_000, (173_500, 181_000));
        check(880_000, 14_000, (178_500, 181_000));
        check(890_000, 14_000, (LONGEST_NS, LONGEST_NS));
    }

    fn check(stolen: u32, extra_ns: i64, expected: (u64, u64)) {
        let stall_config = stall_config(stolen, 200_000, extra_ns);
        assert_eq!((stall_config.usual_ns, stall_config.longest_ns), expected, "{stolen}");
        assert_eq!(stall_config.stolen, stolen);
    }
}
