//! Starts QEMU so that it can be placed before its first instruction.
//!
//! The user's command line is kept and three options are appended: `-S` (no vCPU runs until
//! `cont`), `-qmp` with a separate socket (the user's socket stays free), and `-name
//! debug-threads=on` (QEMU merges `-name` options, so the user's name stays; the names identify
//! threads that QMP does not report). The sequence is: start, wait for the greeting, find the
//! threads, return. The caller places the threads and calls [`RunningVm::cont`].
//!
//! Standard input and output stay the user's. Standard error goes through a pipe, so that the
//! message of a QEMU that fails to start can be reported; after the start it is passed on.
//!
//! The options are appended at the end of the command line, after those of QEMU. A wrapper in front
//! of it (`sudo`, `numactl`) passes them on; a script must do so (`"$@"`). A QEMU that does not get
//! them opens no socket; the start then times out, and all processes that were started are ended.
//!
//! Dropping a [`RunningVm`] kills its QEMU and removes the socket. With [`Lifetime::WithPinfold`]
//! the kernel kills QEMU even if Pinfold exits first.

mod socket;
mod started;
mod stderr;

use std::io::ErrorKind;
use std::process::ExitStatus;

use pinfold_host::process::{Child, Spawn, Stdio, describe};
use pinfold_host::{Clock as _, HostError, LiveHost, SystemClock, proc_stat};
use pinfold_model::{CpuSet, QemuCommand, TaskId, Tid};

use self::socket::Socket;
use self::started::{Grandchild, Started};
use self::stderr::Chatter;
use crate::control::{Monitor as _, QemuVersion};
use crate::qmp::Qmp;
use crate::threads::{self, Found};
use crate::{QmpError, VmError, argv};

/// Timeout of one QMP command after QEMU's greeting.
const COMMAND_TIMEOUT_NS: u64 = 10_000_000_000;
/// Maximum wait for a greeting between two calls of [`LaunchOptions::goes_on`].
const TURN_NS: u64 = 1_000_000_000;
/// Pause between two tries to connect to the socket.
const NAP_NS: u64 = 2_000_000;
/// Timeout for the exit of a QEMU that closed the connection.
const END_TIMEOUT_NS: u64 = 2_000_000_000;

/// What happens to QEMU if Pinfold exits first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lifetime {
    /// The kernel kills it when the *thread* that started QEMU ends. Start it from a thread that
    /// lives at least as long as the virtual machine.
    #[default]
    WithPinfold,
    /// It continues to run if Pinfold is killed. A dropped [`RunningVm`] still ends it, see
    /// [`RunningVm::detach`].
    OnItsOwn,
}

/// What happens to QEMU's standard error output after the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StderrEcho {
    /// It is passed on to Pinfold's own.
    #[default]
    On,
    /// It is only stored, see [`RunningVm::error_output`].
    Off,
}

/// Whether signals of the terminal reach QEMU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Terminal {
    /// Ctrl-C ends QEMU, as if the user had started it directly.
    #[default]
    Shared,
    /// QEMU has a separate process group; Pinfold decides when it ends.
    Apart,
}

