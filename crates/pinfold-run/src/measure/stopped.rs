//! Warnings about threads that cannot run when an observation of them begins.

use std::collections::BTreeSet;

use pinfold_host::mountinfo::Mount;
use pinfold_host::{Host, cpu_groups, mountinfo, paths, proc_cgroup, proc_stat, proc_status};
use pinfold_model::text::count_noun;
use pinfold_model::{Role, TaskId, Tid};

/// What keeps threads of a machine, process or group from running, as sentences.
pub(super) fn report(host: &dyn Host, name: &str, threads: &[(TaskId, Role)]) -> Vec<String> {
    let mounts = host.read_text(&paths::own_mountinfo()).ok();
    let mounts = mounts.and_then(|text| mountinfo::parse(&text).ok()).unwrap_or_default();
    let mut found = Vec::new();
    let mut stopped = Vec::new();
    let mut groups = BTreeSet::new();
    for (task, _) in threads {
        let Ok(Some(stat)) = proc_stat::read(host, task.tid) else { continue };
        match stat.state {
            'T' | 't' => stopped.push(task.tid),
            _ => groups.extend(frozen_group(host, &mounts, task.tid)),
        }
    }
    if let Some(first) = stopped.first() {
        let (count, all) = (stopped.len(), count_noun(threads.len(), "thread"));
        let verb = if count == 1 { "is" } else { "are" };
        let process = process_of(host, *first).unwrap_or(*first);
        found.push(format!(
            "{name}: {count} of {all} {verb} stopped (a signal or a debugger): `kill -CONT {process}` \
             continues a process that a signal stopped"
        ));
    }
    found.extend(groups.iter().map(|group| format!("{name}: its group {group} is frozen")));
    found
}

fn process_of(host: &dyn Host, tid: Tid) -> Option<Tid> {
    let text = host.read_text(&paths::process_status(tid)).ok()?;
    proc_status::parse(&text).ok().map(|status| status.tgid)
}

/// The innermost group of a thread that is frozen, by the freezer of either version.
fn frozen_group(host: &dyn Host, mounts: &[Mount], tid: Tid) -> Option<String> {
    let text = host.read_text(&paths::process_file(tid, "cgroup")).ok()?;
    let v2 = mountinfo::v2_mount(mounts).map(|mount| cpu_groups::dirs(&mount, &text));
    let v2 = v2.unwrap_or_default().into_iter().find(|group| {
        let events = host.read_text(&paths::cgroup_events(group)).unwrap_or_default();
        events.lines().any(|line| line == "frozen 1")
    });
    v2.or_else(|| {
        let memberships = proc_cgroup::parse(&text).ok()?;
        let path = proc_cgroup::v1_path(&memberships, "freezer")?;
        let group = mountinfo::v1_mount(mounts, "freezer")?.group_dir(path)?;
        let state = host.read_text(&paths::freezer_state(&group)).ok()?;
        (state.trim() != "THAWED").then_some(group)
    })
}

#[cfg(test)]
mod tests {
    use pinfold_host::SnapshotHost;

    use super::*;

    const MOUNTS: &str = "41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n\
                          42 31 0:39 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer\n";

    #[test]
    fn stopped_threads_and_frozen_groups_are_reported() {
        for (state, events, freezer, expected) in [
            ("T", "frozen 0", "THAWED", "web: 1 of 1 thread is stopped"),
            ("S", "frozen 1", "THAWED", "web: its group /sys/fs/cgroup/vm is frozen"),
            ("D", "frozen 0", "FROZEN", "web: its group /sys/fs/cgroup/freezer/cold is frozen"),
        ] {
            let found = of_thread(state, events, freezer);
            assert!(found.len() == 1 && found[0].starts_with(expected), "{found:?}");
        }
        assert!(of_thread("S", "frozen 0", "THAWED").is_empty());
    }

    const STATUS: &str = "Name:\tx\nTgid:\t7\nPid:\t7\nPPid:\t1\nUid:\t0\t0\t0\t0\n";

    fn of_thread(state: &str, events: &str, freezer: &str) -> Vec<String> {
        let zeros = " 0".repeat(40);
        let stat = format!("7 (x) {state} 1{zeros}\n");
        let host = SnapshotHost::from_files([
            (paths::own_mountinfo().as_str(), MOUNTS),
            (paths::process_stat(Tid(7)).as_str(), stat.as_str()),
            (paths::process_status(Tid(7)).as_str(), STATUS),
            (paths::process_file(Tid(7), "cgroup").as_str(), "3:freezer:/cold\n0::/vm\n"),
            (paths::cgroup_events("/sys/fs/cgroup/vm").as_str(), events),
            (paths::freezer_state("/sys/fs/cgroup/freezer/cold").as_str(), freezer),
        ]);
        report(&host, "web", &[(TaskId { tid: Tid(7), start_time: 0 }, Role::Task)])
    }
}
