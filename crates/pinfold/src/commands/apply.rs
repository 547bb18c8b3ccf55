//! `pinfold apply`: places a running machine.

use pinfold_apply::{Journals, Target};
use pinfold_host::{LiveHost, SystemClock};
use pinfold_model::text::counted;
use pinfold_model::{Command, Plan, Topology, VcpuCount, VmRequest, VnodeRequest, Work, shown};
use pinfold_run::{
    Exit, Failure, HelperProgram,
    apply_session::{self, OnStop, Placement},
    claims::Claims,
    ended, host, inputs, interrupt, plans,
    rt_watchdog::Supervision,
    run_monitor::{self, Monitored},
    start_lock::StartLock,
    start_memory::TableReport,
    target::{Definition, Vm, placeable},
    vcpus::Vcpus,
};
use pinfold_vm::{Monitor, VmSelector};

use crate::cli::ApplyArgs;
use crate::common;
use crate::output::{say, show};

/// Prints the steps, or applies them, or applies them and stays.
pub fn apply(arguments: &ApplyArgs, state: Option<&str>) -> Result<(), Failure> {
    let host = host::live()?;
    let clock = SystemClock;
    if !arguments.dry_run {
        ended::clear_up(&host, state)?;
    }
    let topology = inputs::topology(&host, None)?;
    let selector = arguments.machine.clone().map(VmSelector::Name);
    let selector = selector.map_or_else(|| common::vm(&arguments.vm), Ok)?;
    let mut vm = Vm::find(&host, &selector)?;
    if arguments.config && vm.domain.is_none() {
        let text = format!("--config needs a libvirt domain; {} is none", shown::name(&vm.name));
        return Err(Failure::new(Exit::Input, text).with_hint("leave --config out"));
    }
    // A dry run changes nothing, and needs no state directory.
    let folder = if arguments.dry_run { None } else { Some(host::state(state)?) };
    let starting = folder.as_ref().map(StartLock::wait).transpose()?;
    let claims = common::claims(&arguments.placement, &host, state)?;
    let mut plan = plan_for(arguments, &claims, &topology, &vm)?;
    claims.report_in(&mut plan);
    inputs::set_knobs(&mut plan, &arguments.placement.knobs, &topology)?;
    if plan.strategy != "none" {
        vm.found.require_own_threads()?;
    }
    for finding in vm.findings.iter().chain(&plan.findings) {
        say(&finding.to_string());
    }
    let target = target_of(&vm, &plan, arguments.config)?;
    let (Some(folder), Some(starting)) = (folder, starting) else {
        return dry_run(&host, &plan, &target);
    };
    let journals = host::journals(&folder, &clock)?;
    // From here on, a request to stop leads to an undo.
    interrupt::install()?;
    let placement = Placement { plan: &plan, target: &target };
    if arguments.watch {
        stay(&host, placement, &journals, vm.monitor.as_deref_mut(), starting)
    } else {
        leave(&host, placement, &journals, starting)
    }
}

/// Applies the plan and exits.
fn leave(
    host: &LiveHost,
    placement: Placement<'_>,
    journals: &Journals<'_>,
    starting: StartLock,
) -> Result<(), Failure> {
    let (applied, journal) = apply_session::apply(host, placement, journals, OnStop::TakeBack)?;
    drop(starting);
    apply_session::report(&applied);
    apply_session::report_unguarded(placement.plan);
    let id = &journal.record().header.id;
    let (undo, status) = (Command::new("undo").arg(id), Command::new("status"));
    say(&format!("active until `{undo}`; `{status}` compares it with the plan"));
    Ok(())
}

/// Applies the plan and monitors it until a stop is requested.
fn stay(
    host: &LiveHost,
    placement: Placement<'_>,
    journals: &Journals<'_>,
    monitor: Option<&mut dyn Monitor>,
    starting: StartLock,
) -> Result<(), Failure> {
    let supervision = Supervision { journals, program: &HelperProgram::own()? };
    let (applied, mut journal, mut guard) =
        apply_session::apply_guarded(host, placement, supervision, OnStop::TakeBack)?;
    drop(starting);
    apply_session::report(&applied);
    say("watching; ctrl-C reverts the placement");
    let guarded = guard.as_mut();
    let monitored = Monitored {
        placement,
        journal: &mut journal,
        monitor,
        guard: guarded,
        tables: TableReport::default(),
    };
    let watched = run_monitor::watch(host, &SystemClock, monitored);
    apply_session::undo(host, journal)?;
    if let Some(guard) = guard {
        guard.end();
    }
    watched
}

fn target_of(vm: &Vm, plan: &Plan, config: bool) -> Result<Target, Failure> {
    let mut target = placeable(&vm.found);
    if let Some(domain) = &vm.domain {
        let definition = if config { Definition::Changed } else { Definition::Untouched };
        let (kept, findings) = domain.kept(plans::single(plan)?, definition)?;
        findings.iter().for_each(|finding| say(&finding.to_string()));
        target.kept = kept;
    }
    Ok(target)
}

fn dry_run(host: &LiveHost, plan: &Plan, target: &Target) -> Result<(), Failure> {
    let planned = pinfold_apply::plan_steps(host, plan, target)?;
    for step in &planned.steps {
        show(&format!("{}   ({})", step.change, step.reason));
    }
    for finding in &planned.findings {
        say(&finding.to_string());
    }
    let online = pinfold_apply::online_steps(host, plan, target)?;
    if !online.steps.is_empty() {
        say("note: once these CPUs are online the host is compared with the plan's, and if it is \
             another one they go offline again and nothing is placed");
    }
    say(&format!("{}; nothing was changed", counted(planned.steps.len(), "step")));
    Ok(())
}

fn plan_for(
    arguments: &ApplyArgs,
    claims: &Claims,
    topology: &Topology,
    vm: &Vm,
) -> Result<Plan, Failure> {
    let vcpus = Vcpus::of(&vm.found);
    if let Some(path) = &arguments.plan {
        let mut plan = inputs::plan_for_host(path, topology, &vcpus)?;
        // `status` and `undo` find the placement by the name of its machine.
        if let [only] = plan.vnodes.as_mut_slice() {
            only.name.clone_from(&vm.name);
        }
        return Ok(plan);
    }
    let iothreads = vm
        .found
        .threads
        .iter()
        .filter_map(|thread| thread.role.iothread().map(str::to_owned))
        .collect();
    let described = vm.domain.as_ref().map(|domain| domain.request(topology)).transpose()?;
    let count = VcpuCount::Exactly(vcpus.count());
    let mut vnode = described.unwrap_or_else(|| VnodeRequest::vm(&vm.name, VmRequest::of(count)));
    if let Work::Vm(asked) = &mut vnode.work {
        // The running threads are those to be placed.
        inputs::set_vcpus(asked, count);
        asked.iothreads = iothreads;
    }
    let mut request = common::request(&arguments.placement, vec![vnode], topology)?;
    vcpus.count_pins(&mut request)?;
    let strategy = arguments.placement.strategy.as_deref();
    let mut plan = inputs::make_plan(strategy, topology, &request, claims)?;
    vcpus.number(&mut plan);
    Ok(plan)
}
