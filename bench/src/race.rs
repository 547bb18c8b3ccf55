//! `race`: the number of starts that a race saves compared with the full matrix, whether it finds
//! the same winner, and how often the A/A pairs of recorded runs differ.
//!
//! Recorded matrices (`fixtures/tune/*.csv`, real runs of the demo guest in which every candidate
//! was started in every block) are replayed many times: blocks are drawn from the recorded ones,
//! the full matrix uses all drawn blocks, the race as many of them as it requests, with the
//! decisions of the engine. Nothing is started.

use pinfold_host::files;
use pinfold_model::{LoadState, Metric};
use pinfold_stats::random::Pcg32;
use pinfold_stats::{
    Block, Direction, Evidence, Rule, Verdict, blocks_needed, quantile, ratio_interval, sign_flip,
};
use pinfold_study::store::Store;
use pinfold_study::tune::{
    Costs, Goal, Matrix, NONE, Replayed, TWIN_NAME, TuneConfig, full, replay,
};

use crate::arguments::{Arguments, Failure};
use crate::page::{Figures, Table};

const FOLDER: &str = "fixtures/tune";
/// Number of races per row of the table.
const RACES: u32 = 400;
/// Numbers of blocks of the full matrix: the maximum of `tune`, and more.
const BLOCKS: [usize; 3] = [16, 24, 40];
/// Factor of the spread in the second part: a machine on which candidates are harder to
/// distinguish.
const SPREAD: f64 = 2.0;
const ALPHA: f64 = 0.05;
const MARGIN: f64 = 0.02;

/// Simulates the races.
pub fn run(arguments: &Arguments) -> Result<Figures, Failure> {
    if let Some(store) = &arguments.record {
        return record(store);
    }
    let mut races = table(&[
        "recorded",
        "goal",
        "blocks of the full matrix",
        "its starts",
        "starts of the race [5 % – 95 %]",
        "share",
        "same winner [95 %]",
        "another, not distinguishable",
        "another, worse",
        "at least",
    ]);
    let mut pairs = table(&["recorded", "blocks", "A/A pairs", "false verdicts"]);
    let mut all = (0, 0);
    for name in names()? {
        let matrix = read(&name)?;
        let found = aa_pairs(&matrix);
        let wrong = found.iter().filter(|verdict| is_wrong(verdict)).count();
        all = (all.0 + wrong, all.1 + found.len());
        let counts = [matrix.len(), found.len(), wrong].map(|count| count.to_string());
        pairs.rows.push([vec![name.clone()], counts.to_vec()].concat());
        // A race needs more than three candidates besides none and its twin.
        if matrix.names.len() > 5 {
            let noisy = matrix.with_spread(SPREAD);
            let noisy_name = format!("{name}, spread × {SPREAD}");
            for (matrix, name) in [(&matrix, &name), (&noisy, &noisy_name)] {
                for goal in [Goal::Latency, Goal::Throughput] {
                    for blocks in BLOCKS {
                        races.rows.push(row(matrix, (name, goal, blocks), arguments.seed)?);
                    }
                }
            }
        }
    }
    let (low, high) = wilson(all.0, all.1);
    let share = all.0 as f64 / all.1.max(1) as f64;
    pairs.rows.push(vec![
        "all".to_owned(),
        String::new(),
        all.1.to_string(),
        format!("{} ({:.1} % [{:.1}, {:.1}])", all.0, share * 100.0, low * 100.0, high * 100.0),
    ]);
    Ok(Figures {
        name: "race".to_owned(),
        title: "starts that a race saves, and which placement it finds".to_owned(),
        origin: format!(
            "recorded runs of the demo guest under TCG (fixtures/tune); {RACES} races per row; seed {}",
            arguments.seed
        ),
        tables: vec![races, pairs],
        notes: notes(),
    })
}

