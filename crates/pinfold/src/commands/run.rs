//! `pinfold run`: starts a machine paused, places it, continues and monitors it, and cleans up.

use pinfold_model::{MachineSpec, Plan, Topology, VcpuCount};
use pinfold_run::claims::Claims;
use pinfold_run::machine_run::{self, Settings};
use pinfold_run::start_lock::StartLock;
use pinfold_run::vcpus::Vcpus;
use pinfold_run::{Failure, HelperProgram, Session, ended, host, inputs, machine_request};

use crate::cli::RunArgs;
use crate::common;

/// Runs a machine under a plan until it ends.
pub fn run(arguments: &RunArgs, state: Option<&str>) -> Result<(), Failure> {
    if super::group::is_meant(arguments)? {
        return super::group::run(arguments, state);
    }
    let host = host::live()?;
    ended::clear_up(&host, state)?;
    let topology = inputs::topology(&host, None)?;
    let folder = host::state(state)?;
    let starting = StartLock::wait(&folder)?;
    let claims = common::claims(&arguments.placement, &host, state)?;
    let asked = Asked { arguments, claims, topology: &topology };
    let program = HelperProgram::own()?;
    let session = Session { state: &folder, program: &program };
    let settings = Settings {
        topology: &topology,
        start_timeout: &arguments.start_timeout,
        ignores_claims: arguments.placement.ignore_claims,
    };
    machine_run::run(
        session,
        &arguments.command,
        settings,
        &|spec: &MachineSpec, vcpus: &Vcpus| asked.plan(spec, vcpus),
        starting,
    )
}

/// What a plan for a machine follows, apart from the machine itself.
struct Asked<'a> {
    arguments: &'a RunArgs,
    claims: Claims,
    topology: &'a Topology,
}

impl Asked<'_> {
    fn plan(&self, spec: &MachineSpec, vcpus: &Vcpus) -> Result<Plan, Failure> {
        let knobs = &self.arguments.placement.knobs;
        let vnode = self.arguments.vnode.as_deref();
        inputs::plan_with_knobs(&self.claims, knobs, self.topology, |claims| {
            match &self.arguments.plan {
                Some(path) => inputs::plan_for_host(path, vnode, self.topology, vcpus),
                None => self.planned(spec, vcpus, claims),
            }
        })
    }

    /// The plan for the maximum number of vCPUs; if the host is too small, for the initial ones.
    fn planned(&self, spec: &MachineSpec, vcpus: &Vcpus, claims: &Claims) -> Result<Plan, Failure> {
        match self.with_vcpus(spec, vcpus.most(), claims) {
            Err(_) if vcpus.count() < vcpus.most() => {
                let mut plan = self.with_vcpus(spec, vcpus.count(), claims)?;
                vcpus.number(&mut plan);
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
