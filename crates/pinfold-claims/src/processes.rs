//! The processes of a host and their threads, as far as owners of CPUs are found by them.

use pinfold_host::{Host, paths, proc_status};
use pinfold_model::{CpuSet, Tid};

/// A process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its PID.
    pub pid: Tid,
    /// File name of its program: of the executable file if this process may see it, else of the
    /// first argument.
    pub program: String,
    /// Its arguments.
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
    let mut found = Vec::new();
    for pid in pids.into_iter().map(Tid) {
        // One that may not be read, or has ended, hides no other.
        let Ok(bytes) = host.read(&paths::process_file(pid, "cmdline")) else { continue };
        let text = String::from_utf8_lossy(&bytes);
        let arguments: Vec<String> = text.split_terminator('\0').map(str::to_owned).collect();
        let Some(first) = arguments.first() else { continue };
        let path = host.link(&paths::process_file(pid, "exe")).unwrap_or_else(|_| first.clone());
        let path = path.trim_end_matches(" (deleted)");
        let program = path.rsplit('/').next().unwrap_or(path).to_owned();
        found.push(Process { pid, program, arguments });
    }
    found
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

    /// The value of an option, as `--option VALUE`, `--option=VALUE` or, for one letter, `-oVALUE`.
    #[must_use]
    pub fn option(&self, name: &str) -> Option<&str> {
        let mut arguments = self.arguments.iter().skip(1);
        while let Some(argument) = arguments.next() {
            if argument == "--" {
                return None;
            }
            let Some(rest) = argument.strip_prefix(name) else { continue };
            if rest.is_empty() {
                return arguments.next().map(String::as_str);
            }
            if let Some(value) = rest.strip_prefix('=') {
                return Some(value);
            }
            if !name.starts_with("--") {
                return Some(rest);
            }
        }
        None
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
