//! Starts a machine paused, places it, continues and monitors it, and cleans up.

use std::process::ExitStatus;

use pinfold_apply::Target;
use pinfold_host::SystemClock;
use pinfold_host::files::StateDir;
use pinfold_model::{Command, MachineSpec, Plan, Topology};
use pinfold_vm::launch::{self, LaunchOptions, Resumed, RunningVm};
use pinfold_vm::{MachineCommand, hypervisors};

use crate::apply_session::{self, OnStop};
use crate::message::say;
use crate::rt_watchdog::Guard;
use crate::target::placeable;
use crate::vcpus::Vcpus;
use crate::{Exit, Failure, host, interrupt, run_monitor, time};

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
        "`run` starts {}; with --cores N it places any command: {any}",
        hypervisors::names()
    ))
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

/// Runs a machine under a plan until it ends. `plan_for` is called before the start, and again if
/// the machine has other vCPUs than its command line.
pub fn run(
    state: &StateDir,
    words: &[String],
    (topology, start_timeout): (&Topology, &str),
    plan_for: &Planner<'_>,
) -> Result<(), Failure> {
    let host = host::live()?;
    let clock = SystemClock;
    let journals = host::journals(state, &clock)?;
    // Everything that can be rejected before the machine is started is rejected here.
    let command = hypervisors::parse(words);
    let spec = command.spec();
    let vcpus = spec.vcpus.unwrap_or(1);
    let room = Vcpus::counted(vcpus..=spec.max_vcpus.unwrap_or(1));
    let guess = plan_for(&spec, &room)?;
    let options = LaunchOptions {
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
    let there = Vcpus::of(&vm.found);
    let plan = match there.count() == vcpus && there.are_in(&guess) {
        true => guess,
        false => plan_for(&spec, &there)?,
    };
    if plan.strategy != "none" {
        vm.found.require_own_threads()?;
    }
    for finding in vm.found.findings.iter().chain(&plan.findings) {
        say(&finding.to_string());
    }
    let target = placeable(&vm.found);
    let (applied, mut journal, mut guard) =
        apply_session::apply_guarded(&host, (&plan, &target), &journals, OnStop::TakeBack)?;
    apply_session::report(&applied);
    let placed = (&plan, &target, &mut journal);
    let watched = go(&mut vm, &host, placed, guard.as_mut());
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
        let text = format!("interrupted; {hypervisor} was ended and the host restored");
        return Err(Failure::new(Exit::Interrupted, text));
    }
    match status.success() {
        true => Ok(()),
        false => {
            let how = pinfold_host::process::describe(status);
            Err(Failure::new(Exit::Vm, format!("{hypervisor} ended: {how}")))
        }
    }
}

fn go(
    vm: &mut RunningVm,
    host: &pinfold_host::LiveHost,
    (plan, target, journal): (&Plan, &Target, &mut pinfold_apply::Journal<'_>),
    guard: Option<&mut Guard>,
) -> Result<(), Failure> {
    match vm.cont()? {
        Resumed::Running => {}
        Resumed::LeftStopped => {
            say("your command has -S: the guest is placed and waits for your `cont`")
        }
    }
    run_monitor::watch(host, &SystemClock, (plan, target), journal, (Some(&mut *vm.monitor), guard))
}
