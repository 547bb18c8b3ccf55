//! A container and units of a real systemd that become part of vnodes, on a host with systemd.
//!
//! The container has the layout of Docker's with systemd: a delegated scope with limits, and
//! Docker's state file. One unit has only a weight, the other one manages groups of its own
//! (`Delegate=yes`). `emulate attach` and `emulate down` are killed at random times, alone or with
//! the supervisor. Besides, systemd reloads its units, and their owner and the runtime change limits
//! while they are attached.

use std::collections::BTreeMap;

use pinfold_model::CpuSet;
use serde_json::Value;

use super::random_kills::{Attempt, Kills, Rounds, Victim};
use super::shapes::ROOT;
use super::{Extent, study, systemd, vnodes};
use crate::error::{LabError, expect_none};
use crate::guest::Guest;
use crate::snapshot::Snapshot;
use crate::stage;

const PLATFORM: &str = "[[vnode]]\nname = \"slow\"\ncores = 1\nspeed = \"25%\"\nmethod = \"stall\"\n\
    period = \"1ms\"\n\n[[vnode]]\nname = \"burnt\"\ncores = 1\nspeed = \"90%\"\nmethod = \"hogs\"\n\
    period = \"100ms\"\n";
const SCOPE: &str = "docker-4f5e6d7c8b9a0f1e2d3c4b5a69788796a5b4c3d2e1f00f1e2d3c4b5a69788796.scope";
/// The scope of a container, a unit with processes of several kinds, and a unit that manages groups
/// of its own.
const PREPARE: &str = r#"
    id=$(basename SCOPE .scope | cut -d- -f2)
    until [ -s /run/web.pid ]; do usleep 50000; done
    mkdir -p /var/lib/docker/containers/$id
    echo "{\"ID\":\"$id\",\"Name\":\"/web\",\"State\":{\"Pid\":$(cat /run/web.pid)}}" \
        > /var/lib/docker/containers/$id/config.v2.json
    unit() { name=$1; shift; systemd-run --quiet --unit=$name "$@"; }
    unit app -p CPUWeight=200 /bin/busybox sh /tmp/processes.sh app
    unit own -p Delegate=yes -p CPUQuota=80% /bin/busybox sh /tmp/own.sh
    until [ -s /run/app.pid ] && [ -s /run/own.pid ]; do usleep 50000; done"#;
const START: &str = "exec systemd-run --quiet --scope --unit=SCOPE -p Delegate=yes \
    -p AllowedCPUs=0-2 -p CPUQuota=150% -p CPUWeight=50 /bin/busybox sh /tmp/processes.sh web";
const PROCESSES: &str = "idle='/bin/busybox tail -f /dev/null'
    taskset 1 $idle & chrt -b 0 $idle & chrt -f 5 $idle &
    echo $$ > /run/$1.pid
    exec $idle\n";
const OWN: &str = "g=ROOT/system.slice/own.service; mkdir $g/main $g/work
    echo $$ > $g/main/cgroup.procs; echo +cpu > $g/cgroup.subtree_control
    echo 40 > $g/work/cpu.weight
    /bin/busybox sh -c \"echo \\$\\$ > $g/work/cgroup.procs; exec tail -f /dev/null\" &
    until grep -q . $g/work/cgroup.procs; do usleep 50000; done
    echo $$ > /run/own.pid
    exec /bin/busybox tail -f /dev/null\n";

const DOWN: [&str; 2] = ["emulate", "down"];
const LEFT: [&str; 2] = ["undo", "--left"];
const ATTACH_WEB: [&str; 5] = ["emulate", "attach", "slow", "--container", "web"];
const ATTACH_APP: [&str; 5] = ["emulate", "attach", "burnt", "--unit", "app"];
const ATTACH_OWN: [&str; 5] = ["emulate", "attach", "slow", "--unit", "own.service"];

