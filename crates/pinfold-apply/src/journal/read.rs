//! Reads the content of a journal from its text.
//!
//! The text ends at the last newline. Anything after it was being written at a power failure or a
//! kill. Its step was not done, because a step is done only after its line has reached the disk.
//! Any other line that is not understood makes the whole journal invalid: nothing of it is
//! executed.

use super::schema::{FAMILY, FormatLine, HeaderLine, Line, READABLE};
use super::{Header, JournalError, Record};

impl Record {
    /// Parses a journal; `None` if not even its header is complete, which means that nothing was
    /// done.
    ///
    /// # Errors
    /// [`JournalError::Malformed`] with the line, [`JournalError::Newer`].
    pub fn parse(path: &str, bytes: &[u8]) -> Result<Option<Self>, JournalError> {
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let mut lines = bytes[..whole].split_inclusive(|byte| *byte == b'\n').zip(1..);
        let Some((first, _)) = lines.next() else { return Ok(None) };
        let header = parse_header(path, first)?;
        let mut record = Self::new(header);
        record.torn = whole < bytes.len();
        for (line, number) in lines {
            let malformed =
                |why: String| JournalError::Malformed { path: path.to_owned(), line: number, why };
            let line: Line =
                serde_json::from_slice(line).map_err(|error| malformed(error.to_string()))?;
            record.add(line.into()).map_err(|why| malformed(why.to_owned()))?;
        }
        Ok(Some(record))
    }
}

fn parse_header(path: &str, line: &[u8]) -> Result<Header, JournalError> {
    let malformed = |why: String| JournalError::Malformed { path: path.to_owned(), line: 1, why };
    let format: FormatLine =
        serde_json::from_slice(line).map_err(|error| malformed(error.to_string()))?;
    if !READABLE.contains(&format.format.as_str()) {
        return Err(if format.format.starts_with(FAMILY) {
            JournalError::Newer { path: path.to_owned(), format: format.format }
        } else {
            malformed(format!("{:?} is not a journal's format", format.format))
        });
    }
    let header: HeaderLine =
        serde_json::from_slice(line).map_err(|error| malformed(error.to_string()))?;
    Ok(header.into())
}
