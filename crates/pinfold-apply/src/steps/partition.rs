//! A partition of the machine's exclusive CPUs, with the threads that run there.
//!
//! ```text
//! machine.slice                cpuset.cpus.exclusive = 2-3   (remote partition, Linux 6.7)
//! └─ vm.scope                  cpuset.cpus.exclusive = 2-3   emulator, workers
//!    └─ pinfold-…-part         threaded, isolated, 2-3       vCPUs
//! ```
//! The emulator runs on the host's CPUs. So the partition is not the machine's whole group but a
//! threaded group below it. Directly below the root it is a local partition, which Linux has since
//! 6.1; elsewhere only a remote one is possible, for which each group above must reserve the CPUs.

use pinfold_host::mountinfo::Version;
use pinfold_host::paths;
use pinfold_model::text::{cpus_text, select_verb};
use pinfold_model::tunables::partition;
use pinfold_model::{Change, CpuSet, Finding, IsolationScope, TaskId, Undo};

use super::step_builder::StepBuilder;
use super::threads;
use crate::cpusets::{self, Cpusets};
use crate::error::ApplyError;

const SUBJECT: &str = "cgroup partition";
const REASON: &str = "the kernel excludes other tasks from these CPUs";
/// The first kernel with partitions below groups that are no partitions.
const REMOTE: (u32, u32) = (6, 7);

/// The name of the partition's group.
pub(crate) fn name(vm_group: &str) -> String {
    format!("{vm_group}-part")
}

/// Drafts the partition that the plan requests.
pub(super) fn make(builder: &mut StepBuilder<'_>) -> Result<(), ApplyError> {
    let Some(kind) = builder.plan.tuning.word(&partition::TUNABLE) else { return Ok(()) };
    let Some((cpusets, above)) = place(builder)? else { return Ok(()) };
    let threads = members(builder, kind)?;
    let remote = above != cpusets.root();
    if remote && !has_remote(builder, cpusets)? {
        let text = format!(
            "{above} is not a partition, and this kernel creates one only directly below another"
        );
        let hint = "boot Linux 6.7 or newer, or start the process in the root group";
        return builder.lacks(Finding::warning(SUBJECT, text).with_hint(hint));
    }
    let pus = builder.plan.exclusive.clone();
    let group = make_threaded(builder, cpusets, &above, &pus)?;
    enter(builder, cpusets, &group, &above, threads)?;
    if remote {
        for group in cpusets.lineage(&above).iter().skip(1).chain([&group]) {
            keep(builder, group, &pus)?;
        }
    }
    let path = paths::cpuset_partition(&group);
    let shown = builder.state.file(&path)?.unwrap_or_else(|| b"member\n".to_vec());
    if shown.trim_ascii() != kind.as_bytes() {
        let change = Change::WriteFile { path: path.clone(), value: kind.into() };
        builder.step(change, Undo::WriteFile { path, original: b"member\n".to_vec() }, REASON);
    }
    Ok(())
}

/// Moves threads that were created since into or out of an existing partition.
pub(super) fn sort(builder: &mut StepBuilder<'_>) -> Result<(), ApplyError> {
    let Some(kind) = builder.plan.tuning.word(&partition::TUNABLE) else { return Ok(()) };
    let Some((cpusets, above)) = place(builder)? else { return Ok(()) };
    let group = paths::cgroup_file(&above, &name(&builder.name));
    if builder.state.exists(&group) {
        let threads = members(builder, kind)?;
        enter(builder, cpusets, &group, &above, threads)?;
    }
    Ok(())
}

/// The hierarchy and the machine's group, in which the partition is made.
fn place<'a>(builder: &mut StepBuilder<'a>) -> Result<Option<(&'a Cpusets, String)>, ApplyError> {
    if builder.plan.exclusive.is_empty() {
        let text = "the plan excludes other tasks from no CPU".to_owned();
        let hint = "use a strategy that isolates, with --isolate host";
        builder.lacks(finding(text, hint))?;
        return Ok(None);
    }
    if builder.plan.isolation != IsolationScope::Host {
        let text = format!(
            "a partition of {} would exclude every task of the host from {}, and the isolation \
             scope is narrower",
            cpus_text(&builder.plan.exclusive),
            select_verb(builder.plan.exclusive.len(), "it", "them")
        );
        builder.lacks(finding(text, "request it with --isolate host"))?;
        return Ok(None);
    }
    let cpusets = match builder.cpusets()? {
        Ok(cpusets) if cpusets.version() == Version::V2 => cpusets,
        Ok(cpusets) => {
            let text = format!("cpuset is cgroup version 1 here ({})", cpusets.root());
            let hint = "boot with systemd.unified_cgroup_hierarchy=1, or use --isolate host alone";
            builder.lacks(finding(text, hint))?;
            return Ok(None);
        }
        Err(refusal) => {
            let reported = Finding::warning(SUBJECT, refusal.to_string());
            builder.lacks(match refusal.hint() {
                Some(hint) => reported.with_hint(hint),
                None => reported,
            })?;
            return Ok(None);
        }
    };
    if !builder.target.kept.is_empty() {
        let text = "libvirt manages the cgroups of this virtual machine".to_owned();
        let hint = "use --isolate host without a partition";
        builder.lacks(finding(text, hint))?;
        return Ok(None);
    }
    let group = match builder.group_to_be() {
        Some(group) => Some(group),
        None => cpusets.group_of(builder.state, builder.vm.tid)?,
    };
    // The machine's first thread may be in the partition itself.
    let inside = format!("/{}", name(&builder.name));
    let group = group.map(|group| match group.strip_suffix(&inside) {
        Some(above) => above.to_owned(),
        None => group,
    });
    Ok(group.map(|group| (cpusets, group)))
}

