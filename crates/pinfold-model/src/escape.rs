//! Escapes names from outside before they are displayed.
//!
//! Names of guests, threads, commands and files come from other programs and users. Characters that
//! could control a terminal (control characters, escape sequences) or change the text direction are
//! shown as `\u001b` and have no effect. This is JSON's escape syntax, so that they keep their
//! meaning in JSON.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Escapes a name for a single line. Line breaks and tabs are escaped too, so that a name cannot
/// imitate a line of Pinfold's output.
pub fn name(text: &str) -> Cow<'_, str> {
    spell(text, |letter| is_control_or_bidi(letter) || matches!(letter, '\n' | '\t'))
}

/// Longest name in a message, in characters: a name from outside may have any length.
const LONGEST_NAME: usize = 120;

/// [`name`], cut where a message needs no more of it. Not for a name that is looked up, compared or
/// given to another program.
///
/// ```
/// let shown = pinfold_model::escape::short_name(&"x".repeat(65_536)).into_owned();
/// assert!(shown.ends_with('…') && shown.chars().count() == 121);
/// ```
pub fn short_name(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(LONGEST_NAME) {
        Some((end, _)) => Cow::Owned(format!("{}…", name(&text[..end]))),
        None => name(text),
    }
}

/// True if [`name`] leaves the name unchanged.
#[must_use]
pub fn is_plain(text: &str) -> bool {
    matches!(name(text), Cow::Borrowed(_))
}

/// Longest line of an error in characters: a file may contain a value of any length.
const LONGEST_LINE: usize = 1000;
/// Number of characters that are kept at the start of a longer line, and at its end.
const START: usize = 600;
const END: usize = 200;

/// Cuts the middle out of long lines.
pub fn shorten(text: &str) -> Cow<'_, str> {
    // No line has more characters than the text has bytes.
    if text.len() <= LONGEST_LINE {
        return Cow::Borrowed(text);
    }
    let lines: Vec<Cow<'_, str>> = text.split('\n').map(shortened_line).collect();
    Cow::Owned(lines.join("\n"))
}

fn shortened_line(line: &str) -> Cow<'_, str> {
    let count = line.chars().count();
    if count <= LONGEST_LINE {
        return Cow::Borrowed(line);
    }
    let start = line.chars().take(START);
    let end = line.chars().skip(count - END);
    Cow::Owned(start.chain(['…']).chain(end).collect())
}

/// Escapes control characters in a text; its line breaks and tabs stay.
pub fn escape_text(text: &str) -> Cow<'_, str> {
    spell(text, is_control_or_bidi)
}

fn is_control_or_bidi(letter: char) -> bool {
    match letter {
        '\n' | '\t' => false,
        '\u{61c}' | '\u{200e}' | '\u{200f}' => true,
        '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
        other => other.is_control(),
    }
}

fn spell(text: &str, is_spelled: fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(is_spelled) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        if !is_spelled(letter) {
            shown.push(letter);
        } else if write!(shown, "\\u{:04x}", u32::from(letter)).is_err() {
            // Writing to a String never fails.
            shown.push('\u{fffd}');
        }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_a_terminal_is_shown_and_not_done() {
        check("vm-1: 2 cores\n\tÄ → 3", "vm-1: 2 cores\n\tÄ → 3");
        check("a\u{1b}]0;title\u{7}b", "a\\u001b]0;title\\u0007b");
        check("\u{9b}2J\r\u{7f}", "\\u009b2J\\u000d\\u007f");
        check("gnp\u{202e}.exe\u{2066}\u{2028}", "gnp\\u202e.exe\\u2066\\u2028");
        assert_eq!(name("vm\npinfold: all is well\t"), "vm\\u000apinfold: all is well\\u0009");
    }

    fn check(text: &str, expected: &str) {
        assert_eq!(escape_text(text), expected, "{text:?}")
    }

    #[test]
    fn long_lines_lose_their_middle() {
        let long = format!("first\nfile: \"{}\" is no number\nlast", "ä".repeat(100_000));
        let short = shorten(&long);
        assert!(
            short.starts_with("first\nfile: \"ää") && short.ends_with("ä\" is no number\nlast")
        );
        assert_eq!(short.chars().count(), "first\n".len() + START + 1 + END + "\nlast".len());
        let whole = "a line\n".repeat(1000);
        assert_eq!(shorten(&whole), whole);
    }
}
