//! `hogs`: a real-time burner on each core, all cores in phase. A refinement of CPU-Hogs of Buchert
//! 2011.
//!
//! The paper's burners wait for each other at a barrier (§III.A). Here they all sleep until the
//! same multiples of the period on the monotonic clock, which keeps them in phase without a
//! barrier. The burned time counts from the timer's expiry, and a burner that burned too long burns
//! less in the next period. The remaining overhead per period, such as context switches, is
//! measured at the start on all cores at once.
//!
//! The overhead is not measured for long periods, of which a reference run would see only a few: a
//! few microseconds are negligible there.
//!
//! As published: each burner spins, meets the others at a barrier and then sleeps; the overhead is
//! unknown. Unsynchronised: the cores are out of phase, as in the left half of the paper's Fig. 3,
//! where a task that may migrate finds a free core and gets more than its share.

use std::collections::BTreeMap;

use pinfold_host::{Clock as _, HostMut, SystemClock};
use pinfold_model::{CpuSet, Method, PuId, Speed, Variant};

use super::burner::{self, BurnSchedule, Burning};
use super::{HEARTBEAT_NS, MethodContext, rt_throttle, steal_of};
use crate::SpeedError;
use crate::cost::{Cost, Costs, PeriodOverhead, Source};
use crate::emulation::{ChargedTo, CoreAccount, CoreShare, Emulation, HelperTime};
use crate::units::in_us;

/// Maximum period for which the overhead is measured; in longer ones it is about 0.05 %.
const LONGEST_MEASURED_NS: u64 = 10_000_000;
/// Maximum share during a reference run, which leaves it a fifth. With less, a burner that
/// compensates for stolen time would leave it nothing.
const MAX_SHARE_IN_REFERENCE_RUN: u32 = 800_000;

pub(super) struct Hogs<'h> {
    vnode: String,
    host: &'h dyn HostMut,
    period_ns: u64,
    started_ns: u64,
    // Share of the time that real-time threads cannot get, in millionths.
    floor: u32,
    is_measured: bool,
    has_barrier: bool,
    burners: BTreeMap<PuId, Burning>,
    costs: BTreeMap<PuId, PeriodOverhead>,
}

pub(super) fn start<'h>(context: &MethodContext<'h, '_>) -> Result<Hogs<'h>, SpeedError> {
    let period_ns = context.node.period();
    let variant = context.node.variant;
    let mut hogs = Hogs {
        vnode: context.node.name.clone(),
        host: context.host,
        period_ns,
        started_ns: context.clock.now_ns(),
        floor: rt_throttle::millionths(context.host, &context.node.pus())?,
        is_measured: variant == Variant::Corrected && period_ns <= LONGEST_MEASURED_NS,
        has_barrier: variant == Variant::AsPublished,
        burners: BTreeMap::new(),
        costs: BTreeMap::new(),
    };
    let pus = context.node.pus();
    let count = u64::try_from(pus.len()).unwrap_or(1).max(1);
    let barrier = hogs.has_barrier.then(|| burner::Barrier::new(pus.len()));
    for (index, pu) in (0..).zip(pus.iter()) {
        let is_out_of_phase = variant == Variant::Unsynchronised;
        let offset_ns = if is_out_of_phase { period_ns / count * index } else { 0 };
        let pace = BurnSchedule { period_ns, offset_ns, barrier: barrier.clone() };
        hogs.burners.insert(pu, Burning::start(context, pu, pace)?);
    }
    Ok(hogs)
}

impl Hogs<'_> {
    fn extend_deadlines(&self) {
        self.burners.values().for_each(Burning::extend_deadline);
    }
}

