//! How many tasks may be out at a time: as many as were asked for, or as Slurm has room for.
//!
//! A limit on submitted jobs (`MaxSubmitJobs` of an account, `MaxJobCount` of the controller) can
//! be asked for by submitting alone, and what others submit changes it. So a refusal halves what
//! is tried until something is taken; what is out then is the room that was found. Now and then
//! twice as much is tried, less and less often while that is refused too.

/// The first pause after a refusal of a single task (ns).
const FIRST_WAIT_NS: u64 = 15_000_000_000;
/// The longest (ns).
const LONGEST_WAIT_NS: u64 = 300_000_000_000;

/// Room for tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Room {
    most: usize,
    /// What was found by a refusal; `None` while there was none.
    found: Option<usize>,
    /// From then on more is tried (ns).
    again_ns: u64,
    wait_ns: u64,
}

impl Room {
    /// Room for so many at most, as long as Slurm takes them.
    #[must_use]
    pub fn new(most: usize) -> Self {
        Self { most, found: None, again_ns: 0, wait_ns: FIRST_WAIT_NS }
    }

    /// How many may be out now.
    #[must_use]
    pub fn at(&self, now_ns: u64) -> usize {
        match self.found {
            None => self.most,
            Some(found) if now_ns < self.again_ns => found,
            Some(found) => (2 * found).clamp(1, self.most.max(1)),
        }
    }

    /// Whether a refusal keeps tasks back.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.found.is_some()
    }

    /// Slurm took none of `asked` more while `out` were out.
    pub fn refused(&mut self, (out, asked): (usize, usize), now_ns: u64) {
        self.found = Some(out + asked / 2);
        self.again_ns = now_ns.saturating_add(self.wait_ns);
        if asked <= 1 {
            self.wait_ns = (2 * self.wait_ns).min(LONGEST_WAIT_NS);
        }
    }

    /// Slurm took all that it was given; so many are out.
    pub fn taken(&mut self, out: usize, now_ns: u64) {
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
