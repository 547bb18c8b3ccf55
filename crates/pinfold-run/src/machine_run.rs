//! Starts a machine paused, places it, continues and monitors it, and cleans up.

use std::process::ExitStatus;

use pinfold_apply::Target;
use pinfold_host::{SystemClock, files, process};
use pinfold_model::{Command, MachineSpec, Plan, Topology, shown};
use pinfold_vm::launch::{self, LaunchOptions, Resumed, RunningVm};
use pinfold_vm::{MachineCommand, hypervisors};

use crate::apply_session::{self, OnStop, Placement};
use crate::emulate::exec;
use crate::helper_program::Session;
use crate::message::say;
use crate::replan::Surroundings;
use crate::rt_watchdog::Supervision;
use crate::run_monitor::{self, Monitored};
use crate::start_lock::StartLock;
use crate::start_memory::{StartMemory, TableReport};
use crate::target::placeable;
use crate::vcpus::Vcpus;
use crate::{Exit, Failure, host, interrupt, time};

/// Timeout for the hypervisor to quit.
const QUIT_NS: u64 = 5_000_000_000;

/// Why a command did not start as a machine; a command that is no hypervisor may not be meant as
/// one.
fn start_failure(command: &[String], failure: Failure) -> Failure {
    let is_meant = command.iter().any(|word| hypervisors::is_mentioned_in(word));
    if failure.hint.is_some() || is_meant {
        return failure;
    }
    let any = command.iter().fold(Command::new("run --cores 1 --"), |line, word| line.arg(word));
    failure.with_hint(format!(
        "`run` starts {}; with --cores N it starts and places any command: {any}",
        hypervisors::names()
    ))
}

/// Fails if a command cannot start a machine, so that no program gets options of a hypervisor: it
/// names no hypervisor, has no options of one, and no argument is a script that may start one.
///
/// # Errors
/// With the commands that run any program.
pub fn require_machine(words: &[String]) -> Result<(), Failure> {
    let command = hypervisors::parse(words);
    exec::require_program(words)?;
    let is_script = |word: &String| {
        let path = process::find_program(word).unwrap_or_else(|| word.clone());
        files::is_file(&path) && files::read(&path).is_ok_and(|text| text.starts_with(b"#!"))
    };
    let may_start_one = words.iter().any(|word| hypervisors::is_mentioned_in(word))
        || command.spec().vcpus.is_some()
        || words.iter().any(is_script);
    if may_start_one {
        return Ok(());
    }
    let text = format!("{} is no {}", shown::name(command.program()), hypervisors::names());
    let run = words.iter().fold(Command::new("run --cores 1 --"), |line, word| line.arg(word));
    Err(Failure::new(Exit::Input, text).with_hint(format!(
        "write the command line of a {} after --; `{run}` places any command, and a study \
         compares placements of one (docs/studies/study-file.md)",
        hypervisors::names()
    )))
}

/// Starts the machine; a start that a signal interrupted is not an error of the command.
fn start(command: &dyn MachineCommand, options: &LaunchOptions) -> Result<RunningVm, Failure> {
    launch::start_stopped(command, options).or_else(|error| {
        interrupt::check()?;
        Err(start_failure(command.given(), Failure::from(error)))
    })
}

/// Plans for the vCPUs of a machine.
pub type Planner<'a> = dyn Fn(&MachineSpec, &Vcpus) -> Result<Plan, Failure> + 'a;

/// How a machine is started and planned.
#[derive(Clone, Copy)]
pub struct Settings<'s> {
    /// The host.
    pub topology: &'s Topology,
    /// Time that the start may take, with its unit.
    pub start_timeout: &'s str,
    /// True to plan as if the host had no other owners of CPUs.
    pub ignores_claims: bool,
}

