//! The tables, from the raw trials. Pure.

use pinfold_stats::median;

use super::judge::{Stops, median_text, quantile_text, signed_text};
use super::picture::Line;
use super::side::{Cost, Felt};
use super::trial::{self, Trial};
use crate::page::Table;

/// All measurements.
#[derive(Default)]
pub struct Findings {
    /// Names of the subjects, in the order of the tables.
    pub subjects: Vec<String>,
    /// The trials.
    pub trials: Vec<Trial>,
    /// Costs of the controllers.
    pub costs: Vec<Cost>,
    /// Effects on neighbours.
    pub felt: Vec<Felt>,
    /// Turns that ended early, and why.
    pub failed: Vec<String>,
}

fn head(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

impl Findings {
    pub(super) fn of<'t>(
        &'t self,
        experiment: &'t str,
        subject: &'t str,
    ) -> impl Iterator<Item = &'t Trial> + Clone {
        let trials = self.trials.iter();
        trials.filter(move |t| t.place.experiment == experiment && t.place.subject == subject)
    }

    /// Subjects with trials in an experiment.
    fn present(&self, experiment: &str) -> Vec<&str> {
        let names = self.subjects.iter().map(String::as_str);
        names.filter(|name| self.of(experiment, name).next().is_some()).collect()
    }

    /// Errors of one spinning thread, over all speeds.
    pub fn spin(&self) -> Table {
        Table {
            head: head(&["one spinning thread", "runs", "error, median [95 %]", "90 %", "largest"]),
            rows: self
                .present("spin")
                .iter()
                .map(|subject| {
                    let errors: Vec<f64> =
                        self.of("spin", subject).map(|t| t.error().abs()).collect();
                    vec![
                        (*subject).to_owned(),
                        errors.len().to_string(),
                        median_text(&errors, 2),
                        quantile_text(&errors, 0.9, 2),
                        quantile_text(&errors, 1.0, 2),
                    ]
                })
                .collect(),
        }
    }

    /// Signed errors of one spinning thread, by speed.
    pub fn spin_by_speed(&self) -> Table {
        self.by_speed(
            "error by speed asked, median",
            |trial: &Trial| Some(trial.error()),
            signed_text,
        )
    }

    /// Lengths of the stops of one spinning thread, by speed.
    pub fn stops_by_speed(&self) -> Table {
        self.by_speed(
            "stops by speed asked: 99 % (ms), median",
            |trial: &Trial| Some(trial.stops?.quantiles_ns[2] / 1e6),
            |found| median(found).map_or_else(|| "–".to_owned(), |ms| format!("{ms:.2}")),
        )
    }

    /// A figure of one spinning thread by speed, for slowed runs.
    fn by_speed(
        &self,
        title: &str,
        figure: fn(&Trial) -> Option<f64>,
        in_words: fn(&[f64]) -> String,
    ) -> Table {
        let asked = self.speeds("spin");
        let mut head = vec![title.to_owned()];
        head.extend(asked.iter().map(|speed| percent(*speed)));
        let row = |subject: &&str| {
            let mut row = vec![(*subject).to_owned()];
            row.extend(asked.iter().map(|speed| {
                let here = self.of("spin", subject).filter(|t| t.asked == *speed);
                in_words(&here.filter_map(figure).collect::<Vec<_>>())
            }));
            row
        };
        let slowed = self
            .present("spin")
            .into_iter()
            .filter(|subject| self.of("spin", subject).any(|trial| trial.asked < 1.0));
        Table { head, rows: slowed.map(|subject| row(&subject)).collect() }
    }

    pub(super) fn speeds(&self, experiment: &str) -> Vec<f64> {
        let of = self.trials.iter().filter(|t| t.place.experiment == experiment && t.asked < 1.0);
        let mut speeds: Vec<f64> = of.map(|trial| trial.asked).collect();
        speeds.sort_unstable_by(f64::total_cmp);
        speeds.dedup();
        speeds
    }

    /// Evenness and stops of one spinning thread at 50 %.
    pub fn evenness(&self) -> Table {
        Table {
            head: head(&[
                "one spinning thread at 50 %",
                "unevenness in 1 ms",
                "in 10 ms",
                "in 100 ms",
                "stops in a second",
                "half (ms)",
                "95 % (ms)",
                "99 % (ms)",
                "longest (ms)",
            ]),
            rows: self
                .present("spin")
                .iter()
                .map(|subject| {
                    let half =
                        || self.of("spin", subject).filter(|t| t.asked == 0.5 || t.asked == 1.0);
                    let mut row = vec![(*subject).to_owned()];
                    for width in 0..3 {
                        let found: Vec<f64> = half().filter_map(|t| t.unevenness[width]).collect();
                        row.push(
                            median(&found)
                                .map_or_else(|| "–".to_owned(), |rms| format!("{rms:.3}")),
                        );
                    }
                    let stops: Vec<Stops> = half().filter_map(|t| t.stops).collect();
                    let many: Vec<f64> = stops.iter().map(|stops| stops.per_second).collect();
                    row.push(
                        median(&many).map_or_else(|| "–".to_owned(), |count| format!("{count:.0}")),
                    );
                    for part in 0..4 {
                        let of: Vec<f64> =
                            stops.iter().map(|s| s.quantiles_ns[part] / 1e6).collect();
                        row.push(median_text(&of, 3));
                    }
                    row
                })
                .collect(),
        }
    }

    /// Errors of more workers, not pinned.
    pub fn free(&self) -> Table {
        let loads = self.loads("free");
        let mut head = vec!["error on all CPUs, free to migrate: median [95 %]; 90 %".to_owned()];
        head.extend(loads.iter().cloned());
        Table {
            head,
            rows: self
                .present("free")
                .iter()
                .map(|subject| {
                    let mut row = vec![(*subject).to_owned()];
                    row.extend(loads.iter().map(|load| {
                        let here = self.of("free", subject).filter(|t| t.load == *load);
                        let errors: Vec<f64> = here.map(|t| t.error().abs()).collect();
                        format!("{}; {}", median_text(&errors, 2), quantile_text(&errors, 0.9, 2))
                    }));
                    row
                })
                .collect(),
        }
    }

    pub(super) fn loads(&self, experiment: &str) -> Vec<String> {
        let mut loads: Vec<String> = Vec::new();
        for trial in self.trials.iter().filter(|t| t.place.experiment == experiment) {
            if !loads.contains(&trial.load) {
                loads.push(trial.load.clone());
            }
        }
        loads
    }

    /// Speed inside bursts at one requested speed; in brackets including the delay of each start.
    pub fn bursts(&self, asked: f64) -> Table {
        let loads = self.burst_loads();
        let mut head = vec![format!("speed inside bursts at {} (with waits)", percent(asked))];
        head.extend(loads.iter().map(|(_, load)| load.clone()));
        let row = |subject: &&str| {
            let mut row = vec![(*subject).to_owned()];
            row.extend(loads.iter().map(|(_, load)| {
                let here: Vec<&Trial> = self.burst(subject, asked, load).collect();
                let inside: Vec<f64> = here.iter().map(|t| t.achieved).collect();
                let waits: Vec<f64> = here.iter().filter_map(|t| t.achieved_with_wait).collect();
                format!("{} ({})", median_text(&inside, 3), quantile_text(&waits, 0.5, 3))
            }));
            row
        };
        let is_asked = self.speeds("bursts").contains(&asked);
        let rows = self.present("bursts").into_iter().filter(|_| is_asked);
        Table { head, rows: rows.map(|subject| row(&subject)).collect() }
    }

    pub(super) fn burst<'t>(
        &'t self,
        subject: &'t str,
        asked: f64,
        load: &'t str,
    ) -> impl Iterator<Item = &'t Trial> {
        let all = self.of("bursts", subject);
        all.filter(move |t| t.load == load && (t.asked == asked || t.asked == 1.0))
    }

    /// Loads of bursts in ascending order of their length (ms).
    pub(super) fn burst_loads(&self) -> Vec<(f64, String)> {
        let mut loads: Vec<(f64, String)> = self
            .loads("bursts")
            .into_iter()
            .map(|load: String| {
                let words: Vec<&str> = load.split(' ').collect();
                let ms = words.get(2).and_then(|word| word.parse().ok()).unwrap_or(0.0);
                (ms, load)
            })
            .collect();
        loads.sort_by(|a, b| a.0.total_cmp(&b.0));
        loads
    }

    /// The lines of the picture of bursts, by speed.
    pub fn burst_lines(&self) -> Vec<(f64, Vec<Line>)> {
        let loads = self.burst_loads();
        let line = |subject: &str, asked: f64| Line {
            name: subject.to_owned(),
            points: loads
                .iter()
                .filter_map(|(ms, load)| {
                    let speeds: Vec<f64> =
                        self.burst(subject, asked, load).map(|t| t.achieved).collect();
                    Some((*ms, median(&speeds)?))
                })
                .collect(),
        };
        self.speeds("bursts")
            .into_iter()
            .rev()
            .map(|asked| {
                let lines = self.present("bursts").into_iter().map(|subject| line(subject, asked));
                (asked, lines.collect())
            })
            .collect()
    }

    /// Short-lived processes compared with one spinning thread of the same turn.
    pub fn churn(&self, experiment: &str) -> Table {
        let loads: Vec<String> =
            self.loads(experiment).into_iter().filter(|load| load != "one thread").collect();
        let mut head = vec!["speed at 50 %, less that of a spinning thread (points)".to_owned()];
        head.extend(loads.iter().cloned());
        Table {
            head,
            rows: self
                .present(experiment)
                .iter()
                .map(|subject| {
                    let mut row = vec![(*subject).to_owned()];
                    row.extend(
                        loads.iter().map(|load| {
                            median_text(&self.against_spin(experiment, subject, load), 2)
                        }),
                    );
                    row
                })
                .collect(),
        }
    }

    pub(super) fn against_spin(&self, experiment: &str, subject: &str, load: &str) -> Vec<f64> {
        let all = self.of(experiment, subject);
        let spin = |block| all.clone().find(|t| t.load == "one thread" && t.place.block == block);
        let here = all.clone().filter(|t| t.load == load);
        here.filter_map(|t| Some((t.achieved - spin(t.place.block)?.achieved) * 100.0)).collect()
    }

    /// CPU time of the controllers.
    pub fn control(&self) -> Table {
        Table {
            head: head(&[
                "CPU of the controller (% of a core per core)",
                "idle vnode",
                "busy vnode",
            ]),
            rows: self
                .subjects
                .iter()
                .filter_map(|subject| {
                    let mine: Vec<&Cost> =
                        self.costs.iter().filter(|c| c.subject == *subject).collect();
                    (!mine.is_empty()).then(|| {
                        vec![
                            subject.clone(),
                            cost_median(|c| c.idle, &mine),
                            cost_median(|c| c.busy, &mine),
                        ]
                    })
                })
                .collect(),
        }
    }

    /// Effects on a neighbour.
    pub fn neighbours(&self) -> Table {
        Table {
            head: head(&[
                "a vnode at 50 % (points of full speed)",
                "while its neighbour changes 20 times a second",
                "while nothing changes (A/A)",
            ]),
            rows: self
                .subjects
                .iter()
                .filter_map(|subject| {
                    let mine: Vec<&Felt> =
                        self.felt.iter().filter(|f| f.subject == *subject).collect();
                    (!mine.is_empty()).then(|| {
                        vec![
                            subject.clone(),
                            felt_median(Felt::change, &mine),
                            felt_median(Felt::floor, &mine),
                        ]
                    })
                })
                .collect(),
        }
    }

    /// The vnodes of the example, both at work at the same time.
    pub fn example(&self) -> Table {
        let all = || self.trials.iter().filter(|trial| trial.place.experiment == "example");
        let mut names: Vec<(&str, f64)> = Vec::new();
        for trial in all() {
            let name = (trial.place.subject.as_str(), trial.asked);
            if !names.contains(&name) {
                names.push(name);
            }
        }
        Table {
            head: head(&[
                "vnode",
                "asked",
                "runs",
                "achieved, median [95 %] (%)",
                "error, median [95 %] (points)",
            ]),
            rows: names
                .iter()
                .map(|(name, asked)| {
                    let mine = all().filter(|trial| trial.place.subject == *name);
                    let of = |part: fn(&Trial) -> f64| mine.clone().map(part).collect::<Vec<_>>();
                    vec![
                        (*name).to_owned(),
                        percent(*asked),
                        of(Trial::error).len().to_string(),
                        median_text(&of(|trial| trial.achieved * 100.0), 2),
                        median_text(&of(Trial::error), 2),
                    ]
                })
                .collect(),
        }
    }

    /// Runs that were repeated or kept because of steal time.
    pub fn steal_text(&self) -> String {
        let trials = self.trials.iter().map(|trial| (trial.repeats, trial.is_disturbed()));
        let felt = self.felt.iter().map(|felt| (felt.repeats, trial::is_disturbed(felt.steal)));
        let all: Vec<(u32, bool)> = trials.chain(felt).collect();
        let repeats: u32 = all.iter().map(|(repeats, _)| repeats).sum();
        let kept = all.iter().filter(|(_, is_disturbed)| *is_disturbed).count();
        let failed: Vec<String> =
            self.failed.iter().map(|why| format!("\nA turn ended early: {why}.")).collect();
        format!(
            "In {} comparisons, each a slowed run between two at full speed, {repeats} runs were repeated because the hypervisor took more than 1.5 % of the time meanwhile; {kept} comparisons were kept although it did in the last of three repeats.{}",
            all.len(),
            failed.concat()
        )
    }

    /// The same by subject, for the page.
    pub fn stolen_by_subject(&self) -> Table {
        Table {
            head: head(&[
                "rejected for steal",
                "comparisons",
                "runs repeated",
                "kept nevertheless",
            ]),
            rows: self
                .subjects
                .iter()
                .map(|subject| {
                    let mine: Vec<&Trial> =
                        self.trials.iter().filter(|t| t.place.subject == *subject).collect();
                    let repeats: u32 = mine.iter().map(|trial| trial.repeats).sum();
                    let kept = mine.iter().filter(|trial| trial.is_disturbed()).count();
                    vec![
                        subject.clone(),
                        mine.len().to_string(),
                        repeats.to_string(),
                        kept.to_string(),
                    ]
                })
                .collect(),
        }
    }
}

