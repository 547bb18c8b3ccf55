//! Runs any command, placed like a machine.
//!
//! The command waits at a gate until it is placed: the processes that it starts later inherit CPUs,
//! cgroup, memory nodes and policy. The gate is a socket and not the standard input, which belongs
//! to the command. If Pinfold is killed before that, the gate ends too; if it is killed later, the
//! command continues, and `pinfold undo` reverts the placement.

use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitStatus;

use pinfold_apply::Target;
use pinfold_host::files::StateDir;
use pinfold_host::process::{self, Child, Spawn};
use pinfold_host::{Clock as _, ControlSocket, EventWatcher, LiveHost, SystemClock};
use pinfold_model::{NodeId, Plan, Role, TaskId, Tid};

use crate::apply_session::{self, Placement};
use crate::descendants::{Descendants, OnLeft};
use crate::emulate::exec::forward_signals;
use crate::helper_program::{Helper, HelperProgram, Session};
use crate::message::say;
use crate::noise::{self, Counters, Detail, Noise, ObservedCommand, Observer};
use crate::rt_watchdog::{RtWatchdog, Supervision};
use crate::start_lock::StartLock;
use crate::start_memory::StartMemory;
use crate::{Exit, Failure, host, interrupt};

/// Timeout for the gate to connect to the socket.
const GATE_NS: u64 = 10_000_000_000;
/// Maximum wait if no watchdog needs heartbeats; signals and the end of the command interrupt it.
const LONGEST_WAIT_NS: u64 = 5_000_000_000;
const GO: u8 = b'g';
/// Name of a gate's socket, before and after the PID of its process and the number of the gate.
const SOCKET: (&str, &str) = ("run-", ".sock");

/// A command that has ended.
#[derive(Debug)]
pub struct Ended {
    /// Its exit status.
    pub status: ExitStatus,
    /// What disturbed its CPUs while it ran, without the time to place it and to undo that.
    pub noise: Result<Noise, Failure>,
}

/// How a command is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunOptions {
    /// What to do with what it leaves in the background.
    pub on_left: OnLeft,
    /// How much of its noise is observed.
    pub detail: Detail,
}

/// Runs a command under a plan until it ends. `starting` is held since the
/// claims of the plan were read.
pub fn run(
    Session { state, program }: Session<'_>,
    plan: &Plan,
    words: &[String],
    RunOptions { on_left, detail }: RunOptions,
    starting: StartLock,
) -> Result<Ended, Failure> {
    let host = host::live()?;
    let clock = SystemClock;
    let journals = host::journals(state, &clock)?;
    plan.findings.iter().for_each(|finding| say(&finding.to_string()));
    interrupt::install_forward()?;
    interrupt::install_child()?;
    let gate = Gate::open(state, 0)?;
    let node = StartMemory::read(&host, plan, None)?.node();
    let mut command = gate.start(program, words, node)?;
    // Not before: the command inherits the mask, and gets it back when it is no longer placed.
    let is_off = noise::leave_cores(&host, process::own_pid(), plan)?;
    if detail == Detail::Gaps && !is_off {
        say(&noise::shares_cpus().to_string());
    }
    let target = Target {
        started_on: node,
        ..Target::new(command.pid(), vec![(command.task(), Role::Task)])
    };
    let placement = Placement { plan, target: &target };
    let supervision = Supervision { journals: &journals, program };
    process::become_subreaper()?;
    let (applied, journal, mut guard, group) =
        apply_session::apply_command(&host, placement, supervision)?;
    drop(starting);
    apply_session::report(&applied);
    let descendants = Descendants::read(&host, command.pid(), group)?;
    let cpus = plan.pus();
    let observed =
        ObservedCommand { name: String::new(), task: command.task(), cpus: cpus.clone() };
    let observer = (detail == Detail::Gaps).then(|| Observer::start(vec![observed])).transpose();
    let before = Counters::read(&host, &cpus);
    let ended = gate.release_command(&mut command).and_then(|()| {
        let status = wait(&host, &descendants, &mut command, guard.as_mut())?;
        let after = Counters::read(&host, &cpus);
        let observed = observer.map(|observer| observer.and_then(|one| one.stop().pop()));
        let noise = before.and_then(|before| Ok(after?.since(&before).with(observed?)));
        Ok(Ended { status, noise })
    });
    if ended.is_err() {
        drop(command);
    }
    let settled = descendants.settle(&host, on_left);
    let undone = apply_session::undo(&host, journal);
    if let Some(guard) = guard {
        guard.end();
    }
    let ended = ended?;
    undone?;
    settled?;
    Ok(ended)
}

/// The name of the program, as far as it is a valid vnode name.
pub fn name_of(command: &[String]) -> String {
    let program = command.first().map_or("", String::as_str);
    let name = program.rsplit('/').next().unwrap_or_default();
    let name: String = name
        .chars()
        .map(|c: char| if c.is_alphanumeric() || "-_.+".contains(c) { c } else { '_' })
        .take(64)
        .collect();
    if name.is_empty() { "command".to_owned() } else { name }
}

