//! Simulated threads and their files in `/proc`.

use std::collections::BTreeMap;

use pinfold_host::proc_stat::{PF_KTHREAD, PF_NO_SETAFFINITY};
use pinfold_host::schedstat::SchedStat;
use pinfold_model::{CpuSet, NodeId, Policy, TaskId, Tid};

/// A clock tick of `/proc`, `USER_HZ`.
const NS_PER_TICK: u64 = 10_000_000;

/// A thread of the simulated machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimTask {
    /// Thread ID.
    pub tid: Tid,
    /// Its process; equal to `tid` for the first thread of a process.
    pub tgid: Tid,
    /// Its parent process.
    pub ppid: Tid,
    /// Its process group, which its children inherit.
    pub process_group: Tid,
    /// Start time in clock ticks since boot.
    pub start_time: u64,
    /// Its name; at most 15 bytes.
    pub comm: String,
    /// Arguments, as `cmdline` shows them; empty for kernel threads.
    pub cmdline: Vec<String>,
    /// `PF_` flags (`include/linux/sched.h`).
    pub flags: u32,
    /// State letter.
    pub state: char,
    /// The mask that `sched_setaffinity` requested; the kernel (since 6.2) stores it and intersects
    /// it with the cpuset. `None` if it was never set.
    pub asked: Option<CpuSet>,
    /// Its scheduling policy.
    pub policy: Policy,
    /// Its nice value, which other policies keep.
    pub nice: i8,
    /// Its group in the hierarchy with cpuset, below the mount: `/`, `/a/b`.
    pub group: String,
    /// Run time and run delay.
    pub schedstat: SchedStat,
    /// Voluntary and involuntary context switches.
    pub switches: (u64, u64),
    /// Migrations between CPUs.
    pub migrations: u64,
    /// CPU on which it last ran.
    pub processor: u32,
    /// Pages of its process by node.
    pub pages: BTreeMap<NodeId, SimPages>,
    /// Targets of its process's file descriptors, by number.
    pub descriptors: Vec<String>,
}

/// Pages of 4 KiB on one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SimPages {
    /// Number of movable pages.
    pub movable: u64,
    /// Number of pages that are pinned, for example by a device.
    pub in_use: u64,
}

impl SimTask {
    /// The first thread of a process whose parent is init.
    pub fn new(tid: u32, comm: &str) -> Self {
        Self {
            tid: Tid(tid),
            tgid: Tid(tid),
            ppid: Tid(1),
            process_group: Tid(tid),
            start_time: 1000 + u64::from(tid),
            comm: comm.chars().take(15).collect(),
            cmdline: vec![comm.to_owned()],
            flags: 0x0040_0000,
            state: 'S',
            asked: None,
            policy: Policy::default(),
            nice: 0,
            group: "/".to_owned(),
            schedstat: SchedStat::default(),
            switches: (0, 0),
            migrations: 0,
            processor: 0,
            pages: BTreeMap::new(),
            descriptors: Vec::new(),
        }
    }

    /// Makes it another thread of this process, in that process's process group.
    #[must_use]
    pub fn thread_of(mut self, process: u32) -> Self {
        self.tgid = Tid(process);
        self.process_group = Tid(process);
        self
    }

    /// Adds pages on a node, of which some cannot be moved.
    #[must_use]
    pub fn with_pages(mut self, node: u32, pages: SimPages) -> Self {
        self.pages.insert(NodeId(node), pages);
        self
    }

    /// Content of `numa_maps` of its process.
    pub(super) fn numa_maps(&self) -> String {
        let pages = self.pages.iter().filter(|(_, pages)| pages.movable + pages.in_use > 0);
        let nodes: String = pages
            .map(|(NodeId(node), pages)| format!(" N{node}={}", pages.movable + pages.in_use))
            .collect();
        format!("7f1c00000000 default anon{nodes} kernelpagesize_kB=4\n")
    }

    /// Page tables of its process in KiB: one table of 4 KiB for each 512 pages, and one of each
    /// of the three levels above.
    fn page_tables_kib(&self) -> u64 {
        let pages: u64 = self.pages.values().map(|pages| pages.movable + pages.in_use).sum();
        4 * (3 + pages.div_ceil(512))
    }

    /// Makes it a child of this process.
    #[must_use]
    pub fn child_of(mut self, parent: u32) -> Self {
        self.ppid = Tid(parent);
        self
    }

    /// Sets its start time in clock ticks.
    #[must_use]
    pub fn started(mut self, start_time: u64) -> Self {
        self.start_time = start_time;
        self
    }

    /// Puts it into this group (which must exist) of the hierarchy with cpuset.
    #[must_use]
    pub fn in_group(mut self, group: &str) -> Self {
        group.clone_into(&mut self.group);
        self
    }

