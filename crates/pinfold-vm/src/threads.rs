//! Determines the role of each thread of a virtual machine.
//!
//! QEMU's monitor is queried first: it reports the threads of vCPUs and iothreads by number. Names
//! classify only the remaining threads. QEMU documents names as "for debugging and not a stable
//! API", sets them only under `-name debug-threads=on`, and cannot set names longer than 15 bytes
//! at all (an iothread with an ID of more than 12 characters stays nameless). Without a monitor the
//! roles depend on names alone, and a finding says so.
//!
//! The threads are counted before the queries, listed and read while QEMU prepares its replies, and
//! listed again afterwards, until all agree (or until a [`ThreadSet`] taken before equals one taken
//! after). Threads are created at any time (hotplug, worker pools), and a monitor's reply is
//! useless if the list has changed meanwhile.
//!
//! Kernel threads that serve the machine from outside its process are found by name: `vhost-PID`
//! (Linux before 6.4, or with `fork_owner=0`) and `kvm-pit/PID`.

mod names;
mod process;

use std::collections::BTreeMap;

use pinfold_host::process::own_uid;
use pinfold_host::{Host, ThreadList, ThreadSet};
use pinfold_model::{Accelerator, Finding, Role, TaskId, Tid};

pub(crate) use self::names::is_qemu;
use self::process::{Descriptors, Task, kernel_threads, numbers, owner_of, program_of, tasks};
pub(crate) use self::process::{command_line, leader_of};
use crate::VmError;
use crate::argv;
use crate::control::{Monitor, VmInfo};

/// Maximum number of rounds before a changing list is accepted (and reported).
const ROUNDS: u32 = 8;

/// One thread of a virtual machine, with its role.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VmThread {
    /// The thread.
    pub task: TaskId,
    /// Role of the thread.
    pub role: Role,
    /// Name of the thread (`comm`).
    pub name: String,
}

/// Result of the discovery of a virtual machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Process ID of QEMU.
    pub pid: Tid,
    /// Its threads: vCPUs first, by index, then the others by role and number.
    pub threads: Vec<VmThread>,
    /// The accelerator; `None` if neither monitor nor names show it.
    pub accelerator: Option<Accelerator>,
    /// Number of present vCPUs.
    pub vcpus: u32,
    /// Maximum number of vCPUs, including those that can be hot-plugged (`maxcpus`).
    pub max_vcpus: u32,
    /// Reasons why the list may be incomplete or wrong.
    pub findings: Vec<Finding>,
    /// The thread IDs of the process, if a check confirmed that there are no others.
    pub roll: Option<ThreadList>,
}

impl Found {
    /// The indexes of the present vCPUs, ascending. There is a gap where a vCPU was plugged into a
    /// later slot.
    #[must_use]
    pub fn vcpu_ids(&self) -> Vec<u32> {
        let ids = self.threads.iter().filter_map(|thread| match thread.role {
            Role::Vcpu(id) => Some(id),
            Role::Emulator | Role::Iothread(_) | Role::Vhost(_) | Role::Worker | Role::Task => None,
        });
        let ids: Vec<u32> = ids.collect();
        match u32::try_from(ids.len()) {
            Ok(count) if count == self.vcpus => ids,
            // Several vCPUs share a thread, which has the role of the first.
            Ok(_) | Err(_) => (0..self.vcpus).collect(),
        }
    }

    /// Checks that each vCPU has its own thread, which pinning of single vCPUs requires.
    ///
    /// # Errors
    /// [`VmError::OneThread`] if several vCPUs share one.
    pub fn require_own_threads(&self) -> Result<(), VmError> {
        match (self.accelerator, self.vcpus) {
            (Some(Accelerator::TcgSingle), vcpus) if vcpus > 1 => Err(VmError::OneThread { vcpus }),
            _ => Ok(()),
        }
    }

    /// The threads in the form that the crate for applying plans takes.
    #[must_use]
    pub fn tasks(&self) -> Vec<(TaskId, Role)> {
        self.threads.iter().map(|thread| (thread.task, thread.role.clone())).collect()
    }
}

