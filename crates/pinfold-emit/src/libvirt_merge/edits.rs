//! Replacing and inserting text by byte ranges, with the file's own indentation and line ends.

use std::ops::Range;

use roxmltree::Node;

/// Changes to a text, all applied at the end.
pub struct Edits<'x> {
    text: &'x str,
    /// The line end that the file uses.
    eol: &'static str,
    changes: Vec<(Range<usize>, String)>,
}

impl<'x> Edits<'x> {
    /// No changes to this text yet.
    pub fn new(text: &'x str) -> Self {
        let eol = if text.contains("\r\n") { "\r\n" } else { "\n" };
        Self { text, eol, changes: Vec::new() }
    }

    /// Replaces one element.
    pub fn replace(&mut self, node: Node<'_, 'x>, lines: &[String]) {
        let indent = self.indent(node);
        let text = self.join_lines(lines, &indent);
        self.changes.push((node.range(), text));
    }

    /// Replaces the children that are `ours` by `lines`, at the position of the first one or at the
    /// end of the parent.
    pub fn exchange(
        &mut self,
        parent: Node<'_, 'x>,
        ours: impl Fn(&Node<'_, '_>) -> bool,
        lines: &[String],
    ) {
        let old: Vec<Node<'_, 'x>> =
            parent.children().filter(|child| child.is_element() && ours(child)).collect();
        let Some((first, rest)) = old.split_first() else {
            self.insert_into(parent, lines);
            return;
        };
        if old.iter().map(|node| &self.text[node.range()]).eq(lines.iter()) {
            return;
        }
        self.replace(*first, lines);
        for node in rest {
            let line = self.whole_line(node.range());
            let start = self.without_blank_lines(line.start);
            self.changes.push((start..line.end, String::new()));
        }
    }

    /// The end of the last line before `start` that is not blank, if `start` begins a line.
    fn without_blank_lines(&self, start: usize) -> usize {
        let mut start = start;
        while let Some(before) = self.text[..start].strip_suffix('\n') {
            let line = before.rfind('\n').map_or(0, |end| end + 1);
            if !before[line..].trim().is_empty() {
                break;
            }
            start = line;
        }
        start
    }

    /// Removes an element, including its line if nothing else is on it.
    pub fn remove(&mut self, node: Node<'_, 'x>) {
        let range = self.whole_line(node.range());
        self.changes.push((range, String::new()));
    }

    /// Inserts lines after an element, each on a separate line.
    pub fn insert_after(&mut self, node: Node<'_, 'x>, lines: &[String]) {
        let indent = self.indent(node);
        let text = format!("{}{indent}{}", self.eol, self.join_lines(lines, &indent));
        let end = node.range().end;
        self.changes.push((end..end, text));
    }

    /// Inserts lines at the end of an element's content.
    pub fn insert_into(&mut self, parent: Node<'_, 'x>, lines: &[String]) {
        let outer = self.indent(parent);
        let inner = match parent.children().find(Node::is_element) {
            Some(child) if !self.indent(child).is_empty() => self.indent(child),
            Some(_) | None => format!("{outer}  "),
        };
        let range = parent.range();
        let source = &self.text[range.clone()];
        let body = self.join_lines(lines, &inner);
        let eol = self.eol;
        if source.ends_with("/>") {
            let name = source[1..].split(|c: char| c.is_whitespace() || c == '/').next();
            let close = format!("{eol}{outer}</{}>", name.unwrap_or_default());
            let end = range.end - 2..range.end;
            // An empty element is opened only once, even for several insertions.
            match self.changes.iter_mut().find(|(place, _)| *place == end) {
                Some((_, text)) => {
                    text.truncate(text.len() - close.len());
                    text.push_str(&format!("{eol}{inner}{body}{close}"));
                }
                None => self.changes.push((end, format!(">{eol}{inner}{body}{close}"))),
            }
            return;
        }
        let close = range.start + source.rfind("</").unwrap_or(source.len());
        let line = self.line_start(close);
        if self.text[line..close].trim().is_empty() {
            // Before the line of the closing tag.
            self.changes.push((line..line, format!("{inner}{body}{eol}")));
        } else {
            self.changes.push((close..close, format!("{eol}{inner}{body}{eol}{outer}")));
        }
    }

    /// The text with all changes. Changes at one position are applied in the order in which they
    /// were added.
    #[must_use]
    pub fn apply(mut self) -> String {
        self.changes.sort_by_key(|(range, _)| (range.start, range.end));
        let mut text = String::with_capacity(self.text.len() + 1024);
        let mut done = 0;
        for (range, new) in &self.changes {
            text.push_str(&self.text[done..range.start]);
            text.push_str(new);
            done = range.end;
        }
        text.push_str(&self.text[done..]);
        text
    }

    fn join_lines(&self, lines: &[String], indent: &str) -> String {
        lines.join(&format!("{}{indent}", self.eol))
    }

    fn line_start(&self, at: usize) -> usize {
        self.text[..at].rfind('\n').map_or(0, |newline| newline + 1)
    }

    /// The blanks before an element, if nothing else precedes it on its line.
    fn indent(&self, node: Node<'_, 'x>) -> String {
        let start = node.range().start;
        let before = &self.text[self.line_start(start)..start];
        if before.trim().is_empty() {
            before.to_owned()
        } else {
            let blanks = before.len() - before.trim_start().len();
            before[..blanks].to_owned()
        }
    }

    /// The range extended to the whole line, if nothing else is on the line.
    fn whole_line(&self, range: Range<usize>) -> Range<usize> {
        let start = self.line_start(range.start);
        let end =
            self.text[range.end..].find('\n').map_or(self.text.len(), |at| range.end + at + 1);
        let alone = self.text[start..range.start].trim().is_empty()
            && self.text[range.end..end].trim().is_empty();
        if alone { start..end } else { range }
    }
}
