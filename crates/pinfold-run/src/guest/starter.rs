//! One start: QEMU is started paused, placed, continued, measured in each load state, ended, and
//! the placement undone.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use pinfold_apply::{Applied, Journal, Journals, Target};
use pinfold_host::files::StateDir;
use pinfold_host::process::Stdio;
use pinfold_host::{Clock, LiveHost};
use pinfold_model::{Accelerator, Finding, NodeId, Plan, Severity};
use pinfold_probe::agent::{Agent, AgentError, Heartbeat};
use pinfold_probe::pinload::Pinload;
use pinfold_study::tune::{StartRequest, StartResult, Starter, TrialError};
use pinfold_vm::guest::DemoGuest;
use pinfold_vm::hypervisors;
use pinfold_vm::launch::{self, LaunchOptions, RunningVm, StderrEcho, Terminal};

use super::boot_priority::BatchPriority;
use super::loads::HostLoadControl;
use super::measure::{Running, last_lines};
use super::subject::{GuestAccess, Subject};
use crate::{
    Exit, Failure, HelperProgram,
    apply_session::{self, OnStop, Placement},
    claims::{self, Claims},
    host, interrupt,
    message::say,
    plans,
    rt_watchdog::{HeartbeatThread, RtWatchdog, Supervision},
    start_lock::StartLock,
    start_memory::StartMemory,
    target::to_target,
};

/// Polling interval while a guest starts.
const LOOK_NS: u64 = 100_000_000;
/// Timeout for QEMU to quit.
const QUIT_NS: u64 = 3_000_000_000;

/// Starts the subject under the plans of the candidates.
pub struct VmStarter<'a> {
    /// The host.
    pub host: &'a LiveHost,
    /// The clock.
    pub clock: &'a dyn Clock,
    /// The directory of the journals.
    pub state: &'a StateDir,
    /// The program of the watchdogs.
    pub program: &'a HelperProgram,
    /// What is started.
    pub subject: &'a Subject,
    /// Plan of each candidate, by its index.
    pub plans: Vec<Plan>,
    /// The program for loads and benchmarks.
    pub pinload: &'a Pinload,
    /// Number of CPUs that this process may use.
    pub pus: u32,
    /// Directory for the host's I/O load.
    pub io_directory: String,
    /// The NUMA node to which the guest's memory is bound from its start; `None` leaves it to the
    /// plan.
    pub memory_node: Option<NodeId>,
    /// The order of its starts and those of other pinfold processes; `None` for plans that were
    /// made without their claims.
    pub order: Option<&'a StartCoordination>,
}

/// What the starts of a run share about the placements of other pinfold processes.
#[derive(Default)]
pub struct StartCoordination {
    /// The lock that is held since the claims of the plans were read, until the first start is in
    /// the journal. Each further start takes it again.
    pub starting: Cell<Option<StartLock>>,
    /// The conflicts that were reported.
    pub reported: RefCell<Vec<Finding>>,
    /// True if the plans were made as if there were no other owners of CPUs.
    pub ignore_claims: bool,
}

impl StartCoordination {
    /// The claims that the plans avoid.
    ///
    /// # Errors
    /// That of [`claims::of_state`].
    pub fn claims(&self, host: &LiveHost, state: &StateDir) -> Result<Claims, Failure> {
        if self.ignore_claims { Ok(Claims::default()) } else { claims::of_state(host, state) }
    }

    /// The lock for one start. Placements that use a CPU of its plan are reported once: its plan
    /// was made before they began.
    fn take(
        &self,
        host: &LiveHost,
        state: &StateDir,
        plan: &Plan,
        machine: pinfold_model::Tid,
    ) -> Result<StartLock, Failure> {
        let starting = match self.starting.take() {
            Some(starting) => starting,
            None => StartLock::wait(state)?,
        };
        let name = &plans::single(plan)?.name;
        let mut reported = self.reported.borrow_mut();
        let others = self.claims(host, state)?.without_machine(host, machine, name);
        for finding in others.conflicts(name, plan) {
            if !reported.contains(&finding) {
                say(&finding.to_string());
                reported.push(finding);
            }
        }
        Ok(starting)
    }
}

/// Information from one start, in addition to its measurements.
#[derive(Clone, Debug)]
pub struct Facts {
    /// QEMU's version.
    pub qemu: String,
    /// The accelerator of the guest.
    pub accelerator: Accelerator,
    /// Time from the start of QEMU to the agent's hello (ns).
    pub boot_ns: u64,
    /// What the placement of its threads and page tables did not fulfil.
    pub findings: Vec<Finding>,
    /// Where its page tables are, on a host with several nodes.
    pub tables: Option<Finding>,
}

impl Starter for VmStarter<'_> {
    fn start(&mut self, request: &StartRequest) -> Result<StartResult, TrialError> {
        let plan = self.plans.get(request.candidate).ok_or_else(|| {
            TrialError::fatal(format!("there is no candidate {}", request.candidate))
        })?;
        let mut cells = Vec::new();
        self.with_guest(plan, |running, facts| {
            let far = facts.tables.iter().filter(|finding| finding.severity > Severity::Note);
            far.for_each(|finding| say(&finding.to_string()));
            for load in &request.load_states {
                interrupt::check()?;
                cells.push(running.cell(*load, request.observation_s)?);
            }
            Ok(())
        })
        .map_err(|failure| {
            let error = TrialError::from_message(failure.message);
            match failure.hint {
                Some(hint) => error.with_hint(hint),
                None => error,
            }
        })?;
        Ok(StartResult { cells })
    }
}

