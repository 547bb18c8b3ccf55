//! The program that runs the helper processes of a task.
//!
//! Some work needs a process of its own that outlives a crash of this one or is started before the
//! command that is placed: [`Helper`] lists it. Each is a subcommand of `pinfold`, with the code in
//! this crate. The binary passes its own path; another program that uses this crate passes the path
//! of `pinfold`, because starting itself would run its own `main` again.

use pinfold_emulate::Cleanup;
use pinfold_host::files::StateDir;
use pinfold_host::process::Spawn;

use crate::{Exit, Failure};

/// The program, by its path.
///
/// ```
/// use pinfold_run::HelperProgram;
///
/// // The binary `pinfold` passes `HelperProgram::own()`.
/// let program = HelperProgram::at("/usr/bin/pinfold");
/// assert_ne!(program, HelperProgram::own()?);
/// # Ok::<(), pinfold_run::Failure>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HelperProgram(String);

/// A helper process.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Helper<'a> {
    /// Takes the real-time policies of a placement when the heartbeats end:
    /// [`crate::rt_watchdog::guard`].
    Guard {
        /// Path of the state directory.
        state: &'a str,
        /// Id of the journal.
        journal: &'a str,
    },
    /// Reverts a placement when its machine ends: [`crate::end_waiter::wait`].
    EndWaiter {
        /// Path of the state directory.
        state: &'a str,
        /// Id of the journal.
        journal: &'a str,
    },
    /// Places a domain for which libvirt no longer waits: [`crate::libvirt_hook::handle`].
    LateHook {
        /// Path of the state directory.
        state: &'a str,
        /// The start of the domain.
        event: &'a HookEvent,
    },
    /// Executes a command when it is let go, by this socket or at the end of its standard input:
    /// [`crate::gate::wait_at`].
    Gate {
        /// Path of the socket.
        socket: Option<&'a str>,
        /// The command.
        command: &'a [String],
    },
    /// Undoes a placement: the command of a gate that a process keeps closed while it lives.
    Undo {
        /// Path of the state directory.
        state: &'a str,
        /// Id of the journal.
        journal: &'a str,
    },
    /// Releases a vnode when the heartbeats end: [`crate::emulate::helpers::spawn_watchdog`].
    Sentinel(&'a Cleanup),
    /// The supervisor of a platform: [`crate::emulate::supervisor::supervise`].
    Supervisor {
        /// Path of the state directory.
        state: &'a str,
        /// Path of the platform file.
        platform: &'a str,
        /// Real-time burners may run on the last CPU of the host's own tasks too.
        share_housekeeping: bool,
        /// The platform is planned as if the host had no other owners of CPUs.
        ignore_claims: bool,
        /// Costs are measured fully.
        calibrate: bool,
    },
    /// The guest that measures the cost of observing exits: [`crate::exits::micro_guest`].
    MicroGuest,
}

impl HelperProgram {
    /// The program at a path; a name without a slash is found in `PATH`.
    pub fn at(path: impl Into<String>) -> Self {
        Self(path.into())
    }

    /// This program, for the binary `pinfold`.
    ///
    /// # Errors
    /// [`Failure`] if `/proc` does not show its path.
    pub fn own() -> Result<Self, Failure> {
        let path = std::env::current_exe().map_err(|error| {
            Failure::new(Exit::Host, format!("cannot find this program: {error}"))
        })?;
        Ok(Self(path.to_string_lossy().into_owned()))
    }

    /// The command line of a helper.
    pub(crate) fn words(&self, helper: Helper<'_>) -> Vec<String> {
        let mut line = vec![self.0.as_str()];
        let writes: Vec<String>;
        match helper {
            Helper::Guard { state, journal } => {
                line.extend(["--state-dir", state, "guard", journal]);
            }
            Helper::EndWaiter { state, journal } => {
                line.extend(["--state-dir", state, "end-waiter", journal]);
            }
            Helper::LateHook { state, event } => {
                line.extend(["--state-dir", state, "libvirt-hook", "--late"]);
                line.extend(["--plans", &event.plans, "--domains", &event.domains]);
                line.extend(["--run-dir", &event.run_dir]);
                line.extend([event.domain.as_str(), &event.operation, &event.phase, "-"]);
            }
            Helper::Gate { socket, command } => {
                line.push("gate");
                line.extend(socket.into_iter().flat_map(|socket| ["--socket", socket]));
                line.push("--");
                line.extend(command.iter().map(String::as_str));
            }
            Helper::Undo { state, journal } => {
                line.extend(["--state-dir", state, "undo", journal]);
            }
            Helper::Sentinel(Cleanup::Thaw { files }) => {
                writes = files.iter().map(|(path, value)| format!("{path}={value}")).collect();
                line.push("sentinel");
                line.extend(writes.iter().flat_map(|write| ["--write", write]));
            }
            Helper::Sentinel(Cleanup::Continue { group }) => {
                line.extend(["sentinel", "--continue", group]);
            }
            Helper::Supervisor {
                state,
                platform,
                share_housekeeping,
                ignore_claims,
                calibrate,
            } => {
                line.extend(["--state-dir", state, "emulate", "up", "--foreground", platform]);
                line.extend(share_housekeeping.then_some("--share-housekeeping"));
                line.extend(ignore_claims.then_some("--ignore-claims"));
                line.extend(calibrate.then_some("--calibrate"));
            }
            Helper::MicroGuest => line.push("micro-guest"),
        }
        line.into_iter().map(str::to_owned).collect()
    }

