//! Helpers for numbers and words in messages.

use crate::CpuSet;

/// A number with its noun: `1 step`, `2 steps`, `0 processes`.
pub fn count_noun<N: Copy + PartialEq + From<u8> + std::fmt::Display>(
    number: N,
    noun: &str,
) -> String {
    let ending = if is_one(number) {
        ""
    } else if noun.ends_with(['s', 'x']) || noun.ends_with("ch") {
        "es"
    } else {
        "s"
    };
    format!("{number} {noun}{ending}")
}

/// Selects singular or plural of a verb: `is` or `are`, `was` or `were`.
pub fn select_verb<'a, N: PartialEq + From<u8>>(
    number: N,
    of_one: &'a str,
    of_many: &'a str,
) -> &'a str {
    if is_one(number) { of_one } else { of_many }
}

/// `CPU 3` or `the CPUs 1-3`.
pub fn pus_text(pus: &CpuSet) -> String {
    match pus.len() {
        1 => format!("CPU {pus}"),
        _ => format!("the CPUs {pus}"),
    }
}

/// `CPU 3` or `CPUs 1-3`, for places without an article.
pub fn cpus_text(cpus: &CpuSet) -> String {
    format!("{} {cpus}", select_verb(cpus.len(), "CPU", "CPUs"))
}

/// Splits a text into words for lines of `columns` columns; a list of CPUs that is longer than a
/// line is split after its commas.
pub fn break_words(text: &str, columns: usize) -> impl Iterator<Item = &str> {
    text.split(' ').flat_map(move |word| {
        let is_broken = word.len() > columns
            && word
                .chars()
                .all(|letter: char| letter.is_ascii_digit() || "-,();:.".contains(letter));
        let parts = word.split_inclusive(move |letter| is_broken && letter == ',');
        word.is_empty().then_some("").into_iter().chain(parts)
    })
}

fn is_one<N: PartialEq + From<u8>>(number: N) -> bool {
    number == N::from(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_fits_no_line_is_broken_after_its_commas() {
        check("CPU  0,4,8-12", 9, &["CPU", "", "0,4,8-12"]);
        check("CPU 0,4,8-12;", 8, &["CPU", "0,", "4,", "8-12;"]);
        check("--vm name=a,vcpus=4", 8, &["--vm", "name=a,vcpus=4"]);
    }

    fn check(text: &str, columns: usize, expected: &[&str]) {
        assert_eq!(
            break_words(text, columns).collect::<Vec<_>>(),
            expected,
            "{text:?} in {columns}"
        );
    }

    #[test]
    fn nouns_and_verbs_agree_with_their_number() {
        fn check(number: u32, noun: &str, text: &str) {
            assert_eq!(count_noun(number, noun), text)
        }

        check(0, "step", "0 steps");
        check(1, "step", "1 step");
        check(2, "NUMA node", "2 NUMA nodes");
        check(1, "process", "1 process");
        check(3, "process", "3 processes");
        check(2, "index", "2 indexes");
        check(2, "context switch", "2 context switches");
        assert_eq!(
            [0_usize, 1, 2].map(|number| select_verb(number, "is", "are")),
            ["are", "is", "are"]
        );
    }
}
