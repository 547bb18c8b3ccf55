//! Whether the threads of a process are still those that were listed, told without a list.
//!
//! The list of a large machine's threads takes the kernel a hundred times as long as the two
//! numbers here. No task is created without a number from its PID namespace, or from one inside
//! it, and each of these also takes one from the namespaces around it; so while the
//! newest number is the same, threads can only have ended, which their count tells.
//! <https://docs.kernel.org/admin-guide/sysctl/kernel.html#ns-last-pid>

use pinfold_model::Tid;

use crate::{Host, paths};

/// The threads of a process, as far as two numbers tell them: two censuses that are equal speak of
/// the same threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadSet {
    /// Number of the newest task of this PID namespace.
    newest: u32,
    /// Links of the folder of the process's threads: 2, and 1 for each.
    links: u64,
}

/// The threads of a process, ascending, as they were listed between two equal censuses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roll {
    /// The census.
    pub thread_set: ThreadSet,
    /// Their numbers.
    pub tids: Vec<Tid>,
}

impl ThreadSet {
    /// Takes it, before the threads are listed. `None` if the process has ended, or on a kernel that
    /// does not tell the newest number (without `CONFIG_CHECKPOINT_RESTORE`).
    #[must_use]
    pub fn of(host: &dyn Host, pid: Tid) -> Option<Self> {
        let newest = host.read_text(&paths::sysctl_kernel("ns_last_pid")).ok()?;
        let links = host.link_count(&paths::task_dir(pid)).ok()?;
        Some(Self { newest: newest.trim().parse().ok()?, links })
    }

    /// How many threads the process has.
    #[must_use]
    pub fn threads(self) -> usize {
        usize::try_from(self.links.saturating_sub(2)).unwrap_or(usize::MAX)
    }
}