fn notes() -> Vec<String> {
    [
        "Blocks are drawn from the recorded ones with replacement; the full matrix takes all of \
         them, the race the first ones.",
        "Spread × 2: the same with what neither blocks nor candidates explain of the logarithms \
         doubled, as on a machine where candidates are harder to distinguish.",
        "“Not distinguishable”: the exact paired test over the blocks of that full matrix gives \
         p > 0.05 for the two winners; “worse”: it does not.",
        "“At least” is the share that no race can go below: two blocks of everybody and eight of \
         the winner, none and its twin.",
        "The A/A pairs are none and its twin, in each load state and metric, as recorded; a false \
         verdict is better or worse.",
    ]
    .map(str::to_owned)
    .to_vec()
}

fn table(head: &[&str]) -> Table {
    Table { head: head.iter().map(|text| (*text).to_owned()).collect(), rows: Vec::new() }
}

/// Recorded matrices, by name.
fn names() -> Result<Vec<String>, Failure> {
    let mut names: Vec<String> = files::list(FOLDER)?
        .into_iter()
        .filter_map(|name| Some(name.strip_suffix(".csv")?.to_owned()))
        .collect();
    names.sort();
    Ok(names)
}

fn read(name: &str) -> Result<Matrix, Failure> {
    let file = format!("{FOLDER}/{name}.csv");
    let text = files::read_text(&file)?;
    Matrix::from_text(&text).map_err(|error| format!("{file}: {error}").into())
}

/// Prints the values of a run as a matrix.
fn record(path: &str) -> Result<Figures, Failure> {
    let store = Store::open(path)?;
    let run = store.runs()?.last().copied().ok_or_else(|| format!("{path} holds no run"))?;
    let matrix = Matrix::of_run(&store, run)?;
    files::write_atomic(&format!("{path}.csv"), matrix.to_text().as_bytes())?;
    Ok(Figures {
        name: "race".to_owned(),
        title: format!("{} blocks of {} candidates", matrix.len(), matrix.names.len()),
        origin: format!("the store's last run, written to {path}.csv"),
        tables: Vec::new(),
        notes: Vec::new(),
    })
}

fn config(matrix: &Matrix, goal: Goal) -> TuneConfig {
    let costs = Costs { start_s: 1.0, state_s: 0.0, per_observed_s: 1.0 };
    let loads: Vec<LoadState> = LoadState::ALL
        .into_iter()
        .filter(|load| matrix.keys().iter().any(|(known, _)| known == load))
        .collect();
    TuneConfig { load_states: loads, ..TuneConfig::new(goal, 1.0, 1, costs) }
}

/// The results of the races of one row.
#[derive(Default)]
struct Tally {
    starts: Vec<f64>,
    same: usize,
    alike: usize,
    worse: usize,
}

fn row(
    matrix: &Matrix,
    (name, goal, blocks): (&str, Goal, usize),
    seed: u64,
) -> Result<Vec<String>, Failure> {
    let config = config(matrix, goal);
    let mut generator = Pcg32::new(seed, blocks as u64);
    let mut tally = Tally::default();
    let key = (config.goal_load(), config.metric());
    for _ in 0..RACES {
        let order: Vec<usize> = (0..blocks).map(|_| generator.index(matrix.len())).collect();
        let whole = full(matrix, &config, &order).ok_or("the matrix lacks the goal's numbers")?;
        let race = replay(matrix, &config, &order).ok_or("the race needs more blocks")?;
        tally.count(&whole, &race, differ(matrix, &order, (whole.winner, race.winner, key)));
    }
    let everybody = matrix.names.len();
    let whole = (everybody * blocks) as f64;
    let mean = tally.starts.iter().sum::<f64>() / tally.starts.len() as f64;
    let at = |q| quantile(&tally.starts, q).unwrap_or(0.0);
    let (low, high) = wilson(tally.same, RACES as usize);
    let percent = |count: usize| 100.0 * count as f64 / f64::from(RACES);
    // Two blocks of all candidates except the twin, eight of the winner, none and the twin.
    let least = (2 * (everybody - 1) + 8 * 3) as f64 / whole;
    Ok(vec![
        name.to_owned(),
        goal.name().to_owned(),
        blocks.to_string(),
        format!("{whole:.0}"),
        format!("{mean:.1} [{:.0} – {:.0}]", at(0.05), at(0.95)),
        format!("{:.0} %", 100.0 * mean / whole),
        format!("{:.0} % [{:.0}, {:.0}]", percent(tally.same), 100.0 * low, 100.0 * high),
        format!("{:.0} %", percent(tally.alike)),
        format!("{:.0} %", percent(tally.worse)),
        format!("{:.0} %", 100.0 * least),
    ])
}

