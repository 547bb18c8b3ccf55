//! The machines that `run --pin-after` has started and not placed yet, a file for each in the state
//! directory: `status` reads them.
//!
//! ```text
//! 812 9912
//! 815 9920
//! 0-7
//! web
//! the guest agent answers
//! ```
//! The first line is the process of `run` and its start time, the second one the machine's, then the
//! CPUs on which it boots, its name, and the condition. After a kill the file stays; it then names a
//! process that has ended.

use pinfold_host::files::StateDir;
use pinfold_host::{Host, HostError, paths, proc_stat, process};
use pinfold_model::{CpuSet, TaskId, Tid, escape};

/// Start of the name of the file, before the PID of `run`.
const PREFIX: &str = "booting-";

/// A machine that boots before it is placed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootingMachine {
    /// Its name.
    pub name: String,
    /// Its process.
    pub process: TaskId,
    /// The CPUs on which it boots.
    pub cpus: CpuSet,
    /// The condition for which it waits, for `until …`.
    pub condition: String,
}

/// The file of a machine; it is removed at the end.
pub(crate) struct BootingFile<'s> {
    state: &'s StateDir,
    name: String,
}

impl<'s> BootingFile<'s> {
    /// Writes the file.
    ///
    /// # Errors
    /// [`HostError`] if the host does not show this process, or the file cannot be written.
    pub(crate) fn write(
        host: &dyn Host,
        state: &'s StateDir,
        machine: &BootingMachine,
    ) -> Result<Self, HostError> {
        let own = proc_stat::at(host, &paths::own_stat())?;
        let own = own.map_or(TaskId { tid: process::own_pid(), start_time: 0 }, |it| it.task());
        let BootingMachine { name, process, cpus, condition } = machine;
        let text = format!(
            "{} {}\n{} {}\n{cpus}\n{}\n{}\n",
            own.tid,
            own.start_time,
            process.tid,
            process.start_time,
            escape::short_name(name),
            escape::name(condition)
        );
        let file = Self { state, name: format!("{PREFIX}{}", own.tid) };
        state.replace(&file.name, text.as_bytes())?;
        Ok(file)
    }
}

impl Drop for BootingFile<'_> {
    fn drop(&mut self) {
        // A later reader finds that the process has ended.
        match self.state.remove(&self.name) {
            Ok(()) | Err(_) => {}
        }
    }
}

/// The machines whose `run` lives. A file that cannot be understood is left out.
///
/// # Errors
/// [`HostError`] if the host or the state directory cannot be read.
pub fn list(host: &dyn Host, state: &StateDir) -> Result<Vec<BootingMachine>, HostError> {
    let mut found = Vec::new();
    for name in state.list()? {
        if !name.starts_with(PREFIX) {
            continue;
        }
        let Ok(bytes) = state.read(&name) else { continue };
        let Some((run, machine)) = parse(&String::from_utf8_lossy(&bytes)) else { continue };
        if process::task_alive(host, run)? && process::task_alive(host, machine.process)? {
            found.push(machine);
        }
    }
    Ok(found)
}

/// True for the name of such a file whose process has ended without removing it.
pub(crate) fn is_left(host: &dyn Host, name: &str) -> bool {
    let pid = name.strip_prefix(PREFIX).and_then(|pid| pid.parse().ok()).map(Tid);
    pid.is_some_and(|pid| !host.exists(&paths::process_stat(pid)))
}

/// The process of `run`, and the machine.
fn parse(text: &str) -> Option<(TaskId, BootingMachine)> {
    let mut lines = text.lines();
    let (run, process) = (task(lines.next()?)?, task(lines.next()?)?);
    let cpus = CpuSet::parse_list(lines.next()?).ok()?;
    let (name, condition) = (lines.next()?.to_owned(), lines.next()?.to_owned());
    Some((run, BootingMachine { name, process, cpus, condition }))
}

fn task(line: &str) -> Option<TaskId> {
    let (tid, start) = line.split_once(' ')?;
    Some(TaskId { tid: Tid(tid.parse().ok()?), start_time: start.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use pinfold_host::LiveHost;

    use super::*;

    #[test]
    fn it_names_a_machine_while_its_run_lives() {
        let host = LiveHost::new().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::open(&folder.path().join("state").to_string_lossy()).unwrap();
        let process = proc_stat::at(&host, &paths::own_stat()).unwrap().unwrap().task();
        let machine = BootingMachine {
            name: "web".to_owned(),
            process,
            cpus: CpuSet::first_n(8),
            condition: "the guest agent answers".to_owned(),
        };
        assert_eq!(list(&host, &state).unwrap(), []);
        {
            let _file = BootingFile::write(&host, &state, &machine).unwrap();
            assert_eq!(list(&host, &state).unwrap(), [machine]);
            assert!(!is_left(&host, &format!("{PREFIX}{}", process.tid)));
        }
        assert_eq!(list(&host, &state).unwrap(), [], "it is removed at the end");
        assert!(is_left(&host, "booting-4294967295"));
        for text in ["", "1 1\n", "x\ny\n0\na\nb\n", "4294967295 1\n4294967295 1\n0-7\nweb\nnow\n"]
        {
            state.replace("booting-1", text.as_bytes()).unwrap();
            assert_eq!(list(&host, &state).unwrap(), [], "{text:?}");
        }
    }
}
