//! Starting QEMU so that it can be placed before its first instruction.
//!
//! The user's command line is kept and three options are added at its end: `-S` (no vCPU
//! runs until `cont`), `-qmp` with a socket of Pinfold's own (the user's stays free for the
//! user), and `-name debug-threads=on` (QEMU merges `-name` options, so the user's name stays;
//! names tell apart the threads that QMP does not know). Then: start, wait for the greeting,
//! find the threads, hand over. Who placed them calls [`RunningVm::cont`].
//!
//! Standard input and output stay the user's. The error output goes through a pipe, so that the
//! message of a QEMU that does not start can be told; once it has started it is passed on.
//!
//! The options are added at the end of the command line, behind those of QEMU: a wrapper in front of
//! it (`sudo`, `numactl`) hands them on, a script must do so (`"$@"`). A QEMU that does not get
//! them opens no socket; the start then fails after its time, and all that was started is ended.
//!
//! A [`RunningVm`] that is dropped kills its QEMU and removes the socket; with
//! [`Lifetime::WithPinfold`] the kernel kills QEMU even if Pinfold dies first.

mod socket;
mod started;
mod stderr;

use std::io::ErrorKind;
use std::process::ExitStatus;

use pinfold_host::process::{Child, Spawn, Stdio, describe};
use pinfold_host::{Clock as _, HostError, LiveHost, SystemClock, proc_stat};
use pinfold_model::{CpuSet, TaskId, Tid};

use self::socket::Socket;
use self::started::{Grandchild, Started};
use self::stderr::Chatter;
use crate::control::{Monitor as _, QemuVersion};
use crate::qmp::Qmp;
use crate::threads::{self, Found};
use crate::{QmpError, VmError, argv};

/// How long one QMP command may take once QEMU has greeted.
const COMMAND_TIMEOUT_NS: u64 = 10_000_000_000;
/// How long a greeting is waited for before it is asked whether to go on.
const TURN_NS: u64 = 1_000_000_000;
/// Pause between two looks for the socket.
const NAP_NS: u64 = 2_000_000;
/// How long a QEMU that hung up may take to end.
const END_TIMEOUT_NS: u64 = 2_000_000_000;

/// What happens to QEMU if Pinfold ends first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lifetime {
    /// The kernel kills it. It watches the *thread* that started QEMU: start from one that
    /// lives as long as the virtual machine shall.
    #[default]
    WithPinfold,
    /// It runs on (when Pinfold is killed; a dropped [`RunningVm`] still ends it, see
    /// [`RunningVm::detach`]).
    OnItsOwn,
}

/// What becomes of QEMU's error output after the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Echo {
    /// It is passed on to Pinfold's own.
    #[default]
    On,
    /// It is only kept, see [`RunningVm::error_output`].
    Off,
}

/// Whether signals of the terminal reach QEMU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Terminal {
    /// Ctrl-C ends QEMU, as if it had been started by hand.
    #[default]
    Shared,
    /// QEMU has a process group of its own; Pinfold decides when it ends.
    Apart,
}

/// How to start QEMU.
#[derive(Clone, Debug)]
pub struct LaunchOptions {
    /// Time from the start to the QMP greeting.
    pub start_timeout_ns: u64,
    /// What happens if Pinfold ends first.
    pub lifetime: Lifetime,
    /// What becomes of QEMU's error output.
    pub echo: Echo,
    /// Its standard input.
    pub stdin: Stdio,
    /// Its standard output.
    pub stdout: Stdio,
    /// CPUs on which it is created, so that even what it does before it is placed (reading the
    /// firmware, first touch of memory) is done there; `None` for where Pinfold runs.
    pub affinity: Option<CpuSet>,
    /// Group files (`tasks`, `cgroup.procs`) into which it goes before it starts.
    pub cgroup_files: Vec<String>,
    /// Directory for the QMP socket, made with mode 0700; `None` for Pinfold's own.
    pub runtime_dir: Option<String>,
    /// Whether ctrl-C at the terminal reaches QEMU.
    pub terminal: Terminal,
    /// Asked while the greeting is waited for; once it says no, the start is given up.
    pub goes_on: fn() -> bool,
}

