//! Finds the cgroups and processes of containers, units, network namespaces and mininet hosts.
//!
//! Only files are read: those in which container runtimes keep their state, `/proc`, and the cgroup
//! tree. A container whose cgroup is its own is slowed there, so that new processes are slowed from
//! their start. Where its processes share a version 2 cgroup with others, as with most runtimes on
//! cgroup version 1, its processes are moved.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Exit, Failure};
use pinfold_emulate::GROUP_PREFIX;
use pinfold_host::mountinfo;
use pinfold_host::proc_stat::{self, ProcStat};
use pinfold_host::{Host, HostError, paths, proc_cgroup, proc_status, process as own};
use pinfold_model::text::count_noun;
use pinfold_model::{Attach, AttachKind, Tid, escape};
use serde_json::Value;

use super::ipc::Member;
use crate::cgroup_tree::{self, MOST_GROUPS, directory, pids, unified_mount};

/// Longest state file of a runtime (bytes).
const LONGEST: usize = 4 << 20;
/// Shortest part of a container ID that selects it.
const SHORTEST_ID: usize = 6;

/// What is attached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// As the user named it.
    pub what: String,
    /// Its groups and processes.
    pub members: Vec<Member>,
    /// What the user should know.
    pub notes: Vec<String>,
}

/// A container, as its runtime describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Container {
    id: String,
    /// Its name, its compose service, its pod.
    names: Vec<String>,
    pid: Option<u32>,
}

/// Finds what has this name.
pub fn find(host: &dyn Host, kind: AttachKind, name: &str) -> Result<Found, Failure> {
    let what = format!("{} {}", kind.word(), escape::name(name));
    let members = match kind {
        AttachKind::Container => containers(host, &what, name)?,
        AttachKind::Unit => unit(host, &what, name)?,
        AttachKind::Netns => namespace(host, &what, name)?,
        AttachKind::Mininet => mininet(host, &what, name)?,
    };
    Ok(with_notes(host, what, members))
}

/// The same for a vnode of a platform file, which has one group or process.
pub fn find_one(host: &dyn Host, kind: AttachKind, name: &str) -> Result<Attach, Failure> {
    let Found { what, members, .. } = find(host, kind, name)?;
    match members.as_slice() {
        [Member::Group { path }] => Ok(Attach::Group(path.clone())),
        [Member::Process { pid, .. }] => Ok(Attach::Process(*pid)),
        several => {
            let count = count_noun(several.len(), "group or process");
            Err(refuse(&what, &format!("matches more than one: {count}"))
                .with_hint("leave `attach` out, and use `pinfold emulate attach` after the start"))
        }
    }
}

/// A process with its children.
pub fn process(host: &dyn Host, pid: u32) -> Result<Found, Failure> {
    let what = format!("process {pid}");
    let all = processes(host)?;
    let stat = all.get(&Tid(pid)).ok_or_else(|| refuse(&what, "is not running"))?;
    if pid == 1 || stat.is_kernel_thread() {
        return Err(refuse(&what, "is a kernel thread or init, which cannot be slowed"));
    }
    let member = member(host, &all, &what, None, stat)?;
    Ok(with_notes(host, what, vec![member]))
}

/// A group by its path.
pub fn group(host: &dyn Host, path: &str) -> Found {
    let members = vec![Member::Group { path: path.to_owned() }];
    with_notes(host, format!("group {}", escape::name(path)), members)
}

fn refuse(what: &str, why: &str) -> Failure {
    Failure::new(Exit::Input, format!("{what} {why}"))
}

fn with_notes(host: &dyn Host, what: String, members: Vec<Member>) -> Found {
    let paused = members.iter().any(|member| is_paused(host, member));
    let note = format!("{what} is paused: its speed applies when it continues");
    Found { what, members, notes: paused.then_some(note).into_iter().collect() }
}

/// All processes that have not ended.
fn processes(host: &dyn Host) -> Result<BTreeMap<Tid, ProcStat>, HostError> {
    let mut all = BTreeMap::new();
    for pid in host.list(&paths::proc_dir())?.iter().filter_map(|name| name.parse().ok().map(Tid)) {
        if let Some(stat) = proc_stat::read(host, pid)?.filter(|stat| !stat.has_ended()) {
            all.insert(pid, stat);
        }
    }
    Ok(all)
}

fn is_below(all: &BTreeMap<Tid, ProcStat>, ancestor: Tid, pid: Tid) -> bool {
    let above = std::iter::successors(Some(pid), |pid| Some(all.get(pid)?.ppid));
    above.into_iter().any(|pid| pid == ancestor)
}

