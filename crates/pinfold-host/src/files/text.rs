//! The encoding of files that people wrote.

use crate::HostError;

/// The text of a user's file.
///
/// # Errors
/// [`HostError::Encoding`] if it is not UTF-8, with the line and the offset of the first bytes that
/// are not.
pub fn text(path: &str, bytes: Vec<u8>) -> Result<String, HostError> {
    let fail = |why: String, likely| HostError::Encoding { path: path.to_owned(), why, likely };
    if let Some((name, likely)) = wide(&bytes) {
        return Err(fail(format!("line 1, byte offset 0: this is {name} text, not UTF-8"), likely));
    }
    String::from_utf8(bytes).map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        let (before, from) = error.as_bytes().split_at(offset);
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        let length = error.utf8_error().error_len().unwrap_or(from.len());
        let shown: Vec<String> =
            from.iter().take(length).map(|byte| format!("0x{byte:02x}")).collect();
        let why = format!("line {line}, byte offset {offset}: {} is not UTF-8", shown.join(" "));
        // What Windows and older editors of western Europe write; every byte of it has a meaning.
        fail(why, "ISO-8859-1")
    })
}

/// The encoding of a text in units of two or four bytes: by its mark, or by the zeros of an ASCII
/// letter at its start. Its name for people, and for iconv.
fn wide(bytes: &[u8]) -> Option<(&'static str, &'static str)> {
    match *bytes {
        [0xff, 0xfe, 0, 0, ..] | [0, 0, 0xfe, 0xff, ..] => Some(("UTF-32", "UTF-32")),
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => Some(("UTF-16", "UTF-16")),
        [1..=0x7f, 0, 1..=0x7f, 0, ..] => Some(("UTF-16", "UTF-16LE")),
        [0, 1..=0x7f, 0, 1..=0x7f, ..] => Some(("UTF-16", "UTF-16BE")),
        _ => None,
    }
}