/// What exists before the guest of a start.
struct Start {
    host_side: HostLoadControl,
    began_ns: u64,
    memory: StartMemory,
}

impl VmStarter<'_> {
    /// Starts the guest under a plan, lets `work` use it, ends it and undoes the placement, even
    /// after an error.
    pub fn with_guest(
        &self,
        plan: &Plan,
        work: impl FnOnce(&Running<'_>, &Facts) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        interrupt::check()?;
        let host_side = HostLoadControl::start(self.pinload, self.pus, &self.io_directory)
            .map_err(|e| Failure::from_error(Exit::Host, &e, e.hint()))?;
        let began_ns = self.clock.now_ns();
        let memory = StartMemory::read(self.host, plan, self.memory_node)?;
        let start = Start { host_side, began_ns, memory };
        let mut vm = self.launch(plan, &start.memory)?;
        let journals = host::journals(self.state, self.clock)?;
        let (applied, journal, guard) = self.place(&vm, plan, &start, &journals)?;
        let (beating, result) = match guard.map(HeartbeatThread::start).transpose() {
            Ok(beating) => (beating, self.use_guest(&mut vm, &start, &applied, work)),
            Err(failure) => (None, Err(failure)),
        };
        let ended = vm.quit(QUIT_NS).map_err(|e| Failure::from_error(Exit::Vm, &e, e.hint()));
        let console = result.as_ref().err().map(|_| self.last_message(&vm));
        drop(vm);
        drop(applied);
        let undone = self.revert(journal);
        let was_received = beating.is_none_or(HeartbeatThread::end);
        drop(start);
        if result.is_err() && interrupt::is_requested() {
            // An interrupted wait is not an error of the guest.
            return undone.and_then(|()| interrupt::check());
        }
        result.map_err(|failure| match console {
            Some(words) if !words.is_empty() => Failure {
                message: format!("{}; the guest printed: {words}", failure.message),
                ..failure
            },
            Some(_) | None => failure,
        })?;
        undone?;
        if !was_received {
            return Err(Failure::new(
                Exit::Vm,
                "Pinfold was suspended, and the guest lost its real-time priority: this start does \
                 not count",
            ));
        }
        ended.map(|_| ())
    }

    fn launch(&self, plan: &Plan, memory: &StartMemory) -> Result<RunningVm, Failure> {
        let vnode = plans::single(plan)?;
        let argv = self.subject.argv_for(vnode.guest.as_ref());
        let options = LaunchOptions {
            echo: StderrEcho::Off,
            stdin: Stdio::Null,
            stdout: Stdio::Null,
            affinity: Some(vnode.pus()),
            memory_node: memory.node(),
            start_timeout_ns: self.subject.start_timeout_ns,
            terminal: Terminal::Apart,
            goes_on: || !interrupt::is_requested(),
            ..LaunchOptions::default()
        };
        let vm = launch::start_stopped(&*hypervisors::parse(&argv), &options)
            .map_err(|e| Failure::from_error(Exit::Vm, &e, e.hint()))?;
        // vCPUs that share a thread can only be placed on the same CPUs.
        let mut places = vnode.vcpus().map(|thread| &thread.pus);
        let first = places.next();
        if places.any(|pus| Some(pus) != first) {
            let own = vm.found.require_own_threads();
            own.map_err(|e| Failure::from_error(Exit::Vm, &e, e.hint()))?;
        }
        Ok(vm)
    }

    fn place<'j>(
        &self,
        vm: &RunningVm,
        plan: &Plan,
        start: &Start,
        journals: &Journals<'j>,
    ) -> Result<(Applied, Journal<'j>, Option<RtWatchdog>), Failure> {
        let own = start.host_side.tasks(self.host);
        let own = own.map_err(|e| Failure::from_error(Exit::Host, &e, None))?;
        let target = Target { own, started_on: start.memory.node(), ..to_target(&vm.found) };
        let placement = Placement { plan, target: &target };
        let supervision = Supervision { journals, program: self.program };
        let order = self.order.map(|order| order.take(self.host, self.state, plan, target.pid));
        let _starting = order.transpose()?;
        apply_session::apply_guarded(self.host, placement, supervision, OnStop::Finish)
    }

    fn use_guest(
        &self,
        vm: &mut RunningVm,
        start: &Start,
        applied: &Applied,
        work: impl FnOnce(&Running<'_>, &Facts) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let starts_on_one = self.subject.demo.as_ref().is_some_and(DemoGuest::is_single_cpu_boot);
        let yielding = starts_on_one.then(|| BatchPriority::all_but_first(self.host, &vm.found));
        let yielding = yielding.transpose()?;
        vm.cont().map_err(|e| Failure::from_error(Exit::Vm, &e, e.hint()))?;
        let agent = self.wait_for_agent(vm, yielding)?;
        let beat = |agent| Heartbeat::start_while(agent, || !interrupt::is_requested());
        let beat = agent.as_ref().map(beat).transpose();
        let beat = beat.map_err(|e| Failure::from_error(Exit::Vm, &e, e.hint()))?;
        let tables = start.memory.tables(self.host, vm.pid())?;
        let far = tables.clone().filter(|finding| finding.severity > Severity::Note);
        let facts = Facts {
            qemu: vm.version.to_string(),
            accelerator: vm.found.accelerator.unwrap_or(Accelerator::TcgMulti),
            boot_ns: self.clock.now_ns().saturating_sub(start.began_ns),
            findings: applied.findings.iter().cloned().chain(far).collect(),
            tables,
        };
        let running = Running {
            host: self.host,
            clock: self.clock,
            pid: vm.pid(),
            found: &vm.found,
            agent,
            inside: &self.subject.inside,
            vcpus: self.subject.vcpus,
            host_side: &start.host_side,
            console: self.subject.demo.as_ref().map(|demo| demo.console.as_str()),
        };
        let result = work(&running, &facts);
        drop(beat);
        result
    }

    /// The agent's connection; for a guest without one, waits for the time that it needs to start.
    fn wait_for_agent(
        &self,
        vm: &mut RunningVm,
        yielding: Option<BatchPriority<'_>>,
    ) -> Result<Option<Arc<Agent>>, Failure> {
        match &self.subject.inside {
            GuestAccess::Demo | GuestAccess::Agent => {
                let waits: &dyn Fn() -> bool = &|| !interrupt::is_requested();
                let hello_ns = self.subject.hello_ns;
                let socket = &self.subject.agent_socket;
                let mut agent = Agent::connect_while(socket, hello_ns, waits, self.clock)
                    .map_err(|e: AgentError| Failure::from_error(Exit::Vm, &e, e.hint()))?;
                if let Some(yielding) = yielding {
                    yielding.end()?;
                    agent
                        .bring_cpus_online(hello_ns, waits)
                        .map_err(|e: AgentError| Failure::from_error(Exit::Vm, &e, e.hint()))?;
                }
                self.check_cpus(&agent)?;
                self.check_page_tables(&agent)?;
                Ok(Some(Arc::new(agent)))
            }
            GuestAccess::Nothing { settle_ns } => self.settle(vm, *settle_ns).map(|()| None),
        }
    }

    /// Waits while a guest starts.
    fn settle(&self, vm: &mut RunningVm, settle_ns: u64) -> Result<(), Failure> {
        let end = self.clock.now_ns().saturating_add(settle_ns);
        loop {
            interrupt::check()?;
            let left = end.saturating_sub(self.clock.now_ns());
            let ended = vm.wait_for(left.min(LOOK_NS));
            let ended = ended.map_err(|e| Failure::from_error(Exit::Vm, &e, e.hint()))?;
            if let Some(status) = ended {
                let text = format!("the virtual machine exited before it was measured ({status})");
                return Err(Failure::new(Exit::Vm, text));
            }
            if left == 0 {
                return Ok(());
            }
        }
    }

    /// Fails unless all vCPUs of our own guest are online: otherwise its programs would share the
    /// online ones.
    fn check_cpus(&self, agent: &Agent) -> Result<(), Failure> {
        let (online, vcpus) = (agent.hello().cpus_online.len(), self.subject.vcpus);
        if self.subject.demo.is_none() || online == vcpus as usize {
            Ok(())
        } else {
            Err(Failure::new(
                Exit::Vm,
                format!("only {online} of the guest's {vcpus} vCPUs came online"),
            ))
        }
    }

    /// Fails unless the page tables of our own guest have the requested levels.
    fn check_page_tables(&self, agent: &Agent) -> Result<(), Failure> {
        let wanted = self.subject.demo.as_ref().and_then(|demo| demo.page_table_levels);
        let found = agent.hello().page_table_levels;
        if wanted.is_none() || wanted == found {
            return Ok(());
        }
        let message = format!(
            "the guest's page tables have {} levels, not {}",
            levels(found),
            levels(wanted)
        );
        let hint =
            "five levels need a QEMU CPU model with la57 and a guest kernel with CONFIG_X86_5LEVEL";
        Err(Failure::new(Exit::Vm, message).with_hint(hint))
    }

    /// Undoes what was applied; what cannot be restored is a failure.
    fn revert(&self, journal: Journal<'_>) -> Result<(), Failure> {
        apply_session::undo(self.host, journal).map(|_| ())
    }

    /// QEMU's error output and the end of the guest's console.
    fn last_message(&self, vm: &RunningVm) -> String {
        let console = self.subject.demo.as_ref().map(|demo| last_lines(&demo.console));
        let words = [vm.error_output(), console.unwrap_or_default()];
        words.iter().filter(|text| !text.is_empty()).cloned().collect::<Vec<_>>().join("; ")
    }
}

fn levels(levels: Option<u32>) -> String {
    levels.map_or("?".to_owned(), |it| it.to_string())
}
