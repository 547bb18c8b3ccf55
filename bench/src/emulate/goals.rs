//! The goals, compared with the noise floor and the results. Pure.
//!
//! The noise floor is the same figure of an A/A comparison, two runs at full speed: a bound below
//! it counts as met by a subject that is no worse than the floor. For signed figures, whose median
//! could be near 0 by chance, the end of the median's 95 % interval that is further from 0 is used.

use pinfold_stats::{median, median_interval, quantile};

use super::tables::Findings;
use super::trial::Trial;
use crate::page::Table;

const ALONE: &str = "none (A/A)";
/// The subjects whose figures have bounds.
const OURS: [&str; 2] = ["stall", "hogs"];
/// Bounds of one spinning thread: median and 90 % quantile of the error, in points.
const SPIN: (f64, f64) = (0.15, 0.40);
/// Factor of the bounds for more threads and cores.
const FREE: f64 = 1.5;
/// Unevenness in 1 and in 10 ms at 50 %, the 99th percentile of stops (ms), for `stall`.
const EVEN: [f64; 2] = [0.012, 0.005];
const STOPS_MS: f64 = 0.11;
/// Speed inside bursts minus the requested speed.
const BURST: f64 = 0.01;
/// Short-lived processes minus a spinning thread, in points.
const CHURN: f64 = 1.0;
/// CPU of the controller (% of a core per core); the effect on a neighbour, in points.
const CONTROL: f64 = 0.3;
const NEIGHBOUR: f64 = 0.3;

struct Goal {
    figure: String,
    subject: &'static str,
    bound: f64,
    floor: Option<f64>,
    found: Option<f64>,
}

impl Goal {
    fn verdict(&self) -> Option<&'static str> {
        let found = self.found?;
        let is_at_floor = self.floor.is_some_and(|floor| found <= floor);
        Some(match (found <= self.bound, is_at_floor) {
            (true, _) => "met",
            (false, true) => "met at the floor",
            (false, false) => "missed",
        })
    }

    fn row(&self) -> Option<Vec<String>> {
        fn number(value: f64) -> String {
            format!("{value:.3}")
        }

        Some(vec![
            self.figure.clone(),
            self.subject.to_owned(),
            number(self.bound),
            self.floor.map_or_else(|| "–".to_owned(), number),
            number(self.found?),
            self.verdict()?.to_owned(),
        ])
    }
}

impl Findings {
    /// Each figure that has a bound.
    pub fn goals(&self) -> Table {
        let mut goals = Vec::new();
        for subject in OURS {
            self.errors(subject, &mut goals);
            self.inside_bursts(subject, &mut goals);
            self.add_neighbour_goals(subject, &mut goals);
        }
        self.add_evenness_goals(&mut goals);
        Table {
            head: ["figure", "method", "at most", "floor (A/A)", "found", "result"]
                .map(str::to_owned)
                .to_vec(),
            rows: goals.iter().filter_map(Goal::row).collect(),
        }
    }

    fn errors(&self, subject: &'static str, goals: &mut Vec<Goal>) {
        let of = |experiment, who, load: Option<&str>, part| {
            let trials = self.of(experiment, who);
            let mine = trials.filter(|trial| load.is_none_or(|load| trial.load == load));
            quantile(&mine.map(|trial| trial.error().abs()).collect::<Vec<_>>(), part)
        };
        let mut add = |(experiment, load): (&'static str, Option<&str>), what: &str, times: f64| {
            for (name, part, bound) in [("median", 0.5, SPIN.0), ("90 %", 0.9, SPIN.1)] {
                goals.push(Goal {
                    figure: format!("{what}, {name} of the error (points)"),
                    subject,
                    bound: bound * times,
                    floor: of(experiment, ALONE, load, part),
                    found: of(experiment, subject, load, part),
                });
            }
        };
        add(("spin", None), "one thread", 1.0);
        for load in self.loads("free") {
            add(("free", Some(&load)), &format!("{load}, free to migrate"), FREE);
        }
    }

