//! Parses numbers and lists as the kernel does, with its error numbers.
//!
//! `lib/bitmap-str.c` (`bitmap_parselist`, `bitmap_parse`) and `kstrtox.c`. This differs from
//! [`CpuSet::parse_list`]: blanks separate like commas, empty parts are ignored, `all` and `N` are
//! accepted, but there is no exclusion.

use pinfold_model::{CpuSet, PuId};
use rustix::io::Errno;

/// Parses a list for a bitmap of `bits` bits.
pub(super) fn list(text: &str, bits: u32) -> Result<CpuSet, Errno> {
    let text = text.split('\0').next().unwrap_or_default();
    text.split([',', ' ', '\t', '\n', '\r', '\x0b', '\x0c'])
        .filter(|region| !region.is_empty())
        .try_fold(CpuSet::new(), |set, region| Ok(set.union(&parse_region(region, bits)?)))
}

fn parse_region(region: &str, bits: u32) -> Result<CpuSet, Errno> {
    let last_bit = bits.saturating_sub(1);
    let (range, pattern) = match region.split_once(':') {
        None => (region, None),
        Some((range, pattern)) => (range, Some(pattern)),
    };
    let (start, end) = match range.split_once('-') {
        _ if range.eq_ignore_ascii_case("all") => (0, last_bit),
        None => {
            let only = position(range, last_bit)?;
            (only, only)
        }
        Some((start, end)) => (position(start, last_bit)?, position(end, last_bit)?),
    };
    let (used, group) = match pattern {
        None => (
            end.saturating_sub(start).saturating_add(1),
            end.saturating_sub(start).saturating_add(1),
        ),
        Some(pattern) => {
            let (used, group) = pattern.split_once('/').ok_or(Errno::INVAL)?;
            (position(used, last_bit)?, position(group, last_bit)?)
        }
    };
    if start > end || group == 0 || used > group {
        return Err(Errno::INVAL);
    }
    if end >= bits {
        return Err(Errno::RANGE);
    }
    Ok((start..=end).filter(|bit| (bit - start) % group < used).map(PuId).collect())
}

fn position(text: &str, last_bit: u32) -> Result<u32, Errno> {
    if text == "N" {
        return Ok(last_bit);
    }
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Errno::INVAL);
    }
    text.parse().map_err(|_| Errno::OVERFLOW)
}

/// Parses a hexadecimal mask of 32-bit words separated by commas.
pub(super) fn list_within(text: &str, bits: u32, all: &CpuSet) -> Result<CpuSet, Errno> {
    let set = list(text, bits)?;
    if set.is_subset(all) { Ok(set) } else { Err(Errno::INVAL) }
}

pub(super) fn mask(text: &str, bits: u32) -> Result<CpuSet, Errno> {
    let text = text.trim();
    if text.split(',').any(|word| word.len() > 8) {
        return Err(Errno::OVERFLOW);
    }
    let set = CpuSet::parse_mask(text).map_err(|_| Errno::INVAL)?;
    if set.iter().any(|bit| bit.0 >= bits) { Err(Errno::OVERFLOW) } else { Ok(set) }
}

/// Parses an unsigned number like `cftype.write_u64`; `0x` and a leading 0 select the base, one
/// newline may follow.
pub(super) fn unsigned(text: &str) -> Result<u64, Errno> {
    let text = text.strip_suffix('\n').unwrap_or(text);
    let text = text.strip_prefix('+').unwrap_or(text);
    let (digits, radix) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None if text.len() > 1 && text.starts_with('0') => (&text[1..], 8),
        None => (text, 10),
    };
    if digits.is_empty() || !digits.chars().all(|digit| digit.is_digit(radix)) {
        return Err(Errno::INVAL);
    }
    u64::from_str_radix(digits, radix).map_err(|_| Errno::RANGE)
}

/// Parses a signed number like `cftype.write_s64`.
pub(super) fn signed(text: &str) -> Result<i64, Errno> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text),
    };
    let size = i64::try_from(unsigned(digits)?).map_err(|_| Errno::RANGE)?;
    Ok(sign * size)
}
