//! Runs the six micro-benchmarks of Buchert 2011 in a vnode, and one whose data a cache holds, each
//! paired with a run at full speed on the same CPUs.
//!
//! The runs at full speed are outside the vnode's cgroups. Methods that act on the core itself
//! would slow them too, so the vnode is set to 100 % for them; its speeds are restored after each
//! run, also after an error.

mod disk;

use crate::{Exit, Failure, interrupt};
use pinfold_host::Clock as _;
use pinfold_host::SystemClock;
use pinfold_host::files::StateDir;
use pinfold_model::text::{count_noun, select_verb};
use pinfold_probe::cpu_speed::{Amount, MicroBenchmark, MicroKind, SpeedBenchmark as _};
use pinfold_probe::loads::Placement;
use pinfold_probe::pinload::Pinload;
use pinfold_stats::{Block, median, ratio_interval};
use serde_json::Value;

use super::ipc::{self, SupervisorRequest};
use crate::message::say;
pub use disk::DiskRow;
use disk::DiskTest;

/// A change of speed takes effect within two periods, few of which are longer than this.
const SETTLE_NS: u64 = 200_000_000;
const QUICK: u64 = 10;

/// What the benchmarks found in a vnode.
pub struct Verification {
    /// Name of the vnode.
    pub vnode: String,
    /// Name of its method.
    pub method: String,
    /// Requested speed, by CPU.
    pub asked: Vec<(u32, f64)>,
    /// One row for each benchmark.
    pub rows: Vec<Row>,
    /// One row for each limit of its disk and direction; empty without a limit.
    pub disk: Vec<DiskRow>,
}

/// A vnode while it is measured.
struct Vnode<'s> {
    state: &'s StateDir,
    name: &'s str,
    asked: Vec<(u32, f64)>,
    inside: Placement,
    outside: Placement,
}

/// One benchmark with its pairs of rates: in the vnode, at full speed.
pub struct Row {
    /// Name of the benchmark.
    pub name: &'static str,
    /// Units of work per second.
    pub pairs: Vec<(f64, f64)>,
}

/// How long a vnode is measured.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Number of repetitions.
    pub repetitions: u32,
    /// Takes a tenth of the durations.
    pub is_quick: bool,
}

/// Measures a vnode.
pub fn verify(
    state: &StateDir,
    name: &str,
    Effort { repetitions, is_quick }: Effort,
) -> Result<Verification, Failure> {
    let (vnode, method, mut disk) = Vnode::find(state, name, is_quick)?;
    let pinload = Pinload::install()?;
    interrupt::install()?;
    let row = |micro: &MicroBenchmark| Row {
        name: micro.probe().trim_start_matches("micro-"),
        pairs: Vec::new(),
    };
    let benchmarks = benchmarks(is_quick);
    let mut rows: Vec<Row> = benchmarks.iter().map(row).collect();
    for repetition in 1..=repetitions {
        say(&format!("repetition {repetition} of {repetitions}"));
        for (micro, row) in benchmarks.iter().zip(&mut rows) {
            let full = vnode.at_full_speed(|| vnode.rate(micro, &pinload, &vnode.outside))?;
            row.pairs.push((vnode.rate(micro, &pinload, &vnode.inside)?, full));
        }
        if let Some(disk) = &mut disk {
            disk.measure(&vnode.inside, &vnode.outside)?;
        }
    }
    let disk = disk.map(|disk| disk.rows).unwrap_or_default();
    Ok(Verification { vnode: name.to_owned(), method, asked: vnode.asked, rows, disk })
}

/// A program whose data the last-level cache of a server holds.
const CACHE: MicroBenchmark =
    MicroBenchmark { kind: MicroKind::Cache { kib: 4_096 }, amount: Amount::Time(1_000_000_000) };

/// The benchmarks, with the durations of the paper or a tenth of them.
fn benchmarks(is_quick: bool) -> Vec<MicroBenchmark> {
    fn shorter(ns: u64, is_quick: bool) -> u64 {
        if is_quick { ns / QUICK } else { ns }
    }
    MicroBenchmark::all_of_the_paper()
        .into_iter()
        .chain([CACHE])
        .map(|micro| MicroBenchmark {
            kind: match micro.kind {
                MicroKind::Sleep { sleep_ns } => {
                    MicroKind::Sleep { sleep_ns: shorter(sleep_ns, is_quick) }
                }
                MicroKind::Cpu
                | MicroKind::Udp
                | MicroKind::Memory { .. }
                | MicroKind::Processes(_)
                | MicroKind::Threads(_)
                | MicroKind::Cache { .. } => micro.kind,
            },
            amount: match micro.amount {
                Amount::Time(ns) => Amount::Time(shorter(ns, is_quick)),
                Amount::Units(units) => Amount::Units(units),
            },
        })
        .collect()
}

impl<'s> Vnode<'s> {
    fn find(
        state: &'s StateDir,
        name: &'s str,
        is_quick: bool,
    ) -> Result<(Self, String, Option<DiskTest>), Failure> {
        let strange = |what: &str| {
            Failure::new(Exit::Host, format!("cannot parse the supervisor's reply: {what}"))
        };
        let (files, mask) = ipc::place_of(state, name)?;
        let status = ipc::require(state, &SupervisorRequest::Status)?.status()?;
        let (method, asked) = requested_speeds(&status, name)
            .ok_or_else(|| strange(&format!("no result for {name}")))?;
        let outside = Placement { cgroup_files: Vec::new(), affinity: Some(mask.clone()) };
        let inside = Placement { cgroup_files: files, affinity: Some(mask) };
        let disk = DiskTest::new(&status, name, is_quick)?;
        Ok((Self { state, name, asked, inside, outside }, method, disk))
    }