    fn inside_bursts(&self, subject: &'static str, goals: &mut Vec<Goal>) {
        for asked in self.speeds("bursts") {
            for (_, load) in self.burst_loads() {
                let off = |who, speed: f64| -> Vec<f64> {
                    let all = self.burst(who, speed, &load).filter(|t| t.asked == speed);
                    all.map(|trial| trial.achieved - speed).collect()
                };
                goals.push(Goal {
                    figure: format!("{load} at {:.0} %, median error (points)", asked * 100.0),
                    subject,
                    bound: BURST,
                    floor: furthest(&off(ALONE, 1.0)),
                    found: middle(&off(subject, asked)),
                });
            }
        }
    }

    fn add_neighbour_goals(&self, subject: &'static str, goals: &mut Vec<Goal>) {
        for load in self.loads("churn").into_iter().filter(|load| load != "one thread") {
            goals.push(Goal {
                figure: format!("{load}, median next to a spinning thread (points)"),
                subject,
                bound: CHURN,
                floor: furthest(&self.against_spin("churn", ALONE, &load)),
                found: middle(&self.against_spin("churn", subject, &load)),
            });
        }
        let costs = self.costs.iter().filter(|cost| cost.subject == subject);
        let busiest: Vec<f64> = costs.map(|cost| cost.idle.max(cost.busy) * 100.0).collect();
        goals.push(Goal {
            figure: "controller, idle or busy (% of a core per core)".to_owned(),
            subject,
            bound: CONTROL,
            floor: None,
            found: middle(&busiest),
        });
        let felt = || self.felt.iter().filter(|felt| felt.subject == subject);
        goals.push(Goal {
            figure: "neighbour that changes, median (points)".to_owned(),
            subject,
            bound: NEIGHBOUR,
            floor: furthest(&felt().map(|felt| felt.floor()).collect::<Vec<_>>()),
            found: middle(&felt().map(|felt| felt.change()).collect::<Vec<_>>()),
        });
    }

    fn add_evenness_goals(&self, goals: &mut Vec<Goal>) {
        let of = |who, figure: &dyn Fn(&Trial) -> Option<f64>| {
            let half = self.of("spin", who).filter(|t| t.asked == 0.5 || t.asked == 1.0);
            median(&half.filter_map(figure).collect::<Vec<_>>())
        };
        let mut add = |what: &str, bound, figure: &dyn Fn(&Trial) -> Option<f64>| {
            goals.push(Goal {
                figure: what.to_owned(),
                subject: OURS[0],
                bound,
                floor: of(ALONE, figure),
                found: of(OURS[0], figure),
            });
        };
        add("unevenness at 50 % in 1 ms", EVEN[0], &|trial| trial.unevenness[0]);
        add("unevenness at 50 % in 10 ms", EVEN[1], &|trial| trial.unevenness[1]);
        add("stops at 50 %, 99 % (ms)", STOPS_MS, &|trial| {
            Some(trial.stops?.quantiles_ns[2] / 1e6)
        });
    }
}

/// Absolute value of the median of differences.
fn middle(differences: &[f64]) -> Option<f64> {
    median(differences).map(f64::abs)
}

/// Upper bound of the absolute value; for one difference its absolute value.
fn furthest(differences: &[f64]) -> Option<f64> {
    match median_interval(differences) {
        Some((low, high)) => Some(low.abs().max(high.abs())),
        None => middle(differences),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_of_differences_is_what_chance_makes_of_them() {
        let differences = [-2.0, -1.5, -1.0, 0.0, 0.5, 0.75, 1.0];
        let far = furthest(&differences).unwrap();
        assert!((1.0..=2.0).contains(&far), "{far}");
        assert_eq!(middle(&differences), Some(0.0));
        assert_eq!(furthest(&[-0.5]), Some(0.5));
        assert_eq!(furthest(&[]), None);
    }

    #[test]
    fn a_bound_below_the_floor_is_met_at_the_floor() {
        check_verdict(0.15, Some(0.05), Some(0.15), Some("met"));
        check_verdict(0.15, Some(0.85), Some(0.84), Some("met at the floor"));
        check_verdict(0.15, Some(0.85), Some(0.86), Some("missed"));
        check_verdict(0.15, None, Some(0.16), Some("missed"));
        check_verdict(0.15, Some(0.85), None, None);
    }

    fn check_verdict(bound: f64, floor: Option<f64>, found: Option<f64>, expected: Option<&str>) {
        let goal = Goal { figure: "x".to_owned(), subject: "stall", bound, floor, found };
        assert_eq!(goal.verdict(), expected, "{bound} {floor:?} {found:?}");
    }
}
