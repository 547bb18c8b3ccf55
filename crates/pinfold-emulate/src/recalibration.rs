//! Measures a method's overhead again while a vnode runs.
//!
//! Once a minute, while the CPUs of a vnode are idle, a reference run of a sixth of a second is
//! made in its groups, at the vnode's current speed. It yields to every other task, and if one ran,
//! the result is discarded. A cost is thus updated without a change of the vnode's speed. A cost
//! that is unknown because the CPUs were busy at the start becomes known.

use std::collections::BTreeMap;

use pinfold_host::{Host, HostError};
use pinfold_model::{CpuSet, PuId};

use crate::calibrate::extra;
use crate::cost::Cost;
use crate::emulation::CoreShare;
use crate::helper_spawner::{BackgroundReferenceRun, HelperSpawner, Throughput};
use crate::record::{Ticks, share, ticks};

/// Delay of the first reference run, and interval of the next ones.
const FIRST_NS: u64 = 2_000_000_000;
const EACH_NS: u64 = 60_000_000_000;
/// Interval as long as the cost is not measured fully.
const EACH_BRIEF_NS: u64 = 10_000_000_000;
/// Delay until busy CPUs are checked again.
const AGAIN_NS: u64 = 1_000_000_000;
/// Maximum load of an idle CPU in addition to what the method takes, in millionths.
const IDLE: u32 = 100_000;

/// What the method takes on each core of a vnode.
pub(crate) type CoreShares = BTreeMap<PuId, CoreShare>;

/// The cores of a vnode, as its method takes from them now.
#[derive(Clone, Copy)]
pub(crate) struct TakenCores<'v> {
    /// Files through which a process enters the vnode's groups.
    pub(crate) entries: &'v [String],
    /// What the method takes.
    pub(crate) turns: &'v CoreShares,
}

pub(crate) struct Renewal {
    at_ns: u64,
    before: Option<Ticks>,
    running: Option<Running>,
}

struct Running {
    witness: Box<dyn BackgroundReferenceRun>,
    turns: CoreShares,
}

impl Renewal {
    pub(crate) fn new(now_ns: u64) -> Self {
        Self { at_ns: now_ns.saturating_add(FIRST_NS), before: None, running: None }
    }

    /// Ends a reference run and discards its result, because the speeds change.
    pub(crate) fn interrupt(&mut self) {
        self.running = None;
    }

    /// True during a reference run.
    pub(crate) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Does what is due; returns the costs of CPUs that were measured again.
    ///
    /// Errors do not affect the vnode: the measurement is repeated later.
    pub(crate) fn turn(
        &mut self,
        host: &dyn Host,
        spawner: &dyn HelperSpawner,
        taken: TakenCores<'_>,
        now_ns: u64,
    ) -> BTreeMap<PuId, Cost> {
        let TakenCores { entries, turns } = taken;
        if let Some(running) = &mut self.running {
            let found = match running.witness.poll() {
                Ok(None) => return BTreeMap::new(),
                Ok(Some(rates)) => renew(&running.turns, &rates),
                Err(_) => BTreeMap::new(),
            };
            self.running = None;
            let is_measured = turns.values().all(|turn| turn.is_measured);
            self.wait(now_ns, if is_measured { EACH_NS } else { EACH_BRIEF_NS });
            return found;
        }
        if now_ns < self.at_ns || turns.is_empty() {
            return BTreeMap::new();
        }
        if !self.is_idle(host, turns).unwrap_or(false) {
            self.at_ns = now_ns.saturating_add(AGAIN_NS);
            return BTreeMap::new();
        }
        let pus: CpuSet = turns.keys().copied().collect();
        match spawner.start_reference_run(entries, &pus, crate::calibrate::WITNESS_NS) {
            Ok(Some(witness)) => self.running = Some(Running { witness, turns: turns.clone() }),
            Ok(None) | Err(_) => self.wait(now_ns, EACH_NS),
        }
        BTreeMap::new()
    }

    fn wait(&mut self, now_ns: u64, ns: u64) {
        (self.at_ns, self.before) = (now_ns.saturating_add(ns), None);
    }

    /// Whether only the method used these CPUs since the last check.
    fn is_idle(&mut self, host: &dyn Host, turns: &CoreShares) -> Result<bool, HostError> {
        let now = ticks(host)?;
        let is_idle = self.before.as_ref().is_some_and(|before| {
            turns.iter().all(|(pu, turn)| match (before.get(pu), now.get(pu)) {
                (Some(then), Some(now)) => {
                    let taken = 1_000_000_u32.saturating_sub(turn.left);
                    now.1 > then.1 && share(*then, *now) <= taken.saturating_add(IDLE)
                }
                (_, _) => false,
            })
        });
        self.before = Some(now);
        Ok(is_idle)
    }
}

