//! Perf counters of one thread and of the threads that it creates: `perf_event_open(2)`.
//!
//! Kernel mode is included, because without it an event would count no context switch at all.
//! Therefore `kernel.perf_event_paranoid` above 1 makes opening fail for users without
//! `CAP_PERFMON`; the counter does not return 0 instead.

use std::io;

use pinfold_model::Tid;

use crate::HostError;
use crate::raw::TaskCounter;

/// An event: type and config of `struct perf_event_attr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CounterEvent {
    /// A software event, by its number.
    Software(u64),
    /// A generic hardware event of the kernel.
    Hardware(u64),
    /// A cache, operation and result: `PERF_TYPE_HW_CACHE`.
    Cache(u64),
}

impl CounterEvent {
    /// Time of the CPU on which it runs (ns).
    pub(crate) const CPU_CLOCK: Self = Self::Software(0);
    /// Time on a CPU (ns).
    pub const TASK_CLOCK: Self = Self::Software(1);
    /// Page faults.
    pub const PAGE_FAULTS: Self = Self::Software(2);
    /// Context switches.
    pub const CONTEXT_SWITCHES: Self = Self::Software(3);
    /// Migrations between CPUs.
    pub const MIGRATIONS: Self = Self::Software(4);
    /// Cycles of the core.
    pub const CYCLES: Self = Self::Hardware(0);
    /// Retired instructions.
    pub const INSTRUCTIONS: Self = Self::Hardware(1);
    /// Loads that missed the L1 data cache.
    pub const L1D_LOAD_MISSES: Self = Self::Cache(1 << 16);
    /// Loads that missed the last-level cache.
    pub const LLC_LOAD_MISSES: Self = Self::Cache(2 | (1 << 16));

    pub(crate) fn numbers(self) -> (u32, u64) {
        match self {
            Self::Hardware(number) => (0, number),
            Self::Software(number) => (1, number),
            Self::Cache(number) => (3, number),
        }
    }
}

/// Whether events of the host or the guest are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    /// Host and guest.
    Both,
    /// Only while a guest runs on the CPU.
    Guest,
    /// Only while no guest runs there.
    Host,
}

/// `inherit`: threads created later count too.
const INHERIT: u64 = 1 << 1;
/// `exclude_host`.
const NO_HOST: u64 = 1 << 19;
/// `exclude_guest`.
const NO_GUEST: u64 = 1 << 20;
/// `inherit_thread` (Linux 5.13): but not child processes.
const THREADS_ONLY: u64 = 1 << 35;

/// Why a counter is not available.
#[derive(Debug, thiserror::Error)]
pub enum CounterError {
    /// The thread does not exist any more (`ESRCH`).
    #[error("the thread has ended")]
    Ended,
    /// No PMU supports the event (`ENOENT`, `ENODEV`, `EOPNOTSUPP`).
    #[error("no PMU counts this event")]
    NoPmu,
    /// The caller does not have permission (`EACCES`, `EPERM`).
    #[error("counting needs CAP_PERFMON or a lower kernel.perf_event_paranoid")]
    NoRight,
    /// This process, or the whole system, has too many open files (`EMFILE`, `ENFILE`).
    #[error("too many open files")]
    TooManyFiles,
    /// The kernel was built without perf events (`ENOSYS`).
    #[error("the kernel was built without perf events")]
    NotBuilt,
    /// The PMU supports the event, but not for guest or host alone (`EINVAL`).
    #[error("the PMU does not support this event with these options")]
    NotInThisForm,
    /// Another user has exclusive access to the PMU (`EBUSY`).
    #[error("another process uses the PMU exclusively")]
    Busy,
    /// Any other error.
    #[error("the counter was refused")]
    Other(#[source] io::Error),
}

impl From<io::Error> for CounterError {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ESRCH) => Self::Ended,
            Some(libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP) => Self::NoPmu,
            Some(libc::EACCES | libc::EPERM) => Self::NoRight,
            Some(libc::EMFILE | libc::ENFILE) => Self::TooManyFiles,
            Some(libc::ENOSYS) => Self::NotBuilt,
            Some(libc::EINVAL) => Self::NotInThisForm,
            Some(libc::EBUSY) => Self::Busy,
            Some(_) | None => Self::Other(error),
        }
    }
}

/// A reading of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterReading {
    /// The count while the event ran on a PMU.
    pub value: u64,
    /// Time for which the thread ran and the event was enabled (ns).
    pub enabled_ns: u64,
    /// Time for which a PMU counted the event (ns); less than `enabled_ns` if events were
    /// multiplexed.
    pub running_ns: u64,
}

