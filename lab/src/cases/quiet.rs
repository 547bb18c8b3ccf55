//! `pinfold quiet`, and `apply --isolate host` with `--profile latency`, on a host with a disk whose
//! interrupts the kernel manages.
//!
//! While the placement is active, each interrupt that may be moved must be off its CPUs, and the
//! others must be named. No process of Pinfold may be on the CPUs of two jobs. Then both commands are
//! killed at random times, and reverted by `undo --left` or by the next command: every task's group,
//! mask and policy and every tunable must be as before, byte for byte.

use std::collections::{BTreeMap, BTreeSet};

use pinfold_model::CpuSet;

use super::hotplug::differences;
use super::random_kills::{Attempt, Kills, Rounds, Victim};
use super::shapes::{self, MONITOR, ROOT};
use super::{Extent, study};
use crate::error::{LabError, expect_none};
use crate::guest::Guest;
use crate::snapshot::{Snapshot, host_knobs};
use crate::stage;

const APPLY: [&str; 9] = [
    "apply",
    "--qmp",
    MONITOR,
    "--strategy",
    "low-latency",
    "--isolate",
    "host",
    "--profile",
    "latency",
];
/// The command is not `sleep`, which the stage uses.
const QUIET: [&str; 6] = ["quiet", "--profile", "latency", "--", "/bin/usleep", "1000000"];
const NEXT: [&str; 7] = ["quiet", "--isolate", "none", "--profile", "none", "--", "/bin/true"];
const LEFT: [&str; 2] = ["undo", "--left"];
/// Waits until the command of a killed quiet has ended.
const ENDED: &str = "while pidof usleep > /dev/null; do sleep 1; done";
const UNDO: [&str; 2] = ["undo", "--all"];
/// Number of kills.
const MANY: usize = 100;
const FEW: usize = 6;
/// The numbers of the interrupts whose list the kernel refuses to write, even unchanged.
const MANAGED: &str = "cd /proc/irq; for n in *; do [ -e $n/smp_affinity_list ] || continue; \
    echo $(cat $n/smp_affinity_list) 2> /dev/null > $n/smp_affinity_list || echo $n; done";
/// Prints `masks`, the CPUs of the command, then those of the threads of its parent and of the process above.
const MASKS: &str = r#"
above=$(sed -n 's/^PPid:[^0-9]*//p' /proc/$PPID/status)
echo masks $(sed -n 's/^Cpus_allowed_list:[^0-9]*//p' \
    /proc/self/status /proc/$PPID/task/*/status /proc/$above/task/*/status)
"#;
const JOBS: [&str; 9] = [
    "quiet",
    "--isolate",
    "none",
    "--profile",
    "none",
    "--job",
    "one: /bin/busybox sh /tmp/masks.sh",
    "--job",
    "two: /bin/busybox sh /tmp/masks.sh",
];

pub(super) fn kill_quiet(
    guest: &mut Guest,
    extent: Extent,
    kills: &mut Kills,
) -> Result<String, LabError> {
    prepare(guest)?;
    let before = look(guest)?;
    let moved = interrupts_leave(guest)?;
    guest.pinfold(&UNDO)?;
    guest.pinfold(&QUIET)?;
    let after = look(guest)?;
    expect_none("undo left a trace", differences(&after, &before, &shapes::near(&after)))?;
    let masks = own_threads_leave(guest)?;
    let random = at_random(guest, &after, extent, kills)?;
    Ok(format!(
        "{moved}; {masks}; {random}; each time group, mask and policy of {} tasks and {} tunables as \
         before",
        after.tasks.len(),
        after.knobs.len()
    ))
}

fn prepare(guest: &mut Guest) -> Result<(), LabError> {
    shapes::start(guest, 2, "")?;
    for (name, group) in stage::SHELLS.into_iter().zip(["init.scope", "init.scope"]) {
        stage::forks_on_demand(guest, name, &format!("echo $$ > {ROOT}/{group}/cgroup.procs"))?;
    }
    study::write(guest, "/tmp/masks.sh", MASKS)?;
    // All kinds of changes have started.
    stage::fork(guest)?;
    stage::reap(guest)
}

fn look(guest: &mut Guest) -> Result<Snapshot, LabError> {
    Snapshot::take_with(guest, ROOT, false, &host_knobs())
}

fn same(guest: &mut Guest, before: &Snapshot, what: &str) -> Result<(), LabError> {
    expect_none(what, differences(&look(guest)?, before, &BTreeMap::new()))
}

