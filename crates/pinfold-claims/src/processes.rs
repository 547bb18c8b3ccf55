//! The processes of a host and their threads, as far as owners of CPUs are found by them.
//!
//! The kernel copies `cmdline` out of the memory of a process, and for that waits for the lock of
//! its address space: without limit if the process hangs in a page fault. So a process is
//! identified by its executable file and its name, which need no lock, and the arguments are read
//! only of programs that may own CPUs.

use pinfold_host::{Host, paths, proc_stat, proc_status};
use pinfold_model::{CpuSet, Tid};

use crate::programs::{self, may_own_cpus};

/// A process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its PID.
    pub pid: Tid,
    /// File name of its program: of the executable file if this process may see it, else its name
    /// or that of the first argument.
    pub program: String,
    /// Its arguments; empty if the program cannot be an owner of CPUs.
    pub arguments: Vec<String>,
}

/// A thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Thread {
    /// Its TID.
    pub tid: Tid,
    /// Its name.
    pub name: String,
    /// Its affinity mask within its cpuset.
    pub cpus: CpuSet,
}

/// The processes that this process may see, without kernel threads. One that ends meanwhile is left
/// out.
pub(crate) fn read(host: &dyn Host) -> Vec<Process> {
    let folder = paths::proc_dir();
    let names = host.list(&folder).unwrap_or_default();
    let mut pids: Vec<u32> = names.iter().filter_map(|name| name.parse().ok()).collect();
    // The parent of a program that hands its arguments on comes first.
    pids.sort_unstable();
    pids.into_iter().map(Tid).filter_map(|pid| read_one(host, pid)).collect()
}

/// A process; `None` for a kernel thread, for one that has ended and for one that may not be read.
fn read_one(host: &dyn Host, pid: Tid) -> Option<Process> {
    let (name, is_whole) = match host.link(&paths::process_file(pid, "exe")) {
        Ok(path) => (Some(file_name(path.trim_end_matches(" (deleted)")).to_owned()), true),
        Err(_) => match proc_stat::read(host, pid) {
            // One that has ended is listed until its parent has asked for its status.
            Ok(Some(stat)) if stat.is_kernel_thread() || stat.has_ended() => return None,
            Ok(Some(stat)) => (Some(stat.comm), false),
            Ok(None) | Err(_) => (None, false),
        },
    };
    let is_candidate = match &name {
        Some(name) => may_own_cpus(name) || has_huge_pages(host, pid),
        // A capture may have the arguments only. On a live host, the process has ended.
        None => !host.is_live(),
    };
    let arguments = if is_candidate { arguments(host, pid) } else { Vec::new() };
    // The kernel cuts the name of a process, but not its arguments.
    let whole = arguments
        .first()
        .map(|first| file_name(first))
        .filter(|first| !is_whole && name.as_deref().is_none_or(|name| first.starts_with(name)));
    let program = whole.map(str::to_owned).or(name)?;
    Some(Process { pid, program, arguments })
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// True if a process has mapped huge pages, as each program with DPDK does, whatever its name.
fn has_huge_pages(host: &dyn Host, pid: Tid) -> bool {
    let text = host.read_text(&paths::process_status(pid)).unwrap_or_default();
    proc_status::field(&text, "HugetlbPages").is_some_and(|amount| !amount.starts_with('0'))
}

/// The arguments of a process; none of one that has ended, or of a kernel thread.
pub(crate) fn arguments(host: &dyn Host, pid: Tid) -> Vec<String> {
    let bytes = host.read(&paths::process_cmdline(pid)).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    text.split_terminator('\0').map(str::to_owned).collect()
}

impl Process {
    /// Its threads with their masks. One that ends meanwhile is left out.
    #[must_use]
    pub fn threads(&self, host: &dyn Host) -> Vec<Thread> {
        let folder = paths::task_dir(self.pid);
        let names = host.list(&folder).unwrap_or_default();
        let mut found = Vec::new();
        let read = host.read_each(&folder, &names, "status", &mut |name, bytes| {
            let text = String::from_utf8_lossy(bytes);
            let cpus = proc_status::field(&text, "Cpus_allowed_list");
            let cpus = cpus.and_then(|list| CpuSet::parse_list(list).ok());
            let comm = proc_status::field(&text, "Name").unwrap_or_default().to_owned();
            if let (Some(cpus), Ok(tid)) = (cpus, name.parse()) {
                found.push(Thread { tid: Tid(tid), name: comm, cpus });
            }
            Ok(())
        });
        // What was found before an error is still true.
        match read {
            Ok(()) | Err(_) => found,
        }
    }

    /// The value of an option, as `--option VALUE`, `--option=VALUE` or, for one letter, `-oVALUE`;
    /// the last one if there are several.
    #[must_use]
    pub fn option(&self, name: &str) -> Option<&str> {
        programs::option(&self.arguments, name)
    }

    /// True if an argument before `--` is this option.
    #[must_use]
    pub fn has_option(&self, name: &str) -> bool {
        let options = self.arguments.iter().skip(1).take_while(|argument| *argument != "--");
        options.into_iter().any(|argument| {
            argument.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('='))
        })
    }
}

