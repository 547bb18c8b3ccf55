//! Records: one snapshot in JSON per line.

use std::io::{BufRead, Read as _};

use crate::snapshot::{FORMAT, Snapshot};

/// The longest line that is read: a snapshot of many thousand threads.
const LONGEST: u64 = 16 << 20;

/// A record that cannot be shown.
#[derive(Debug, PartialEq, Eq)]
pub struct RecordError {
    /// The line, from 1.
    pub line: u64,
    /// What is wrong.
    pub why: String,
}

impl std::fmt::Display for RecordError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}: {}", self.line, self.why)
    }
}

impl std::error::Error for RecordError {}

/// A snapshot as one line.
///
/// # Errors
/// If a number is not finite.
pub fn to_line(snapshot: &Snapshot) -> Result<String, serde_json::Error> {
    Ok(serde_json::to_string(snapshot)? + "\n")
}

/// Reads a record one snapshot at a time, however long it is.
#[derive(Debug)]
pub struct Replay<R> {
    reader: R,
    line: u64,
}

impl<R: BufRead> Replay<R> {
    /// A record.
    pub fn new(reader: R) -> Self {
        Self { reader, line: 0 }
    }

    /// The next snapshot; `None` at the end.
    ///
    /// # Errors
    /// [`RecordError`] if it cannot be read, is of another version or too long, or was cut off.
    pub fn read_next(&mut self) -> Result<Option<Snapshot>, RecordError> {
        self.line += 1;
        let line = self.line;
        let fail = |why: String| RecordError { line, why };
        let mut bytes = Vec::new();
        let mut limited = (&mut self.reader).take(LONGEST);
        limited.read_until(b'\n', &mut bytes).map_err(|error| fail(error.to_string()))?;
        if bytes.is_empty() {
            return match line {
                1 => Err(fail("the record is empty".to_owned())),
                _ => Ok(None),
            };
        }
        if bytes.last() != Some(&b'\n') {
            return Err(fail("the line was cut off, or is too long for a snapshot".to_owned()));
        }
        let found: Snapshot = serde_json::from_slice(&bytes)
            .map_err(|error| fail(format!("not a {FORMAT} snapshot: {error}")))?;
        if found.format != FORMAT {
            let format: String = found.format.chars().take(40).collect();
            return Err(fail(format!("format {format:?}; this version reads {FORMAT}")));
        }
        Ok(Some(found))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{MachineSample, ThreadSample};

    fn example() -> Snapshot {
        let thread = ThreadSample { tid: 7, ready_share: 0.125, ..ThreadSample::default() };
        let machine = MachineSample {
            name: "web".to_owned(),
            threads: vec![thread],
            ..MachineSample::default()
        };
        Snapshot { format: FORMAT.to_owned(), machines: vec![machine], ..Snapshot::default() }
    }

    fn check_refusal(text: &str, part: &str) {
        let error = Replay::new(text.as_bytes()).read_next().unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }

    #[test]
    fn a_record_is_read_back_line_by_line() {
        let line = to_line(&example()).unwrap();
        let text = line.repeat(2);
        let mut replay = Replay::new(text.as_bytes());
        assert_eq!(replay.read_next(), Ok(Some(example())));
        assert_eq!(replay.read_next(), Ok(Some(example())));
        assert_eq!(replay.read_next(), Ok(None));
    }

    #[test]
    fn a_hostile_record_is_refused_with_its_line() {
        let line = to_line(&example()).unwrap();
        check_refusal("", "line 1: the record is empty");
        check_refusal(line.trim_end(), "cut off");
        check_refusal(&line.replace("top/1", "top/9"), "pinfold-top/9");
        check_refusal("{}\n", "not a pinfold-top/1 snapshot");
        check_refusal(&format!("{}\n", "[".repeat(100_000)), "not a pinfold-top/1 snapshot");
        check_refusal("\u{0}\n", "not a pinfold-top/1 snapshot");
    }
}