/// What is attached.
#[derive(Clone, Copy, Debug)]
struct Part {
    attach: [&'static str; 5],
    /// As the status names it.
    name: &'static str,
    group: &'static str,
    vnode: &'static str,
}

const PARTS: [Part; 3] = [
    Part { attach: ATTACH_WEB, name: "container web", group: SCOPE, vnode: "slow" },
    Part { attach: ATTACH_APP, name: "unit app", group: "app.service", vnode: "burnt" },
    Part { attach: ATTACH_OWN, name: "unit own.service", group: "own.service", vnode: "slow" },
];

impl Part {
    fn path(&self) -> String {
        format!("/system.slice/{}", self.group)
    }

    fn file(&self, name: &str) -> String {
        format!("{ROOT}{}/{name}", self.path())
    }
}

/// The supervisor, as another process that is killed.
const SUPERVISOR: &str = "for p in $(pidof pinfold); do
    tr '\\0' ' ' < /proc/$p/cmdline | grep -q -e --foreground && echo $p; done; true";
/// Each attachment and the end, killed alone and together with the supervisor.
const VICTIMS: [Victim<'static>; 8] = [
    Victim { arguments: &ATTACH_WEB, others: "" },
    Victim { arguments: &ATTACH_WEB, others: SUPERVISOR },
    Victim { arguments: &ATTACH_APP, others: "" },
    Victim { arguments: &ATTACH_APP, others: SUPERVISOR },
    Victim { arguments: &ATTACH_OWN, others: "" },
    Victim { arguments: &ATTACH_OWN, others: SUPERVISOR },
    Victim { arguments: &DOWN, others: "" },
    Victim { arguments: &DOWN, others: SUPERVISOR },
];
/// Number of kills, of which three quarters are of an attachment.
const MANY: usize = 136;
const FEW: usize = 8;
/// After a `down` that was killed, the supervisor has its request or not.
const DOWN_AGAIN: &str = "pinfold emulate down > /tmp/again.txt 2>&1 || true
    i=0; while pidof pinfold > /dev/null && [ $i -lt 300 ]; do i=$((i + 1)); usleep 100000; done";
/// The CPUs of the first process of each part.
const MASKS: &str = "for n in web app own; do
    sed -n 's/^Cpus_allowed_list:[^0-9]*//p' /proc/$(cat /run/$n.pid)/status; done";
/// Snapshots until processes that were killed have ended.
const LOOKS: usize = 5;

/// Files of groups in addition to those of cpusets, and what a method sets.
const FILES: &str = "$(find ROOT -name cpu.max -o -name cpu.weight -o -name io.max \
    -o -name io.weight -o -name memory.max -o -name cgroup.freeze) /proc/sys/kernel/sched_rt_*";
/// BPF programs in the kernel, as their compiled code is named, and timers that processes have open.
const PROGRAMS: &str = "sed -n 's/.* \\(bpf_prog_[^[:space:]]*\\).*/\\1/p' /proc/kallsyms | sort";
const TIMERS: &str = "ls -l /proc/[0-9]*/fd 2> /dev/null | grep -c perf_event || true";
/// Settings of the units as systemd has them, and the files in which it stores them.
const SETTINGS: &str = "for u in SCOPE app own; do
        systemctl show -p AllowedCPUs -p CPUWeight -p CPUQuotaPerSecUSec -p Delegate $u; done
    find /run/systemd/system.control /etc/systemd/system.control /run/systemd/transient \
        -type f 2> /dev/null | sort | while read f; do echo $f; cat $f; done";
/// What the owner of the units and the runtime change while they are attached.
const CHANGES: [&str; 4] = [
    "systemctl daemon-reload",
    "systemctl set-property --runtime app CPUWeight=300",
    "systemctl set-property --runtime own.service CPUQuota=60%",
    // As `docker update` with a runtime that writes the files itself.
    "cd ROOT/system.slice/SCOPE; echo '50000 100000' > cpu.max; echo 77 > cpu.weight
     echo 0-1 > cpuset.cpus",
];
/// The files that these change, with their values.
const CHANGED: [(usize, &str, &str); 6] = [
    (0, "cpu.max", "50000 100000"),
    (0, "cpu.weight", "77"),
    (0, "cpuset.cpus", "0-1"),
    (0, "cpuset.cpus.effective", "0-1"),
    (1, "cpu.weight", "300"),
    (2, "cpu.max", "60000 100000"),
];

/// The kills so far, over all boots.
#[derive(Debug)]
pub(super) struct Progress {
    kills: Kills,
    /// Number of kills after which a process was confined to its vnode.
    confined: usize,
}

impl Progress {
    pub(super) fn new() -> Self {
        Self { kills: Kills::new(), confined: 0 }
    }

