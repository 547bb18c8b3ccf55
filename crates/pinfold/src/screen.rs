//! Layout for the terminal: tables with unbroken numbers, sentences folded between words.
//!
//! The width is `COLUMNS` of the environment, else that of the terminal; a terminal without a size
//! (a serial line reports 0 columns) counts as 80 wide. Without either, tables and charts are 80
//! columns wide, and sentences are not folded, so that each stays on one line for programs that
//! search.

use std::ops::Range;

use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, LineStyle, Table, presets};
use pinfold_model::fold;

/// Width of tables and charts if none is known.
pub const DEFAULT_COLUMNS: u16 = 80;
/// Valid widths; others are clamped.
const SENSIBLE: std::ops::RangeInclusive<u16> = 20..=1000;
/// Marks the end of a row, so that the text can be split again.
const MARK: char = '┄';
/// Box drawing and block characters of tables and charts.
const DRAWN: std::ops::RangeInclusive<char> = '\u{2500}'..='\u{259f}';

/// Width of standard output, from `COLUMNS` or a terminal.
pub fn columns() -> Option<u16> {
    usable(std::env::var("COLUMNS").ok().as_deref(), Table::new().width())
}

/// Width of standard error, from `COLUMNS` or a terminal.
pub fn error_columns() -> Option<u16> {
    let terminal = Table::new().use_stderr().width();
    usable(std::env::var("COLUMNS").ok().as_deref(), terminal)
}

/// The requested width, else that of the terminal; 0 columns mean unknown.
fn usable(asked: Option<&str>, terminal: Option<u16>) -> Option<u16> {
    let asked = asked.and_then(|text| text.trim().parse().ok()).filter(|columns| *columns > 0);
    let terminal = terminal.map(|columns| if columns == 0 { DEFAULT_COLUMNS } else { columns });
    let columns: u16 = asked.or(terminal)?;
    Some(columns.clamp(*SENSIBLE.start(), *SENSIBLE.end()))
}

/// Width of a chart.
pub fn width() -> u16 {
    columns().unwrap_or(DEFAULT_COLUMNS)
}

/// An empty table without lines between its rows: a sweep of sizes has dozens of rows.
pub fn rows() -> Table {
    let mut table = Table::new();
    let style = presets::UTF8_HORIZONTAL_ONLY;
    table.load_style(style.row_separator(LineStyle::none()));
    table.set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(width());
    table
}

/// The table as text, with right-aligned numeric columns.
///
/// If it is too wide, the gaps between columns become smaller. If that does not suffice, the widest
/// text column before the numbers is put on a separate line above each row. Numbers are never
/// broken.
pub fn draw_table(mut table: Table, numbers: Range<usize>) -> String {
    for column in table.column_iter_mut().skip(numbers.start).take(numbers.len()) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    if is_too_wide(&table) {
        for column in table.column_iter_mut() {
            column.set_padding((0, 1));
        }
    }
    if is_too_wide(&table) { stack_table(table, numbers) } else { table.trim_fmt() }
}

fn stack_table(mut table: Table, numbers: Range<usize>) -> String {
    for column in table.column_iter_mut().skip(numbers.start).take(numbers.len()) {
        column.set_constraint(ColumnConstraint::ContentWidth);
    }
    let widths = table.column_max_content_widths();
    let words = (0..numbers.start).max_by_key(|index| widths.get(*index));
    let Some((words, column)) = words.and_then(|at| Some((at, table.column_mut(at)?))) else {
        return table.trim_fmt();
    };
    column.set_constraint(ColumnConstraint::Hidden);
    let word = |row: &comfy_table::Row| row.cell_iter().nth(words).map(|cell| cell.content());
    let head = table.header().and_then(word);
    let mut names = table.row_iter().map(word).collect::<Vec<_>>().into_iter().flatten();
    let between = LineStyle::none().fill(MARK).junction(MARK);
    table.load_style(presets::UTF8_HORIZONTAL_ONLY.row_separator(between));
    let mut text = String::new();
    for (index, line) in table.trim_fmt().lines().enumerate() {
        if !line.starts_with(MARK) {
            text.push_str(&format!("{line}\n"));
        }
        let name = match line.chars().next() {
            _ if index == 0 => head.clone(),
            Some('═' | MARK) => names.next(),
            Some(_) | None => None,
        };
        text.extend(name.map(|name| format!("{name}\n")));
    }
    text.trim_end_matches('\n').to_owned()
}

