//! Reads and writes the text form of a tree.
//!
//! Output is deterministic (entries sorted by path, a directory only if it is empty), so that two
//! captures of a machine differ only where the machine differs.

use super::{Directory, Node, SnapshotHost, directory_at};

const HEAD: &str = "pinfold-capture 1";

/// Error: a text is not a captured machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TreeError {
    /// The first line is not the expected header.
    #[error("not a captured machine: the first line is {found:?} instead of \"pinfold-capture 1\"")]
    Head {
        /// The first line.
        found: String,
    },
    /// A line cannot be parsed.
    #[error("line {line} of the captured machine: {why}")]
    Line {
        /// Line number, from 1.
        line: usize,
        /// What is wrong with it.
        why: String,
    },
}

impl TreeError {
    /// A hint for the user.
    pub fn hint(&self) -> Option<String> {
        match self {
            TreeError::Head { .. } => {
                Some("make a capture with `pinfold topo --capture` of this version".to_owned())
            }
            TreeError::Line { .. } => {
                Some("the file was changed by hand or cut off: capture it again".to_owned())
            }
        }
    }
}

/// A file whose content lines are still being read.
struct OpenFile {
    names: Vec<String>,
    content: Vec<u8>,
}

impl SnapshotHost {
    /// Parses the text form.
    ///
    /// # Errors
    /// [`TreeError`] with the line: a wrong first line, an unknown entry, a relative path, a
    /// duplicate path, an entry below a file, a broken escape.
    pub fn parse(text: &str) -> Result<Self, TreeError> {
        let mut lines = text.split('\n').map(|line| line.strip_suffix('\r').unwrap_or(line));
        let head = lines.next().unwrap_or_default();
        if head != HEAD {
            return Err(TreeError::Head { found: head.chars().take(60).collect() });
        }
        let mut tree = Self::new();
        let mut open: Option<OpenFile> = None;
        for (number, line) in (2..).zip(lines) {
            if let Some(content) = line.strip_prefix('\t') {
                let file = open
                    .as_mut()
                    .ok_or_else(|| fail(number, "content outside a file".to_owned()))?;
                unescape_content(content, &mut file.content).map_err(|why| fail(number, why))?;
                continue;
            }
            tree.close(open.take());
            if !line.is_empty() {
                open = tree.entry(line).map_err(|why| fail(number, why))?;
            }
        }
        tree.close(open);
        Ok(tree)
    }

    /// The text form.
    pub fn to_text(&self) -> String {
        let mut text = format!("{HEAD}\n");
        write_directory(&self.root, "", &mut text);
        text
    }

    /// Parses one entry line; returns a file whose content may follow.
    fn entry(&mut self, line: &str) -> Result<Option<OpenFile>, String> {
        let (kind, rest) =
            line.split_once(' ').ok_or_else(|| format!("{line:?} is not an entry"))?;
        let (path, target) = match kind {
            "link" => rest
                .split_once(" -> ")
                .map(|(path, target)| (path, Some(target)))
                .ok_or_else(|| "a link needs a target after \" -> \"".to_owned())?,
            "file" | "dir" | "bare" => (rest, None),
            _ => return Err(format!("{kind:?} is not file, link, dir or bare")),
        };
        let names = self.new_place(&unescape_line(path)?)?;
        let (last, parents) = names.split_last().ok_or("the root itself is not an entry")?;
        let node = match (kind, target) {
            (_, Some(target)) => Node::Link(unescape_line(target)?),
            ("file", None) => Node::File(Vec::new()),
            ("dir", None) => Node::Directory(Directory::new()),
            (_, None) => Node::ExistsOnly,
        };
        directory_at(&mut self.root, parents).insert(last.clone(), node);
        Ok((kind == "file").then_some(OpenFile { names, content: Vec::new() }))
    }

    /// The components of a path that can be inserted as a new entry.
    fn new_place(&self, path: &str) -> Result<Vec<String>, String> {
        let inner =
            path.strip_prefix('/').ok_or_else(|| format!("{path:?} is not an absolute path"))?;
        if path.len() > super::MAX_PATH || inner.split('/').count() > super::MAX_DEPTH {
            let shown: String = path.chars().take(60).collect();
            return Err(format!(
                "{shown:?}…: path too long or too deep (at most {} bytes and {} levels)",
                super::MAX_PATH,
                super::MAX_DEPTH
            ));
        }
        let names: Vec<String> = inner.split('/').map(str::to_owned).collect();
        if names.iter().any(|name| matches!(name.as_str(), "" | "." | "..")) {
            return Err(format!("{path:?} is not a plain path"));
        }
        if self.node(&names).is_some() {
            return Err(format!("{path:?} appears twice"));
        }
        for end in 1..names.len() {
            match self.node(&names[..end]) {
                None | Some(super::Found::Directory(_)) => {}
                Some(super::Found::File(_) | super::Found::Link(_) | super::Found::Bare) => {
                    return Err(format!("{path:?} is below something that is not a directory"));
                }
            }
        }
        Ok(names)
    }

