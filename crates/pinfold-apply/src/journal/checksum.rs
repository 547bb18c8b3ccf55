//! The checksum of a journal's line: CRC-32 of the JSON text, as its last key.
//!
//! ```text
//! {"end":{"unix_s":1770000000,"why":"undone"},"crc32":"8f4d2a01"}
//! ```
//!
//! The sum is that of the line without this key. It detects damage by a disk or an editor, and is
//! no protection against a person who means to change the journal. The polynomial is that of IEEE
//! 802.3, as in `zlib`'s `crc32`.

const KEY: &str = ",\"crc32\":\"";
/// The digits, the quotation mark and the closing brace.
const REST: usize = 10;

/// Adds the checksum to the text of a JSON object.
pub(super) fn add(line: &mut Vec<u8>) {
    let sum = crc32(line);
    if line.pop().is_some() {
        line.extend(format!("{KEY}{sum:08x}\"}}").bytes());
    }
}

/// The text of a line without its checksum.
///
/// # Errors
/// Why the line is not as it was written.
pub(super) fn remove(line: &[u8]) -> Result<Vec<u8>, String> {
    let line = line.trim_ascii_end();
    let parts = line.len().checked_sub(REST).map(|at| line.split_at(at));
    let parts = parts.and_then(|(head, rest)| Some((head.strip_suffix(KEY.as_bytes())?, rest)));
    let Some((text, [digits @ .., b'"', b'}'])) = parts else {
        return Err("it has no checksum: it was changed or damaged".to_owned());
    };
    let text = [text, b"}"].concat();
    let sum = format!("{:08x}", crc32(&text));
    if digits == sum.as_bytes() {
        return Ok(text);
    }
    let noted = String::from_utf8_lossy(digits);
    Err(format!("its checksum is {sum} instead of {noted}: it was changed or damaged"))
}

fn crc32(bytes: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0xedb8_8320;
    !bytes.iter().fold(!0, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| {
            if sum & 1 == 1 { (sum >> 1) ^ POLYNOMIAL } else { sum >> 1 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_that_of_zlib() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(crc32(b""), 0);
    }

    #[test]
    fn a_changed_line_is_noticed() {
        let text = br#"{"end":{"unix_s":5,"why":"undone"}}"#;
        let mut line = text.to_vec();
        add(&mut line);
        assert_eq!(line.last(), Some(&b'}'));
        assert_eq!(remove(&line).unwrap(), text);
        for at in 0..line.len() {
            let mut changed = line.clone();
            changed[at] ^= 1;
            assert!(remove(&changed).is_err(), "byte {at}");
        }
        assert!(remove(text).unwrap_err().contains("no checksum"));
        assert!(remove(b"").is_err());
    }
}
