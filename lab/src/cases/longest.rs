//! The longest plan: isolation, a partition, real-time vCPUs, SMT off and the host's tunables
//! together.
//!
//! It is killed before each call that could change something, and at random times, and so is its
//! undo. After each kill shells fork and `undo` runs; then every task's group, mask and policy and
//! every tunable must be as before, byte for byte. At random times Pinfold runs without `strace`,
//! which makes a kill fast, and also stops it between system calls.
//!
//! When SMT is switched, the kernel patches its own code, which sometimes fails under TCG
//! ([`Guest::has_int3_panic`]): hundreds of kills take several boots, each of which continues where the
//! last one ended.

use std::collections::BTreeMap;

use super::hotplug::differences;
use super::random_kills::{Attempt, Kills, Moments, Rounds, Victim, kill_after, time_us};
use super::shapes::{self, MONITOR, ROOT};
use super::{Extent, kill};
use crate::error::{LabError, expect_none};
use crate::guest::Guest;
use crate::snapshot::{Snapshot, host_knobs};
use crate::stage;

const PLAN: &str = "/tmp/plan.json";
const UNDO: [&str; 2] = ["undo", "--all"];
/// Without siblings, which will be offline; `low-latency-rt` gives the vCPUs `rr 1`.
pub(super) const PLANNING: [&str; 11] = [
    "/usr/bin/pinfold",
    "plan",
    "--vm",
    "name=vm,vcpus=2,iothreads=1,memory=16MiB",
    "-s",
    "low-latency-rt",
    "--isolate",
    "host",
    "--avoid",
    "1,3,5,7",
    "--json",
];
pub(super) const IOTHREAD: &str = "-object iothread,id=iothread1";
/// A slice for each kind of task, and one with its own list.
const GROUPS: &str = "cd /sys/fs/cgroup; mkdir system.slice user.slice
    echo +cpu > cgroup.subtree_control; echo 0-5 > user.slice/cpuset.cpus";
const KINDS: [&str; 5] = ["", "taskset c ", "taskset 3c ", "chrt -b 0 ", "chrt -f 5 "];

