//! `apply --isolate host`, the state while it is active, and that `undo` leaves no trace.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::Extent;
use crate::error::{LabError, expect_none};
use crate::snapshot::Snapshot;
use crate::stage::{LabHost, MONITOR};

/// The plan of every case.
pub(super) const APPLY: [&str; 7] =
    ["apply", "--qmp", MONITOR, "--strategy", "balanced", "--isolate", "host"];
/// The text with which undo reports a list that could only be restored with explicit CPUs.
const NEAR: &str = " was empty and is now ";

pub(super) fn isolate(stage: &mut LabHost, _: Extent) -> Result<String, LabError> {
    stage.guest.pinfold(&[&APPLY[..], &["--dry-run"]].concat())?;
    let after = stage.look()?;
    let nothing = BTreeMap::new();
    expect_none("a dry run changed the host", after.differences(&stage.before, &nothing))?;
    stage.guest.pinfold(&APPLY)?;
    let status = Status::read(stage)?;
    stage.fork()?;
    let during = stage.look()?;
    expect_none("isolation is not so", intruders(stage, &during, &status))?;
    expect_none("the shells' children", not_forked(&stage.before, &during))?;
    let reported = stage.guest.pinfold(&["undo", "--all"])?;
    let near = near(stage);
    expect_none("undo does not mention what is only near", find_unreported(&reported, &near))?;
    let after = stage.look()?;
    expect_none("undo left a trace", after.differences(&stage.before, &near))?;
    stage.reap()?;
    let users = stage.before.tasks.values().filter(|task| !task.is_kernel_thread()).count();
    let text = format!(
        "{} tasks ({users} of them not the kernel's) and {} tunables as before; {} kernel threads named as immovable{}",
        stage.before.tasks.len(),
        stage.before.knobs.len(),
        status.immovable.len(),
        match near.len() {
            0 => String::new(),
            many => format!("; {many} empty lists came back by name"),
        }
    );
    // The following cases start with the explicit lists.
    stage.before.knobs.extend(near);
    Ok(text)
}

/// Fails unless the host is isolated as `status` reports.
pub(super) fn check(stage: &mut LabHost) -> Result<(), LabError> {
    let status = Status::read(stage)?;
    let during = stage.look()?;
    expect_none("isolation is not so", intruders(stage, &during, &status))
}

/// The tunables that are only equivalent, with their contents.
fn near(stage: &LabHost) -> BTreeMap<String, String> {
    let root = stage.cgroups.root();
    let groups = stage.cgroups.near_after_undo(&stage.guest.release).iter();
    groups.map(|group| (format!("{root}/{group}/cpuset.cpus"), "0-3\n".to_owned())).collect()
}

fn find_unreported(reported: &str, near: &BTreeMap<String, String>) -> Vec<String> {
    let mut found: Vec<String> = near
        .keys()
        .filter(|path| !reported.contains(&format!("{path}{NEAR}0-3")))
        .map(|path| format!("{path} is not named"))
        .collect();
    let many = reported.matches(NEAR).count();
    if many != near.len() {
        found.push(format!("{many} are named, {} expected:\n{reported}", near.len()));
    }
    found
}

/// The single placement in the output of `pinfold status --json`.
struct Status {
    movable: BTreeSet<u32>,
    immovable: BTreeSet<u32>,
    /// The CPUs that are used twice, in words.
    dangers: String,
}

/// `status` ends with 1 if a CPU is used twice: by a group that has no other.
const STATUS: &str = "pinfold status --json 2> /dev/null || [ $? = 1 ]";

impl Status {
    fn read(stage: &mut LabHost) -> Result<Self, LabError> {
        Self::parse(&stage.guest.shell(STATUS)?)
    }

    fn parse(text: &str) -> Result<Self, LabError> {
        fn wrong(why: &str, text: &str) -> LabError {
            LabError::wrong(format!("status: {why}"), text)
        }
        let json: Value =
            serde_json::from_str(text.trim()).map_err(|e| wrong(&e.to_string(), text))?;
        let entry = json.pointer("/in_force/0").ok_or_else(|| wrong("nothing is active", text))?;
        if entry["as_planned"] != true {
            return Err(wrong("not as planned", text));
        }
        let tids = |key: &str| {
            let list = entry[key].as_array().ok_or_else(|| wrong(key, text))?;
            list.iter()
                .map(|one| one["tid"].as_u64().and_then(|tid| u32::try_from(tid).ok()))
                .collect::<Option<BTreeSet<u32>>>()
                .ok_or_else(|| wrong(key, text))
        };
        let dangers = entry["dangers"].to_string();
        Ok(Self { movable: tids("movable")?, immovable: tids("immovable")?, dangers })
    }
}

/// Tasks that may run on the machine's CPUs and should not, or are not reported. A task whose group
/// has only those CPUs stays, and is reported as movable.
fn intruders(stage: &LabHost, during: &Snapshot, status: &Status) -> Vec<String> {
    let (before, vm) = (&stage.before, stage.vm);
    let mut found = Vec::new();
    let mut expected = BTreeSet::new();
    for (tid, task) in &during.tasks {
        let alone = task.group == "/containers/tiny";
        if task.process_group == vm || task.mask.is_disjoint(&stage.alone) {
            if alone {
                found.push(format!("task {tid} of containers/tiny has the mask {}", task.mask));
            }
            continue;
        }
        let name = format!("task {tid} ({}) in {}", task.name, task.group);
        if alone {
            expected.insert(*tid);
        } else if !task.is_kernel_thread() {
            found.push(format!("{name} may run on {}", task.mask));
        } else if before.tasks.contains_key(tid) && !status.immovable.contains(tid) {
            found.push(format!("{name} may run on {} and status does not name it", task.mask));
        }
    }
    if status.movable != expected {
        found.push(format!("status names {:?} as movable, not {expected:?}", status.movable));
    }
    if !expected.is_empty() && !status.dangers.contains("tiny (cgroup)") {
        found.push(format!("status does not name containers/tiny: {}", status.dangers));
    }
    let placed = during.of_group(vm).filter(|(_, task)| task.mask.is_subset(&stage.alone));
    if placed.count() != 2 {
        found.push("the machine's two vCPUs are not on its CPUs".to_owned());
    }
    found
}

/// Each of the two shells must have a child and an orphan now.
fn not_forked(before: &Snapshot, during: &Snapshot) -> Vec<String> {
    let born = during.tasks.iter().filter(|(tid, task)| {
        task.name == "sleep"
            && before.tasks.contains_key(&task.process_group)
            && before.tasks.get(tid).is_none_or(|was| was.start != task.start)
    });
    let orphans = born.clone().filter(|(_, task)| task.parent == 1).count();
    match (born.count(), orphans) {
        (4, 2) => Vec::new(),
        (all, orphans) => vec![format!("{all} tasks were created, {orphans} of them orphans")],
    }
}
