//! The process of a virtual machine in `/proc`, and the kernel threads that serve it.
//!
//! One read of `/proc/PID/task/TID/stat` gives a thread's name, start time and flags. Also read are
//! the command line (NUL between words), the link to the program, and the descriptors, which show
//! whether such kernel threads may exist. Kernel doc:
//! <https://docs.kernel.org/filesystems/proc.html>.

use pinfold_host::proc_stat::ProcStat;
use pinfold_host::proc_status::ProcStatus;
use pinfold_host::{Host, HostError, paths, proc_stat, proc_status};
use pinfold_model::{Role, TaskId, Tid};

use super::VmThread;
use crate::VmError;

/// PID of the parent of all kernel threads, in the host's PID namespace.
const KTHREADD: Tid = Tid(2);

/// One thread as the kernel shows it.
pub(super) struct Task {
    pub(super) id: TaskId,
    pub(super) name: String,
    is_kernel_thread: bool,
}

impl Task {
    /// The thread with its role; the first thread of the process is always the main loop.
    pub(super) fn with_role(self, pid: Tid, role: Role) -> VmThread {
        let role = if self.id.tid == pid { Role::Emulator } else { role };
        VmThread { task: self.id, role, name: self.name }
    }
}

/// Thread numbers of a process, ascending.
pub(super) fn numbers(host: &dyn Host, pid: Tid) -> Result<Vec<Tid>, VmError> {
    let mut tids =
        numbers_in(host, &paths::task_dir(pid)).map_err(|error| fail_gone(error, pid))?;
    tids.sort_unstable();
    if tids.is_empty() { Err(VmError::NoProcess { pid }) } else { Ok(tids) }
}

/// Reads these threads of a process; one that ends meanwhile is skipped.
pub(super) fn tasks(host: &dyn Host, pid: Tid, tids: &[Tid]) -> Result<Vec<Task>, VmError> {
    let stats = proc_stat::of_threads(host, pid, tids)?;
    let tasks: Vec<Task> = stats.into_iter().map(Task::from).collect();
    if tasks.is_empty() { Err(VmError::NoProcess { pid }) } else { Ok(tasks) }
}

/// The first thread of the process that a thread belongs to.
pub(crate) fn leader_of(host: &dyn Host, tid: Tid) -> Result<Tid, VmError> {
    Ok(status_of(host, tid)?.tgid)
}

/// The user ID of a process.
pub(super) fn owner_of(host: &dyn Host, pid: Tid) -> Result<u32, VmError> {
    Ok(status_of(host, pid)?.uid)
}

fn status_of(host: &dyn Host, tid: Tid) -> Result<ProcStatus, VmError> {
    let path = paths::process_status(tid);
    let text = host.read_text(&path).map_err(|error| fail_gone(error, tid))?;
    Ok(proc_status::parse(&text).map_err(|error| error.at(&path))?)
}

/// File name of a process's program: of its executable if that is readable (a program that was
/// upgraded meanwhile is shown as ` (deleted)`), else the first word of its command line, else its
/// name.
pub(super) fn program_of(host: &dyn Host, pid: Tid) -> Result<String, VmError> {
    if let Ok(target) = host.link(&paths::process_file(pid, "exe")) {
        return Ok(file_name(target.strip_suffix(" (deleted)").unwrap_or(&target)));
    }
    match command_line(host, pid)?.first() {
        Some(program) => Ok(file_name(program)),
        None => {
            let name =
                host.read_text(&paths::process_comm(pid)).map_err(|error| fail_gone(error, pid))?;
            Ok(name.trim_end().to_owned())
        }
    }
}

fn file_name(path: &str) -> String {
    path.rsplit('/').next().unwrap_or(path).to_owned()
}

/// Words of a process's command line; empty for a kernel thread.
pub(crate) fn command_line(host: &dyn Host, pid: Tid) -> Result<Vec<String>, VmError> {
    let bytes = host.read(&paths::process_cmdline(pid)).map_err(|error| fail_gone(error, pid))?;
    let text = String::from_utf8_lossy(&bytes);
    // Each word ends with NUL; a word may be empty, so only the last NUL is dropped.
    let Some(words) = text.strip_suffix('\0') else {
        return Ok(if text.is_empty() { Vec::new() } else { vec![text.into_owned()] });
    };
    Ok(words.split('\0').map(str::to_owned).collect())
}

/// The UUID on the command line of a process of QEMU; `None` if it has none or has ended.
pub fn uuid(host: &dyn Host, pid: Tid) -> Option<String> {
    let words = command_line(host, pid).ok()?;
    pinfold_qemu::parse(&words).uuid().map(str::to_owned)
}

