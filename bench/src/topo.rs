//! `topo`: the whole program that shows a topology, from start to end.
//!
//! The competitor is `lstopo`, hwloc's own program for the same job. It prints text, without I/O
//! devices, which Pinfold does not show either. Of the machines in the repository, the largest
//! realistic one (at most 1,024 CPUs) is shown by both from its description.

use pinfold_host::{Clock as _, LiveHost, SystemClock, files, process};

use crate::arguments::{Arguments, Failure};
use crate::origin;
use crate::page::Figures;
use crate::pairs::{self, Contender};

const ROUNDS: u32 = 100;
/// Machines with more CPUs are artificial.
const MOST_PUS: usize = 1024;
const TIMEOUT_NS: u64 = 600_000_000_000;

/// Measures both, on this machine and on the largest description.
pub fn run(arguments: &Arguments) -> Result<Figures, Failure> {
    let host = LiveHost::new()?;
    let topology = pinfold_topology::discover(&host)?;
    let pinfold = program_beside(arguments)?;
    let lstopo = process::find_program("lstopo-no-graphics")
        .ok_or("lstopo-no-graphics is not installed; apt-get install hwloc")?;
    let (file, description, pus) = largest(&host, &arguments.hosts)?;
    let rounds = arguments.rounds.unwrap_or(ROUNDS);
    let live = ["--no-io", "--of", "console"];
    let there = ["--no-io", "--of", "console", "-i", description.as_str()];
    let mut contenders = vec![
        Contender::new("lstopo, this machine", || time(&lstopo, &live)),
        Contender::new("pinfold topo, this machine", || time(&pinfold, &["topo"])),
        Contender::new(&format!("lstopo, {pus} CPUs"), || time(&lstopo, &there)),
        Contender::new(&format!("pinfold topo, {pus} CPUs"), || {
            time(&pinfold, &["topo", "--input", &file])
        }),
    ];
    let times = pairs::rounds(&mut contenders, rounds, arguments.seed)?;
    Ok(Figures {
        name: "topo".to_owned(),
        title: "showing a host's topology, the whole program".to_owned(),
        origin: format!(
            "{}; {pus} CPUs: {description}; Pinfold {}; {rounds} rounds, seed {}",
            origin::of_host(&host, &topology)?, env!("CARGO_PKG_VERSION"), arguments.seed
        ),
        tables: vec![pairs::table(&times[..2], &[0]), pairs::table(&times[2..], &[0])],
        notes: vec!["Pinfold also reads what hwloc does not report (isolation, frequency domains, kinds of cores, findings). The bound that it must keep is 50 ms.".to_owned()],
    })
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
    process::find_program(&path).ok_or_else(|| {
        format!("there is no program {path}; build it (cargo build --release -p pinfold) or name it with --pinfold").into()
    })
}

/// The synthetic machine with the most CPUs: its file, its description, its number of CPUs.
fn largest(host: &LiveHost, directory: &str) -> Result<(String, String, usize), Failure> {
    let mut found = None;
    for name in files::list(directory)?.iter().filter(|name| name.ends_with(".synthetic")) {
        let file = format!("{directory}/{name}");
        let text = files::read_text(&file)?;
        let lines = text.lines().map(str::trim);
        let description = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        let description = description.collect::<Vec<_>>().join(" ");
        let pus = pinfold_topology::read_input(host, &file)?.pus.len();
        if pus <= MOST_PUS && found.as_ref().is_none_or(|(_, _, most)| pus > *most) {
            found = Some((file, description, pus));
        }
    }
    found.ok_or_else(|| {
        format!("{directory} holds no synthetic machine; name the folder with --hosts").into()
    })
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
