//! VM exits: number, type, duration, and the accessed addresses.
//!
//! The table is that of Crăciun 2016: for each type of exit the count, rate, shortest, longest,
//! mean and total time, standard deviation and share, together with the time in the guest and the
//! time without a CPU. The source of the data is its *level*. It is chosen by which events fire,
//! not by which exist:
//!
//! | level | source | content |
//! |---|---|---|
//! | A | `kvm_exit`, `kvm_entry` | each exit of the processor |
//! | B | `kvm_userspace_exit`, `kvm_fpu` | exits to user space (the emulator) |
//! | C | QMP `query-stats` | counts, no times |
//!
//! A [`EventSurvey`] determines the level, a [`Watch`] records the table ([`table`]). The kernel
//! pairs and sums the events ([`pinfold_host::ExitCounter`]); [`cost`] measures the overhead. The
//! time that the processor itself needs to leave and enter the guest is outside of both events and
//! in no number.

pub mod cost;
mod error;
pub mod expected;
mod figures;
mod names;
mod statistics;
pub mod table;

pub use error::ExitsError;
pub use figures::figures;
pub use names::{Architecture, name};
pub use statistics::{Statistics, counted};
pub use table::{AddressRow, ExitTable, Kind, Row, Times, Vcpu};

use pinfold_host::{
    Clock, ExitCounter, ExitScope, ExitSource, Host, HostError, ThreadExits, paths, process,
};
use pinfold_model::{TaskId, Tid};

/// Guest-physical address of the distributor of a GICv2 in QEMU's machine `virt`.
pub const VIRT_DISTRIBUTOR: u64 = 0x0800_0000;

/// Source of the data about exits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// `kvm_exit` and `kvm_entry`.
    A,
    /// `kvm_userspace_exit` and `kvm_fpu`.
    B,
    /// QMP `query-stats`.
    C,
}

impl Level {
    /// Letter of the level.
    #[must_use]
    pub fn letter(self) -> &'static str {
        match self {
            Level::A => "A",
            Level::B => "B",
            Level::C => "C",
        }
    }

    /// What the level includes and lacks, as a sentence.
    #[must_use]
    pub fn meaning(self) -> &'static str {
        match self {
            Level::A => {
                "each exit of the processor, from kvm_exit to kvm_entry; what the processor itself \
                 takes to leave and enter the guest is not seen"
            }
            Level::B => {
                "exits that reach the emulator, from kvm_userspace_exit to the next kvm_fpu; exits \
                 that KVM answers itself are within GUEST_AND_KVM, because kvm_exit does not fire here"
            }
            Level::C => {
                "counts of KVM's own statistics (QMP query-stats), without any times, because no \
                 tracepoint fires here or may be used"
            }
        }
    }
}

impl From<ExitSource> for Level {
    fn from(source: ExitSource) -> Self {
        match source {
            ExitSource::Hardware => Level::A,
            ExitSource::Userspace => Level::B,
        }
    }
}

/// A vCPU that is observed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VcpuThread {
    /// Index of the vCPU.
    pub vcpu: u32,
    /// Thread of the vCPU.
    pub task: TaskId,
}

/// Only exits and their times, which has the lowest overhead.
#[must_use]
pub fn timed(source: ExitSource) -> ExitScope {
    ExitScope { source, addresses: false, distributor: VIRT_DISTRIBUTOR }
}

fn tids(threads: &[VcpuThread]) -> Vec<Tid> {
    threads.iter().map(|thread| thread.task.tid).collect()
}

fn ended(host: &dyn Host, threads: &[VcpuThread]) -> Result<Vec<u32>, ExitsError> {
    let mut ended = Vec::new();
    for thread in threads {
        if !process::task_alive(host, thread.task)? {
            ended.push(thread.vcpu);
        }
    }
    Ok(ended)
}

/// A short observation to determine which events fire.
#[derive(Debug)]
pub struct EventSurvey {
    hardware: ExitCounter,
    userspace: Option<ExitCounter>,
}

impl EventSurvey {
    /// Starts to observe the events.
    ///
    /// # Errors
    /// [`ExitsError`]: what this host lacks or does not allow, with a hint.
    pub fn begin(host: &dyn Host, threads: &[VcpuThread]) -> Result<Self, ExitsError> {
        require_initial_namespace(host)?;
        let open = |source| ExitCounter::open(host, timed(source), &tids(threads));
        let explain = |error| ExitsError::explain(host, error);
        let mut hardware = open(ExitSource::Hardware).map_err(explain)?;
        let mut userspace = match open(ExitSource::Userspace) {
            Ok(counter) => Some(counter),
            // The other events suffice if these do not exist.
            Err(error) if error.is_gone() => None,
            Err(error) => return Err(explain(error)),
        };
        if let Some(counter) = &mut userspace {
            counter.start(host)?;
        }
        hardware.start(host)?;
        Ok(Self { hardware, userspace })
    }

