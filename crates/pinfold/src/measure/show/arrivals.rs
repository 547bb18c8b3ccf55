//! Scheduling stalls as seen by arrivals at random times, which is the view for comparisons
//! (`docs/decisions/arrival-view.md`), in addition to the table of stalls.

use pinfold_model::{GAP_FLOOR_NS, Unit};
use pinfold_report::format::{self, MISSING};
use pinfold_stats::RandomArrival;

use super::Pooled;
use crate::screen;

/// Waits (ns), and their columns.
const WAITS: [(f64, &str); 3] = [(10e3, "> 10 µs"), (100e3, "> 100 µs"), (1e6, "> 1 ms")];

/// The arrivals of all CPUs, as a table.
pub fn table(all: &[Pooled]) -> String {
    let mut table = screen::rows();
    let waits = WAITS.iter().map(|(_, name)| *name);
    table.set_header(["CPU", "time taken"].into_iter().chain(waits).chain(["mean wait"]));
    for one in all {
        let figure = &one.figure;
        let cpu = figure.cpu.map_or_else(|| MISSING.to_owned(), |cpu| cpu.to_string());
        // The lengths of dropped stalls are unknown.
        let arrivals = RandomArrival::new(figure.samples.clone(), figure.duration_ns)
            .filter(|_| figure.dropped == 0);
        let cells = arrivals.map_or_else(
            || vec![MISSING.to_owned(); WAITS.len() + 2],
            |arrivals| cells(&arrivals, figure.duration_ns),
        );
        table.add_row([cpu].into_iter().chain(cells));
    }
    format!(
        "\narrivals at random moments: the share that finds the CPU busy, and their mean \
         wait\n{}\n",
        screen::draw_table(table, 1..WAITS.len() + 3)
    )
}

fn cells(arrivals: &RandomArrival, observed_ns: u64) -> Vec<String> {
    let floor = GAP_FLOOR_NS as f64 / observed_ns.max(1) as f64;
    // No stall was seen: the share is below that of the shortest detectable stall.
    let share = |share: f64| {
        if share < floor { format!("< {}", format::percent(floor)) } else { format::percent(share) }
    };
    let mut cells = vec![share(arrivals.wait_probability())];
    cells.extend(WAITS.iter().map(|(wait, _)| share(arrivals.exceedance_probability(*wait))));
    cells.push(if arrivals.max_ns() > 0.0 {
        format::value(arrivals.mean_ns(), Unit::Nanoseconds)
    } else {
        MISSING.to_owned()
    });
    cells
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use pinfold_model::{Family, Figure};

    use super::*;

    fn pooled(samples: &[f64], dropped: u64) -> Vec<Pooled> {
        let figure = Figure {
            probe: "spin-gap".to_owned(),
            labels: BTreeMap::from([("duty-percent".to_owned(), "50".to_owned())]),
            unit: Unit::Nanoseconds,
            family: Family::Tail,
            cpu: Some(3),
            duration_ns: 1_000_000_000,
            samples: samples.to_vec(),
            dropped,
            disturbed: 0,
            flags: Vec::new(),
        };
        super::super::pool([figure].iter())
    }

    #[test]
    fn shares_of_arrivals_stand_next_to_the_gaps() {
        let text = table(&pooled(&[5e6, 50e3], 0));
        // 5.05 ms of a second, 5.03 beyond 10 µs each, 4.9 beyond 100 µs, 4 beyond 1 ms.
        for word in ["0.505 %", "0.503 %", "0.490 %", "0.400 %", "12.5 µs"] {
            assert!(text.contains(word), "{word}\n{text}");
        }
        let quiet = table(&pooled(&[], 0));
        assert!(quiet.contains("< 1.00e-4 %") && !quiet.contains(" 0 "), "{quiet}");
        assert!(!table(&pooled(&[5e6], 1)).contains('%'), "what was lost may be the most");
    }
}
