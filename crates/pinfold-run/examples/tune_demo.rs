//! Tunes the demo guest without the binary: two placements against none, in two minutes.
//! `cargo run -p pinfold-run --example tune_demo`

#![expect(clippy::print_stdout, reason = "the example prints its result")]

use pinfold_model::CpuSet;
use pinfold_run::guest::{Scratch, Subject};
use pinfold_run::tune::{self, Display, Options, TuningHost};
use pinfold_run::{Failure, HelperProgram, host, inputs, interrupt};
use pinfold_study::tune::{Goal, Update, analyse};

fn main() -> Result<(), Failure> {
    interrupt::install()?;
    let host = host::live()?;
    let topology = inputs::topology(&host, None)?;
    let scratch = Scratch::new(&host)?;
    let mut subject = Subject::demo(1, &scratch)?;
    let options = Options {
        goal: Goal::Latency,
        max_gap_ns: None,
        budget_ns: 120_000_000_000,
        strategies: ["balanced", "compact"].map(str::to_owned).to_vec(),
        full: false,
        avoid: CpuSet::new(),
        ignore_claims: false,
        store: "tune-demo.sqlite".to_owned(),
        resume: None,
        seed: None,
        command: "tune_demo".to_owned(),
    };
    let mut progress = |update: &Update<'_>| println!("{} of {}", update.done, update.total);
    let display = Display { begins: &|_, _, _| {}, progress: &mut progress };
    let program = HelperProgram::at("pinfold"); // from PATH
    let on = TuningHost { host: &host, topology: &topology, state: None, program: &program };
    let (store, run) = tune::tune(&options, on, &mut subject, display)?;
    let winner = analyse(&store, run).ok().and_then(|report| report.winner);
    println!("winner: {}", winner.map_or("none".to_owned(), |winner| winner.name));
    Ok(())
}
