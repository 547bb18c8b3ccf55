//! The claims on the CPUs of this host: those of the active placements and platforms, from the
//! journals of all state directories, then those of other owners ([`pinfold_claims`]).

use std::collections::BTreeSet;

use pinfold_apply::{Journals, Record};
use pinfold_claims::owners::placements;
pub use pinfold_claims::{Claims, USED_TWICE};
use pinfold_claims::{Exclusivity, Owner, Source, owners::busy_threads};
use pinfold_host::files::StateDir;
use pinfold_host::{Clock as _, LiveHost, SystemClock, process};
use pinfold_model::{Finding, Plan};

use crate::emulate::status::{cpus_of, is_platform};
use crate::{Failure, host, interrupt};

/// Shortest pause between two checks whether the user has interrupted the wait for busy threads.
const STEP_NS: u64 = 50_000_000;

/// The owner of a placement.
#[must_use]
pub fn placement(name: &str, id: &str) -> Owner {
    Owner::new(&placements::PLACEMENT, name).of_journal(id)
}

/// The claims of this host, with the journals of the state directory at `path` or the usual one.
///
/// # Errors
/// That of [`read`].
pub fn of_existing(live: &LiveHost, path: Option<&str>) -> Result<Claims, Failure> {
    let state = host::existing_state(path)?;
    read(live, host::existing_journals(state.as_ref(), &SystemClock)?.as_ref())
}

/// The same with the busy threads that are bound to one CPU, for a new plan.
///
/// # Errors
/// That of [`read`].
pub fn for_plan(live: &LiveHost, path: Option<&str>) -> Result<Claims, Failure> {
    let mut claims = of_existing(live, path)?;
    add_bound_threads(live, &mut claims);
    Ok(claims)
}

/// The claims of this host, with the journals of a state directory.
///
/// # Errors
/// That of [`read`].
pub fn of_state(live: &LiveHost, state: &StateDir) -> Result<Claims, Failure> {
    read(live, Some(&host::journals(state, &SystemClock)?))
}

/// The claims of this host: of all active placements and platforms whose processes live, and of
/// other owners.
///
/// # Errors
/// [`Failure`] if the given journals cannot be listed. Those of other state directories that cannot
/// be read are left out: their machines are found by the masks of their threads.
pub fn read(live: &LiveHost, journals: Option<&Journals<'_>>) -> Result<Claims, Failure> {
    let mut claims = Claims::default();
    let mut own = None;
    if let Some(journals) = journals {
        own = Some(journals.path());
        add_journals(&mut claims, live, journals)?;
    }
    for directory in other_directories(&mut claims, live, own.as_deref()) {
        if add_directory(&mut claims, live, &directory).is_err() {
            claims.add_unreadable(directory);
        }
    }
    claims.read_owners(live);
    Ok(claims)
}

/// Adds the busy threads that are bound to one CPU. A plan names those on its CPUs; this reads all
/// threads of the host, so commands that make no plan leave it out.
pub fn add_bound_threads(live: &LiveHost, claims: &mut Claims) {
    let threads = busy_threads::read_bound(live, claims);
    claims.set_bound_threads(threads);
}

/// The claims of another machine: those of a capture; none of any other description.
#[must_use]
pub fn of_input(live: &LiveHost, input: &str) -> Claims {
    match pinfold_topology::read_capture(live, input) {
        Ok(capture) => pinfold_claims::read_captured(&capture),
        Err(_) => Claims::default(),
    }
}

/// Adds the threads that are bound to one CPU and keep it busy for `seconds`.
///
/// # Errors
/// [`Failure`] if the user interrupts it.
pub fn add_busy(live: &LiveHost, claims: &mut Claims, seconds: f64) -> Result<(), Failure> {
    let first = busy_threads::Sample::read(live, claims);
    let begin = SystemClock.now_ns();
    let wait = std::time::Duration::from_secs_f64(seconds.clamp(0.0, 3600.0)).as_nanos();
    let end = begin.saturating_add(u64::try_from(wait).unwrap_or(u64::MAX));
    while SystemClock.now_ns() < end {
        interrupt::check()?;
        SystemClock.sleep_ns(STEP_NS.min(end.saturating_sub(SystemClock.now_ns())));
    }
    let later = busy_threads::Sample::read(live, claims);
    first.add_busy(&later, SystemClock.now_ns().saturating_sub(begin), claims);
    Ok(())
}

/// The state directories with active placements of this user, apart from the one whose journals are
/// in `own`.
fn other_directories(claims: &mut Claims, live: &LiveHost, own: Option<&str>) -> BTreeSet<String> {
    let paths = pinfold_apply::active_journals(live).unwrap_or_else(|error| {
        let text = format!("placements of other state directories are not known: {error}");
        claims.report(Finding::warning("claims", text));
        Vec::new()
    });
    let folders = paths.iter().filter_map(|path| path.rsplit_once('/').map(|(folder, _)| folder));
    let others = folders.filter(|folder| Some(*folder) != own);
    others.filter_map(|folder| folder.rsplit_once('/').map(|(state, _)| state.to_owned())).collect()
}

