//! Disks: the built-in I/O benchmark and fio, on the same file with reads of the same size,
//! alternately.
//!
//! The times of a disk vary more than the error of any tool. So the goal is fio's own difference
//! from itself in the same blocks, as for wake-ups that of cyclictest.

use pinfold_host::LiveHost;
use pinfold_host::files::{self, StateDir};
use pinfold_model::{CpuSet, Statistic};
use pinfold_probe::benchmarks::{Benchmark, Disk, IoTarget, SchedPolicy};
use pinfold_probe::job::Job;
use pinfold_probe::loads::Placement;
use pinfold_probe::pinload::Pinload;
use pinfold_probe::reference_tools::ReferenceTool;
use pinfold_probe::settings::Settings;
use pinfold_stats::random::Pcg32;
use pinfold_stats::{Block, Direction, of_samples, ratio_interval};

use super::{Goal, Measured, Row, last_pu, table};
use crate::arguments::{Arguments, Failure};
use crate::origin;
use crate::scratch::Scratch;

const BLOCKS: u32 = 20;
const RUN_NS: u64 = 2_000_000_000;
const FILE_MIB: usize = 256;
const SHOWN: [(&str, Statistic); 3] =
    [("median", Statistic::Median), ("mean", Statistic::Mean), ("p99.9", Statistic::P999)];

/// Measures the rows.
pub fn run(arguments: &Arguments) -> Result<Measured, Failure> {
    ReferenceTool::Fio.program()?;
    let host = LiveHost::new()?;
    let folder = Scratch::on_disk()?;
    let scratch = StateDir::open(&folder.file("reference-tools"))?;
    let pinload = Pinload::install()?;
    let mut random = Pcg32::new(arguments.seed, 6);
    let file = folder.file("data");
    files::write_atomic(&file, &contents(&mut random))?;
    let cpus = CpuSet::single(last_pu()?);
    let settings = settings(&cpus, &file);
    let job =
        Job::Benchmark(Benchmark::io_latency(Disk::Virtio, IoTarget::File(file.clone()), RUN_NS));
    let place = Placement { cgroup_files: Vec::new(), affinity: Some(cpus.clone()) };
    let count = arguments.rounds.unwrap_or(BLOCKS);
    // Ours, fio, fio again: each of the statistics.
    let mut values: [[Vec<f64>; 3]; 3] = Default::default();
    for _ in 0..count {
        let mut order = [0, 1, 2];
        random.shuffle(&mut order);
        for which in order {
            let found = match which {
                0 => ours(&job, &pinload, &place)?,
                _ => theirs(&settings, &scratch)?,
            };
            for (statistic, value) in found.into_iter().enumerate() {
                values[which][statistic].extend(value);
            }
        }
    }
    let (rows, note) = rows(values)?;
    Ok(Measured {
        conditions: format!(
            "CPU {cpus}; {count} blocks of {} s; a file of {FILE_MIB} MiB on {}; {}; seed {}",
            RUN_NS / 1_000_000_000,
            origin::file_system(&host, &file)?,
            ReferenceTool::Fio.tried(),
            arguments.seed
        ),
        table: table(&rows),
        notes: vec![
            note,
            "fio's quantiles are those of its histogram, to 1 % of their value; its mean is exact."
                .to_owned(),
        ],
    })
}

fn settings(cpus: &CpuSet, file: &str) -> Settings {
    Settings {
        duration_ns: RUN_NS,
        cpus: cpus.clone(),
        policy: SchedPolicy::Other,
        period_us: None,
        duty_percent: None,
        keep_awake: false,
        target: Some(IoTarget::File(file.to_owned())),
        more: Vec::new(),
    }
}

/// Bytes that no disk can omit.
fn contents(random: &mut Pcg32) -> Vec<u8> {
    let words = (FILE_MIB << 20) / 4;
    (0..words).flat_map(|_| random.below(u32::MAX).to_le_bytes()).collect()
}

type Values = [Option<f64>; 3];

fn ours(job: &Job, pinload: &Pinload, place: &Placement) -> Result<Values, Failure> {
    let figures = job.run_on_host(pinload, place)?;
    let samples: Vec<f64> = figures.into_iter().flat_map(|figure| figure.samples).collect();
    Ok(SHOWN.map(|(_, what)| of_samples(&samples, what, Direction::LowerIsBetter)))
}

fn theirs(settings: &Settings, scratch: &StateDir) -> Result<Values, Failure> {
    let found = ReferenceTool::Fio.run(settings, &[], (&Placement::default(), scratch))?;
    let of = |what| found.readings.iter().find(|one| one.statistic == what).map(|one| one.value);
    Ok(SHOWN.map(|(_, what)| of(what)))
}

/// Two rows for each statistic: ours, and the reference tool compared with itself.
fn rows([ours, one, other]: [[Vec<f64>; 3]; 3]) -> Result<(Vec<Row>, String), Failure> {
    let (mut rows, mut words) = (Vec::new(), Vec::new());
    for (index, (name, _)) in SHOWN.into_iter().enumerate() {
        let blocks: Vec<Block> = other[index]
            .iter()
            .zip(&one[index])
            .map(|(other, one)| Block::pair(*other, *one))
            .collect();
        if ours[index].len() != blocks.len() || one[index].len() != blocks.len() {
            words.push(format!("{name} has no row, because a run had too few reads for it"));
            continue;
        }
        let own = ratio_interval(&blocks).ok_or("two blocks are needed at least")?;
        words.push(format!("{name} {:.3} to {:.3}", own.low, own.high));
        let row = |what: &str, how: &str, ours: &[f64], goal| Row {
            benchmark: format!("read of 4 KiB past the page cache, {name}{what}"),
            how: how.to_owned(),
            reference_tool: "fio, psync".to_owned(),
            ours: ours.to_vec(),
            theirs: one[index].clone(),
            text: microseconds,
            goal,
        };
        let goal = Goal::Within(own.low, own.high);
        rows.push(row("", "pinload io-latency --direct", &ours[index], goal));
        rows.push(row(": the reference tool again", "fio (A/A)", &other[index], Goal::None));
    }
    let note = format!(
        "The goal is fio's own difference from itself in the same blocks ({}); *open* there means unknown.",
        words.join(", ")
    );
    Ok((rows, note))
}

fn microseconds(ns: f64) -> String {
    format!("{:.1} µs", ns / 1e3)
}

#[cfg(test)]
mod tests {
    use super::rows;

    #[test]
    fn what_a_run_had_too_few_reads_for_has_no_row_and_is_reported() {
        let of = |value: f64, tail: usize| [vec![value; 3], vec![value; 3], vec![value; tail]];
        let (some, note) = rows([of(1.0, 2), of(1.0, 3), of(1.1, 3)]).unwrap();
        let names: Vec<&str> = some.iter().map(|row| row.benchmark.as_str()).collect();
        assert_eq!(names.len(), 4, "{names:?}");
        assert!(note.contains("p99.9 has no row") && note.contains("median 1.100"), "{note}");
        let (all, _) = rows([of(1.0, 3), of(1.0, 3), of(1.0, 3)]).unwrap();
        assert_eq!(all.len(), 6);
    }
}
