//! `pinfold run`: starts a machine paused, places it, continues and monitors it, and cleans up.

use pinfold_model::{MachineSpec, Plan, Topology, VcpuCount};
use pinfold_run::vcpus::Vcpus;
use pinfold_run::{Failure, HelperProgram, Session, host, inputs, machine_request, machine_run};

use crate::cli::RunArgs;
use crate::common;

/// Runs a machine under a plan until it ends.
pub fn run(arguments: &RunArgs, state: Option<&str>) -> Result<(), Failure> {
    if super::group::is_meant(arguments)? {
        return super::group::run(arguments, state);
    }
    let topology = inputs::topology(&host::live()?, None)?;
    let state = host::state(state)?;
    let plan = |spec: &MachineSpec, vcpus: &Vcpus| plan_for((arguments, spec), &topology, vcpus);
    let program = HelperProgram::own()?;
    let session = Session { state: &state, program: &program };
    machine_run::run(session, &arguments.command, (&topology, &arguments.start_timeout), &plan)
}

fn plan_for(
    asked: (&RunArgs, &MachineSpec),
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
    (arguments, spec): (&RunArgs, &MachineSpec),
    topology: &Topology,
    vcpus: &Vcpus,
) -> Result<Plan, Failure> {
    let of = |count: u32| {
        let vnodes = vec![machine_request::vnode(spec, VcpuCount::Exactly(count), topology)];
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