    /// The start of the program itself, without arguments.
    pub(crate) fn start(&self) -> Spawn {
        Spawn::new(&self.0)
    }

    /// The start of a helper.
    pub(crate) fn spawn(&self, helper: Helper<'_>) -> Spawn {
        Spawn::new(&self.0).args(&self.words(helper)[1..])
    }
}

/// An event of a domain's life cycle.
#[derive(Clone, Debug, Default)]
pub struct HookEvent {
    /// Name of the domain.
    pub domain: String,
    /// What happens: `started`, `stopped`, …
    pub operation: String,
    /// `begin` or `end`.
    pub phase: String,
    /// Folder with the plans.
    pub plans: String,
    /// File of the domains that are planned at their start.
    pub domains: String,
    /// Folder with the pid files of domains.
    pub run_dir: String,
    /// True if libvirt does not wait: the process that goes on after the hook.
    pub is_late: bool,
}

/// Where a task keeps its state, and the program of its helpers.
#[derive(Clone, Copy)]
pub struct Session<'a> {
    /// The directory of the journals and sockets.
    pub state: &'a StateDir,
    /// The program.
    pub program: &'a HelperProgram,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_helper_has_its_command_line() {
        check(
            Helper::EndWaiter { state: "/run/p", journal: "500-7" },
            "/usr/bin/pinfold --state-dir /run/p end-waiter 500-7",
        );
        let event = HookEvent {
            domain: "-d".to_owned(),
            operation: "started".to_owned(),
            phase: "begin".to_owned(),
            plans: "/p".to_owned(),
            domains: "/d".to_owned(),
            run_dir: "/r".to_owned(),
            is_late: false,
        };
        check(
            Helper::LateHook { state: "/run/p", event: &event },
            "/usr/bin/pinfold --state-dir /run/p libvirt-hook --late --plans /p --domains /d \
             --run-dir /r -d started begin -",
        );
        let command = ["make".to_owned(), "-j2".to_owned()];
        check(
            Helper::Guard { state: "/run/p", journal: "500-7" },
            "/usr/bin/pinfold --state-dir /run/p guard 500-7",
        );
        check(
            Helper::Gate { socket: Some("/run/p/s"), command: &command },
            "/usr/bin/pinfold gate --socket /run/p/s -- make -j2",
        );
        check(
            Helper::Gate { socket: None, command: &command },
            "/usr/bin/pinfold gate -- make -j2",
        );
        let files = vec![("/cg/a/freeze".to_owned(), "0".to_owned())];
        check(
            Helper::Sentinel(&Cleanup::Thaw { files }),
            "/usr/bin/pinfold sentinel --write /cg/a/freeze=0",
        );
        check(
            Helper::Sentinel(&Cleanup::Continue { group: "/cg/a".to_owned() }),
            "/usr/bin/pinfold sentinel --continue /cg/a",
        );
        check(
            Helper::Supervisor {
                state: "/run/p",
                platform: "p.toml",
                share_housekeeping: true,
                ignore_claims: true,
                calibrate: false,
            },
            "/usr/bin/pinfold --state-dir /run/p emulate up --foreground p.toml --share-housekeeping --ignore-claims",
        );
        check(Helper::MicroGuest, "/usr/bin/pinfold micro-guest");
    }

    fn check(helper: Helper<'_>, expected: &str) {
        assert_eq!(HelperProgram::at("/usr/bin/pinfold").words(helper).join(" "), expected);
    }
}
