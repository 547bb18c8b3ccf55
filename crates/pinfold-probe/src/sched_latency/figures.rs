//! The result as figures.

use std::collections::BTreeMap;

use pinfold_model::{Family, Figure, Unit};

use super::{Level, RoleLatency, SchedLatency, Waits};
use crate::histogram::PERCENTILES;

/// Name of the probe.
pub const PROBE: &str = "sched-latency";

impl SchedLatency {
    /// One figure for each quantity of each role, with the label `quantity`. Without a wait there
    /// is no maximum and no percentile.
    pub fn figures(&self) -> Vec<Figure> {
        let flags = match &self.level {
            Level::Tracepoints => Vec::new(),
            Level::Schedstat { why } => vec![format!("sums-only: {why}")],
        };
        self.roles.iter().flat_map(|role| self.of_role(role, &flags)).collect()
    }

    fn of_role(&self, role: &RoleLatency, flags: &[String]) -> Vec<Figure> {
        let name = role.role.to_string();
        let figure = |quantity: &str, unit: Unit, value: f64| Figure {
            probe: PROBE.to_owned(),
            labels: BTreeMap::from([
                ("role".to_owned(), name.clone()),
                ("quantity".to_owned(), quantity.to_owned()),
            ]),
            unit,
            family: Family::Count,
            cpu: None,
            duration_ns: self.duration_ns,
            samples: vec![value],
            dropped: 0,
            disturbed: 0,
            flags: flags.to_vec(),
        };
        let count = match self.level {
            Level::Tracepoints => "waits",
            Level::Schedstat { .. } => "slices",
        };
        let mut all = vec![
            figure("threads", Unit::Count, f64::from(role.threads)),
            figure("born", Unit::Count, f64::from(role.born)),
            figure("ended", Unit::Count, f64::from(role.ended)),
            figure(count, Unit::Count, role.count as f64),
            figure("waited", Unit::Nanoseconds, role.sum_ns as f64),
        ];
        all.extend(role.share(self.duration_ns).map(|s| figure("waited-share", Unit::Share, s)));
        all.extend(role.migrations.map(|n| figure("migrations", Unit::Count, n as f64)));
        if let Some(waits) = &role.waits {
            of_waits(waits, &figure, &mut all);
        }
        all
    }
}

fn of_waits(waits: &Waits, figure: &dyn Fn(&str, Unit, f64) -> Figure, all: &mut Vec<Figure>) {
    all.push(figure("preempted", Unit::Count, waits.preempted as f64));
    all.push(figure("unseen", Unit::Count, waits.unseen as f64));
    all.push(figure("migrations-waiting", Unit::Count, waits.moves as f64));
    for percentile in PERCENTILES {
        if let Some(bounds) = waits.histogram.percentile(percentile) {
            let mut one = figure(percentile.name, Unit::Nanoseconds, bounds.at_most_ns as f64);
            one.flags.push(format!("at least {} ns", bounds.at_least_ns));
            all.push(one);
        }
    }
    if let Some(mean) = waits.histogram.mean_ns() {
        all.push(figure("mean", Unit::Nanoseconds, mean));
    }
    if let Some(worst) = &waits.worst {
        let mut one = figure("max", Unit::Nanoseconds, worst.wait_ns as f64);
        one.cpu = Some(worst.pu.0);
        one.flags.push(worst.to_string());
        all.push(one);
    }
    if let Some((tid, longest)) = waits.open.iter().max_by_key(|(_, ns)| *ns) {
        let mut one = figure("still-waiting", Unit::Nanoseconds, *longest as f64);
        one.flags.push(format!("thread {tid}"));
        all.push(one);
    }
    for (name, count) in &waits.wakers {
        let mut one = figure("woken", Unit::Count, *count as f64);
        one.labels.insert("by".to_owned(), name.clone());
        all.push(one);
    }
    for instead in &waits.instead {
        let mut one = figure("ran-instead", Unit::Nanoseconds, instead.ns as f64);
        one.labels.insert("by".to_owned(), instead.name.clone());
        all.push(one);
    }
}
