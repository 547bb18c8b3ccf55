//! What a file declares, imports and names: input of the check for import cycles.

use std::collections::HashSet;

use super::tokens::{product_code, Token};

/// The names in one file, without its test code.
#[derive(Default)]
pub struct Names {
    /// The modules that it declares with `mod child;`.
    pub children: Vec<String>,
    /// What it defines itself, methods excepted: functions, types, constants, macros.
    pub items: HashSet<String>,
    pub imports: Vec<Import>,
    pub paths: Vec<Path>,
}

/// A path with at least two segments in code.
pub struct Path {
    pub segments: Vec<String>,
    pub line: usize,
}

/// One leaf of a `use` declaration.
pub struct Import {
    pub path: Path,
    /// The name in this file; `None` is `*`.
    pub name: Option<String>,
}

/// Reads a file.
pub fn names(text: &str) -> Names {
    let tokens = product_code(text);
    let mut reader =
        Reader { tokens: &tokens, at: 0, inline: Vec::new(), depth: 0, names: Names::default() };
    while reader.at < reader.tokens.len() {
        reader.step();
    }
    reader.names
}

struct Reader<'a> {
    tokens: &'a [Token],
    at: usize,
    /// The depths of braces at which modules with a body (`mod x { … }`) were opened.
    inline: Vec<usize>,
    depth: usize,
    names: Names,
}

impl Reader<'_> {
    fn is(&self, ahead: usize, text: &str) -> bool {
        self.tokens.get(self.at + ahead).map_or(false, |token| token.is(text))
    }

    fn name(&self, ahead: usize) -> Option<String> {
        self.tokens
            .get(self.at + ahead)
            .filter(|token| token.is_name())
            .map(|token| token.text.clone())
    }

    fn step(&mut self) {
        let token = &self.tokens[self.at];
        match token.text.as_str() {
            "{" => self.depth += 1,
            "}" => {
                self.depth = self.depth.saturating_sub(1);
                if self.inline.last() == Some(&self.depth) {
                    self.inline.pop();
                }
            }
            "use" => {
                self.at += 1;
                return self.tree(Vec::new());
            }
            "mod" => {
                let child = self.name(1);
                if self.is(2, "{") {
                    self.inline.push(self.depth);
                } else if self.is(2, ";") {
                    self.names.children.extend(child);
                }
                self.at += 2;
                return;
            }
            "fn" | "struct" | "enum" | "union" | "trait" | "type" | "const" | "static"
            | "macro_rules"
                if self.depth == self.inline.len() =>
            {
                let item = self.name(if self.is(1, "!") { 2 } else { 1 });
                self.names.items.extend(item);
            }
            _ if token.is_name() => return self.path(),
            _ => {}
        }
        self.at += 1;
    }

    fn path(&mut self) {
        let (line, mut segments) = (self.tokens[self.at].line, Vec::new());
        // A path also follows the two dots of a range or of `..path::f()`, a field one dot.
        let follows = self.is_before(1, "::") || self.is_before(1, ".") && !self.is_before(2, ".");
        segments.extend(self.name(0));
        self.at += 1;
        while self.is(0, "::") {
            match self.name(1) {
                Some(name) => segments.push(name),
                None => break,
            }
            self.at += 2;
        }
        if segments.len() > 1 && !follows {
            let segments = self.from_file(segments);
            self.names.paths.push(Path { segments, line });
        }
    }

    fn is_before(&self, count: usize, text: &str) -> bool {
        self.at >= count && self.tokens[self.at - count].is(text)
    }

    /// A tree of a `use` declaration, after `use` or within braces, up to its `,`, `}` or `;`.
    fn tree(&mut self, mut prefix: Vec<String>) {
        let depth = prefix.len();
        while self.at < self.tokens.len() {
            let line = self.tokens[self.at].line;
            if self.is(0, "::") {
                self.at += 1;
            } else if self.is(0, "{") {
                self.at += 1;
                while self.at < self.tokens.len() && !self.is(0, "}") {
                    self.tree(prefix.clone());
                    if self.is(0, ",") {
                        self.at += 1;
                    }
                }
                self.at += 1;
                return;
            } else if self.is(0, "*") {
                self.at += 1;
                return self.leaf(prefix, None, line);
            } else if let Some(name) = self.name(0) {
                self.at += 1;
                // `a::{self}` names `a`.
                if name != "self" || depth == 0 || prefix.len() > depth {
                    prefix.push(name);
                }
                if !self.is(0, "::") {
                    let mut name = prefix.last().cloned();
                    if self.is(0, "as") {
                        name = self.name(1);
                        self.at += 2;
                    }
                    return self.leaf(prefix, name, line);
                }
            } else {
                return;
            }
        }
    }

    fn leaf(&mut self, segments: Vec<String>, name: Option<String>, line: usize) {
        let segments = self.from_file(segments);
        self.names.imports.push(Import { path: Path { segments, line }, name });
    }

    /// A path as seen from the file: `super` in a module with a body is the file itself.
    fn from_file(&self, segments: Vec<String>) -> Vec<String> {
        let ups = segments
            .iter()
            .take_while(|segment| *segment == "super")
            .count()
            .min(self.inline.len());
        segments[ups..].to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::names;

    fn imports(text: &str, expected: &[&str]) {
        let found = names(text).imports.into_iter().map(|import| {
            let name = import.name.unwrap_or_else(|| "*".to_string());
            format!("{} {} {}", import.path.line, import.path.segments.join("::"), name)
        });
        assert_eq!(found.collect::<Vec<String>>(), expected, "{}", text);
    }

    #[test]
    fn use_declarations_are_expanded() {
        imports("use a::b;", &["1 a::b b"]);
        imports("pub(crate) use a::b as c;", &["1 a::b c"]);
        imports(
            "use crate::a::{self, b::{c, d as e},\n f::*};",
            &["1 crate::a a", "1 crate::a::b::c c", "1 crate::a::b::d e", "2 crate::a::f *"],
        );
        imports("use {a::b, super::c};\nuse d;", &["1 a::b b", "1 super::c c", "2 d d"]);
        imports(
            "mod x { use super::a; use super::super::b; }\nuse super::c;",
            &["1 a a", "1 super::b b", "2 super::c c"],
        );
        imports("#[cfg(test)]\nmod tests { use super::a; }\nuse b::c;", &["3 b::c c"]);
    }

    #[test]
    fn paths_declarations_and_items_are_found() {
        let found = names(
            "mod a;\npub mod b;\nfn f() -> a::T { crate::c::g::<u8>(x.d::<E>()); T { ..j::m() }; b::h!(\"k::l\") }\nstruct S; const fn i() {}",
        );
        let paths: Vec<String> = found.paths.iter().map(|path| path.segments.join("::")).collect();
        assert_eq!(paths, vec!["a::T", "crate::c::g", "j::m", "b::h"]);
        assert_eq!(found.children, vec!["a", "b"]);
        let mut items: Vec<&str> = found.items.iter().map(String::as_str).collect();
        items.sort_unstable();
        assert_eq!(items, vec!["S", "f", "fn", "i"]);
    }
}