    /// Number of attempts so far, to detect progress.
    pub(super) fn count_attempts(&self) -> usize {
        self.kills.count_attempts()
    }
}

/// What the kernel has of the methods.
#[derive(Debug, PartialEq, Eq)]
struct AtWork {
    programs: String,
    timers: String,
}

impl AtWork {
    fn take(guest: &mut Guest) -> Result<Self, LabError> {
        Ok(Self { programs: guest.quiet_shell(PROGRAMS)?, timers: guest.shell(TIMERS)? })
    }
}

/// Attachments and ends are killed at random times.
pub(super) fn kill_attachments(
    guest: &mut Guest,
    extent: Extent,
    progress: &mut Progress,
) -> Result<String, LabError> {
    prepare(guest)?;
    let idle = AtWork::take(guest)?;
    let mut before = look(guest)?;
    up_with_parts(guest)?;
    expect_none("what is attached is not slowed", unconfined(guest)?)?;
    let work = AtWork::take(guest)?;
    if work.programs == idle.programs || work.timers == idle.timers {
        return Err(LabError::wrong("no program or timer at work", format!("{work:?}, {idle:?}")));
    }
    let near = systemd::near(&mut before, &guest.pinfold(&DOWN)?)?;
    same(guest, &before, "down left a trace")?;
    let wanted = match extent {
        Extent::Full => MANY,
        Extent::Fixed | Extent::Sample => FEW,
    };
    let free = guest.shell(MASKS)?;
    let Progress { kills, confined } = progress;
    let mut rounds = Detached { before: &before, free: &free, confined };
    let ms = kills.continue_to(wanted, guest, &VICTIMS, &mut rounds)?;
    // What any kill has left in the kernel would still be there.
    let mut after = AtWork::take(guest)?;
    for _ in 0..LOOKS {
        if after == idle {
            break;
        }
        after = AtWork::take(guest)?;
    }
    if after != idle {
        return Err(LabError::wrong("BPF programs and timers", format!("{after:?}, not {idle:?}")));
    }
    let attached: usize = (0..6).map(|victim| kills.of(victim)).sum();
    if *confined == 0 {
        return Err(LabError::wrong("kills", "none came after the first change"));
    }
    Ok(format!(
        "attach of a container and of two units killed at {attached} random moments of its {} ms, \
         half of them with the supervisor, down at {} of its {} ms; {confined} times processes were \
         confined then; each time group, mask and policy of {} tasks and {} files as before \
         ({near} lists by name), at the end no BPF program and no timer",
        ms[..6].iter().sum::<u64>() / 6,
        kills.of(6) + kills.of(7),
        ms[6],
        before.tasks.len(),
        before.knobs.len()
    ))
}

/// Reverts after each kill.
struct Detached<'a> {
    before: &'a Snapshot,
    free: &'a str,
    confined: &'a mut usize,
}