/// Runs a machine under a plan until it ends. `plan_for` is called before the start, and again if
/// the machine has other vCPUs than its command line. `starting` is held since its claims were
/// read.
pub fn run(
    Session { state, program }: Session<'_>,
    words: &[String],
    settings: Settings<'_>,
    plan_for: &Planner<'_>,
    starting: StartLock,
) -> Result<(), Failure> {
    let Settings { topology, start_timeout, ignores_claims } = settings;
    let host = host::live()?;
    let clock = SystemClock;
    let journals = host::journals(state, &clock)?;
    // Everything that can be rejected before the machine is started is rejected here.
    let command = hypervisors::parse(words);
    let spec = command.spec();
    let vcpus = spec.vcpus.unwrap_or(1);
    let room = Vcpus::counted(vcpus..=spec.max_vcpus.unwrap_or(1));
    let guess = plan_for(&spec, &room)?;
    let memory = StartMemory::read(&host, &guess, None)?;
    let options = LaunchOptions {
        memory_node: memory.node(),
        // The kernel accepts no mask with only offline CPUs; those are brought online before the
        // pinning.
        affinity: Some(guess.pus().intersection(&topology.online())).filter(|pus| !pus.is_empty()),
        start_timeout_ns: time::parse_ns("--start-timeout", start_timeout)?,
        goes_on: || !interrupt::requested(),
        ..LaunchOptions::default()
    };
    interrupt::install()?;
    let mut vm = start(&*command, &options)?;
    // The hypervisor reports the vCPUs that it has (-readconfig, defaults of the machine, -device).
    let there = Vcpus::from_found(&vm.found);
    let plan = if there.count() == vcpus && there.are_in(&guess) {
        guess
    } else {
        plan_for(&spec, &there)?
    };
    if plan.strategy != "none" {
        vm.found.require_own_threads()?;
    }
    for finding in vm.found.findings.iter().chain(&plan.findings) {
        say(&finding.to_string());
    }
    let target = Target { started_on: memory.node(), ..placeable(&vm.found) };
    let placement = Placement { plan: &plan, target: &target };
    let supervision = Supervision { journals: &journals, program };
    let (applied, mut journal, mut guard) =
        apply_session::apply_guarded(&host, placement, supervision, OnStop::TakeBack)?;
    drop(starting);
    apply_session::report(&applied);
    let monitored = Monitored {
        placement,
        journal: &mut journal,
        around: Surroundings { journals: &journals, ignores_claims },
        monitor: None,
        guard: guard.as_mut(),
        tables: TableReport::new(memory, &clock),
    };
    let watched = go(&mut vm, &host, monitored);
    let status = match vm.try_wait() {
        Ok(Some(status)) => Ok(status),
        Ok(None) | Err(_) => vm.quit(QUIT_NS),
    };
    apply_session::undo(&host, journal)?;
    if let Some(guard) = guard {
        guard.end();
    }
    watched?;
    ended(status?, command.hypervisor().texts().name)
}

/// The result of a machine that has ended.
fn ended(status: ExitStatus, hypervisor: &str) -> Result<(), Failure> {
    if interrupt::requested() {
        let text = format!("interrupted; {hypervisor} was terminated and the host restored");
        return Err(Failure::new(Exit::Interrupted, text));
    }
    if status.success() {
        Ok(())
    } else {
        let how = pinfold_host::process::describe(status);
        Err(Failure::new(Exit::Vm, format!("{hypervisor} exited: {how}")))
    }
}

fn go<'m>(
    vm: &'m mut RunningVm,
    host: &pinfold_host::LiveHost,
    monitored: Monitored<'_, '_, 'm>,
) -> Result<(), Failure> {
    match vm.cont()? {
        Resumed::Running => {}
        Resumed::LeftStopped => {
            say("your command has -S: the guest is placed and waits for your `cont`")
        }
    }
    let monitored = Monitored { monitor: Some(&mut *vm.monitor), ..monitored };
    run_monitor::watch(host, &SystemClock, monitored)
}
