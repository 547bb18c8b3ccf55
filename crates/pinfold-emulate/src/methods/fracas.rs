//! `fracas`: a burner on each core in a sibling group of the vnode's tasks, controlled by weights.
//! Fracas of Buchert 2011 §III.B.
//!
//! On a core where both groups are runnable, the vnode gets `pr_all / (pr_all + pr_burn)`. The
//! groups are nested in the vnode's group as in the paper's Fig. 4. A step sets the scheduler's
//! slices to the shortest value that the kernel accepts. As with every CPU budget, short bursts are
//! not slowed down.
//!
//! As published: one group for the tasks of all cores and one around each burner. It fails with
//! several tasks (Fig. 6): the kernel divides the weight of a group by the number of CPUs on which
//! it runs, so that on n busy cores the tasks get about (μ/n) / (μ/n + 1 − μ).
//! With a common burner group the weights of both are divided, and one task on several cores is too
//! fast instead. Corrected: a pair of groups per core and a thread balancer, which works for any
//! number of tasks.

use crate::node::Node;
use pinfold_host::{Clock, Host, HostError, HostMut, paths};
use pinfold_model::text::count_noun;
use pinfold_model::{Method, PuId, Speed};

use super::MethodContext;
use super::preparation::tunables;
use super::thread_balancer::ThreadBalancer;
use crate::emulation::{CoreAccount, Emulation};
use crate::helper_spawner::Burner;
use crate::vnode_cgroup::{Part, VnodeCgroup};
use crate::{HelperSpawner, SpeedError};

/// A burner that ends earlier would also end after a restart.
const LEAST_LIFE_NS: u64 = crate::units::S;

/// Range of weights of a cgroup version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Scale {
    least: u64,
    most: u64,
    /// True if the kernel scales 100 to 1,024 and rounds (`sched_weight_from_cgroup`).
    is_percent: bool,
}

const SHARES: Scale = Scale { least: 2, most: 262_144, is_percent: false };
const WEIGHTS: Scale = Scale { least: 1, most: 10_000, is_percent: true };

impl Scale {
    /// The scheduler's internal weight for a cgroup weight.
    fn effective(self, weight: u64) -> u64 {
        if self.is_percent { (weight * 1024 + 50) / 100 } else { weight }
    }

    /// The weights of vnode and burner that give the best approximation of a speed, and the largest
    /// of those; `None` if the range is too narrow.
    fn pair(self, speed: Speed) -> Option<(u64, u64)> {
        let (mine, other) = (u64::from(speed.millionths()), super::steal_of(speed));
        let (heavy, light) = (mine.max(other), mine.min(other));
        if light == 0 {
            return None;
        }
        let error = |large: u64, small: u64| {
            let (large, small) = (self.effective(large), self.effective(small));
            // small / (large + small) in units of 1e-15.
            let got = u128::from(small) * 1_000_000_000_000_000 / u128::from(large + small);
            got.abs_diff(u128::from(light) * 1_000_000_000)
        };
        let mut best = None;
        for large in (self.most / 2..=self.most).rev() {
            let small = (large * light + heavy / 2) / heavy;
            if small < self.least {
                continue;
            }
            let error = error(large, small);
            if best.is_none_or(|(least, _, _)| error < least) {
                best = Some((error, large, small));
            }
        }
        let (_, large, small) = best?;
        Some(if mine >= other { (large, small) } else { (small, large) })
    }
}

pub(super) struct Fracas<'h> {
    vnode: String,
    host: &'h dyn HostMut,
    clock: &'h dyn Clock,
    spawner: &'h dyn HelperSpawner,
    parts: Vec<Pair>,
    thread_balancer: ThreadBalancer,
    is_over: bool,
    slices: String,
    // How the last restarted burner ended, and the number of restarts.
    lost: Option<(String, u64)>,
}

struct Pair {
    part: Part,
    weights: Option<(u64, u64)>,
    burners: Vec<Burning>,
}

/// A burner, its group and its start time.
struct Burning {
    pu: PuId,
    group: String,
    burner: Box<dyn Burner>,
    since_ns: u64,
}

impl Burning {
    fn start(
        spawner: &dyn HelperSpawner,
        now_ns: u64,
        group: &str,
        pu: PuId,
    ) -> Result<Self, SpeedError> {
        let burner = spawner.spawn_burner(&[paths::cgroup_procs(group)], pu)?;
        Ok(Self { pu, group: group.to_owned(), burner, since_ns: now_ns })
    }
}

