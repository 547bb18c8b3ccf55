//! Waits for events without polling.
//!
//! A wake-up takes tens of microseconds of CPU time, so frequent polling would be the largest cost
//! of `watch`. Instead, the kernel reports threads that create another one or exit (perf events,
//! see `raw::clone_event`), and files and directories that a program writes to or removes
//! (inotify). For cgroup files inotify reports writes by programs, but not the kernel's own
//! changes. <https://man7.org/linux/man-pages/man7/inotify.7.html>

use std::collections::{BTreeMap, BTreeSet};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use pinfold_model::Tid;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::io::Errno;
use rustix::time::Timespec;

use crate::{HostError, raw};

const NS_PER_S: u64 = 1_000_000_000;
/// inotify events of interest for files and directories.
const FILE_EVENTS: WatchFlags = WatchFlags::MODIFY
    .union(WatchFlags::CREATE)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF);

/// Events during a wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Events {
    /// Threads that have created another one or have exited.
    pub threads: BTreeSet<Tid>,
    /// True if a file or directory was written to or removed.
    pub files: bool,
    /// True if one of the other descriptors is readable.
    pub others: bool,
}

/// Watches threads, files and directories.
#[derive(Debug, Default)]
pub struct EventWatcher {
    threads: BTreeMap<Tid, raw::TaskEvents>,
    files: BTreeMap<String, i32>,
    inotify: Option<OwnedFd>,
}

impl EventWatcher {
    /// A watcher that watches nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Watches these threads and no others. True if one of them is new: its events before this call
    /// were not received. A thread that has ended is skipped.
    ///
    /// # Errors
    /// [`HostError::Thread`]: `EACCES` for another user's thread or because of
    /// `perf_event_paranoid`, `EPERM` in most containers, `EMFILE` if there are too many. None of
    /// the threads is watched then.
    pub fn follow_threads(&mut self, threads: &BTreeSet<Tid>) -> Result<bool, HostError> {
        self.threads.retain(|tid, _| threads.contains(tid));
        let mut is_new = false;
        for tid in threads {
            if self.threads.contains_key(tid) {
                continue;
            }
            match raw::TaskEvents::from_tid(*tid) {
                Ok(births) => {
                    self.threads.insert(*tid, births);
                    is_new = true;
                }
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                Err(source) => {
                    self.threads.clear();
                    return Err(HostError::Thread { call: "perf_event_open", tid: tid.0, source });
                }
            }
        }
        Ok(is_new)
    }

    /// Watches these files and directories and no others; those that do not exist are skipped.
    ///
    /// # Errors
    /// [`HostError::File`]: `EMFILE` or `ENOSPC` if the user has too many watches
    /// (`fs.inotify.max_user_instances`, `max_user_watches`). None is watched then.
    pub fn follow_files(&mut self, paths: &BTreeSet<String>) -> Result<(), HostError> {
        if paths.is_empty() {
            self.files.clear();
            self.inotify = None;
            return Ok(());
        }
        let followed = self.follow_each(paths);
        if followed.is_err() {
            self.files.clear();
            self.inotify = None;
        }
        followed
    }

    fn follow_each(&mut self, paths: &BTreeSet<String>) -> Result<(), HostError> {
        let inotify = match self.inotify.take() {
            Some(inotify) => inotify,
            None => inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)
                .map_err(|errno| fail("files", errno))?,
        };
        let inotify = self.inotify.insert(inotify);
        self.files.retain(|path, watch| {
            if paths.contains(path) {
                return true;
            }
            // The kernel has already removed the watch of a removed file.
            match inotify::remove_watch(&*inotify, *watch) {
                Ok(()) | Err(_) => false,
            }
        });
        for path in paths {
            if self.files.contains_key(path) {
                continue;
            }
            match inotify::add_watch(&*inotify, path, FILE_EVENTS) {
                Ok(watch) => {
                    self.files.insert(path.clone(), watch);
                }
                Err(Errno::NOENT) => {}
                Err(errno) => return Err(fail(path, errno)),
            }
        }
        Ok(())
    }

    /// Waits until an event occurs, one of the `others` is readable, a signal arrives, or `ns`
    /// nanoseconds have passed.
    ///
    /// # Errors
    /// [`HostError::File`] if the kernel cannot wait (out of memory).
    pub fn wait(&mut self, ns: u64, others: &[BorrowedFd<'_>]) -> Result<Events, HostError> {
        let timeout = Timespec {
            tv_sec: i64::try_from(ns / NS_PER_S).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(ns % NS_PER_S).unwrap_or(0),
        };
        let mut sources: Vec<PollFd<'_>> = Vec::new();
        let threads = self.threads.values().map(|births| births.as_fd());
        let files = self.inotify.iter().map(OwnedFd::as_fd);
        for source in threads.chain(files).chain(others.iter().copied()) {
            sources.push(PollFd::from_borrowed_fd(source, PollFlags::IN));
        }
        match rustix::event::poll(&mut sources, Some(&timeout)) {
            Ok(_) => {}
            Err(Errno::INTR) => return Ok(Events::default()),
            Err(errno) => return Err(HostError::file("wait for", "events", errno)),
        }
        let seen: Vec<PollFlags> = sources.iter().map(PollFd::revents).collect();
        drop(sources);
        let mut received = Events::default();
        let own = seen.len().saturating_sub(others.len());
        received.others = seen.iter().skip(own).any(|flags| !flags.is_empty());
        let mut ended = Vec::new();
        for (tid, flags) in self.threads.keys().zip(&seen) {
            if !flags.is_empty() {
                received.threads.insert(*tid);
            }
            // The descriptor of an ended thread would wake every later poll immediately.
            if flags.intersects(PollFlags::HUP | PollFlags::ERR) {
                ended.push(*tid);
            }
        }
        if self.inotify.is_some() && seen.get(self.threads.len()).is_some_and(|f| !f.is_empty()) {
            received.files = self.drain();
        }
        ended.iter().for_each(|tid| drop(self.threads.remove(tid)));
        Ok(received)
    }

    /// Reads all pending events. Removed files are not watched any more.
    fn drain(&mut self) -> bool {
        let Some(inotify) = &self.inotify else { return false };
        let mut room = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(inotify, &mut room);
        let (mut any, mut gone) = (false, Vec::new());
        while let Ok(event) = events.next() {
            any = true;
            if event.events().contains(inotify::ReadFlags::IGNORED) {
                gone.push(event.wd());
            }
        }
        self.files.retain(|_, watch| !gone.contains(watch));
        any
    }
}

fn fail(path: &str, errno: Errno) -> HostError {
    HostError::file("listen to", path, errno)
}

#[cfg(test)]
mod tests;
