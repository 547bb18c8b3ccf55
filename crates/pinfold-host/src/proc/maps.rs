//! `/proc/PID/maps`: the mappings of a process.
//!
//! ```text
//! 55d0c0a00000-55d0c0a28000 r--p 00000000 fe:00 1310      /usr/bin/qemu-system-x86_64
//! 7f1c2c000000-7f1c2c021000 rw-p 00000000 00:00 0
//! ```
//!
//! The fields are start and end address, permissions, offset in the file, device, inode and file. A
//! newline in a file name is written `\012`; ` (deleted)` follows the name of a file without a
//! directory entry. <https://docs.kernel.org/filesystems/proc.html>

use super::ProcError;

/// A mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// First address after the mapping.
    pub end: u64,
    /// True if it is executable.
    pub executable: bool,
    /// Offset of its start in the file.
    pub offset: u64,
    /// The file; `None` for anonymous memory and special mappings of the kernel (`[stack]`,
    /// `[vdso]`).
    pub file: Option<String>,
}

/// Parses the file.
///
/// # Errors
/// [`ProcError`] if a line is not a mapping.
pub fn parse(text: &str) -> Result<Vec<Mapping>, ProcError> {
    text.lines().map(line).collect()
}

fn line(text: &str) -> Result<Mapping, ProcError> {
    let (range, rest) = text.split_once(' ').ok_or_else(|| fail(text))?;
    let (rights, rest) = rest.split_once(' ').ok_or_else(|| fail(text))?;
    let (offset, rest) = rest.split_once(' ').ok_or_else(|| fail(text))?;
    let (start, end) = range.split_once('-').ok_or_else(|| fail(text))?;
    // Device and inode, then blanks up to the file.
    let mut rest = rest.splitn(3, ' ');
    let (_, _) = rest.next().zip(rest.next()).ok_or_else(|| fail(text))?;
    let file = rest.next().unwrap_or("").trim_start();
    let (start, end) = (number(text, start)?, number(text, end)?);
    if end <= start {
        return Err(fail(text));
    }
    Ok(Mapping {
        start,
        end,
        executable: rights.as_bytes().get(2) == Some(&b'x'),
        offset: number(text, offset)?,
        file: file.starts_with('/').then(|| file.to_owned()),
    })
}

fn number(text: &str, hex: &str) -> Result<u64, ProcError> {
    u64::from_str_radix(hex, 16).map_err(|_| fail(text))
}

fn fail(text: &str) -> ProcError {
    ProcError::new("a mapping", text)
}
