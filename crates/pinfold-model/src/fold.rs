//! Folds sentences into lines, so that every command can be copied and pasted.
//!
//! Text between backticks is a command. It is not broken between two arguments: it moves to the
//! next line as a whole. A command that is wider than a line gets lines of its own, without
//! backticks; these are broken before options, with the shell's backslash at the end.
//!
//! ```text
//! places the machine anew:
//!   pinfold apply --libvirt 'win 10' --isolate host --avoid 0,16 \
//!     --prefer cache
//! and keeps other tasks off
//! ```

use crate::text;

/// Folds `words` after the prefix `first`; further lines begin with `below`. Lines have at most
/// `columns` columns where words and commands allow it.
pub fn fold_words(first: &str, below: &str, words: &str, columns: usize) -> String {
    let mut sheet =
        Lines { text: first.to_owned(), below, columns, used: width(first), is_open: true };
    for piece in pieces(words) {
        match piece {
            Piece::Word(word) => {
                text::break_words(word, columns.saturating_sub(width(below)))
                    .for_each(|part| sheet.word(part));
            }
            Piece::Command(Command { whole, .. }) if sheet.fits(whole) => sheet.word(whole),
            Piece::Command(command) => sheet.command(&command),
        }
    }
    sheet.text.truncate(sheet.text.trim_end().len().max(first.len()));
    sheet.text
}

/// A part of a sentence.
enum Piece<'t> {
    Word(&'t str),
    Command(Command<'t>),
}

/// A command in a sentence.
struct Command<'t> {
    /// The command with its backticks and adjacent text.
    whole: &'t str,
    /// The command itself.
    line: &'t str,
    /// The text that follows directly.
    after: &'t str,
}

struct Lines<'t> {
    text: String,
    below: &'t str,
    columns: usize,
    /// Number of used columns in the last line.
    used: usize,
    /// True if the next word needs no blank before it.
    is_open: bool,
}

impl Lines<'_> {
    /// True if the word fits on a line that begins with it.
    fn fits(&self, word: &str) -> bool {
        width(self.below) + width(word) <= self.columns
    }

    fn word(&mut self, word: &str) {
        let length = width(word);
        if !self.is_open && self.used + 1 + length > self.columns {
            self.next_line();
        }
        if !self.is_open {
            self.text.push(' ');
            self.used += 1;
        }
        self.text.push_str(word);
        self.used += length;
        self.is_open = false;
    }

    fn next_line(&mut self) {
        self.text.truncate(self.text.trim_end().len());
        self.text.push('\n');
        self.text.push_str(self.below);
        self.used = width(self.below);
        self.is_open = true;
    }

    /// Puts a command on lines of its own.
    fn command(&mut self, command: &Command<'_>) {
        let is_empty = self.text.rsplit('\n').next().is_none_or(|line| line.trim().is_empty());
        if !is_empty {
            self.next_line();
        }
        for (index, group) in groups(command.line).into_iter().enumerate() {
            let length = width(group);
            // A backslash takes two more columns.
            if index > 0 && self.used + 1 + length + 2 > self.columns {
                self.text.push_str(" \\");
                self.next_line();
                self.text.push_str("  ");
                self.used += 2;
            } else if index > 0 {
                self.text.push(' ');
                self.used += 1;
            }
            self.text.push_str(group);
            self.used += length;
        }
        self.next_line();
        // The line break replaces a comma or bracket.
        if !command.after.chars().all(|letter| letter.is_ascii_punctuation()) {
            self.word(command.after);
        }
    }
}

/// Splits a text into words and commands of several words.
fn pieces(text: &str) -> Vec<Piece<'_>> {
    let mut found = Vec::new();
    let mut rest = Some(text);
    while let Some(text) = rest {
        let word_end = text.find(' ').unwrap_or(text.len());
        let opened = text[..word_end].find('`').map(|at| at + 1);
        let command = opened.and_then(|from| Some((from, from + closing(&text[from..])?)));
        let end = match command {
            Some((_, to)) => text[to..].find(' ').map_or(text.len(), |at| to + at),
            None => word_end,
        };
        found.push(match command {
            Some((from, to)) if end > word_end => Piece::Command(Command {
                whole: &text[..end],
                line: &text[from..to],
                after: &text[to + 1..end],
            }),
            _ => Piece::Word(&text[..end]),
        });
        rest = text.get(end + 1..);
    }
    found
}

/// Position of the backtick that ends a command; backticks within quotes do not count.
fn closing(text: &str) -> Option<usize> {
    let mut quote = None;
    text.char_indices().find_map(|(at, letter)| {
        match (letter, quote) {
            ('`', None) => return Some(at),
            ('\'' | '"', None) => quote = Some(letter),
            (_, Some(open)) if open == letter => quote = None,
            (_, _) => {}
        }
        None
    })
}

/// Splits a command into parts that each begin with an option; it may be broken between them.
fn groups(line: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let (mut start, mut quote) = (0, None);
    for (at, letter) in line.char_indices() {
        match (letter, quote) {
            (' ', None) if line[at + 1..].starts_with('-') => {
                found.push(&line[start..at]);
                start = at + 1;
            }
            ('\'' | '"', None) => quote = Some(letter),
            (_, Some(open)) if open == letter => quote = None,
            (_, _) => {}
        }
    }
    found.push(&line[start..]);
    found
}

/// Number of columns that a text takes; colour sequences (`ESC [ … m`) take none.
pub fn width(text: &str) -> usize {
    let coloured = text.split("\u{1b}[").skip(1);
    let codes = coloured.map(|code| 2 + code.find('m').map_or(0, |end| end + 1));
    text.chars().count() - codes.sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_fold_and_commands_stay_whole() {
        check(80, "one two", "- one two");
        check(9, "one two three", "- one two\n  three");
        check(12, "averyveryverylongword and", "- averyveryverylongword\n  and");
        check(80, "run `a b`, then c", "- run `a b`, then c");
        // Fits on a line of its own.
        check(16, "run this: `ab c -d`, now", "- run this:\n  `ab c -d`, now");
        // Does not fit: gets lines of its own, broken before an option.
        check(
            16,
            "run `prog --one 1 --two 2`, then more",
            "- run\n  prog --one 1 \\\n    --two 2\n  then more",
        );
        check(16, "(`prog --one 1 --two 2`) ends", "-\n  prog --one 1 \\\n    --two 2\n  ends");
        check(16, "`prog -n 'a -b  c' -m`", "-\n  prog \\\n    -n 'a -b  c' \\\n    -m");
        // No option, no break.
        check(16, "see `for a in 1 2 3; do x; done`", "- see\n  for a in 1 2 3; do x; done");
        check(16, "`ab 'x`y' cd` and `e", "- `ab 'x`y' cd`\n  and `e");
        check(9, "the `x y`'s end of it", "- the\n  `x y`'s\n  end of\n  it");
        check(80, "a  b ", "- a  b");
        check(80, "", "- ");
    }

    fn check(columns: usize, text: &str, expected: &str) {
        assert_eq!(fold_words("- ", "  ", text, columns), expected, "{text:?} in {columns}");
    }
}
