//! Lists named `ALL` have each variant of their enum: a new variant that a list lacks compiles.

use super::tokens::{product_code, Token};

/// Names the variants that a list of the same file lacks.
pub fn check(name: &str, text: &str, broken: &mut Vec<String>) {
    let tokens = product_code(text);
    let mut own = None;
    for index in 0..tokens.len() {
        let is = |ahead: usize, text: &str| is_token(&tokens, index + ahead, text);
        if is(0, "impl") && is(2, "{") {
            own = tokens.get(index + 1);
        }
        if !(is(0, "const") && is(1, "ALL") && is(2, ":")) {
            continue;
        }
        let open = index + if is(3, "&") { 4 } else { 3 };
        let kind = match tokens.get(open + 1) {
            Some(kind) if kind.is("Self") => own,
            kind => kind,
        };
        let kind = match kind {
            Some(kind) if is_token(&tokens, open, "[") => kind,
            _ => continue,
        };
        let begin = tokens[open..].iter().position(|token| token.is("="));
        let list = &tokens[open + begin.unwrap_or(0)..];
        let end = list.iter().position(|token| token.is(";"));
        let list = &list[..end.unwrap_or(list.len())];
        for variant in variants(&tokens, &kind.text) {
            if !(0..list.len()).any(|at| list[at].is("::") && is_token(list, at + 1, variant)) {
                let place = format!("{}:{}", name, tokens[index].line);
                broken.push(format!("{}: ALL has no {}::{}", place, kind.text, variant));
            }
        }
    }
}

fn is_token(tokens: &[Token], index: usize, text: &str) -> bool {
    tokens.get(index).map_or(false, |token| token.is(text))
}

/// The variants of an enum of the file; none if it has no enum of this name.
fn variants<'t>(tokens: &'t [Token], name: &str) -> Vec<&'t str> {
    let starts = |at: &usize| {
        is_token(tokens, *at, "enum")
            && is_token(tokens, *at + 1, name)
            && is_token(tokens, *at + 2, "{")
    };
    let start = match (0..tokens.len()).find(starts) {
        Some(at) => at + 3,
        None => return Vec::new(),
    };
    let (mut depth, mut is_next, mut found) = (1, true, Vec::new());
    for token in &tokens[start..] {
        match token.text.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth -= 1,
            "," if depth == 1 => is_next = true,
            _ if depth == 1 && is_next && token.is_name() => {
                found.push(token.text.as_str());
                is_next = false;
            }
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn a_variant_that_a_list_lacks_is_named() {
        fn lacks(list: &str, expected: &[&str]) {
            let text = format!(
                "enum Other {{ D }} #[derive(Debug)] enum Kind {{ #[doc(x)] A = 1, B(u8, C), E {{ f: u8 }} }} impl Kind {{ {} }}",
                list
            );
            let mut broken = Vec::new();
            check("a.rs", &text, &mut broken);
            let expected: Vec<_> =
                expected.iter().map(|one| format!("a.rs:1: ALL has no Kind::{}", one)).collect();
            assert_eq!(broken, expected);
        }

        lacks("pub const ALL: [Kind; 3] = [Kind::A, Kind::B(1, C), Kind::E { f: 1 }];", &[]);
        lacks("pub const ALL: [Self; 2] = [Self::A, Self::E { f: 1 }];", &["B"]);
        lacks("const ALL: &[Kind] = &[Kind::B(1, A)];", &["A", "E"]);
        lacks("const ALL: &str = \"all\"; const SOME: [Kind; 1] = [Kind::A];", &[]);
        lacks("const ALL: [Elsewhere; 1] = [Elsewhere::A];", &[]);
    }
}
