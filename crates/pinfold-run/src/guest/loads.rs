//! The loads of host and guest: spinners, memory and I/O on both sides.

use pinfold_host::process::{self, Signaled};
use pinfold_host::{Host, HostError};
use pinfold_model::TaskId;
use pinfold_probe::agent::{Agent, AgentError, ChannelId};
use pinfold_probe::loads::{
    HostLoads, LoadDuration, LoadError, LoadKind, LoadSpec, Placement, threads_of,
};
use pinfold_probe::pinload::Pinload;

/// Time limit of all loads (ns).
const LIMIT_NS: u64 = 86_400_000_000_000;
const HOST_MEMORY_MIB: u32 = 64;
const GUEST_MEMORY_MIB: u32 = 32;

/// The host's loads of one start. They are started before the plan is applied, so that isolation
/// `own` can place them, and stopped (`SIGSTOP`) when the host must be idle.
pub struct HostLoadControl {
    loads: HostLoads,
}

impl HostLoadControl {
    /// Starts them, stopped: one spinner for each CPU, one memory streamer, one writer.
    pub fn start(pinload: &Pinload, pus: u32, directory: &str) -> Result<Self, LoadError> {
        let specs = [
            spec(LoadKind::Cpu, pus),
            spec(LoadKind::Memory { mib: HOST_MEMORY_MIB }, 1),
            spec(LoadKind::Io { path: directory.to_owned() }, 1),
        ];
        let loads = HostLoads::start(&pinload.path(), &specs, &Placement::default())?;
        let side = Self { loads };
        side.signal(Signaled::Stop)?;
        Ok(side)
    }

    /// The tasks that isolation `own` excludes from the guest's CPUs: the loads, and this process,
    /// whose heartbeats would disturb the measurement.
    pub fn tasks(&self, host: &dyn Host) -> Result<Vec<TaskId>, HostError> {
        let mut tasks = self.loads.tasks(host)?;
        tasks.extend(threads_of(host, process::own_pid())?);
        Ok(tasks)
    }

    /// Continues or stops them.
    pub fn set(&self, loaded: bool) -> Result<(), LoadError> {
        self.signal(if loaded { Signaled::Continue } else { Signaled::Stop })?;
        self.loads.check()
    }

    fn signal(&self, signal: Signaled) -> Result<(), HostError> {
        // They are child processes that no other thread waits for.
        self.loads.processes().iter().try_for_each(|task| process::signal(task.tid, signal))
    }
}

fn spec(kind: LoadKind, threads: u32) -> LoadSpec {
    LoadSpec { kind, threads, life: LoadDuration::Limited(LIMIT_NS) }
}

impl Drop for HostLoadControl {
    fn drop(&mut self) {
        // A stopped load cannot detect that its input was closed. A load that has ended needs no
        // signal.
        if self.signal(Signaled::Continue).is_err() {}
    }
}

/// The guest's loads while it is loaded.
pub struct GuestLoads {
    channels: Vec<ChannelId>,
}

impl GuestLoads {
    /// Starts a spinner for each vCPU and a memory streamer; also a reader if the disk is known.
    pub fn start(agent: &Agent, vcpus: u32, disk: Option<&str>) -> Result<Self, AgentError> {
        let mut specs =
            vec![spec(LoadKind::Cpu, vcpus), spec(LoadKind::Memory { mib: GUEST_MEMORY_MIB }, 1)];
        specs.extend(disk.map(|path| spec(LoadKind::Io { path: path.to_owned() }, 1)));
        Self::new(agent, &specs)
    }

    /// Starts these loads.
    pub fn new(agent: &Agent, specs: &[LoadSpec]) -> Result<Self, AgentError> {
        let channels: Result<Vec<ChannelId>, AgentError> =
            specs.iter().map(|spec| agent.start(&spec.argv())).collect();
        Ok(Self { channels: channels? })
    }

    /// Ends them; fails if one had ended before.
    pub fn stop(self, agent: &Agent) -> Result<(), AgentError> {
        for channel in self.channels {
            agent.stop(channel)?;
        }
        Ok(())
    }

    /// True if all of them still run.
    pub fn all_run(&self, agent: &Agent) -> bool {
        self.channels.iter().all(|channel| !agent.has_ended(*channel))
    }
}
