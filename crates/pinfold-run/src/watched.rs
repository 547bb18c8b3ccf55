//! Which placements `pinfold watch` monitors, in a file next to its lock: `status` reads it.
//!
//! ```text
//! 812 9912
//! 700-9001
//! 701-9044
//! ```
//! The first line is the process and its start time, each other one the ID of a placement. After a
//! kill the file stays; it then names a process that has ended.

use std::collections::BTreeSet;

use pinfold_host::files::StateDir;
use pinfold_host::{Host, HostError, paths, proc_stat, process};
use pinfold_model::{TaskId, Tid};

const NAME: &str = "watched";

/// The file while this process watches; it is removed at the end.
pub struct WatchedFile<'s> {
    state: &'s StateDir,
    process: TaskId,
    written: Option<BTreeSet<String>>,
}

impl<'s> WatchedFile<'s> {
    /// Writes nothing yet.
    ///
    /// # Errors
    /// [`HostError`] if the host does not show this process.
    pub fn new(host: &dyn Host, state: &'s StateDir) -> Result<Self, HostError> {
        let own = proc_stat::at(host, &paths::own_stat())?;
        let process = own.map_or(TaskId { tid: process::own_pid(), start_time: 0 }, |it| it.task());
        Ok(Self { state, process, written: None })
    }

    /// Writes the IDs of the monitored placements, if they are others than before.
    ///
    /// # Errors
    /// [`HostError`] if the file cannot be written; it is tried again at the next change.
    pub fn update(&mut self, ids: BTreeSet<String>) -> Result<(), HostError> {
        if self.written.as_ref() == Some(&ids) {
            return Ok(());
        }
        let mut text = format!("{} {}\n", self.process.tid, self.process.start_time);
        ids.iter().for_each(|id| text.extend([id, "\n"]));
        self.written = Some(ids);
        self.state.replace(NAME, text.as_bytes())
    }
}

impl Drop for WatchedFile<'_> {
    fn drop(&mut self) {
        if self.written.is_some() {
            // Without it, a later reader finds that the process has ended.
            match self.state.remove(NAME) {
                Ok(()) | Err(_) => {}
            }
        }
    }
}

/// The running watcher of this state directory and the placements that it monitors, if there is
/// one. A file that cannot be understood is none.
///
/// # Errors
/// [`HostError`] if the host cannot be read.
pub fn read(
    host: &dyn Host,
    state: &StateDir,
) -> Result<Option<(Tid, BTreeSet<String>)>, HostError> {
    if !state.contains(NAME) {
        return Ok(None);
    }
    let Ok(bytes) = state.read(NAME) else { return Ok(None) };
    let text = String::from_utf8_lossy(&bytes);
    let mut lines = text.lines();
    let process = lines.next().and_then(|line| line.split_once(' '));
    let Some((Ok(tid), Ok(start_time))) = process.map(|(tid, start)| (tid.parse(), start.parse()))
    else {
        return Ok(None);
    };
    let tid = Tid(tid);
    let is_alive = process::task_alive(host, TaskId { tid, start_time })?;
    Ok(is_alive.then(|| (tid, lines.map(str::to_owned).collect())))
}

#[cfg(test)]
mod tests {
    use pinfold_host::LiveHost;

    use super::*;

    #[test]
    fn it_names_what_a_living_process_watches() {
        let host = LiveHost::new().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let state = StateDir::open(&folder.path().join("state").to_string_lossy()).unwrap();
        assert_eq!(read(&host, &state).unwrap(), None);
        let ids: BTreeSet<String> = ["7-1", "8-2"].map(str::to_owned).into();
        {
            let mut file = WatchedFile::new(&host, &state).unwrap();
            file.update(ids.clone()).unwrap();
            assert_eq!(read(&host, &state).unwrap(), Some((process::own_pid(), ids)));
            file.update(BTreeSet::new()).unwrap();
            assert_eq!(read(&host, &state).unwrap(), Some((process::own_pid(), BTreeSet::new())));
        }
        assert_eq!(read(&host, &state).unwrap(), None, "it is removed at the end");
        for text in ["", "7", "x y", "1 1\n7-1\n", "4294967295 1\n7-1\n"] {
            state.replace(NAME, text.as_bytes()).unwrap();
            assert_eq!(read(&host, &state).unwrap(), None, "{text:?}");
        }
    }
}
