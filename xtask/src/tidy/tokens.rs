//! The words of a Rust file without comments, strings and test code, for checks of names.
//!
//! A scanner, not a parser: it knows identifiers, `::` and single characters. A string or a
//! character literal becomes the token `"`.

/// An identifier, a number, `::`, or one other character.
#[derive(Debug, PartialEq)]
pub struct Token {
    pub text: String,
    pub line: usize,
}

impl Token {
    pub fn is(&self, text: &str) -> bool {
        self.text == text
    }

    pub fn is_name(&self) -> bool {
        self.text.starts_with(|c: char| c.is_alphabetic() || c == '_')
    }
}

/// The tokens of a file, without the items behind `#[cfg(test)]`.
pub fn product_code(text: &str) -> Vec<Token> {
    without_tests(all_code(text))
}

/// The tokens of a file.
pub fn all_code(text: &str) -> Vec<Token> {
    let chars: Vec<char> = text.chars().collect();
    let (mut found, mut index, mut line) = (Vec::new(), 0, 1);
    while index < chars.len() {
        let start = index;
        let first = chars[index];
        let mut token = None;
        if first == '/' && char_at(index + 1, &chars) == '/' {
            while index < chars.len() && chars[index] != '\n' {
                index += 1;
            }
        } else if first == '/' && char_at(index + 1, &chars) == '*' {
            index = end_of_comment(&chars, index);
        } else if let Some(end) = end_of_literal(&chars, index) {
            index = end;
            token = Some("\"".to_string());
        } else if first == '\'' {
            // A lifetime or a label.
            index = end_of_word(&chars, index + 1);
        } else if first.is_alphanumeric() || first == '_' {
            index = end_of_word(&chars, index);
            token = Some(chars[start..index].iter().collect());
        } else if first == ':' && char_at(index + 1, &chars) == ':' {
            index += 2;
            token = Some("::".to_string());
        } else {
            index += 1;
            token = Some(first).filter(|c| !c.is_whitespace()).map(String::from);
        }
        found.extend(token.map(|text| Token { text, line }));
        line += chars[start..index].iter().filter(|c| **c == '\n').count();
    }
    found
}

fn char_at(index: usize, chars: &[char]) -> char {
    chars.get(index).copied().unwrap_or('\0')
}

fn end_of_word(chars: &[char], start: usize) -> usize {
    let word = chars[start..].iter().take_while(|c| c.is_alphanumeric() || **c == '_');
    start + word.count()
}

/// Block comments can be nested.
fn end_of_comment(chars: &[char], start: usize) -> usize {
    let (mut index, mut depth) = (start, 0);
    while index + 1 < chars.len() {
        match (chars[index], chars[index + 1]) {
            ('/', '*') => depth += 1,
            ('*', '/') => depth -= 1,
            _ => {
                index += 1;
                continue;
            }
        }
        index += 2;
        if depth == 0 {
            return index;
        }
    }
    chars.len()
}

/// The end of the string or character literal that starts here: `"…"`, `b"…"`, `r#"…"#`, `'…'`.
fn end_of_literal(chars: &[char], start: usize) -> Option<usize> {
    fn at(index: usize, chars: &[char]) -> char {
        chars.get(index).copied().unwrap_or('\0')
    }
    let mut index = start;
    if at(index, chars) == '\'' {
        let is_char = at(index + 1, chars) == '\\' || at(index + 2, chars) == '\'';
        return if is_char { Some(end_of_quote(chars, index, '\'')) } else { None };
    }
    while matches!(at(index, chars), 'b' | 'c' | 'r') && index < start + 2 {
        index += 1;
    }
    let raw = index > start && at(index - 1, chars) == 'r';
    let hashes = if raw { chars[index..].iter().take_while(|c| **c == '#').count() } else { 0 };
    index += hashes;
    match at(index, chars) {
        '"' if raw => {
            let closes = |end: &usize| {
                at(*end, chars) == '"' && (1..=hashes).all(|hash| at(*end + hash, chars) == '#')
            };
            let end = (index + 1..chars.len()).find(closes).unwrap_or(chars.len());
            Some((end + 1 + hashes).min(chars.len()))
        }
        '"' => Some(end_of_quote(chars, index, '"')),
        '\'' if index == start + 1 && at(start, chars) == 'b' => {
            Some(end_of_quote(chars, index, '\''))
        }
        _ => None,
    }
}