fn cost_median(part: fn(&Cost) -> f64, mine: &[&Cost]) -> String {
    median_text(&mine.iter().map(|c| part(c) * 100.0).collect::<Vec<_>>(), 3)
}

fn felt_median(part: fn(&Felt) -> f64, mine: &[&Felt]) -> String {
    median_text(&mine.iter().map(|f| part(f)).collect::<Vec<_>>(), 2)
}

fn percent(speed: f64) -> String {
    format!("{} %", (speed * 1e4).round() / 1e2)
}

#[cfg(test)]
mod tests {
    use super::super::trial::TrialPosition;
    use super::*;

    fn trial(experiment: &'static str, load: &str, block: u32, asked: f64, achieved: f64) -> Trial {
        Trial {
            place: TrialPosition { experiment, subject: "x".to_owned(), block },
            load: load.to_owned(),
            asked,
            achieved,
            achieved_with_wait: Some(achieved / 2.0),
            rates: [1.0; 3],
            unevenness: [Some(0.25), Some(0.125), None],
            stops: Some(Stops { per_second: 5.0, quantiles_ns: [5e5, 6e5, 1e6, 2e6] }),
            kept_stops: Vec::new(),
            steal: 0.0,
            repeats: 1,
        }
    }

    fn findings(trials: Vec<Trial>) -> Findings {
        let subjects = vec!["x".to_owned(), "absent".to_owned()];
        Findings { subjects, trials, ..Findings::default() }
    }