impl Tally {
    fn count(&mut self, whole: &Replayed, race: &Replayed, differ: bool) {
        self.starts.push(f64::from(race.starts));
        match (whole.winner == race.winner, differ) {
            (true, _) => self.same += 1,
            (false, false) => self.alike += 1,
            (false, true) => self.worse += 1,
        }
    }
}

/// True if the exact test over these blocks finds a difference.
fn differ(
    matrix: &Matrix,
    order: &[usize],
    (one, other, key): (usize, usize, (LoadState, Metric)),
) -> bool {
    let logs: Vec<f64> = order
        .iter()
        .filter_map(|block| {
            let pair = (matrix.value(*block, one, key)?, matrix.value(*block, other, key)?);
            Some((pair.0 / pair.1).ln())
        })
        .collect();
    sign_flip(&logs).is_some_and(|p| p.value <= ALPHA)
}

/// The verdicts of none's twin against none, in each load state and metric.
fn aa_pairs(matrix: &Matrix) -> Vec<Verdict> {
    let (Some(none), Some(twin)) = (matrix.index(NONE), matrix.index(TWIN_NAME)) else {
        return Vec::new();
    };
    matrix
        .keys()
        .into_iter()
        .filter_map(|key| {
            let pair = |block| {
                Some(Block::pair(matrix.value(block, twin, key)?, matrix.value(block, none, key)?))
            };
            let blocks: Vec<Block> = (0..matrix.len()).filter_map(pair).collect();
            let logs: Option<Vec<f64>> =
                blocks.iter().map(|block| block.ratio().map(f64::ln)).collect();
            let evidence = Evidence {
                blocks: u32::try_from(blocks.len()).unwrap_or(u32::MAX),
                interval: ratio_interval(&blocks)?,
                p_holm: sign_flip(&logs?)?.value,
            };
            let direction = if key.1.higher_is_better() {
                Direction::HigherIsBetter
            } else {
                Direction::LowerIsBetter
            };
            let rule =
                Rule { alpha: ALPHA, margin: MARGIN, blocks_needed: blocks_needed(1, ALPHA) };
            Some(Verdict::of(&evidence, direction, &rule))
        })
        .collect()
}

fn is_wrong(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Better | Verdict::Worse)
}

/// Wilson's 95 % interval of a share.
fn wilson(count: usize, of: usize) -> (f64, f64) {
    let (n, z) = (of.max(1) as f64, 1.959_964_f64);
    let share = count as f64 / n;
    let middle = share + z * z / (2.0 * n);
    let half = z * (share * (1.0 - share) / n + z * z / (4.0 * n * n)).sqrt();
    let scale = 1.0 + z * z / n;
    (((middle - half) / scale).max(0.0), ((middle + half) / scale).min(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wilson_agrees_with_tables() {
        let (low, high) = wilson(9, 10);
        assert!((low - 0.5958).abs() < 1e-3 && (high - 0.9821).abs() < 1e-3, "{low} {high}");
        let (low, high) = wilson(0, 20);
        assert!(low.abs() < 1e-9 && (high - 0.1611).abs() < 1e-3);
    }

    #[test]
    fn recorded_runs_read_and_their_twins_seldom_differ() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../", "fixtures/tune");
        let names = files::list(folder).unwrap();
        let (mut wrong, mut all) = (0, 0);
        for name in names.iter().filter(|name| name.ends_with(".csv")) {
            let text = files::read_text(&format!("{folder}/{name}")).unwrap();
            let verdicts = aa_pairs(&Matrix::from_text(&text).unwrap());
            wrong += verdicts.iter().filter(|verdict| is_wrong(verdict)).count();
            all += verdicts.len();
        }
        assert!(all >= 60, "{all} A/A pairs");
        assert!(wrong * 20 < all, "{wrong} of {all} A/A pairs were given a verdict");
    }
}
