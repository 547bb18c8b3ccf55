//! Wake-ups that happened, separated from the periods that were skipped while the thread was late.
//!
//! The table of a tail counts each period, because that is the latency of arrivals at fixed times.
//! cyclictest and similar tools count a thread that woke one second late once; a comparison with
//! them needs the same view, and the number of periods that it omits.

use pinfold_model::Figure;
use pinfold_probe::job::open_loop;
use pinfold_report::format::{self, MISSING};
use pinfold_stats::Tail;
use serde_json::{Value, json};

use super::Pooled;
use crate::screen;

/// The wake-ups of one CPU.
pub enum Wakeups {
    /// They could be separated.
    Apart {
        /// Lateness of the wake-ups that happened (ns).
        woken: Vec<f64>,
        /// Number of skipped periods.
        skipped: usize,
    },
    /// They could not be separated, for this reason.
    Unknown(String),
}

impl Wakeups {
    /// The wake-ups of a figure; `None` for other figures.
    pub fn from_figure(figure: &Figure) -> Option<Self> {
        Some(match open_loop(figure)? {
            Ok(views) => Self::Apart { woken: views.woken, skipped: views.skipped },
            Err(error) => Self::Unknown(error.to_string()),
        })
    }

    /// Merges two blocks.
    pub fn merge_blocks(self, other: Self) -> Self {
        match (self, other) {
            (Self::Apart { mut woken, skipped }, Self::Apart { woken: more, skipped: others }) => {
                woken.extend(more);
                Self::Apart { woken, skipped: skipped + others }
            }
            (Self::Unknown(why), _) | (_, Self::Unknown(why)) => Self::Unknown(why),
        }
    }

    /// As JSON.
    pub fn json(&self) -> Value {
        match self {
            Self::Apart { woken, skipped } => {
                let tail = Tail::new(woken.clone(), 0, 0);
                json!({
                    "woken": woken.len(),
                    "skipped": skipped,
                    "woken_p50_ns": tail.p50_ns,
                    "woken_p99_ns": tail.p99_ns,
                    "woken_p999_ns": tail.p999_ns,
                    "woken_max_ns": tail.max_ns,
                })
            }
            Self::Unknown(why) => json!({ "woken": null, "skipped": null, "because": why }),
        }
    }
}

/// The wake-ups of all CPUs as a table; empty for other probes.
pub fn table(all: &[Pooled]) -> String {
    fn count(number: usize) -> String {
        format::count(u64::try_from(number).unwrap_or(u64::MAX))
    }

    if all.iter().filter_map(|one| one.wakeups.as_ref()).next().is_none() {
        return String::new();
    }
    if all
        .iter()
        .filter_map(|one| one.wakeups.as_ref())
        .all(|one| matches!(one, Wakeups::Apart { skipped: 0, .. }))
    {
        return "skipped 0: every period had a wake-up\n".to_owned();
    }
    let mut table = screen::rows();
    table.set_header(["CPU", "woken", "skipped", "median", "p99", "p99.9", "max"]);
    let mut unknown = String::new();
    for one in all {
        let cpu = one.figure.cpu.map_or_else(|| MISSING.to_owned(), |cpu| cpu.to_string());
        match &one.wakeups {
            None => {}
            Some(Wakeups::Apart { woken, skipped }) => {
                let tail = Tail::new(woken.clone(), 0, 0);
                let times = [tail.p50_ns, tail.p99_ns, tail.p999_ns, tail.max_ns];
                let times = times.map(|time| format::maybe(time, one.figure.unit));
                table.add_row([cpu, count(woken.len()), count(*skipped)].into_iter().chain(times));
            }
            Some(Wakeups::Unknown(why)) => {
                unknown.push_str(&format!("CPU {cpu}: the skipped periods are unknown: {why}\n"))
            }
        }
    }
    match table.row_count() {
        0 => unknown,
        _ => format!(
            "\nwake-ups alone, as cyclictest counts them; late threads skipped the others\n{}\n{unknown}",
            screen::draw_table(table, 1..7)
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use pinfold_model::{Family, Unit};

    use super::*;

    fn figure(samples: &[f64], dropped: u64) -> Figure {
        Figure {
            probe: "wakeup".to_owned(),
            labels: BTreeMap::from([("period-us".to_owned(), "1000".to_owned())]),
            unit: Unit::Nanoseconds,
            family: Family::Tail,
            cpu: Some(3),
            duration_ns: 1,
            samples: samples.to_vec(),
            dropped,
            disturbed: 0,
            flags: Vec::new(),
        }
    }

    fn pooled(blocks: &[Figure]) -> Vec<Pooled> {
        super::super::pool(blocks.iter())
    }

    #[test]
    fn what_was_skipped_is_counted_over_the_blocks() {
        let late = [5e3, 2.5e6, 1.5e6, 0.5e6, 7e3];
        // The first block ends while the thread is late: the second one does not continue it.
        let all = pooled(&[figure(&[9e3, 3e6, 2e6], 0), figure(&late, 0)]);
        let found = all[0].wakeups.as_ref().unwrap().json();
        assert_eq!((&found["woken"], &found["skipped"]), (&5.into(), &3.into()));
        assert_eq!((&found["woken_p50_ns"], &found["woken_max_ns"]), (&9e3.into(), &3e6.into()));
        assert!(found["woken_p999_ns"].is_null(), "five samples carry no such quantile");
        let text = table(&all);
        assert!(text.contains("skipped") && text.contains("3.00 ms"), "{text}");
    }

    #[test]
    fn nothing_skipped_nothing_known_and_nothing_to_skip_are_distinguished() {
        let punctual = pooled(&[figure(&[5e3, 6e3], 0)]);
        assert_eq!(table(&punctual), "skipped 0: every period had a wake-up\n");
        let lost = pooled(&[figure(&[5e3, 2.5e6, 1.5e6, 0.5e6], 0), figure(&[5e3], 7)]);
        let text = table(&lost);
        assert!(text.starts_with("CPU 3: the skipped periods are unknown: 7"), "{text}");
        assert!(lost[0].wakeups.as_ref().unwrap().json()["skipped"].is_null());
        let other = Figure { probe: "io-latency".to_owned(), ..figure(&[5e3], 0) };
        assert_eq!(table(&pooled(&[other])), "");
    }
}
