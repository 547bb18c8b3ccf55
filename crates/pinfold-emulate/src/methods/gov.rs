//! `gov`: alternates between the two hardware frequencies around the requested one; below the
//! lowest frequency it uses the freezer as frequency zero. CPU-Gov of Buchert 2011 §III.C.
//!
//! `f = (f_L t_L + f_H t_H) / (t_L + t_H)`: 2.1 GHz is 2.0 GHz for 75 % and 2.4 GHz for 25 % of the
//! time. Each period starts at a multiple of the period on the monotonic clock, with the higher
//! frequency. The delay of a switch is compensated in the next period. On a host without cpufreq,
//! the only frequencies are full and zero.
//!
//! Freezing is asynchronous, so the method waits until it is complete. A watchdog thaws the vnode
//! if its supervisor is killed or stopped.

mod freezer;
mod freq_domain;

use super::Facts;
use crate::node::Node;
use crate::vnode_cgroup::VnodeCgroup;
use pinfold_host::{Clock, HostMut};
use pinfold_model::text::{count_noun, cpus_text, select_verb};
use pinfold_model::{Method, PuId, Speed};
use std::iter::Flatten;

use self::freezer::Freezer;
use self::freq_domain::{FreqSchedule, FrequencyPair, mix};
use super::{HEARTBEAT_NS, MethodContext, freq_calibration};
use crate::emulation::{CoreAccount, Emulation};
use crate::frequency::{Level, WHOLE};
use crate::helper_spawner::Watchdog;
use crate::units::{MS, in_us};
use crate::{Cleanup, HelperSpawner, SpeedError};

/// A switch that is due within this time also counts as the next heartbeat, because each wake-up
/// takes tens of microseconds.
const SOON_NS: u64 = 60 * MS;

pub(super) struct Gov<'h> {
    vnode: String,
    host: &'h dyn HostMut,
    clock: &'h dyn Clock,
    spawner: &'h dyn HelperSpawner,
    period_ns: u64,
    freezer: Option<Freezer>,
    sentinel: Option<Box<dyn Watchdog>>,
    schedules: Vec<FreqSchedule>,
    is_over: bool,
}

/// Why a host does not support it.
pub(super) fn refuse(facts: &Facts) -> Option<String> {
    super::refuse_freezer(facts).or_else(|| facts.no_userspace.clone())
}

/// What it starts and writes while its vnode is active.
pub(super) fn describe(node: &Node, cgroup: &VnodeCgroup) -> Vec<String> {
    vec![format!(
        "alternate CPU {} between two frequencies every {}, or freeze and thaw {}",
        node.pus(),
        in_us(node.period()),
        cgroup.freezer.as_deref().unwrap_or_default()
    )]
}

pub(super) fn start<'h>(context: &MethodContext<'h, '_>) -> Result<Gov<'h>, SpeedError> {
    let pus = context.node.pus();
    let domains = freq_calibration::ready(context)?;
    let freezer = context
        .cgroup
        .freezer
        .as_ref()
        .map(|group| Freezer::new(group, is_unified(context, group)));
    if domains.is_empty() && freezer.is_none() {
        return Err(context.unavailable("the host has neither cpufreq nor a freezer"));
    }
    let now_ns = context.clock.now_ns();
    let lanes = if domains.is_empty() {
        vec![FreqSchedule::new(None, pus, now_ns)]
    } else {
        domains
            .into_iter()
            .map(|domain| {
                let mine = domain.pus.intersection(&pus);
                FreqSchedule::new(Some(domain), mine, now_ns)
            })
            .collect()
    };
    Ok(Gov {
        vnode: context.node.name.clone(),
        host: context.host,
        clock: context.clock,
        spawner: context.spawner,
        period_ns: context.node.period(),
        freezer,
        sentinel: None,
        schedules: lanes,
        is_over: false,
    })
}

fn is_unified(context: &MethodContext<'_, '_>, group: &String) -> bool {
    context.cgroup.unified.contains(group)
}

