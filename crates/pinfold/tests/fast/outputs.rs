//! The outputs in the pages are those of the commands above them.
//!
//! A block of `sh` whose last command names its input or record, followed by a block of `text`: each line of
//! the second is printed by that command in 80 columns, in this order; a line `…` stands for any
//! number of lines.

use crate::common::{MINUTE_NS, PINFOLD, ROOT, split_words};
use pinfold_host::{files, process::Spawn};

/// The blocks of a page: kind and lines. Only empty lines and other blocks are between a command
/// and its output, so a paragraph is a block of its own kind.
fn blocks(text: &str) -> Vec<(&str, Vec<&str>)> {
    let mut found: Vec<(&str, Vec<&str>)> = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        match line.strip_prefix("```") {
            Some(kind) if !inside => {
                inside = true;
                found.push((kind, Vec::new()));
            }
            Some(_) => inside = false,
            None if inside => found.last_mut().expect("a block").1.push(line),
            None if line.trim().is_empty() => {}
            None => found.push(("prose", Vec::new())),
        }
    }
    found
}

/// Standard output, also if it is written to a file, and error of a command.
fn run(folder: &str, line: &str) -> String {
    let (line, file) =
        line.split_once(" > ").map_or((line, None), |(line, file)| (line, Some(file)));
    let arguments = split_words(line).into_iter().skip(1);
    let spawn = Spawn::new(PINFOLD).args(arguments).current_dir(folder);
    let spawn = spawn.env("COLUMNS", "80").env("PINFOLD_IGNORE_CLAIMS", "false");
    let output = spawn.capture(MINUTE_NS).expect("runs");
    assert!(matches!(output.status.code(), Some(0 | 1)), "{line}: {}", output.stderr_text());
    if let Some(file) = file {
        let path = format!("{folder}/{}", file.trim());
        files::write_atomic(&path, &output.stdout).expect("a file");
    }
    output.stdout_text() + &output.stderr_text()
}

/// Whether a command depends on files of the repository and of earlier commands only, not on the
/// reader's host and files.
fn is_complete(folder: &str, line: &str) -> bool {
    let line = line.split(" > ").next().unwrap_or(line);
    let has_files = split_words(line)
        .iter()
        .all(|word| !word.ends_with(".xml") || files::exists(&format!("{folder}/{word}")));
    let is_help = line == "pinfold --help" || line.starts_with("pinfold help ");
    let is_given = line.contains("--input ") || line.contains("--from docs/");
    (is_given || is_help) && has_files
}

/// The first line of the block that the output lacks.
fn lacking<'b>(block: &[&'b str], output: &str) -> Option<&'b str> {
    let mut lines = output.lines().map(str::trim_end).peekable();
    let mut is_gap = true;
    for wanted in block.iter().map(|line| line.trim_end()) {
        if wanted.trim() == "…" {
            is_gap = true;
            continue;
        }
        let found = if is_gap {
            lines.by_ref().any(|line| line == wanted)
        } else {
            lines.next() == Some(wanted)
        };
        if !found {
            return Some(wanted);
        }
        is_gap = false;
    }
    None
}

fn pages() -> Vec<String> {
    let mut found = vec!["README.md".to_owned()];
    for folder in ["docs", "docs/tutorials", "docs/how-to"] {
        let names = files::list(&format!("{ROOT}/{folder}")).expect("a folder");
        let pages = names.iter().filter(|name| name.ends_with(".md"));
        found.extend(pages.map(|name| format!("{folder}/{name}")));
    }
    found
}

#[test]
fn the_outputs_of_the_pages_are_those_of_the_commands() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["docs", "fixtures"] {
        std::os::unix::fs::symlink(format!("{ROOT}/{name}"), folder.path().join(name))
            .expect("a link");
    }
    let folder = folder.path().to_string_lossy();
    let mut count = 0;
    for page in pages() {
        let text = files::read_text(&format!("{ROOT}/{page}")).expect("a page");
        for pair in blocks(&text).windows(2) {
            let [("sh", commands), ("text", expected)] = pair else { continue };
            let mut last = None;
            for line in commands.iter().filter(|line| line.starts_with("pinfold ")) {
                last = is_complete(&folder, line).then(|| run(&folder, line));
            }
            let Some(output) = last else {
                assert!(!page.contains("tutorials"), "{page}: an output of a reader's own host");
                continue;
            };
            let lacks = lacking(expected, &output);
            assert!(lacks.is_none(), "{page}: {lacks:?} is not printed here:\n{output}");
            count += 1;
        }
    }
    assert!(count > 15, "{count}");
    assert_eq!(lacking(&["a", "…", "d"], "a\nb\nc\nd"), None);
    assert_eq!(lacking(&["a", "c"], "a\nb\nc"), Some("c"));
}
