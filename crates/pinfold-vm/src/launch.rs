//! Starts a virtual machine so that it can be placed before its first instruction.
//!
//! The user's command line is kept and the options of [`Hypervisor::start_options`] are appended:
//! the guest does not run until it is continued, the control socket is a separate one, threads have
//! names. The sequence is: start, wait for the control socket, find the threads, return. The caller
//! places the threads and calls [`RunningVm::cont`].
//!
//! Standard input and output stay the user's. Standard error goes through a pipe, so that the
//! message of a hypervisor that fails to start can be reported; after the start it is passed on.
//!
//! The options are appended at the end of the command line, after those of the hypervisor. A
//! wrapper in front of it (`sudo`, `numactl`) passes them on; a script must do so (`"$@"`). A
//! hypervisor that does not get them opens no socket; the start then times out, and all processes
//! that were started are ended.
//!
//! Dropping a [`RunningVm`] kills the hypervisor and removes the socket. With
//! [`Lifetime::WithPinfold`] the kernel kills it even if Pinfold exits first.

mod socket;
mod started;
mod stderr;

use std::io;
use std::process::ExitStatus;

use pinfold_host::process::{Child, Spawn, Stdio, describe};
use pinfold_host::{Clock as _, HostError, LiveHost, SystemClock, proc_stat};
use pinfold_model::{CpuSet, NodeId, TaskId, Tid};

use self::socket::Socket;
use self::started::{Grandchild, Started};
use self::stderr::StderrReader;
use crate::VmError;
use crate::display_strings::DisplayStrings;
use crate::hypervisor::{Hypervisor, MachineCommand, Monitor, Version};
use crate::threads::{self, DiscoveredVm};

/// Timeout of one query after the start.
const COMMAND_TIMEOUT_NS: u64 = 10_000_000_000;
/// Maximum wait for a greeting between two calls of [`LaunchOptions::goes_on`].
const TURN_NS: u64 = 1_000_000_000;
/// Pause between two tries to connect to the socket.
const NAP_NS: u64 = 2_000_000;
/// Timeout for the exit of a hypervisor that closed the connection.
const END_TIMEOUT_NS: u64 = 2_000_000_000;

/// What happens to the hypervisor if Pinfold exits first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lifetime {
    /// The kernel kills it when the *thread* that started it ends. Start it from a thread that
    /// lives at least as long as the virtual machine.
    #[default]
    WithPinfold,
    /// It continues to run if Pinfold is killed. A dropped [`RunningVm`] still ends it, see
    /// [`RunningVm::detach`].
    OnItsOwn,
}

/// What happens to the hypervisor's standard error output after the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StderrEcho {
    /// It is passed on to Pinfold's own.
    #[default]
    On,
    /// It is only stored, see [`RunningVm::error_output`].
    Off,
}

/// Whether signals of the terminal reach the hypervisor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Terminal {
    /// Ctrl-C ends it, as if the user had started it directly.
    #[default]
    Shared,
    /// It has a separate process group; Pinfold decides when it ends.
    Apart,
}

/// Options for starting a virtual machine.
#[derive(Clone, Debug)]
pub struct LaunchOptions {
    /// Time limit from the start to the QMP greeting, in nanoseconds.
    pub start_timeout_ns: u64,
    /// What happens if Pinfold exits first.
    pub lifetime: Lifetime,
    /// What happens to the hypervisor's standard error output.
    pub echo: StderrEcho,
    /// The hypervisor's standard input.
    pub stdin: Stdio,
    /// The hypervisor's standard output.
    pub stdout: Stdio,
    /// CPUs on which it is created, so that its work before the placement (reading the firmware,
    /// first touch of memory) happens there too; `None` for Pinfold's own CPUs.
    pub affinity: Option<CpuSet>,
    /// The NUMA node to which all of its memory is bound from its start (`MPOL_BIND`): its threads
    /// inherit that policy; `None` for Pinfold's own policy.
    pub memory_node: Option<NodeId>,
    /// Group files (`tasks`, `cgroup.procs`) through which it joins groups before it starts.
    pub cgroup_files: Vec<String>,
    /// Directory for the QMP socket, created with mode 0700; `None` for Pinfold's own.
    pub runtime_dir: Option<String>,
    /// Whether ctrl-C at the terminal reaches the hypervisor.
    pub terminal: Terminal,
    /// Called while waiting for the greeting; the start is aborted when it returns false.
    pub goes_on: fn() -> bool,
}

impl Default for LaunchOptions {
    fn default() -> Self {
        Self {
            start_timeout_ns: 30_000_000_000,
            lifetime: Lifetime::default(),
            echo: StderrEcho::default(),
            stdin: Stdio::Inherit,
            stdout: Stdio::Inherit,
            affinity: None,
            memory_node: None,
            cgroup_files: Vec::new(),
            runtime_dir: None,
            terminal: Terminal::default(),
            goes_on: || true,
        }
    }
}