/// Waits for the end of the command, forwards signals to it, and sends heartbeats to the watchdog.
fn wait(
    host: &LiveHost,
    descendants: &Descendants,
    command: &mut Child,
    mut guard: Option<&mut RtWatchdog>,
) -> Result<ExitStatus, Failure> {
    let mut watcher = EventWatcher::default();
    loop {
        forward_signals(command)?;
        let now = SystemClock.now_ns();
        let mut wait_ns = LONGEST_WAIT_NS;
        if let Some(guard) = guard.as_deref_mut() {
            guard.beat(now)?;
            wait_ns = guard.next().saturating_sub(now);
        }
        if let Some(status) = command.try_wait()? {
            return Ok(status);
        }
        descendants.reap(host, command.pid())?;
        let signals: Vec<_> = interrupt::signal_fd().into_iter().collect();
        watcher.wait(wait_ns, &signals)?;
        interrupt::drain_signal_pipe();
    }
}

/// True for the name of a gate's socket.
pub(crate) fn is_socket(name: &str) -> bool {
    let (prefix, suffix) = SOCKET;
    let numbers = name.strip_prefix(prefix).and_then(|name| name.strip_suffix(suffix));
    // An earlier version had one gate a process, without a number.
    let numbers = numbers.map(|numbers| numbers.split_once('-').unwrap_or((numbers, "0")));
    numbers.is_some_and(|(pid, gate)| pid.parse::<u32>().is_ok() && gate.parse::<usize>().is_ok())
}

/// The point where a command waits until it is placed.
pub(crate) struct Gate {
    door: ControlSocket,
    path: String,
}

impl Gate {
    /// The gate with this number of this process.
    pub(crate) fn open(state: &StateDir, number: usize) -> Result<Self, Failure> {
        let (prefix, suffix) = SOCKET;
        let path = state.path_of(&format!("{prefix}{}-{number}{suffix}", process::own_pid()));
        let door = ControlSocket::at(&path)?;
        Ok(Self { door, path })
    }

    /// The command line of a command that waits at the gate.
    pub(crate) fn words(&self, program: &HelperProgram, command: &[String]) -> Vec<String> {
        program.words(Helper::Gate { socket: Some(&self.path), command })
    }

    /// The command, if it has come. `find` identifies it by its PID: `status` and `undo` connect
    /// too, to see whether the socket is in use.
    pub(crate) fn accept(
        &self,
        find: &dyn Fn(Tid) -> Result<Option<TaskId>, Failure>,
    ) -> Result<Option<WaitingCommand>, Failure> {
        while let Some(stream) = self.door.accept() {
            if let Some(task) = find(ControlSocket::peer_of(&stream)?)? {
                return Ok(Some(WaitingCommand { task, stream }));
            }
        }
        Ok(None)
    }

    /// Starts the command at the gate; its memory is bound to `node`, if given.
    fn start(
        &self,
        program: &HelperProgram,
        command: &[String],
        node: Option<NodeId>,
    ) -> Result<Child, Failure> {
        let gate = Helper::Gate { socket: Some(&self.path), command };
        program.spawn(gate).memory_node(node).start().map_err(Failure::from)
    }

    /// Lets the command continue.
    fn release_command(self, command: &mut Child) -> Result<(), Failure> {
        let until = SystemClock.now_ns().saturating_add(GATE_NS);
        let mut watcher = EventWatcher::default();
        loop {
            if let Some(waiting) =
                self.accept(&|pid| Ok((pid == command.pid()).then(|| command.task())))?
            {
                return waiting.release();
            }
            let left = until.saturating_sub(SystemClock.now_ns());
            let ended = command.try_wait()?.is_some();
            if left == 0 || ended {
                return Err(early_exit());
            }
            watcher.wait(left, &[self.as_fd()])?;
        }
    }
}

impl AsFd for Gate {
    /// Readable when a process has connected.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.door.as_fd()
    }
}

/// A command that waits at its gate.
pub(crate) struct WaitingCommand {
    /// The command.
    pub(crate) task: TaskId,
    stream: UnixStream,
}

impl WaitingCommand {
    /// Lets it continue.
    pub(crate) fn release(mut self) -> Result<(), Failure> {
        self.stream.write_all(&[GO]).map_err(|_| early_exit())
    }
}

fn early_exit() -> Failure {
    Failure::new(Exit::Host, "the command exited before it was released")
}

/// The process at the gate: executes the command when the gate is opened, and exits if the process
/// that would open it has ended.
pub fn wait_at(socket: &str, command: &[String]) -> Result<(), Failure> {
    let mut go = [0];
    let mut stream = UnixStream::connect(socket).map_err(gate_failed)?;
    stream.read_exact(&mut go).map_err(gate_failed)?;
    drop(stream);
    let Some((program, words)) = command.split_first() else {
        return Err(Failure::new(Exit::Input, "no command was given"));
    };
    Err(Failure::from(Spawn::new(program).args(words).replace_self()))
}

fn gate_failed(error: std::io::Error) -> Failure {
    Failure::new(Exit::Host, format!("gate: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_called_as_its_program() {
        assert_eq!(name("/usr/bin/make"), "make");
        assert_eq!(name("./my script=1"), "my_script_1");
        assert_eq!((name("").as_str(), name("/").as_str()), ("command", "command"));
    }

    fn name(program: &str) -> String {
        name_of(&[program.to_owned()])
    }
}
