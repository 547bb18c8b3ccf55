//! Starts a machine paused, places it, continues and monitors it, and cleans up.

use std::process::ExitStatus;

use pinfold_apply::{OnDrift, Target};
use pinfold_host::files::{self, StateDir};
use pinfold_host::{LiveHost, SystemClock, proc_stat, process};
use pinfold_model::text::cpus_text;
use pinfold_model::{Command, CpuSet, MachineSpec, Plan, Topology, escape};
use pinfold_vm::launch::{self, LaunchOptions, Resumed, RunningVm};
use pinfold_vm::{MachineCommand, hypervisors, threads};

use crate::apply_session::{self, OnStop, Placement};
use crate::booting::{BootingFile, BootingMachine};
use crate::claims::{self, Claims};
use crate::emulate::exec;
use crate::helper_program::Session;
use crate::message::say;
use crate::ready::{Condition, Outcome};
use crate::replan::OtherOwners;
use crate::rt_watchdog::Supervision;
use crate::run_monitor::{self, Monitored};
use crate::start_lock::StartLock;
use crate::start_memory::{StartMemory, TableReport};
use crate::target::to_target;
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
    let may_start_one = words.iter().any(|word| hypervisors::is_mentioned_in(word))
        || command.spec().vcpus.is_some()
        || words.iter().any(|word| {
            let path = process::find_program(word).unwrap_or_else(|| word.clone());
            files::is_file(&path) && files::read(&path).is_ok_and(|text| text.starts_with(b"#!"))
        });
    if may_start_one {
        return Ok(());
    }
    let text = format!("{} is not {}", escape::name(command.program()), hypervisors::names());
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
        Err(start_failure(command.arguments(), Failure::from(error)))
    })
}

/// Plans for the vCPUs of a machine, around the claims that were read before its start or around
/// these.
pub type Planner<'a> = dyn Fn(&MachineSpec, &Vcpus, Option<&Claims>) -> Result<Plan, Failure> + 'a;

/// When a guest is placed that boots before.
pub struct PinAfter {
    /// The condition.
    pub condition: Condition,
    /// The longest wait for it (ns).
    pub timeout_ns: u64,
    /// The CPUs on which it boots.
    pub wide: CpuSet,
}

/// How a machine is started and planned.
pub struct Settings<'s> {
    /// The host.
    pub topology: &'s Topology,
    /// Time that the start may take, with its unit.
    pub start_timeout: &'s str,
    /// True to plan as if the host had no other owners of CPUs.
    pub ignores_claims: bool,
    /// What happens to threads that another program moves.
    pub on_drift: OnDrift,
    /// If set, the guest boots before it is placed.
    pub pin_after: Option<PinAfter>,
}

/// Runs a machine under a plan until it ends. `plan_for` is called before the start, and again if
/// the machine has other vCPUs than its command line, or boots before it is placed. `starting` is
/// held since its claims were read.
pub fn run(
    Session { state, program }: Session<'_>,
    words: &[String],
    settings: &Settings<'_>,
    plan_for: &Planner<'_>,
    starting: StartLock,
) -> Result<(), Failure> {
    let host = host::live()?;
    let clock = SystemClock;
    let journals = host::journals(state, &clock)?;
    // Everything that can be rejected before the machine is started is rejected here.
    let command = hypervisors::parse(words);
    let name = command.hypervisor().display_strings().name;
    let spec = command.spec();
    let room = Vcpus::from_range(spec.vcpus.unwrap_or(1)..=spec.max_vcpus.unwrap_or(1));
    let guess = plan_for(&spec, &room, None)?;
    require_agent(settings, &*command)?;
    let memory = StartMemory::read(&host, &guess, None)?;
    let launch = launch_options(settings, &guess, &memory)?;
    interrupt::install()?;
    let mut vm = start(&*command, &launch)?;
    let mut starting = Some(starting);
    let mut claims = None;
    if let Some(after) = &settings.pin_after {
        drop(starting.take());
        let Some((lock, others)) = boot(&mut vm, after, &*command, state)? else {
            return check_exit(vm.quit(QUIT_NS)?, name);
        };
        (starting, claims) = (Some(lock), Some(others));
    }
    let plan = final_plan(guess, &spec, &vm, plan_for, claims.as_ref())?;
    if pinfold_plan::has_pins(&plan) {
        vm.found.require_own_threads()?;
    }
    for finding in vm.found.findings.iter().chain(&plan.findings) {
        say(&finding.to_string());
    }
    let target = Target { started_on: memory.node(), ..to_target(&vm.found) };
    let placement = Placement { plan: &plan, target: &target };
    let supervision = Supervision { journals: &journals, program };
    let (applied, mut journal, mut guard) =
        apply_session::apply_guarded(&host, placement, supervision, OnStop::Undo)?;
    drop(starting);
    apply_session::report(&applied);
    let monitored = Monitored {
        placement,
        journal: &mut journal,
        around: OtherOwners { journals: &journals, ignores_claims: settings.ignores_claims },
        monitor: None,
        on_drift: settings.on_drift,
        guard: guard.as_mut(),
        tables: TableReport::new(memory, &clock),
    };
    let resumed = if settings.pin_after.is_some() { Ok(()) } else { resume(&mut vm) };
    let watched = resumed.and_then(|()| {
        let monitored = Monitored { monitor: Some(&mut *vm.monitor), ..monitored };
        run_monitor::watch(&host, &clock, monitored)
    });
    let status = match vm.try_wait() {
        Ok(Some(status)) => Ok(status),
        Ok(None) | Err(_) => vm.quit(QUIT_NS),
    };
    apply_session::undo(&host, journal)?;
    if let Some(guard) = guard {
        guard.end();
    }
    watched?;
    check_exit(status?, name)
}