/// Finds the role of each thread of the QEMU behind a monitor.
///
/// A guest may have compromised its QEMU, so the replies are not trusted. If QEMU itself is at the
/// other end, it is believed about its own threads only. If another process is at the other end,
/// the first vCPU's thread identifies the QEMU process, whose user must be one that the peer may
/// represent.
///
/// # Errors
/// As [`discover`]; [`VmError::ForeignOwner`].
pub fn find(host: &dyn Host, monitor: &mut dyn Monitor) -> Result<Found, VmError> {
    match monitor.peer() {
        Some(pid) if require_qemu(host, pid).is_ok() => discover(host, pid, Some(monitor)),
        // The socket was created by another process (libvirt, systemd, a proxy), or by one that has
        // ended or is not visible from here.
        Some(_) | None => find_by_vcpu(host, monitor),
    }
}

/// Uses the process of the first vCPU's thread, if it is a QEMU that the peer's user may represent.
fn find_by_vcpu(host: &dyn Host, monitor: &mut dyn Monitor) -> Result<Found, VmError> {
    let first = monitor.cpus()?.first().ok_or(VmError::NoVcpus)?.thread;
    let pid = leader_of(host, first)?;
    require_qemu(host, pid)?;
    if let Some(peer) = monitor.peer_user() {
        let user = owner_of(host, pid)?;
        // Proxies of root and of the caller may also connect to machines of other users.
        if ![0, own_uid(), user].contains(&peer) {
            return Err(VmError::ForeignOwner { pid, user, peer });
        }
    }
    discover(host, pid, Some(monitor))
}

/// Finds the role of each thread of process `pid`, through its monitor if there is one.
///
/// # Errors
/// [`VmError::NoProcess`], [`VmError::NotQemu`] (checked only without a monitor),
/// [`VmError::ForeignThread`] if monitor and process do not belong together, [`VmError::NoVcpus`],
/// [`VmError::Nameless`], or an error of the monitor or the host.
pub fn discover(
    host: &dyn Host,
    pid: Tid,
    monitor: Option<&mut dyn Monitor>,
) -> Result<Found, VmError> {
    let (mut found, descriptors) = match monitor {
        Some(monitor) => by_monitor(host, pid, monitor)?,
        None => (by_names(host, pid)?, Descriptors::of(host, pid)),
    };
    let outside = kernel_threads(host, (found.pid, descriptors), &found.threads)?;
    found.threads.extend(outside);
    number_vhosts(&mut found.threads);
    if let Ok(words) = command_line(host, pid) {
        found.max_vcpus = found.vcpus.max(argv::parse(&words).max_vcpus().unwrap_or(0));
    }
    found.threads.sort_by(|a, b| (&a.role, a.task).cmp(&(&b.role, b.task)));
    Ok(found)
}

/// Checks that a process runs QEMU's system emulator.
///
/// # Errors
/// [`VmError::NoProcess`] or [`VmError::NotQemu`].
pub fn require_qemu(host: &dyn Host, pid: Tid) -> Result<(), VmError> {
    let program = program_of(host, pid)?;
    if names::is_qemu(&program) { Ok(()) } else { Err(VmError::NotQemu { pid, program }) }
}

/// The accelerator of a QEMU process, determined without its monitor and without thread names: by
/// whether the process holds a KVM virtual machine, and by its command line. `None` if its
/// descriptors are not readable and its command line does not determine it.
///
/// # Errors
/// As [`require_qemu`].
pub fn accelerator_of(host: &dyn Host, pid: Tid) -> Result<Option<Accelerator>, VmError> {
    require_qemu(host, pid)?;
    let words = command_line(host, pid)?;
    Ok(match Descriptors::of(host, pid) {
        Some(held) if held.kvm => Some(Accelerator::Kvm),
        Some(_) => Some(argv::parse(&words).translator()),
        None => argv::parse(&words).accelerator(),
    })
}

