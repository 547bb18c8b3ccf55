//! The stored inputs of a target: one file, one input per line.
//!
//! ```text
//! 0-3,8\n
//! \xff\\
//! ```
//!
//! Printable ASCII is literal; a backslash is doubled, and all other bytes are `\n`, `\t`, `\r` or
//! `\xNN`. So a corpus is readable, and a new input is one new line.

use std::fmt::Write as _;

/// An input as a line, without its end.
#[must_use]
pub fn to_line(input: &[u8]) -> String {
    let mut line = String::with_capacity(input.len());
    for byte in input {
        match byte {
            b'\\' => line.push_str("\\\\"),
            b'\n' => line.push_str("\\n"),
            b'\t' => line.push_str("\\t"),
            b'\r' => line.push_str("\\r"),
            b' '..=b'~' => line.push(char::from(*byte)),
            _ => drop(write!(line, "\\x{byte:02x}")),
        }
    }
    line
}

/// The input of a line.
///
/// # Errors
/// The invalid escape.
pub fn from_line(line: &str) -> Result<Vec<u8>, String> {
    let mut input = Vec::with_capacity(line.len());
    let mut rest = line;
    while let Some((before, after)) = rest.split_once('\\') {
        input.extend_from_slice(before.as_bytes());
        let fail = || format!("\\{} is no escape", after.chars().take(3).collect::<String>());
        let (byte, length) = match after.as_bytes().first() {
            Some(b'\\') => (b'\\', 1),
            Some(b'n') => (b'\n', 1),
            Some(b't') => (b'\t', 1),
            Some(b'r') => (b'\r', 1),
            Some(b'x') => {
                let digits = after.get(1..3).ok_or_else(fail)?;
                (u8::from_str_radix(digits, 16).map_err(|_| fail())?, 3)
            }
            _ => return Err(fail()),
        };
        input.push(byte);
        rest = &after[length..];
    }
    input.extend_from_slice(rest.as_bytes());
    Ok(input)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_hold_any_bytes() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(from_line(&to_line(&all)).unwrap(), all);
        assert_eq!(to_line(b"a\\\n\xff\t"), "a\\\\\\n\\xff\\t");
        for wrong in ["\\", "\\q", "\\x1", "\\xg0", "a\\é"] {
            assert!(from_line(wrong).is_err(), "{wrong}");
        }
    }
}
