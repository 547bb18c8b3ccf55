//! Clocks.
//!
//! Nothing else in Pinfold reads the time or sleeps: code that needs time takes a [`Clock`], so
//! that its tests run without delay with a [`SimClock`]. Durations come from `CLOCK_MONOTONIC`,
//! which cannot be set back; dates in records come from the wall clock.

use std::sync::atomic::{AtomicU64, Ordering};

use rustix::thread::{ClockId, NanosleepRelativeResult};
use rustix::time::Timespec;

const NS_PER_S: u64 = 1_000_000_000;

/// A source of time.
pub trait Clock {
    /// Current value of `CLOCK_MONOTONIC` in nanoseconds.
    fn now_ns(&self) -> u64;

    /// Sleeps for `ns` nanoseconds; signals do not shorten it.
    fn sleep_ns(&self, ns: u64);

    /// Sleeps until [`Clock::now_ns`] reaches `at_ns`; signals do not shorten it.
    fn sleep_until(&self, at_ns: u64) {
        self.sleep_ns(at_ns.saturating_sub(self.now_ns()));
    }

    /// CPU time of the calling thread in nanoseconds.
    fn spent_ns(&self) -> u64;

    /// Seconds since 1970, only for records.
    fn unix_seconds(&self) -> u64;
}

/// The kernel's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now_ns(&self) -> u64 {
        now_ns_of(ClockId::Monotonic)
    }

    fn sleep_ns(&self, ns: u64) {
        let mut request = Timespec {
            tv_sec: i64::try_from(ns / NS_PER_S).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(ns % NS_PER_S).unwrap_or(0),
        };
        loop {
            match rustix::thread::clock_nanosleep_relative(ClockId::Monotonic, &request) {
                NanosleepRelativeResult::Interrupted(remaining) => request = remaining,
                NanosleepRelativeResult::Ok | NanosleepRelativeResult::Err(_) => return,
            }
        }
    }

    /// Uses an absolute deadline, so that no time is lost between reading the clock and sleeping.
    fn sleep_until(&self, at_ns: u64) {
        let at = Timespec {
            tv_sec: i64::try_from(at_ns / NS_PER_S).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(at_ns % NS_PER_S).unwrap_or(0),
        };
        while rustix::thread::clock_nanosleep_absolute(ClockId::Monotonic, &at)
            == Err(rustix::io::Errno::INTR)
        {}
    }

    fn spent_ns(&self) -> u64 {
        now_ns_of(ClockId::ThreadCPUTime)
    }

    fn unix_seconds(&self) -> u64 {
        u64::try_from(rustix::time::clock_gettime(ClockId::Realtime).tv_sec).unwrap_or(0)
    }
}

/// Nanoseconds of a clock that starts at boot or with a thread.
fn now_ns_of(clock: ClockId) -> u64 {
    let shown = rustix::time::clock_gettime(clock);
    // Neither part is negative for these clocks, which start near zero.
    let seconds = u64::try_from(shown.tv_sec).unwrap_or(0);
    let rest = u64::try_from(shown.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(NS_PER_S).saturating_add(rest)
}

/// A clock for tests that advances only by sleeping.
#[derive(Debug, Default)]
pub struct SimClock {
    now_ns: AtomicU64,
    spent_ns: AtomicU64,
    effort_ns: AtomicU64,
}

impl SimClock {
    /// A clock with the current time `now_ns`.
    pub fn at(now_ns: u64) -> Self {
        Self { now_ns: AtomicU64::new(now_ns), ..Self::default() }
    }

    /// Sets the CPU time that a thread uses between two calls of [`Clock::spent_ns`]; the default
    /// is 0.
    pub fn set_effort_ns(&self, ns: u64) {
        self.effort_ns.store(ns, Ordering::SeqCst);
    }
}

impl Clock for SimClock {
    fn now_ns(&self) -> u64 {
        self.now_ns.load(Ordering::SeqCst)
    }

    fn sleep_ns(&self, ns: u64) {
        self.now_ns.fetch_add(ns, Ordering::SeqCst);
    }

    fn spent_ns(&self) -> u64 {
        self.spent_ns.fetch_add(self.effort_ns.load(Ordering::SeqCst), Ordering::SeqCst)
    }

    fn unix_seconds(&self) -> u64 {
        self.now_ns() / NS_PER_S
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_clock_moves_by_at_least_the_sleep() {
        let before = SystemClock.now_ns();
        SystemClock.sleep_ns(2_000_000);
        assert!(SystemClock.now_ns() - before >= 2_000_000);
        assert!(SystemClock.unix_seconds() > 1_600_000_000);
    }

    #[test]
    fn a_thread_spends_by_working() {
        let before = SystemClock.spent_ns();
        while SystemClock.spent_ns() == before {}
        assert!(SystemClock.spent_ns() > before);
    }

    #[test]
    fn simulated_clock_moves_by_exactly_the_sleep() {
        let clock = SimClock::at(5);
        clock.sleep_ns(10);
        assert_eq!(clock.now_ns(), 15);
        assert_eq!(clock.spent_ns(), clock.spent_ns());
        clock.set_effort_ns(3);
        assert_eq!(clock.spent_ns() + 3, clock.spent_ns());
    }
}