impl Rounds for Detached<'_> {
    fn prepare(&mut self, guest: &mut Guest, victim: usize) -> Result<(), LabError> {
        if VICTIMS[victim].arguments == DOWN { up_with_parts(guest) } else { up(guest) }
    }

    fn check(&mut self, guest: &mut Guest, attempt: Attempt) -> Result<(), LabError> {
        let Victim { arguments, others } = VICTIMS[attempt.victim];
        let is_confined = guest.shell(MASKS)? != self.free;
        *self.confined += usize::from(is_confined && attempt.came);
        stage::fork(guest)?;
        if attempt.came && arguments == DOWN {
            guest.shell(DOWN_AGAIN)?;
        } else if others.is_empty() && arguments != DOWN
            || !guest.shell(SUPERVISOR)?.trim().is_empty()
        {
            // A client that is killed does not end the platform.
            guest.pinfold(&DOWN)?;
        }
        guest.pinfold(&LEFT)?;
        let with = if others.is_empty() { "" } else { " with the supervisor" };
        let what = format!("{} killed{with} after {} us", arguments.join(" "), attempt.us);
        same(guest, self.before, &what)?;
        stage::reap(guest)
    }
}

/// systemd reloads its units, and their owner and the runtime change limits, while they are part of
/// vnodes: either they are still slowed, or the status reports what has changed. Their limits are
/// the owner's afterwards.
pub(super) fn survive_changes(guest: &mut Guest) -> Result<String, LabError> {
    prepare(guest)?;
    let mut before = look(guest)?;
    let script = SETTINGS.replace("SCOPE", SCOPE);
    let settings = guest.shell(&script)?;
    up_with_parts(guest)?;
    expect_none("what is attached is not slowed", unconfined(guest)?)?;
    let reloaded = slowed_or_reported(guest, CHANGES[0])?;
    attach_others(guest, &reloaded)?;
    let near = systemd::near(&mut before, &guest.pinfold(&DOWN)?)?;
    same(guest, &before, "down after daemon-reload left a trace")?;
    guest.shell(CHANGES[0])?;
    same(guest, &before, "down left a trace that daemon-reload shows")?;
    let now = guest.shell(&script)?;
    if now != settings {
        return Err(LabError::wrong("settings after down", format!("{now}\nnot\n{settings}")));
    }

    up_with_parts(guest)?;
    let mut kept = Vec::new();
    for change in CHANGES {
        kept = slowed_or_reported(guest, change)?;
    }
    // The CPUs that the runtime has set are others.
    if kept.contains(&PARTS[0].name) {
        return Err(LabError::wrong("slowed after all changes", kept.join(", ")));
    }
    attach_others(guest, &kept)?;
    guest.pinfold(&DOWN)?;
    for (part, name, value) in CHANGED {
        let file = PARTS[part].file(name);
        if before.knobs.insert(file.clone(), format!("{value}\n")).is_none() {
            return Err(LabError::wrong("a file of an attached group is missing", file));
        }
    }
    let path = PARTS[0].path();
    for task in before.tasks.values_mut().filter(|task| task.group == path) {
        let both = CpuSet::first_n(2);
        let within = task.mask.intersection(&both);
        task.mask = if within.is_empty() { both } else { within };
    }
    same(guest, &before, "down after the changes")?;
    Ok(format!(
        "a container with the layout of docker, a unit and one with Delegate=yes: {} of 3 still \
         slowed after daemon-reload, {} after set-property and values that a runtime writes, the \
         others reported, and all slowed when they are attached again; down leaves the values of the owner and of the runtime, and without these \
         the host as before ({near} lists by name)",
        reloaded.len(),
        kept.len()
    ))
}

fn prepare(guest: &mut Guest) -> Result<(), LabError> {
    study::write(guest, "/tmp/processes.sh", PROCESSES)?;
    study::write(guest, "/tmp/own.sh", &OWN.replace("ROOT", ROOT))?;
    guest.background(&START.replace("SCOPE", SCOPE))?;
    guest.shell(&PREPARE.replace("SCOPE", SCOPE))?;
    for (name, part) in stage::SHELLS.into_iter().zip(&PARTS) {
        let enter = format!("echo $$ > {}", part.file("cgroup.procs"));
        stage::forks_on_demand(guest, name, &enter)?;
    }
    vnodes::put(guest, PLATFORM)?;
    stage::fork(guest)?;
    stage::reap(guest)
}

