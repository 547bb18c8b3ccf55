//! Runs a probe inside a guest: the demo guest, started for each block, or a running one.
//!
//! The demo guest is started under a plan, with journal and undo as in `tune`, because the start of
//! the machine is the unit of replication. A running guest is accessed through the socket of its
//! agent, and is not changed.

use std::cell::RefCell;
use std::sync::Arc;

use pinfold_host::files::{self, StateDir};
use pinfold_host::{Host as _, SystemClock, paths, process};
use pinfold_model::text::{cpus_text, select_verb};
use pinfold_model::{Accelerator, CpuSet, Plan, Request, Tid, VcpuCount};
use pinfold_probe::agent::{Agent, Heartbeat, Hello};
use pinfold_probe::benchmarks::{IoTarget, SchedPolicy};
use pinfold_probe::interference;
use pinfold_probe::registry::Probe;
use pinfold_probe::settings::Settings;
use pinfold_study::measured::MeasuredBlock;
use pinfold_vm::threads;

use super::file::target_of;
use super::{MeasurementContext, ProbeOptions, place, run_block};
use crate::claims::Claims;
use crate::guest::{Facts, Scratch, Subject, VmStarter};
use crate::message::say;
use crate::{Exit, Failure, host, inputs};

/// The argument for the demo guest.
const DEMO: &str = "demo";
/// The paravirtual disk of the demo guest.
const DEMO_DISK: &str = "/dev/vda";
const DEMO_CPUS: usize = 1;
const HELLO_NS: u64 = 10_000_000_000;

/// A guest to measure in.
pub struct Guest<'b> {
    bench: &'b MeasurementContext,
    kind: Kind,
}

enum Kind {
    Socket(Box<RunningGuest>),
    Demo(Box<Demo>),
}

/// A running guest.
struct RunningGuest {
    agent: Arc<Agent>,
    _beat: Heartbeat,
    accelerator: Accelerator,
}

/// The demo guest.
struct Demo {
    // The folder of its files must be dropped after everything that uses it.
    subject: Subject,
    _scratch: Scratch,
    state: StateDir,
    plan: Plan,
    reported: RefCell<Reported>,
}

/// Information from the last start.
#[derive(Default)]
struct Reported {
    qemu: Option<String>,
    accelerator: Option<Accelerator>,
    pinload: String,
}

impl<'b> Guest<'b> {
    /// Connects to the guest, or prepares the demo guest.
    pub fn open(
        bench: &'b MeasurementContext,
        wanted: &str,
        state: Option<&str>,
    ) -> Result<Self, Failure> {
        let kind = match wanted {
            DEMO => Kind::Demo(Box::new(Demo::prepare(bench, state)?)),
            socket => Kind::Socket(Box::new(RunningGuest::connect(bench, socket)?)),
        };
        let guest = Self { bench, kind };
        if let Kind::Demo(demo) = &guest.kind {
            guest.say_accelerator(demo);
        }
        Ok(guest)
    }

    /// Measures one block; the demo guest is started for it, under this plan or without one.
    pub fn take(
        &self,
        probe: &Probe,
        how: &ProbeOptions,
        plan: Option<&Plan>,
    ) -> Result<MeasuredBlock, Failure> {
        match &self.kind {
            Kind::Socket(reached) => self.in_agent(probe, how, &reached.agent, None),
            Kind::Demo(demo) => {
                let mut taken = None;
                demo.start(self.bench, plan.unwrap_or(&demo.plan), |agent| {
                    taken = Some(self.in_agent(probe, how, agent, Some(DEMO_DISK))?);
                    Ok(())
                })?;
                taken.ok_or_else(|| Failure::new(Exit::Vm, "the guest was not measured"))
            }
        }
    }

    fn in_agent(
        &self,
        probe: &Probe,
        how: &ProbeOptions,
        agent: &Agent,
        disk: Option<&str>,
    ) -> Result<MeasuredBlock, Failure> {
        let settings = guest_settings(probe, how, agent.hello(), disk)?;
        let job = probe.job(&settings).map_err(|refusal| run_block::refusal_failure(&refusal))?;
        let before = self.disturbance_now()?;
        let figures =
            job.run_in_guest(agent).map_err(|error| run_block::benchmark_failure(&error))?;
        let after = self.disturbance_now()?;
        Ok(MeasuredBlock { figures, surroundings: after.since(&before) })
    }

    fn disturbance_now(&self) -> Result<interference::InterferenceSample, pinfold_host::HostError> {
        interference::now(&self.bench.host, &self.bench.topology.allowed)
    }