/// Options for starting QEMU.
#[derive(Clone, Debug)]
pub struct LaunchOptions {
    /// Time limit from the start to the QMP greeting, in nanoseconds.
    pub start_timeout_ns: u64,
    /// What happens if Pinfold exits first.
    pub lifetime: Lifetime,
    /// What happens to QEMU's standard error output.
    pub echo: StderrEcho,
    /// QEMU's standard input.
    pub stdin: Stdio,
    /// QEMU's standard output.
    pub stdout: Stdio,
    /// CPUs on which it is created, so that its work before the placement (reading the firmware,
    /// first touch of memory) happens there too; `None` for Pinfold's own CPUs.
    pub affinity: Option<CpuSet>,
    /// Group files (`tasks`, `cgroup.procs`) through which it joins groups before it starts.
    pub cgroup_files: Vec<String>,
    /// Directory for the QMP socket, created with mode 0700; `None` for Pinfold's own.
    pub runtime_dir: Option<String>,
    /// Whether ctrl-C at the terminal reaches QEMU.
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

/// A QEMU that Pinfold started.
pub struct RunningVm {
    /// The QMP connection to it.
    pub qmp: Qmp,
    /// Its threads at the time of the start; [`threads::discover`] finds later ones.
    pub found: Found,
    /// QEMU's version, from the greeting.
    pub version: QemuVersion,
    child: Child,
    /// Dropped after the child.
    grandchild: Grandchild,
    chatter: Chatter,
    socket: Socket,
    user_stopped: bool,
}

/// Starts QEMU stopped and finds its threads.
///
/// # Errors
/// [`VmError::NoCommand`], [`VmError::Daemonize`], [`VmError::ShellText`], [`VmError::HandedOver`],
/// [`VmError::StartFailed`] with QEMU's own message, [`VmError::StartTimeout`], or an error of QMP
/// or the host. No process is left running.
pub fn start_stopped(command: &QemuCommand, options: &LaunchOptions) -> Result<RunningVm, VmError> {
    let program = command.given.first().filter(|program| !program.is_empty());
    let program = program.ok_or(VmError::NoCommand)?;
    if command.program.is_empty() {
        return Err(VmError::NoCommand);
    }
    if command.has("daemonize") {
        return Err(VmError::Daemonize);
    }
    if command.is_shell_text() {
        return Err(VmError::ShellText { program: command.program.clone() });
    }
    if argv::is_handed_over(command) {
        return Err(VmError::HandedOver);
    }
    let socket = Socket::new(options.runtime_dir.as_deref())?;
    let mut child = Spawn::new(program)
        .args(added(&command.given, &socket.path).iter().skip(1))
        .stdin(options.stdin)
        .stdout(options.stdout)
        .stderr(Stdio::Pipe)
        .die_with_parent(options.lifetime == Lifetime::WithPinfold)
        .cgroup_files(options.cgroup_files.clone());
    if let Some(affinity) = &options.affinity {
        child = child.affinity(affinity.clone());
    }
    if options.terminal == Terminal::Apart {
        child = child.own_group();
    }
    let mut child = child.start()?;
    let chatter = Chatter::follow(child.stderr())?;
    let (qmp, found, version) = match greet(&mut child, &socket.path, options) {
        Ok(greeted) => greeted,
        Err(error) => {
            let started = Started::find(&LiveHost::new()?, child.pid(), &socket.path);
            return Err(start_error(error, options, (&mut child, &chatter, &started))?);
        }
    };
    if options.echo == StderrEcho::On {
        chatter.pass_on();
    }
    let user_stopped = command.has("S");
    let grandchild = Grandchild {
        task: (found.pid != child.pid()).then(|| task_of(found.pid)).transpose()?.flatten(),
    };
    Ok(RunningVm { qmp, found, version, child, grandchild, chatter, socket, user_stopped })
}

/// The user's command line with Pinfold's options appended.
fn added(argv: &[String], socket: &str) -> Vec<String> {
    let mut words = argv.to_vec();
    // A comma in a QEMU value is written twice.
    let socket = socket.replace(',', ",,");
    let own =
        ["-S", "-qmp", &format!("unix:{socket},server=on,wait=off"), "-name", "debug-threads=on"];
    words.extend(own.map(str::to_owned));
    words
}

/// Waits for the socket and its greeting, then finds the threads.
fn greet(
    child: &mut Child,
    socket: &str,
    options: &LaunchOptions,
) -> Result<(Qmp, Found, QemuVersion), VmError> {
    let clock = SystemClock;
    let deadline = clock.now_ns().saturating_add(options.start_timeout_ns);
    let mut qmp = loop {
        let left = deadline.saturating_sub(clock.now_ns());
        match Qmp::connect(socket, left.min(TURN_NS), clock) {
            Ok(qmp) => break qmp,
            Err(error) if is_not_yet(&error) && left > 0 && (options.goes_on)() => {}
            Err(error) => return Err(error),
        }
        if child.try_wait()?.is_some() {
            let during = "its start".to_owned();
            return Err(QmpError::Closed { path: socket.to_owned(), during }.into());
        }
        clock.sleep_ns(NAP_NS);
    };
    qmp.set_timeout(COMMAND_TIMEOUT_NS);
    let version = qmp.greeted_version().clone();
    let host = LiveHost::new()?;
    // The child is QEMU if it opened the socket; a wrapper such as sudo starts another process.
    let found = match qmp.peer() == Some(child.pid()) {
        true => threads::discover(&host, child.pid(), Some(&mut qmp))?,
        false => threads::find(&host, &mut qmp)?,
    };
    Ok((qmp, found, version))
}

/// True while the socket does not exist, does not accept connections, or sent no greeting.
fn is_not_yet(error: &VmError) -> bool {
    if let VmError::Qmp(QmpError::Connect { source, .. }) = error {
        return matches!(source.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused);
    }
    matches!(error, VmError::Qmp(QmpError::Silent { .. } | QmpError::Stopped { .. }))
}

/// The process with this ID, with its start time to identify it later.
fn task_of(pid: Tid) -> Result<Option<TaskId>, VmError> {
    Ok(proc_stat::of(&LiveHost::new()?, pid)?.map(|stat| stat.task()))
}

/// The error for a start that failed, with QEMU's own message if it has ended. Ends all processes
/// of the start.
fn start_error(
    error: VmError,
    options: &LaunchOptions,
    (child, chatter, started): (&mut Child, &Chatter, &Started),
) -> Result<VmError, HostError> {
    let timed_out = is_not_yet(&error);
    let patience = if error.is_gone() { END_TIMEOUT_NS } else { 0 };
    let program = child.program().to_owned();
    if let Some(status) = child.wait_for(&SystemClock, patience)? {
        started.end(&LiveHost::new()?, child.pid());
        let message = chatter.last_words();
        return Ok(VmError::StartFailed { program, status: describe(status), message });
    }
    child.kill()?;
    started.end(&LiveHost::new()?, child.pid());
    if !timed_out {
        return Ok(error);
    }
    Ok(VmError::StartTimeout {
        program,
        seconds: options.start_timeout_ns.div_ceil(1_000_000_000),
        message: chatter.last_words(),
        deaf: started.qemu_without_socket(),
    })
}

impl RunningVm {
    /// The QEMU process.
    #[must_use]
    pub fn pid(&self) -> Tid {
        self.found.pid
    }