    fn set(&self, pu: Option<u32>, speed: f64) -> Result<(), Failure> {
        let ask = SupervisorRequest::Set {
            vnode: self.name.to_owned(),
            speed: format!("{speed:.6}"),
            pu,
        };
        ipc::require(self.state, &ask)?.expect_empty()
    }

    fn at_full_speed<T>(&self, work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
        self.set(None, 1.0)?;
        SystemClock.sleep_ns(SETTLE_NS);
        let worked = work();
        for (pu, speed) in &self.asked {
            self.set(Some(*pu), *speed)?;
        }
        SystemClock.sleep_ns(SETTLE_NS);
        worked
    }

    /// Units of work per second.
    fn rate(
        &self,
        micro: &MicroBenchmark,
        pinload: &Pinload,
        place: &Placement,
    ) -> Result<f64, Failure> {
        if interrupt::is_requested() {
            return Err(Failure::new(Exit::Interrupted, "interrupted"));
        }
        let outcome = micro
            .run_on_host(pinload, place)
            .map_err(|error| Failure::from_error(Exit::Host, &error, None))?;
        Ok(outcome.per_second())
    }
}

impl Verification {
    /// Mean of the requested speeds of its cores.
    pub fn requested_speed(&self) -> f64 {
        let sum: f64 = self.asked.iter().map(|(_, speed)| speed).sum();
        sum / self.asked.len().max(1) as f64
    }

    /// What limits the result.
    pub fn remarks(&self, repetitions: u32) -> Vec<String> {
        let mut remarks = Vec::new();
        if repetitions < 5 {
            remarks.push(format!(
                "{} {} not enough: use at least 5 for a useful interval",
                count_noun(repetitions, "repetition"),
                select_verb(repetitions, "is", "are")
            ));
        }
        if self.asked.iter().any(|(_, speed)| *speed != self.requested_speed()) {
            remarks.push(format!(
                "the cores of {} have different speeds: the requested speed is their mean, and a \
                 single thread achieves the speed of the core that it runs on",
                self.vnode
            ));
        }
        remarks.extend(self.disk.iter().filter_map(DiskRow::remark));
        remarks
    }
}

/// The method of a vnode and the requested speeds of its CPUs.
fn requested_speeds(status: &Value, name: &str) -> Option<(String, Vec<(u32, f64)>)> {
    let vnodes = status.get("vnodes")?.as_array()?;
    let vnode =
        vnodes.iter().find(|vnode| vnode.get("vnode").and_then(Value::as_str) == Some(name))?;
    let cores = vnode
        .get("cores")?
        .as_array()?
        .iter()
        .map(|core| {
            let pu = u32::try_from(core.get("pu")?.as_u64()?).ok()?;
            Some((pu, core.get("asked")?.as_f64()?))
        })
        .collect::<Option<Vec<_>>>()?;
    Some((vnode.get("method")?.as_str()?.to_owned(), cores))
}

impl Row {
    /// Achieved speed, with its interval if there are two pairs; `None` without a valid pair.
    pub fn achieved_speed(&self) -> Option<(f64, Option<(f64, f64)>)> {
        let blocks: Vec<Block> =
            self.pairs.iter().map(|(slow, full)| Block::pair(*slow, *full)).collect();
        match ratio_interval(&blocks) {
            Some(found) => Some((found.ratio, Some((found.low, found.high)))),
            None => {
                let ratios: Vec<f64> = blocks.iter().filter_map(Block::ratio).collect();
                Some((median(&ratios)?, None))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn achieved_is_the_median_ratio() {
        assert_eq!(row(&[(1.0, 4.0)]).achieved_speed(), Some((0.25, None)));
        let three = row(&[(1.0, 4.0), (2.0, 4.0), (3.0, 4.0)]).achieved_speed();
        assert_eq!(three, Some((0.5, Some((0.25, 0.75)))));
        assert_eq!(row(&[]).achieved_speed(), None);
    }

    fn row(pairs: &[(f64, f64)]) -> Row {
        Row { name: "cpu", pairs: pairs.to_vec() }
    }

    #[test]
    fn asked_is_read_from_the_status() {
        let status = json!({"vnodes": [
            {"vnode": "a", "method": "stall", "cores": [{"pu": 3, "asked": 0.4}, {"pu": 4, "asked": 0.5}]},
        ]});
        assert_eq!(
            requested_speeds(&status, "a"),
            Some(("stall".to_owned(), vec![(3, 0.4), (4, 0.5)]))
        );
        assert_eq!(requested_speeds(&status, "b"), None);
        assert_eq!(requested_speeds(&json!({}), "a"), None);
    }

    #[test]
    fn the_quick_benchmarks_take_a_tenth() {
        let total = |is_quick| -> u64 {
            benchmarks(is_quick)
                .into_iter()
                .map(|micro| match (micro.amount, micro.kind) {
                    (Amount::Time(ns), MicroKind::Sleep { sleep_ns }) => 2 * ns + sleep_ns,
                    (Amount::Time(ns), _) => ns,
                    (Amount::Units(_), _) => 0,
                })
                .sum()
        };
        assert_eq!((total(false), total(true)), (11_000_000_000, 1_100_000_000));
    }
}
