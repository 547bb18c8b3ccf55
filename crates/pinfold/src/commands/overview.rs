//! `pinfold` without a command: this host, what runs on it, and what to do next.

use pinfold_host::{LiveHost, process};
use pinfold_model::command::quote;
use pinfold_model::text::count_noun;
use pinfold_model::{Command, Topology};
use pinfold_run::status::Found;
use pinfold_run::target::Vm;
use pinfold_run::{Failure, host, inputs};
use pinfold_topology::{Capability, Verdict, has_required_capabilities};
use pinfold_vm::VmSelector;
use pinfold_vm::hypervisors::{self, VmProcess};

use super::{doctor, status};
use crate::output::{self, show};
use crate::screen;

/// Longest part of a machine's name that is shown, in characters.
const LONGEST_NAME: usize = 60;

/// Maximum number of problems that are shown.
const MOST_PROBLEMS: usize = 2;

/// The capabilities without which guests are slow or cannot be isolated, most important first.
const IMPORTANT: [&str; 2] = ["KVM", "cgroup cpuset"];

/// Prints the overview.
pub fn overview(state: Option<&str>) -> Result<(), Failure> {
    let host = host::live()?;
    let topology = inputs::topology(&host, None)?;
    let found = pinfold_run::status::find(&host, &host::state_path(state)?)?;
    let machines = Machines {
        visible: hypervisors::list_vm_processes(&host)?,
        hidden: hypervisors::list_hidden_machines(&host)?,
    };
    let claims = pinfold_run::claims::of_existing(&host, state)?;
    let capabilities = doctor::read_host_capabilities(&host);
    let (_, placements) = status::answer(&found, false);
    let bound = if process::is_root() { "" } else { " (only yours; those of root are not shown)" };
    let placements = placements + bound;
    let (_, able) = doctor::answer(&capabilities);
    let problems = problems(&capabilities, &topology);
    let next = next_command(&host, &found, &machines, &capabilities);
    let next = if problems.is_empty() {
        next
    } else {
        format!("{next}; `{}` shows how to solve the problems", Command::new("doctor"))
    };
    show(&pinfold_topology::headline(&topology));
    let rows = [
        ("machines", describe_machines(&machines)),
        ("placements", placements),
        ("CPUs", pinfold_claims::render::short(&claims, &topology)),
        ("host", able),
        ("problems", problems),
        ("next", next),
    ];
    let rows = rows.iter().filter(|(_, text)| !text.is_empty());
    rows.for_each(|(name, text)| show(&screen::label_text(&format!("{name:<12}"), text)));
    show(&format!("`{}` lists the commands", Command::new("--help")));
    Ok(())
}

/// What to do next.
fn next_command(
    host: &LiveHost,
    found: &Found,
    machines: &Machines,
    capabilities: &[Capability],
) -> String {
    let mut visible = machines.visible.iter();
    match visible.find(|machine| Vm::find(host, &VmSelector::Pid(machine.pid)).is_ok()) {
        _ if has_only_platforms(found) => format!(
            "`{}` shows the speeds of the slow nodes; `{}` ends them",
            Command::new("emulate status"),
            Command::new("emulate down"),
        ),
        _ if !is_idle(found) => {
            format!("`{}` compares each thread with the plan", Command::new("status"))
        }
        Some(machine) => check_and_apply(machine),
        None if !machines.visible.is_empty() => format!(
            "`{}` checks a machine by its control socket, which identifies its threads",
            Command::new(format!("plan --check {}", by_socket(&machines.visible))),
        ),
        None if let Some(machine) = machines.hidden.first() => {
            format!("as root, {}", check_and_apply(machine))
        }
        None if !has_required_capabilities(capabilities) => {
            format!("`{}` plans a machine", Command::new("plan --vcpus 2 --explain"))
        }
        None => format!(
            "`{}` plans a machine; `{}` finds the best placement by measurement",
            Command::new("plan --vcpus 2 --explain"),
            Command::new("tune --demo"),
        ),
    }
}

fn check_and_apply(machine: &VmProcess) -> String {
    format!(
        "`{}` checks the placement of that machine; `{}` prints what another placement would \
         change",
        Command::new(format!("plan --check --pid {}", machine.pid)),
        Command::new(format!("apply --pid {} --dry-run", machine.pid)),
    )
}

fn is_idle(found: &Found) -> bool {
    found.placements.is_empty()
        && found.platforms.is_empty()
        && found.damaged.is_empty()
        && found.lost.is_empty()
}

/// True if slow nodes that other commands can access are all that is active.
fn has_only_platforms(found: &Found) -> bool {
    let mut platforms = found.platforms.iter();
    !found.platforms.is_empty()
        && platforms.all(|platform| platform.is_alive && platform.answers)
        && found.placements.is_empty()
        && found.damaged.is_empty()
        && found.lost.is_empty()
}

/// The option that selects a machine by its control socket: that of the first command line that
/// names one.
fn by_socket(machines: &[VmProcess]) -> String {
    let socket = machines.iter().find_map(|machine| machine.socket.as_deref());
    format!("{} {}", hypervisors::options(), socket.map_or("SOCKET".to_owned(), quote))
}

/// The two most important problems of the host, with the reasons; empty if there are none.
fn problems(capabilities: &[Capability], topology: &Topology) -> String {
    let lacks = |name: &str| {
        capabilities.iter().find(|one| one.name == name && one.verdict != Verdict::Yes)
    };
    let required = capabilities.iter().filter(|one| one.required && one.verdict == Verdict::No);
    let mut found: Vec<&Capability> = required.collect();
    let others = IMPORTANT.iter().filter_map(|name| lacks(name));
    found.extend(others.filter(|one| !one.required));
    let mut texts: Vec<_> = found.iter().map(|one| format!("{}: {}", one.name, one.why)).collect();
    if let Some(hypervisor) = &topology.hypervisor {
        let text =
            format!("this host is a virtual machine ({hypervisor}), which may move its CPUs");
        texts.insert(texts.len().min(1), text);
    }
    texts.truncate(MOST_PROBLEMS);
    texts.join("; ")
}

/// The running machines.
struct Machines {
    visible: Vec<VmProcess>,
    /// Those of other users, if this process is not root.
    hidden: Vec<VmProcess>,
}

/// The running machines in a sentence.
fn describe_machines(machines: &Machines) -> String {
    let mut texts: Vec<String> =
        machines.visible.iter().map(|machine| describe_machine(machine, "")).collect();
    let hidden = machines.hidden.iter();
    texts.extend(hidden.map(|machine| describe_machine(machine, ", of another user")));
    if texts.is_empty() {
        let bound = pinfold_run::target::visibility_note();
        return format!("no {} is running here{bound}", hypervisors::names_of_running());
    }
    let text = texts.join("; ");
    if machines.hidden.is_empty() {
        return text;
    }
    format!("{text}; root can check and place those of other users")
}

/// A machine with its process, its number of vCPUs and what else is known.
fn describe_machine(machine: &VmProcess, addition: &str) -> String {
    let name = machine.spec.name.as_deref().filter(|name| !name.is_empty());
    let name = name.map_or("without a name".to_owned(), |name| {
        let short: String = name.chars().take(LONGEST_NAME).collect();
        output::name(&short)
    });
    let vcpus = match machine.spec.vcpus {
        Some(count) => count_noun(count, "vCPU"),
        // QEMU's default.
        None if machine.hypervisor.display_strings().has_socket() => "1 vCPU".to_owned(),
        None => machine.hypervisor.display_strings().name.to_owned(),
    };
    format!("{name} (process {}, {vcpus}{addition})", machine.pid)
}
