//! Exits of a virtual machine: how many, of which kind, how long, and who asked for them.
//!
//! The table is that of Crăciun 2016: for each kind of exit count, rate, shortest, longest, mean
//! and summed time, standard deviation and share, beside the time in the guest and the time
//! without a PU. Where it comes from is its *level*, chosen by what fires, not by what exists:
//!
//! | level | from | has |
//! |---|---|---|
//! | A | `kvm_exit`, `kvm_entry` | each exit of the processor |
//! | B | `kvm_userspace_exit`, `kvm_fpu` | exits that reach the emulator |
//! | C | QMP `query-stats` | counts, no times |
//!
//! A [`Look`] finds the level, a [`Watch`] makes the table ([`table`]). Pairing and summing is the
//! kernel's ([`pinfold_host::ExitCounter`]); [`cost`] measures what that costs. What the processor
//! itself takes to leave and enter the guest lies outside of both events and is in no number.

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

/// What tells of exits.
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
    /// Its letter.
    #[must_use]
    pub fn letter(self) -> &'static str {
        match self {
            Level::A => "A",
            Level::B => "B",
            Level::C => "C",
        }
    }

    /// What it has and has not, in a sentence.
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

/// A vCPU that is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VcpuThread {
    /// Its index.
    pub vcpu: u32,
    /// Its thread.
    pub task: TaskId,
}

/// Exits and their times alone, which is what costs least.
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

/// A short look at which events fire.
#[derive(Debug)]
pub struct Look {
    hardware: ExitCounter,
    userspace: Option<ExitCounter>,
}

impl Look {
    /// Begins to look.
    ///
    /// # Errors
    /// [`ExitsError`]: what this host lacks or does not allow, with the way out.
    pub fn begin(host: &dyn Host, threads: &[VcpuThread]) -> Result<Self, ExitsError> {
        require_initial_namespace(host)?;
        let open = |source| ExitCounter::open(host, timed(source), &tids(threads));
        let explain = |error| ExitsError::explain(host, error);
        let mut hardware = open(ExitSource::Hardware).map_err(explain)?;
        let mut userspace = match open(ExitSource::Userspace) {
            Ok(counter) => Some(counter),
            // Other events are enough if these are not there.
            Err(error) if error.is_gone() => None,
            Err(error) => return Err(explain(error)),
        };
        if let Some(counter) = &mut userspace {
            counter.start(host)?;
        }
        hardware.start(host)?;
        Ok(Self { hardware, userspace })
    }

    /// What has fired so far, if any has.
    ///
    /// # Errors
    /// [`ExitsError::Host`], which does not happen.
    pub fn fired(&self) -> Result<Option<ExitSource>, ExitsError> {
        let finished = |threads: &[(Tid, ThreadExits)]| {
            threads.iter().any(|(_, thread)| !thread.exits.is_empty())
        };
        // In this order: the processor's exit comes before the one that reaches the emulator.
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

/// Looks for at most `timeout_ns` at which events of a running machine fire.
///
/// # Errors
/// As [`Look::begin`]; [`ExitsError::Silent`] if none does, [`ExitsError::Ended`] if the machine
/// ends meanwhile.
pub fn look(
    host: &dyn Host,
    clock: &dyn Clock,
    threads: &[VcpuThread],
    timeout_ns: u64,
) -> Result<ExitSource, ExitsError> {
    const STEP_NS: u64 = 20_000_000;
    let look = Look::begin(host, threads)?;
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

/// The kernel's events speak of the first namespace's process numbers, so ours must be those.
fn require_initial_namespace(host: &dyn Host) -> Result<(), ExitsError> {
    // The number of its inode is fixed: PROC_PID_INIT_INO.
    const FIRST: &str = "pid:[4026531836]";
    match host.link(&paths::own_pid_namespace()) {
        Ok(name) if name != FIRST => Err(ExitsError::Container),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// A measurement under way.
#[derive(Debug)]
pub struct Watch {
    counter: ExitCounter,
    scope: ExitScope,
    threads: Vec<VcpuThread>,
    began_ns: u64,
}

impl Watch {
    /// Begins.
    ///
    /// # Errors
    /// As [`Look::begin`].
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

    /// Watches for `duration_ns`, or until `stop` says so or no vCPU is left.
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

    /// Ends it and makes the table.
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
            // Marks of device memory come with some, which would look like all.
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
