//! Existing groups of other programs and running processes that become vnodes.

use std::collections::BTreeMap;

use pinfold_host::{Host, HostError, paths, proc_cgroup, proc_stat, process};
use pinfold_model::{Change, Method, Step, TaskState, Tid, Undo};

use super::{GROUP_PREFIX, VnodeCgroup};
use crate::SpeedError;
use crate::cleanup::pids;
use crate::hierarchies::{Hierarchies, MountedHierarchy};
use crate::node::Node;

/// True for methods that distribute threads to groups below that of the vnode.
fn divides(method: Method) -> bool {
    match method {
        Method::Quota | Method::Fracas => true,
        Method::Stall
        | Method::Hogs
        | Method::Gov
        | Method::Freq
        | Method::Lim
        | Method::Inject => false,
    }
}

/// Uses a v2 group as it is; `VnodeCgroup::hold` restricts it to the vnode's CPUs.
pub(super) fn group(
    host: &dyn Host,
    hierarchies: &Hierarchies,
    node: &Node,
    path: &str,
) -> Result<VnodeCgroup, SpeedError> {
    if divides(node.method) {
        return Err(SpeedError::Unavailable {
            vnode: node.name.clone(),
            method: node.method,
            why: format!(
                "it distributes threads to groups below that of the vnode, but {path} belongs to \
                 another program"
            ),
            hint: "use stall, hogs or gov, or attach a process, which gets groups of its own"
                .to_owned(),
        });
    }
    let places = [&hierarchies.perf, &hierarchies.freezer, &hierarchies.cpuset, &hierarchies.cpu];
    let Some(place) = places.into_iter().flatten().find(|place| place.unified) else {
        return Err(fail_attach(
            node,
            path,
            "cannot be used: cgroup version 2 is not mounted",
            "mount it",
        ));
    };
    if path.trim_matches('/').is_empty() || path.split('/').any(|name| name == "..") {
        let why = "is not a group below the root";
        return Err(fail_attach(node, path, why, "name one as `/proc/PID/cgroup` does"));
    }
    if path.contains(GROUP_PREFIX) {
        let why = "is a group of a vnode already";
        return Err(fail_attach(node, path, why, "attach another group"));
    }
    let directory = place.directory(path);
    if !host.exists(&paths::cgroup_procs(&directory)) {
        let why = format!("is not below {}", place.root);
        return Err(fail_attach(
            node,
            path,
            &why,
            "`systemd-cgls` or `/proc/PID/cgroup` shows the groups",
        ));
    }
    if pids(host, &directory)?.contains(&process::own_pid()) {
        let why = "contains Pinfold itself, which would slow itself";
        return Err(fail_attach(
            node,
            path,
            why,
            "start Pinfold elsewhere: `systemd-run --scope pinfold ...`",
        ));
    }
    Ok(VnodeCgroup {
        freezer: Some(directory.clone()),
        perf: Some(directory.clone()),
        is_attached: true,
        unified: [directory.clone()].into(),
        entry: Some(leaf(host, directory)?),
        ..VnodeCgroup::default()
    })
}

fn fail_attach(node: &Node, path: &str, why: &str, hint: &str) -> SpeedError {
    SpeedError::Unattached {
        vnode: node.name.clone(),
        what: format!("group {path:?}"),
        why: why.to_owned(),
        hint: hint.to_owned(),
    }
}

/// The first group at or below this one that may have processes: in v2 a group that enables
/// controllers for its children may not.
fn leaf(host: &dyn Host, group: String) -> Result<String, HostError> {
    if host.read_text(&paths::cgroup_subtree_control(&group))?.trim().is_empty() {
        return Ok(group);
    }
    for name in host.list(&group)? {
        let below = paths::cgroup_file(&group, &name);
        if host.exists(&paths::cgroup_procs(&below)) {
            return leaf(host, below);
        }
    }
    Ok(group)
}

/// A process that becomes a vnode, and all its descendants.
pub(super) fn process(host: &dyn Host, node: &Node, pid: u32) -> Result<Vec<Tid>, SpeedError> {
    check(host, node, pid)?;
    Ok(process_tree(host, Tid(pid))?)
}

