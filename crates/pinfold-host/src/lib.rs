//! The door to the kernel.
//!
//! Stages reach the machine through [`Host`] (reads) and [`HostMut`] (changes);
//! nothing else in Pinfold opens a kernel file, makes a scheduling system call,
//! reads a clock or starts a process. Four forms stand behind the door:
//! [`LiveHost`], [`SnapshotHost`] (a captured machine, in memory), [`SimHost`] (a tree
//! plus the kernel's rules) and [`RecordingHost`] (notes every access).
//! Only live and simulated hosts are [`HostMut`]: changing a capture does not compile.

mod bpf;
mod clock;
mod control_socket;
mod counter;
mod error;
mod event_poll;
pub mod files;
mod futex_trace;
mod kvm_exits;
mod live;
mod micro_vm;
pub mod paths;
mod proc;
pub mod process;
mod raw;
mod recording;
mod sched_trace;
mod setting_backend;
mod sim;
mod snapshot;
mod stall;
mod thread_set;
mod tracefs;

use std::borrow::Cow;

use pinfold_model::{CpuSet, KeptFile, NodeId, Policy, Setting, TaskId, Tid};

pub use clock::{Clock, SimClock, SystemClock};
pub use control_socket::ControlSocket;
pub use counter::{Counter, CounterError, CounterEvent, CounterReading, Side};
pub use error::{HostError, with_causes};
pub use event_poll::{EventWatcher, Events};
pub use futex_trace::{FutexCallSite, FutexKind, FutexReading, FutexTracer, OpenCall};
pub use kvm_exits::{
    Address, DurationStats, ExitCounter, ExitKey, ExitScope, ExitSource, ThreadExits,
};
pub use live::LiveHost;
pub use micro_vm::{MicroGuest, Ran, Work};
pub use proc::{
    ProcError, maps, mountinfo, numa_maps, proc_cgroup, proc_stat, proc_status, schedstat,
};
pub use recording::{Access, Operation, RecordingHost};
pub use sched_trace::{
    BUCKETS as WAIT_BUCKETS, Runner, SchedAccount, SchedReading, SchedTracer, Slice, WorstWait,
};
pub use setting_backend::{SettingBackend, Systemd};
pub use sim::{CgroupVersion, Knob, SimBuilder, SimHost, SimPages, SimTask};
pub use snapshot::{SnapshotHost, TreeError};
pub use stall::{Stall, StallAccount, StallConfig};
pub use thread_set::{Roll, ThreadSet};
pub use tracefs::{Field, Format, Tracefs};

/// Takes what was read of a name.
pub type EachFile<'e> = dyn FnMut(&str, &[u8]) -> Result<(), HostError> + 'e;

/// Reading a host. Paths are absolute, as the kernel names them.
pub trait Host {
    /// The whole content of a file.
    ///
    /// # Errors
    /// [`HostError`] with path and errno.
    fn read(&self, path: &str) -> Result<Vec<u8>, HostError>;

    /// Names of a directory's entries, sorted.
    ///
    /// # Errors
    /// [`HostError`] with path and errno.
    fn list(&self, path: &str) -> Result<Vec<String>, HostError>;

    /// Target of a symbolic link, as written.
    ///
    /// # Errors
    /// [`HostError`] with path and errno.
    fn link(&self, path: &str) -> Result<String, HostError>;

    /// True if the path exists.
    fn exists(&self, path: &str) -> bool;

    /// Hard-link count of a directory. That of `/proc/PID/task` is 2 plus the number of
    /// threads, which makes it the cheapest way to notice a birth.
    ///
    /// # Errors
    /// [`HostError`] with path and errno.
    fn link_count(&self, path: &str) -> Result<u64, HostError>;

    /// Affinity mask of a thread (`sched_getaffinity(2)`).
    ///
    /// # Errors
    /// [`HostError`], `ESRCH` if the thread is gone.
    fn affinity(&self, tid: Tid) -> Result<CpuSet, HostError>;

    /// Scheduling policy of a thread (`sched_getattr(2)`).
    ///
    /// # Errors
    /// [`HostError`], `ESRCH` if the thread is gone.
    fn policy(&self, tid: Tid) -> Result<Policy, HostError>;

    /// The value of a setting that another program keeps; `None` if it has none.
    ///
    /// # Errors
    /// [`HostError::Kept`]; of an object that is not there it is [gone](HostError::is_gone).
    fn setting(&self, setting: &Setting) -> Result<Option<String>, HostError> {
        Err(HostError::no_setting_backend(setting))
    }