    /// The events that have fired so far, if any.
    ///
    /// # Errors
    /// [`ExitsError::Host`], which does not happen.
    pub fn fired(&self) -> Result<Option<ExitSource>, ExitsError> {
        let finished = |threads: &[(Tid, ThreadExits)]| {
            threads.iter().any(|(_, thread)| !thread.exits.is_empty())
        };
        // In this order: the exit of the processor comes before the exit to user space.
        let userspace = match &self.userspace {
            Some(counter) => finished(&counter.read()?),
            None => false,
        };
        let hardware = self.hardware.read()?;
        let is_silent =
            |(_, thread): &(Tid, ThreadExits)| thread.guest.count == 0 && !thread.is_outside;
        Ok(match (finished(&hardware), userspace && hardware.iter().all(is_silent)) {
            (true, _) => Some(ExitSource::Hardware),
            (false, true) => Some(ExitSource::Userspace),
            (false, false) => None,
        })
    }
}

/// Observes for at most `timeout_ns` which events of a running machine fire.
///
/// # Errors
/// As [`EventSurvey::begin`]; [`ExitsError::Silent`] if none does, [`ExitsError::Ended`] if the
/// machine ends during the observation.
pub fn look(
    host: &dyn Host,
    clock: &dyn Clock,
    threads: &[VcpuThread],
    timeout_ns: u64,
) -> Result<ExitSource, ExitsError> {
    const STEP_NS: u64 = 20_000_000;
    let look = EventSurvey::begin(host, threads)?;
    let until = clock.now_ns().saturating_add(timeout_ns);
    loop {
        clock.sleep_ns(STEP_NS.min(timeout_ns));
        if let Some(source) = look.fired()? {
            return Ok(source);
        }
        if ended(host, threads)?.len() == threads.len() {
            return Err(ExitsError::Ended);
        }
        if clock.now_ns() >= until {
            return Err(ExitsError::Silent { timeout_ns });
        }
    }
}

/// The kernel's events have process ids of the initial PID namespace, so this process must be in
/// it.
fn require_initial_namespace(host: &dyn Host) -> Result<(), ExitsError> {
    // The inode number is fixed in the kernel: `PROC_PID_INIT_INO`.
    const FIRST: &str = "pid:[4026531836]";
    match host.link(&paths::own_pid_namespace()) {
        Ok(name) if name != FIRST => Err(ExitsError::Container),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// An observation in progress.
#[derive(Debug)]
pub struct Watch {
    counter: ExitCounter,
    scope: ExitScope,
    threads: Vec<VcpuThread>,
    began_ns: u64,
}

impl Watch {
    /// Starts the observation.
    ///
    /// # Errors
    /// As [`EventSurvey::begin`].
    pub fn begin(
        host: &dyn Host,
        clock: &dyn Clock,
        scope: ExitScope,
        threads: &[VcpuThread],
    ) -> Result<Self, ExitsError> {
        let mut counter = ExitCounter::open(host, scope, &tids(threads))
            .map_err(|error| ExitsError::explain(host, error))?;
        let began_ns = clock.now_ns();
        counter.start(host)?;
        Ok(Self { counter, scope, threads: threads.to_vec(), began_ns })
    }

    /// The vCPUs whose threads have ended.
    ///
    /// # Errors
    /// [`ExitsError::Host`].
    pub fn ended(&self, host: &dyn Host) -> Result<Vec<u32>, ExitsError> {
        ended(host, &self.threads)
    }

    /// Observes for `duration_ns`, or until `stop` returns true or no vCPU is left.
    ///
    /// # Errors
    /// [`ExitsError::Host`].
    pub fn wait(
        &self,
        host: &dyn Host,
        clock: &dyn Clock,
        duration_ns: u64,
        stop: &dyn Fn() -> bool,
    ) -> Result<(), ExitsError> {
        const STEP_NS: u64 = 50_000_000;
        let until = self.began_ns.saturating_add(duration_ns);
        while clock.now_ns() < until && !stop() && self.ended(host)?.len() < self.threads.len() {
            clock.sleep_ns(STEP_NS.min(until.saturating_sub(clock.now_ns())));
        }
        Ok(())
    }

    /// Ends the observation and computes the table.
    ///
    /// # Errors
    /// [`ExitsError::Host`].
    pub fn finish(mut self, host: &dyn Host, clock: &dyn Clock) -> Result<ExitTable, ExitsError> {
        self.counter.stop()?;
        let duration_ns = clock.now_ns().saturating_sub(self.began_ns);
        let ended = self.ended(host)?;
        let vcpus = self.threads.iter().zip(self.counter.read()?).map(|(thread, (_, exits))| {
            table::Watched { vcpu: thread.vcpu, exits, has_ended: ended.contains(&thread.vcpu) }
        });
        let of = table::Origin { source: self.scope.source, architecture: Architecture::here() };
        let mut table = table::table(of, duration_ns, &vcpus.collect::<Vec<_>>());
        table.findings.extend(table::missed(self.counter.missed(host)?));
        if !self.scope.addresses {
            // Some accesses to device memory are recorded in any case; an incomplete list would
            // look complete.
            table.addresses.clear();
        }
        Ok(table)
    }
}

impl From<HostError> for ExitsError {
    fn from(error: HostError) -> Self {
        ExitsError::Host(error)
    }
}

#[cfg(test)]
mod tests;
