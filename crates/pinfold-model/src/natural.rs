//! The order of labels and levels: numbers by size, also with a unit (`4096` before `16384`, `64K`
//! before `1M`, `500us` before `2ms`), then texts, in which numbers compare as numbers (`vcpu2`
//! before `vcpu10`).

use std::cmp::Ordering;
use std::collections::BTreeMap;

/// Suffixes with their factors; sizes are binary, as in commands.
const UNITS: [(&str, f64); 22] = [
    ("", 1.0),
    ("%", 0.01),
    ("B", 1.0),
    ("K", 1024.0),
    ("k", 1024.0),
    ("KiB", 1024.0),
    ("M", 1_048_576.0),
    ("MB", 1_048_576.0),
    ("MiB", 1_048_576.0),
    ("G", 1_073_741_824.0),
    ("GB", 1_073_741_824.0),
    ("GiB", 1_073_741_824.0),
    ("T", 1_099_511_627_776.0),
    ("TiB", 1_099_511_627_776.0),
    ("ns", 1e-9),
    ("us", 1e-6),
    ("µs", 1e-6),
    ("ms", 1e-3),
    ("s", 1.0),
    ("min", 60.0),
    ("MHz", 1e6),
    ("GHz", 1e9),
];

/// Compares two labels or levels.
pub fn natural_order(one: &str, other: &str) -> Ordering {
    match (quantity(one), quantity(other)) {
        (Some(a), Some(b)) => a.total_cmp(&b),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => pieces(one).cmp(pieces(other)),
    }
    .then_with(|| one.cmp(other))
}

/// Compares two sets of labels, name by name.
pub fn natural_labels(
    one: &BTreeMap<String, String>,
    other: &BTreeMap<String, String>,
) -> Ordering {
    let pairs = one.iter().zip(other).map(|((name, text), (other_name, other_text))| {
        name.cmp(other_name).then_with(|| natural_order(text, other_text))
    });
    pairs.fold(Ordering::Equal, Ordering::then).then_with(|| one.len().cmp(&other.len()))
}

/// The number of a text that is a number, with or without a unit.
fn quantity(text: &str) -> Option<f64> {
    let end = text
        .find(|letter: char| !(letter.is_ascii_digit() || matches!(letter, '.' | '-' | '+')))
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit.trim_start())?;
    number.parse::<f64>().ok().map(|number| number * factor)
}

/// Its pieces: of letters, or of digits, which are longer if they are larger.
fn pieces(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let digits = rest.starts_with(is_digit);
        let end = rest.find(|letter| is_digit(letter) != digits).unwrap_or(rest.len());
        let (piece, after) = rest.split_at(end);
        rest = after;
        let number = piece.trim_start_matches('0');
        (!piece.is_empty()).then_some(if digits { (number.len(), number) } else { (0, piece) })
    })
}

fn is_digit(letter: char) -> bool {
    letter.is_ascii_digit()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_sorted_by_size_and_before_texts() {
        check(&["4096", "16384", "none"]);
        check(&["-1", "0.25", "40%", "1", "64K", "1M", "1 GiB"]);
        check(&["500us", "2ms", "1s", "2min"]);
        check(&["vcpu", "vcpu2", "vcpu010", "vcpu10", "x"]);
        check(&["L1d", "L2", "L10", "memory"]);
    }

    fn check(expected: &[&str]) {
        let mut sorted = expected.to_vec();
        sorted.reverse();
        sorted.sort_by(|a, b| natural_order(a, b));
        assert_eq!(sorted, expected);
    }
}