fn add_directory(claims: &mut Claims, live: &LiveHost, directory: &str) -> Result<(), Failure> {
    let state = StateDir::open_existing(directory)?;
    match host::existing_journals(state.as_ref(), &SystemClock)? {
        Some(journals) => add_journals(claims, live, &journals),
        None => Ok(()),
    }
}

fn add_journals(
    claims: &mut Claims,
    live: &LiveHost,
    journals: &Journals<'_>,
) -> Result<(), Failure> {
    for summary in journals.list()? {
        match &summary.record {
            // One of an earlier boot or of another host places nothing here.
            Ok(Some(record)) if !record.has_ended() && record.require_here(live).is_ok() => {
                add_record(claims, live, record)?;
            }
            Ok(_) => {}
            Err(_) => claims.add_unreadable(summary.id),
        }
    }
    Ok(())
}

/// A plan without the threads that were moved one by one and have ended.
pub(crate) fn without_ended(host: &LiveHost, plan: &Plan) -> Plan {
    let mut plan = plan.clone();
    plan.moved.retain(|(task, _)| process::task_alive(host, *task).unwrap_or(true));
    plan
}

fn add_record(claims: &mut Claims, host: &LiveHost, record: &Record) -> Result<(), Failure> {
    let header = &record.header;
    let id = header.id.clone();
    let is_platform = is_platform(&header.plan);
    let process = if is_platform { header.supervisor } else { header.vm };
    if !process::task_alive(host, process)? {
        return Ok(());
    }
    if is_platform {
        let owner = Owner::new(&placements::PLATFORM, "").of_journal(&id).of_process(process.tid);
        let source = Source::process(process.tid);
        match cpus_of(&header.plan) {
            Some(cpus) => claims.add(&owner, cpus, Exclusivity::Exclusive, &source),
            None => claims.add_unreadable(id),
        }
    } else {
        let owner = placement(&header.vm_name, &id).of_process(process.tid);
        match pinfold_plan::schema::from_json(&header.plan) {
            Ok(plan) => claims.add_plan(&owner, &without_ended(host, &plan)),
            Err(_) => claims.add_unreadable(id),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use pinfold_host::process::{Spawn, own_pid};
    use pinfold_host::{Host as _, paths, proc_stat};
    use pinfold_model::{CpuSet, Request, TaskId, VcpuCount};

    use super::*;

    /// All commands read the claims, `watch` again and again.
    #[test]
    fn busy_threads_are_read_for_a_plan_only() {
        let live = LiveHost::new().unwrap();
        let cpus = live.affinity(own_pid()).unwrap();
        if cpus.len() < 2 {
            println!("skipped: with one CPU each thread is bound to it");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().to_string_lossy().into_owned();
        let spin = Spawn::new("sh").args(["-c", "while :; do :; done"]).die_with_parent(true);
        let mut spin = spin.affinity(cpus.iter().take(1).collect()).start().unwrap();
        let has_spin = |claims: &Claims| {
            let mut threads = claims.bound_threads_on(&cpus);
            threads.any(|thread| thread.process == spin.pid())
        };
        let end = SystemClock.now_ns() + 60_000_000_000;
        while !has_spin(&for_plan(&live, Some(&state)).unwrap()) {
            assert!(SystemClock.now_ns() < end, "the busy thread is not found");
            SystemClock.sleep_ns(STEP_NS);
        }
        let claims = of_existing(&live, Some(&state)).unwrap();
        assert_eq!(claims.bound_threads_on(&CpuSet::first_n(4096)).count(), 0);
        spin.kill().unwrap();
    }

    #[test]
    fn the_finding_about_a_file_of_an_owner_that_is_a_pipe_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let path = format!("{}/cpu_manager_state", folder.path().display());
        assert!(Spawn::new("mkfifo").args([&path]).start().unwrap().wait().unwrap().success());
        let (live, mut claims) = (LiveHost::new().unwrap(), Claims::default());
        assert_eq!(pinfold_claims::Context::new(&live).text(&path, &mut claims), None);
        let text = &claims.findings()[0].text;
        assert_eq!(*text, format!("{path} is a pipe, not a regular file; not read"));
    }

    #[test]
    fn a_thread_that_was_moved_and_has_ended_uses_no_cpu() {
        let live = LiveHost::new().unwrap();
        let topology = pinfold_topology::read_input(&live, "core:4 pu:1").unwrap();
        let request = Request::vm("a", VcpuCount::Exactly(1));
        let mut plan = pinfold_plan::plan("compact", &topology, &request).unwrap();
        let own = proc_stat::at(&live, &paths::own_stat()).unwrap().unwrap().task();
        let ended = TaskId { start_time: own.start_time + 1, ..own };
        plan.moved = [own, ended].map(|task| (task, CpuSet::first_n(1))).into();
        assert_eq!(without_ended(&live, &plan).moved, [(own, CpuSet::first_n(1))]);
    }
}