/// The group of a process if no other processes are in it, else the process.
fn member(
    host: &dyn Host,
    all: &BTreeMap<Tid, ProcStat>,
    what: &str,
    id: Option<&str>,
    stat: &ProcStat,
) -> Result<Member, Failure> {
    let process = Member::Process { pid: stat.tid.0, start_time: stat.start_time };
    let path = paths::process_cgroup(stat.tid);
    let groups = proc_cgroup::parse(&host.read_text(&path)?).map_err(|error| error.at(&path))?;
    let (Some(group), Some(mount)) = (proc_cgroup::v2_path(&groups), unified_mount(host)?) else {
        return Ok(process);
    };
    if group.split('/').any(|part| part == "..") {
        return Err(refuse(what, "is outside of this cgroup namespace")
            .with_hint("run Pinfold on the host, outside of containers"));
    }
    if group.contains(GROUP_PREFIX) {
        return Err(
            refuse(what, "is in a vnode already").with_hint("a task can be in one vnode only")
        );
    }
    if let Some(own_group) = id.and_then(|id| below_id(group, id)) {
        return Ok(Member::Group { path: own_group.to_owned() });
    }
    let directory = format!("{}{}", mount.path.trim_end_matches('/'), group);
    let inside = pids(host, &directory);
    let is_own = group != "/" && !inside.is_empty();
    let alone = is_own && inside.iter().all(|pid| is_below(all, stat.tid, *pid));
    Ok(if alone { Member::Group { path: group.to_owned() } } else { process })
}

/// The part of a path up to the directory that is named after a container.
fn below_id<'g>(group: &'g str, id: &str) -> Option<&'g str> {
    let mut end = 0;
    for part in group.split_inclusive('/') {
        end += part.len();
        let name = part.trim_end_matches('/');
        let scope = name.strip_suffix(".scope").unwrap_or(name);
        if scope == id || scope.rsplit_once(['-', ':']).is_some_and(|(_, last)| last == id) {
            return group.get(..end).map(|path| path.trim_end_matches('/'));
        }
    }
    None
}

/// True if a version 2 group is frozen.
fn is_frozen(host: &dyn Host, directory: &str) -> bool {
    let events = host.read_text(&paths::cgroup_events(directory)).unwrap_or_default();
    events.lines().any(|line| line.trim() == "frozen 1")
}

fn is_paused(host: &dyn Host, member: &Member) -> bool {
    match member {
        Member::Group { path } => {
            let mount = unified_mount(host).ok().flatten();
            mount.is_some_and(|mount| is_frozen(host, &format!("{}{path}", mount.path)))
        }
        Member::Process { pid, .. } => {
            let text = host.read_text(&paths::process_cgroup(Tid(*pid))).unwrap_or_default();
            let groups = proc_cgroup::parse(&text).unwrap_or_default();
            let at = proc_cgroup::v1_path(&groups, "freezer");
            let found = mountinfo::controller(host, "freezer").ok().flatten();
            at.zip(found).is_some_and(|(path, found)| {
                let state = paths::freezer_state(&format!("{}{path}", found.mount.path));
                host.read_text(&state).is_ok_and(|state| state.trim() != "THAWED")
            })
        }
    }
}

/// The containers with this name, ID, compose service or pod.
fn containers(host: &dyn Host, what: &str, name: &str) -> Result<Vec<Member>, Failure> {
    let known = known_containers(host);
    let chosen: Vec<&Container> = known
        .iter()
        .filter(|one| {
            let by_id = name.len() >= SHORTEST_ID && one.id.starts_with(name);
            one.id == name || by_id || one.names.iter().any(|at| at == name)
        })
        .collect();
    if chosen.is_empty() {
        let names: BTreeSet<&str> = known
            .iter()
            .filter(|one| one.pid.is_some())
            .map(|one| one.names.first().unwrap_or(&one.id).as_str())
            .collect();
        let names: Vec<&str> = names.into_iter().take(20).collect();
        let hint = if names.is_empty() {
            "no container of docker, podman, containerd, CRI-O, runc or crun is known here; attach \
             it by --pid or --group"
                .to_owned()
        } else {
            format!("running containers: {}", names.join(", "))
        };
        return Err(refuse(what, "is not known to a container runtime").with_hint(hint));
    }
    let all = processes(host)?;
    let mut members = Vec::new();
    for container in chosen {
        let Some(stat) = container.pid.and_then(|pid| all.get(&Tid(pid))) else { continue };
        let member = member(host, &all, what, Some(&container.id), stat)?;
        if !members.contains(&member) {
            members.push(member);
        }
    }
    if members.is_empty() {
        return Err(refuse(what, "is not running").with_hint("start it first"));
    }
    Ok(members)
}

