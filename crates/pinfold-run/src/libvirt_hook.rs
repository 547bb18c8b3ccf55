//! The hook that libvirt calls when a domain starts and stops.
//!
//! libvirt waits for its hook while it holds the domain's lock, and kills the domain if the hook
//! fails after the start. So the hook never calls libvirt, ends after a bounded time, and reports
//! errors without a failure status: a domain without its placement is better than none. libvirt
//! drops what a hook prints, so reports also go to the log of the host. A hook cannot change pinning
//! through libvirt. It sets the masks itself, and reports differences from the domain's own XML.
//!
//! A domain is placed by its saved plan, or planned on the host as it is at its start if its
//! metadata or a row of the file of domains ask for that ([`crate::domains`]).

use std::io::Write as _;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use pinfold_apply::{JournalError, Journals, RecordedPin};
use pinfold_config::domains::DomainSettings;
use pinfold_host::files::{self, StateDir};
use pinfold_host::process::Stdio;
use pinfold_host::{Clock as _, HostError, LiveHost, SystemClock, log, proc_stat};
use pinfold_model::text::pus_text;
use pinfold_model::{Command, Finding, Plan, Severity, Tid, escape};
use pinfold_vm::libvirt::{Caller, HookDomain, PinTarget};
use pinfold_vm::threads;
use pinfold_vm::{DiscoveredVm, VmError};

use crate::apply_session::{self, OnStop, Placement};
use crate::claims;
use crate::domains::{self, DomainRequest, KnownMachine};
use crate::helper_program::{Helper, HelperProgram, HookEvent};
use crate::message::say;
use crate::start_lock::StartLock;
use crate::start_plan::{self, HostNow, Source, Started};
use crate::target::to_target;
use crate::vcpus::Vcpus;
use crate::{Exit, Failure, end_waiter, ended_placements, host, inputs, interrupt, time};

/// Name of the entries in the log.
const LOG: &str = "pinfold-libvirt-hook";
/// What messages call the standard input.
const INPUT: &str = "the domain's XML on standard input";
/// Maximum size of that XML; clients of libvirt send at most 4 MiB (`REMOTE_STRING_MAX`).
const MOST_BYTES: usize = 16 << 20;
/// Longest wait for another start: libvirt waits for this process (ns).
const TIMEOUT_NS: u64 = 5_000_000_000;
/// The same for the process that goes on after the hook: 500 machines that start at once on a busy
/// host are placed in a quarter of an hour.
const LATE_PATIENCE_NS: u64 = 3_600_000_000_000;
/// Longest time of the hook; longer than the silence of standard input and [`TIMEOUT_NS`].
const LONGEST: Duration = Duration::from_secs(20);
/// The same for the process that goes on after the hook.
const LATE_LONGEST: Duration = Duration::from_secs(3_900);

/// Handles one event; failures are only reported. libvirt waits for 20 s at most.
pub fn handle(event: &HookEvent, state: Option<&str>) {
    let (sender, receiver) = mpsc::channel();
    let (own, state) = (event.clone(), state.map(str::to_owned));
    // Reading a process can block in the kernel, and libvirt would wait for that.
    std::thread::spawn(move || {
        // After the wait below no task receives it, and this process ends.
        match sender.send(react(&own, state.as_deref())) {
            Ok(()) | Err(_) => {}
        }
    });
    let longest = if event.is_late { LATE_LONGEST } else { LONGEST };
    match receiver.recv_timeout(longest) {
        Ok(Ok(())) => {}
        Ok(Err(failure)) => {
            let what = unfinished(event);
            say(&format!("{} {what}: {failure}", subject(event)));
            record(event, &format!("{what}: {}", failure.message));
        }
        Err(RecvTimeoutError::Timeout) => report(
            event,
            &format!("{} within {} s; {}", unfinished(event), longest.as_secs(), remedy(event)),
        ),
        Err(RecvTimeoutError::Disconnected) => {
            let what = unfinished(event);
            report(event, &format!("{what}: an internal error, which is a bug in Pinfold"));
        }
    }
}

/// Logs a call of libvirt that this version does not understand.
pub fn log_unknown_call(why: &str) {
    let date = time::date(SystemClock.unix_seconds());
    log::write(LOG, &date, &format!("ignored a call that was not understood: {why}"));
}

/// Prints and logs arguments that this version does not know; a later libvirt may add some.
pub fn report_surplus(event: &HookEvent, arguments: &[String]) {
    if !arguments.is_empty() && (is_end(event) || is_start(event)) {
        let shown: Vec<String> = arguments.iter().map(|one| format!("{one:?}")).collect();
        report(event, &format!("has arguments that are ignored: {}", shown.join(" ")));
    }
}

