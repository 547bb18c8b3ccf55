//! `pinfold apply`: places a running machine.

use std::collections::BTreeSet;

use pinfold_apply::order::MoveAction;
use pinfold_apply::{Applied, Difference, Journal, Journals, Target};
use pinfold_host::{LiveHost, SystemClock};
use pinfold_model::text::count_noun;
use pinfold_model::{Command, Plan, Topology, escape};
use pinfold_plan::schema;
use pinfold_run::{
    Exit, Failure, HelperProgram,
    apply_session::{self, Existing, OnStop, Placement},
    claims::Claims,
    end_waiter, ended_placements, host, inputs, interrupt,
    replan::OtherOwners,
    rt_watchdog::Supervision,
    run_monitor::{self, Monitored},
    start_lock::StartLock,
    start_memory::TableReport,
    target::{Definition, ManagedDomain, Vm},
    undo,
    vcpus::Vcpus,
};
use pinfold_vm::VmSelector;

use crate::cli::{ApplyArgs, Isolate};
use crate::common;
use crate::output::{print_message, show};

/// A running machine with its plan.
struct Prepared {
    vm: Vm,
    plan: Plan,
    target: Target,
    /// Its present placement, which the plan replaces.
    placed: Option<CurrentPlacement>,
}

/// An active placement.
struct CurrentPlacement {
    id: String,
    /// Its plan with the settings that its managing program has for it; `None` if this version
    /// cannot read the plan.
    former: Option<(Plan, Target)>,
}

impl CurrentPlacement {
    fn former(&self) -> Option<Placement<'_>> {
        self.former.as_ref().map(|(plan, target)| Placement { plan, target })
    }
}

impl Prepared {
    /// What stands before each message about one of several machines.
    fn label(&self, is_joint: bool) -> String {
        if is_joint { label(&self.vm) } else { String::new() }
    }

    fn placement(&self) -> Placement<'_> {
        Placement { plan: &self.plan, target: &self.target }
    }
}

fn label(vm: &Vm) -> String {
    format!("{}: ", escape::short_name(&vm.name))
}

/// The failure of one of several machines, with its name.
fn name_failure(failure: Failure, label: &str) -> Failure {
    let hint = failure.hint.map(|hint| format!("{label}{hint}"));
    Failure { hint, ..Failure::new(failure.exit, format!("{label}{}", failure.message)) }
}

/// Prints the steps, or applies them, or applies them and stays.
pub fn apply(arguments: &ApplyArgs, state: Option<&str>) -> Result<(), Failure> {
    let host = host::live()?;
    let clock = SystemClock;
    if !arguments.dry_run {
        ended_placements::revert_ended(&host, state)?;
    }
    let topology = inputs::topology(&host, None)?.without_free_memory();
    let vms = find_machines(arguments, &host)?;
    // A dry run changes nothing, and needs no state directory.
    let folder = if arguments.dry_run { None } else { Some(host::state(state)?) };
    let starting = folder.as_ref().map(StartLock::wait).transpose()?;
    let mut claims = common::claims(&arguments.placement, &host, state)?;
    for vm in &vms {
        claims = claims.without_machine(&host, vm.found.pid, &vm.name);
    }
    let existing = host::existing_state(state)?;
    let existing = host::existing_journals(existing.as_ref(), &clock)?;
    let active = Active { host: &host, journals: existing.as_ref(), claims: &claims };
    let is_joint = vms.len() > 1;
    let prepared = vms.into_iter().map(|vm| {
        let label = if is_joint { label(&vm) } else { String::new() };
        let prepared = prepare(arguments, &active, &topology, vm);
        prepared.map_err(|failure| name_failure(failure, &label))
    });
    let mut prepared = prepared.collect::<Result<Vec<_>, _>>()?;
    print_findings(&prepared);
    let (Some(folder), Some(starting)) = (folder, starting) else {
        return prepared.iter().try_for_each(|one| {
            let label = one.label(is_joint);
            match (&one.placed, existing.as_ref()) {
                (Some(placed), Some(journals)) => {
                    dry_replacement(&host, one, placed, journals, &label)
                }
                (_, journals) => dry_run(&host, one, journals, &label),
            }
        });
    };
    let journals = host::journals(&folder, &clock)?;
    // From here on, a request to stop leads to an undo.
    interrupt::install()?;
    if !arguments.watch {
        return apply_and_exit(&host, &prepared, &journals, starting);
    }
    match prepared.as_mut_slice() {
        [prepared] => apply_and_monitor(arguments, &host, prepared, &journals, starting),
        _ => Err(Failure::new(Exit::Input, "--watch takes one machine")
            .with_hint("omit it; `pinfold watch` monitors all placements")),
    }
}