/// The containers in the state files of the runtimes. Files that cannot be read or parsed are
/// those of containers that come or go.
fn known_containers(host: &dyn Host) -> Vec<Container> {
    let mut known = Vec::new();
    let settings = json(host, "/etc/docker/daemon.json").unwrap_or_default();
    let docker = text(&settings, "/data-root").unwrap_or_else(|| "/var/lib/docker".to_owned());
    for folder in folders(host, &format!("{docker}/containers")) {
        known.extend(
            json(host, &format!("{folder}/config.v2.json")).and_then(|file| docker_of(&file)),
        );
    }
    let storage = "storage/overlay-containers";
    let names = json(host, &format!("/var/lib/containers/{storage}/containers.json"));
    for folder in folders(host, &format!("/run/containers/{storage}")) {
        known.push(podman_of(host, &folder, names.as_ref()));
    }
    for space in folders(host, "/run/containerd/io.containerd.runtime.v2.task") {
        for folder in folders(host, &space) {
            let file = json(host, &format!("{folder}/config.json")).unwrap_or_default();
            let pid = number(host, &format!("{folder}/init.pid"));
            known.push(Container { id: last(&folder), names: container_names(&file), pid });
        }
    }
    for folder in folders(host, "/run/runc") {
        let file = json(host, &format!("{folder}/state.json")).unwrap_or_default();
        known.push(Container {
            id: last(&folder),
            names: Vec::new(),
            pid: pid_at(&file, "/init_process_pid"),
        });
    }
    for folder in folders(host, "/run/crun") {
        let file = json(host, &format!("{folder}/status")).unwrap_or_default();
        known.push(Container { id: last(&folder), names: Vec::new(), pid: pid_at(&file, "/pid") });
    }
    known
}

fn docker_of(file: &Value) -> Option<Container> {
    let name = text(file, "/Name").map(|name| name.trim_start_matches('/').to_owned());
    let service = text(file, "/Config/Labels/com.docker.compose.service");
    let names = name.into_iter().chain(service).collect();
    Some(Container { id: text(file, "/ID")?, names, pid: pid_at(file, "/State/Pid") })
}

/// Of podman, or of CRI-O, which uses the same storage.
fn podman_of(host: &dyn Host, folder: &str, names: Option<&Value>) -> Container {
    let id = last(folder);
    let listed = names.and_then(Value::as_array).into_iter().flatten();
    let listed = listed.filter(|one| text(one, "/id").is_some_and(|at| at == id));
    let listed = listed.filter_map(|one| one.get("names")?.as_array()).flatten();
    let mut names: Vec<String> =
        listed.filter_map(|name| name.as_str().map(str::to_owned)).collect();
    names.extend(container_names(
        &json(host, &format!("{folder}/userdata/config.json")).unwrap_or_default(),
    ));
    Container { id, names, pid: number(host, &format!("{folder}/userdata/pidfile")) }
}

/// Names of a container and its pod in the annotations of an OCI configuration.
fn container_names(file: &Value) -> Vec<String> {
    const KEYS: [&str; 5] = [
        "io.kubernetes.cri.container-name",
        "io.kubernetes.cri.sandbox-name",
        "io.kubernetes.container.name",
        "io.kubernetes.pod.name",
        "com.docker.compose.service",
    ];
    let annotations = file.get("annotations");
    let found = KEYS.into_iter().filter_map(|key| annotations?.get(key)?.as_str());
    found.map(str::to_owned).collect()
}

fn json(host: &dyn Host, path: &str) -> Option<Value> {
    serde_json::from_slice(&host.read_at_most(path, LONGEST).ok()??).ok()
}

fn text(file: &Value, pointer: &str) -> Option<String> {
    file.pointer(pointer)?.as_str().map(str::to_owned)
}

/// 0 is that of a container that is not running.
fn pid_at(file: &Value, pointer: &str) -> Option<u32> {
    u32::try_from(file.pointer(pointer)?.as_u64()?).ok().filter(|pid| *pid > 1)
}

fn number(host: &dyn Host, path: &str) -> Option<u32> {
    host.read_text(path).ok()?.trim().parse().ok().filter(|pid| *pid > 1)
}

fn folders(host: &dyn Host, path: &str) -> Vec<String> {
    let names = host.list(path).unwrap_or_default();
    names.into_iter().map(|name| paths::cgroup_file(path, &name)).collect()
}

fn last(path: &str) -> String {
    path.rsplit('/').next().unwrap_or_default().to_owned()
}