/// Result of [`RunningVm::cont`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resumed {
    /// The guest runs.
    Running,
    /// The user's command line has `-S`, so the user starts the guest.
    LeftStopped,
}

/// A virtual machine that Pinfold started.
pub struct RunningVm {
    /// The connection to it.
    pub monitor: Box<dyn Monitor>,
    /// Its threads at the time of the start; [`threads::discover`] finds later ones.
    pub found: DiscoveredVm,
    /// The hypervisor's version.
    pub version: Version,
    child: Child,
    /// Dropped after the child.
    grandchild: Grandchild,
    stderr_reader: StderrReader,
    socket: Socket,
    user_stopped: bool,
}

/// Starts a virtual machine stopped and finds its threads.
///
/// ```no_run
/// use pinfold_vm::{hypervisors, launch};
///
/// let words = ["qemu-system-x86_64", "-smp", "2"].map(str::to_owned);
/// let command = hypervisors::parse(&words);
/// let mut machine = launch::start_stopped(&*command, &launch::LaunchOptions::default())?;
/// // The threads of `machine.found` are pinned here.
/// machine.cont()?;
/// # Ok::<(), pinfold_vm::VmError>(())
/// ```
///
/// # Errors
/// [`VmError::NoCommand`], what [`MachineCommand::check_start`] refuses, [`VmError::NoProgram`],
/// [`VmError::StartFailed`] with the hypervisor's own message, [`VmError::StartTimeout`], or an
/// error of the monitor or the host. No process is left running.
pub fn start_stopped(
    command: &dyn MachineCommand,
    options: &LaunchOptions,
) -> Result<RunningVm, VmError> {
    let [program, arguments @ ..] = command.arguments() else { return Err(VmError::NoCommand) };
    if program.is_empty() {
        return Err(VmError::NoCommand);
    }
    let start = command.check_start()?;
    let hypervisor = command.hypervisor();
    let socket = Socket::new(options.runtime_dir.as_deref(), start.socket_name)?;
    let mut child = Spawn::new(program)
        .args(arguments)
        .args(hypervisor.start_options(&socket.path))
        .stdin(options.stdin)
        .stdout(options.stdout)
        .stderr(Stdio::Pipe)
        .die_with_parent(options.lifetime == Lifetime::WithPinfold)
        .memory_node(options.memory_node)
        .cgroup_files(options.cgroup_files.clone());
    if let Some(affinity) = &options.affinity {
        child = child.affinity(affinity.clone());
    }
    if options.terminal == Terminal::Apart {
        child = child.own_group();
    }
    let mut child =
        child.start().map_err(|error| not_spawned(error, hypervisor.display_strings()))?;
    let chatter = StderrReader::follow(child.stderr())?;
    let reached = greet(hypervisor, &mut child, &socket.path, options);
    let (monitor, found, version) = match reached {
        Ok(reached) => reached,
        Err(error) => {
            let started = Started::find(&LiveHost::new()?, child.pid(), &socket.path);
            let failed = Failed { error, child: &mut child, chatter: &chatter, started: &started };
            return Err(failed.explain(hypervisor, options)?);
        }
    };
    if options.echo == StderrEcho::On {
        chatter.pass_on();
    }
    let grandchild = Grandchild {
        task: (found.pid != child.pid()).then(|| task_of(found.pid)).transpose()?.flatten(),
    };
    let user_stopped = start.leaves_stopped;
    Ok(RunningVm {
        monitor,
        found,
        version,
        child,
        grandchild,
        stderr_reader: chatter,
        socket,
        user_stopped,
    })
}

/// The error for a program that could not be started.
fn not_spawned(error: HostError, texts: &'static DisplayStrings) -> VmError {
    let message = error.to_string();
    if matches!(&error, HostError::Process { source, .. } if (source.kind() == io::ErrorKind::NotFound))
        && let HostError::Process { source, .. } = error
    {
        return VmError::NoProgram { texts, message, source };
    }
    error.into()
}

/// Waits for the socket and its greeting, then finds the threads.
fn greet(
    hypervisor: &dyn Hypervisor,
    child: &mut Child,
    socket: &str,
    options: &LaunchOptions,
) -> Result<(Box<dyn Monitor>, DiscoveredVm, Version), VmError> {
    let clock = SystemClock;
    let deadline = clock.now_ns().saturating_add(options.start_timeout_ns);
    let mut monitor = loop {
        let left = deadline.saturating_sub(clock.now_ns());
        match hypervisor.connect(socket, left.min(TURN_NS)) {
            Ok(monitor) => break monitor,
            Err(error) if error.is_not_ready() && left > 0 && (options.goes_on)() => {}
            Err(error) => return Err(error),
        }
        if child.try_wait()?.is_some() {
            return Err(VmError::NoProcess { pid: child.pid() });
        }
        clock.sleep_ns(NAP_NS);
    };
    monitor.set_timeout(COMMAND_TIMEOUT_NS);
    let version = monitor.version()?;
    let host = LiveHost::new()?;
    // The child is the hypervisor if it opened the socket; a wrapper such as sudo starts another
    // process.
    let found = if monitor.peer() == Some(child.pid()) {
        threads::discover(&host, child.pid(), Some(&mut *monitor))?
    } else {
        threads::find(&host, &mut *monitor)?
    };
    Ok((monitor, found, version))
}

