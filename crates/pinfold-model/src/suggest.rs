//! Suggests the most similar known name.

/// Longer texts are not considered misspelt names.
const LONGEST: usize = 64;

/// The known name with the smallest edit distance from `typed`, if it is small enough. A name that
/// begins with `typed` has distance 1; of several the shortest is meant.
pub fn closest<'a>(typed: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let typed = typed.to_lowercase().replace(['_', ' '], "-");
    if typed.is_empty() || typed.len() > LONGEST {
        return None;
    }
    let most = (typed.chars().count() / 3).max(2);
    known
        .map(|name| (if name.starts_with(&typed) { 1 } else { distance(&typed, name) }, name))
        .filter(|(errors, name)| *errors <= most && *errors < name.chars().count())
        .min_by_key(|(errors, name)| (*errors, name.len()))
        .map(|(_, name)| name)
}

/// Levenshtein distance: insertions, deletions and substitutions of one character.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (line, from) in a.chars().enumerate() {
        let mut next = vec![line + 1];
        for ((to, &above), &diagonal) in b.iter().zip(row.iter().skip(1)).zip(&row) {
            let left = next.last().copied().unwrap_or_default();
            let substituted = diagonal + usize::from(from != *to);
            next.push(substituted.min(above + 1).min(left + 1));
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_that_was_meant() {
        let known = ["none", "compact", "compact-cores", "low-latency", "balanced"];
        let check = |typed: &str, meant: Option<&str>| {
            assert_eq!(closest(typed, known.into_iter()), meant, "{typed}");
        };
        check("lowlatency", Some("low-latency"));
        check("LOW_LATENCY", Some("low-latency"));
        check("low", Some("low-latency"));
        check("balancd", Some("balanced"));
        check("compact-core", Some("compact-cores"));
        check("nnoe", Some("none"));
        let longer_first = ["balanced-shared", "balanced"];
        assert_eq!(closest("balance", longer_first.into_iter()), Some("balanced"));
        check("xyz", None);
        check("", None);
        check("numa-exclusive", None);
        check(&"low-latency".repeat(1000), None);
    }

    #[test]
    fn distances() {
        check("", "", 0);
        check("", "abc", 3);
        check("kitten", "sitting", 3);
        check("abc", "abc", 0);
    }

    fn check(a: &str, b: &str, expected: usize) {
        assert_eq!(distance(a, b), expected)
    }
}