/// What it starts and writes while its vnode is active.
pub(super) fn describe(_: &Node, cgroup: &VnodeCgroup) -> Vec<String> {
    cgroup
        .parts
        .iter()
        .map(|part| {
            let burn = part.burns.join(" and ");
            format!(
                "start a burner process on each of CPU {} in {burn}, and write weights to it and \
                 to {}",
                part.pus, part.cpu
            )
        })
        .collect()
}

pub(super) fn start<'h>(context: &MethodContext<'h, '_>) -> Result<Fracas<'h>, SpeedError> {
    let with_burners = context.cgroup.parts.iter().filter(|part| !part.burns.is_empty());
    let parts: Vec<Pair> = with_burners
        .map(|part| Pair { part: part.clone(), weights: None, burners: Vec::new() })
        .collect();
    if parts.is_empty() {
        return Err(context.unavailable("the vnode has no groups in the hierarchy of cpu"));
    }
    Ok(Fracas {
        vnode: context.node.name.clone(),
        host: context.host,
        clock: context.clock,
        spawner: context.spawner,
        parts,
        thread_balancer: ThreadBalancer::new(context.cgroup, context.node.period()),
        is_over: false,
        slices: slices(context.host)?,
        lost: None,
    })
}

fn slices(host: &dyn Host) -> Result<String, HostError> {
    let mut reported = Vec::new();
    for path in tunables(host) {
        let name = path.rsplit('/').next().unwrap_or(&path).to_owned();
        reported.push(format!("{name} is {}", host.read_text(&path)?.trim()));
    }
    Ok(if reported.is_empty() {
        "the slices of the scheduler keep the kernel's default: debugfs does not show them"
            .to_owned()
    } else {
        reported.join(", ")
    })
}

impl Fracas<'_> {
    /// The weights of a pair; `None` for full speed.
    fn weights(
        &self,
        part: &Part,
        speeds: &[(PuId, Speed)],
    ) -> Result<Option<(u64, u64)>, SpeedError> {
        let mut of_part = speeds.iter().filter(|(pu, _)| part.pus.contains(*pu));
        let Some((_, speed)) = of_part.next() else { return Ok(None) };
        if let Some((pu, other)) = of_part.find(|(_, other)| other != speed) {
            let why = format!(
                "with one group for all cores there is one speed, but CPU {pu} has the speed \
                 {other}"
            );
            return Err(self.out_of_reach(*speed, why, "use the variant corrected"));
        }
        if *speed == Speed::FULL {
            return Ok(None);
        }
        let scale = if part.unified { WEIGHTS } else { SHARES };
        match scale.pair(*speed) {
            Some(pair) => Ok(Some(pair)),
            None => {
                let (least, most) = (scale.least, scale.most);
                let why = format!("cgroup weights range from {least} to {most} on this host");
                Err(self.out_of_reach(*speed, why, "use a speed that is further from 0 and 100%"))
            }
        }
    }

    fn out_of_reach(&self, speed: Speed, why: String, hint: &str) -> SpeedError {
        SpeedError::OutOfReach {
            vnode: self.vnode.clone(),
            method: Method::Fracas,
            speed,
            why,
            hint: hint.to_owned(),
        }
    }
}

impl Pair {
    fn apply(
        &mut self,
        host: &dyn HostMut,
        spawner: &dyn HelperSpawner,
        now_ns: u64,
        weights: Option<(u64, u64)>,
    ) -> Result<(), SpeedError> {
        self.weights = weights;
        let Some((mine, other)) = weights else {
            self.burners.clear();
            return Ok(());
        };
        let file = if self.part.unified { paths::cpu_weight } else { paths::cpu_shares };
        host.write(&file(&self.part.cpu), mine.to_string().as_bytes())?;
        for group in &self.part.burns {
            host.write(&file(group), other.to_string().as_bytes())?;
        }
        if self.burners.is_empty() {
            let common = self.part.burns.iter().cycle();
            for (pu, group) in self.part.pus.iter().zip(common) {
                self.burners.push(Burning::start(spawner, now_ns, group, pu)?);
            }
        }
        Ok(())
    }

    /// Restarts burners that have ended, because without them the vnode is too fast. Returns how
    /// the last one ended, and the number of restarts. A burner that ended within `LEAST_LIFE_NS`
    /// is an error.
    fn restart_ended(
        &mut self,
        spawner: &dyn HelperSpawner,
        now_ns: u64,
    ) -> Result<Option<(String, u64)>, SpeedError> {
        let mut lost: Option<(String, u64)> = None;
        for one in &mut self.burners {
            let Err(error) = one.burner.check() else { continue };
            if now_ns.saturating_sub(one.since_ns) < LEAST_LIFE_NS {
                return Err(error);
            }
            *one = Burning::start(spawner, now_ns, &one.group, one.pu)?;
            let before = lost.map_or(0, |(_, count)| count);
            lost = Some((format!("CPU {}: {error}", one.pu), before + 1));
        }
        Ok(lost)
    }
}

