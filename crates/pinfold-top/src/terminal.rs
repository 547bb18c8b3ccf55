//! The terminal of the live screen; it is as before once this is dropped.

use std::io::{self, Stdout};
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
        let taken = Self { terminal };
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
        if is_closed_within(time)? {
            return Ok(Flow::Quit);
        }
        if !event::poll(Duration::ZERO)? {
            return Ok(Flow::Continue);
        }
        if let Event::Key(key) = event::read()?
            && key.kind != KeyEventKind::Release
            && screen.press(key) == Flow::Quit
        {
            return Ok(Flow::Quit);
        }
        self.draw(screen)?;
        Ok(Flow::Continue)
    }
}

/// Waits for a key or a change of the size for at most this time. True if the terminal was closed:
/// crossterm then reads its end for ever.
fn is_closed_within(time: Duration) -> io::Result<bool> {
    let stdin = io::stdin();
    let mut sources = [PollFd::new(&stdin, PollFlags::IN)];
    let timeout = Timespec::try_from(time).map_err(io::Error::other)?;
    match rustix::event::poll(&mut sources, Some(&timeout)) {
        // A change of the size is a signal.
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
