//! `pinfold` without a command: this host, what runs on it, and what to do next.

use pinfold_host::{SystemClock, process};
use pinfold_model::Command;
use pinfold_model::text::counted;
use pinfold_run::target::Vm;
use pinfold_run::{Failure, host, inputs};
use pinfold_topology::can_run_main_job;
use pinfold_vm::VmSelector;
use pinfold_vm::hypervisors::{self, Running};

use super::{doctor, status};
use crate::output::{self, show};
use crate::screen;

/// Longest part of a machine's name that is shown, in characters.
const LONGEST_NAME: usize = 60;

/// Prints the overview.
pub fn overview(state: Option<&str>) -> Result<(), Failure> {
    let host = host::live()?;
    let topology = inputs::topology(&host, None)?;
    let clock = SystemClock;
    let state = host::state(state)?;
    let found = pinfold_run::status::find(&host, &host::journals(&state, &clock)?)?;
    let machines = hypervisors::running(&host)?;
    let capabilities = doctor::of_host(&host);
    let (_, placements) = status::answer(&found.placements, &found.damaged, &found.platforms);
    let bound = if process::is_root() { "" } else { " (of yours; those of root are not shown)" };
    let placements = placements + bound;
    let (_, able) = doctor::answer(&capabilities);
    let is_idle = found.placements.is_empty() && found.platforms.is_empty();
    let is_usable = |machine: &&Running| Vm::find(&host, &VmSelector::Pid(machine.pid)).is_ok();
    let next = match machines.iter().find(is_usable) {
        _ if !is_idle || !found.damaged.is_empty() => {
            format!("`{}` compares each thread with the plan", Command::new("status"))
        }
        Some(machine) => format!(
            "`{}` checks the placement of that machine; `{}` prints what another placement would \
             change",
            Command::new(format!("plan --check --pid {}", machine.pid)),
            Command::new(format!("apply --pid {} --dry-run", machine.pid)),
        ),
        None if !machines.is_empty() => format!(
            "`{}` checks a machine by its control socket, which tells its threads apart",
            Command::new(format!("plan --check {} SOCKET", hypervisors::options())),
        ),
        None if !can_run_main_job(&capabilities) => {
            format!("`{}` shows what this host lacks, and how to get it", Command::new("doctor"))
        }
        None => format!(
            "`{}` plans a machine; `{}` finds the best placement by measurement",
            Command::new("plan --vcpus 2 --explain"),
            Command::new("tune --demo"),
        ),
    };
    show(&pinfold_topology::headline(&topology));
    let rows = [
        ("machines", described(&machines)),
        ("placements", placements),
        ("host", able),
        ("next", next),
    ];
    rows.iter().for_each(|(name, text)| show(&screen::labelled(&format!("{name:<12}"), text)));
    show(&format!("`{}` lists the commands", Command::new("--help")));
    Ok(())
}

/// The running machines in a sentence.
fn described(machines: &[Running]) -> String {
    if machines.is_empty() {
        let bound = if process::is_root() { "" } else { ", as far as you may see its processes" };
        return format!("no {} runs here{bound}", hypervisors::names());
    }
    let one = |machine: &Running| {
        let name = machine.spec.name.as_deref().filter(|name| !name.is_empty());
        let name = name.map_or("without a name".to_owned(), |name| {
            let short: String = name.chars().take(LONGEST_NAME).collect();
            output::name(&short)
        });
        let vcpus = machine.spec.vcpus.map_or("1 vCPU".to_owned(), |n| counted(n, "vCPU"));
        format!("{name} (process {}, {vcpus})", machine.pid)
    };
    machines.iter().map(one).collect::<Vec<_>>().join("; ")
}