fn is_too_wide(table: &Table) -> bool {
    let mut natural = table.clone();
    natural.set_content_arrangement(ContentArrangement::Disabled);
    widest(&natural.trim_fmt()) > usize::from(table.width().unwrap_or(DEFAULT_COLUMNS))
}

/// Text folded to the width of the terminal.
pub fn fit_width(text: &str) -> String {
    columns().map_or_else(|| text.to_owned(), |columns| fold_text(text, columns.into()))
}

/// Folds each longer line between words, with indented continuation lines. Drawings are kept,
/// except the branches of a tree. Commands are not broken: see [`fold`].
pub fn fold_text(text: &str, columns: usize) -> String {
    let lines = text.split('\n').map(|line| {
        let words = line.trim_start_matches([' ', '│', '├', '└', '─']);
        if fold::width(line) <= columns || words.contains(|letter| DRAWN.contains(&letter)) {
            return line.to_owned();
        }
        let (branch, _) = line.split_at(line.len() - words.len());
        let below = branch.replace('├', "│").replace(['└', '─'], " ") + "  ";
        fold::fold_words(branch, &below, words, columns)
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// A label and its text, whose continuation lines are aligned with the first.
pub fn label_text(label: &str, words: &str) -> String {
    let below = " ".repeat(label.chars().count());
    match columns() {
        None => format!("{label}{words}"),
        Some(columns) => fold::fold_words(label, &below, words, columns.into()),
    }
}

fn widest(text: &str) -> usize {
    text.lines().map(fold::width).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_fold_between_words_and_pictures_stay() {
        check("as long as 12\nshort", "as long as\n  12\nshort");
        check("twelve chars", "twelve chars");
        check("  indented words fold", "  indented\n    words\n    fold");
        check("averyveryverylongword and more", "averyveryverylongword\n  and more");
        check("──────────────────", "──────────────────");
        check("├─ a b c d e f", "├─ a b c d e\n│    f");
        check("", "");
    }

    fn check(text: &str, expected: &str) {
        assert_eq!(fold_text(text, 12), expected, "{text:?}");
    }

    #[test]
    fn the_width_is_asked_for_else_the_terminals_and_zero_is_unknown() {
        assert_eq!(usable(None, None), None);
        assert_eq!(usable(None, Some(132)), Some(132));
        assert_eq!(usable(None, Some(0)), Some(80));
        assert_eq!(usable(Some("60"), Some(132)), Some(60));
        assert_eq!(usable(Some("60"), None), Some(60));
        assert_eq!(usable(Some("0"), Some(132)), Some(132));
        assert_eq!(usable(Some("0"), None), None);
        assert_eq!(usable(Some("wide"), None), None);
        assert_eq!(usable(Some("1"), None), Some(20));
    }

    #[test]
    fn a_narrow_table_moves_together_and_then_stacks() {
        let wide = table_of_width(80);
        assert!(wide.contains(" 0     DESCHEDULED: preempted   1,234,567   12.5 µs"), "{wide}");
        let close = table_of_width(60);
        assert!(close.contains("\n0    DESCHEDULED: preempted  1,234,567  12.5 µs"), "{close}");
        let narrow = table_of_width(40);
        let expected = "\
───────────────────────────────────
type
CPU      count  longest
═══════════════════════════════════
DESCHEDULED: preempted
0    1,234,567  12.5 µs  contended
IO
1            7  3.00 µs
───────────────────────────────────";
        assert_eq!(narrow, expected, "\n{narrow}");
        for (text, width) in [(wide, 80), (close, 60), (narrow, 40)] {
            assert!(widest(&text) <= width, "{text}");
            assert!(text.lines().all(|line| line == line.trim_end()), "{text}");
        }
    }

    fn table_of_width(width: u16) -> String {
        let mut table = rows();
        table.set_width(width);
        table.set_header(["CPU", "type", "count", "longest", ""]);
        table.add_row(["0", "DESCHEDULED: preempted", "1,234,567", "12.5 µs", "contended"]);
        table.add_row(["1", "IO", "7", "3.00 µs", ""]);
        draw_table(table, 2..4)
    }
}
