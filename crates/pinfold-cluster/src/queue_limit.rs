//! Limits the number of outstanding tasks to the requested number, or to what the scheduler
//! accepts.
//!
//! A limit on submitted jobs (`MaxSubmitJobs` of an account, `MaxJobCount` of the controller) can
//! only be found by submitting, and changes with the jobs of other users. So a rejection halves the
//! number that is tried, until some tasks are accepted; the outstanding tasks are then the limit.
//! From time to time twice as many are tried, less often if that is rejected too.

/// The first pause after the rejection of a single task (ns).
const FIRST_WAIT_NS: u64 = 15_000_000_000;
/// The longest pause (ns).
const LONGEST_WAIT_NS: u64 = 300_000_000_000;

/// The limit of outstanding tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueLimit {
    most: usize,
    /// The limit found by a rejection; `None` before the first one.
    found: Option<usize>,
    /// Time from which more are tried (ns).
    again_ns: u64,
    wait_ns: u64,
}

impl QueueLimit {
    /// A limit of at most this number, while the scheduler accepts them.
    pub fn new(most: usize) -> Self {
        Self { most, found: None, again_ns: 0, wait_ns: FIRST_WAIT_NS }
    }

    /// Number of tasks that may be outstanding now.
    pub fn at(&self, now_ns: u64) -> usize {
        match self.found {
            None => self.most,
            Some(found) if now_ns < self.again_ns => found,
            Some(found) => (2 * found).clamp(1, self.most.max(1)),
        }
    }

    /// True if a rejection holds back tasks.
    pub fn is_short(&self) -> bool {
        self.found.is_some()
    }

    /// Called when the scheduler accepted none of `asked` further tasks while `out` were
    /// outstanding.
    pub fn shrink(&mut self, out: usize, asked: usize, now_ns: u64) {
        self.found = Some(out + asked / 2);
        self.again_ns = now_ns.saturating_add(self.wait_ns);
        if asked <= 1 {
            self.wait_ns = (2 * self.wait_ns).min(LONGEST_WAIT_NS);
        }
    }

    /// Called when the scheduler accepted all submitted tasks; `out` are outstanding.
    pub fn grow(&mut self, out: usize, now_ns: u64) {
        let Some(found) = self.found else { return };
        if out >= self.most {
            *self = Self::new(self.most);
        } else if out > found {
            self.found = Some(out);
            self.wait_ns = FIRST_WAIT_NS;
            self.again_ns = now_ns.saturating_add(self.wait_ns);
        }
    }
}
