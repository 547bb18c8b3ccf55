//! Where text goes: data to standard output, talk to standard error.
//!
//! A reader that goes away (`pinfold topo | head`) is not an error of ours.
//!
//! Names of guests, of threads and of files are chosen by others: see [`pinfold_model::shown`].

use std::io::{self, IsTerminal, Write};

use pinfold_model::shown::{self, harmless};

use crate::screen;

/// Prints data.
pub fn data(text: &str) {
    ignore_closed_pipe(write_all(&mut io::stdout().lock(), &harmless(text)));
}

/// Prints text for people: its lines fit the terminal.
pub fn show(text: &str) {
    data(&screen::fitted(text));
}

/// How good an answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// All is well.
    Good,
    /// There is something to know.
    Mixed,
    /// It is not as it should be.
    Bad,
}

/// Prints the answer that a command begins with, in colour on a terminal. The words alone say it.
pub fn answer(tone: Tone, text: &str) {
    let text = harmless(text).into_owned();
    let text = screen::fitted(text.trim_end());
    let code = match tone {
        Tone::Good => "1;32",
        Tone::Mixed => "1;33",
        Tone::Bad => "1;31",
    };
    ignore_closed_pipe(match is_coloured(io::stdout().is_terminal()) {
        true => write_all(&mut io::stdout().lock(), &format!("\u{1b}[{code}m{text}\u{1b}[0m")),
        false => write_all(&mut io::stdout().lock(), &text),
    });
}

/// Colour is for terminals that have it, unless `NO_COLOR` is set (<https://no-color.org>).
fn is_coloured(is_terminal: bool) -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    is_terminal && !is_set("NO_COLOR") && !is_dumb
}

/// Prints help to standard output, what is wrong with a command line to standard error.
pub fn usage(error: &clap::Error) {
    let (columns, is_terminal) = match error.use_stderr() {
        true => (screen::error_columns(), io::stderr().is_terminal()),
        false => (screen::columns(), io::stdout().is_terminal()),
    };
    let text = match is_coloured(is_terminal) {
        true => error.render().ansi().to_string(),
        false => harmless(&error.render().to_string()).into_owned(),
    };
    let text = screen::folded(&text, columns.unwrap_or(screen::PLAIN).into());
    ignore_closed_pipe(match error.use_stderr() {
        true => write_all(&mut io::stderr().lock(), &text),
        false => write_all(&mut io::stdout().lock(), &text),
    });
}

/// Prints a file's content byte for byte, for one who keeps it as a file.
pub fn document(text: &str) {
    ignore_closed_pipe(write_all(&mut io::stdout().lock(), text));
}

/// Says something to the person at the terminal.
pub fn say(text: &str) {
    let text = harmless(text);
    // Sentences fold where somebody reads them; logs keep their lines.
    let columns = screen::error_columns();
    let text = columns.map_or(text.clone(), |columns| screen::folded(&text, columns.into()).into());
    // Who cannot be told is not told. What is being done goes on: a supervisor in the background
    // outlives the one who heard its first words.
    match write_all(&mut io::stderr().lock(), &text) {
        Ok(()) | Err(_) => {}
    }
}

/// A name on one line.
pub fn name(text: &str) -> String {
    shown::name(text).into_owned()
}

/// True if a person looks at standard error.
pub fn has_person() -> bool {
    io::stderr().is_terminal()
}

fn write_all(stream: &mut dyn Write, text: &str) -> io::Result<()> {
    stream.write_all(text.as_bytes())?;
    if !text.ends_with('\n') {
        stream.write_all(b"\n")?;
    }
    stream.flush()
}

/// Output that nobody reads any more has no one to be told about it.
fn ignore_closed_pipe(result: io::Result<()>) {
    if let Err(error) = result {
        if error.kind() != io::ErrorKind::BrokenPipe {
            std::process::exit(i32::from(crate::failure::Exit::Host.code()));
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
        let shown = harmless(&value.to_string()).into_owned();
        assert!(!shown.contains(char::is_control), "{shown}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
    }
}
