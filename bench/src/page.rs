//! The page of figures: one section for each benchmark, replaced by the next run.

use pinfold_host::files;
use pinfold_report::format::group_digits;

use crate::arguments::Failure;

/// The text above the sections of `docs/figures.md`.
pub const HEAD: &str = "\
# Figures

Measured by the benchmarks of this repository, each together with a competing tool in the same run, in random order.
`cargo xtask bench NAME --write` writes one section; *gap*, *react* and *race* are of programs that are no longer in the repository.
A ratio is the median over the rounds, with the 95 % interval of a bootstrap over them; p is that of the exact paired test.
Results of a guest under TCG do not carry over to KVM.
";

/// The result of a benchmark.
pub struct Figures {
    /// Its name on the command line.
    pub name: String,
    /// Title, one line.
    pub title: String,
    /// The machine and the conditions, one line.
    pub origin: String,
    /// The tables.
    pub tables: Vec<Table>,
    /// The notes, one sentence each.
    pub notes: Vec<String>,
}

/// A table of texts.
#[derive(Default)]
pub struct Table {
    /// Names of the columns.
    pub head: Vec<String>,
    /// The rows, as long as the head.
    pub rows: Vec<Vec<String>>,
}

impl Figures {
    /// The section of the page.
    pub fn to_markdown(&self) -> String {
        let mut text = format!("\n## {}: {}\n\nOn {}.\n", self.name, self.title, self.origin);
        for table in &self.tables {
            text.push('\n');
            text.push_str(&table.to_markdown());
        }
        if !self.notes.is_empty() {
            text.push_str(&format!("\n{}\n", self.notes.join("\n")));
        }
        text
    }
}

impl Table {
    /// The table.
    pub fn to_markdown(&self) -> String {
        fn line(cells: &[String]) -> String {
            format!("| {} |\n", cells.join(" | "))
        }

        let mut text = line(&self.head);
        text.push_str(&format!("|{}\n", "---|".repeat(self.head.len())));
        text.extend(self.rows.iter().map(|row| line(row)));
        text
    }
}

/// `12,345`.
pub fn thousands(number: f64) -> String {
    group_digits(&format!("{number:.0}"), ',')
}

/// Replaces the text between the marks of its name in a page.
pub fn put_between(file: &str, name: &str, text: &str) -> Result<(), Failure> {
    let page = between(&files::read_text(file)?, name, text).ok_or_else(|| {
        format!("{file} has no place for {name}: write the lines {} and {END}", begin(name))
    })?;
    Ok(files::write_atomic(file, page.as_bytes())?)
}

const END: &str = "<!-- end -->";

fn begin(name: &str) -> String {
    format!("<!-- measured: {name} -->")
}

fn between(page: &str, name: &str, text: &str) -> Option<String> {
    let (before, rest) = page.split_once(&begin(name))?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{}\n{}\n{END}{after}", begin(name), text.trim_end()))
}

/// Writes a section into the page with this head, replacing the one with its name, or at the end.
pub fn put(file: &str, head: &str, name: &str, section: &str) -> Result<(), Failure> {
    let old = if files::exists(file) { files::read_text(file)? } else { String::new() };
    Ok(files::write_atomic(file, with_section(&old, head, name, section).as_bytes())?)
}

fn with_section(page: &str, head: &str, name: &str, section: &str) -> String {
    let mark = format!("## {name}: ");
    let mut parts = page.split("\n## ").skip(1).map(|part| format!("\n## {}\n", part.trim_end()));
    let mut text = head.to_owned();
    let mut placed = false;
    for part in &mut parts {
        let is_ours = part.starts_with(&format!("\n{mark}"));
        text.push_str(if is_ours { section } else { &part });
        placed |= is_ours;
    }
    if !placed {
        text.push_str(section);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{HEAD, between, thousands, with_section};

    #[test]
    fn a_section_replaces_the_one_of_its_name() {
        let first = with_section("", HEAD, "pin", "\n## pin: a\n\nold\n");
        assert_eq!(first, format!("{HEAD}\n## pin: a\n\nold\n"));
        let both = with_section(&first, HEAD, "topo", "\n## topo: b\n\nother\n");
        let again = with_section(&both, HEAD, "pin", "\n## pin: a\n\nnew\n");
        assert_eq!(again, format!("{HEAD}\n## pin: a\n\nnew\n\n## topo: b\n\nother\n"));
    }

    #[test]
    fn a_text_goes_between_its_marks() {
        let page =
            "a\n<!-- measured: x -->\nold\n<!-- end -->\nb\n<!-- measured: y -->\n<!-- end -->\n";
        let new = between(page, "x", "new\n").unwrap();
        assert_eq!(new, page.replace("old", "new"));
        assert_eq!(between(&new, "x", "new").unwrap(), new);
        assert!(between(&new, "y", "| t |").unwrap().ends_with("-->\n| t |\n<!-- end -->\n"));
        assert_eq!(between(page, "z", ""), None);
    }

    #[test]
    fn thousands_have_commas() {
        for (number, text) in
            [(0.0, "0"), (999.4, "999"), (1e3, "1,000"), (1_234_567.0, "1,234,567")]
        {
            assert_eq!(thousands(number), text);
        }
    }
}