/// A counter of one thread.
#[derive(Debug)]
pub struct Counter {
    counter: TaskCounter,
    tid: Tid,
    follows: bool,
}

impl Counter {
    /// Starts counting.
    ///
    /// # Errors
    /// [`CounterError`].
    pub fn open(tid: Tid, event: CounterEvent, side: Side) -> Result<Self, CounterError> {
        let part = match side {
            Side::Both => 0,
            Side::Guest => NO_HOST,
            Side::Host => NO_GUEST,
        };
        let (kind, config) = event.numbers();
        let try_with = |flags: u64| TaskCounter::new(tid, kind, config, part | flags);
        let (counter, follows) = match try_with(INHERIT | THREADS_ONLY) {
            // Before Linux 5.13, later threads are only counted together with child processes.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => (try_with(0)?, false),
            other => (other?, true),
        };
        Ok(Self { counter, tid, follows })
    }

    /// The same for a process and all that it starts, without the side of a guest.
    ///
    /// # Errors
    /// [`CounterError`].
    pub fn open_with_children(tid: Tid, event: CounterEvent) -> Result<Self, CounterError> {
        let (kind, config) = event.numbers();
        Ok(Self { counter: TaskCounter::new(tid, kind, config, INHERIT)?, tid, follows: true })
    }

    /// True if threads that this one creates are counted too.
    pub fn follows_clone_events(&self) -> bool {
        self.follows
    }

    /// Stops it; it can still be read.
    ///
    /// # Errors
    /// [`HostError::Thread`]; does not happen for an open counter.
    pub fn disable(&self) -> Result<(), HostError> {
        self.counter.disable().map_err(|source| fail(self.tid, source))
    }

    /// The current count; also available after the thread has ended.
    ///
    /// # Errors
    /// [`HostError::Thread`] if the kernel returns no reading, for example for an event in error
    /// state.
    pub fn read(&self) -> Result<CounterReading, HostError> {
        let read = self.counter.read().map_err(|source| fail(self.tid, source))?;
        let [value, enabled_ns, running_ns] = read;
        Ok(CounterReading { value, enabled_ns, running_ns })
    }
}

fn fail(tid: Tid, source: io::Error) -> HostError {
    HostError::Thread { call: "perf_event_open", tid: tid.0, source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::own_tid;

    #[test]
    fn the_kernel_s_numbers_are_distinguished() {
        check(libc::ESRCH, |error| matches!(error, CounterError::Ended));
        check(libc::ENOENT, |error| matches!(error, CounterError::NoPmu));
        check(libc::ENODEV, |error| matches!(error, CounterError::NoPmu));
        check(libc::EOPNOTSUPP, |error| matches!(error, CounterError::NoPmu));
        check(libc::EACCES, |error| matches!(error, CounterError::NoRight));
        check(libc::EPERM, |error| matches!(error, CounterError::NoRight));
        check(libc::EMFILE, |error| matches!(error, CounterError::TooManyFiles));
        check(libc::ENOSYS, |error| matches!(error, CounterError::NotBuilt));
        check(libc::EINVAL, |error| matches!(error, CounterError::NotInThisForm));
        check(libc::EBUSY, |error| matches!(error, CounterError::Busy));
        check(libc::EIO, |error| matches!(error, CounterError::Other(_)));
    }

    fn check(errno: i32, is: fn(&CounterError) -> bool) {
        assert!(is(&io::Error::from_raw_os_error(errno).into()), "{errno}");
    }

    #[test]
    fn run_time_of_an_own_thread_and_of_one_that_is_not_there() {
        match Counter::open(own_tid(), CounterEvent::TASK_CLOCK, Side::Both) {
            Err(error) => println!("skipped: {error}"),
            Ok(counter) => {
                std::thread::yield_now();
                counter.disable().unwrap();
                let reading = counter.read().unwrap();
                assert!(reading.value > 0 && reading.enabled_ns > 0, "{reading:?}");
                // A software event does not need a PMU counter.
                assert_eq!(reading.enabled_ns, reading.running_ns);
                assert_eq!(counter.read().unwrap(), reading);
            }
        }
        let gone = Counter::open(Tid(0x3fff_fff0), CounterEvent::TASK_CLOCK, Side::Both);
        assert!(matches!(gone, Err(CounterError::Ended)), "{gone:?}");
    }
}