    /// Path of Pinfold's separate QMP socket.
    #[must_use]
    pub fn socket(&self) -> &str {
        &self.socket.path
    }

    /// The child that was started; with a wrapper its process is not QEMU's.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Starts the guest, unless the user's command line has `-S`.
    ///
    /// # Errors
    /// [`VmError`] if QEMU refuses or has ended.
    pub fn cont(&mut self) -> Result<Resumed, VmError> {
        if self.user_stopped {
            return Ok(Resumed::LeftStopped);
        }
        self.qmp.cont()?;
        Ok(Resumed::Running)
    }

    /// QEMU's exit status, if it has ended.
    ///
    /// # Errors
    /// [`VmError::Host`] if the child cannot be waited for.
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>, VmError> {
        Ok(self.child.try_wait()?)
    }

    /// Waits up to `ns` nanoseconds for QEMU to end.
    ///
    /// # Errors
    /// [`VmError::Host`] if the child cannot be waited for.
    pub fn wait_for(&mut self, ns: u64) -> Result<Option<ExitStatus>, VmError> {
        Ok(self.child.wait_for(&SystemClock, ns)?)
    }

    /// Waits until QEMU ends by itself.
    ///
    /// # Errors
    /// [`VmError::Host`] if the child cannot be waited for.
    pub fn wait(&mut self) -> Result<ExitStatus, VmError> {
        Ok(self.child.wait()?)
    }

    /// Ends QEMU: by QMP `quit`, then `SIGTERM`, then `SIGKILL`, with `timeout_ns` for each of the
    /// first two. The guest is not notified; to shut it down, send `system_powerdown` and wait.
    ///
    /// # Errors
    /// [`VmError::Host`] if it can neither be signalled nor waited for.
    pub fn quit(&mut self, timeout_ns: u64) -> Result<ExitStatus, VmError> {
        self.qmp.set_timeout(timeout_ns);
        // If QEMU refuses or does not answer, signals follow.
        let asked = self.qmp.quit().is_ok();
        if let Some(status) = self.wait_for(if asked { timeout_ns } else { 0 })? {
            return Ok(status);
        }
        self.child.terminate()?;
        match self.wait_for(timeout_ns)? {
            Some(status) => Ok(status),
            None => Ok(self.child.kill()?),
        }
    }

    /// The last 64 KiB of QEMU's standard error output.
    #[must_use]
    pub fn error_output(&self) -> String {
        self.chatter.text()
    }

    /// Lets QEMU continue without Pinfold. Its socket is not removed. Only for a virtual machine
    /// started with [`Lifetime::OnItsOwn`]: the kernel kills others nevertheless.
    #[must_use]
    pub fn detach(self) -> TaskId {
        let Self { child, mut grandchild, mut socket, .. } = self;
        socket.keep = true;
        grandchild.task = None;
        child.detach()
    }
}
