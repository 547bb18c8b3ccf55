//! Failures of commands: a message, its causes, a hint, and an exit code.

use pinfold_apply::{ApplyError, JournalError};
use pinfold_emulate::SpeedError;
use pinfold_exits::ExitsError;
use pinfold_host::{HostError, process, with_causes};
use pinfold_model::escape;
use pinfold_study::RunError;
use pinfold_study::store::StoreError;
use pinfold_vm::VmError;
use std::error::Error;
use std::fmt;

/// Exit codes, as documented in `pinfold --help`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The result is negative.
    No = 1,
    /// Invalid command line or input file.
    Input = 2,
    /// The host does not support or does not allow the operation.
    Host = 3,
    /// The virtual machine could not be started or ended.
    Vm = 4,
    /// Something could not be restored.
    Residue = 5,
    /// The command to run does not exist or is not executable, as shells report it.
    NoProgram = 127,
    /// Interrupted by the user.
    Interrupted = 130,
}

impl Exit {
    const ALL: [Self; 7] = [
        Self::No,
        Self::Input,
        Self::Host,
        Self::Vm,
        Self::Residue,
        Self::NoProgram,
        Self::Interrupted,
    ];

    /// The one with this code: of another process of Pinfold.
    pub(crate) fn from_code(code: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|exit| i32::from(exit.code()) == code)
    }

    /// The exit code.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Exit::No => 1,
            Exit::Input => 2,
            Exit::Host => 3,
            Exit::Vm => 4,
            Exit::Residue => 5,
            Exit::NoProgram => 127,
            Exit::Interrupted => 130,
        }
    }
}

/// The unsuccessful end of a command.
///
/// ```
/// use pinfold_run::{Exit, Failure};
///
/// let failure = Failure::new(Exit::Input, "--cpus: no CPU 99").with_hint("`pinfold topo` shows them");
/// assert_eq!((failure.exit.code(), failure.message.as_str()), (2, "--cpus: no CPU 99"));
/// ```
#[derive(Debug)]
pub struct Failure {
    /// The exit code.
    pub exit: Exit,
    /// The error, cause after cause.
    pub message: String,
    /// A hint for the user.
    pub hint: Option<String>,
}

impl Failure {
    /// A failure with this message.
    pub fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: escape::shorten(&message.into()).into_owned(), hint: None }
    }

    /// A failure from an error of a library: its text and the texts of its causes.
    pub fn from_error(exit: Exit, error: &(dyn Error + 'static), hint: Option<String>) -> Self {
        Self { hint, ..Self::new(exit, with_causes(error)) }
    }

    /// For a user who is not root: adds the command to a hint to be root.
    #[must_use]
    pub fn for_user(mut self, is_root: bool, command: &str) -> Self {
        const AS_ROOT: [&str; 2] = ["run it as root", "run as root"];
        if let Some(hint) = self.hint.as_mut().filter(|_| !is_root)
            && let Some(found) = AS_ROOT.into_iter().find(|words| hint.contains(words))
        {
            *hint = hint.replacen(found, &format!("run it as root (`sudo {command}`)"), 1);
        }
        self
    }

    /// Adds a hint.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pinfold: {}", self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "\n\n  {hint}"),
            None => Ok(()),
        }
    }
}

/// With a hint if the error number suggests one.
impl From<HostError> for Failure {
    fn from(error: HostError) -> Self {
        const EPERM: i32 = 1;
        const EACCES: i32 = 13;
        const ENOSPC: i32 = 28;
        let hint = if matches!(error, HostError::Kept { .. }) { error.hint() } else { None };
        let failure = Failure::from_error(Exit::Host, &error, hint);
        match error.errno() {
            Some(EPERM | EACCES) if !process::is_root() => {
                failure.with_hint("run it as root; `pinfold doctor` lists which rights are missing")
            }
            Some(EPERM | EACCES) => {
                failure.with_hint("`pinfold doctor` lists which rights are missing")
            }
            Some(ENOSPC) => failure.with_hint(
                "free some space on that file system, or choose another with --state-dir",
            ),
            Some(_) | None => failure,
        }
    }
}

impl From<JournalError> for Failure {
    fn from(error: JournalError) -> Self {
        Failure::from_error(Exit::Host, &error, error.hint())
    }
}

impl From<SpeedError> for Failure {
    fn from(error: SpeedError) -> Self {
        Failure::from_error(Exit::Host, &error, error.hint())
    }
}

/// If something could not be undone, that determines the exit code.
impl From<ApplyError> for Failure {
    fn from(error: ApplyError) -> Self {
        let exit = match (error.undone(), &error) {
            (Some(report), _) if !report.is_complete() => Exit::Residue,
            (_, ApplyError::VmGone { .. }) => Exit::Vm,
            (_, _) => Exit::Host,
        };
        Failure::from_error(exit, &error, error.hint())
    }
}

impl From<ExitsError> for Failure {
    fn from(error: ExitsError) -> Self {
        let exit = match error {
            ExitsError::Silent { .. } => Exit::No,
            ExitsError::Ended | ExitsError::Statistics { .. } => Exit::Vm,
            ExitsError::LockedDown { .. }
            | ExitsError::Rights { .. }
            | ExitsError::NoTracing { .. }
            | ExitsError::NoKvm { .. }
            | ExitsError::Refused { .. }
            | ExitsError::Container
            | ExitsError::MicroGuest { .. }
            | ExitsError::Host(_) => Exit::Host,
        };
        Failure::from_error(exit, &error, error.hint())
    }
}

impl From<VmError> for Failure {
    fn from(error: VmError) -> Self {
        let exit = match error {
            VmError::Host(_) | VmError::NoProgram { .. } => Exit::Host,
            ref error if error.is_input() => Exit::Input,
            VmError::Driver(_)
            | VmError::NoCommand
            | VmError::NoProcess { .. }
            | VmError::NotHypervisor { .. }
            | VmError::ForeignThread { .. }
            | VmError::ForeignOwner { .. }
            | VmError::NoVcpus
            | VmError::Nameless { .. }
            | VmError::OneThread { .. }
            | VmError::StartFailed { .. }
            | VmError::StartTimeout { .. } => Exit::Vm,
        };
        Failure::from_error(exit, &error, error.hint())
    }
}

impl From<RunError> for Failure {
    fn from(error: RunError) -> Self {
        let exit = match error {
            RunError::Runner { .. } | RunError::KeepsFailing { .. } => Exit::Host,
            RunError::Rule(_)
            | RunError::Refused { .. }
            | RunError::Stored(_)
            | RunError::Budget { .. }
            | RunError::Document { .. }
            | RunError::Store(_) => Exit::Input,
        };
        Failure::from_error(exit, &error, error.hint())
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Failure::from_error(Exit::Input, &error, error.hint())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_to_be_root_has_the_command() {
        fn failure() -> Failure {
            Failure::new(Exit::Host, "no").with_hint("run as root, or wait")
        }

        fn hint(failure: Failure) -> String {
            failure.hint.unwrap()
        }

        let user = hint(failure().for_user(false, "pinfold watch"));
        assert_eq!(user, "run it as root (`sudo pinfold watch`), or wait");
        assert_eq!(hint(failure().for_user(true, "pinfold watch")), "run as root, or wait");
    }
}