/// After the apply, only interrupts that the kernel manages have CPUs of the machine, and these are
/// named.
fn interrupts_leave(guest: &mut Guest) -> Result<String, LabError> {
    let managed = guest.shell(MANAGED)?;
    let managed: BTreeSet<&str> = managed.split_whitespace().collect();
    let reported = guest.pinfold(&APPLY)?;
    let (_, named) = reported
        .split_once("--isolate host: the kernel manages ")
        .and_then(|(_, rest)| rest.split_once("not moved: "))
        .ok_or_else(|| LabError::wrong("managed interrupts are not named", &reported))?;
    let named = named.split(['\n', '(']).next().unwrap_or_default();
    let named: BTreeSet<&str> = named.split(", ").map(str::trim).collect();
    let status = guest.pinfold(&["status", "--json"])?;
    let said = shapes::ReportedPlacement::parse(&status)?;
    let during = look(guest)?;
    let (mut wrong, mut off, mut stay) = (Vec::new(), 0, 0);
    for (path, list) in &during.knobs {
        let number = path.strip_prefix("/proc/irq/");
        let Some(number) = number.and_then(|rest| rest.strip_suffix("/smp_affinity_list")) else {
            continue;
        };
        let cpus =
            CpuSet::parse_list(list.trim()).map_err(|_| LabError::wrong(path, list.trim()))?;
        let is_off = cpus.is_disjoint(&said.alone);
        match (is_off, managed.contains(number), named.contains(number)) {
            // Those on idle siblings of the vCPUs' CPUs are named too.
            (_, true, true) => stay += 1,
            (true, _, false) => off += 1,
            (_, is_managed, is_named) => wrong.push(format!(
                "interrupt {number} is on {cpus}, managed: {is_managed}, named: {is_named}"
            )),
        }
    }
    if off == 0 || stay == 0 {
        wrong.push(format!("{off} interrupts are off {}, {stay} stay", said.alone));
    }
    expect_none("interrupts under --isolate host", wrong)?;
    Ok(format!(
        "{off} interrupts are off the CPUs {} of the vCPUs, {stay} that the kernel manages stay and are named",
        said.alone
    ))
}

/// The CPUs of two jobs, and of the processes that run and observe them.
fn own_threads_leave(guest: &mut Guest) -> Result<String, LabError> {
    let text = guest.pinfold(&JOBS)?;
    let lines = text.lines().filter_map(|line| line.strip_prefix("masks "));
    let (mut jobs, mut own) = (CpuSet::new(), Vec::new());
    for line in lines {
        let lists = line.split_whitespace().map(CpuSet::parse_list).collect::<Result<Vec<_>, _>>();
        let lists = lists.map_err(|_| LabError::wrong("masks of a job", line))?;
        let [job, above @ ..] = lists.as_slice() else { continue };
        jobs.add(job);
        own.extend_from_slice(above);
    }
    // Each job has one thread that placed it, and the parent at least one more for the observation.
    if jobs.len() != 2 || own.len() < 6 || own.iter().any(|mask| !mask.is_disjoint(&jobs)) {
        let found = format!("jobs on {jobs}, Pinfold's threads on {own:?}: {text}");
        return Err(LabError::wrong("Pinfold's own threads", found));
    }
    for name in ["one", "two"] {
        if !text.contains(&format!("quiet: {name}: CPU ")) {
            return Err(LabError::wrong(format!("there is no line of {name}"), text));
        }
    }
    let observed = if text.contains("gaps cannot be observed") { ", without gaps" } else { "" };
    Ok(format!("two jobs on CPUs {jobs}, Pinfold's own threads elsewhere{observed}"))
}

fn at_random(
    guest: &mut Guest,
    before: &Snapshot,
    extent: Extent,
    kills: &mut Kills,
) -> Result<String, LabError> {
    let wanted = match extent {
        Extent::Full => MANY,
        Extent::Fixed | Extent::Sample => FEW,
    };
    let victims: [Victim<'_>; 2] = [Victim::alone(&QUIET), Victim::alone(&APPLY)];
    let ms = kills.continue_to(wanted, guest, &victims, &mut Reverted { before })?;
    Ok(format!(
        "quiet killed at {} random moments of its {} ms, apply at {} of its {} ms, reverted by undo \
         --left or the next command",
        kills.of(0),
        ms[0],
        kills.of(1),
        ms[1]
    ))
}

/// Tasks are created after each kill, and all is reverted.
struct Reverted<'a> {
    before: &'a Snapshot,
}

impl Rounds for Reverted<'_> {
    fn prepare(&mut self, _: &mut Guest, _: usize) -> Result<(), LabError> {
        Ok(())
    }

    fn check(&mut self, guest: &mut Guest, attempt: Attempt) -> Result<(), LabError> {
        stage::fork(guest)?;
        // Of quiet, every second kill is reverted by the next command.
        revert(guest, attempt.victim == 0 && attempt.number.is_multiple_of(4))?;
        let command = [QUIET[0], APPLY[0]][attempt.victim];
        same(guest, self.before, &format!("{command} killed after {} us", attempt.us))?;
        stage::reap(guest)
    }
}

/// Reverts what a killed command left. An apply that was complete is no leftover.
fn revert(guest: &mut Guest, by_next: bool) -> Result<(), LabError> {
    if by_next {
        // Once the command has ended.
        guest.shell(ENDED)?;
        return guest.pinfold(&NEXT).map(drop);
    }
    let reported = guest.pinfold(&LEFT)?;
    guest.shell(ENDED)?;
    if reported.contains("active") {
        shapes::ReportedPlacement::parse(&guest.pinfold(&["status", "--json"])?)?;
        guest.pinfold(&UNDO)?;
    }
    Ok(())
}
