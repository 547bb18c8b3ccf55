//! Input as text.

use std::borrow::Cow;

/// The bytes as text, converted like the contents of a file.
pub(crate) fn text(bytes: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}