/// The process with this ID, with its start time to identify it later.
fn task_of(pid: Tid) -> Result<Option<TaskId>, VmError> {
    Ok(proc_stat::read(&LiveHost::new()?, pid)?.map(|stat| stat.task()))
}

/// A start that failed.
struct Failed<'s> {
    error: VmError,
    child: &'s mut Child,
    chatter: &'s StderrReader,
    started: &'s Started,
}

impl Failed<'_> {
    /// The error for the user, with the program's own message if it has ended. Ends all processes
    /// of the start.
    fn explain(
        self,
        hypervisor: &dyn Hypervisor,
        options: &LaunchOptions,
    ) -> Result<VmError, HostError> {
        let Self { error, child, chatter, started } = self;
        let texts = hypervisor.display_strings();
        let patience = if error.is_gone() { END_TIMEOUT_NS } else { 0 };
        let program = child.program().to_owned();
        if let Some(status) = child.wait_for(&SystemClock, patience)? {
            started.end(&LiveHost::new()?, child.pid());
            let message = chatter.last_message();
            return Ok(VmError::StartFailed { texts, program, status: describe(status), message });
        }
        child.kill()?;
        started.end(&LiveHost::new()?, child.pid());
        if !error.is_not_ready() {
            return Ok(error);
        }
        Ok(VmError::StartTimeout {
            texts,
            program,
            seconds: options.start_timeout_ns.div_ceil(1_000_000_000),
            message: chatter.last_message(),
            deaf: started.without_socket(hypervisor),
        })
    }
}

impl RunningVm {
    /// The process of the hypervisor.
    pub fn pid(&self) -> Tid {
        self.found.pid
    }

    /// Path of Pinfold's separate QMP socket.
    #[must_use]
    pub fn socket(&self) -> &str {
        &self.socket.path
    }

    /// The child that was started; with a wrapper its process is not the hypervisor's.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Starts the guest, unless the user's command line has `-S`.
    ///
    /// # Errors
    /// [`VmError`] if the hypervisor refuses or has ended.
    pub fn cont(&mut self) -> Result<Resumed, VmError> {
        if self.user_stopped {
            return Ok(Resumed::LeftStopped);
        }
        self.monitor.cont()?;
        Ok(Resumed::Running)
    }

    /// The hypervisor's exit status, if it has ended.
    ///
    /// # Errors
    /// [`VmError::Host`] if the child cannot be waited for.
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>, VmError> {
        Ok(self.child.try_wait()?)
    }

    /// Waits up to `ns` nanoseconds for the hypervisor to end.
    ///
    /// # Errors
    /// [`VmError::Host`] if the child cannot be waited for.
    pub fn wait_for(&mut self, ns: u64) -> Result<Option<ExitStatus>, VmError> {
        Ok(self.child.wait_for(&SystemClock, ns)?)
    }

    /// Waits until the hypervisor ends by itself.
    ///
    /// # Errors
    /// [`VmError::Host`] if the child cannot be waited for.
    pub fn wait(&mut self) -> Result<ExitStatus, VmError> {
        Ok(self.child.wait()?)
    }

    /// Ends the hypervisor: through its monitor, then `SIGTERM`, then `SIGKILL`, with `timeout_ns`
    /// for each of the first two. The guest is not notified; to shut it down, send
    /// `system_powerdown` and wait.
    ///
    /// # Errors
    /// [`VmError::Host`] if it can neither be signalled nor waited for.
    pub fn quit(&mut self, timeout_ns: u64) -> Result<ExitStatus, VmError> {
        self.monitor.set_timeout(timeout_ns);
        // If it refuses or does not answer, signals follow.
        let asked = self.monitor.quit().is_ok();
        if let Some(status) = self.wait_for(if asked { timeout_ns } else { 0 })? {
            return Ok(status);
        }
        self.child.terminate()?;
        match self.wait_for(timeout_ns)? {
            Some(status) => Ok(status),
            None => Ok(self.child.kill()?),
        }
    }

    /// The last 64 KiB of the hypervisor's standard error output.
    pub fn error_output(&self) -> String {
        self.stderr_reader.text()
    }

    /// Lets the hypervisor continue without Pinfold. Its socket is not removed. Only for a virtual
    /// machine started with [`Lifetime::OnItsOwn`]: the kernel kills others nevertheless.
    #[must_use]
    pub fn detach(self) -> TaskId {
        let Self { child, mut grandchild, mut socket, .. } = self;
        socket.keep = true;
        grandchild.task = None;
        child.detach()
    }
}
