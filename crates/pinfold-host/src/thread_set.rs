//! Detects changes of a process's threads without listing them.
//!
//! On a large machine, listing the threads takes the kernel a hundred times as long as reading the
//! two numbers here. Every new task gets a PID in its PID namespace and in all namespaces around
//! it. While the newest PID is unchanged, threads can only have exited, and the thread count shows
//! that. <https://docs.kernel.org/admin-guide/sysctl/kernel.html#ns-last-pid>

use pinfold_model::Tid;

use crate::{Host, paths};

/// A fingerprint of a process's threads: equal values mean the same threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadSet {
    /// PID of the newest task in this PID namespace.
    newest: u32,
    /// Hard links of the process's `task` directory: 2, plus 1 per thread.
    links: u64,
}

/// The threads of a process, ascending, as listed between two equal fingerprints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadList {
    /// The fingerprint.
    pub thread_set: ThreadSet,
    /// The TIDs.
    pub tids: Vec<Tid>,
}

impl ThreadSet {
    /// Reads the fingerprint; call it before the threads are listed. `None` if the process has
    /// ended, or if the kernel does not report the newest PID (without
    /// `CONFIG_CHECKPOINT_RESTORE`).
    pub fn read(host: &dyn Host, pid: Tid) -> Option<Self> {
        let newest = host.read_text(&paths::sysctl_kernel("ns_last_pid")).ok()?;
        let links = host.link_count(&paths::task_dir(pid)).ok()?;
        Some(Self { newest: newest.trim().parse().ok()?, links })
    }

    /// Number of threads of the process.
    #[must_use]
    pub fn threads(self) -> usize {
        usize::try_from(self.links.saturating_sub(2)).unwrap_or(usize::MAX)
    }
}