fn finding(text: String, hint: &str) -> Finding {
    Finding::warning(SUBJECT, text).with_hint(hint)
}

/// The machine's threads that run only on its exclusive CPUs.
fn members(builder: &mut StepBuilder<'_>, kind: &str) -> Result<Vec<TaskId>, ApplyError> {
    let mut inside = Vec::new();
    for (task, role) in threads::in_order(builder)? {
        let Some(thread) = builder.vnode.thread(&role) else { continue };
        if !thread.pus.is_subset(&builder.plan.exclusive) {
            continue;
        }
        if !builder.state.listed.contains(&task.tid) {
            let text = format!("{role} ({task}) is not a thread of the process and stays outside");
            builder.add_finding(Finding::note(SUBJECT, text));
            continue;
        }
        if kind == partition::ISOLATED && thread.pus.len() > 1 {
            let text = format!(
                "{role} may run on CPUs {}, but an isolated partition has no load balancing among \
                 them",
                thread.pus
            );
            let hint = "use partition=root, or a strategy that gives each thread one CPU";
            builder.add_finding(Finding::warning(SUBJECT, text).with_hint(hint));
        }
        inside.push(task);
    }
    Ok(inside)
}

fn has_remote(builder: &StepBuilder<'_>, cpusets: &Cpusets) -> Result<bool, ApplyError> {
    // Distributions backport it to older kernels.
    Ok(builder.state.release()? >= REMOTE
        || cpusets
            .children(builder.state, cpusets.root())?
            .iter()
            .any(|group: &String| builder.state.exists(&paths::cpuset_cpus_exclusive(group))))
}

/// Makes the threaded group with its CPUs, and enables the controller for it.
fn make_threaded(
    builder: &mut StepBuilder<'_>,
    cpusets: &Cpusets,
    above: &str,
    pus: &CpuSet,
) -> Result<String, ApplyError> {
    let name = name(&builder.name);
    let group = paths::cgroup_file(above, &name);
    builder.group(cpusets, &group, None, REASON)?;
    let path = paths::cgroup_type(&group);
    if builder.state.file(&path)?.is_none_or(|kind| kind.trim_ascii() != b"threaded") {
        let change = Change::WriteFile { path, value: b"threaded".to_vec() };
        builder.step(change, Undo::RemoveGroup { path: group.clone() }, REASON);
    }
    builder.enable(cpusets, above, REASON)?;
    builder.group(cpusets, &group, Some(pus), REASON)?;
    Ok(group)
}

/// Moves threads into the partition, and threads that do not belong there out of it.
fn enter(
    builder: &mut StepBuilder<'_>,
    cpusets: &Cpusets,
    group: &str,
    above: &str,
    threads: Vec<TaskId>,
) -> Result<(), ApplyError> {
    let (mut coming, mut going) = (Vec::new(), Vec::new());
    let main = cpusets.group_of(builder.state, builder.vm.tid)?;
    for tid in builder.state.listed.clone() {
        let Some(stat) = builder.state.stat(tid)? else { continue };
        let Some(found) = cpusets.group_of(builder.state, tid)? else { continue };
        let task = stat.task();
        let is_inside = found == group;
        if !is_inside && found != above && main.as_ref() != Some(&found) {
            let text = format!("{task} is in {found}, which another program made for it");
            builder.add_finding(Finding::warning(SUBJECT, text));
            continue;
        }
        match (threads.contains(&task), is_inside) {
            (true, false) => coming.push(task),
            (false, true) if !stat.is_unmovable() => going.push(task),
            (true, true) | (false, true | false) => {}
        }
    }
    for (tasks, to) in [(coming, group), (going, above)] {
        let mut states = Vec::new();
        for task in &tasks {
            states.extend(builder.state.task(cpusets, task.tid)?);
        }
        if states.is_empty() {
            continue;
        }
        // The threads are in this group by then, even if an earlier step moves the machine there.
        // Threads created in the partition return to it too when the partition is removed.
        let home = cpusets.relative_path(above);
        for state in &mut states {
            state.group.clone_from(&home);
        }
        let file = cpusets::THREADS_FILE.to_owned();
        let (mount, group) = (cpusets.root().to_owned(), to.to_owned());
        let undo = Undo::MoveTasks { mount, file: file.clone(), tasks: states };
        builder.step(Change::MoveTasks { group, file, tasks }, undo, REASON);
    }
    Ok(())
}

/// Reserves CPUs of a group for the partitions below it, in addition to those already reserved.
fn keep(builder: &mut StepBuilder<'_>, group: &str, pus: &CpuSet) -> Result<(), ApplyError> {
    let path = paths::cpuset_cpus_exclusive(group);
    let original = builder.state.file(&path)?.unwrap_or_else(|| b"\n".to_vec());
    let now = cpusets::parse(&path, &original)?;
    if pus.is_subset(&now) {
        return Ok(());
    }
    let value = now.union(pus).to_string().into_bytes();
    builder.step(
        Change::WriteFile { path: path.clone(), value },
        Undo::WriteFile { path, original },
        "a partition below this group takes them",
    );
    Ok(())
}
