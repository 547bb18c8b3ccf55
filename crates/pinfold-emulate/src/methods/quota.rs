//! `quota`: CFS bandwidth, with one cgroup per core.
//!
//! A quota for the whole vnode would let one thread use the share of all cores. Therefore each core
//! has a group with its own quota, and a thread balancer distributes the threads. The period is
//! much longer than the 5 ms slices in which the kernel distributes run time to CPUs
//! (`sched_cfs_bandwidth_slice_us`), because a quota with a period near the slice is not accurate.
//! A new group has no burst (`cpu.max.burst` is 0). Still, a quota is a budget and not a slower
//! CPU: a thread that slept spends its unused budget, so short bursts run at full speed.
//!
//! As published: one quota for the whole group. <https://docs.kernel.org/scheduler/sched-bwc.html>

use crate::node::Node;
use pinfold_host::{Clock, HostError, HostMut, cpu_groups, paths};
use pinfold_model::{Method, PuId, Speed};

use super::MethodContext;
use super::thread_balancer::{LOOK_NS, ThreadBalancer};
use crate::SpeedError;
use crate::emulation::{CoreAccount, Emulation};
use crate::units::{US, in_us};
use crate::vnode_cgroup::{Part, VnodeCgroup};

/// The kernel accepts no quota below a millisecond (`min_cfs_quota_period`).
const LEAST_US: u64 = 1_000;

pub(super) struct Quota<'h> {
    vnode: String,
    host: &'h dyn HostMut,
    clock: &'h dyn Clock,
    period_us: u64,
    // Each with its quota in microseconds; `None` for no limit.
    parts: Vec<(Part, Option<u64>)>,
    dealer: ThreadBalancer,
    is_over: bool,
}

/// What it starts and writes while its vnode is active.
pub(super) fn describe(node: &Node, cgroup: &VnodeCgroup) -> Vec<String> {
    let each = in_us(node.period());
    cgroup.parts.iter().map(|part| format!("write a quota per {each} to {}", part.cpu)).collect()
}

pub(super) fn start<'h>(context: &MethodContext<'h, '_>) -> Result<Quota<'h>, SpeedError> {
    if context.cgroup.parts.is_empty() {
        return Err(context.unavailable("the vnode has no groups in the hierarchy of cpu"));
    }
    let quota = Quota {
        vnode: context.node.name.clone(),
        host: context.host,
        clock: context.clock,
        period_us: context.node.period() / US,
        parts: context.cgroup.parts.iter().map(|part| (part.clone(), None)).collect(),
        dealer: ThreadBalancer::new(context.cgroup, LOOK_NS),
        is_over: false,
    };
    for (part, _) in quota.parts.iter().filter(|(part, _)| !part.unified) {
        let period = quota.period_us.to_string();
        quota.host.write(&paths::cpu_cfs_period(&part.cpu), period.as_bytes())?;
    }
    Ok(quota)
}

impl Quota<'_> {
    /// Run time of a part per period, in microseconds; `None` for full speed.
    fn quota_us(&self, part: &Part, speeds: &[(PuId, Speed)]) -> Result<Option<u64>, SpeedError> {
        let of_part = speeds.iter().filter(|(pu, _)| part.pus.contains(*pu));
        let speeds: Vec<Speed> = of_part.map(|(_, speed)| *speed).collect();
        let Some(slowest) = speeds.iter().min().filter(|slowest| **slowest != Speed::FULL) else {
            return Ok(None);
        };
        let sum: u64 = speeds.iter().map(|speed| u64::from(speed.millionths())).sum();
        let quota_us = self.period_us * sum / 1_000_000;
        if quota_us < LEAST_US {
            return Err(SpeedError::OutOfReach {
                vnode: self.vnode.clone(),
                method: Method::Quota,
                speed: *slowest,
                why: format!(
                    "that is {quota_us} µs of each {} µs, but the kernel accepts no quota below \
                     {LEAST_US} µs",
                    self.period_us
                ),
                hint: "use a higher speed, a longer period, or stall".to_owned(),
            });
        }
        Ok(Some(quota_us))
    }

    fn write(&self, part: &Part, quota_us: Option<u64>) -> Result<(), HostError> {
        let quota = quota_us.map(|quota| quota.to_string());
        let (path, value) = if part.unified {
            let quota = quota.unwrap_or_else(|| "max".to_owned());
            (paths::cpu_max(&part.cpu), format!("{quota} {}", self.period_us))
        } else {
            (paths::cpu_cfs_quota(&part.cpu), quota.unwrap_or_else(|| "-1".to_owned()))
        };
        self.host.write(&path, value.as_bytes())
    }
}