impl Emulation for Fracas<'_> {
    fn check_speeds(&self, speeds: &[(PuId, Speed)]) -> Result<(), SpeedError> {
        self.parts.iter().try_for_each(|pair| self.weights(&pair.part, speeds).map(|_| ()))
    }

    fn set(&mut self, speeds: &[(PuId, Speed)]) -> Result<(), SpeedError> {
        let weights = self.parts.iter().map(|pair| self.weights(&pair.part, speeds));
        let weights = weights.collect::<Result<Vec<_>, _>>()?;
        for (pair, weights) in self.parts.iter_mut().zip(weights) {
            pair.apply(self.host, self.spawner, self.clock.now_ns(), weights)?;
        }
        Ok(())
    }

    fn tick(&mut self, now_ns: u64) -> Result<u64, SpeedError> {
        for pair in &mut self.parts {
            if let Some((how, count)) = pair.restart_ended(self.spawner, now_ns)? {
                let before = self.lost.take().map_or(0, |(_, count)| count);
                self.lost = Some((how, before + count));
            }
        }
        self.thread_balancer.look(self.host, self.clock, now_ns)
    }

    /// Empty: the burned time does not show how much the vnode wanted.
    fn observe(&self) -> Result<Vec<CoreAccount>, SpeedError> {
        Ok(Vec::new())
    }

    fn notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = self
            .parts
            .iter()
            .map(|pair| {
                let weights = pair.weights.map_or("no burner".to_owned(), |(mine, other)| {
                    format!("weight {mine} against {other} of the burner")
                });
                format!("CPU {}: {weights}", pair.part.pus)
            })
            .collect();
        notes.push(self.slices.clone());
        notes.push(format!("{} threads were distributed", self.thread_balancer.moved));
        if let Some((how, count)) = &self.lost {
            notes.push(format!(
                "{} restarted, the last because of {how}",
                count_noun(*count, "burner")
            ));
        }
        notes
    }

    fn stop(&mut self) -> Result<(), SpeedError> {
        for pair in &mut self.parts {
            pair.burners.clear();
        }
        if std::mem::replace(&mut self.is_over, true) {
            return Ok(());
        }
        self.thread_balancer.gather(self.host)
    }
}

impl Drop for Fracas<'_> {
    fn drop(&mut self) {
        match self.stop() {
            Ok(()) | Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn speed(millionths: u32) -> Speed {
        Speed::from_millionths(millionths).unwrap()
    }

    #[test]
    fn weights_are_the_heaviest_that_hit() {
        assert_eq!(SHARES.pair(speed(500_000)), Some((262_144, 262_144)));
        assert_eq!(SHARES.pair(speed(250_000)), Some((87_381, 262_143)));
        assert_eq!(SHARES.pair(speed(900_000)), Some((262_143, 29_127)));
        // 100 is 1,024 in the scheduler: a multiple of 25 is converted without rounding.
        assert_eq!(WEIGHTS.pair(speed(500_000)), Some((10_000, 10_000)));
        assert_eq!(WEIGHTS.effective(25), 256);
        assert_eq!(WEIGHTS.effective(1), 10);
    }

    #[test]
    fn every_speed_of_the_bench_is_hit_to_a_hundredth_of_a_point() {
        for scale in [SHARES, WEIGHTS] {
            for percent in [5, 10, 25, 40, 50, 60, 75, 90, 95] {
                let (mine, other) = scale.pair(speed(percent * 10_000)).unwrap();
                assert!((scale.least..=scale.most).contains(&mine.min(other)));
                let (mine, other) = (scale.effective(mine), scale.effective(other));
                let got = mine * 1_000_000 / (mine + other);
                assert!(got.abs_diff(u64::from(percent) * 10_000) <= 100, "{percent}: {got}");
            }
        }
    }

    #[test]
    fn the_range_bounds_the_speed() {
        assert_eq!(WEIGHTS.pair(speed(49)), None);
        assert!(WEIGHTS.pair(speed(100)).is_some());
        assert_eq!(SHARES.pair(speed(5)), None);
        assert!(SHARES.pair(speed(8)).is_some());
        assert_eq!(SHARES.pair(Speed::FULL), None);
    }
}