    /// Number of its CPUs.
    pub fn cpus(&self) -> usize {
        match &self.kind {
            Kind::Socket(reached) => reached.agent.hello().cpus_online.len(),
            Kind::Demo(_) => DEMO_CPUS,
        }
    }

    /// True if the guest is started for each block, so that it can be under a plan.
    pub fn takes_plans(&self) -> bool {
        matches!(self.kind, Kind::Demo(_))
    }

    /// Description of the placement.
    pub fn place(&self, how: &ProbeOptions) -> String {
        let policy = how.policy.as_deref().unwrap_or("other");
        let cpus = how.cpus.as_deref().map_or_else(String::new, |list| format!(" on CPU {list}"));
        let name = match &self.kind {
            Kind::Socket(_) => "in a guest that was already running",
            Kind::Demo(_) => "in the demo guest",
        };
        format!("{name}{cpus}, {policy}, {}", self.accelerator())
    }

    /// Version of the `pinload` in the guest.
    pub fn tool(&self) -> String {
        match &self.kind {
            Kind::Socket(reached) => format!("pinload {}", reached.agent.hello().pinload),
            Kind::Demo(demo) => format!("pinload {}", demo.reported.borrow().pinload),
        }
    }

    /// QEMU's version, if known.
    pub fn qemu(&self) -> Option<String> {
        match &self.kind {
            Kind::Socket(_) => None,
            Kind::Demo(demo) => demo.reported.borrow().qemu.clone(),
        }
    }

    /// The accelerator of the guest.
    pub fn accelerator(&self) -> Accelerator {
        match &self.kind {
            Kind::Socket(reached) => reached.accelerator,
            Kind::Demo(demo) => demo.reported.borrow().accelerator.unwrap_or(Accelerator::TcgMulti),
        }
    }

    /// The guest's kernel.
    pub fn kernel(&self) -> Option<String> {
        match &self.kind {
            Kind::Socket(reached) => Some(reached.agent.hello().kernel.clone()),
            Kind::Demo(demo) => {
                demo.subject.kernel.as_ref().map(pinfold_vm::guest::GuestKernel::origin)
            }
        }
    }

    fn say_accelerator(&self, demo: &Demo) {
        for finding in &demo.subject.findings {
            say(&finding.to_string());
        }
        if self.accelerator() != Accelerator::Kvm {
            say("TCG results do not carry over to KVM");
        }
    }
}

impl RunningGuest {
    fn connect(bench: &MeasurementContext, socket: &str) -> Result<Self, Failure> {
        if !files::exists(socket) {
            return Err(Failure::new(Exit::Input, format!("--guest {socket}: no such socket"))
                .with_hint(
                    "give `demo`, or the socket of the guest's agent; docs/measuring.md describes \
                     how a guest gets one",
                ));
        }
        let agent = Agent::connect(socket, HELLO_NS, &SystemClock).map_err(|e| vm(&e))?;
        let agent = Arc::new(agent);
        let beat = Heartbeat::start(&agent).map_err(|e| vm(&e))?;
        let accelerator = accelerator_behind(bench, socket)?;
        Ok(Self { agent, _beat: beat, accelerator })
    }
}

fn vm(error: &pinfold_probe::agent::AgentError) -> Failure {
    Failure::from_error(Exit::Vm, error, error.hint())
}

/// The accelerator of the guest whose QEMU has this socket in its command line.
fn accelerator_behind(bench: &MeasurementContext, socket: &str) -> Result<Accelerator, Failure> {
    let host = &bench.host;
    for name in host.list(&paths::proc_dir())? {
        let Ok(pid) = name.parse::<u32>() else { continue };
        if Tid(pid) == process::own_pid() {
            continue; // its command line has the socket too
        }
        // Processes start and end, and those of other users may not be readable.
        let Ok(words) = host.read_text(&paths::process_cmdline(Tid(pid))) else { continue };
        if !words.contains(socket) {
            continue;
        }
        // Other processes have the socket in their command line too, and QEMU names its threads
        // only with `-name debug-threads=on`.
        let Ok(reported) = threads::accelerator_of(host, Tid(pid)) else { continue };
        let by_names = threads::discover(host, Tid(pid), None).ok();
        let by_names = by_names.and_then(|found| found.accelerator);
        return by_names.or(reported).ok_or_else(|| {
            let text = format!(
                "process {pid}: cannot determine whether it uses KVM or TCG, which every result \
                 must state"
            );
            Failure::new(Exit::Vm, text).with_hint(
                "run it as root or as the owner of QEMU, or start QEMU with an explicit -accel kvm",
            )
        });
    }
    Err(Failure::new(
        Exit::Vm,
        format!(
            "no QEMU on this host has {socket} in its command line, so it is unknown whether it \
             uses KVM or TCG"
        ),
    )
    .with_hint("start QEMU with the path of the socket, as docs/measuring.md shows"))
}

