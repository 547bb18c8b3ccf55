//! `numad`: the answer to libvirt for `placement='auto'`, as libvirt asks for it.
//!
//! The competitor is numad itself, which libvirt runs in the same way for each start of such a
//! domain. It need not be installed: the package is unpacked into a folder of the benchmark.

use pinfold_host::{LiveHost, process};
use pinfold_model::CpuSet;

use crate::arguments::{Arguments, Failure};
use crate::origin;
use crate::page::Figures;
use crate::pairs::{self, Contender};
use crate::pairs::{program_beside, time};
use crate::scratch::Scratch;

const ROUNDS: u32 = 20;
const TIMEOUT_NS: u64 = 60_000_000_000;
/// Two vCPUs and 200 MiB.
const REQUEST: [&str; 2] = ["-w", "2:200"];
/// Gets the package and unpacks it. apt's own user may not write into the folder.
const UNPACK: &str = "cd \"$0\" && apt-get -q -o APT::Sandbox::User=root download numad \
    && dpkg-deb --extract numad_*.deb . && dpkg-deb --field numad_*.deb Version";

/// Measures both on this machine.
pub fn run(arguments: &Arguments) -> Result<Figures, Failure> {
    let host = LiveHost::new()?;
    let topology = pinfold_topology::discover(&host)?;
    let scratch = Scratch::on_disk()?;
    let (real, version) = real_numad(&scratch)?;
    let ours = scratch.file("ours/numad");
    pinfold_host::files::make_dirs(&scratch.file("ours"))?;
    std::os::unix::fs::symlink(program_beside(arguments)?, &ours)?;
    for program in [&real, &ours] {
        check_answer(program)?;
    }
    let rounds = arguments.rounds.unwrap_or(ROUNDS);
    let mut contenders = vec![
        Contender::new("numad", || time(&real, &REQUEST)),
        Contender::new("pinfold as numad", || time(&ours, &REQUEST)),
    ];
    let times = pairs::rounds(&mut contenders, rounds, arguments.seed)?;
    Ok(Figures {
        name: "numad".to_owned(),
        title: "the NUMA nodes for a domain with `placement='auto'`, the whole program".to_owned(),
        origin: format!(
            "{}; numad {version}; Pinfold {}; {rounds} rounds, seed {}",
            origin::of_host(&host, &topology)?,
            env!("CARGO_PKG_VERSION"),
            arguments.seed
        ),
        tables: vec![pairs::table(&times, &[0])],
        notes: vec![
            format!("Both run `numad {}`, as libvirt does, and print a list of nodes.", REQUEST.join(" ")),
            "numad scans all processes twice with two seconds between, unless its daemon runs. Pinfold also reads which owner has which CPUs. The goal is at most 50 ms.".to_owned(),
        ],
    })
}

/// The program of the distribution and the version of its package.
fn real_numad(scratch: &Scratch) -> Result<(String, String), Failure> {
    let output = process::capture("sh", ["-c", UNPACK, scratch.path()], TIMEOUT_NS)?;
    if !output.status.success() {
        let said = output.stderr_text();
        return Err(format!("there is no package numad to compare with: {}", said.trim()).into());
    }
    let text = output.stdout_text();
    let version = text.lines().last().unwrap_or_default();
    Ok((scratch.file("usr/bin/numad"), version.to_owned()))
}

/// Fails unless the program prints a list of nodes.
fn check_answer(program: &str) -> Result<(), Failure> {
    let text = process::capture(program, REQUEST, TIMEOUT_NS)?.stdout_text();
    match CpuSet::parse_list(text.trim()) {
        Ok(nodes) if !nodes.is_empty() => Ok(()),
        Ok(_) | Err(_) => Err(format!("{program} prints {text:?} in place of nodes").into()),
    }
}
