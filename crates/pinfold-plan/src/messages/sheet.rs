//! Text for a terminal of a known width: labels, and wrapped words next to them.

use pinfold_model::fold;

/// Lines of text, each at most `columns` wide if the words allow it.
pub struct Sheet {
    text: String,
    columns: usize,
}

impl Sheet {
    /// An empty sheet of this width.
    pub fn new(columns: usize) -> Self {
        Self { text: String::new(), columns }
    }

    /// The text of all lines.
    #[must_use]
    pub fn into_text(self) -> String {
        self.text
    }

    /// Maximum width of a line.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Adds a line unchanged, without trailing blanks.
    pub fn line(&mut self, line: &str) {
        self.text.push_str(line.trim_end());
        self.text.push('\n');
    }

    /// Adds a label with words from the column `indent` on. If that leaves less than half a line,
    /// the words are below the label. Commands are not broken: see [`fold`].
    pub fn add_label(&mut self, label: &str, indent: usize, words: &str) {
        let first = format!("{label:indent$}");
        let below = first.chars().count();
        let text = if below > self.columns / 2 {
            self.line(label);
            fold::fold_words(BELOW, BELOW, words.trim(), self.columns)
        } else {
            fold::fold_words(&first, &" ".repeat(below), words.trim(), self.columns)
        };
        self.line(&text);
    }
}

/// Indentation of words below their label.
const BELOW: &str = "    ";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_wrap_behind_their_label_and_below_a_long_one() {
        check(20, "  - ", 4, "  - one two three\n    four\n");
        check(80, "why", 6, "why   one two three four\n");
        check(16, "a long label", 14, "a long label\n    one two\n    three four\n");
        check(20, "", 0, "one two three four\n");
    }

    fn check(columns: usize, label: &str, indent: usize, expected: &str) {
        let mut sheet = Sheet::new(columns);
        sheet.add_label(label, indent, "one two three four");
        assert_eq!(sheet.into_text(), expected, "{label:?} in {columns}");
    }
}
