//! `pinfold run`: starts a machine paused, places it, continues and monitors it, and cleans up.

use pinfold_model::{CpuSet, MachineSpec, Plan, Topology, VcpuCount};
use pinfold_run::claims::Claims;
use pinfold_run::machine_run::{self, PinAfter, Settings};
use pinfold_run::ready::Condition;
use pinfold_run::start_lock::StartLock;
use pinfold_run::vcpus::Vcpus;
use pinfold_run::{
    Exit, Failure, HelperProgram, Session, ended_placements, host, inputs, machine_request, time,
};

use crate::cli::RunArgs;
use crate::common;

/// Runs a machine under a plan until it ends.
pub fn run(arguments: &RunArgs, state: Option<&str>) -> Result<(), Failure> {
    if super::group::is_process_group(arguments)? {
        if arguments.pin_after.is_some() {
            return Err(Failure::new(Exit::Input, "--pin-after needs a virtual machine")
                .with_hint("omit it: a process group has no guest that boots"));
        }
        return super::group::run(arguments, state);
    }
    let host = host::live()?;
    ended_placements::revert_ended(&host, state)?;
    let topology = inputs::topology(&host, None)?;
    let folder = host::state(state)?;
    let starting = StartLock::wait(&folder)?;
    let claims = common::claims(&arguments.placement, &host, state)?;
    let pin_after = match &arguments.pin_after {
        Some(text) => Some(PinAfter {
            condition: Condition::parse(text)?,
            timeout_ns: time::parse_ns("--pin-timeout", &arguments.pin_timeout)?,
            wide: find_boot_cpus(&claims, &topology),
        }),
        None => None,
    };
    let settings = Settings {
        topology: &topology,
        start_timeout: &arguments.start_timeout,
        ignores_claims: arguments.placement.ignore_claims,
        on_drift: arguments.drift.into(),
        pin_after,
    };
    let tunables = common::tunables(&arguments.placement, Some(&host), &topology, true)?;
    let asked = MachinePlanner { arguments, claims, topology: &topology, tunables };
    let program = HelperProgram::own()?;
    let session = Session { state: &folder, program: &program };
    machine_run::run(
        session,
        &arguments.command,
        &settings,
        &|spec: &MachineSpec, vcpus: &Vcpus, claims: Option<&Claims>| {
            asked.plan(spec, vcpus, claims)
        },
        starting,
    )
}

/// The CPUs for a guest that boots: all that others do not have exclusively.
fn find_boot_cpus(claims: &Claims, topology: &Topology) -> CpuSet {
    let online = topology.online();
    let free = online.difference(&claims.usage(&online).owned);
    if free.is_empty() { online } else { free }
}

/// What a plan for a machine follows, apart from the machine itself.
struct MachinePlanner<'a> {
    arguments: &'a RunArgs,
    claims: Claims,
    topology: &'a Topology,
    tunables: Vec<String>,
}

impl MachinePlanner<'_> {
    fn plan(
        &self,
        spec: &MachineSpec,
        vcpus: &Vcpus,
        later: Option<&Claims>,
    ) -> Result<Plan, Failure> {
        let later = later.filter(|_| !self.arguments.placement.ignore_claims);
        let claims = later.unwrap_or(&self.claims);
        let vnode = self.arguments.vnode.as_deref();
        inputs::plan_with_tunables(claims, &self.tunables, self.topology, |claims| {
            match &self.arguments.plan {
                Some(path) => {
                    let names: Vec<&str> = spec.name.as_deref().into_iter().collect();
                    inputs::plan_for_host(path, vnode, &names, self.topology, vcpus)
                }
                None => self.plan_machine(spec, vcpus, claims),
            }
        })
    }

    /// The plan for the maximum number of vCPUs; if the host is too small, for the initial ones.
    fn plan_machine(
        &self,
        spec: &MachineSpec,
        vcpus: &Vcpus,
        claims: &Claims,
    ) -> Result<Plan, Failure> {
        match self.with_vcpus(spec, vcpus.max_vcpus(), claims) {
            Err(_) if vcpus.count() < vcpus.max_vcpus() => {
                let mut plan = self.with_vcpus(spec, vcpus.count(), claims)?;
                vcpus.renumber_vcpus(&mut plan);
                Ok(plan)
            }
            plan => plan,
        }
    }

    fn with_vcpus(&self, spec: &MachineSpec, count: u32, claims: &Claims) -> Result<Plan, Failure> {
        let vnode = machine_request::vnode(spec, VcpuCount::Exactly(count), self.topology);
        let placement = &self.arguments.placement;
        let request = common::request(placement, vec![vnode], self.topology)?;
        inputs::make_plan(placement.strategy.as_deref(), self.topology, &request, claims)
    }
}
