//! Output: data to standard output, messages to standard error.
//!
//! A closed pipe (`pinfold topo | head`) is not an error.
//!
//! Names of guests, threads and files come from outside: see [`pinfold_model::escape`].

use std::io::{self, IsTerminal, Write};

use pinfold_model::escape::{self, escape_text};

use crate::screen;

/// Prints text to standard output.
pub fn print_data(text: &str) {
    ignore_closed_pipe(write_all(&mut io::stdout().lock(), &escape_text(text)));
}

/// Prints text for the user, folded to the width of the terminal.
pub fn show(text: &str) {
    print_data(&screen::fit_width(text));
}

/// Rating of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// Everything is in order.
    Good,
    /// In order, with limitations that the user should know.
    Mixed,
    /// Not in order.
    Bad,
}

/// Prints the answer with which the output of a command starts, coloured on a terminal. The text is
/// complete without the colour.
pub fn answer(tone: Tone, text: &str) {
    let text = escape_text(text).into_owned();
    let text = screen::fit_width(text.trim_end());
    let code = match tone {
        Tone::Good => "1;32",
        Tone::Mixed => "1;33",
        Tone::Bad => "1;31",
    };
    ignore_closed_pipe(if is_coloured(io::stdout().is_terminal()) {
        write_all(&mut io::stdout().lock(), &format!("\u{1b}[{code}m{text}\u{1b}[0m"))
    } else {
        write_all(&mut io::stdout().lock(), &text)
    });
}

/// Colours are used on terminals that support them, unless `NO_COLOR` is set
/// (<https://no-color.org>).
fn is_coloured(is_terminal: bool) -> bool {
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    is_terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) && !is_dumb
}

/// Prints help to standard output, and errors in a command line to standard error.
pub fn usage(error: &clap::Error) {
    let (columns, is_terminal) = if error.use_stderr() {
        (screen::error_columns(), io::stderr().is_terminal())
    } else {
        (screen::columns(), io::stdout().is_terminal())
    };
    let text = if is_coloured(is_terminal) {
        error.render().ansi().to_string()
    } else {
        escape_text(&error.render().to_string()).into_owned()
    };
    let text = screen::fold_text(&text, columns.unwrap_or(screen::DEFAULT_COLUMNS).into());
    ignore_closed_pipe(if error.use_stderr() {
        write_all(&mut io::stderr().lock(), &text)
    } else {
        write_all(&mut io::stdout().lock(), &text)
    });
}

/// Prints the contents of a file byte for byte.
pub fn document(text: &str) {
    ignore_closed_pipe(write_all(&mut io::stdout().lock(), text));
}

/// Prints a message for the user.
pub fn print_message(text: &str) {
    let text = escape_text(text);
    // Sentences are folded on a terminal; logs keep their lines.
    let columns = screen::error_columns();
    let text =
        columns.map_or(text.clone(), |columns| screen::fold_text(&text, columns.into()).into());
    // A failed write is ignored, and the work continues: a supervisor in the background outlives
    // the process that read its first messages.
    match write_all(&mut io::stderr().lock(), &text) {
        Ok(()) | Err(_) => {}
    }
}

/// A name on one line.
pub fn name(text: &str) -> String {
    escape::name(text).into_owned()
}

/// The start of a name, for a message.
pub fn short_name(text: &str) -> String {
    escape::short_name(text).into_owned()
}

/// True if standard error is a terminal.
pub fn is_stderr_terminal() -> bool {
    io::stderr().is_terminal()
}

fn write_all(stream: &mut dyn Write, text: &str) -> io::Result<()> {
    stream.write_all(text.as_bytes())?;
    if !text.ends_with('\n') {
        stream.write_all(b"\n")?;
    }
    stream.flush()
}

/// If the reader has closed the pipe, there is no one to report it to.
fn ignore_closed_pipe(result: io::Result<()>) {
    if let Err(error) = result {
        if error.kind() != io::ErrorKind::BrokenPipe {
            std::process::exit(i32::from(pinfold_run::Exit::Host.code()));
        }
        std::process::exit(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_means_the_same_afterwards() {
        let value = serde_json::json!({ "name": "a\u{1b}\u{9b}\u{202e}\r\nb" });
        let shown = escape_text(&value.to_string()).into_owned();
        assert!(!shown.contains(char::is_control), "{shown}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
    }
}
