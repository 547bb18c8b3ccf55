//! Lists of CPUs, nodes and vCPUs, parsed exactly as by libvirt (`virBitmapParse`).
//!
//! `0-3,^2,8`: parts from left to right, each adds a number or a range. `^N` removes one number,
//! present or not; only a later part can add it again. There is no step, and no `^N-M`. A trailing
//! comma and blanks around numbers are accepted.

use pinfold_model::{CpuSet, PuId};

/// Parses a list whose numbers are all below `limit`; the set is never empty.
///
/// # Errors
/// The fault, for a message that already contains the list.
pub(super) fn parse(list: &str, limit: u32) -> Result<CpuSet, String> {
    if list.contains(':') {
        return Err("libvirt does not support a step in a list".to_owned());
    }
    let mut set = CpuSet::new();
    let mut rest = blanks(list);
    while !rest.is_empty() {
        rest = part(rest, limit, &mut set)?;
        rest = match rest.strip_prefix(',') {
            Some(after) => blanks(after),
            None if rest.is_empty() => rest,
            None => return Err(format!("{rest:?} is neither a number nor a comma")),
        };
    }
    if set.is_empty() {
        return Err("the list is empty".to_owned());
    }
    Ok(set)
}

/// Adds or removes the first part of a list; returns the rest of the text.
fn part<'t>(text: &'t str, limit: u32, set: &mut CpuSet) -> Result<&'t str, String> {
    let (removes, text) = match text.strip_prefix('^') {
        Some(after) => (true, after),
        None => (false, text),
    };
    let (first, rest) = number(text, limit)?;
    let Some(after) = rest.strip_prefix('-') else {
        if removes {
            set.remove(PuId(first))
        } else {
            set.insert(PuId(first))
        }
        return Ok(rest);
    };
    if removes {
        return Err("libvirt excludes single numbers only: ^N, not ^N-M".to_owned());
    }
    let (last, rest) = number(blanks(after), limit)?;
    if last < first {
        return Err(format!("the range {first}-{last} is descending"));
    }
    (first..=last).for_each(|index| set.insert(PuId(index)));
    Ok(rest)
}

/// The number at the start of a text, and the rest after it and blanks.
fn number(text: &str, limit: u32) -> Result<(u32, &str), String> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, rest) = text.split_at(digits);
    if number.is_empty() {
        return Err(format!("a number is missing before {text:?}"));
    }
    match number.parse::<u32>() {
        Ok(number) if number < limit => Ok((number, blanks(rest))),
        Ok(_) | Err(_) => {
            Err(format!("{number} is too large: libvirt allows numbers below {limit}"))
        }
    }
}

fn blanks(text: &str) -> &str {
    text.trim_start_matches(|c: char| c.is_ascii_whitespace())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_that_libvirt_takes() {
        check("0-3,8", "0-3,8");
        check("1-8,^3,^5", "1-2,4,6-8");
        check("^3,1-8", "1-8");
        check("1-8,^9", "1-8");
        check("1-8,^3,3", "1-8");
        check("0-4,", "0-4");
        check(" 1 - 3 , 5 ", "1-3,5");
        check("16383", "16383");
    }

    fn check(list: &str, expected: &str) {
        assert_eq!(parse(list, 16_384).map(|set| set.to_string()), Ok(expected.to_owned()));
    }

    #[test]
    fn lists_that_libvirt_refuses() {
        fn check(list: &str, why: &str) {
            let error = parse(list, 16_384).unwrap_err();
            assert!(error.contains(why), "{list}: {error}");
        }

        check("", "empty");
        check("1,^1", "empty");
        check("^2", "empty");
        check("1-8,^3-5", "^N, not ^N-M");
        check("8-3", "descending");
        check("0-7:2", "not support a step");
        check("0-7:2/4", "not support a step");
        check("1,,2", "missing");
        check("^^3", "missing");
        check("0-", "missing");
        check("1;2", "neither a number nor a comma");
        check("16384", "numbers below 16384");
        check("99999999999", "numbers below 16384");
        check("0-3,^16384", "too large");
    }
}
