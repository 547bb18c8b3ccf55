//! The page of figures: one section for each benchmark, replaced by the next run.

use pinfold_host::user;

use crate::Failure;

const HEAD: &str = "\
# Figures

Measured by the benchmarks of this repository, each beside its rival in the same run, in random order.
This page is written by `cargo xtask bench --write`; `cargo xtask bench NAME --write` replaces one section.
A ratio is the median over the rounds, with the 95 % interval of a bootstrap over them; p is that of the exact paired test.
A number from a guest under TCG speaks of that emulator on this host, never of KVM.
";

/// What a benchmark found.
pub struct Figures {
    /// Its name on the command line.
    pub name: String,
    /// What was asked, in one line.
    pub title: String,
    /// The machine and the conditions, in one line.
    pub origin: String,
    /// The tables.
    pub tables: Vec<Table>,
    /// What they say, a sentence each.
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
            let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
            text.push('\n');
            text.push_str(&line(&table.head));
            text.push_str(&format!("|{}\n", "---|".repeat(table.head.len())));
            text.extend(table.rows.iter().map(|row| line(row)));
        }
        if !self.notes.is_empty() {
            text.push_str(&format!("\n{}\n", self.notes.join("\n")));
        }
        text
    }
}

/// Puts a section into the page, in the place of the one with its name or at the end.
pub fn put(file: &str, name: &str, section: &str) -> Result<(), Failure> {
    let old = if user::exists(file) { user::read_text(file)? } else { String::new() };
    Ok(user::write_atomic(file, with_section(&old, name, section).as_bytes())?)
}

fn with_section(page: &str, name: &str, section: &str) -> String {
    let mark = format!("## {name}: ");
    let mut parts = page.split("\n## ").skip(1).map(|part| format!("\n## {}\n", part.trim_end()));
    let mut text = HEAD.to_owned();
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
    use super::{HEAD, with_section};

    #[test]
    fn a_section_replaces_the_one_of_its_name() {
        let first = with_section("", "pin", "\n## pin: a\n\nold\n");
        assert_eq!(first, format!("{HEAD}\n## pin: a\n\nold\n"));
        let both = with_section(&first, "topo", "\n## topo: b\n\nother\n");
        let again = with_section(&both, "pin", "\n## pin: a\n\nnew\n");
        assert_eq!(again, format!("{HEAD}\n## pin: a\n\nnew\n\n## topo: b\n\nother\n"));
    }
}
