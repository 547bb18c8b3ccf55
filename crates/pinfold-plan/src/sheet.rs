//! Text for a terminal of a known width: labels, and words wrapped behind them.

use pinfold_model::text;

/// Lines of text, each at most so many columns wide where words allow it.
pub(crate) struct Sheet {
    text: String,
    columns: usize,
}

impl Sheet {
    /// No lines yet.
    pub(crate) fn new(columns: usize) -> Self {
        Self { text: String::new(), columns }
    }

    /// All lines.
    pub(crate) fn into_text(self) -> String {
        self.text
    }

    /// How wide a line may be.
    pub(crate) fn columns(&self) -> usize {
        self.columns
    }

    /// A line as it is, without blanks at its end.
    pub(crate) fn line(&mut self, line: &str) {
        self.text.push_str(line.trim_end());
        self.text.push('\n');
    }

    /// A label, and words behind it from the column `indent` on; where that would leave them less
    /// than half a line they go below it.
    pub(crate) fn labelled(&mut self, label: &str, indent: usize, words: &str) {
        let length = label.chars().count();
        let mut column = indent.max(length);
        let mut line = format!("{label:indent$}");
        let mut below = indent.max(length);
        if below > self.columns / 2 {
            self.line(label);
            (below, column) = (4, 4);
            line = " ".repeat(below);
        }
        let mut is_fresh = true;
        let room = self.columns.saturating_sub(below);
        for word in words.split_whitespace().flat_map(|word| text::words(word, room)) {
            let length = word.chars().count();
            if !is_fresh && column + 1 + length > self.columns {
                self.line(&line);
                line = " ".repeat(below);
                column = below;
                is_fresh = true;
            }
            if !is_fresh {
                line.push(' ');
                column += 1;
            }
            line.push_str(word);
            column += length;
            is_fresh = false;
        }
        self.line(&line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_wrap_behind_their_label_and_below_a_long_one() {
        let check = |columns: usize, label: &str, indent: usize, expected: &str| {
            let mut sheet = Sheet::new(columns);
            sheet.labelled(label, indent, "one two three four");
            assert_eq!(sheet.into_text(), expected, "{label:?} in {columns}");
        };
        check(20, "  - ", 4, "  - one two three\n    four\n");
        check(80, "why", 6, "why   one two three four\n");
        check(16, "a long label", 14, "a long label\n    one two\n    three four\n");
        check(20, "", 0, "one two three four\n");
    }
}
