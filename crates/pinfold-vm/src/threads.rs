//! Determines the role of each thread of a virtual machine.
//!
//! The monitor is queried first: it reports the threads of vCPUs and iothreads by number. Names
//! classify only the remaining threads. Without a monitor the roles depend on names alone, and a
//! finding says so.
//!
//! The threads are counted before the queries, listed and read while QEMU prepares its replies, and
//! listed again afterwards, until all agree (or until a [`ThreadSet`] taken before equals one taken
//! after). Threads are created at any time (hotplug, worker pools), and a monitor's reply is
//! useless if the list has changed meanwhile.
//!
//! Kernel threads that serve the machine from outside its process are found by name: `vhost-PID`
//! (Linux before 6.4, or with `fork_owner=0`) and `kvm-pit/PID`. Other processes that serve its
//! devices (virtiofsd, swtpm) are found by the sockets that they share with it.

mod back_ends;
mod process;

use std::collections::BTreeMap;

use pinfold_host::process::own_uid;
use pinfold_host::{Host, ThreadList, ThreadSet};
use pinfold_model::{Accelerator, Finding, Role, TaskId, Tid};

use self::back_ends::back_ends;
pub use self::process::uuid;
use self::process::{
    Descriptors, Task, kernel_threads, numbers, owner_of, program_of, role_by_kernel_name, tasks,
};
pub(crate) use self::process::{command_line, leader_of};
use crate::hypervisor::{Hypervisor, Monitor, VmInfo};
use crate::{VmError, hypervisors};

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
pub struct DiscoveredVm {
    /// Process ID of the hypervisor.
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

impl DiscoveredVm {
    /// The indexes of the present vCPUs, ascending. There is a gap where a vCPU was plugged into a
    /// later slot.
    pub fn vcpu_ids(&self) -> Vec<u32> {
        let ids: Vec<u32> = self.threads.iter().filter_map(|thread| thread.role.vcpu()).collect();
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

/// Finds the role of each thread of the virtual machine behind a monitor.
///
/// A guest may have compromised its hypervisor, so the replies are not trusted. If the hypervisor
/// itself is at the other end, it is believed about its own threads only. If another process is at
/// the other end, the first vCPU's thread identifies the hypervisor's process, whose user must be
/// one that the peer may represent.
///
/// # Errors
/// As [`discover`]; [`VmError::ForeignOwner`].
pub fn find(host: &dyn Host, monitor: &mut dyn Monitor) -> Result<DiscoveredVm, VmError> {
    match monitor.peer() {
        Some(pid) if require(host, pid, monitor.hypervisor()).is_ok() => {
            discover(host, pid, Some(monitor))
        }
        // The socket was created by another process (libvirt, systemd, a proxy), or by one that has
        // ended or is not visible from here.
        Some(_) | None => find_by_vcpu(host, monitor),
    }
}

/// Uses the process of the first vCPU's thread, if it is a hypervisor's that the peer's user may
/// represent.
fn find_by_vcpu(host: &dyn Host, monitor: &mut dyn Monitor) -> Result<DiscoveredVm, VmError> {
    let first = monitor.cpus()?.first().ok_or(VmError::NoVcpus)?.thread;
    let pid = leader_of(host, first)?;
    require(host, pid, monitor.hypervisor())?;
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
/// ```
/// use pinfold_model::{Role, Tid};
/// use pinfold_sim::{CgroupVersion, SimBuilder, SimTask};
///
/// let host = SimBuilder::new(CgroupVersion::V2, 4)
///     .task(SimTask::new(200, "qemu-system-x86_64"))
///     .task(SimTask::new(201, "CPU 0/KVM").thread_of(200))
///     .build();
/// let found = pinfold_vm::discover(&host, Tid(200), None)?;
/// assert_eq!(found.vcpus, 1);
/// assert_eq!(found.threads[0].role, Role::Vcpu(0));
/// # Ok::<(), pinfold_vm::VmError>(())
/// ```
///
/// # Errors
/// [`VmError::NoProcess`], [`VmError::NotHypervisor`] (checked only without a monitor),
/// [`VmError::ForeignThread`] if monitor and process do not belong together, [`VmError::NoVcpus`],
/// [`VmError::Nameless`], or an error of the monitor or the host.
pub fn discover(
    host: &dyn Host,
    pid: Tid,
    monitor: Option<&mut dyn Monitor>,
) -> Result<DiscoveredVm, VmError> {
    let (hypervisor, (mut found, descriptors)) = match monitor {
        Some(monitor) => (monitor.hypervisor(), by_monitor(host, pid, monitor)?),
        None => {
            let pid = leader_of(host, pid)?;
            let hypervisor = hypervisor_of(host, pid)?;
            let found = by_names(host, pid, hypervisor)?;
            (hypervisor, (found, Descriptors::read(host, pid)))
        }
    };
    let outside = kernel_threads(host, found.pid, descriptors, &found.threads)?;
    found.threads.extend(outside);
    number_vhosts(&mut found.threads);
    if let Ok(words) = command_line(host, pid) {
        found.threads.extend(back_ends(host, found.pid, &words)?);
        let spec = hypervisor.parse(&words).spec();
        found.max_vcpus = found.vcpus.max(spec.max_vcpus.unwrap_or(0));
    }
    found.threads.sort_by(|a, b| (&a.role, a.task).cmp(&(&b.role, b.task)));
    Ok(found)
}

/// The hypervisor that a process runs.
///
/// # Errors
/// [`VmError::NoProcess`] or [`VmError::NotHypervisor`].
pub fn hypervisor_of(host: &dyn Host, pid: Tid) -> Result<&'static dyn Hypervisor, VmError> {
    let program = program_of(host, pid)?;
    hypervisors::find_by_program(&program).ok_or_else(|| {
        let expected = hypervisors::names_of_running();
        VmError::NotHypervisor { pid, expected, program }
    })
}

/// Checks that a process runs this hypervisor.
fn require(host: &dyn Host, pid: Tid, hypervisor: &dyn Hypervisor) -> Result<(), VmError> {
    let program = program_of(host, pid)?;
    if hypervisor.is_program(&program) {
        Ok(())
    } else {
        let expected = hypervisor.display_strings().name.to_owned();
        Err(VmError::NotHypervisor { pid, expected, program })
    }
}

/// The accelerator of a hypervisor's process, determined without its monitor and without thread
/// names: by whether the process holds a KVM virtual machine, and by its command line. `None` if
/// its descriptors are not readable and its command line does not determine it.
///
/// # Errors
/// As [`hypervisor_of`].
pub fn accelerator_of(host: &dyn Host, pid: Tid) -> Result<Option<Accelerator>, VmError> {
    let hypervisor = hypervisor_of(host, pid)?;
    let spec = hypervisor.parse(&command_line(host, pid)?).spec();
    Ok(match Descriptors::read(host, pid) {
        Some(held) if held.kvm => Some(Accelerator::Kvm),
        Some(_) => Some(spec.without_kvm),
        None => spec.accelerator,
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
) -> Result<(DiscoveredVm, Option<Descriptors>), VmError> {
    let mut findings = Vec::new();
    let mut descriptors = None;
    let StableReading { value: (reported, tasks), roll, settled } =
        read_until_stable(host, pid, &mut || {
            let mut read = Err(VmError::NoProcess { pid });
            let reported = monitor.query_vm(&mut || {
                read = ThreadListing::read(host, pid);
                descriptors = descriptors.or_else(|| Descriptors::read(host, pid));
            })?;
            if reported.cpus.is_empty() {
                return Err(VmError::NoVcpus);
            }
            let ThreadListing { tids, tasks } = read?;
            let complete = reported.tids().all(|tid| tids.binary_search(&tid).is_ok());
            Ok(ThreadReading { tids, value: (reported, tasks), complete })
        })?;
    if let Some(tid) = reported.tids().find(|tid| is_missing(&tasks, tid)) {
        let texts = monitor.hypervisor().display_strings();
        return Err(VmError::ForeignThread { texts, pid, tid });
    }
    findings.extend((!settled).then(|| unstable_threads_finding(pid)));
    let vcpus = u32::try_from(reported.cpus.len()).unwrap_or(u32::MAX);
    let kvm = match descriptors {
        Some(descriptors) => descriptors.kvm,
        None => monitor.kvm_enabled()?,
    };
    let accelerator = if kvm {
        Accelerator::Kvm
    } else if reported.share_one_thread()
        || (vcpus == 1 && one_vcpu_in_shared_loop(host, pid, monitor.hypervisor(), &tasks))
    {
        Accelerator::TcgSingle
    } else {
        Accelerator::TcgMulti
    };
    if accelerator == Accelerator::TcgSingle && vcpus > 1 {
        findings.push(one_thread(vcpus));
    }
    let (known, hypervisor) = (reported.roles(), monitor.hypervisor());
    let threads = tasks.into_iter().map(|task| {
        let role = known.get(&task.id.tid).cloned();
        let role = role.unwrap_or_else(|| role_of_rest(hypervisor, &task.name));
        task.with_role(pid, role)
    });
    let threads = threads.collect();
    let accelerator = Some(accelerator);
    Ok((
        DiscoveredVm { pid, threads, accelerator, vcpus, max_vcpus: vcpus, findings, roll },
        descriptors,
    ))
}

fn is_missing(tasks: &[Task], tid: &Tid) -> bool {
    tasks.binary_search_by_key(tid, |task| task.id.tid).is_err()
}

/// Role of a thread by its name alone; vhost workers are numbered later.
fn role_by_name(hypervisor: &dyn Hypervisor, name: &str) -> Role {
    role_by_kernel_name(name).unwrap_or_else(|| hypervisor.role_of(name))
}

/// Role of a thread that the monitor does not report. A name of a vCPU or an iothread is ignored,
/// because the monitor would have reported the thread.
fn role_of_rest(hypervisor: &dyn Hypervisor, name: &str) -> Role {
    let role = role_by_name(hypervisor, name);
    if role.kind().is_reported { Role::Emulator } else { role }
}

fn by_names(
    host: &dyn Host,
    pid: Tid,
    hypervisor: &'static dyn Hypervisor,
) -> Result<DiscoveredVm, VmError> {
    let texts = hypervisor.display_strings();
    let text = format!(
        "the threads of process {pid} were identified only by their names, which {} does not \
         guarantee",
        texts.name
    );
    let mut finding = Finding::warning("roles", text);
    if !texts.selectors.is_empty() {
        finding = finding.with_hint(format!("name {} instead of the process", texts.selectors));
    }
    let mut findings = vec![finding];
    let StableReading { value: tasks, roll, settled } = read_until_stable(host, pid, &mut || {
        let ThreadListing { tids, tasks } = ThreadListing::read(host, pid)?;
        Ok(ThreadReading { tids, value: tasks, complete: true })
    })?;
    findings.extend((!settled).then(|| unstable_threads_finding(pid)));
    let accelerator = accelerator_by_names(hypervisor, &tasks);
    let threads: Vec<VmThread> = tasks
        .into_iter()
        .map(|task| {
            let role = role_by_name(hypervisor, &task.name);
            task.with_role(pid, role)
        })
        .collect();
    let seen = threads.iter().filter(|thread| thread.role.is_vcpu()).count();
    if seen == 0 {
        return Err(VmError::Nameless { pid, texts });
    }
    let mut vcpus = u32::try_from(seen).unwrap_or(u32::MAX);
    if accelerator == Some(Accelerator::TcgSingle) {
        vcpus = hypervisor.parse(&command_line(host, pid)?).spec().vcpus.unwrap_or(1);
        findings.extend((vcpus > 1).then(|| one_thread(vcpus)));
    }
    Ok(DiscoveredVm { pid, threads, accelerator, vcpus, max_vcpus: vcpus, findings, roll })
}

/// The threads of a process, listed and then read.
struct ThreadListing {
    /// Thread IDs in ascending order.
    tids: Vec<Tid>,
    /// The threads in the same order.
    tasks: Vec<Task>,
}

impl ThreadListing {
    fn read(host: &dyn Host, pid: Tid) -> Result<Self, VmError> {
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
    /// See [`DiscoveredVm::roll`].
    roll: Option<ThreadList>,
    /// False if the list still changed after [`ROUNDS`].
    settled: bool,
}

/// Reads until the list is complete and unchanged after the reading.
fn read_until_stable<T>(
    host: &dyn Host,
    pid: Tid,
    look: &mut ReadThreads<'_, T>,
) -> Result<StableReading<T>, VmError> {
    let mut round = 1;
    loop {
        let thread_set = ThreadSet::read(host, pid);
        let before = match thread_set {
            Some(thread_set) => thread_set.threads(),
            None => numbers(host, pid)?.len(),
        };
        let ThreadReading { tids, value, complete } = look()?;
        let counted = complete && tids.len() == before;
        match thread_set {
            Some(thread_set) if counted && ThreadSet::read(host, pid) == Some(thread_set) => {
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

fn unstable_threads_finding(pid: Tid) -> Finding {
    Finding::warning(
        "roles",
        format!(
            "the threads of process {pid} changed during each of {ROUNDS} reads, so one may be \
             missing"
        ),
    )
}

fn one_thread(vcpus: u32) -> Finding {
    Finding::problem("vCPUs", VmError::OneThread { vcpus }.to_string())
        .with_hint("start QEMU with -accel tcg,thread=multi, or use KVM")
}

/// The accelerator that the names of a machine's threads show.
fn accelerator_by_names(hypervisor: &dyn Hypervisor, tasks: &[Task]) -> Option<Accelerator> {
    let mut all = tasks.iter().filter_map(|task| hypervisor.accelerator_of(&task.name));
    let single = all.clone().find(|accelerator| *accelerator == Accelerator::TcgSingle);
    single.or_else(|| all.next_back())
}

/// With a single vCPU the thread numbers do not show whether it shares a loop; the thread name or
/// the command line does.
fn one_vcpu_in_shared_loop(
    host: &dyn Host,
    pid: Tid,
    hypervisor: &dyn Hypervisor,
    tasks: &[Task],
) -> bool {
    if accelerator_by_names(hypervisor, tasks) == Some(Accelerator::TcgSingle) {
        return true;
    }
    command_line(host, pid)
        .is_ok_and(|words| hypervisor.parse(&words).spec().without_kvm == Accelerator::TcgSingle)
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