impl Gov<'_> {
    /// How each frequency domain reaches its speed, or why it cannot.
    fn mixes(
        &self,
        speeds: &[(PuId, Speed)],
    ) -> Result<Vec<Option<(FrequencyPair, Speed)>>, SpeedError> {
        let mut mixes = Vec::new();
        for lane in &self.schedules {
            let mut mine = speeds.iter().filter(|(pu, _)| lane.pus.contains(*pu));
            let Some((_, speed)) = mine.next() else {
                mixes.push(None);
                continue;
            };
            if let Some((pu, other)) = mine.find(|(_, other)| other != speed) {
                let why = format!(
                    "CPUs {} are slowed together, but CPU {pu} has the speed {other}",
                    lane.pus
                );
                return Err(self.out_of_reach(
                    *speed,
                    why,
                    "give all of them the same speed, or use stall",
                ));
            }
            let full = Level { khz: 0, share: WHOLE };
            let levels = lane.domain.as_ref().map_or(vec![full], |domain| domain.levels(*speed));
            mixes.push(Some((mix(&levels, *speed), *speed)));
        }
        if let Some((frozen, speed)) =
            reported_mixes(&mixes).find(|(mix, _)| mix.is_frozen_at_times())
        {
            if self.freezer.is_none() {
                let why = "it is below the lowest frequency, and there is no freezer".to_owned();
                return Err(self.out_of_reach(*speed, why, "use a higher speed, or use stall"));
            }
            if let Some((_, other)) =
                reported_mixes(&mixes).find(|(mix, _)| mix.high_share != frozen.high_share)
            {
                let why = format!(
                    "below the lowest frequency all cores of a vnode are frozen together, but \
                     other cores of the vnode need {other}"
                );
                return Err(self.out_of_reach(
                    *speed,
                    why,
                    "give all of them the same speed, or use stall",
                ));
            }
        }
        Ok(mixes)
    }

    fn out_of_reach(&self, speed: Speed, why: String, hint: &str) -> SpeedError {
        SpeedError::OutOfReach {
            vnode: self.vnode.clone(),
            method: Method::Gov,
            speed,
            why,
            hint: hint.to_owned(),
        }
    }

    fn freeze(&mut self, wanted: bool) -> Result<(), SpeedError> {
        match &mut self.freezer {
            Some(freezer) => freezer.set(self.host, self.clock, wanted),
            None => Ok(()),
        }
    }

    /// Switches the frequency domains that are due.
    fn switch(&mut self, now_ns: u64) -> Result<(), SpeedError> {
        for at in 0..self.schedules.len() {
            if now_ns < self.schedules[at].until_ns {
                continue;
            }
            let Some(phase) = self.schedules[at].next(now_ns, self.period_ns) else { continue };
            match phase {
                Some(level) => {
                    if let Some(domain) = &self.schedules[at].domain {
                        domain.set(self.host, level.khz)?;
                    }
                    self.freeze(false)?;
                }
                None => self.freeze(true)?,
            }
            self.schedules[at].enter(self.clock.now_ns(), phase);
        }
        Ok(())
    }
}

fn reported_mixes(
    mixes: &[Option<(FrequencyPair, Speed)>],
) -> Flatten<std::slice::Iter<'_, Option<(FrequencyPair, Speed)>>> {
    mixes.iter().flatten()
}

impl Emulation for Gov<'_> {
    fn check_speeds(&self, speeds: &[(PuId, Speed)]) -> Result<(), SpeedError> {
        self.mixes(speeds).map(|_| ())
    }

    fn set(&mut self, speeds: &[(PuId, Speed)]) -> Result<(), SpeedError> {
        let mixes = self.mixes(speeds)?;
        let freezes = mixes.iter().flatten().any(|(mix, _)| mix.is_frozen_at_times());
        if let Some(freezer) = self.freezer.as_ref().filter(|_| freezes && self.sentinel.is_none())
        {
            let files = vec![freezer.thaw()];
            self.sentinel = Some(self.spawner.spawn_watchdog(Cleanup::Thaw { files })?);
        }
        for (lane, mix) in self.schedules.iter_mut().zip(mixes) {
            if let Some((mix, speed)) = mix {
                lane.set(mix, speed);
            }
        }
        self.switch(self.clock.now_ns())
    }

    fn tick(&mut self, now_ns: u64) -> Result<u64, SpeedError> {
        if let Some(sentinel) = &mut self.sentinel {
            sentinel.beat()?;
        }
        self.switch(now_ns)?;
        let next = self.schedules.iter().map(|lane| lane.until_ns).min().unwrap_or(u64::MAX);
        let is_soon = next <= now_ns.saturating_add(SOON_NS);
        Ok(if is_soon { next } else { now_ns.saturating_add(HEARTBEAT_NS) })
    }

    /// Computed from the frequencies that were set and the frozen time.
    fn observe(&self) -> Result<Vec<CoreAccount>, SpeedError> {
        let now_ns = self.clock.now_ns();
        let mut accounts = Vec::new();
        for lane in &self.schedules {
            let (wanted_ns, taken_ns) = lane.account(now_ns);
            accounts.extend(lane.pus.iter().map(|pu| CoreAccount {
                pu,
                wanted_ns,
                taken_ns,
                ran_ns: None,
            }));
        }
        accounts.sort_by_key(|account| account.pu);
        Ok(accounts)
    }

    fn notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = self.schedules.iter().filter_map(FreqSchedule::note).collect();
        notes.extend(self.schedules.iter().filter_map(|lane| lane.domain.as_ref()?.note()));
        if self.schedules.iter().all(|lane| lane.domain.is_none()) {
            notes.push("this host has no cpufreq: the freezer alone slows the vnode".to_owned());
        }
        for lane in &self.schedules {
            let others = lane.domain.as_ref().map(|domain| domain.pus.difference(&lane.pus));
            if let Some(others) = others.filter(|others| !others.is_empty()) {
                let share = select_verb(others.len(), "shares", "share");
                notes.push(format!("{} {share} this frequency", cpus_text(&others)));
            }
        }
        if let Some(late) =
            self.freezer.as_ref().map(|freezer| freezer.late).filter(|late| *late > 0)
        {
            notes.push(format!("a task did not freeze in time ({})", count_noun(late, "time")));
        }
        notes
    }

    fn stop(&mut self) -> Result<(), SpeedError> {
        if std::mem::replace(&mut self.is_over, true) {
            return Ok(());
        }
        let mut failed = self.freeze(false).err();
        for lane in &self.schedules {
            if let Some(domain) = &lane.domain {
                failed = failed.or(domain.set_full(self.host).err().map(SpeedError::from));
            }
        }
        self.sentinel = None;
        failed.map_or(Ok(()), Err)
    }
}

impl Drop for Gov<'_> {
    fn drop(&mut self) {
        match self.stop() {
            Ok(()) | Err(_) => {}
        }
    }
}