    /// The files in which that program keeps the setting; none if they are its own affair.
    ///
    /// # Errors
    /// [`HostError`] if one is there and cannot be read.
    fn setting_files(&self, setting: &Setting) -> Result<Vec<KeptFile>, HostError> {
        Err(HostError::no_setting_backend(setting))
    }

    /// Reads the file `DIRECTORY/NAME/FILE` of each name, as those of the threads of a process,
    /// and hands it to `each`; a name that is gone is passed over.
    ///
    /// # Errors
    /// As [`Host::read`], at the first file that cannot be read for another reason; what `each`
    /// says.
    fn read_each(
        &self,
        directory: &str,
        names: &[String],
        file: &str,
        each: &mut EachFile<'_>,
    ) -> Result<(), HostError> {
        for name in names {
            match self.read(&format!("{directory}/{name}/{file}")) {
                Ok(bytes) => each(name, &bytes)?,
                Err(error) if error.is_gone() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// True if this is the running machine.
    fn is_live(&self) -> bool;

    /// The file as text; bytes that are not UTF-8 become U+FFFD.
    ///
    /// # Errors
    /// As [`Host::read`].
    fn read_text(&self, path: &str) -> Result<String, HostError> {
        self.read(path).map(|bytes| lossy(&bytes).into_owned())
    }
}

/// Bytes as text; those that are not UTF-8 become U+FFFD. Most are, and are checked at once
/// instead of piece by piece.
pub(crate) fn lossy(bytes: &[u8]) -> Cow<'_, str> {
    match str::from_utf8(bytes) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => String::from_utf8_lossy(bytes),
    }
}

/// Changing a host. Sealed: only live and simulated hosts have it.
pub trait HostMut: Host + sealed::Writable {
    /// One `write(2)` of the whole value to an existing file, opened without truncation.
    ///
    /// # Errors
    /// [`HostError`] with path, value and errno.
    fn write(&self, path: &str, value: &[u8]) -> Result<(), HostError>;

    /// Makes one directory.
    ///
    /// # Errors
    /// [`HostError`] with path and errno; `EEXIST` if it is there.
    fn make_dir(&self, path: &str) -> Result<(), HostError>;

    /// Removes one empty directory (or cgroup).
    ///
    /// # Errors
    /// [`HostError`] with path and errno.
    fn remove_dir(&self, path: &str) -> Result<(), HostError>;

    /// Sets a thread's affinity mask.
    ///
    /// # Errors
    /// [`HostError`]; `EINVAL` if no CPU of the mask is in the thread's cpuset.
    fn set_affinity(&self, tid: Tid, mask: &CpuSet) -> Result<(), HostError>;

    /// Sets a thread's scheduling policy.
    ///
    /// # Errors
    /// [`HostError`]; `EPERM` without the right or under `RT_GROUP_SCHED` without run time.
    fn set_policy(&self, tid: Tid, policy: Policy) -> Result<(), HostError>;

    /// Moves the pages of a process that are on the nodes `from` to the nodes `to`
    /// (`migrate_pages(2)`). Answers how many pages could not be moved; the kernel does not
    /// count those that it takes for unmovable from the start.
    ///
    /// # Errors
    /// [`HostError`]; `EPERM` for another user's process, `EINVAL` if no node of `to` has memory.
    fn migrate_pages(&self, pid: Tid, from: &[NodeId], to: &[NodeId]) -> Result<u64, HostError>;

    /// Sends a signal to a process, unless it is a later one with its number.
    ///
    /// # Errors
    /// [`HostError::Thread`]: `ESRCH` if it is gone, `EPERM` without the right.
    fn signal(&self, process: TaskId, signal: process::Signaled) -> Result<(), HostError>;

    /// Has a setting changed by the program that keeps it; `None` takes it away, as far as
    /// that program can.
    ///
    /// # Errors
    /// [`HostError::Kept`].
    fn set_setting(&self, setting: &Setting, value: Option<&str>) -> Result<(), HostError>;

    /// Puts the files of a setting back as they were; true if one differed.
    ///
    /// # Errors
    /// [`HostError`]; [`HostError::Kept`] if the program does not read them again.
    fn put_setting_files(&self, setting: &Setting, files: &[KeptFile]) -> Result<bool, HostError>;
}

mod sealed {
    /// Marks the hosts that may be changed.
    pub trait Writable {}
}
