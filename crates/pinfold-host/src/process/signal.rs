//! The signals that Pinfold sends.

use rustix::process::Signal;

/// Signals that Pinfold sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signaled {
    /// `SIGTERM`: request to terminate.
    Terminate,
    /// `SIGKILL`: terminate at once.
    Kill,
    /// `SIGINT`: interrupt from the terminal.
    Interrupt,
    /// `SIGHUP`: the terminal was closed.
    HangUp,
    /// `SIGQUIT`: terminate with a core dump.
    Quit,
    /// `SIGALRM`.
    Alarm,
    /// `SIGUSR1`.
    User1,
    /// `SIGUSR2`.
    User2,
    /// `SIGPIPE`.
    Pipe,
    /// `SIGSTOP`: stop.
    Stop,
    /// `SIGCONT`: continue.
    Continue,
}

impl Signaled {
    pub(crate) fn number(self) -> Signal {
        match self {
            Signaled::Terminate => Signal::TERM,
            Signaled::Kill => Signal::KILL,
            Signaled::Interrupt => Signal::INT,
            Signaled::HangUp => Signal::HUP,
            Signaled::Quit => Signal::QUIT,
            Signaled::Alarm => Signal::ALARM,
            Signaled::User1 => Signal::USR1,
            Signaled::User2 => Signal::USR2,
            Signaled::Pipe => Signal::PIPE,
            Signaled::Stop => Signal::STOP,
            Signaled::Continue => Signal::CONT,
        }
    }
}