/// Tasks and groups with all their limits.
pub(super) fn look(guest: &mut Guest) -> Result<Snapshot, LabError> {
    Snapshot::take_with(guest, ROOT, false, &FILES.replace("ROOT", ROOT))
}

/// Fails unless one of some snapshots is as before: processes that were killed may still end.
pub(super) fn same(guest: &mut Guest, before: &Snapshot, what: &str) -> Result<(), LabError> {
    let mut found = Vec::new();
    for _ in 0..LOOKS {
        found = look(guest)?.differences(before, &BTreeMap::new());
        if found.is_empty() {
            break;
        }
    }
    expect_none(what, found)
}

fn up(guest: &mut Guest) -> Result<(), LabError> {
    guest.pinfold(&vnodes::UP).map(drop)
}

fn up_with_parts(guest: &mut Guest) -> Result<(), LabError> {
    up(guest)?;
    for part in PARTS {
        guest.pinfold(&part.attach)?;
    }
    Ok(())
}

/// The processes of attached groups, also new ones, that are not only on the CPUs of their vnode.
fn unconfined(guest: &mut Guest) -> Result<Vec<String>, LabError> {
    stage::fork(guest)?;
    let (status, during) = (vnodes::status(guest)?, look(guest)?);
    stage::reap(guest)?;
    Ok(PARTS.iter().flat_map(|part| outside(part, &status, &during)).collect())
}

/// Those of one group; a group without processes is one too.
fn outside(part: &Part, status: &Value, during: &Snapshot) -> Vec<String> {
    let cores = vnodes::cores_of(status, part.vnode);
    let cpus: CpuSet = cores.iter().filter_map(|core| core.pu).collect();
    let (path, mut count, mut found) = (part.path(), 0, Vec::new());
    for (tid, task) in &during.tasks {
        let rest = task.group.strip_prefix(&path);
        if !rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/')) {
            continue;
        }
        count += 1;
        if cpus.is_empty() || task.mask != cpus {
            found.push(format!(
                "{}: task {tid} ({}) may run on {}, not {cpus}",
                part.name, task.name, task.mask
            ));
        }
    }
    if count < 2 {
        found.push(format!("{}: {count} processes", part.name));
    }
    found
}

/// Attaches again what another program has changed; then all is slowed.
fn attach_others(guest: &mut Guest, kept: &[&str]) -> Result<(), LabError> {
    for part in PARTS.iter().filter(|part| !kept.contains(&part.name)) {
        guest.pinfold(&part.attach)?;
    }
    expect_none("what is attached again is not slowed", unconfined(guest)?)
}

/// Makes a change. Each group must then be slowed or reported, and not both. Returns the names of
/// those that are slowed.
fn slowed_or_reported(guest: &mut Guest, change: &str) -> Result<Vec<&'static str>, LabError> {
    guest.shell(&change.replace("ROOT", ROOT).replace("SCOPE", SCOPE))?;
    // The supervisor looks once a second.
    guest.shell("sleep 3")?;
    let (status, during) = (vnodes::status(guest)?, look(guest)?);
    let (mut wrong, mut kept) = (Vec::new(), Vec::new());
    for part in &PARTS {
        let mut all = status["attached"].as_array().into_iter().flatten();
        let entry = all.find(|one| one["what"] == part.name);
        let Some(entry) = entry else {
            wrong.push(format!("{} is not in the status", part.name));
            continue;
        };
        let (found, note) = (outside(part, &status, &during), entry["note"].as_str());
        match (found.is_empty(), note) {
            (true, None) => kept.push(part.name),
            (false, Some(note)) if note.contains("another program has") => {}
            (_, _) => {
                wrong.push(format!("{} is reported as {note:?}; {found:?}", part.name));
            }
        }
    }
    expect_none(change, wrong)?;
    Ok(kept)
}
