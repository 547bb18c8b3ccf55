//! Pinfold commands in messages, in a form that the reader can run.

use std::fmt;
use std::sync::OnceLock;

/// The global options of this process, as shell text.
static GLOBAL_OPTIONS: OnceLock<String> = OnceLock::new();

/// Sets the options that every [`Command`] of this process repeats. Only the first call counts:
/// a process has one command line.
pub fn set_global_options(options: String) {
    GLOBAL_OPTIONS.get_or_init(|| options);
}

/// A command in a message: `pinfold undo 7-1`.
///
/// It is displayed with the global options of the user's command line, so that it uses the same
/// state folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    words: String,
}

impl Command {
    /// The command with these arguments, which are already shell text.
    pub fn new(words: impl Into<String>) -> Self {
        Self { words: words.into() }
    }

    /// Adds an argument, quoted where a shell needs it.
    #[must_use]
    pub fn arg(mut self, argument: &str) -> Self {
        self.words = format!("{} {}", self.words, quote(argument));
        self
    }

    fn with(&self, options: &str) -> String {
        let space = if options.is_empty() { "" } else { " " };
        format!("pinfold{space}{options} {}", self.words)
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.with(GLOBAL_OPTIONS.get().map_or("", String::as_str)))
    }
}

/// Quotes an argument for sh; NUL, which no argument can contain, is dropped.
pub fn quote(argument: &str) -> String {
    if !argument.is_empty()
        && argument
            .bytes()
            .all(|byte: u8| byte.is_ascii_alphanumeric() || b"-_=+:,./@%".contains(&byte))
    {
        return argument.to_owned();
    }
    format!("'{}'", argument.replace('\0', "").replace('\'', r"'\''"))
}

/// Splits as `env -S` does: at blanks outside quotes. A backslash makes the next character literal;
/// `\_` is a blank. Variables (`${NAME}`) are kept as written.
pub fn split_words(text: &str) -> Vec<String> {
    split(text).words
}

/// The words of a command that a user typed as one argument; `None` if a quote is not closed.
pub fn split_command(text: &str) -> Option<Vec<String>> {
    let split = split(text);
    split.open_quote.is_none().then_some(split.words)
}

struct Split {
    words: Vec<String>,
    open_quote: Option<char>,
}

fn split(text: &str) -> Split {
    let mut words: Vec<String> = Vec::new();
    let mut word: Option<String> = None;
    let mut quote: Option<char> = None;
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match (letter, quote) {
            (_, Some(open)) if letter == open => quote = None,
            ('\'' | '"', None) => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            ('\\', None | Some('"')) => match letters.next() {
                Some('_') if quote.is_none() => words.extend(word.take()),
                Some('_') => word.get_or_insert_default().push(' '),
                Some(next) => word.get_or_insert_default().push(next),
                None => {}
            },
            (blank, None) if blank.is_ascii_whitespace() => words.extend(word.take()),
            (other, _) => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word);
    Split { words, open_quote: quote }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_with_an_open_quote_is_none() {
        assert_eq!(split_command("a 'b c' \"d\""), Some(split_words("a 'b c' d")));
        for open in ["a 'b", "\"", "a 'b' \"c'"] {
            assert_eq!(split_command(open), None, "{open}");
        }
    }

    #[test]
    fn a_command_repeats_the_global_options() {
        let undo = Command::new("undo").arg("7 1");
        assert_eq!(undo.to_string(), "pinfold undo '7 1'");
        let options = format!("--state-dir {}", quote("/tmp/a b"));
        assert_eq!(undo.with(&options), "pinfold --state-dir '/tmp/a b' undo '7 1'");
    }
}
