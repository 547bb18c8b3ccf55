//! `freq`: sets the hardware frequency nearest to the requested speed.
//!
//! <https://docs.kernel.org/admin-guide/pm/cpufreq.html>

use super::Facts;
use crate::node::Node;
use crate::vnode_cgroup::VnodeCgroup;
use pinfold_host::HostMut;
use pinfold_model::{PuId, Speed};

use super::{MethodContext, freq_calibration};
use crate::SpeedError;
use crate::emulation::{CoreAccount, Emulation};
use crate::frequency::{Domain, Level, WHOLE};

/// Interval at which the frequency is written again, in case another program changed it.
const AGAIN_NS: u64 = crate::units::S;

pub(super) struct Freq<'h> {
    host: &'h dyn HostMut,
    domains: Vec<(Domain, Option<(Level, Speed)>)>,
    is_over: bool,
}

/// Why a host does not support it.
pub(super) fn refuse(facts: &Facts) -> Option<String> {
    let missing = "the kernel has no cpufreq driver for these CPUs";
    (!facts.has_cpufreq).then(|| missing.to_owned()).or_else(|| facts.no_userspace.clone())
}

/// What it starts and writes while its vnode is active.
pub(super) fn describe(node: &Node, _: &VnodeCgroup) -> Vec<String> {
    vec![format!("set the frequency of CPU {}", node.pus())]
}

pub(super) fn start<'h>(context: &MethodContext<'h, '_>) -> Result<Freq<'h>, SpeedError> {
    let domains = freq_calibration::ready(context)?;
    if domains.is_empty() {
        return Err(context.unavailable("the kernel has no cpufreq driver for these CPUs"));
    }
    Ok(Freq {
        host: context.host,
        domains: domains.into_iter().map(|domain| (domain, None)).collect(),
        is_over: false,
    })
}

/// The level with the nearest speed; the faster one of two equally near levels.
fn nearest(levels: &[Level], speed: Speed) -> Option<Level> {
    let wanted = u64::from(speed.millionths()) * (WHOLE / 1_000_000);
    levels.iter().rev().min_by_key(|level| level.share.abs_diff(wanted)).copied()
}

impl Freq<'_> {
    fn write(&self) -> Result<(), SpeedError> {
        for (domain, level) in &self.domains {
            if let Some((level, _)) = level {
                domain.set(self.host, level.khz)?;
            }
        }
        Ok(())
    }
}

impl Emulation for Freq<'_> {
    /// All cores of a domain have the same speed; that was checked before.
    fn set(&mut self, speeds: &[(PuId, Speed)]) -> Result<(), SpeedError> {
        for (domain, level) in &mut self.domains {
            let speed = speeds.iter().find(|(pu, _)| domain.pus.contains(*pu));
            let Some((_, speed)) = speed else { continue };
            let found = nearest(&domain.levels(*speed), *speed);
            *level = found.map(|found| (found, *speed));
        }
        self.write()
    }

    fn tick(&mut self, now_ns: u64) -> Result<u64, SpeedError> {
        self.write()?;
        Ok(now_ns.saturating_add(AGAIN_NS))
    }

    /// Empty: the kernel does not account for the effect of a frequency.
    fn observe(&self) -> Result<Vec<CoreAccount>, SpeedError> {
        Ok(Vec::new())
    }

    fn notes(&self) -> Vec<String> {
        let note = |(domain, level): &(Domain, Option<(Level, Speed)>)| {
            let (level, speed) = (*level)?;
            let off =
                i64::try_from(level.share / 1_000).unwrap_or(0) - i64::from(speed.millionths());
            let sign = if off < 0 { "-" } else { "+" };
            Some(format!(
                "CPU {}: {} MHz, which is {sign}{}.{:02} points off {speed}",
                domain.pus,
                level.khz / 1_000,
                off.unsigned_abs() / 10_000,
                off.unsigned_abs() % 10_000 / 100
            ))
        };
        let measured = self.domains.iter().filter_map(|(domain, _)| domain.note());
        self.domains.iter().filter_map(note).chain(measured).collect()
    }

    fn stop(&mut self) -> Result<(), SpeedError> {
        if std::mem::replace(&mut self.is_over, true) {
            return Ok(());
        }
        for (domain, _) in &self.domains {
            domain.set_full(self.host)?;
        }
        Ok(())
    }
}

impl Drop for Freq<'_> {
    fn drop(&mut self) {
        match self.stop() {
            Ok(()) | Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_level_is_the_nearest_in_what_it_gives() {
        let levels = [level(1_200_000), level(2_000_000), level(2_400_000)];
        check(&levels, 10_000, 1_200_000);
        check(&levels, 500_000, 1_200_000);
        check(&levels, 875_000, 2_000_000);
        check(&levels, 1_000_000, 2_400_000);
        assert_eq!(nearest(&[], Speed::FULL), None);
    }

    fn check(levels: &[Level], millionths: u32, khz: u64) {
        let speed = Speed::from_millionths(millionths).unwrap();
        assert_eq!(nearest(levels, speed).unwrap().khz, khz, "{speed}");
    }

    fn level(khz: u64) -> Level {
        Level { khz, share: khz * WHOLE / 2_400_000 }
    }
}