impl VmInfo {
    fn tids(&self) -> impl Iterator<Item = Tid> + '_ {
        let cpus = self.cpus.iter().map(|cpu| cpu.thread);
        cpus.chain(self.iothreads.iter().map(|iothread| iothread.thread))
    }

    fn share_one_thread(&self) -> bool {
        self.cpus.len() > 1 && self.cpus.iter().all(|cpu| cpu.thread == self.cpus[0].thread)
    }

    fn roles(&self) -> BTreeMap<Tid, Role> {
        let iothreads = self
            .iothreads
            .iter()
            .map(|iothread| (iothread.thread, Role::Iothread(iothread.id.clone())));
        // In reverse order, so that the first of several vCPUs in one thread determines its role.
        let cpus = self.cpus.iter().rev().map(|cpu| (cpu.thread, Role::Vcpu(cpu.index)));
        iothreads.chain(cpus).collect()
    }
}

fn by_monitor(
    host: &dyn Host,
    pid: Tid,
    monitor: &mut dyn Monitor,
) -> Result<(Found, Option<Descriptors>), VmError> {
    let mut findings = Vec::new();
    let mut descriptors = None;
    let StableReading { value: (reported, tasks), roll, settled } = settle(host, pid, &mut || {
        let mut read = Err(VmError::NoProcess { pid });
        let reported = monitor.vm(&mut || {
            read = ThreadListing::of(host, pid);
            descriptors = descriptors.or_else(|| Descriptors::of(host, pid));
        })?;
        if reported.cpus.is_empty() {
            return Err(VmError::NoVcpus);
        }
        let ThreadListing { tids, tasks } = read?;
        let complete = reported.tids().all(|tid| tids.binary_search(&tid).is_ok());
        Ok(ThreadReading { tids, value: (reported, tasks), complete })
    })?;
    let is_missing = |tid: &Tid| tasks.binary_search_by_key(tid, |task| task.id.tid).is_err();
    if let Some(tid) = reported.tids().find(is_missing) {
        return Err(VmError::ForeignThread { pid, tid });
    }
    findings.extend((!settled).then(|| unrest(pid)));
    let vcpus = u32::try_from(reported.cpus.len()).unwrap_or(u32::MAX);
    let kvm = match descriptors {
        Some(descriptors) => descriptors.kvm,
        None => monitor.kvm_enabled()?,
    };
    let accelerator = if kvm {
        Accelerator::Kvm
    } else if reported.share_one_thread()
        || (vcpus == 1 && one_vcpu_in_shared_loop(host, pid, &tasks))
    {
        Accelerator::TcgSingle
    } else {
        Accelerator::TcgMulti
    };
    if accelerator == Accelerator::TcgSingle && vcpus > 1 {
        findings.push(one_thread(vcpus));
    }
    let known = reported.roles();
    let threads = tasks.into_iter().map(|task| {
        let role = known.get(&task.id.tid).cloned();
        let role = role.unwrap_or_else(|| names::role_of_rest(&task.name));
        task.with_role(pid, role)
    });
    let threads = threads.collect();
    let accelerator = Some(accelerator);
    Ok((Found { pid, threads, accelerator, vcpus, max_vcpus: vcpus, findings, roll }, descriptors))
}

fn by_names(host: &dyn Host, pid: Tid) -> Result<Found, VmError> {
    let pid = leader_of(host, pid)?;
    require_qemu(host, pid)?;
    let mut findings = vec![
        Finding::warning(
            "roles",
            format!("the threads of process {pid} were identified by their names alone, which QEMU does not promise"),
        )
        .with_hint("name its QMP socket (--qmp) or libvirt domain (--libvirt) instead of the process"),
    ];
    let StableReading { value: tasks, roll, settled } = settle(host, pid, &mut || {
        let ThreadListing { tids, tasks } = ThreadListing::of(host, pid)?;
        Ok(ThreadReading { tids, value: tasks, complete: true })
    })?;
    findings.extend((!settled).then(|| unrest(pid)));
    let shared_loop = tasks.iter().any(|task| names::is_shared_loop(&task.name));
    let threads: Vec<VmThread> = tasks
        .into_iter()
        .map(|task| {
            let role = names::role_by_name(&task.name);
            task.with_role(pid, role)
        })
        .collect();
    let seen = threads.iter().filter(|thread| matches!(thread.role, Role::Vcpu(_))).count();
    if seen == 0 {
        return Err(VmError::Nameless { pid });
    }
    let mut vcpus = u32::try_from(seen).unwrap_or(u32::MAX);
    if shared_loop {
        vcpus = argv::parse(&command_line(host, pid)?).vcpus().unwrap_or(1);
        findings.extend((vcpus > 1).then(|| one_thread(vcpus)));
    }
    let accelerator = names::accelerator(threads.iter().map(|thread| thread.name.as_str()));
    Ok(Found { pid, threads, accelerator, vcpus, max_vcpus: vcpus, findings, roll })
}