    #[test]
    fn spin_by_all_and_by_speed() {
        let found =
            findings(vec![spin_trial(0.5, 0.51), spin_trial(0.5, 0.49), spin_trial(0.05, 0.08)]);
        let [row] = &found.spin().rows[..] else { panic!("one subject") };
        assert_eq!((row[1].as_str(), row[4].as_str()), ("3", "3.00"));
        let table = found.spin_by_speed();
        assert_eq!(table.head[1..], ["5 %", "50 %"]);
        assert_eq!(table.rows, [["x", "+3.00", "+0.00"]]);
        assert_eq!(found.stops_by_speed().rows, [["x", "1.00", "1.00"]]);
        let even = &found.evenness().rows[0];
        assert_eq!(even[1..4], ["0.250", "0.125", "–"]);
        assert_eq!(even[4..6], ["5", "0.500 [0.500, 0.500]"]);
        assert_eq!(even[8], "2.000 [2.000, 2.000]");
    }

    fn spin_trial(asked: f64, achieved: f64) -> Trial {
        trial("spin", "one thread", 0, asked, achieved)
    }

    #[test]
    fn bursts_by_length() {
        let found = findings(vec![
            burst_trial("bursts of 10 ms", 0.5, 0.6),
            burst_trial("bursts of 0.5 ms", 0.5, 1.0),
            burst_trial("bursts of 0.5 ms", 0.25, 0.9),
        ]);
        let table = found.bursts(0.5);
        assert_eq!(table.head[1..], ["bursts of 0.5 ms", "bursts of 10 ms"]);
        assert_eq!(table.rows, [["x", "1.000 [one run] (0.500)", "0.600 [one run] (0.300)"]]);
        let lines = found.burst_lines();
        assert_eq!((lines.len(), lines[0].0), (2, 0.5));
        assert_eq!(lines[0].1[0].points, [(0.5, 1.0), (10.0, 0.6)]);
    }

    fn burst_trial(load: &'static str, asked: f64, achieved: f64) -> Trial {
        trial("bursts", load, 0, asked, achieved)
    }

    #[test]
    fn churn_is_against_the_thread_of_its_block() {
        let found = findings(vec![
            churn_trial("one thread", 0, 0.50),
            churn_trial("fork", 0, 0.52),
            churn_trial("one thread", 1, 0.60),
            churn_trial("fork", 1, 0.62),
            churn_trial("fork", 2, 0.99),
        ]);
        assert_eq!(found.churn("churn").rows, [["x", "2.00 [2.00, 2.00]"]]);
    }

    fn churn_trial(load: &'static str, block: u32, achieved: f64) -> Trial {
        trial("churn", load, block, 0.5, achieved)
    }

    #[test]
    fn steal_is_counted() {
        let mut bad = trial("spin", "one thread", 0, 0.5, 0.5);
        bad.steal = 0.02;
        let found = findings(vec![bad, trial("spin", "one thread", 1, 0.5, 0.5)]);
        assert_eq!(found.stolen_by_subject().rows[0], ["x", "2", "2", "1"]);
        assert!(found.steal_text().starts_with("In 2 comparisons"), "{}", found.steal_text());
    }
}