/// The argument of a tunable, its file, and the contents that the file must have.
pub(super) type Knob = (&'static str, &'static str, &'static str);
pub(super) const KNOBS: [Knob; 11] = [
    ("partition=isolated", "", ""),
    ("smt=off", "/sys/devices/system/cpu/smt/control", "off"),
    ("new-irqs=0,2", "/proc/irq/default_smp_affinity", "05"),
    ("workqueues=0,2", "/sys/devices/virtual/workqueue/cpumask", "05"),
    ("numa-balancing=off", "/proc/sys/kernel/numa_balancing", "0"),
    ("thp=never", "/sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]"),
    ("ksm=unmerge", "/sys/kernel/mm/ksm/run", "2"),
    (
        "huge-pages=1:2048:4",
        "/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages",
        "4",
    ),
    ("rt-throttle=off", "/proc/sys/kernel/sched_rt_runtime_us", "-1"),
    ("cpu-weight=300", "/sys/fs/cgroup/vm.scope/cpu.weight", "300"),
    ("cpu-quota=90000/100000", "/sys/fs/cgroup/vm.scope/cpu.max", "90000 100000"),
];

/// Number of kills at random times.
const MANY: usize = 200;
const FEW: usize = 8;
const SAMPLE: usize = 2;

/// The kills so far, each with its undo and a check.
#[derive(Debug)]
pub(super) struct Progress {
    /// Number of calls before which a kill was tried, and number of hits.
    changes: usize,
    killed: usize,
    random: Kills,
    /// Number of hits of undo, and the times at which it is killed.
    undos: usize,
    moments: Moments,
}

impl Progress {
    pub(super) fn new() -> Self {
        Self { changes: 0, killed: 0, random: Kills::new(), undos: 0, moments: Moments(2) }
    }

    /// Number of kills so far, to detect progress.
    pub(super) fn count_kills(&self) -> usize {
        self.changes + self.random.count_attempts()
    }
}

pub(super) fn kill_longest(
    guest: &mut Guest,
    extent: Extent,
    progress: &mut Progress,
) -> Result<String, LabError> {
    let vm = prepare(guest)?;
    let irq = format!("irq:{}=0,2", super::knobs::device(guest)?);
    let mut apply = vec!["apply", "--qmp", MONITOR, "--plan", PLAN, "--knob", "wake-up-us=0"];
    apply.extend(["--knob", &irq]);
    for (words, ..) in &KNOBS {
        // A kernel without one of them reports it; the case of the tunables checks this.
        apply.extend(["--knob", words]);
    }
    let (before, pus) = apply_and_undo(guest, vm, &apply)?;
    let each = match extent {
        // Those before each call are of smaller plans there.
        Extent::Sample => "not killed with strace".to_owned(),
        Extent::Fixed | Extent::Full => at_each_change(guest, &apply, &before, extent, progress)?,
    };
    let random = at_random(guest, &apply, &before, extent, progress)?;
    Ok(format!(
        "rr 1 on CPUs {pus} in an isolated partition, SMT off, interrupts, memory nodes, wake-up latency \
         and {} more tunables at once; {each}; {random}; each time group, mask and policy of {} tasks and \
         {} tunables as before",
        // This kernel may lack some, and two have other names.
        KNOBS.iter().skip(2).filter(|(_, file, _)| before.knobs.contains_key(*file)).count(),
        before.tasks.len(),
        before.knobs.len()
    ))
}

fn prepare(guest: &mut Guest) -> Result<u32, LabError> {
    let vm = shapes::start(guest, 2, IOTHREAD)?;
    guest.shell(GROUPS)?;
    for kind in KINDS {
        guest.background(&format!(
            "echo $$ > {ROOT}/system.slice/cgroup.procs; exec {kind}/bin/busybox tail -f /dev/null"
        ))?;
    }
    for (name, group) in stage::SHELLS.into_iter().zip(["init.scope", "user.slice"]) {
        stage::forks_on_demand(guest, name, &format!("echo $$ > {ROOT}/{group}/cgroup.procs"))?;
    }
    let plan = guest.run(&PLANNING)?.stdout_text();
    guest.shell(&format!("cat > {PLAN} <<'END'\n{plan}\nEND"))?;
    // All kinds of changes have started.
    stage::fork(guest)?;
    stage::reap(guest)?;
    Ok(vm)
}

fn look(guest: &mut Guest) -> Result<Snapshot, LabError> {
    Snapshot::take_with(guest, ROOT, false, &host_knobs())
}

/// Applies the plan once and undoes it; returns the state of the host afterwards, and the CPUs of
/// the vCPUs. The state must be the initial one, except for lists that a kernel only accepts with
/// explicit CPUs, which undo reports.
fn apply_and_undo(
    guest: &mut Guest,
    vm: u32,
    apply: &[&str],
) -> Result<(Snapshot, String), LabError> {
    let before = look(guest)?;
    guest.pinfold(&[apply, &["--dry-run"]].concat())?;
    same(guest, &before, "a dry run changed the host")?;
    guest.pinfold(apply)?;
    let pus = in_force(guest, vm)?;
    let reported = guest.pinfold(&UNDO)?;
    let after = look(guest)?;
    let near: BTreeMap<String, String> = before
        .knobs
        .iter()
        .filter(|(path, text)| {
            text.trim().is_empty() && reported.contains(&format!("{path} was empty and is now "))
        })
        .filter_map(|(path, _)| Some((path.clone(), after.knobs.get(&whole(path)?)?.clone())))
        .collect();
    expect_none("undo left a trace", differences(&after, &before, &near))?;
    Ok((after, pus))
}

/// The root's file with the maximum contents of a list.
fn whole(path: &str) -> Option<String> {
    let file = path.rsplit('/').next()?;
    Some(format!("{ROOT}/{file}.effective"))
}

/// Fails unless everything matches the plan, as read by busybox.
fn in_force(guest: &mut Guest, vm: u32) -> Result<String, LabError> {
    let during = look(guest)?;
    let status = guest.pinfold(&["status", "--json"])?;
    let said = shapes::ReportedPlacement::parse(&status)?;
    let mut wrong = shapes::intruders(&during, vm, &said);
    for (words, file, holds) in KNOBS.iter().filter(|(_, file, _)| during.knobs.contains_key(*file))
    {
        let found = during.knob(file);
        if found != *holds {
            wrong.push(format!("{words}: {file} holds {found:?}, not {holds:?}"));
        }
    }
    let partitions = during.knobs.iter().filter(|(path, text)| {
        path.ends_with("-part/cpuset.cpus.partition") && *text == "isolated\n"
    });
    if partitions.count() != 1 {
        wrong.push("no partition of Pinfold's is isolated".to_owned());
    }
    if during.knob("/sys/devices/system/cpu/online") != "0,2,4,6" {
        wrong.push("siblings are online".to_owned());
    }
    expect_none("the plan is not active", wrong)?;
    shapes::real_time(&during, vm)?;
    Ok(said.alone.to_string())
}

fn same(guest: &mut Guest, before: &Snapshot, what: &str) -> Result<(), LabError> {
    let after = look(guest)?;
    expect_none(what, differences(&after, before, &BTreeMap::new()))
}

/// After a kill: tasks are created, undo runs, and nothing must be left.
fn undone(guest: &mut Guest, before: &Snapshot, what: &str) -> Result<(), LabError> {
    guest.pinfold(&UNDO)?;
    same(guest, before, what)?;
    stage::reap(guest)
}

fn at_each_change(
    guest: &mut Guest,
    apply: &[&str],
    before: &Snapshot,
    extent: Extent,
    progress: &mut Progress,
) -> Result<String, LabError> {
    let calls = kill::calls_of(guest, apply)?;
    guest.pinfold(&UNDO)?;
    same(guest, before, "undo of a traced apply")?;
    let chosen = kill::choose(&calls, extent);
    for call in chosen.iter().skip(progress.changes) {
        let came = kill::kill_at(guest, apply, call)?;
        stage::fork(guest)?;
        undone(guest, before, &format!("apply killed before {call}"))?;
        progress.changes += 1;
        progress.killed += usize::from(came);
    }
    kill::report(progress.killed, chosen.len(), &calls)
}

fn at_random(
    guest: &mut Guest,
    apply: &[&str],
    before: &Snapshot,
    extent: Extent,
    progress: &mut Progress,
) -> Result<String, LabError> {
    let wanted = match extent {
        Extent::Full => MANY,
        Extent::Fixed => FEW,
        Extent::Sample => SAMPLE,
    };
    guest.pinfold(apply)?;
    let undo_us = time_us(guest, &UNDO)?;
    let Progress { random, undos, moments, .. } = progress;
    let mut rounds = Undone { before, undo_us, undos, moments };
    let ms = random.continue_to(wanted, guest, &[Victim::alone(apply)], &mut rounds)?;
    Ok(format!(
        "killed at {} random moments of its {} ms, undo at {} of its {} ms",
        random.of(0),
        ms[0],
        rounds.undos,
        rounds.undo_us / 1_000
    ))
}

/// Tasks are created and undo runs after each kill; every second time undo is killed too.
struct Undone<'a> {
    before: &'a Snapshot,
    undo_us: u64,
    undos: &'a mut usize,
    moments: &'a mut Moments,
}

impl Rounds for Undone<'_> {
    fn prepare(&mut self, _: &mut Guest, _: usize) -> Result<(), LabError> {
        Ok(())
    }

    fn check(&mut self, guest: &mut Guest, attempt: Attempt) -> Result<(), LabError> {
        stage::fork(guest)?;
        let mut what = format!("apply killed after {} us", attempt.us);
        if attempt.number % 2 == 1 {
            let us = self.moments.below_end_of(self.undo_us);
            let came = kill_after(guest, &Victim::alone(&UNDO), us)?;
            self.undo_us = if came { self.undo_us } else { self.undo_us.min(us) };
            *self.undos += usize::from(came);
            what.push_str(&format!(", undo after {us} us"));
        }
        undone(guest, self.before, &what)
    }
}
