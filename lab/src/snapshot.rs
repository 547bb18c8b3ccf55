//! Everything that isolation may change in a host under test, and the differences between two
//! snapshots.
//!
//! Snapshots are read by busybox alone, so that they are independent of Pinfold:
//!
//! ```text
//! /proc/1/task/1/stat:1 (init) S 0 0 0 0 -1 4194560 …
//! /proc/1/task/1/status:Cpus_allowed_list:    0-3
//! /proc/1/task/1/cgroup:4:cpuset:/
//! /sys/fs/cgroup/cpuset/cpuset.cpus:0-3
//! ```
//!
//! Tasks are identified by number and start time. Numbered fields: proc(5), `stat`.

use std::collections::BTreeMap;

use pinfold_model::CpuSet;
use pinfold_model::tunables::TUNABLES;

use crate::error::LabError;
use crate::guest::Guest;

/// Reads all tasks, then every cpuset file and group below `ROOT`; `memory_pressure` is a load
/// average and not a setting.
const SCRIPT: &str = r#"
echo "self $$"
grep -s -H "" /proc/[0-9]*/task/[0-9]*/stat || true
grep -s -H "^Cpus_allowed_list:" /proc/[0-9]*/task/[0-9]*/status || true
grep -s -H -E "^0::|:cpuset:" /proc/[0-9]*/task/[0-9]*/cgroup || true
grep -s -H "" /proc/irq/[0-9]*/smp_affinity_list | sed "s/^/irq:/"
find ROOT -type d | sort | sed "s/$/:group/"
find ROOT -name "cpuset.*" ! -name "*memory_pressure" -o -name cgroup.subtree_control | sort | xargs grep -s -H "" || true
"#;

/// Shell patterns for the tunables of the host that a plan may set, for [`Snapshot::take_with`].
pub(crate) fn host_knobs() -> String {
    let files = TUNABLES.iter().filter_map(|one| Some(one.kernel?.pattern()));
    let more = [
        "/proc/irq/*/smp_affinity_list",
        "/sys/devices/system/cpu/online",
        "/sys/fs/cgroup/*/cpu.weight",
        "/sys/fs/cgroup/*/cpu.max",
    ];
    files.chain(more.map(str::to_owned)).collect::<Vec<_>>().join(" ")
}

const KERNEL_THREAD: u64 = 0x0020_0000; // PF_KTHREAD
const UNMOVABLE: u64 = 0x0400_0000; // PF_NO_SETAFFINITY
const WORKER: u64 = 0x0000_0020; // PF_WQ_WORKER

/// One thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Task {
    pub(crate) name: String,
    pub(crate) start: u64,
    pub(crate) parent: u32,
    pub(crate) process_group: u32,
    flags: u64,
    /// `stat` fields 19, 40 and 41: nice value, real-time priority, policy.
    pub(crate) policy: (i64, i64, i64),
    pub(crate) mask: CpuSet,
    /// Its group in the hierarchy under test.
    pub(crate) group: String,
}

impl Task {
    pub(crate) fn is_kernel_thread(&self) -> bool {
        self.flags & KERNEL_THREAD != 0
    }

    pub(crate) fn is_unmovable(&self) -> bool {
        self.flags & UNMOVABLE != 0
    }

    /// True for a thread of a workqueue, whose mask is that of its pool and can only be set by the
    /// kernel. A rescuer (`rcu_gp`) keeps the mask of the last pool that it helped.
    fn has_mask_of_pool(&self) -> bool {
        let both = UNMOVABLE | WORKER;
        self.flags & both == both
    }
}

/// One snapshot of a host under test.
#[derive(Clone, Debug, Default)]
pub(crate) struct Snapshot {
    pub(crate) tasks: BTreeMap<u32, Task>,
    /// Content of every tunable, and one entry for each group.
    pub(crate) knobs: BTreeMap<String, String>,
    /// The CPUs of each interrupt.
    interrupts: BTreeMap<u32, String>,
}

impl Snapshot {
    /// Takes a snapshot of a guest whose cpuset hierarchy is mounted at `root`; `v1` is true for
    /// version 1.
    pub(crate) fn take(guest: &mut Guest, root: &str, v1: bool) -> Result<Self, LabError> {
        Self::take_with(guest, root, v1, "")
    }

    /// As [`Snapshot::take`], with more files as tunables: paths or patterns; missing files are
    /// ignored.
    pub(crate) fn take_with(
        guest: &mut Guest,
        root: &str,
        v1: bool,
        more: &str,
    ) -> Result<Self, LabError> {
        let mut script = SCRIPT.replace("ROOT", root);
        if !more.is_empty() {
            script.push_str(&format!("grep -s -H '' {more} || true\n"));
        }
        let text = guest.quiet_shell(&script)?;
        Self::parse(&text, v1).map_err(|why| LabError::wrong("a snapshot cannot be read", why))
    }