/// True if the planner accepts the command, and its plan pins threads and keeps other tasks away if
/// the command asks for this. Changes nothing, and prints nothing.
pub fn is_useful(arguments: &ApplyArgs, state: Option<&str>) -> Result<bool, Failure> {
    let host = host::live()?;
    let topology = inputs::topology(&host, None)?.without_free_memory();
    let mut claims = common::claims(&arguments.placement, &host, state)?;
    let vms = find_machines(arguments, &host)?;
    for vm in &vms {
        claims = claims.without_machine(&host, vm.found.pid, &vm.name);
    }
    let existing = host::existing_state(state)?;
    let existing = host::existing_journals(existing.as_ref(), &SystemClock)?;
    let active = Active { host: &host, journals: existing.as_ref(), claims: &claims };
    for vm in vms {
        let plan = prepare(arguments, &active, &topology, vm)?.plan;
        let isolates = arguments.placement.isolate == Isolate::None || !plan.exclusive.is_empty();
        if !pinfold_plan::has_pins(&plan) || !isolates {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Prints the findings about the machines and their plans. Those that all parts of one plan share
/// are about no single machine.
fn print_findings(prepared: &[Prepared]) {
    let mut reported = BTreeSet::new();
    for one in prepared {
        for finding in one.vm.findings.iter().chain(&one.plan.findings) {
            let is_shared = prepared.iter().all(|other| other.plan.findings.contains(finding));
            let text = format!("{}{finding}", one.label(prepared.len() > 1 && !is_shared));
            if reported.insert(text.clone()) {
                print_message(&text);
            }
        }
    }
}

/// The machine of the command line; without one all of a plan, by their names in it.
fn find_machines(arguments: &ApplyArgs, host: &LiveHost) -> Result<Vec<Vm>, Failure> {
    let named = arguments.machine.clone().map(VmSelector::Name);
    let selectors = match (named.or_else(|| arguments.vm.selector()), &arguments.plan) {
        (Some(selector), _) => vec![selector],
        (None, Some(path)) => {
            let plan = inputs::read_part(path, arguments.vnode.as_deref())?;
            plan.vnodes.into_iter().map(|vnode| VmSelector::Name(vnode.name)).collect()
        }
        (None, None) => vec![common::vm(&arguments.vm)?],
    };
    let vms = selectors.iter().map(|selector| Vm::find(host, selector));
    let vms = vms.collect::<Result<Vec<_>, _>>()?;
    if arguments.config
        && let Some(vm) = vms.iter().find(|vm| vm.domain.is_none())
    {
        let text =
            format!("--config needs a libvirt domain; {} is not one", escape::short_name(&vm.name));
        return Err(Failure::new(Exit::Input, text).with_hint("omit --config"));
    }
    Ok(vms)
}

/// What is active on the host.
struct Active<'a> {
    host: &'a LiveHost,
    journals: Option<&'a Journals<'a>>,
    claims: &'a Claims,
}

impl Active<'_> {
    /// The placement of a machine, which a new plan replaces.
    fn placement_of(&self, vm: &Vm, config: bool) -> Result<Option<CurrentPlacement>, Failure> {
        let Some(journals) = self.journals else { return Ok(None) };
        let Some(id) = journals.active_of(self.host, vm.found.pid)? else { return Ok(None) };
        let record = journals.read(&id)?;
        let plan = record.and_then(|record| schema::from_json(&record.header.plan).ok());
        let former = match plan {
            Some(plan) => {
                let target = target_of(vm, &plan, config)?;
                Some((plan, target))
            }
            None => None,
        };
        Ok(Some(CurrentPlacement { id, former }))
    }
}

/// The plan for a machine.
fn prepare(
    arguments: &ApplyArgs,
    active: &Active<'_>,
    topology: &Topology,
    vm: Vm,
) -> Result<Prepared, Failure> {
    let placed = active.placement_of(&vm, arguments.config)?;
    let others = placed.as_ref().map(|placed| active.claims.without(&placed.id));
    let claims = others.as_ref().unwrap_or(active.claims);
    let tunables = common::tunables(&arguments.placement, Some(active.host), topology, true)?;
    let plan = inputs::plan_with_tunables(claims, &tunables, topology, |claims| {
        plan_for(arguments, claims, topology, &vm)
    })?;
    if pinfold_plan::has_pins(&plan) {
        vm.found.require_own_threads()?;
    }
    let target = target_of(&vm, &plan, arguments.config)?;
    // A journal that cannot be begun is refused with the ID of the present placement.
    let placed = placed.filter(|_| !arguments.keep && !arguments.watch);
    Ok(Prepared { vm, plan, target, placed })
}

/// A machine of this command that is placed, with its journal.
struct ActivePlan<'c, 'p> {
    one: &'p Prepared,
    journal: Journal<'c>,
}

/// Applies the plans and exits. If one of several fails, those before it are reverted.
fn apply_and_exit(
    host: &LiveHost,
    prepared: &[Prepared],
    journals: &Journals<'_>,
    starting: StartLock,
) -> Result<(), Failure> {
    let mut active = Vec::new();
    if let Err(failure) = place_all(host, prepared, journals, &mut active) {
        for ActivePlan { one, journal } in active.into_iter().rev() {
            restore(host, one, journal)?;
        }
        return Err(failure);
    }
    drop(starting);
    let program = HelperProgram::own()?;
    for ActivePlan { one, journal } in &active {
        let id = &journal.record().header.id;
        let label = one.label(prepared.len() > 1);
        let (undo, status) = (Command::new("undo").arg(id), Command::new("status"));
        // If one waits already for the end of this machine, the new one ends at once.
        let is_awaited = end_waiter::start(&program, journals, &one.plan, journal);
        if one.placed.is_some() {
            let name = escape::short_name(&one.vm.name);
            print_message(&format!(
                "the plan of {name} was replaced; `{undo}` restores the state before the first plan"
            ));
            continue;
        }
        let ends = if is_awaited { "the machine ends or " } else { "" };
        print_message(&format!(
            "{label}active until {ends}`{undo}`; `{status}` compares it with the plan"
        ));
    }
    Ok(())
}

/// Applies the plans so that no machine enters an exclusive CPU of another one that has yet to
/// leave it. What is active is in the list, also after a failure.
fn place_all<'c, 'p>(
    host: &LiveHost,
    prepared: &'p [Prepared],
    journals: &Journals<'c>,
    active: &mut Vec<ActivePlan<'c, 'p>>,
) -> Result<(), Failure> {
    let placements: Vec<Placement<'_>> = prepared.iter().map(Prepared::placement).collect();
    for turn in apply_session::turns(host, &placements)? {
        let (index, parked) = match turn {
            MoveAction::Go(index) => (index, None),
            MoveAction::Park(index, cpus) => {
                (index, Some(apply_session::parked_plan(&prepared[index].plan, &cpus)))
            }
        };
        let one = &prepared[index];
        if let Some(plan) = parked {
            let target = target_of(&one.vm, &plan, false)?;
            let placement = Placement { plan: &plan, target: &target };
            let (_, journal) = place(host, one, placement, journals)?;
            active.push(ActivePlan { one, journal });
            continue;
        }
        let is_parked = active.iter_mut().find(|other| std::ptr::eq(other.one, one));
        let applied = match is_parked {
            Some(ActivePlan { journal, .. }) => {
                let former = one.placed.as_ref().and_then(CurrentPlacement::former);
                let placement = one.placement();
                apply_session::replace_in(host, placement, former, journal, OnStop::Undo)?
            }
            None => {
                let (applied, journal) = place(host, one, one.placement(), journals)?;
                active.push(ActivePlan { one, journal });
                applied
            }
        };
        let label = one.label(prepared.len() > 1);
        apply_session::report_named(&label, &applied);
        apply_session::report_unguarded_named(&label, &one.plan);
    }
    Ok(())
}

/// Applies a plan, or replaces the present one of its machine.
fn place<'c>(
    host: &LiveHost,
    one: &Prepared,
    placement: Placement<'_>,
    journals: &Journals<'c>,
) -> Result<(Applied, Journal<'c>), Failure> {
    let Some(placed) = &one.placed else {
        return apply_session::apply(host, placement, journals, OnStop::Undo);
    };
    match undo::reopen(journals, &placed.id)? {
        Some(journal) if !journal.record().has_ended() => {
            let existing = Existing { journal, former: placed.former() };
            apply_session::replace(host, placement, existing, OnStop::Undo)
        }
        // It was undone meanwhile.
        _ => apply_session::apply(host, placement, journals, OnStop::Undo),
    }
}