impl Demo {
    fn prepare(bench: &MeasurementContext, state: Option<&str>) -> Result<Self, Failure> {
        let scratch = Scratch::new(&bench.host)?;
        let subject = Subject::demo(1, &scratch)?;
        let plan = inputs::make_plan(
            Some("none"),
            &bench.topology,
            &Request::vm(&subject.name, VcpuCount::Exactly(1)),
            &Claims::default(),
        )?;
        let state = host::state(state)?;
        let reported = RefCell::default();
        let mut demo = Self { subject, _scratch: scratch, state, plan, reported };
        demo.choose_accelerator(bench)?;
        Ok(demo)
    }

    /// One start that is not counted.
    fn choose_accelerator(&mut self, bench: &MeasurementContext) -> Result<(), Failure> {
        say("Trying a start under KVM …");
        match self.start(bench, &self.plan, |_| Ok(())) {
            Ok(()) => Ok(()),
            Err(failure) if failure.exit == Exit::Vm => {
                say("KVM does not work here: continuing with TCG (QEMU's translator).");
                self.subject.use_accelerator(Accelerator::TcgMulti);
                self.start(bench, &self.plan, |_| Ok(()))
            }
            Err(failure) => Err(failure),
        }
    }

    /// Starts the guest under a plan, lets `work` use it, ends it and undoes the placement.
    fn start(
        &self,
        bench: &MeasurementContext,
        plan: &Plan,
        work: impl FnOnce(&Agent) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let io_directory = files::cache_dir()?;
        files::make_dirs(&io_directory)?;
        let starter = VmStarter {
            host: &bench.host,
            clock: &SystemClock,
            state: &self.state,
            program: &bench.program,
            subject: &self.subject,
            plans: Vec::new(),
            pinload: &bench.pinload,
            pus: u32::try_from(bench.topology.allowed.len()).unwrap_or(u32::MAX),
            io_directory,
            memory_node: None,
            order: None,
        };
        starter.with_guest(plan, |running, facts: &Facts| {
            let agent = running
                .agent
                .as_ref()
                .ok_or_else(|| Failure::new(Exit::Vm, "the demo guest has no agent"))?;
            // All starts have the same memory nodes: the first one shows where page tables are.
            if self.reported.borrow().qemu.is_none() {
                facts.tables.iter().for_each(|finding| say(&finding.to_string()));
            }
            *self.reported.borrow_mut() = Reported {
                qemu: Some(facts.qemu.clone()),
                accelerator: Some(facts.accelerator),
                pinload: agent.hello().pinload.clone(),
            };
            work(agent)
        })
    }
}

/// The settings in a guest: its own CPUs, its own disk.
fn guest_settings(
    probe: &Probe,
    how: &ProbeOptions,
    hello: &Hello,
    disk: Option<&str>,
) -> Result<Settings, Failure> {
    if let Some(node) = how.node {
        let text = format!("--node {node} names a node of this machine, not of a guest");
        return Err(Failure::new(Exit::Input, text).with_hint("name the guest's CPUs with --cpus"));
    }
    let cpus = match &how.cpus {
        Some(list) => {
            let asked = CpuSet::parse_list(list).map_err(|error| {
                Failure::new(Exit::Input, format!("--cpus: {error}"))
                    .with_hint("write numbers of the guest's CPUs, such as 0-3")
            })?;
            let strange = asked.difference(&hello.cpus_online);
            if !strange.is_empty() || asked.is_empty() {
                let text = format!(
                    "--cpus: the guest has no {} that {} online",
                    cpus_text(&strange),
                    select_verb(strange.len(), "is", "are")
                );
                return Err(Failure::new(Exit::Input, text)
                    .with_hint(format!("it has {}", hello.cpus_online)));
            }
            asked
        }
        None => hello.cpus_online.clone(),
    };
    let policy = place::policy(how)?.unwrap_or(SchedPolicy::Other);
    let mut settings = run_block::settings(how, cpus, policy)?;
    settings.target = match (&how.file, disk.filter(|_| probe.reads_a_file())) {
        (Some(path), _) => Some(target_of(path)),
        (None, Some(disk)) => Some(IoTarget::Device(disk.to_owned())),
        (None, None) if probe.reads_a_file() => {
            return Err(Failure::new(Exit::Input, "in a guest io needs a disk or a file to read")
                .with_hint("use its name in the guest: --file /dev/vda"));
        }
        (None, None) => None,
    };
    Ok(settings)
}
