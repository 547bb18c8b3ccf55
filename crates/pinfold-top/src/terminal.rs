//! The terminal of the live screen; it is as before once this is dropped.

use std::io::{self, Stdout};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use ratatui_core::terminal::Terminal;
use ratatui_crossterm::CrosstermBackend;
use ratatui_crossterm::crossterm::event::{self, Event, KeyEventKind};
use ratatui_crossterm::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui_crossterm::crossterm::{cursor, execute};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::screen::{Flow, Screen};

/// The terminal of standard output, in its second buffer and without echo.
#[derive(Debug)]
pub struct LiveTerminal {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    events: Receiver<Event>,
}

impl LiveTerminal {
    /// Takes the terminal.
    ///
    /// # Errors
    /// [`io::Error`] if it has no raw mode or cannot be written.
    pub fn open() -> io::Result<Self> {
        enable_raw_mode()?;
        // From here on it is given back by `drop`.
        let terminal = match Terminal::new(CrosstermBackend::new(io::stdout())) {
            Ok(terminal) => terminal,
            Err(error) => {
                disable_raw_mode()?;
                return Err(error);
            }
        };
        let (sender, events) = mpsc::channel();
        let taken = Self { terminal, events };
        // Reading blocks within an unfinished sequence of bytes, and never ends once the terminal
        // was closed; the thread ends with the process.
        thread::spawn(move || {
            while let Ok(event) = event::read() {
                let Ok(()) = sender.send(event) else { return };
            }
        });
        execute!(io::stdout(), EnterAlternateScreen, cursor::Hide)?;
        Ok(taken)
    }

    /// Draws a screen.
    ///
    /// # Errors
    /// [`io::Error`] if the terminal cannot be written, for instance because it was closed.
    pub fn draw(&mut self, screen: &Screen) -> io::Result<()> {
        self.terminal.draw(|frame| screen.draw(frame)).map(|_| ())
    }

    /// Passes the keys of at most this time to a screen, and draws it after each and after a
    /// change of the size. A terminal that was closed quits.
    ///
    /// # Errors
    /// As [`Self::draw`].
    pub fn take_keys(&mut self, screen: &mut Screen, time: Duration) -> io::Result<Flow> {
        if is_closed()? {
            return Ok(Flow::Quit);
        }
        let event = match self.events.recv_timeout(time) {
            Ok(event) => event,
            Err(RecvTimeoutError::Timeout) => return Ok(Flow::Continue),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(io::Error::other("the keys cannot be read"));
            }
        };
        if let Event::Key(key) = event
            && key.kind != KeyEventKind::Release
            && screen.press(key) == Flow::Quit
        {
            return Ok(Flow::Quit);
        }
        self.draw(screen)?;
        Ok(Flow::Continue)
    }
}

/// True if the terminal was closed.
fn is_closed() -> io::Result<bool> {
    let stdin = io::stdin();
    let mut sources = [PollFd::new(&stdin, PollFlags::empty())];
    match rustix::event::poll(&mut sources, Some(&Timespec::default())) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let gone = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
    Ok(sources.iter().any(|source| source.revents().intersects(gone)))
}

impl Drop for LiveTerminal {
    fn drop(&mut self) {
        // A terminal that was closed needs nothing.
        let (Ok(()) | Err(_)) = execute!(io::stdout(), LeaveAlternateScreen, cursor::Show);
        let (Ok(()) | Err(_)) = disable_raw_mode();
    }
}