    fn parse(text: &str, v1: bool) -> Result<Self, String> {
        let mut raw: BTreeMap<u32, Raw<'_>> = BTreeMap::new();
        let mut knobs: BTreeMap<String, String> = BTreeMap::new();
        let mut interrupts = BTreeMap::new();
        let mut own = 0;
        for line in text.lines() {
            let bad = || format!("{line:?}");
            if let Some(number) = line.strip_prefix("self ") {
                own = number.parse().map_err(|_| bad())?;
            } else if let Some(rest) = line.strip_prefix("irq:/proc/irq/") {
                let (number, _) = rest.split_once('/').ok_or_else(bad)?;
                let (_, list) = rest.split_once(':').ok_or_else(bad)?;
                interrupts.insert(number.parse().map_err(|_| bad())?, list.to_owned());
            } else if let Some(rest) = of_task(line) {
                let (path, value) = rest.split_once(':').ok_or_else(bad)?;
                let (tid, file) = thread_of(path).ok_or_else(bad)?;
                raw.entry(tid).or_default().put(file, value, v1);
            } else {
                let (path, value) = line.split_once(':').ok_or_else(bad)?;
                let entry = knobs.entry(path.to_owned()).or_default();
                entry.push_str(value);
                entry.push('\n');
            }
        }
        let mut tasks = BTreeMap::new();
        for (tid, raw) in raw {
            // Tasks that ended between two of the readers are left out, and so is the reader
            // itself.
            let (Some(stat), Some(mask), Some(group)) = (raw.stat, raw.mask, raw.group) else {
                continue;
            };
            let task = task(stat, mask, group).ok_or_else(|| format!("task {tid}: {stat:?}"))?;
            if task.process_group != own {
                tasks.insert(tid, task);
            }
        }
        Ok(Self { tasks, knobs, interrupts })
    }

    /// The content of a tunable, without the newline; empty if it does not exist.
    pub(crate) fn knob(&self, path: &str) -> &str {
        self.knobs.get(path).map_or("", |text| text.trim_end_matches('\n'))
    }

    /// The CPUs of the interrupt that a thread handles.
    fn interrupt_of(&self, task: &Task) -> Option<&str> {
        let (number, _) = task.name.strip_prefix("irq/")?.split_once('-')?;
        self.interrupts.get(&number.parse().ok()?).map(String::as_str)
    }

    /// The threads with this process group, if there are any.
    pub(crate) fn of_group(&self, process_group: u32) -> impl Iterator<Item = (u32, &Task)> {
        let tasks = self.tasks.iter().map(|(tid, task)| (*tid, task));
        tasks.filter(move |(_, task)| task.process_group == process_group)
    }

    /// The differences from an earlier snapshot. A task created since then in the process group of
    /// an earlier task must equal that one; `near` are tunables that may differ, with their text.
    pub(crate) fn differences(
        &self,
        before: &Snapshot,
        near: &BTreeMap<String, String>,
    ) -> Vec<String> {
        let mut found = Vec::new();
        for (tid, was) in &before.tasks {
            match self.tasks.get(tid).filter(|task| task.start == was.start) {
                Some(is) => {
                    compare(*tid, was, is, &mut found);
                    // The kernel moves the thread of an interrupt when the next one comes.
                    match (before.interrupt_of(was), self.interrupt_of(is)) {
                        (Some(was), Some(is)) if was == is => {}
                        (Some(old), Some(new)) => found.push(format!(
                            "task {tid} ({}): its interrupt is on {new}, was on {old}",
                            was.name
                        )),
                        (_, _) => compare_masks(*tid, was, is, &mut found),
                    }
                }
                None if was.is_kernel_thread() => {} // workers are created and ended by the kernel
                None => found.push(format!("task {tid} ({}) has ended", was.name)),
            }
        }
        for (tid, is) in &self.tasks {
            if before.tasks.get(tid).is_none_or(|was| was.start != is.start) {
                newcomer(*tid, is, before, &mut found);
            }
        }
        for (path, was) in &before.knobs {
            let wanted = near.get(path).unwrap_or(was);
            match self.knobs.get(path) {
                Some(is) if is == wanted => {}
                Some(is) => found.push(format!("{path} holds {is:?}, not {wanted:?}")),
                None => found.push(format!("{path} is gone")),
            }
        }
        let new = self.knobs.keys().filter(|path| !before.knobs.contains_key(*path));
        found.extend(new.map(|path| format!("{path} was not there")));
        found
    }
}

