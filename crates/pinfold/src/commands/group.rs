//! `pinfold run --cores N`: runs any command, placed like a machine.

use pinfold_model::command::quote;
use pinfold_model::{Plan, Speed, Topology, VnodeKind, VnodeRequest};
use pinfold_run::claims::Claims;
use pinfold_run::emulate::exec;
use pinfold_run::gate::RunOptions;
use pinfold_run::noise::Detail;
use pinfold_run::start_lock::StartLock;
use pinfold_run::vcpus::Vcpus;
use pinfold_run::{
    Exit, Failure, HelperProgram, OnLeft, Session, ended_placements, gate, host, inputs,
};

use super::emulate::{exit_with_status, run_slow};
use crate::cli::RunArgs;
use crate::common;

/// The strategy for process groups; `auto` would choose it and say so in a note.
pub const GROUPS: &str = "vnodes";

/// True if the command is a process group and not QEMU: `--cores`, `--speed`, or a plan for one.
pub fn is_process_group(arguments: &RunArgs) -> Result<bool, Failure> {
    let of_plan = match &arguments.plan {
        Some(path) => {
            let plan = inputs::read_part(path, arguments.vnode.as_deref())?;
            require_one(path, &plan)?;
            plan.single_vnode().is_ok_and(|vnode| vnode.kind == VnodeKind::ProcessGroup)
        }
        None => false,
    };
    Ok(arguments.cores.is_some() || is_slowed(arguments) || of_plan)
}

/// True if the command runs in a vnode.
fn is_slowed(arguments: &RunArgs) -> bool {
    arguments.speed.is_some() || arguments.slow.like.like.is_some()
}

/// A command is one of the groups of a plan.
fn require_one(path: &str, plan: &Plan) -> Result<(), Failure> {
    if plan.vnodes.iter().any(|vnode| vnode.kind != VnodeKind::ProcessGroup) {
        return Ok(());
    }
    let names: Vec<&str> = plan.vnodes.iter().map(|vnode| vnode.name.as_str()).collect();
    match names.as_slice() {
        [] | [_] => Ok(()),
        [first, ..] => {
            let count = names.len();
            let text = format!("{path} places {count} groups: {}", names.join(", "));
            let hint = format!("select the one to start: --vnode {}", quote(first));
            Err(Failure::new(Exit::Input, text).with_hint(hint))
        }
    }
}

/// Runs a command under a plan until it ends, and exits with its status.
pub fn run(arguments: &RunArgs, state: Option<&str>) -> Result<(), Failure> {
    if is_slowed(arguments) {
        if arguments.placement.profile.is_some() {
            return Err(Failure::new(
                Exit::Input,
                "--profile cannot be used with --speed or --like",
            )
            .with_hint("omit it: a slow vnode sets no tunables"));
        }
        return run_slow(arguments, on_left(arguments), state);
    }
    let host = host::live()?;
    ended_placements::revert_ended(&host, state)?;
    let topology = inputs::topology(&host, None)?;
    exec::require_program(&arguments.command)?;
    let folder = host::state(state)?;
    let starting = StartLock::wait(&folder)?;
    let claims = common::claims(&arguments.placement, &host, state)?;
    let tunables = common::tunables(&arguments.placement, Some(&host), &topology, false)?;
    let plan = inputs::plan_with_tunables(&claims, &tunables, &topology, |claims| {
        plan_for(arguments, claims, &topology)
    })?;
    let program = HelperProgram::own()?;
    let session = Session { state: &folder, program: &program };
    let options = RunOptions { on_left: on_left(arguments), detail: Detail::Counters };
    exit_with_status(gate::run(session, &plan, &arguments.command, options, starting)?.status)
}

/// What happens to processes that the command leaves in the background.
pub fn on_left(arguments: &RunArgs) -> OnLeft {
    if arguments.kill_left { OnLeft::Kill } else { OnLeft::Release }
}

fn plan_for(arguments: &RunArgs, claims: &Claims, topology: &Topology) -> Result<Plan, Failure> {
    match &arguments.plan {
        Some(path) => inputs::plan_for_host(
            path,
            arguments.vnode.as_deref(),
            &[],
            topology,
            &Vcpus::from_range(0..=0),
        ),
        None => {
            let cores = arguments.cores.unwrap_or(1);
            let vnodes = vec![VnodeRequest::processes(
                &gate::name_of(&arguments.command),
                cores,
                Speed::FULL,
            )];
            let request = common::request(&arguments.placement, vnodes, topology)?;
            let strategy = arguments.placement.strategy.as_deref().unwrap_or(GROUPS);
            inputs::make_plan(Some(strategy), topology, &request, claims)
        }
    }
}