/// True for an event at which a domain is placed.
fn is_start(event: &HookEvent) -> bool {
    matches!((event.operation.as_str(), event.phase.as_str()), ("started" | "reconnect", "begin"))
}

/// True for an event at which a domain has ended.
fn is_end(event: &HookEvent) -> bool {
    matches!((event.operation.as_str(), event.phase.as_str()), ("stopped" | "release", "end"))
}

/// What a hook that failed did not do.
fn unfinished(event: &HookEvent) -> &'static str {
    if is_end(event) { "has ended, and its placement was not reverted" } else { "was not placed" }
}

fn remedy(event: &HookEvent) -> &'static str {
    if is_end(event) {
        "`pinfold status` names the placement, and `pinfold undo` reverts it"
    } else {
        "`pinfold undo --left` reverts what was begun"
    }
}

fn react(event: &HookEvent, state: Option<&str>) -> Result<(), Failure> {
    match (event.operation.as_str(), event.phase.as_str()) {
        // A domain that is restored, or migrated to this host, starts too.
        ("started", "begin") => place(event, state, Occasion::Start),
        ("reconnect", "begin") => place(event, state, Occasion::Reconnect),
        // Also after a migration to another host.
        (_, _) if is_end(event) => end_domain(event, state),
        (_, _) => Ok(()),
    }
}

/// When a domain is placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Occasion {
    /// It has just started.
    Start,
    /// libvirt was restarted and has found it running.
    Reconnect,
}

/// What a domain is placed by.
enum Choice {
    /// A saved plan, with its path.
    Saved(String, Box<Plan>),
    /// Settings, with their origin in words.
    Settings(Box<DomainSettings>, String),
}

/// Prints a message about the domain, and writes it to the log.
fn report(event: &HookEvent, text: &str) {
    say(&format!("{} {text}", subject(event)));
    record(event, text);
}

/// The domain in a message.
fn subject(event: &HookEvent) -> String {
    format!("domain {:?}", escape::short_name(&event.domain))
}

fn record(event: &HookEvent, text: &str) {
    let date = time::date(SystemClock.unix_seconds());
    log::write(LOG, &date, &format!("{} {text}", subject(event)));
}

fn report_finding(event: &HookEvent, finding: &Finding) {
    say(&finding.to_string());
    record(event, &finding.to_string());
}

