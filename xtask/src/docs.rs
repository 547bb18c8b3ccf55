//! `cargo xtask docs`: the pages as a book with search, in `target/book`, made by mdBook.
//!
//! The pages stay where they are in the repository, so that their links work there too. The
//! contents of the book are the tables of `docs/README.md` and of the indexes that it links: a
//! heading is a part, a link a chapter, and the links of an index are below it.

use std::fs;
use std::path::{Path, PathBuf};

use crate::dist;
use crate::run::run;

const INDEX: &str = "docs/README.md";
const BOOK: &str = "[book]
title = \"Pinfold\"
language = \"en\"
src = \"src\"

[output.html]
default-theme = \"light\"
preferred-dark-theme = \"navy\"
additional-css = [\"book.css\"]
";
/// Room for tables; long command lines and the code of last columns wrap, output does not. Links of
/// the dark themes get a contrast of more than 4.5.
const CSS: &str = ":root { --content-max-width: 1000px; }
pre > code.language-sh { white-space: pre-wrap; overflow-wrap: anywhere; }
table { margin: 0; }
.table-wrapper { margin-block: 1em; }
td, th { min-width: 4em; vertical-align: top; text-align: left; }
td:last-child code { overflow-wrap: anywhere; }
.navy, .coal { --links: #5aa9d6; --sidebar-active: #5aa9d6; }
";

/// Makes the book.
pub fn docs(root: &Path) -> Result<(), String> {
    dist::require_tool(root, "mdbook")?;
    let book = root.join("target/book");
    let source = book.join("src");
    let _ = fs::remove_dir_all(&book);
    for page in [
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "CHANGELOG.md",
        "pinload/README.md",
    ] {
        copy(&root.join(page), &source.join(page))?;
    }
    copy(&root.join("docs"), &source.join("docs"))?;
    write(&book.join("book.toml"), BOOK)?;
    write(&book.join("book.css"), CSS)?;
    write(&source.join("SUMMARY.md"), &summary(root)?)?;
    run(root, "mdbook", &["build", "target/book"])?;
    println!("target/book/book/index.html");
    Ok(())
}

/// The contents of the book.
pub fn summary(root: &Path) -> Result<String, String> {
    let mut text = String::from("# Summary\n\n[Pinfold](README.md)\n[All pages](docs/README.md)\n");
    let mut known: Vec<PathBuf> = Vec::new();
    for line in read(&root.join(INDEX))?.lines() {
        if let Some(part) = line.strip_prefix("## ") {
            text.push_str(&format!("\n# {}\n\n", part));
        }
        for path in links(line, Path::new("docs")) {
            if known.contains(&path) {
                continue;
            }
            text.push_str(&chapter(root, &path, "")?);
            known.push(path.clone());
            if path.ends_with("README.md") {
                let folder = path.parent().unwrap_or_else(|| Path::new(""));
                let page = read(&root.join(&path))?;
                let rows = page.lines().filter(|line| line.starts_with('|'));
                for below in rows
                    .flat_map(|row| links(row, folder))
                    .filter(|below| below.starts_with(folder))
                {
                    if !known.contains(&below) {
                        text.push_str(&chapter(root, &below, "    ")?);
                        known.push(below);
                    }
                }
            }
        }
    }
    Ok(text)
}

/// A line of the contents, with the title of the page.
fn chapter(root: &Path, path: &Path, indent: &str) -> Result<String, String> {
    let page = read(&root.join(path))?;
    let title = page.lines().find_map(|line| line.strip_prefix("# ")).unwrap_or("");
    if title.is_empty() {
        return Err(format!("{} has no title", path.display()));
    }
    Ok(format!("{}- [{}]({})\n", indent, title, path.display()))
}

/// The pages that a line of a table links, relative to the root of the repository.
fn links(line: &str, folder: &Path) -> Vec<PathBuf> {
    if !line.starts_with('|') {
        return Vec::new();
    }
    let targets = line.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    let pages = targets.filter(|target| target.ends_with(".md") && !target.starts_with("http"));
    pages
        .map(|target| match target.strip_prefix("../") {
            Some(above) => folder.parent().unwrap_or(folder).join(above),
            None => folder.join(target),
        })
        .collect()
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    if from.is_dir() {
        for entry in
            fs::read_dir(from).map_err(|error| format!("{}: {}", from.display(), error))?.flatten()
        {
            copy(&entry.path(), &to.join(entry.file_name()))?;
        }
        return Ok(());
    }
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).map_err(|error| format!("{}: {}", folder.display(), error))?;
    }
    if from.extension().is_some_and(|end| end == "md") {
        return write(to, &with_links_to_indexes(&read(from)?));
    }
    fs::copy(from, to).map(|_| ()).map_err(|error| format!("{}: {}", from.display(), error))
}

/// A page whose links to a README lead to `index.html`, as mdBook names it; mdBook changes only the
/// file.
fn with_links_to_indexes(page: &str) -> String {
    page.replace("README.md)", "index.md)").replace("README.md#", "index.md#")
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {}", path.display(), error))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("{}: {}", path.display(), error))
}

#[cfg(test)]
mod tests {
    use super::{summary, with_links_to_indexes};
    use std::path::Path;

    /// mdBook shows only pages of the contents, so each page must be in it, once.
    #[test]
    fn each_page_is_in_the_book() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let text = summary(root).unwrap();
        let mut open = vec![root.join("docs")];
        let mut count = 0;
        while let Some(path) = open.pop() {
            if path.is_dir() {
                open.extend(std::fs::read_dir(&path).unwrap().flatten().map(|entry| entry.path()));
            } else if path.extension().is_some_and(|end| end == "md") {
                let name = format!("({})", path.strip_prefix(root).unwrap().display());
                assert_eq!(text.matches(&name).count(), 1, "{} in the contents", name);
                count += 1;
            }
        }
        assert!(count > 50, "{} pages", count);
    }

    #[test]
    fn links_to_an_index_lead_to_the_page_that_mdbook_makes() {
        assert_eq!(
            with_links_to_indexes("[a](../README.md) `README.md`"),
            "[a](../index.md) `README.md`"
        );
        assert_eq!(with_links_to_indexes("[b](x/README.md#c)"), "[b](x/index.md#c)");
    }
}