impl Emulation for Hogs<'_> {
    fn calibration_period(&self, millionths: u32) -> Option<u64> {
        let leaves_some = millionths <= MAX_SHARE_IN_REFERENCE_RUN;
        (self.is_measured && leaves_some).then_some(self.period_ns)
    }

    fn charged_to(&self) -> Option<ChargedTo> {
        Some(ChargedTo::Helpers)
    }

    fn helper_times(&self) -> Result<BTreeMap<PuId, HelperTime>, SpeedError> {
        self.burners.iter().map(|(pu, burner)| Ok((*pu, burner.time(self.host)?))).collect()
    }

    fn steal_share(&mut self, millionths: u32) -> Result<(), SpeedError> {
        for burner in self.burners.values() {
            burner.set_steal(millionths.into());
        }
        Ok(())
    }

    fn set_costs(&mut self, costs: &Costs) -> Result<(), SpeedError> {
        for (pu, burner) in &self.burners {
            // Earlier periods belong to the reference run.
            let (_, settled) = burner.burned_time();
            let known = costs.get(pu).copied().unwrap_or_default();
            self.costs.insert(*pu, PeriodOverhead::after(known, settled));
        }
        Ok(())
    }

    fn costs(&self) -> Costs {
        self.costs.iter().map(|(pu, spent)| (*pu, spent.known_cost())).collect()
    }

    fn taken_shares(&self) -> BTreeMap<PuId, CoreShare> {
        self.costs
            .iter()
            .filter_map(|(pu, spent)| {
                let share = u32::try_from(spent.share).unwrap_or(0);
                let turn = CoreShare {
                    share,
                    period_ns: self.period_ns,
                    left: 1_000_000_u32.saturating_sub(share),
                    cost: spent.cost,
                    is_known: !spent.is_unknown(),
                    is_measured: spent.source == Source::Measured,
                };
                (self.is_measured && share > 0).then_some((*pu, turn))
            })
            .collect()
    }

    fn replace_costs(&mut self, costs: &BTreeMap<PuId, Cost>) -> Result<(), SpeedError> {
        for (pu, cost) in costs {
            if let (Some(burner), Some(spent)) = (self.burners.get(pu), self.costs.get_mut(pu)) {
                spent.renew(*cost, burner.burned_time().1);
            }
        }
        Ok(())
    }

    fn check_speeds(&self, speeds: &[(PuId, Speed)]) -> Result<(), SpeedError> {
        let first = speeds.first().map(|(_, speed)| *speed);
        let other = speeds.iter().find(|(_, speed)| Some(*speed) != first);
        if let (true, Some(speed), Some((pu, other))) = (self.has_barrier, first, other) {
            return Err(SpeedError::OutOfReach {
                vnode: self.vnode.clone(),
                method: Method::Hogs,
                speed,
                why: format!(
                    "as published all its cores have one speed, but CPU {pu} has the speed {other}"
                ),
                hint: "use the variant corrected".to_owned(),
            });
        }
        let slowest = speeds.iter().map(|(_, speed)| *speed).min();
        if let Some(speed) = slowest.filter(|speed| speed.millionths() < self.floor) {
            let least = rt_throttle::describe(self.floor);
            return Err(SpeedError::OutOfReach {
                vnode: self.vnode.clone(),
                method: Method::Hogs,
                speed,
                why: format!(
                    "the kernel reserves {least} of the time for threads that are not real-time"
                ),
                hint: format!("use {least} or more, or use stall"),
            });
        }
        Ok(())
    }

    fn set(&mut self, speeds: &[(PuId, Speed)]) -> Result<(), SpeedError> {
        self.check_speeds(speeds)?;
        for (pu, speed) in speeds {
            if let Some(burner) = self.burners.get(pu) {
                let spent = self.costs.entry(*pu).or_default();
                let share = spent.cost.share(steal_of(*speed), self.period_ns);
                spent.change(share, burner.burned_time().1);
                burner.set_steal(share);
            }
        }
        self.extend_deadlines();
        Ok(())
    }

    fn tick(&mut self, now_ns: u64) -> Result<u64, SpeedError> {
        self.extend_deadlines();
        Ok(now_ns.saturating_add(HEARTBEAT_NS))
    }

    fn observe(&self) -> Result<Vec<CoreAccount>, SpeedError> {
        let wanted_ns = SystemClock.now_ns().saturating_sub(self.started_ns);
        Ok(self
            .burners
            .iter()
            .map(|(pu, burner)| {
                let (burned_ns, turns) = burner.burned_time();
                let spent = self.costs.get(pu).copied().unwrap_or_default();
                let taken_ns = burned_ns.saturating_add_signed(spent.extras(turns));
                CoreAccount { pu: *pu, wanted_ns, taken_ns, ran_ns: None }
            })
            .collect())
    }

    fn uncalibrated_cpus(&self) -> CpuSet {
        let pus = self.burners.keys().copied();
        pus.filter(|pu| {
            !self.is_measured || self.costs.get(pu).copied().unwrap_or_default().is_unknown()
        })
        .collect()
    }

    fn notes(&self) -> Vec<String> {
        let strayed = self.burners.iter().filter_map(|(pu, burner)| burner.note(*pu));
        self.burners
            .keys()
            .map(|pu: &PuId| {
                if !self.is_measured {
                    let period = in_us(self.period_ns);
                    return format!(
                        "CPU {pu}: one burn every {period}, whose cost has not been measured"
                    );
                }
                let spent = self.costs.get(pu).copied().unwrap_or_default();
                format!("CPU {pu}: one burn every {}, {}", in_us(self.period_ns), spent.describe())
            })
            .chain(strayed)
            .collect()
    }

    fn stop(&mut self) -> Result<(), SpeedError> {
        burner::stop(self.burners.values_mut());
        Ok(())
    }
}
