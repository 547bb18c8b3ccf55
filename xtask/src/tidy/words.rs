//! Words that documents and comments do not use; `docs/glossary.md` has the terms instead.

/// Single words, as whole words in prose; in a code file only in its comments.
const WORDS: &[(&str, &str)] = &[
    ("whom", "which task, or an active sentence"),
    ("nobody", "no task, no process"),
    ("somebody", "another process, another program"),
    ("ruler", "benchmark"),
    ("rulers", "benchmarks"),
    ("anchor", "reference tool"),
    ("anchors", "reference tools"),
];

/// Phrases, everywhere: no identifier contains a space.
const PHRASES: &[(&str, &str)] = &[
    ("is told", "is reported"),
    ("are told", "are reported"),
    ("in force", "active"),
    ("taken back", "reverted"),
    ("made true", "applied, fixed"),
    ("put right", "restored, fixed"),
    ("kept off", "excluded from"),
    ("way out", "hint"),
    ("stands still", "stalls, is stopped"),
];

/// Pages that a benchmark or the lab writes, and the list of changes.
const EXCEPTIONS: &[&str] = &[
    "docs/benchmarks.md",
    "docs/figures.md",
    "docs/lab.md",
    "docs/emulation.md",
    "docs/emulation-others.md",
    "CHANGELOG.md",
];

/// Reports the words in a page, or in a file of code of the product.
pub fn check(name: &str, text: &str, broken: &mut Vec<String>) {
    let is_page = name.ends_with(".md");
    let is_tested =
        name.contains("tests") || name.starts_with("xtask/") || name.starts_with("bench/");
    if is_tested || EXCEPTIONS.contains(&name) {
        return;
    }
    for (index, line) in text.lines().enumerate() {
        // Names of files and options between backticks, and targets of links, are what they are.
        let plain: String = line.split('`').step_by(2).collect();
        let prose = if is_page {
            plain.as_str()
        } else {
            line.split_once("//").map_or("", |(_, comment)| comment)
        };
        let phrase = PHRASES.iter().find(|(phrase, _)| line.contains(phrase));
        let word =
            WORDS.iter().find(|(word, _)| words(prose).any(|one| one.eq_ignore_ascii_case(word)));
        if let Some((given_up, instead)) = phrase.or(word) {
            broken.push(format!("{}:{}: \"{}\": write {}", name, index + 1, given_up, instead));
        }
    }
}

/// Words of prose; a name of a file or an address is one word.
fn words(prose: &str) -> impl Iterator<Item = &str> {
    prose
        .split(|c: char| !(c.is_alphanumeric() || "./-_#".contains(c)))
        .map(|word| word.trim_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn words_of_prose_are_found_and_names_are_not() {
        assert_eq!(count_found("docs/a.md", "Nobody knows.\nSee [a](rulers.md) and `rulers`.\n"), 1);
        assert_eq!(count_found("crates/a/src/a.rs", "let nobody = 1; // nobody\n"), 1);
        assert_eq!(count_found("crates/a/src/a.rs", "let nobody = \"places are in force\";\n"), 1);
        assert_eq!(count_found("crates/a/src/a.rs", "let nobody = 1;\n"), 0);
        assert_eq!(count_found("crates/a/tests/a.rs", "// nobody\n"), 0);
    }

    fn count_found(name: &str, text: &str) -> usize {
            let mut broken = Vec::new();
            check(name, text, &mut broken);
            broken.len()
        }
}