impl Default for LaunchOptions {
    fn default() -> Self {
        Self {
            start_timeout_ns: 30_000_000_000,
            lifetime: Lifetime::default(),
            echo: Echo::default(),
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

/// What [`RunningVm::cont`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resumed {
    /// The guest runs.
    Running,
    /// The user's command line has `-S`, so starting the guest is left to the user.
    LeftStopped,
}

/// A QEMU that Pinfold started.
pub struct RunningVm {
    /// Its QMP connection.
    pub qmp: Qmp,
    /// Its threads as they were when it had started; [`threads::discover`] finds later ones.
    pub found: Found,
    /// Its version.
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
/// [`VmError::StartFailed`] with QEMU's own message, [`VmError::StartTimeout`], or that QMP or
/// the host failed. Nothing is left running.
pub fn start_stopped(argv: &[String], options: &LaunchOptions) -> Result<RunningVm, VmError> {
    let program = argv.first().filter(|program| !program.is_empty()).ok_or(VmError::NoCommand)?;
    let command = argv::parse(argv);
    if command.program.is_empty() {
        return Err(VmError::NoCommand);
    }
    if command.has("daemonize") {
        return Err(VmError::Daemonize);
    }
    if command.is_shell_text() {
        return Err(VmError::ShellText { program: command.program });
    }
    if argv::is_handed_over(&command) {
        return Err(VmError::HandedOver);
    }
    let socket = Socket::new(options.runtime_dir.as_deref())?;
    let mut child = Spawn::new(program)
        .args(added(argv, &socket.path).iter().skip(1))
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
    if options.echo == Echo::On {
        chatter.pass_on();
    }
    let user_stopped = command.has("S");
    let grandchild = Grandchild {
        task: (found.pid != child.pid()).then(|| task_of(found.pid)).transpose()?.flatten(),
    };
    Ok(RunningVm { qmp, found, version, child, grandchild, chatter, socket, user_stopped })
}

/// The user's command line with what Pinfold needs at its end.
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
    // What was started is QEMU, by whatever name; a wrapper such as sudo starts another process.
    let found = match qmp.peer() == Some(child.pid()) {
        true => threads::discover(&host, child.pid(), Some(&mut qmp))?,
        false => threads::find(&host, &mut qmp)?,
    };
    Ok((qmp, found, version))
}

/// No socket yet, or one that is not listened to yet, or no greeting yet.
fn is_not_yet(error: &VmError) -> bool {
    if let VmError::Qmp(QmpError::Connect { source, .. }) = error {
        return matches!(source.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused);
    }
    matches!(error, VmError::Qmp(QmpError::Silent { .. } | QmpError::Stopped { .. }))
}

/// The process of this number, so that it is known again.
fn task_of(pid: Tid) -> Result<Option<TaskId>, VmError> {
    Ok(proc_stat::of(&LiveHost::new()?, pid)?.map(|stat| stat.task()))
}

/// What is to be said of a start that failed, QEMU's own words if it has ended; ends whatever the
/// start brought about.
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

    /// Path of Pinfold's own QMP socket.
    #[must_use]
    pub fn socket(&self) -> &str {
        &self.socket.path
    }

    /// The child that was started; its process is not QEMU's if a wrapper was named.
    pub fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Lets the guest run, unless the user asked for `-S`.
    ///
    /// # Errors
    /// [`VmError`] if QEMU refuses or is gone.
    pub fn cont(&mut self) -> Result<Resumed, VmError> {
        if self.user_stopped {
            return Ok(Resumed::LeftStopped);
        }
        self.qmp.cont()?;
        Ok(Resumed::Running)
    }

    /// How QEMU ended, if it has.
    ///
    /// # Errors
    /// [`VmError::Host`] if the child cannot be waited for.
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>, VmError> {
        Ok(self.child.try_wait()?)
    }

    /// Waits at most that long for QEMU's end.
    ///
    /// # Errors
    /// [`VmError::Host`] if the child cannot be waited for.
    pub fn wait_for(&mut self, ns: u64) -> Result<Option<ExitStatus>, VmError> {
        Ok(self.child.wait_for(&SystemClock, ns)?)
    }

    /// Waits until QEMU ends of its own accord.
    ///
    /// # Errors
    /// [`VmError::Host`] if the child cannot be waited for.
    pub fn wait(&mut self) -> Result<ExitStatus, VmError> {
        Ok(self.child.wait()?)
    }

    /// Ends QEMU: asks by QMP, then by `SIGTERM`, then kills, with `timeout_ns` for each of the
    /// first two. The guest is not asked; to shut it down, send `system_powerdown` and wait.
    ///
    /// # Errors
    /// [`VmError::Host`] if it can neither be signalled nor waited for.
    pub fn quit(&mut self, timeout_ns: u64) -> Result<ExitStatus, VmError> {
        self.qmp.set_timeout(timeout_ns);
        // A refusal or silence is not the end of it: signals follow.
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

    /// What QEMU said on its error output, the last 64 KiB of it.
    #[must_use]
    pub fn error_output(&self) -> String {
        self.chatter.text()
    }

    /// Lets QEMU live on without Pinfold. Its socket stays where it is. Only for a virtual
    /// machine started with [`Lifetime::OnItsOwn`]: the kernel kills the others all the same.
    #[must_use]
    pub fn detach(self) -> TaskId {
        let Self { child, mut grandchild, mut socket, .. } = self;
        socket.keep = true;
        grandchild.task = None;
        child.detach()
    }
}
