//! Contenders, measured in rounds of random order, and the statistics of their times.
//!
//! Each round runs every contender once. Changes of the machine (load of other virtual machines, a
//! warmer cache) affect all of them, and the ratio is computed inside the round.

use pinfold_host::{Clock as _, SystemClock, process};
use pinfold_stats::random::Pcg32;
use pinfold_stats::{Block, median, quantile, ratio_interval, sign_flip};

use crate::arguments::{Arguments, Failure};
use crate::page::Table;

const TIMEOUT_NS: u64 = 600_000_000_000;

/// One implementation of the job.
pub struct Contender<'c> {
    /// Its name in the table.
    pub name: String,
    /// Runs it once and returns its time in nanoseconds, without preparation and cleanup.
    pub run: Box<dyn FnMut() -> Result<f64, Failure> + 'c>,
}

impl<'c> Contender<'c> {
    /// A contender.
    pub fn new(name: &str, run: impl FnMut() -> Result<f64, Failure> + 'c) -> Self {
        Self { name: name.to_owned(), run: Box::new(run) }
    }
}

/// Times of one contender, one per round.
pub struct Times {
    /// Name of the contender.
    pub name: String,
    /// The times (ns).
    pub samples: Vec<f64>,
}

/// Runs all contenders: one warm-up round and then `rounds` that count.
pub fn rounds(
    contenders: &mut [Contender<'_>],
    rounds: u32,
    seed: u64,
) -> Result<Vec<Times>, Failure> {
    let mut random = Pcg32::new(seed, 0);
    let mut samples = vec![Vec::new(); contenders.len()];
    let mut order: Vec<usize> = (0..contenders.len()).collect();
    for round in 0..=rounds {
        random.shuffle(&mut order);
        for &index in &order {
            let time = (contenders[index].run)()?;
            if round > 0 {
                samples[index].push(time);
            }
        }
    }
    let names = contenders.iter().map(|contender| contender.name.clone());
    Ok(names.zip(samples).map(|(name, samples)| Times { name, samples }).collect())
}

/// The table of some contenders, with the ratio of each to the competitors.
pub fn table(times: &[Times], rivals: &[usize]) -> Table {
    let mut head = vec!["what".to_owned(), "median".to_owned(), "5 % – 95 %".to_owned()];
    head.extend(rivals.iter().map(|rival| format!("ratio to “{}” [95 %], p", times[*rival].name)));
    let rows = times.iter().enumerate().map(|(index, one)| {
        let mut row = vec![one.name.clone(), milliseconds(median(&one.samples)), spread(one)];
        row.extend(rivals.iter().map(|rival| {
            if index == *rival {
                "1".to_owned()
            } else {
                ratio(&one.samples, &times[*rival].samples)
            }
        }));
        row
    });
    Table { rows: rows.collect(), head }
}

/// The range of nine tenths of the times.
pub fn spread(times: &Times) -> String {
    format!(
        "{} – {}",
        milliseconds(quantile(&times.samples, 0.05)),
        milliseconds(quantile(&times.samples, 0.95))
    )
}

/// Nanoseconds since this time.
pub fn since(begin_ns: u64) -> f64 {
    SystemClock.now_ns().saturating_sub(begin_ns) as f64
}

/// Nanoseconds as milliseconds.
pub fn milliseconds(ns: Option<f64>) -> String {
    ns.map_or_else(|| "–".to_owned(), |ns| format!("{:.3} ms", ns / 1e6))
}

/// Ratio with its interval and the p-value of the exact test; the ratio alone with one round, which
/// has no interval.
pub fn ratio(candidate: &[f64], rival: &[f64]) -> String {
    let blocks: Vec<Block> =
        candidate.iter().zip(rival).map(|(a, b)| Block::pair(*a, *b)).collect();
    let logs: Vec<f64> = blocks.iter().filter_map(Block::ratio).map(f64::ln).collect();
    match (ratio_interval(&blocks), sign_flip(&logs), blocks.first().and_then(Block::ratio)) {
        (Some(found), Some(p), _) => {
            format!("{:.2} [{:.2}, {:.2}], {}", found.ratio, found.low, found.high, p_text(p))
        }
        (_, _, Some(ratio)) => format!("{ratio:.2} [one round]"),
        (_, _, None) => "–".to_owned(),
    }
}

fn p_text(p: f64) -> String {
    if p < 0.001 { "p < 0.001".to_owned() } else { format!("p = {p:.3}") }
}

/// The `pinfold` program: the one on the command line, or the one that was built with this one.
pub fn program_beside(arguments: &Arguments) -> Result<String, Failure> {
    let path = arguments.pinfold.clone().map_or_else(
        || -> Result<String, Failure> {
            let own = std::env::current_exe()?;
            Ok(own.with_file_name("pinfold").to_string_lossy().into_owned())
        },
        Ok,
    )?;
    let found = process::find_program(&path).ok_or_else(|| {
        format!("there is no program {path}; build it (cargo build --release -p pinfold) or name it with --pinfold")
    })?;
    // A benchmark may link to it from its own folder.
    Ok(std::path::absolute(found)?.to_string_lossy().into_owned())
}

/// Runs a program to its end; it must succeed and print something.
pub fn time(program: &str, words: &[&str]) -> Result<f64, Failure> {
    let begin = SystemClock.now_ns();
    let output = process::capture(program, words, TIMEOUT_NS)?;
    let end = SystemClock.now_ns();
    if !output.status.success() || output.stdout.is_empty() {
        let said = output.stderr_text();
        return Err(format!("`{program} {}` failed: {}", words.join(" "), said.trim()).into());
    }
    Ok(end.saturating_sub(begin) as f64)
}
