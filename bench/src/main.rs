//! Pinfold's benchmarks, each together with its competitor, in the same run, in random order.
//!
//! `cargo xtask bench` runs them; `cargo xtask bench pin --write` also writes the figures to
//! `docs/figures.md`. A figure has the machine on which it was measured, its spread, and the
//! interval of its ratio to the competitor (bootstrap over the rounds, `pinfold_stats`).
//! Nothing here is a test: a slow machine gives other figures, not a failure.

mod arguments;
mod emulate;
mod exits;
mod first_second;
mod gaps;
mod guest;
mod like;
mod live;
mod numad;
mod origin;
mod page;
mod pairs;
mod pin;
mod plan;
mod programs;
mod quiet;
mod rows;
mod scale;
mod scratch;
mod simulated;
mod start;
mod top;
mod watch;

use std::io::Write as _;
use std::process::ExitCode;

use clap::{Parser as _, ValueEnum as _};
use pinfold_host::with_causes;

use arguments::{Arguments, Failure, Name};

const PAGE: &str = "docs/figures.md";

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
    if let Some(steps) = arguments.work {
        return quiet::work(steps);
    }
    if let Some(seed) = arguments.load {
        return quiet::load(seed);
    }
    let mut names = arguments.names.clone();
    if names.is_empty() {
        names.extend(Name::value_variants().iter().filter(|name| name.runs_by_default()));
    }
    for name in names {
        let figures = match name {
            Name::Pin => pin::run(arguments),
            Name::Plan => plan::run(arguments),
            Name::FirstSecond => first_second::run(arguments),
            Name::Exits => exits::run(arguments),
            Name::Gaps => gaps::run(arguments),
            Name::Watch => watch::run(arguments),
            Name::Quiet => quiet::run(arguments),
            Name::Numad => numad::run(arguments),
            Name::Start => start::run(arguments),
            Name::Programs => programs::run(arguments),
            Name::Top => top::run(arguments),
            Name::Live => live::run(arguments),
            Name::Like => like::run(arguments),
            Name::Emulate => {
                // It has its own page, with pictures.
                emulate::run(arguments)?;
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
