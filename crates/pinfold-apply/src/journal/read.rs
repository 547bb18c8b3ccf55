//! Reads the content of a journal from its text.
//!
//! The text ends at the last newline. Anything after it was being written at a power failure or a
//! kill. Its step was not done, because a step is done only after its line has reached the disk.
//! Any other line that is not understood, or whose checksum differs, makes the whole journal
//! invalid: nothing of it is executed.

use std::borrow::Cow;

use super::checksum;
use super::schema::{FAMILY, FormatLine, HeaderLine, WITH_CHECKSUM, WITHOUT_CHECKSUM};
use super::{JournalError, Record};

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
        let mut record = parse_header(path, first)?;
        record.torn = whole < bytes.len();
        for (line, number) in lines {
            let malformed =
                |why: String| JournalError::Malformed { path: path.to_owned(), line: number, why };
            let text = record.text_of(line).map_err(malformed)?;
            let entry =
                serde_json::from_slice(&text).map_err(|error| malformed(error.to_string()))?;
            record.add(entry).map_err(|why| malformed(why.to_owned()))?;
        }
        Ok(Some(record))
    }

    /// The JSON text of a line.
    fn text_of<'l>(&self, line: &'l [u8]) -> Result<Cow<'l, [u8]>, String> {
        if self.has_checksums { checksum::remove(line).map(Cow::Owned) } else { Ok(line.into()) }
    }
}

fn parse_header(path: &str, line: &[u8]) -> Result<Record, JournalError> {
    let malformed = |why: String| JournalError::Malformed { path: path.to_owned(), line: 1, why };
    let format: FormatLine =
        serde_json::from_slice(line).map_err(|error| malformed(error.to_string()))?;
    let has_checksums = WITH_CHECKSUM.contains(&format.format.as_str());
    if !has_checksums && !WITHOUT_CHECKSUM.contains(&format.format.as_str()) {
        return Err(if format.format.starts_with(FAMILY) {
            JournalError::Newer { path: path.to_owned(), format: format.format }
        } else {
            malformed(format!("{:?} is not a journal format", format.format))
        });
    }
    let text = if has_checksums { checksum::remove(line) } else { Ok(line.to_vec()) };
    let text = text.map_err(malformed)?;
    let header: HeaderLine =
        serde_json::from_slice(&text).map_err(|error| malformed(error.to_string()))?;
    let record = Record::new(header.into(), has_checksums);
    let boot_id = &record.header.boot_id;
    if !is_boot_id(boot_id) {
        return Err(malformed(format!("{boot_id:?} is not a boot ID")));
    }
    Ok(record)
}

/// True for text in the form of `/proc/sys/kernel/random/boot_id`. Another text must not count as
/// the ID of an earlier boot, whose placements are void.
fn is_boot_id(text: &str) -> bool {
    const GROUPS: [usize; 5] = [8, 4, 4, 4, 12];
    let groups: Vec<&str> = text.split('-').collect();
    groups.iter().map(|group| group.len()).eq(GROUPS)
        && groups.iter().all(|group| group.bytes().all(|byte| byte.is_ascii_hexdigit()))
}
