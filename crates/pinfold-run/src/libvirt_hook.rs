//! The hook that libvirt calls when a domain starts and stops.
//!
//! libvirt waits for its hook while it holds the domain's lock, and kills the domain if the hook
//! fails after the start. So the hook never calls libvirt, and errors are printed to standard error
//! without a failure status: a domain without its placement is better than none. A hook cannot
//! change pinning through libvirt. It sets the masks itself, and reports differences from the
//! domain's own XML.

use pinfold_apply::JournalError;
use pinfold_host::files::{self, StateDir};
use pinfold_host::{LiveHost, SystemClock};
use pinfold_model::{Command, Finding, Plan};
use pinfold_vm::libvirt::{Described, PinTarget};
use pinfold_vm::threads;

use crate::apply_session::{self, OnStop, Placement};
use crate::claims;
use crate::message::say;
use crate::start_lock::StartLock;
use crate::target::placeable;
use crate::vcpus::Vcpus;
use crate::{Exit, Failure, HelperProgram, end_waiter, host, inputs, interrupt};

/// Longest wait for another start: libvirt waits for this process (ns).
const PATIENCE_NS: u64 = 5_000_000_000;

/// An event of a domain's life cycle.
#[derive(Clone, Copy, Debug)]
pub struct HookEvent<'a> {
    /// Name of the domain.
    pub domain: &'a str,
    /// What happens: `started`, `stopped`, …
    pub operation: &'a str,
    /// `begin` or `end`.
    pub phase: &'a str,
    /// Folder with the plans.
    pub plans: &'a str,
    /// Folder with the pid files of domains.
    pub run_dir: &'a str,
}

/// Handles one event; failures are only reported.
pub fn handle(event: &HookEvent<'_>, state: Option<&str>) {
    let done = match (event.operation, event.phase) {
        ("started", "begin") => started(event, state),
        ("stopped" | "release", "end") => stopped(event, state),
        // Also `reconnect`: the placement is still active when libvirt restarts.
        (_, _) => Ok(()),
    };
    if let Err(failure) = done {
        say(&format!("domain {:?} was not placed: {failure}", event.domain));
    }
}

fn started(event: &HookEvent<'_>, state: Option<&str>) -> Result<(), Failure> {
    let domain = read_domain()?;
    let Some((path, plan)) = plan_of(event, &domain)? else { return Ok(()) };
    let host = host::live()?;
    let clock = SystemClock;
    let topology = inputs::topology(&host, None)?;
    let pid = domain.process(&host, event.run_dir)?;
    let found = threads::discover(&host, pid, None)?;
    let mut plan = inputs::fitting(&path, plan, &topology, &Vcpus::from_found(&found))?;
    // The journal is found by the domain's name when the domain stops.
    plan.vnodes[0].name.clone_from(&domain.name);
    if plan.strategy != "none" {
        found.require_own_threads()?;
    }
    for finding in found.findings.iter().chain(&contradictions(&plan, &domain)) {
        say(&finding.to_string());
    }
    let target = placeable(&found);
    let state = host::state(state)?;
    let journals = host::journals(&state, &clock)?;
    let placed = Placement { plan: &plan, target: &target };
    // Not interrupted: libvirt waits for it.
    interrupt::install()?;
    let starting = StartLock::wait_at_most(&state, PATIENCE_NS)?;
    if starting.is_none() {
        say("note: another pinfold process is starting a placement, which may use the same CPUs");
    }
    // The plan is not made here, so it cannot avoid them.
    let claims = claims::read(&host, Some(&journals))?;
    let claims = claims.without_machine(&host, pid, &domain.name);
    claims.conflicts(&domain.name, &plan).iter().for_each(|finding| say(&finding.to_string()));
    let (applied, journal) = apply_session::apply(&host, placed, &journals, OnStop::Finish)?;
    drop(starting);
    apply_session::report(&applied);
    apply_session::report_unguarded(&plan);
    // libvirt calls no hook for a domain that ends while its daemon does not run.
    end_waiter::start(&HelperProgram::own()?, &journals, &plan, &journal);
    Ok(())
}

/// Cleans up after a domain that has ended: cgroups, and tasks that were excluded from its CPUs.
fn stopped(event: &HookEvent<'_>, state: Option<&str>) -> Result<(), Failure> {
    let host = host::live()?;
    let clock = SystemClock;
    let state = host::state(state)?;
    let journals = host::journals(&state, &clock)?;
    for summary in journals.list()? {
        let Ok(Some(record)) = &summary.record else { continue };
        let header = &record.header;
        if record.has_ended() || header.vm_name != event.domain || is_alive(&host, header.vm)? {
            continue;
        }
        match journals.reopen(&summary.id) {
            Ok(Some(journal)) if !journal.record().has_ended() => {
                apply_session::undo(&host, journal)?;
            }
            // The process that waits for the end of the machine has reverted it, or does so now.
            Ok(_) | Err(JournalError::Busy { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn is_alive(host: &LiveHost, task: pinfold_model::TaskId) -> Result<bool, Failure> {
    pinfold_host::process::task_alive(host, task).map_err(Failure::from)
}

fn read_domain() -> Result<Described, Failure> {
    let wrong = |why: String| Failure::new(Exit::Input, format!("standard input: {why}"));
    // Ends after ten seconds of silence: libvirt waits for this process.
    let xml = files::read_text("-").map_err(|error| inputs::input_failure(&error))?;
    Described::from_xml(&xml).map_err(|error| {
        wrong(error.to_string()).with_hint("libvirt calls this, with the domain's XML")
    })
}

/// The plan for a domain, by its UUID or else by its name, with its path; `None` if there is none.
/// The plan is executed as root, so folder and file must belong to the caller, must not be links,
/// and must not be writable by others.
fn plan_of(event: &HookEvent<'_>, domain: &Described) -> Result<Option<(String, Plan)>, Failure> {
    if !files::exists(event.plans) {
        return Ok(None);
    }
    let folder = StateDir::open(event.plans)?;
    let names = [&domain.uuid, &domain.name].map(|name| format!("{name}.json"));
    let name = names.iter().find(|name| !name.starts_with('.') && folder.contains(name));
    let Some(name) = name else { return Ok(None) };
    // Through the open folder: the path could refer to another file by now.
    let bytes = folder.read(name)?;
    let path = folder.path_of(name);
    let plan = inputs::parse_plan(&path, bytes)?;
    Ok(Some((path, plan)))
}

/// Pinning in the domain's XML that differs from the plan: libvirt would set it again.
fn contradictions(plan: &Plan, domain: &Described) -> Vec<Finding> {
    let mut roles = Vec::new();
    for thread in &plan.vnodes[0].threads {
        let Ok(target) = PinTarget::from_role(&thread.role) else { continue };
        if domain.pins.of(target).is_some_and(|own| *own != thread.pus) {
            roles.push(thread.role.to_string());
        }
    }
    if roles.is_empty() {
        return Vec::new();
    }
    let text = format!(
        "the domain's own <cputune> places {} elsewhere, and libvirt will apply it again at its \
         next change",
        roles.join(", ")
    );
    let apply = Command::new("apply --libvirt NAME --plan FILE --config");
    let hint = format!("write the plan into the domain: `{apply}`");
    vec![Finding::warning("libvirt", text).with_hint(hint)]
}