fn place(event: &HookEvent, state: Option<&str>, occasion: Occasion) -> Result<(), Failure> {
    // Also where nothing asks for the domain: a call with this fault never places one.
    state.map(|path| host::state_path(Some(path))).transpose()?;
    let (xml, domain) = read_domain()?;
    if domain.name != event.domain && !event.is_late {
        let own = escape::short_name(&domain.name);
        report(event, &format!("has the name {own:?} in its XML, which is used"));
    }
    let Some(choice) = choose(event, &domain, &xml)? else { return Ok(()) };
    let host = host::live_in_hook(Caller::Hook)?;
    let state = host::state(state)?;
    let journals = host::journals(&state, &SystemClock)?;
    let pid = match domain.process(&host, &event.run_dir) {
        Ok(pid) => pid,
        Err(error) if matches!(error, VmError::NoProcess { .. }) => {
            report(event, &format!("was not placed, its process has ended: {error}"));
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    if occasion == Occasion::Reconnect && keeps(&host, &journals, pid)? {
        return Ok(());
    }
    let placing = Placing { event, host: &host, journals: &journals, domain: &domain, pid };
    let placed = placing.place(&choice, &xml, &state);
    match placed {
        Err(failure) if has_ended(&host, pid) => {
            let why = failure.message;
            report(event, &format!("has ended while it was being placed ({why})"));
            Ok(())
        }
        placed => placed,
    }
}

fn has_ended(host: &LiveHost, pid: Tid) -> bool {
    // Until libvirt has read its status, the process is a zombie.
    proc_stat::read(host, pid).is_ok_and(|stat| stat.is_none_or(|stat| stat.state == 'Z'))
}

/// True if the domain was placed before libvirt was restarted. Its placement is still active, or was
/// undone on purpose; the process that waits for its end may have been killed.
fn keeps(host: &LiveHost, journals: &Journals<'_>, pid: Tid) -> Result<bool, Failure> {
    let Some(stat) = proc_stat::read(host, pid)? else { return Ok(true) };
    let mut is_known = false;
    for summary in journals.list()? {
        let Ok(Some(record)) = &summary.record else { continue };
        if record.header.vm != stat.task() || !record.is_of_this_boot(host)? {
            continue;
        }
        is_known = true;
        if !record.has_ended()
            && let Ok(plan) = pinfold_plan::schema::from_json(&record.header.plan)
            && let Ok(Some(journal)) = journals.reopen(&summary.id)
        {
            // If one waits already, the new one ends at once.
            end_waiter::start(&HelperProgram::own()?, journals, &plan, &journal);
        }
    }
    Ok(is_known)
}

/// What the domain is placed by; `None` if nothing asks for it.
fn choose(event: &HookEvent, domain: &HookDomain, xml: &str) -> Result<Option<Choice>, Failure> {
    if let Some((path, plan)) = plan_of(event, domain)? {
        return Ok(Some(Choice::Saved(path, Box::new(plan))));
    }
    let named = KnownMachine { name: &domain.name, uuid: &domain.uuid, xml: Some(xml) };
    let DomainRequest { settings, findings, origin, is_excluded, is_file_ignored } =
        domains::domain_request(named, &event.domains, domains::read(&event.domains));
    findings.iter().for_each(|finding| report_finding(event, finding));
    if is_excluded {
        record(event, &format!("was not placed: {}", domains::exclusion(&origin)));
    } else if settings.is_none() && is_file_ignored {
        let file = escape::name(&event.domains);
        report(event, &format!("was not placed: {file} is ignored, and it has no metadata"));
    }
    Ok(settings.map(|settings| Choice::Settings(Box::new(settings), origin)))
}

/// A domain that is being placed.
struct Placing<'a> {
    event: &'a HookEvent,
    host: &'a LiveHost,
    journals: &'a Journals<'a>,
    domain: &'a HookDomain,
    pid: Tid,
}

impl Placing<'_> {
    fn place(&self, choice: &Choice, xml: &str, state: &StateDir) -> Result<(), Failure> {
        let topology = inputs::topology(self.host, None)?;
        let found = threads::discover(self.host, self.pid, None)?;
        // Not interrupted: libvirt waits for it.
        interrupt::install()?;
        let patience = if self.event.is_late { LATE_PATIENCE_NS } else { TIMEOUT_NS };
        let starting = StartLock::wait_at_most(state, patience)?;
        if starting.is_none() {
            if matches!(choice, Choice::Settings(..)) && !self.event.is_late {
                return self.place_later(xml);
            }
            say("note: another pinfold process is starting a placement, which may use the same \
                 CPUs");
        }
        let claims = claims::read(self.host, Some(self.journals))?;
        let claims = claims.without_machine(self.host, self.pid, &self.domain.name);
        let now = HostNow { host: self.host, topology: &topology, claims: &claims };
        let mut plan = self.plan(choice, xml, &found, &now)?;
        // The journal is found by the domain's name when the domain stops.
        plan.vnodes[0].name.clone_from(&self.domain.name);
        if pinfold_plan::has_pins(&plan) {
            found.require_own_threads()?;
        }
        for finding in found.findings.iter().chain(&contradictions(&plan, self.domain)) {
            say(&finding.to_string());
        }
        if matches!(choice, Choice::Saved(..)) {
            // That plan was not made here, so it cannot avoid them.
            let conflicts = claims.conflicts(&self.domain.name, &plan);
            conflicts.iter().for_each(|finding| report_finding(self.event, finding));
        }
        let mut target = to_target(&found);
        let pins = self.domain.recorded_pins(&self.event.run_dir, &target.threads);
        target.pins = pins
            .into_iter()
            .map(|(task, setting, value)| RecordedPin { task, setting, value })
            .collect();
        let placed = Placement { plan: &plan, target: &target };
        let (applied, journal) =
            apply_session::apply(self.host, placed, self.journals, OnStop::Finish)?;
        drop(starting);
        apply_session::report(&applied);
        apply_session::report_unguarded(&plan);
        let by = match choice {
            Choice::Saved(path, _) => path.clone(),
            Choice::Settings(_, origin) => format!("`{}` ({origin})", plan.strategy),
        };
        record(self.event, &format!("was placed on {} by {by}", pus_text(&plan.pus())));
        // libvirt calls no hook for a domain that ends while its daemon does not run.
        end_waiter::start(&HelperProgram::own()?, self.journals, &plan, &journal);
        Ok(())
    }

    /// Leaves the placement to a process for which libvirt does not wait: many machines start at the
    /// same time, and each plan needs the claims of those before it.
    fn place_later(&self, xml: &str) -> Result<(), Failure> {
        let state = self.journals.state_dir();
        let mut child = HelperProgram::own()?
            .spawn(Helper::LateHook { state: &state, event: self.event })
            .stdin(Stdio::Pipe)
            .stdout(Stdio::Null)
            .stderr(Stdio::Null)
            .detach()
            .start()?;
        if let Some(mut stdin) = child.stdin() {
            stdin.write_all(xml.as_bytes()).map_err(|error| {
                let text = format!("the process that places it later has ended: {error}");
                Failure::new(Exit::Host, text)
            })?;
        }
        let _its_number = child.detach();
        report(self.event, "is placed later: other machines are being placed");
        Ok(())
    }

    fn plan(
        &self,
        choice: &Choice,
        xml: &str,
        found: &DiscoveredVm,
        now: &HostNow<'_>,
    ) -> Result<Plan, Failure> {
        match choice {
            Choice::Saved(path, plan) => {
                let vcpus = Vcpus::from_found(found);
                let own = plan.part_for(&[&self.domain.name]);
                inputs::fitting(path, own, now.topology, &vcpus)
            }
            Choice::Settings(settings, origin) => {
                let name = &self.domain.name;
                let machine = Started { name, found, source: Source::Domain(xml) };
                let (plan, findings) = start_plan::plan(&machine, settings, now)?;
                findings.iter().for_each(|finding| report_finding(self.event, finding));
                for finding in &plan.findings {
                    if finding.severity > Severity::Note {
                        report_finding(self.event, finding);
                    } else {
                        say(&finding.to_string());
                    }
                }
                say(&format!("planned by `{}`: {origin}", plan.strategy));
                Ok(plan)
            }
        }
    }
}