fn compare(tid: u32, was: &Task, is: &Task, found: &mut Vec<String>) {
    let name = &was.name;
    if was.group != is.group {
        found.push(format!("task {tid} ({name}) is in {}, was in {}", is.group, was.group));
    }
    if was.policy != is.policy {
        found.push(format!("task {tid} ({name}) has policy {:?}, had {:?}", is.policy, was.policy));
    }
}

fn compare_masks(tid: u32, was: &Task, is: &Task, found: &mut Vec<String>) {
    if was.mask != is.mask && !is.has_mask_of_pool() {
        let name = &was.name;
        found.push(format!("task {tid} ({name}) has the mask {}, had {}", is.mask, was.mask));
    }
}

/// A new kernel thread must equal `kthreadd`, any other new task the leader of its process group.
/// The policies of kernel threads are not compared: the kernel creates an interrupt's thread with
/// `SCHED_FIFO` and some workers with a nice value, and none is inherited.
fn newcomer(tid: u32, is: &Task, before: &Snapshot, found: &mut Vec<String>) {
    const KTHREADD: u32 = 2;
    let like = if is.is_kernel_thread() { KTHREADD } else { is.process_group };
    let Some(was) = before.tasks.get(&like) else {
        found.push(format!("task {tid} ({}) came from nobody known", is.name));
        return;
    };
    if is.group != was.group {
        found.push(format!("new task {tid} ({}) is in {}, not {}", is.name, is.group, was.group));
    }
    // A worker's mask is that of its pool.
    if is.mask != was.mask && !is.is_unmovable() {
        found.push(format!(
            "new task {tid} ({}) has the mask {}, not {}",
            is.name, is.mask, was.mask
        ));
    }
    if is.policy != was.policy && !is.is_kernel_thread() {
        found.push(format!(
            "new task {tid} ({}) has policy {:?}, not {:?}",
            is.name, is.policy, was.policy
        ));
    }
}

#[derive(Default)]
struct Raw<'t> {
    stat: Option<&'t str>,
    mask: Option<&'t str>,
    group: Option<&'t str>,
}

impl<'t> Raw<'t> {
    fn put(&mut self, file: &str, value: &'t str, v1: bool) {
        match file {
            "stat" => self.stat = Some(value),
            "status" => self.mask = value.split_once(':').map(|(_, list)| list.trim()),
            "cgroup" => {
                let (_, rest) = value.split_once(':').unwrap_or(("", value));
                let wanted = if v1 { "cpuset:" } else { ":" };
                if let Some(group) = rest.strip_prefix(wanted) {
                    self.group = Some(group);
                }
            }
            _ => {}
        }
    }
}

