//! `pinload` for Arm and RISC-V: built by Debian's cross compilers, every command run in QEMU's
//! user mode.
//!
//! The commands are those that `pinload --help` lists. User mode translates instructions and
//! hands system calls to this kernel, so that what it proves is that the source builds there and
//! that results are right, not how a guest's kernel behaves.

use std::os::unix::fs::PermissionsExt as _;

use crate::common::{PATIENCE, Program, a_pu, is_full_size, program};
use pinfold_host::process::{Output, capture, find_program};
use pinfold_model::Isa;
use pinfold_probe::cpu_speed::SpeedBenchmark as _;
use pinfold_probe::cross_compile::{self, CrossError};
use pinfold_probe::figures;
use pinfold_probe::loads::Placement;
use pinfold_probe::parallel::{Catalogue, Parallel, Run, Size};

/// A short run of every command; whether it gives figures, the command, its arguments.
const RUNS: &str = include_str!("../../../../fixtures/pinload-runs.txt");

/// One of them.
struct ShortRun {
    gives_figures: bool,
    command: &'static str,
    arguments: &'static str,
}

fn short_runs() -> Vec<ShortRun> {
    let lines = RUNS.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let mut words = line.splitn(3, ' ');
            let gives_figures = words.next().unwrap() == "figures";
            ShortRun {
                gives_figures,
                command: words.next().unwrap(),
                arguments: words.next().unwrap(),
            }
        })
        .collect()
}

struct Target {
    /// Debian's name.
    architecture: &'static str,
    qemu: &'static str,
    /// Processors beside QEMU's own choice, with the vectors that `bandwidth` must choose there.
    cpus: &'static [(&'static str, &'static str)],
}

const TARGETS: [Target; 2] = [
    Target { architecture: "aarch64", qemu: "qemu-aarch64", cpus: &[("max", "neon")] },
    Target {
        architecture: "riscv64",
        qemu: "qemu-riscv64",
        cpus: &[("rv64", "scalar"), ("rv64,v=true,vext_spec=v1.0,vlen=256", "rvv")],
    },
];

/// The program for that architecture, or the one thing that is missing to make or run it.
fn build(program: &Program, target: &Target) -> Result<String, String> {
    let isa = Isa::from_name(target.architecture).unwrap();
    if find_program(target.qemu).is_none() {
        return Err(format!("{} is not installed (cargo xtask test installs it)", target.qemu));
    }
    let folder = program.folder.path().display().to_string();
    match cross_compile::program(isa, &folder) {
        Ok(bytes) => {
            let path = format!("{folder}/pinload-{isa}");
            pinfold_host::files::write_atomic(&path, &bytes).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
            Ok(path)
        }
        Err(error @ CrossError::NoCompiler { .. }) => {
            Err(format!("{error} (cargo xtask test installs it)"))
        }
        Err(error) => panic!("{error}"),
    }
}

struct Emulated {
    qemu: &'static str,
    path: String,
    cpu: Option<&'static str>,
}

impl Emulated {
    fn run(&self, arguments: &str) -> Output {
        let cpu = self.cpu.into_iter().flat_map(|cpu| ["-cpu", cpu]);
        let words = cpu.chain([self.path.as_str()]).chain(arguments.split(' '));
        capture(self.qemu, words, 2 * PATIENCE).unwrap()
    }

    fn good(&self, arguments: &str) -> String {
        let output = self.run(arguments);
        let text = output.stderr_text();
        assert!(output.status.success(), "{} {:?} {arguments}: {text}", self.qemu, self.cpu);
        output.stdout_text()
    }
}

/// Names in the table of `pinload --help`.
fn commands(help: &str) -> Vec<String> {
    let rows = help.lines().filter_map(|line| line.strip_prefix("  pinload "));
    rows.filter_map(|row| row.split_whitespace().next().map(str::to_owned)).collect()
}

fn every_command_runs(program: &Program, emulated: &Emulated) {
    let file = program.file("blocks", 65_536);
    let folder = program.folder.path().display().to_string();
    let cpu = a_pu().to_string();
    let commands = commands(&emulated.good("--help"));
    let known = short_runs();
    for ShortRun { command, .. } in &known {
        assert!(commands.iter().any(|listed| listed == command), "{command} in {commands:?}");
    }
    for command in &commands {
        assert!(emulated.good(&format!("{command} --help")).contains("--"), "{command}");
        let runs: Vec<_> = known.iter().filter(|run| run.command == command).collect();
        for ShortRun { gives_figures, arguments, .. } in runs {
            let arguments =
                arguments.replace("CPU", &cpu).replace("FILE", &file).replace("FOLDER", &folder);
            let output = emulated.run(&format!("{command} {arguments}"));
            let text = output.stderr_text();
            if text.contains("too busy to measure") {
                println!("skipped: {}", text.trim());
                continue;
            }
            assert!(output.status.success(), "{} {command} {arguments}: {text}", emulated.qemu);
            if *gives_figures {
                figures::parse("pinload", &output.stdout_text()).unwrap();
            } else {
                assert!(output.stdout_text().starts_with('{'), "{command}");
            }
        }
    }
}

/// The checksums of every second parallel program: each is run on one of the architectures. With
/// `PINFOLD_TEST_SIZE=full` all of them are run on each.
fn results_are_those_of_this_machine(program: &Program, emulated: &Emulated, first: usize) {
    let step = if is_full_size() { 1 } else { TARGETS.len() };
    let programs = Catalogue::from_pinload(&program.pinload).unwrap().programs;
    for listed in programs.into_iter().skip(first % step).step_by(step) {
        let run = Parallel::new(&listed.name, 4, Size::Small);
        let here = run.instrument().run_on_host(&program.pinload, &Placement::default()).unwrap();
        let there = emulated.good(&run.instrument().argv().join(" "));
        let there = figures::parse("parallel", &there).unwrap();
        let (here, there) = (Run::read(&run, &here).unwrap(), Run::read(&run, &there).unwrap());
        assert_eq!(here.checksum, there.checksum, "{} {}", emulated.qemu, listed.name);
    }
}

fn check(index: usize) {
    let target = &TARGETS[index];
    let program = program();
    let path = match build(&program, target) {
        Ok(path) => path,
        Err(why) => {
            println!("skipped: {why}");
            return;
        }
    };
    let plain = Emulated { qemu: target.qemu, path: path.clone(), cpu: None };
    every_command_runs(&program, &plain);
    results_are_those_of_this_machine(&program, &plain, index);
    for (cpu, width) in target.cpus {
        let emulated = Emulated { qemu: target.qemu, path: path.clone(), cpu: Some(cpu) };
        let stream = emulated.good("stream-variant --array-mib 1 --windows 30 --window-us 100");
        let figures = figures::parse("stream-variant", &stream).unwrap();
        assert!(figures.iter().all(|figure| figure.labels["width"] == *width), "{cpu}");
        let output = emulated.good(&format!("bandwidth --to 12K --width {width} --windows 30"));
        assert!(output.contains(&format!("\"width\":\"{width}\"")), "{cpu}: {output}");
    }
    if target.architecture == "riscv64" {
        let plain = Emulated { qemu: target.qemu, path, cpu: Some("rv64") };
        let refused = plain.run("bandwidth --width rvv");
        let text = refused.stderr_text();
        assert_eq!(refused.status.code(), Some(2), "{text}");
        assert!(text.contains("\"rvv\" cannot run here: the CPU, or the kernel"), "{text}");
    }
}

#[test]
fn every_command_runs_on_arm() {
    check(0);
}

#[test]
fn every_command_runs_on_risc_v() {
    check(1);
}
