//! Observes the exits of a running machine: a short survey of the events that fire, then the table.

use pinfold_host::{Clock, ExitCounter, ExitScope, ExitSource, Host, ThreadExits, paths, process};
use pinfold_model::Tid;

use crate::error::ExitsError;
use crate::level::{VcpuThread, from_source};
use crate::names::Architecture;
use crate::table::{self, ExitTable};

fn tids(threads: &[VcpuThread]) -> Vec<Tid> {
    threads.iter().map(|thread| thread.task.tid).collect()
}

fn find_ended(host: &dyn Host, threads: &[VcpuThread]) -> Result<Vec<u32>, ExitsError> {
    let mut ended = Vec::new();
    for thread in threads {
        if !process::task_alive(host, thread.task)? {
            ended.push(thread.vcpu);
        }
    }
    Ok(ended)
}

/// A short observation to determine which events fire.
///
/// ```no_run
/// use pinfold_exits::{EventSurvey, VcpuThread};
/// use pinfold_host::{LiveHost, proc_stat};
/// use pinfold_model::Tid;
///
/// let host = LiveHost::new()?;
/// let stat = proc_stat::read(&host, Tid(4711))?.ok_or("no such thread")?;
/// let threads = [VcpuThread { vcpu: 0, task: stat.task() }];
/// let survey = EventSurvey::begin(&host, &threads)?;
/// println!("{:?}", survey.find_fired()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
        let open = |source| ExitCounter::open(host, from_source(source), &tids(threads));
        let mut hardware =
            open(ExitSource::Hardware).map_err(|error| ExitsError::explain(host, error))?;
        let mut userspace = match open(ExitSource::Userspace) {
            Ok(counter) => Some(counter),
            // The other events suffice if these do not exist.
            Err(error) if error.is_gone() => None,
            Err(error) => return Err(ExitsError::explain(host, error)),
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
    pub fn find_fired(&self) -> Result<Option<ExitSource>, ExitsError> {
        // In this order: the exit of the processor comes before the exit to user space.
        let userspace = match &self.userspace {
            Some(counter) => have_exits(&counter.read()?),
            None => false,
        };
        let hardware = self.hardware.read()?;
        Ok(
            match (
                have_exits(&hardware),
                userspace
                    && hardware.iter().all(|(_, thread): &(Tid, ThreadExits)| {
                        thread.guest.count == 0 && !thread.is_outside
                    }),
            ) {
                (true, _) => Some(ExitSource::Hardware),
                (false, true) => Some(ExitSource::Userspace),
                (false, false) => None,
            },
        )
    }
}

fn have_exits(threads: &[(Tid, ThreadExits)]) -> bool {
    threads.iter().any(|(_, thread)| !thread.exits.is_empty())
}

/// Observes for at most `timeout_ns` which events of a running machine fire.
///
/// # Errors
/// As [`EventSurvey::begin`]; [`ExitsError::Silent`] if none does, [`ExitsError::Ended`] if the
/// machine ends during the observation.
pub fn detect_exit_source(
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
        if let Some(source) = look.find_fired()? {
            return Ok(source);
        }
        if find_ended(host, threads)?.len() == threads.len() {
            return Err(ExitsError::Ended);
        }
        if clock.now_ns() >= until {
            return Err(ExitsError::Silent { timeout_ns });
        }
    }
}

/// The kernel's events have process ids of the initial PID namespace, so this process must be in
/// it.
pub(crate) fn require_initial_namespace(host: &dyn Host) -> Result<(), ExitsError> {
    // The inode number is fixed in the kernel: `PROC_PID_INIT_INO`.
    const FIRST: &str = "pid:[4026531836]";
    match host.link(&paths::own_pid_namespace()) {
        Ok(name) if name != FIRST => Err(ExitsError::Container),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// An observation in progress.
///
/// ```no_run
/// use pinfold_exits::{VcpuThread, Watch, detect_exit_source, from_source};
/// use pinfold_host::{LiveHost, SystemClock, proc_stat};
/// use pinfold_model::Tid;
///
/// let (host, second_ns) = (LiveHost::new()?, 1_000_000_000);
/// let stat = proc_stat::read(&host, Tid(4711))?.ok_or("no such thread")?;
/// let threads = [VcpuThread { vcpu: 0, task: stat.task() }];
/// let scope = from_source(detect_exit_source(&host, &SystemClock, &threads, second_ns)?);
/// let watch = Watch::begin(&host, &SystemClock, scope, &threads)?;
/// watch.wait(&host, &SystemClock, 10 * second_ns, &|| false)?;
/// println!("{} exits", watch.finish(&host, &SystemClock)?.total.exits());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
    pub fn find_ended(&self, host: &dyn Host) -> Result<Vec<u32>, ExitsError> {
        find_ended(host, &self.threads)
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
        while clock.now_ns() < until && !stop() && self.find_ended(host)?.len() < self.threads.len()
        {
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
        let ended = self.find_ended(host)?;
        let vcpus = self.threads.iter().zip(self.counter.read()?).map(|(thread, (_, exits))| {
            table::Watched { vcpu: thread.vcpu, exits, has_ended: ended.contains(&thread.vcpu) }
        });
        let of = table::Origin { source: self.scope.source, architecture: Architecture::here() };
        let mut table = table::table(of, duration_ns, &vcpus.collect::<Vec<_>>());
        table.findings.extend(table::report_missed(self.counter.missed_events(host)?));
        if !self.scope.addresses {
            // Some accesses to device memory are recorded in any case; an incomplete list would
            // look complete.
            table.addresses.clear();
        }
        Ok(table)
    }
}