/// The costs of CPUs that the reference run had to itself.
fn renew(turns: &CoreShares, rates: &Throughput) -> BTreeMap<PuId, Cost> {
    turns
        .iter()
        .filter_map(|(pu, turn)| {
            let seen = rates.get(pu).filter(|seen| seen.had(turn.left))?;
            let span_ns = seen.windows.first()?.span_ns;
            let free = if turn.cost.free == 0 { 1_000_000 } else { turn.cost.free };
            let free_ns = span_ns.saturating_mul(free.into()) / 1_000_000;
            let extra_ns = extra(free_ns, seen.own_ns()?, turn.share, turn.period_ns)?;
            let cost = if turn.is_known {
                turn.cost.shift(turn.share.into(), extra_ns)
            } else {
                Cost { extra_ns: [extra_ns; 5], ..turn.cost }
            };
            cost.is_plausible().then_some((*pu, cost))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use pinfold_host::SnapshotHost;

    use super::*;
    use crate::helper_spawner::{Burner, ReferenceRun, Watchdog, Window};
    use crate::{Cleanup, SpeedError};

    const S: u64 = 1_000_000_000;
    const SPAN_NS: u64 = 20_000_000;

    struct Once(Option<Throughput>);

    impl BackgroundReferenceRun for Once {
        fn poll(&mut self) -> Result<Option<Throughput>, SpeedError> {
            Ok(self.0.take())
        }
    }

    /// A reference run with these millionths of its window as own time, and as CPU time.
    struct Witnesses(u64, u64);

    impl HelperSpawner for Witnesses {
        fn measure_throughput(
            &self,
            _: &[String],
            _: &CpuSet,
            _: u64,
        ) -> Result<Throughput, SpeedError> {
            panic!("nothing waits for a witness while vnodes run")
        }

        fn spawn_burner(&self, _: &[String], _: PuId) -> Result<Box<dyn Burner>, SpeedError> {
            panic!("no burner is asked for")
        }

        fn spawn_watchdog(&self, _: Cleanup) -> Result<Box<dyn Watchdog>, SpeedError> {
            panic!("no sentinel is asked for")
        }

        fn start_reference_run(
            &self,
            _: &[String],
            pus: &CpuSet,
            _: u64,
        ) -> Result<Option<Box<dyn BackgroundReferenceRun>>, SpeedError> {
            let own_ns = SPAN_NS * self.0 / 1_000_000;
            let seen = ReferenceRun {
                windows: vec![Window { units: 7, own_ns, span_ns: SPAN_NS }; 7],
                total_own_ns: 7 * own_ns,
                cpu_ns: self.1,
                elapsed_ns: 1_000_000,
            };
            let rates = pus.iter().map(|pu| (pu, seen.clone())).collect();
            Ok(Some(Box::new(Once(Some(rates)))))
        }
    }

    fn turns(left: u32, extra_ns: Option<i64>) -> CoreShares {
        let cost = Cost { extra_ns: [extra_ns.unwrap_or(0); 5], ..Cost::default() };
        let (share, period_ns) = (500_000, 200_000);
        let is_known = extra_ns.is_some();
        CoreShares::from([(
            PuId(1),
            CoreShare { share, period_ns, left, cost, is_known, is_measured: is_known },
        )])
    }

    /// Ten seconds of heartbeats on a host whose CPU 1 is busy for these millionths of its time.
    fn after_10_s(spawner: &Witnesses, turns: &CoreShares, busy: u64) -> Vec<BTreeMap<PuId, Cost>> {
        let mut renewal = Renewal::new(0);
        (0..100)
            .map(|at| {
                let mut host = SnapshotHost::new();
                let (all, busy) = (at * 10, at * 10 * busy / 1_000_000);
                host.insert_file("/proc/stat", format!("cpu1 {busy} 0 0 {} 0\n", all - busy));
                renewal.turn(&host, spawner, TakenCores { entries: &[], turns }, at * S / 10)
            })
            .filter(|found| !found.is_empty())
            .collect()
    }

    #[test]
    fn a_cost_is_renewed_on_an_idle_cpu_and_only_there() {
        // 48 % where 50 % should remain: the overhead is 4 µs per 200 µs.
        check(slow(), turns(1_000_000, None), 0, Some(4_000));
        check(slow(), turns(1_000_000, Some(2_000)), 0, Some(3_000));
        check(slow(), turns(1_000_000, None), 500_000, None);
        // Real-time burners run there, and the reference run gets the rest.
        check(Witnesses(480_000, 480_000), turns(500_000, None), 500_000, Some(4_000));
        check(Witnesses(480_000, 480_000), turns(500_000, None), 700_000, None);
        // Another task ran during the reference run.
        check(Witnesses(300_000, 800_000), turns(1_000_000, None), 0, None);
        check(slow(), CoreShares::new(), 0, None);
    }

    fn check(spawner: Witnesses, turns: CoreShares, busy: u64, expected: Option<i64>) {
        let found = after_10_s(&spawner, &turns, busy);
        let extras: Vec<i64> = found.iter().map(|costs| costs[&PuId(1)].extra_ns[2]).collect();
        assert_eq!(extras, Vec::from_iter(expected), "{turns:?} {busy}");
    }

    fn slow() -> Witnesses {
        Witnesses(480_000, 1_000_000)
    }
}