/// The steps that move processes with all their threads into a vnode's groups. Processes that are
/// already there are left out, so that a second call only returns those created meanwhile.
pub(super) fn moves(
    host: &dyn Host,
    hierarchies: &Hierarchies,
    doors: &[String],
    family: &[Tid],
    reason: &str,
) -> Result<Vec<Step>, SpeedError> {
    let mut steps = Vec::new();
    for door in doors {
        let places = [
            (&hierarchies.cpuset, "cpuset"),
            (&hierarchies.cpu, "cpu"),
            (&hierarchies.freezer, "freezer"),
            (&hierarchies.perf, "perf_event"),
            (&hierarchies.io, "blkio"),
        ];
        let found = places
            .into_iter()
            .filter_map(|(place, name)| Some((place.as_ref()?, name)))
            .find(|(place, _)| is_inside(door, place));
        let Some((place, controller)) = found else { continue };
        let (mut tasks, mut states) = (Vec::new(), Vec::new());
        for process in family {
            let Some(leader) = proc_stat::read(host, *process)?.filter(|stat| !stat.has_ended())
            else {
                continue;
            };
            let found = states_of(host, place, controller, *process)?;
            if found.iter().any(|state| place.directory(&state.group) != *door) {
                tasks.push(leader.task());
                states.extend(found);
            }
        }
        if tasks.is_empty() {
            continue;
        }
        let members = if place.unified { "cgroup.procs" } else { "tasks" };
        steps.push(Step {
            change: Change::MoveTasks {
                group: door.clone(),
                file: "cgroup.procs".to_owned(),
                tasks,
            },
            undo: Undo::MoveTasks {
                mount: place.root.clone(),
                file: members.to_owned(),
                tasks: states,
            },
            reason: reason.to_owned(),
        });
    }
    Ok(steps)
}

fn is_inside(door: &str, place: &MountedHierarchy) -> bool {
    door.strip_prefix(&place.root).is_some_and(|below| below.starts_with('/'))
}

/// Fails unless the process is running and can be moved.
fn check(host: &dyn Host, node: &Node, pid: u32) -> Result<(), SpeedError> {
    fn fail_attach(node: &Node, pid: u32, why: &str, hint: &str) -> SpeedError {
        SpeedError::Unattached {
            vnode: node.name.clone(),
            what: format!("process {pid}"),
            why: why.to_owned(),
            hint: hint.to_owned(),
        }
    }

    let Some(first) = proc_stat::read(host, Tid(pid))?.filter(|stat| !stat.has_ended()) else {
        return Err(fail_attach(node, pid, "is not running", "find its ID with `pgrep`"));
    };
    if first.is_kernel_thread() || pid == 1 {
        let why = "is a kernel thread or init, which cannot be a vnode";
        return Err(fail_attach(node, pid, why, "attach a group or another process"));
    }
    Ok(())
}

/// A process and all its descendants, parents first.
fn process_tree(host: &dyn Host, pid: Tid) -> Result<Vec<Tid>, HostError> {
    let mut children: BTreeMap<Tid, Vec<Tid>> = BTreeMap::new();
    for name in host.list(&paths::proc_dir())? {
        let Ok(number) = name.parse() else { continue };
        if let Some(stat) = proc_stat::read(host, Tid(number))? {
            children.entry(stat.ppid).or_default().push(stat.tid);
        }
    }
    let mut family = vec![pid];
    let mut at = 0;
    while let Some(parent) = family.get(at) {
        let born = children.remove(parent).unwrap_or_default();
        family.extend(born);
        at += 1;
    }
    Ok(family)
}

/// The state of every thread of a process.
fn states_of(
    host: &dyn Host,
    place: &MountedHierarchy,
    controller: &str,
    process: Tid,
) -> Result<Vec<TaskState>, HostError> {
    let names = match host.list(&paths::task_dir(process)) {
        Err(error) if error.is_gone() => return Ok(Vec::new()),
        answer => answer?,
    };
    let mut states = Vec::new();
    for tid in names.iter().filter_map(|name| name.parse().ok().map(Tid)) {
        match state_of(host, place, controller, tid) {
            Ok(state) => states.extend(state),
            Err(error) if error.is_gone() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(states)
}

fn state_of(
    host: &dyn Host,
    place: &MountedHierarchy,
    controller: &str,
    tid: Tid,
) -> Result<Option<TaskState>, HostError> {
    let Some(stat) = proc_stat::read(host, tid)? else { return Ok(None) };
    let path = paths::process_cgroup(tid);
    let groups = proc_cgroup::parse(&host.read_text(&path)?).map_err(|error| error.at(&path))?;
    let group = if place.unified {
        proc_cgroup::v2_path(&groups)
    } else {
        proc_cgroup::v1_path(&groups, controller)
    };
    let group = group.and_then(|path| place.path_below(path)).ok_or_else(|| {
        HostError::Unexpected { path, why: format!("there is no group below {} in it", place.root) }
    })?;
    let (mask, policy) = (host.affinity(tid)?, host.policy(tid)?);
    Ok(Some(TaskState { task: stat.task(), group, mask, policy }))
}