fn launch_options(
    settings: &Settings<'_>,
    plan: &Plan,
    memory: &StartMemory,
) -> Result<LaunchOptions, Failure> {
    // The kernel accepts no mask with only offline CPUs; those are brought online before the
    // pinning.
    let affinity = match &settings.pin_after {
        Some(after) => after.wide.clone(),
        None => plan.pus().intersection(&settings.topology.online()),
    };
    Ok(LaunchOptions {
        memory_node: memory.node(),
        affinity: Some(affinity).filter(|pus| !pus.is_empty()),
        start_timeout_ns: time::parse_ns("--start-timeout", settings.start_timeout)?,
        goes_on: || !interrupt::is_requested(),
        ..LaunchOptions::default()
    })
}

/// The agent can only be asked if the command line has its channel.
fn require_agent(settings: &Settings<'_>, command: &dyn MachineCommand) -> Result<(), Failure> {
    let condition = settings.pin_after.as_ref().map(|after| &after.condition);
    if condition != Some(&Condition::Agent) || command.agent_socket().is_some() {
        return Ok(());
    }
    let text = "--pin-after agent: the command line has no socket of the guest agent";
    Err(Failure::new(Exit::Input, text).with_hint(
        "add `-device virtio-serial -chardev socket,id=qga,path=PATH,server=on,wait=off -device \
         virtserialport,chardev=qga,name=org.qemu.guest_agent.0`",
    ))
}

/// Lets the guest boot until it is to be placed, and then reads the claims and its threads again.
/// `None` if it has ended, or is to end.
fn boot(
    vm: &mut RunningVm,
    after: &PinAfter,
    command: &dyn MachineCommand,
    state: &StateDir,
) -> Result<Option<(StartLock, Claims)>, Failure> {
    let host = host::live()?;
    let name = command.spec().name.unwrap_or_default();
    let outcome = {
        let _shown = show_booting(&host, vm, after, &name, state);
        wait_for_guest(vm, after, command.agent_socket().as_deref())?
    };
    if outcome == Outcome::Ended {
        return Ok(None);
    }
    let lock = StartLock::wait(state)?;
    vm.found = threads::discover(&host, vm.found.pid, Some(&mut *vm.monitor))?;
    let mut claims = claims::of_state(&host, state)?;
    claims::add_bound_threads(&host, &mut claims);
    Ok(Some((lock, claims.without_machine(&host, vm.found.pid, &name))))
}

/// Shows the machine in `status` while it boots; without that it is placed all the same.
fn show_booting<'s>(
    host: &LiveHost,
    vm: &RunningVm,
    after: &PinAfter,
    name: &str,
    state: &'s StateDir,
) -> Option<BootingFile<'s>> {
    let stat = proc_stat::read(host, vm.found.pid).ok()??;
    let machine = BootingMachine {
        name: name.to_owned(),
        process: stat.task(),
        cpus: after.wide.clone(),
        condition: after.condition.describe(),
    };
    BootingFile::write(host, state, &machine)
        .inspect_err(|error| say(&format!("warning: `status` does not show the guest: {error}")))
        .ok()
}

fn wait_for_guest(
    vm: &mut RunningVm,
    after: &PinAfter,
    agent: Option<&str>,
) -> Result<Outcome, Failure> {
    resume(vm)?;
    let when = after.condition.describe();
    let wide = cpus_text(&after.wide);
    say(&format!("the guest boots on {wide}; it is placed when {when}"));
    let outcome =
        match after.condition.wait(agent, after.timeout_ns, &mut || Ok(vm.try_wait()?.is_none())) {
            // A request to stop ends the machine.
            Err(_) if interrupt::is_requested() => Outcome::Ended,
            outcome => outcome?,
        };
    if outcome == Outcome::TimedOut {
        let waited = time::wait(after.timeout_ns);
        say(&format!(
            "warning: --pin-after: condition not met after {waited} ({when}); the guest is placed \
             now"
        ));
    }
    Ok(outcome)
}

/// The plan that is applied. The one from before the start is kept if it fits a machine that has not
/// booted yet, and if there is no other for one that has.
fn final_plan(
    guess: Plan,
    spec: &MachineSpec,
    vm: &RunningVm,
    plan_for: &Planner<'_>,
    claims: Option<&Claims>,
) -> Result<Plan, Failure> {
    // The hypervisor reports the vCPUs that it has (-readconfig, defaults of the machine, -device).
    let there = Vcpus::from_found(&vm.found);
    let fits = there.count() == spec.vcpus.unwrap_or(1) && there.are_in(&guess);
    if fits && claims.is_none() {
        return Ok(guess);
    }
    plan_for(spec, &there, claims).or_else(|failure| {
        if !fits {
            return Err(failure);
        }
        say(&format!(
            "warning: using the plan that was made before the start: {}",
            failure.message
        ));
        Ok(guess)
    })
}

/// The result of a machine that has ended.
fn check_exit(status: ExitStatus, hypervisor: &str) -> Result<(), Failure> {
    if interrupt::is_requested() {
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

fn resume(vm: &mut RunningVm) -> Result<(), Failure> {
    match vm.cont()? {
        Resumed::Running => {}
        Resumed::LeftStopped => {
            say("your command has -S: the guest is placed and waits for your `cont`")
        }
    }
    Ok(())
}