/// The part after `/proc/` in the line of a task; `/proc/irq/…` and `/proc/sys/…` are tunables.
fn of_task(line: &str) -> Option<&str> {
    line.strip_prefix("/proc/").filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// `812/task/813/stat` → 813 and `stat`.
fn thread_of(path: &str) -> Option<(u32, &str)> {
    let mut parts = path.split('/').skip(2);
    Some((parts.next()?.parse().ok()?, parts.next()?))
}

fn task(stat: &str, mask: &str, group: &str) -> Option<Task> {
    let (head, tail) = stat.rsplit_once(')')?;
    let name = head.split_once('(')?.1.to_owned();
    // The first field after the name is number 3.
    let fields: Vec<&str> = tail.split_whitespace().collect();
    let number = |at: usize| field_at(at, &fields)?.parse::<i64>().ok();
    Some(Task {
        name,
        start: field_at(22, &fields)?.parse().ok()?,
        parent: field_at(4, &fields)?.parse().ok()?,
        process_group: field_at(5, &fields)?.parse().ok()?,
        flags: field_at(9, &fields)?.parse().ok()?,
        policy: (number(19)?, number(40)?, number(41)?),
        mask: CpuSet::parse_list(mask).ok()?,
        group: group.to_owned(),
    })
}

fn field_at<'f>(number: usize, fields: &[&'f str]) -> Option<&'f str> {
    fields.get(number - 3).copied()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::Snapshot;

    fn look(group: &str, mask: &str, extra: &str) -> Snapshot {
        let stat = "S 1 90 90 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 77 1 2 3 4 5 6 7 8 9 0 0 0 0 0 0 17 3 0 0 0 0";
        let text = format!(
            "self 5\n/proc/90/task/90/stat:90 (a (b) c) {stat}\n/proc/90/task/90/status:Cpus_allowed_list:\t{mask}\n/proc/90/task/90/cgroup:4:cpuset:{group}\n/proc/90/task/90/cgroup:0::/\n/c:group\n/c/cpuset.cpus:0-3\n{extra}"
        );
        Snapshot::parse(&text, true).unwrap()
    }

    #[test]
    fn every_difference_is_named() {
        fn check(after: Snapshot, expected: &[&str]) {
            let found = after.differences(&look("/", "0-3", ""), &BTreeMap::new());
            assert_eq!(found, expected);
        }

        check(look("/", "0-3", ""), &[]);
        check(look("/x", "0-3", ""), &["task 90 (a (b) c) is in /x, was in /"]);
        check(look("/", "0-1", ""), &["task 90 (a (b) c) has the mask 0-1, had 0-3"]);
        check(look("/", "0-3", "/c/x:group\n"), &["/c/x was not there"]);
        let knob = "/proc/irq/9/smp_affinity_list:0-1\n";
        check(look("/", "0-3", knob), &["/proc/irq/9/smp_affinity_list was not there"]);
    }

    #[test]
    fn the_mask_of_a_workqueues_rescuer_is_its_pools() {
        let found =
            |flags| look_at(flags, "0-3").differences(&look_at(flags, "2"), &BTreeMap::new()).len();
        assert_eq!(found(0x0420_8060), 0, "a rescuer");
        assert_eq!(found(0x0420_8040), 1, "bound, and no worker");
        assert_eq!(found(0x0020_8040), 1, "any kernel thread");
    }

    fn look_at(flags: u64, mask: &str) -> Snapshot {
        let stat = format!(
            "S 2 0 0 0 -1 {flags} 1 2 3 4 5 6 7 8 0 -20 1 0 7 1 2 3 4 5 6 7 8 9 0 0 0 0 0 0 17 3 0 0 0 0"
        );
        let text = format!(
            "self 5\n/proc/3/task/3/stat:3 (rcu_gp) {stat}\n/proc/3/task/3/status:Cpus_allowed_list:\t{mask}\n/proc/3/task/3/cgroup:0::/\n"
        );
        Snapshot::parse(&text, false).unwrap()
    }

    #[test]
    fn of_an_interrupt_its_list_is_compared_and_not_the_mask_of_its_thread() {
        let look = |mask: &str, list: &str| {
            let stat = "S 2 0 0 0 -1 2129984 1 2 3 4 5 6 7 8 -51 0 1 0 7 1 2 3 4 5 6 7 8 9 0 0 0 0 0 0 17 3 50 1 0 0";
            let text = format!(
                "self 5\n/proc/3/task/3/stat:3 (irq/25-virtio0) {stat}\n/proc/3/task/3/status:Cpus_allowed_list:\t{mask}\n/proc/3/task/3/cgroup:0::/\n{list}"
            );
            Snapshot::parse(&text, false).unwrap()
        };
        let all = "irq:/proc/irq/25/smp_affinity_list:0-3\n";
        let first = "irq:/proc/irq/25/smp_affinity_list:0\n";
        let found =
            |after: Snapshot, list: &str| after.differences(&look("0-3", list), &BTreeMap::new());
        assert!(found(look("0", all), all).is_empty(), "it moves at its next interrupt");
        let moved = ["task 3 (irq/25-virtio0): its interrupt is on 0, was on 0-3"];
        assert_eq!(found(look("0-3", first), all), moved);
        let masks = ["task 3 (irq/25-virtio0) has the mask 0, had 0-3"];
        assert_eq!(found(look("0", ""), ""), masks, "without its list");
    }

    #[test]
    fn newcomers_must_be_as_the_leader_of_their_group_was() {
        // `policy` is fields 40 and 41: real-time priority and policy.
        let stat =
            "S 1 90 90 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 99 1 2 3 4 5 6 7 8 9 0 0 0 0 0 0 17 3";
        let born = |group: &str, policy: &str| {
            let stat = format!("{stat} {policy} 0 0");
            look(
                "/",
                "0-3",
                &format!(
                    "/proc/91/task/91/stat:91 (sleep) {stat}\n/proc/91/task/91/status:Cpus_allowed_list:\t0-3\n/proc/91/task/91/cgroup:4:cpuset:{group}\n"
                ),
            )
        };
        let found = |group: &str, policy: &str| {
            born(group, policy).differences(&look("/", "0-3", ""), &BTreeMap::new())
        };
        assert!(found("/", "0 0").is_empty());
        assert_eq!(found("/pinfold-1", "0 0"), ["new task 91 (sleep) is in /pinfold-1, not /"]);
        let inherited = "new task 91 (sleep) has policy (0, 1, 2), not (0, 0, 0)";
        assert_eq!(found("/", "1 2"), [inherited]);
    }
}
