//! Pinfold's benchmarks, each together with its competitor, in the same run, in random order.
//!
//! `cargo xtask bench` runs them; `cargo xtask bench pin --write` also writes the figures to
//! `docs/figures.md`. A figure has the machine on which it was measured, its spread, and the
//! interval of its ratio to the competitor (bootstrap over the rounds, `pinfold_stats`).
//! Nothing here is a test: a slow machine gives other figures, not a failure.

mod benchmarks;
mod emulate;
mod first_second;
mod gap;
mod guest;
mod limits;
mod origin;
mod page;
mod pairs;
mod pin;
mod plan;
mod race;
mod react;
mod scale;
mod scratch;
mod simulated;
mod study;
mod topo;
mod watch;

use std::io::Write as _;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use pinfold_host::with_causes;

/// Why a benchmark did not run; its causes are printed after it.
pub type Failure = Box<dyn std::error::Error>;

/// Runs Pinfold's benchmarks, each beside its rival.
#[derive(Debug, Parser)]
#[command(name = "pinfold-bench")]
pub struct Arguments {
    /// Which [default: pin, plan, topo and first-second; the others need a machine without other work, or minutes]
    names: Vec<Name>,
    /// Rounds; each runs every contender once [default: as many as the benchmark needs]
    #[arg(long, value_name = "N")]
    rounds: Option<u32>,
    /// Begin no further block after so many minutes (emulate)
    #[arg(long, value_name = "N")]
    minutes: Option<u32>,
    /// Seed of the random order
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Put the figures into a page [default: docs/figures.md, docs/emulation.md, docs/emulation-limits.md, docs/rulers.md, docs/scale.md]
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    write: Option<Option<String>>,
    /// A first look of a few minutes (emulate), of the first cache only (memory of rulers), of 100
    /// nodes (scale), of two blocks and a store of 800 trials (study)
    #[arg(long)]
    quick: bool,
    /// Only these, by their names in the tables, with commas between them (emulate, rulers)
    #[arg(long, value_name = "NAMES")]
    only: Option<String>,
    /// The `pinfold` program [default: the one beside this program]
    #[arg(long, value_name = "FILE")]
    pinfold: Option<String>,
    /// Write the numbers of this store's last run beside it, as a matrix to race on (race)
    #[arg(long, value_name = "STORE")]
    record: Option<String>,
    /// The folder of captured machines
    #[arg(long, value_name = "DIRECTORY", default_value = "fixtures/hosts")]
    hosts: String,
}

/// A benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Name {
    /// Finding and pinning all threads of a guest with 32 vCPUs
    Pin,
    /// Planning 10,000 vCPUs on 4,096 PUs, and less on less
    Plan,
    /// Showing a host's topology
    Topo,
    /// Where a guest runs before it is pinned
    FirstSecond,
    /// What watching ten guests costs, and how soon a new thread is placed
    Watch,
    /// The worst gap, pinned against left alone
    Gap,
    /// Starts that a race of placements saves on recorded data, and whom it finds
    Race,
    /// How true the speed of a virtual node is, by method
    Emulate,
    /// What an emulated CPU cannot hide
    Limits,
    /// How soon an emulated speed changes, and how close a replayed load is
    React,
    /// How accurate the benchmarks are, each compared with the best reference tool
    #[value(alias = "rulers")]
    Benchmarks,
    /// A study on a simulated cluster of 10,000 nodes
    Scale,
    /// What a study costs besides its workload, and how soon a large store answers
    Study,
}

const PAGE: &str = "docs/figures.md";
const USUAL: [Name; 4] = [Name::Pin, Name::Plan, Name::Topo, Name::FirstSecond];

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            let text = format!("pinfold-bench: {}", with_causes(failure.as_ref()));
            // If standard error is closed, there is no one to report to.
            match writeln!(std::io::stderr(), "{text}") {
                Ok(()) | Err(_) => ExitCode::FAILURE,
            }
        }
    }
}

fn run(arguments: &Arguments) -> Result<(), Failure> {
    let names = if arguments.names.is_empty() { &USUAL[..] } else { &arguments.names };
    for name in names {
        let figures = match name {
            Name::Pin => pin::run(arguments),
            Name::Plan => plan::run(arguments),
            Name::Topo => topo::run(arguments),
            Name::FirstSecond => first_second::run(arguments),
            Name::Watch => watch::run(arguments),
            Name::Gap => gap::run(arguments),
            Name::Race => race::run(arguments),
            Name::React => react::run(arguments),
            Name::Study => study::run(arguments),
            Name::Emulate => {
                // It has its own page, with pictures.
                emulate::run(arguments)?;
                continue;
            }
            Name::Limits => {
                limits::run(arguments)?;
                continue;
            }
            Name::Benchmarks => {
                benchmarks::run(arguments)?;
                continue;
            }
            Name::Scale => {
                scale::run(arguments)?;
                continue;
            }
        }?;
        let section = figures.to_markdown();
        std::io::stdout().write_all(section.as_bytes())?;
        // Written after each benchmark, so that a later failure loses nothing.
        if let Some(file) = &arguments.write {
            page::put(file.as_deref().unwrap_or(PAGE), page::HEAD, &figures.name, &section)?;
        }
    }
    Ok(())
}