impl Emulation for Quota<'_> {
    fn check_speeds(&self, speeds: &[(PuId, Speed)]) -> Result<(), SpeedError> {
        self.parts.iter().try_for_each(|(part, _)| self.quota_us(part, speeds).map(|_| ()))
    }

    fn set(&mut self, speeds: &[(PuId, Speed)]) -> Result<(), SpeedError> {
        let quotas = self.parts.iter().map(|(part, _)| self.quota_us(part, speeds));
        let quotas = quotas.collect::<Result<Vec<_>, _>>()?;
        for (at, quota_us) in quotas.into_iter().enumerate() {
            self.write(&self.parts[at].0, quota_us)?;
            self.parts[at].1 = quota_us;
        }
        Ok(())
    }

    fn tick(&mut self, now_ns: u64) -> Result<u64, SpeedError> {
        self.dealer.look(self.host, self.clock, now_ns)
    }

    /// The kernel's statistics of groups with a single core; version 1 only has them if `cpuacct`
    /// is in the same hierarchy.
    fn observe(&self) -> Result<Vec<CoreAccount>, SpeedError> {
        let mut accounts = Vec::new();
        for (part, _) in &self.parts {
            let Some(pu) = part.pu() else { return Ok(Vec::new()) };
            let text = self.host.read_text(&paths::cpu_stat(&part.cpu))?;
            let taken_ns = cpu_groups::throttling(&text).map(|throttling| throttling.ns);
            let ran_ns = if part.unified {
                field(&text, "usage_usec").map(|us| us.saturating_mul(US))
            } else {
                let path = paths::cpuacct_usage(&part.cpu);
                if !self.host.exists(&path) {
                    return Ok(Vec::new());
                }
                self.host.read_text(&path)?.trim().parse().ok()
            };
            let (Some(ran_ns), Some(taken_ns)) = (ran_ns, taken_ns) else { return Ok(Vec::new()) };
            let wanted_ns = ran_ns.saturating_add(taken_ns);
            accounts.push(CoreAccount { pu, wanted_ns, taken_ns, ran_ns: Some(ran_ns) });
        }
        Ok(accounts)
    }

    fn notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = self
            .parts
            .iter()
            .map(|(part, quota_us)| {
                let quota = quota_us.map_or("no limit".to_owned(), |quota| {
                    format!("{quota} µs of each {} µs", self.period_us)
                });
                format!("CPU {}: {quota}", part.pus)
            })
            .collect();
        notes.push(format!("{} threads were distributed", self.dealer.moved));
        notes
    }

    fn stop(&mut self) -> Result<(), SpeedError> {
        if std::mem::replace(&mut self.is_over, true) {
            return Ok(());
        }
        let mut failed = None;
        for (part, _) in &self.parts {
            match self.write(part, None) {
                Err(error) if !error.is_gone() => failed = failed.or(Some(error)),
                Ok(()) | Err(_) => {}
            }
        }
        let gathered = self.dealer.gather(self.host);
        failed.map_or(gathered, |error| Err(error.into()))
    }
}

impl Drop for Quota<'_> {
    fn drop(&mut self) {
        match self.stop() {
            Ok(()) | Err(_) => {}
        }
    }
}

/// The value of a field such as `usage_usec 1234`.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}
