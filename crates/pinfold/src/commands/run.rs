//! `pinfold run`: starts QEMU paused, places it, continues and monitors it, and cleans up.

use pinfold_apply::Target;
use pinfold_host::SystemClock;
use pinfold_model::{Command, Plan, QemuCommand, Topology, VcpuCount};
use pinfold_run::{
    Exit, Failure,
    apply_session::{self, OnStop},
    host, inputs, interrupt, qemu_line,
    rt_watchdog::Guard,
    run_monitor,
    target::placeable,
    time,
    vcpus::Vcpus,
};
use pinfold_vm::argv;
use pinfold_vm::launch::{self, LaunchOptions, Resumed, RunningVm};

use crate::cli::RunArgs;
use crate::common;
use crate::output::say;

/// Timeout for QEMU to quit.
const QUIT_NS: u64 = 5_000_000_000;

/// Why a command did not start as a machine; a command that is not QEMU may not be meant as one.
fn start_failure(command: &[String], failure: Failure) -> Failure {
    let names_qemu = |word: &String| word.contains("qemu") || word.contains("kvm");
    if failure.hint.is_some() || command.iter().any(names_qemu) {
        return failure;
    }
    let any = command.iter().fold(Command::new("run --cores 1 --"), |line, word| line.arg(word));
    failure.with_hint(format!("`run` starts QEMU; with --cores N it places any command: {any}"))
}

/// Starts QEMU; a start that a signal interrupted is not an error of the command.
fn start(command: &[String], options: &LaunchOptions) -> Result<RunningVm, Failure> {
    launch::start_stopped(command, options).or_else(|error| {
        interrupt::check()?;
        Err(start_failure(command, Failure::from(error)))
    })
}

/// Runs QEMU under a plan until it ends.
pub fn run(arguments: &RunArgs, state: Option<&str>) -> Result<(), Failure> {
    if super::group::is_meant(arguments)? {
        return super::group::run(arguments, state);
    }
    let host = host::live()?;
    let clock = SystemClock;
    let topology = inputs::topology(&host, None)?;
    let state = host::state(state)?;
    let journals = apply_session::journals(&state, &clock)?;
    // Everything that can be rejected before QEMU is started is rejected here.
    let command = argv::parse(&arguments.command);
    let vcpus = command.vcpus().unwrap_or(1);
    let room = Vcpus::counted(vcpus..=command.max_vcpus().unwrap_or(1));
    let guess = plan_for((arguments, &command), &topology, &room)?;
    let options = LaunchOptions {
        // The kernel accepts no mask with only offline CPUs; those are brought online before the
        // pinning.
        affinity: Some(guess.pus().intersection(&topology.online())).filter(|pus| !pus.is_empty()),
        start_timeout_ns: time::parse_ns("--start-timeout", &arguments.start_timeout)?,
        goes_on: || !interrupt::requested(),
        ..LaunchOptions::default()
    };
    interrupt::install()?;
    let mut vm = start(&arguments.command, &options)?;
    // QEMU reports the vCPUs that it has (-readconfig, defaults of the machine, -device).
    let there = Vcpus::of(&vm.found);
    let plan = match there.count() == vcpus && there.are_in(&guess) {
        true => guess,
        false => plan_for((arguments, &command), &topology, &there)?,
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
    let status = status?;
    if interrupt::requested() {
        return Err(Failure::new(
            Exit::Interrupted,
            "interrupted; QEMU was ended and the host restored",
        ));
    }
    match status.success() {
        true => Ok(()),
        false => Err(Failure::new(
            Exit::Vm,
            format!("QEMU ended: {}", pinfold_host::process::describe(status)),
        )),
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
    run_monitor::watch(host, &SystemClock, (plan, target), journal, (Some(&mut vm.qmp), guard))
}

fn plan_for(
    asked: (&RunArgs, &QemuCommand),
    topology: &Topology,
    vcpus: &Vcpus,
) -> Result<Plan, Failure> {
    let (arguments, _) = asked;
    let mut plan = match &arguments.plan {
        Some(path) => inputs::plan_for_host(path, topology, vcpus)?,
        None => planned(asked, topology, vcpus)?,
    };
    inputs::set_knobs(&mut plan, &arguments.placement.knobs, topology)?;
    Ok(plan)
}

/// The plan for the maximum number of vCPUs; if the host is too small, for the initial ones.
fn planned(
    (arguments, command): (&RunArgs, &QemuCommand),
    topology: &Topology,
    vcpus: &Vcpus,
) -> Result<Plan, Failure> {
    let of = |count: u32| {
        let vnodes = vec![qemu_line::vnode(command, VcpuCount::Exactly(count), topology)];
        let request = common::request(&arguments.placement, vnodes, topology)?;
        inputs::make_plan(arguments.placement.strategy.as_deref(), topology, &request)
    };
    match of(vcpus.most()) {
        Err(_) if vcpus.count() < vcpus.most() => {
            let mut plan = of(vcpus.count())?;
            vcpus.number(&mut plan);
            Ok(plan)
        }
        plan => plan,
    }
}
