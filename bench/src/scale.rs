//! `scale`: a study on a simulated cluster of 10,000 nodes ([`crate::simulated`]).
//!
//! The time of the collector is measured. Real parts: the design, the list of tasks, the parsing of
//! `squeue` output, the results with their checks, the files of a shared folder, and the store.
//! Slurm's daemons and the network are not simulated.

use pinfold_host::{Clock as _, LiveHost, SystemClock, files};
use pinfold_stats::quantile;

use crate::arguments::{Arguments, Failure};
use crate::origin;
use crate::page::{self, Table, thousands};
use crate::pairs::{milliseconds, since};
use crate::pairs::{program_beside, time};
use crate::scratch::Scratch;
use crate::simulated::{Simulation, Size};

const PAGE: &str = "docs/scale.md";
/// Maximum number of results written as files.
const MOST_FILES: u32 = 4_000;
const STATUS_ROUNDS: usize = 9;

/// Runs it and prints the section; `--write` writes it to the page.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let size = Size::from_quick(arguments.quick);
    let host = LiveHost::new()?;
    let topology = pinfold_topology::discover(&host)?;
    let scratch = Scratch::on_disk()?;
    let file_system = origin::file_system(&host, scratch.path())?;
    let path = scratch.file("scale.sqlite");
    let mut simulation = Simulation::begin(size, &path, arguments.seed)?;
    simulation.until_done()?;
    let mut table = table(&simulation, &path)?;
    table.rows.extend(files(&mut simulation, &scratch)?);
    table.rows.push(status(arguments, &path)?);
    let place = origin::of_host(&host, &topology)?;
    let text = format!(
        "{} nodes, {} parts of 4 trials each, 2 figures of 20 samples per trial; on {place}, \
         {file_system}, Pinfold {}, seed {}.\n\n{}",
        thousands(size.nodes as f64),
        thousands(f64::from(size.parts())),
        env!("CARGO_PKG_VERSION"),
        arguments.seed,
        table.to_markdown()
    );
    std::io::Write::write_all(
        &mut std::io::stdout(),
        format!("\n## scale: a simulated cluster\n\n{text}").as_bytes(),
    )?;
    if let Some(file) = &arguments.write {
        page::put_between(file.as_deref().unwrap_or(PAGE), "scale", &text)?;
    }
    Ok(())
}

fn table(simulation: &Simulation, path: &str) -> Result<Table, Failure> {
    let head = vec!["what".to_owned(), "figure".to_owned()];
    let rows = [turn_rows(simulation), merge_rows(simulation, files::read(path)?.len())].concat();
    Ok(Table { head, rows })
}

/// The cost of a turn.
fn turn_rows(simulation: &Simulation) -> Vec<Vec<String>> {
    let tally = &simulation.tally;
    let turn = |index: usize| {
        let times: Vec<f64> = tally.turns.iter().map(|turn| turn[index]).collect();
        let [median, largest] = [0.5, 1.0].map(|p| milliseconds(quantile(&times, p)));
        format!("{median} (largest {largest})")
    };
    let (minutes, hours) = (simulation.minutes(), thousands(tally.busy_ms as f64 / 3.6e6));
    let kilobytes = thousands(tally.queue_bytes as f64 / 1e3);
    vec![
        row("reading the study file, making its cells", milliseconds(Some(tally.first_look_ns))),
        row("laying out all parts, before the first task", milliseconds(Some(tally.begun_ns))),
        row("time of the simulated run", format!("{minutes:.1} min: {hours} node hours")),
        row("tasks lost with their nodes", losses(tally.lost, tally.given_up)),
        row("turns of the collector", tally.turns.len().to_string()),
        row("reading one answer of `squeue`, median", turn(0)),
        row("the largest such answer", format!("{kilobytes} kB")),
        row("comparing the ledger with it, median", turn(1)),
        row("noting what was submitted, median", turn(2)),
    ]
}

/// The result for the lost tasks.
fn losses(lost: u64, given_up: u64) -> String {
    match given_up {
        0 => format!("{lost}, each run again"),
        parts => format!(
            "{lost}, of these {parts} as the second task of their part: such a part gives no \
             result, its trials are recorded as failed; the others are run again"
        ),
    }
}

/// The cost of the results.
fn merge_rows(simulation: &Simulation, store: usize) -> Vec<Vec<String>> {
    let tally = &simulation.tally;
    let (results, trials) = (simulation.results() as f64, simulation.trials() as f64);
    let merge_s = tally.merges.iter().map(|one| one.2).sum::<f64>() / 1e9;
    let size = |bytes: usize| {
        let each = thousands(bytes as f64 / trials);
        format!("{:.1} MB, {each} bytes per trial", bytes as f64 / 1e6)
    };
    let all =
        format!("{merge_s:.1} s for {} results, {} trials", thousands(results), thousands(trials));
    vec![
        row(
            "merging: digest, checks, store with `fsync`, 256 results at a time",
            format!(
                "{} results/s, {} trials/s",
                thousands(results / merge_s),
                thousands(trials / merge_s)
            ),
        ),
        row("merging all results that there are", all),
        row("results as they travel", size(tally.result_bytes)),
        row("store", size(store)),
    ]
}

fn row(what: &str, figure: String) -> Vec<String> {
    vec![what.to_owned(), figure]
}

/// Results as files in a folder, a thousand parts per subfolder: written, listed, read.
fn files(simulation: &mut Simulation, scratch: &Scratch) -> Result<Vec<Vec<String>>, Failure> {
    let count = simulation.parts().min(MOST_FILES);
    let mut paths = Vec::new();
    let mut write_ns = 0.0;
    for part in 0..count {
        let folder = scratch.file(&format!("results/{}", part / 1000));
        files::make_dirs(&folder)?;
        let path = format!("{folder}/{part}-1.json");
        let text = simulation.result(part, 1)?;
        let begin = SystemClock.now_ns();
        files::write_atomic(&path, text.as_bytes())?;
        write_ns += since(begin);
        paths.push(path);
    }
    let begin = SystemClock.now_ns();
    for shard in files::list(&scratch.file("results"))? {
        files::list(&scratch.file(&format!("results/{shard}")))?;
    }
    let list_ns = since(begin);
    let begin = SystemClock.now_ns();
    paths.iter().try_for_each(|path| files::read(path).map(drop))?;
    let read_ns = since(begin);
    let n = thousands(f64::from(count));
    Ok(vec![
        row(
            "writing a result's file (temporary, `fsync`, rename)",
            milliseconds(Some(write_ns / f64::from(count.max(1)))),
        ),
        row(&format!("listing {n} of them in shards"), milliseconds(Some(list_ns))),
        row("reading one", milliseconds(Some(read_ns / f64::from(count.max(1))))),
    ])
}

/// The whole program, from its start to its end.
fn status(arguments: &Arguments, path: &str) -> Result<Vec<String>, Failure> {
    let pinfold = program_beside(arguments)?;
    let times = (0..STATUS_ROUNDS)
        .map(|_| time(&pinfold, &["study", "status", path]))
        .collect::<Result<Vec<f64>, Failure>>()?;
    let at = |p| milliseconds(quantile(&times, p));
    let figure = format!("{} (5 to 95 %: {} to {})", at(0.5), at(0.05), at(0.95));
    Ok(row("`pinfold study status`, the whole program, median", figure))
}
