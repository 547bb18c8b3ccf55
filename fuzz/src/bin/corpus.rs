//! Converts corpora between folders of files, for the engine, and the stored files of lines.
//!
//! ```text
//! pinfold-corpus targets
//! pinfold-corpus unpack FILE FOLDER
//! pinfold-corpus pack FOLDER FILE
//! pinfold-corpus show INPUT
//! ```

use std::collections::BTreeSet;
use std::fs;
use std::io::{ErrorKind, Write as _};
use std::path::Path;
use std::process::ExitCode;

use pinfold_fuzz::{TARGETS, corpus};

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["targets"] => say(TARGETS.iter().map(|one| format!("{}\t{}", one.name, one.about))),
        ["unpack", file, folder] => unpack(Path::new(file), Path::new(folder)),
        ["pack", folder, file] => pack(Path::new(folder), Path::new(file)),
        ["show", input] => read(Path::new(input)).and_then(|bytes| say([corpus::to_line(&bytes)])),
        _ => Err("usage: pinfold-corpus targets|unpack FILE FOLDER|pack FOLDER FILE|show INPUT"
            .to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => match writeln!(std::io::stderr(), "pinfold-corpus: {why}") {
            Ok(()) | Err(_) => ExitCode::FAILURE,
        },
    }
}

fn say(lines: impl IntoIterator<Item = String>) -> Result<(), String> {
    let mut out = std::io::stdout();
    lines.into_iter().try_for_each(|line| writeln!(out, "{line}")).map_err(|why| why.to_string())
}

/// Writes one file per line, named by its number; a missing corpus is empty.
fn unpack(file: &Path, folder: &Path) -> Result<(), String> {
    fn wrong(path: &Path, why: &dyn std::fmt::Display) -> String {
        format!("{}: {why}", path.display())
    }

    fs::create_dir_all(folder).map_err(|why| wrong(folder, &why))?;
    let text = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(why) if why.kind() == ErrorKind::NotFound => String::new(),
        Err(why) => return Err(wrong(file, &why)),
    };
    for (number, line) in text.lines().enumerate() {
        let input = corpus::from_line(line)
            .map_err(|why| wrong(file, &format!("line {}: {why}", number + 1)))?;
        let path = folder.join(format!("kept-{number}"));
        fs::write(&path, input).map_err(|why| wrong(&path, &why))?;
    }
    Ok(())
}

/// Maximum size of a stored corpus (bytes).
const MOST: usize = 64 << 10;

/// Shortest first, so that the simple ones are at the top, and as many as fit.
fn pack(folder: &Path, file: &Path) -> Result<(), String> {
    fn wrong(path: &Path, why: std::io::Error) -> String {
        format!("{}: {why}", path.display())
    }

    let mut lines = BTreeSet::new();
    for entry in fs::read_dir(folder).map_err(|why| wrong(folder, why))? {
        let path = entry.map_err(|why| wrong(folder, why))?.path();
        let line = corpus::to_line(&read(&path)?);
        lines.insert((line.len(), line));
    }
    let mut text = String::new();
    for (length, line) in lines {
        if text.len() + length < MOST {
            text.push_str(&line);
            text.push('\n');
        }
    }
    fs::write(file, text).map_err(|why| wrong(file, why))
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|why| format!("{}: {why}", path.display()))
}