fn end_of_quote(chars: &[char], start: usize, quote: char) -> usize {
    let mut index = start + 1;
    while index < chars.len() && chars[index] != quote {
        index += if chars[index] == '\\' { 2 } else { 1 };
    }
    (index + 1).min(chars.len())
}

fn without_tests(tokens: Vec<Token>) -> Vec<Token> {
    const TEST: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let (mut keep, mut skip_to) = (Vec::new(), 0);
    for index in 0..tokens.len() {
        let rest = &tokens[index..];
        let is_test = rest.len() >= TEST.len()
            && rest.iter().zip(TEST.iter()).all(|(token, word)| token.is(word));
        if index >= skip_to && is_test {
            skip_to = index + length_of_item(rest);
        }
        keep.push(index >= skip_to);
    }
    tokens.into_iter().zip(keep).filter(|(_, keep)| *keep).map(|(token, _)| token).collect()
}

/// The number of tokens of an item with its attributes: up to the `;` or the `}` that ends it.
fn length_of_item(tokens: &[Token]) -> usize {
    let (mut depth, mut attribute, mut ends_with_semicolon) = (0, false, false);
    for (index, token) in tokens.iter().enumerate() {
        match token.text.as_str() {
            "#" if depth == 0 => attribute = true,
            "(" | "[" | "{" => depth += 1,
            ")" | "]" => {
                depth -= 1;
                attribute = attribute && depth > 0;
            }
            "}" => {
                depth -= 1;
                if depth == 0 && !ends_with_semicolon {
                    return index + 1;
                }
            }
            ";" if depth == 0 => return index + 1,
            "use" | "static" | "type" | "=" if depth == 0 && !attribute => {
                ends_with_semicolon = true
            }
            _ => {}
        }
    }
    tokens.len()
}

#[cfg(test)]
mod tests {
    use super::product_code;

    fn check(text: &str, expected: &str) {
        let words: Vec<String> = product_code(text).into_iter().map(|token| token.text).collect();
        assert_eq!(words.join(" "), expected, "{}", text);
    }

    #[test]
    fn comments_and_strings_are_removed() {
        check("a // b::c\nd", "a d");
        check("a /* b /* c */ d */ e", "a e");
        check("f(\"use crate::b;\")", "f ( \" )");
        check("f(\"a\\\"b\", b\"c\", r#\"d \" e\"#, br\"\\\")", "f ( \" , \" , \" , \" )");
        check("'x' '\\'' b'y' '\"' 'a: loop {}", "\" \" \" \" : loop { }");
        check("fn f<'a>(x: &'a str) {}", "fn f < > ( x : & str ) { }");
        check("crate::b::f", "crate :: b :: f");
        check("rows bar r", "rows bar r");
    }

    #[test]
    fn test_items_are_removed() {
        check("#[cfg(test)]\nmod tests;\nfn f() {}", "fn f ( ) { }");
        check("#[cfg(test)] use a::{b, c}; fn f() {}", "fn f ( ) { }");
        check("#[cfg(test)] const A: [T; 1] = [T { a: 1 }]; fn f() {}", "fn f ( ) { }");
        check(
            "#[cfg(test)]\n#[derive(A)]\npub(crate) fn g(a: [u8; 2]) { h(); }\nfn f() {}",
            "fn f ( ) { }",
        );
        check("#[cfg(test)] impl A { fn g() { if b {} } } fn f() {}", "fn f ( ) { }");
        check(
            "#[cfg(target_os = \"linux\")] fn f() {}",
            "# [ cfg ( target_os = \" ) ] fn f ( ) { }",
        );
    }

    #[test]
    fn lines_are_counted() {
        let found = product_code("a /* \n */ \"\n\"\n b");
        let lines: Vec<usize> = found.iter().map(|token| token.line).collect();
        assert_eq!(lines, vec![1, 2, 4]);
    }
}