    /// Sets its policy.
    #[must_use]
    pub fn with_policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self.nice = policy.nice().unwrap_or(self.nice);
        self
    }

    /// Sets its requested affinity.
    #[must_use]
    pub fn with_affinity(mut self, mask: CpuSet) -> Self {
        self.asked = Some(mask);
        self
    }

    /// Makes it a movable kernel thread.
    #[must_use]
    pub fn kernel_thread(mut self) -> Self {
        self.flags |= PF_KTHREAD;
        self.cmdline = Vec::new();
        self.ppid = Tid(2);
        self.process_group = Tid(0);
        self
    }

    /// Makes it a kernel thread that is permanently bound to these CPUs (`PF_NO_SETAFFINITY`).
    #[must_use]
    pub fn unmovable(mut self, mask: CpuSet) -> Self {
        self.flags |= PF_NO_SETAFFINITY;
        self.asked = Some(mask);
        self.kernel_thread()
    }

    /// Identifies the thread by TID and start time.
    #[must_use]
    pub fn id(&self) -> TaskId {
        TaskId { tid: self.tid, start_time: self.start_time }
    }

    /// True if neither its affinity nor its group can be changed.
    pub fn is_unmovable(&self) -> bool {
        self.flags & PF_NO_SETAFFINITY != 0
    }

    /// Content of `stat`. The CPU time is that of this thread: a simulated process does not sum its
    /// threads.
    pub(super) fn stat(&self, threads: usize) -> String {
        let (number, priority) = policy_numbers(self.policy);
        let nice = self.nice;
        let kernel_priority =
            if priority > 0 { -1 - i64::from(priority) } else { 20 + i64::from(nice) };
        format!(
            "{tid} ({comm}) {state} {ppid} {group} {group} 0 -1 {flags} 0 0 0 0 {ticks} 0 0 0 \
             {kernel_priority} {nice} {threads} 0 {start} 0 0 18446744073709551615 0 0 0 0 0 0 0 0 0 \
             0 0 0 17 {processor} {priority} {number} 0 0 0 0 0 0 0 0 0 0 0\n",
            tid = self.tid,
            comm = self.comm,
            state = self.state,
            ppid = self.ppid,
            group = self.process_group,
            flags = self.flags,
            ticks = self.schedstat.run_ns / NS_PER_TICK,
            start = self.start_time,
            processor = self.processor,
        )
    }

    pub(super) fn status(&self, threads: usize, mask: &CpuSet, mems: &CpuSet) -> String {
        // The kernel escapes what would break the line (`string_escape_str`).
        let name = self.comm.replace('\\', "\\\\").replace('\n', "\\n");
        let tables = match self.flags & PF_KTHREAD {
            0 => format!("VmPTE:\t{:>8} kB\n", self.page_tables_kib()),
            _ => String::new(),
        };
        format!(
            "Name:\t{name}\nUmask:\t0022\nState:\t{state} (sleeping)\nTgid:\t{tgid}\nNgid:\t0\n\
             Pid:\t{tid}\nPPid:\t{ppid}\nTracerPid:\t0\nUid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\n\
             FDSize:\t64\n{tables}Threads:\t{threads}\nCpus_allowed:\t{hex}\nCpus_allowed_list:\t{mask}\n\
             Mems_allowed_list:\t{mems}\nvoluntary_ctxt_switches:\t{voluntary}\n\
             nonvoluntary_ctxt_switches:\t{involuntary}\n",
            state = self.state,
            tgid = self.tgid,
            tid = self.tid,
            ppid = self.ppid,
            hex = mask.to_mask(),
            voluntary = self.switches.0,
            involuntary = self.switches.1,
        )
    }

    pub(super) fn sched(&self, threads: usize) -> String {
        let (number, priority) = policy_numbers(self.policy);
        let shown =
            if priority > 0 { 99 - i64::from(priority) } else { 120 + i64::from(self.nice) };
        format!(
            "{comm} ({tid}, #threads: {threads})\n{line}\n\
             se.nr_migrations                             :  {migrations:>20}\n\
             nr_switches                                  :  {switches:>20}\n\
             nr_voluntary_switches                        :  {voluntary:>20}\n\
             nr_involuntary_switches                      :  {involuntary:>20}\n\
             policy                                       :  {number:>20}\n\
             prio                                         :  {shown:>20}\n",
            comm = self.comm,
            tid = self.tid,
            line = "-".repeat(67),
            migrations = self.migrations,
            switches = self.switches.0 + self.switches.1,
            voluntary = self.switches.0,
            involuntary = self.switches.1,
        )
    }

    pub(super) fn cmdline_bytes(&self) -> Vec<u8> {
        self.cmdline.iter().flat_map(|arg| arg.bytes().chain([0])).collect()
    }

    pub(super) fn schedstat_text(&self) -> String {
        let SchedStat { run_ns, delay_ns, slices } = self.schedstat;
        format!("{run_ns} {delay_ns} {slices}\n")
    }
}

/// Kernel number of the policy, and its real-time priority.
fn policy_numbers(policy: Policy) -> (u32, u8) {
    match policy {
        Policy::Other { .. } | Policy::Slice { .. } => (0, 0),
        Policy::Fifo { priority } => (1, priority),
        Policy::RoundRobin { priority } => (2, priority),
        Policy::Batch { .. } => (3, 0),
        Policy::Idle => (5, 0),
        Policy::Deadline { .. } => (6, 0),
        Policy::Unknown { number } => (number, 0),
    }
}