#[cfg(test)]
mod tests {
    use pinfold_host::RecordingHost;

    use super::*;
    use crate::owners::tests::{claims_of, found, host};

    fn stat(pid: u32, name: &str, flags: u32) -> String {
        stat_in("S", pid, name, flags)
    }

    fn stat_in(state: &str, pid: u32, name: &str, flags: u32) -> String {
        let rest = "0 ".repeat(45);
        format!("{pid} ({name}) {state} 1 {pid} {pid} 0 -1 {flags} {rest}\n")
    }

    /// Reading `cmdline` of a process that hangs in a page fault would wait without limit.
    #[test]
    fn only_programs_that_may_own_cpus_are_asked_for_their_arguments() {
        let mut tree = host(
            8,
            &[
                ("/proc/10/stat", stat(10, "spdk_tgt", 0)),
                ("/proc/10/cmdline", "/opt/spdk_tgt\0-m\x000x10\0".to_owned()),
                ("/proc/11/stat", stat(11, "java", 0)),
                ("/proc/11/cmdline", "dpdk-testpmd\0-l\x001\0".to_owned()),
                ("/proc/12/status", "Name:\tpoll\nHugetlbPages:\t  2048 kB\n".to_owned()),
                ("/proc/12/cmdline", "poll\0-l\x006\0--file-prefix\0a\0".to_owned()),
                ("/proc/13/status", "Name:\tbash\nHugetlbPages:\t     0 kB\n".to_owned()),
                ("/proc/13/cmdline", "bash\0-l\x007\0--file-prefix\0a\0".to_owned()),
                ("/proc/14/stat", stat(14, "kvm", proc_stat::PF_KTHREAD)),
                ("/proc/14/cmdline", "kvm\0".to_owned()),
                ("/proc/15/stat", stat_in("Z", 15, "spdk_tgt", 0)),
                ("/proc/15/cmdline", "spdk_tgt\0-m\x000x20\0".to_owned()),
            ],
        );
        tree.insert_link("/proc/12/exe", "/srv/poll (deleted)");
        tree.insert_link("/proc/13/exe", "/usr/bin/bash");
        let recorded = RecordingHost::new(&tree);
        let programs: Vec<String> =
            read(&recorded).into_iter().map(|process| process.program).collect();
        assert_eq!(programs, ["spdk_tgt", "java", "poll", "bash"]);
        let paths = recorded.accesses().into_iter().map(|access| access.path);
        let lines: Vec<String> = paths.filter(|path| path.ends_with("/cmdline")).collect();
        assert_eq!(lines, ["/proc/10/cmdline", "/proc/12/cmdline"]);
        assert_eq!(found(&claims_of(&tree)), ["spdk_tgt 4 exclusive", "poll 6 exclusive"]);
    }
}