    fn close(&mut self, file: Option<OpenFile>) {
        if let Some(OpenFile { names, content }) = file
            && let Some((last, parents)) = names.split_last()
        {
            directory_at(&mut self.root, parents).insert(last.clone(), Node::File(content));
        }
    }
}

fn fail(number: usize, why: String) -> TreeError {
    TreeError::Line { line: number, why }
}

fn write_directory(directory: &Directory, above: &str, text: &mut String) {
    for (name, node) in directory {
        let path = format!("{above}/{name}");
        let shown = escape_line(&path);
        match node {
            Node::Directory(inner) if inner.is_empty() => text.push_str(&format!("dir {shown}\n")),
            Node::Directory(inner) => write_directory(inner, &path, text),
            Node::Link(target) => {
                text.push_str(&format!("link {shown} -> {}\n", escape_line(target)));
            }
            Node::ExistsOnly => text.push_str(&format!("bare {shown}\n")),
            Node::File(content) => {
                text.push_str(&format!("file {shown}\n"));
                write_content(content, text);
            }
        }
    }
}

fn write_content(content: &[u8], text: &mut String) {
    for line in content.split_inclusive(|byte| *byte == b'\n') {
        text.push('\t');
        match line.strip_suffix(b"\n") {
            Some(whole) => escape(whole, Tabs::Plain, text),
            None => {
                escape(line, Tabs::Plain, text);
                text.push('\\');
            }
        }
        text.push('\n');
    }
}

/// Decodes a content line without its tab: its bytes, and a newline unless it ends in a backslash.
fn unescape_content(line: &str, bytes: &mut Vec<u8>) -> Result<(), String> {
    let newline = unescape(line, bytes)?;
    if newline {
        bytes.push(b'\n');
    }
    Ok(())
}

/// Escapes a path or link target: no control characters and no ` -> `.
fn escape_line(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    escape(text.as_bytes(), Tabs::Escaped, &mut escaped);
    escaped.replace(" -> ", "\\x20-> ")
}

fn unescape_line(text: &str) -> Result<String, String> {
    let mut bytes = Vec::with_capacity(text.len());
    if !unescape(text, &mut bytes)? {
        return Err("a path ends in a lone backslash".to_owned());
    }
    String::from_utf8(bytes).map_err(|_| "a path is not UTF-8".to_owned())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Tabs {
    Plain,
    Escaped,
}

fn escape(bytes: &[u8], tabs: Tabs, text: &mut String) {
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '\\' => text.push_str("\\\\"),
                '\t' if tabs == Tabs::Plain => text.push('\t'),
                c if c.is_control() => {
                    let mut buffer = [0; 4];
                    for byte in c.encode_utf8(&mut buffer).bytes() {
                        text.push_str(&format!("\\x{byte:02x}"));
                    }
                }
                c => text.push(c),
            }
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("\\x{byte:02x}"));
        }
    }
}

/// Appends the bytes of an escaped text. False if it ends in a single backslash.
fn unescape(text: &str, bytes: &mut Vec<u8>) -> Result<bool, String> {
    let mut rest = text;
    while let Some(start) = rest.find('\\') {
        bytes.extend_from_slice(&rest.as_bytes()[..start]);
        let escaped = &rest[start + 1..];
        if escaped.is_empty() {
            return Ok(false);
        }
        if let Some(after) = escaped.strip_prefix('\\') {
            bytes.push(b'\\');
            rest = after;
            continue;
        }
        let digits = escaped.strip_prefix('x').and_then(|digits| digits.get(..2));
        let byte = digits
            .filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
            .and_then(|digits| u8::from_str_radix(digits, 16).ok())
            .ok_or_else(|| format!("a backslash is followed by {escaped:?}"))?;
        bytes.push(byte);
        rest = &escaped[3..];
    }
    bytes.extend_from_slice(rest.as_bytes());
    Ok(true)
}