/// The threads of a process, listed and then read.
struct ThreadListing {
    /// Thread IDs in ascending order.
    tids: Vec<Tid>,
    /// The threads in the same order.
    tasks: Vec<Task>,
}

impl ThreadListing {
    fn of(host: &dyn Host, pid: Tid) -> Result<Self, VmError> {
        let tids = numbers(host, pid)?;
        let tasks = tasks(host, pid, &tids)?;
        Ok(Self { tids, tasks })
    }
}

/// One reading of the threads of a process.
struct ThreadReading<T> {
    /// The listed thread IDs, ascending.
    tids: Vec<Tid>,
    value: T,
    /// False if the list lacks threads that must exist.
    complete: bool,
}

/// Lists and reads the threads of a process.
type ReadThreads<'l, T> = dyn FnMut() -> Result<ThreadReading<T>, VmError> + 'l;

/// The last reading.
struct StableReading<T> {
    value: T,
    /// See [`Found::roll`].
    roll: Option<ThreadList>,
    /// False if the list still changed after [`ROUNDS`].
    settled: bool,
}

/// Reads until the list is complete and unchanged after the reading.
fn settle<T>(
    host: &dyn Host,
    pid: Tid,
    look: &mut ReadThreads<'_, T>,
) -> Result<StableReading<T>, VmError> {
    let mut round = 1;
    loop {
        let thread_set = ThreadSet::of(host, pid);
        let before = match thread_set {
            Some(thread_set) => thread_set.threads(),
            None => numbers(host, pid)?.len(),
        };
        let ThreadReading { tids, value, complete } = look()?;
        let counted = complete && tids.len() == before;
        match thread_set {
            Some(thread_set) if counted && ThreadSet::of(host, pid) == Some(thread_set) => {
                return Ok(StableReading {
                    value,
                    roll: Some(ThreadList { thread_set, tids }),
                    settled: true,
                });
            }
            Some(_) | None => {}
        }
        let settled = counted && numbers(host, pid)? == tids;
        if settled || round == ROUNDS {
            return Ok(StableReading { value, roll: None, settled });
        }
        round += 1;
    }
}

fn unrest(pid: Tid) -> Finding {
    Finding::warning(
        "roles",
        format!(
            "the threads of process {pid} changed during each of {ROUNDS} readings, so one may be missing"
        ),
    )
}

fn one_thread(vcpus: u32) -> Finding {
    Finding::problem("vCPUs", VmError::OneThread { vcpus }.to_string())
        .with_hint("start QEMU with -accel tcg,thread=multi, or use KVM")
}

/// With a single vCPU the thread numbers do not show whether it shares a loop; the thread name or
/// the command line does.
fn one_vcpu_in_shared_loop(host: &dyn Host, pid: Tid, tasks: &[Task]) -> bool {
    if tasks.iter().any(|task| names::is_shared_loop(&task.name)) {
        return true;
    }
    command_line(host, pid)
        .is_ok_and(|words| argv::parse(&words).translator() == Accelerator::TcgSingle)
}

/// Numbers the vhost workers in the order of their threads, inside and outside the process.
fn number_vhosts(threads: &mut [VmThread]) {
    threads.sort_by_key(|thread| thread.task);
    let mut next = 0;
    for thread in threads {
        if let Role::Vhost(number) = &mut thread.role {
            *number = next;
            next += 1;
        }
    }
}

#[cfg(test)]
mod tests;