/// Reverts what [`place`] did, because another machine of the same command could not be placed.
fn restore(host: &LiveHost, one: &Prepared, journal: Journal<'_>) -> Result<(), Failure> {
    match one.placed.as_ref().and_then(CurrentPlacement::former) {
        Some(former) => {
            let existing = Existing { journal, former: None };
            apply_session::replace(host, former, existing, OnStop::Finish).map(|_| ())
        }
        None => apply_session::undo(host, journal).map(|_| ()),
    }
}

/// Applies the plan and monitors it until a stop is requested.
fn apply_and_monitor(
    arguments: &ApplyArgs,
    host: &LiveHost,
    Prepared { vm, plan, target, placed: _ }: &mut Prepared,
    journals: &Journals<'_>,
    starting: StartLock,
) -> Result<(), Failure> {
    let placement = Placement { plan, target };
    let supervision = Supervision { journals, program: &HelperProgram::own()? };
    let (applied, mut journal, mut guard) =
        apply_session::apply_guarded(host, placement, supervision, OnStop::Undo)?;
    drop(starting);
    apply_session::report(&applied);
    print_message("watching; ctrl-C reverts the placement");
    let guarded = guard.as_mut();
    let monitored = Monitored {
        placement,
        journal: &mut journal,
        around: OtherOwners { journals, ignores_claims: arguments.placement.ignore_claims },
        monitor: vm.monitor.as_deref_mut(),
        on_drift: arguments.drift.into(),
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
    let definition = if config { Definition::Changed } else { Definition::Untouched };
    let (target, findings) = vm.target(plan, definition)?;
    findings.iter().for_each(|finding| print_message(&finding.to_string()));
    Ok(target)
}

fn dry_replacement(
    host: &LiveHost,
    one: &Prepared,
    placed: &CurrentPlacement,
    journals: &Journals<'_>,
    label: &str,
) -> Result<(), Failure> {
    let Some(record) = journals.read(&placed.id)? else {
        return dry_run(host, one, Some(journals), label);
    };
    let difference = pinfold_apply::difference(host, &one.plan, &one.target, journals, &record);
    let Difference { undone, steps, findings } =
        difference.map_err(|error| Failure::from_error(Exit::Host, &error, None))?;
    for step in &undone {
        show(&format!("{label}undo: {}", step.change));
    }
    for step in &steps {
        show(&format!("{label}{}   ({})", step.change, step.reason));
    }
    findings.iter().for_each(|finding| print_message(&format!("{label}{finding}")));
    print_message(&format!(
        "{label}{}, {} of the earlier plan undone; nothing was changed",
        count_noun(steps.len(), "step"),
        undone.len()
    ));
    Ok(())
}

fn dry_run(
    host: &LiveHost,
    one: &Prepared,
    journals: Option<&Journals<'_>>,
    label: &str,
) -> Result<(), Failure> {
    let Prepared { plan, target, .. } = one;
    let planned = match journals {
        Some(journals) => pinfold_apply::plan_steps_with_journals(host, plan, target, journals)?,
        None => pinfold_apply::plan_steps(host, plan, target)?,
    };
    for step in &planned.steps {
        show(&format!("{label}{}   ({})", step.change, step.reason));
    }
    for finding in &planned.findings {
        print_message(&format!("{label}{finding}"));
    }
    let online = pinfold_apply::online_steps(host, plan, target)?;
    if !online.steps.is_empty() {
        print_message(&format!(
            "{label}note: once these CPUs are online, Pinfold compares this host with that of the \
             plan; if they differ, the CPUs go offline again and nothing is placed"
        ));
    }
    let steps = count_noun(planned.steps.len(), "step");
    print_message(&format!("{label}{steps}; nothing was changed"));
    Ok(())
}

fn plan_for(
    arguments: &ApplyArgs,
    claims: &Claims,
    topology: &Topology,
    vm: &Vm,
) -> Result<Plan, Failure> {
    let vcpus = Vcpus::from_found(&vm.found);
    if let Some(path) = &arguments.plan {
        let uuid = vm.domain.as_ref().map(ManagedDomain::uuid);
        let names: Vec<&str> = [vm.name.as_str()].into_iter().chain(uuid).collect();
        let vnode = arguments.vnode.as_deref();
        let mut plan = inputs::plan_for_host(path, vnode, &names, topology, &vcpus)?;
        // `status` and `undo` find the placement by the name of its machine.
        if let [only] = plan.vnodes.as_mut_slice() {
            only.name.clone_from(&vm.name);
        }
        return Ok(plan);
    }
    let vnode = vm.request(topology)?;
    let mut request = common::request(&arguments.placement, vec![vnode], topology)?;
    vcpus.map_pins_to_indexes(&mut request)?;
    let strategy = arguments.placement.strategy.as_deref();
    let mut plan = inputs::make_plan(strategy, topology, &request, claims)?;
    vcpus.renumber_vcpus(&mut plan);
    Ok(plan)
}