/// Cleans up after a domain that has ended: cgroups, and tasks that were excluded from its CPUs. What
/// `apply --config` wrote into its definition is for its next start: that stays until `undo`, which
/// can call libvirt.
fn end_domain(event: &HookEvent, state: Option<&str>) -> Result<(), Failure> {
    let host = host::live_in_hook(Caller::EndHook)?;
    let clock = SystemClock;
    let state = match host::state(state) {
        Ok(state) => state,
        Err(failure) => {
            // It may never have been placed.
            let what = "has ended; whether it had a placement to revert is not known";
            say(&format!("{} {what}: {failure}", subject(event)));
            record(event, &format!("{what}: {}", failure.message));
            return Ok(());
        }
    };
    let journals = host::journals(&state, &clock)?;
    for summary in journals.list()? {
        let Ok(Some(record)) = &summary.record else { continue };
        let header = &record.header;
        if record.has_ended() || header.vm_name != event.domain || is_alive(&host, header.vm)? {
            continue;
        }
        match journals.reopen(&summary.id) {
            Ok(Some(journal)) if !journal.record().has_ended() => {
                if ended_placements::is_for_next_start(journal.record()) {
                    apply_session::undo_host_part(&host, journal)?;
                } else {
                    apply_session::undo(&host, journal)?;
                }
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

fn read_domain() -> Result<(String, HookDomain), Failure> {
    // Ends after ten seconds of silence: libvirt waits for this process.
    let fail = |error: &HostError| Failure::from_error(Exit::Input, error, None);
    let bytes = files::read_input(INPUT, MOST_BYTES).map_err(|error| fail(&error))?;
    let xml = files::text(INPUT, bytes);
    let xml = xml.map_err(|error| fail(&error))?;
    let domain = HookDomain::from_xml(&xml).map_err(|error| {
        Failure::new(Exit::Input, error.to_string())
            .with_hint("libvirt calls this, with the domain's XML")
    })?;
    Ok((xml, domain))
}

/// The plan for a domain, by its UUID or else by its name, with its path; `None` if there is none.
/// The plan is executed as root, so folder and file must belong to the caller, must not be links,
/// and must not be writable by others.
fn plan_of(event: &HookEvent, domain: &HookDomain) -> Result<Option<(String, Plan)>, Failure> {
    if !files::exists(&event.plans) {
        return Ok(None);
    }
    let folder = StateDir::open(&event.plans)?;
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
fn contradictions(plan: &Plan, domain: &HookDomain) -> Vec<Finding> {
    let mut roles = Vec::new();
    for thread in &plan.vnodes[0].threads {
        let Ok(target) = PinTarget::from_role(&thread.role) else { continue };
        if domain.pins.cpus_for(target).is_some_and(|own| *own != thread.pus) {
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