/// The group of a systemd unit.
fn unit(host: &dyn Host, what: &str, name: &str) -> Result<Vec<Member>, Failure> {
    let name = cgroup_tree::unit_name(name);
    let mounts = cgroup_tree::mounts(host)?;
    let v1 = mounts.iter().find(|mount| mount.options.iter().any(|at| at == "name=systemd"));
    let mut left = MOST_GROUPS;
    if let Some(mount) = unified_mount(host)?
        && let Some(found) = directory(host, &mount.path, &name, &mut left)
        && !pids(host, &found).is_empty()
    {
        let path = found.get(mount.path.len()..).unwrap_or_default().to_owned();
        return Ok(vec![Member::Group { path }]);
    }
    let found = v1.and_then(|mount| directory(host, &mount.path, &name, &mut left));
    let found = found.ok_or_else(|| {
        refuse(what, "has no cgroup").with_hint("`systemctl status UNIT` shows whether it runs")
    })?;
    let inside: BTreeSet<Tid> = pids(host, &found).into_iter().collect();
    roots(&processes(host)?, &inside, what, "has no process")
}

/// The processes among these whose parents are not.
fn roots(
    all: &BTreeMap<Tid, ProcStat>,
    inside: &BTreeSet<Tid>,
    what: &str,
    why: &str,
) -> Result<Vec<Member>, Failure> {
    let running = inside.iter().filter_map(|pid| all.get(pid));
    let first = running.filter(|stat| !inside.contains(&stat.ppid));
    let found: Vec<Member> = first
        .map(|stat| Member::Process { pid: stat.tid.0, start_time: stat.start_time })
        .collect();
    if found.is_empty() {
        return Err(refuse(what, why).with_hint("start its program first, then attach it"));
    }
    Ok(found)
}

/// The network namespace of a process, such as `net:[4026531840]`.
pub(super) fn network(host: &dyn Host, pid: Tid) -> Option<String> {
    host.link(&paths::process_file(pid, "ns/net")).ok()
}

/// The network namespace with a name of `ip netns`.
pub(super) fn named_network(host: &dyn Host, name: &str) -> Result<Option<String>, Failure> {
    let path = paths::own_mountinfo();
    let mounts = mountinfo::parse(&host.read_text(&path)?).map_err(|error| error.at(&path))?;
    let places = ["/run/netns", "/var/run/netns"].map(|folder| format!("{folder}/{name}"));
    let mounted = mounts.iter().rev().find(|mount| places.contains(&mount.path));
    let net = match mounted {
        Some(mount) => Some(mount.root.clone()),
        // A link to the namespace of a process, as scripts make for containers.
        None => places.iter().find_map(|place| host.link(&host.link(place).ok()?).ok()),
    };
    Ok(net.filter(|net| net.starts_with("net:")))
}

/// The processes in a network namespace of `ip netns`.
fn namespace(host: &dyn Host, what: &str, name: &str) -> Result<Vec<Member>, Failure> {
    let net = named_network(host, name)?.ok_or_else(|| {
        refuse(what, "is not a network namespace").with_hint("`ip netns list` shows them")
    })?;
    let all = processes(host)?;
    let inside = all.keys().filter(|pid| network(host, **pid).as_ref() == Some(&net)).copied();
    roots(&all, &inside.collect(), what, "has no process")
}

/// The shell of a mininet host: a process of root with the arguments `-is mininet:NAME` in another
/// network namespace.
fn mininet(host: &dyn Host, what: &str, name: &str) -> Result<Vec<Member>, Failure> {
    let all = processes(host)?;
    let here = network(host, own::own_pid());
    let wanted = format!("mininet:{name}");
    let found = all.values().filter(|stat| {
        let line = host.read_text(&paths::process_cmdline(stat.tid)).unwrap_or_default();
        let mut words = line.trim_end_matches('\0').rsplit('\0');
        let is_shell = words.next() == Some(wanted.as_str()) && words.any(|word| word == "-is");
        let status = host.read_text(&paths::process_status(stat.tid)).unwrap_or_default();
        let uid = proc_status::field(&status, "Uid").and_then(|ids| ids.split_whitespace().next());
        is_shell && uid == Some("0") && network(host, stat.tid).is_some_and(|net| Some(net) != here)
    });
    let found: Vec<&ProcStat> = found.collect();
    match found.as_slice() {
        [] => {
            Err(refuse(what, "is not running")
                .with_hint("start the network, then attach its hosts"))
        }
        [one] => Ok(vec![Member::Process { pid: one.tid.0, start_time: one.start_time }]),
        several => Err(refuse(what, &format!("matches {} hosts", several.len()))
            .with_hint("end the other network, or attach by --pid")),
    }
}

#[cfg(test)]
mod tests;
