//! The encoding of the user's text files.

use crate::HostError;

/// The byte order mark in UTF-8.
const MARK: &[u8] = b"\xef\xbb\xbf";

/// Decodes a user's file as UTF-8, without the byte order mark that editors of Windows write.
///
/// # Errors
/// [`HostError::Encoding`] if it is not UTF-8, with the line and the offset of the first invalid
/// bytes.
pub fn text(path: &str, mut bytes: Vec<u8>) -> Result<String, HostError> {
    if bytes.starts_with(MARK) {
        bytes.drain(..MARK.len());
    }
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
        // The usual encoding of Windows and older editors in western Europe; every byte is valid in
        // it.
        fail(why, "ISO-8859-1")
    })
}

/// Detects UTF-16 and UTF-32 by the byte order mark, or by the zero bytes of an ASCII letter at the
/// start. Returns the name for messages and that for iconv.
fn wide(bytes: &[u8]) -> Option<(&'static str, &'static str)> {
    match *bytes {
        [0xff, 0xfe, 0, 0, ..] | [0, 0, 0xfe, 0xff, ..] => Some(("UTF-32", "UTF-32")),
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => Some(("UTF-16", "UTF-16")),
        [1..=0x7f, 0, 1..=0x7f, 0, ..] => Some(("UTF-16", "UTF-16LE")),
        [0, 1..=0x7f, 0, 1..=0x7f, ..] => Some(("UTF-16", "UTF-16BE")),
        _ => None,
    }
}