/// Kernel threads that serve the process from outside: `vhost-N`, where N is any thread of the
/// process, and `kvm-pit/PID`. They are searched only if a descriptor of the process shows that
/// there may be some, and only among those created after it: a large host has thousands.
pub(super) fn kernel_threads(
    host: &dyn Host,
    pid: Tid,
    descriptors: Option<Descriptors>,
    own: &[VmThread],
) -> Result<Vec<VmThread>, VmError> {
    let mut found = Vec::new();
    // If the descriptors are not readable, there may be such threads.
    if descriptors.is_some_and(|held| !held.kvm && !held.vhost) {
        return Ok(found);
    }
    let born = own.iter().map(|thread| thread.task.start_time).min().unwrap_or(0);
    let candidates = kernel_thread_numbers(host)?;
    for tid in candidates.newest_first {
        let Some(task) = task_at(host, &paths::process_stat(tid))? else {
            continue;
        };
        if task.id.start_time < born && candidates.in_order_of_birth {
            break;
        }
        if !task.is_kernel_thread || own.iter().any(|thread| thread.task == task.id) {
            continue;
        }
        if owner(&task, "vhost-").is_some_and(|tid| own.iter().any(|thread| thread.task.tid == tid))
        {
            found.push(task.with_role(pid, Role::Vhost(0)));
        } else if owner(&task, "kvm-pit/") == Some(pid) {
            found.push(task.with_role(pid, Role::Emulator));
        }
    }
    Ok(found)
}

fn owner(task: &Task, prefix: &str) -> Option<Tid> {
    parse_number(&task.name, prefix).map(Tid)
}

/// Role of a thread inside the process that the kernel created and named: `vhost-PID` (from Linux
/// 6.4 on), `iou-wrk-TID`, `iou-sqp-TID`. The vhost workers are numbered later.
pub(super) fn role_by_kernel_name(name: &str) -> Option<Role> {
    if name.starts_with("iou-wrk-") || name.starts_with("iou-sqp-") {
        return Some(Role::Worker);
    }
    parse_number(name, "vhost-").map(|_| Role::Vhost(0))
}

/// The number after a prefix: in `vhost-PID` and `kvm-pit/PID` that of the owner.
fn parse_number(name: &str, prefix: &str) -> Option<u32> {
    name.strip_prefix(prefix)?.parse().ok()
}

/// Descriptors of a process that imply kernel threads.
#[derive(Clone, Copy)]
pub(super) struct Descriptors {
    /// True if it holds a KVM virtual machine.
    pub(super) kvm: bool,
    /// True if it holds a vhost device.
    pub(super) vhost: bool,
}

impl Descriptors {
    /// Reads the descriptors; `None` if they are not readable.
    pub(super) fn read(host: &dyn Host, pid: Tid) -> Option<Self> {
        let mut held = Self { kvm: false, vhost: false };
        for name in host.list(&paths::process_file(pid, "fd")).ok()? {
            let target = match host.link(&paths::process_file(pid, &format!("fd/{name}"))) {
                Ok(target) => target,
                // A descriptor that is closed meanwhile does not count.
                Err(error) if error.is_gone() => continue,
                // The owner may list the names, but reading the links needs CAP_SYS_PTRACE.
                Err(_) => return None,
            };
            held.kvm |= target.starts_with("anon_inode:kvm-vm");
            held.vhost |= target.starts_with("/dev/vhost-");
        }
        Some(held)
    }
}

/// IDs of kernel threads.
#[derive(Default)]
struct Candidates {
    newest_first: Vec<Tid>,
    in_order_of_birth: bool,
}

/// Kernel threads of the host; empty if process IDs are not the host's own (in a container). The
/// kernel lists kthreadd's children in the order of their creation, if it has
/// `CONFIG_PROC_CHILDREN`. Without it all of `/proc` is listed, which costs more but finds the
/// same.
fn kernel_thread_numbers(host: &dyn Host) -> Result<Candidates, VmError> {
    match task_at(host, &paths::process_stat(KTHREADD))? {
        Some(task) if task.name == "kthreadd" => {}
        Some(_) | None => return Ok(Candidates::default()),
    }
    match host.read_text(&paths::task_file(KTHREADD, KTHREADD, "children")) {
        Ok(text) => {
            let tids = text.split_ascii_whitespace().rev();
            let newest_first = tids.filter_map(|word| word.parse().ok().map(Tid)).collect();
            Ok(Candidates { newest_first, in_order_of_birth: true })
        }
        Err(_) => {
            let newest_first = numbers_in(host, &paths::proc_dir())?;
            Ok(Candidates { newest_first, in_order_of_birth: false })
        }
    }
}

/// The entries of a directory that are numbers.
pub(super) fn numbers_in(host: &dyn Host, directory: &str) -> Result<Vec<Tid>, HostError> {
    let names = host.list(directory)?;
    Ok(names.iter().filter_map(|name| name.parse().ok().map(Tid)).collect())
}

/// The task of a `stat` file, if it still exists.
fn task_at(host: &dyn Host, path: &str) -> Result<Option<Task>, VmError> {
    Ok(proc_stat::at(host, path)?.map(Task::from))
}

impl From<ProcStat> for Task {
    fn from(stat: ProcStat) -> Self {
        let is_kernel_thread = stat.is_kernel_thread();
        Task { id: stat.task(), name: stat.comm, is_kernel_thread }
    }
}

fn fail_gone(error: HostError, pid: Tid) -> VmError {
    if error.is_gone() { VmError::NoProcess { pid } } else { error.into() }
}
