//! `gap`: the longest stall of a pinned guest, compared with an unpinned one.
//!
//! Runs `pinfold tune` on the demo guest with the two strategies; each block starts the guest once
//! under each plan, in random order. It takes eight minutes and needs a machine without other work.

use pinfold_host::process;
use pinfold_model::Metric;
use pinfold_study::store::Store;
use pinfold_study::tune;

use crate::arguments::{Arguments, Failure};
use crate::page::{Figures, Table};
use crate::scratch::Scratch;
use crate::topo;

/// Time for 8 blocks with observations of one second.
const BUDGET: &str = "7m";
const TIMEOUT_NS: u64 = 3_600_000_000_000;

/// Runs it and reads the result from its store.
pub fn run(arguments: &Arguments) -> Result<Figures, Failure> {
    let pinfold = topo::program_beside(arguments)?;
    let scratch = Scratch::on_disk()?;
    let (store, page) = (scratch.file("gap.sqlite"), scratch.file("gap.html"));
    let seed = arguments.seed.to_string();
    let words = [
        ["tune", "--demo", "--strategies", "none,low-latency"].as_slice(),
        &["--budget", BUDGET, "--seed", &seed, "--store", &store, "--report", &page],
    ];
    let output = process::capture(&pinfold, words.concat(), TIMEOUT_NS)?;
    if !output.status.success() {
        return Err(format!("pinfold tune failed: {}", output.stderr_text().trim()).into());
    }
    let store = Store::open(&store)?;
    let run = store.runs()?.last().copied().ok_or("pinfold tune left no run in its store")?;
    let report = tune::analyse(&store, run)?;
    let mut table = Table {
        head: ["load", "plan", "blocks", "median", "worst", "ratio to none [95 %], p (Holm)"]
            .map(str::to_owned)
            .to_vec(),
        rows: Vec::new(),
    };
    for row in &report.ranking {
        for cell in row.cells.iter().filter(|cell| cell.metric == Metric::SpinGap) {
            let against = cell.against_baseline.as_ref();
            let ratio = against.and_then(|contrast| {
                let (interval, p) = (contrast.interval?, contrast.p_holm?);
                Some(format!(
                    "{:.2} [{:.2}, {:.2}], p = {p:.4}",
                    interval.ratio, interval.low, interval.high
                ))
            });
            table.rows.push(vec![
                cell.load.to_string(),
                row.name.clone(),
                cell.blocks.len().to_string(),
                format!("{:.3} ms", cell.median / 1e6),
                format!("{:.3} ms", cell.worst / 1e6),
                ratio.unwrap_or_else(|| "–".to_owned()),
            ]);
        }
    }
    table.rows.sort();
    let origin = &report.origin;
    Ok(Figures {
        name: "gap".to_owned(),
        title: "the longest stall of a guest, pinned and unpinned".to_owned(),
        origin: format!(
            "{}, Linux {}; the demo guest under {}; Pinfold {}; seed {}",
            origin.cpu_model, origin.kernel, origin.accelerator, origin.pinfold, origin.seed
        ),
        tables: vec![table],
        notes: vec!["A gap is a stretch in which a spinning thread inside the guest did not run; per start the longest counts.".to_owned()],
    })
}
