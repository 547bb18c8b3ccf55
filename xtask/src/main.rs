//! The developer commands: `cargo xtask demo`, `test`, `ci-local`, `lab`, `bench`, `fuzz`, `musl`,
//! `dist`, `docs`, `tidy`, `golden`, `bpf`.
//!
//! It has no dependencies and uses an old edition, so that a cargo that is too old for
//! the workspace still builds it and prints in one line what to install.

mod bench;
mod bpf;
mod ci;
mod demo;
mod dist;
mod docs;
mod fuzz;
mod lab;
mod musl;
mod packages;
mod run;
mod test;
mod tidy;
mod toolchain;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const HELP: &str = "\
cargo xtask COMMAND

  demo    install what is missing, build, find the best placement for a real guest
  test    install what is missing, run every test, print the counts;
          --quick: format, lints, project rules and unit tests only, to run while you work
  ci-local [JOB…]: the jobs of the CI workflow, all but `test` by default
  bench   [NAME…] [--write] [--rounds N]: the benchmarks, each with its competitor;
          pin, plan, first-second (these by default), exits, watch, numad, gaps, quiet,
          start, live (an hour), like [--quick] (ten minutes),
          emulate [--quick] [--minutes N] (an hour, quick 5 minutes; a page of its own,
          docs/emulation.md),
          scale [--quick] (a simulated cluster of 10,000 nodes, two minutes; docs/scale.md)
  lab     change whole hosts, which are QEMU guests, and write docs/lab.md; words choose cases
  fuzz    [TARGET…] [--minutes N] [--keep]: every parser under coverage-guided fuzzing, 10
          minutes each; --keep adds what it found to fixtures/fuzz/, minimised
  bpf     compile the BPF programs after a change of their source
  musl    the static binary, which runs on any x86-64 Linux: hwloc is built with it
  dist    [--check]: a .deb, a .rpm and an archive with the static binary, and pinfold-numad, in
          target/dist;
          --check (as root) installs, runs and removes each in a directory of its own;
          --quick only packages the debug binary, as `test` does
  docs    the pages as a book with search, in target/book (mdBook)
  tidy    check the project rules only; --report also counts lines, pairs as parameters, closures
  golden  rewrite the golden files, to be read before they are committed
";

fn main() -> ExitCode {
    let root = root();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let command = arguments.first().map(String::as_str).unwrap_or("help");
    if matches!(command, "help" | "--help" | "-h") {
        print!("{}", HELP);
        return ExitCode::SUCCESS;
    }
    if let Err(line) = toolchain::check(&root) {
        eprintln!("{}", line);
        return ExitCode::from(2);
    }
    let result = match command {
        "demo" => demo::demo(&root, &arguments[1..]),
        "test" => test::test(&root, &arguments[1..]),
        "ci-local" => ci::ci(&root, &arguments[1..]),
        "bench" => bench::bench(&root, &arguments[1..]),
        "bpf" => bpf::bpf(&root),
        "lab" => lab::lab(&root, &arguments[1..]),
        "fuzz" => fuzz::fuzz(&root, &arguments[1..]),
        "musl" => musl::build(&root).map(|_| ()),
        "dist" => dist::dist(&root, &arguments[1..]),
        "docs" => docs::docs(&root),
        "tidy" => tidy::report(&root, &arguments[1..]),
        "golden" => test::golden(&root),
        other => Err(format!("there is no command {:?}\n\n{}", other, HELP)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("xtask: {}", why);
            ExitCode::FAILURE
        }
    }
}

/// The repository: the parent of the folder that holds this package.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().map(Path::to_path_buf).unwrap_or_default()
}
