//! What the code base does not use, by its tokens: `match` on a bool, constructors called `of`,
//! pairs as parameters, closures with a name, functions called by a bare participle; and the counts of `cargo xtask tidy --report`.

use super::tokens::{all_code, Token};

/// Functions may take this many pairs in all; the number only falls.
const MOST_TUPLE_PARAMETERS: usize = 0;

/// Closures with a name per 10,000 lines; the number only falls. One that is used once is written
/// where it is used, one that is used often is a function.
const MOST_CLOSURES: usize = 30;

/// Functions of the product that are called by a bare participle or adverb (`asked`, `apart`): a
/// name says what a function does or returns. The number only falls.
const MOST_PARTICIPLES: usize = 22;

/// Participles and adverbs that do not end with -ed.
const IRREGULAR: [&str; 30] = [
    "above",
    "again",
    "alike",
    "alone",
    "apart",
    "begun",
    "below",
    "beside",
    "born",
    "chosen",
    "done",
    "drawn",
    "elsewhere",
    "found",
    "given",
    "gone",
    "grown",
    "held",
    "instead",
    "kept",
    "known",
    "left",
    "lost",
    "made",
    "once",
    "outside",
    "said",
    "seen",
    "shown",
    "together",
];

/// Counts over all files.
#[derive(Default)]
pub struct Counts {
    lines: usize,
    product_lines: usize,
    functions: usize,
    tuple_parameters: usize,
    closures: usize,
    participles: Vec<String>,
}

impl Counts {
    /// Counts a file, and names what it must not have.
    pub fn add(&mut self, name: &str, text: &str, broken: &mut Vec<String>) {
        let lines = text.lines().count();
        self.lines += lines;
        let is_product =
            name.starts_with("crates/") && !name.contains("/tests") && !name.ends_with("tests.rs");
        if is_product {
            self.product_lines += lines;
        }
        let tokens = all_code(text);
        for index in 0..tokens.len() {
            let place = format!("{}:{}", name, tokens[index].line);
            if is_bool_arm(&tokens, index) {
                broken.push(format!("{}: write `if` instead of a match on a bool", place));
            }
            if is_closure(&tokens, index) {
                self.closures += 1;
            }
            if !tokens[index].is("fn") || !tokens.get(index + 1).map_or(false, Token::is_name) {
                continue;
            }
            self.functions += 1;
            if is_product && is_participle(&tokens[index + 1].text) {
                self.participles.push(format!("{} {}", place, tokens[index + 1].text));
            }
            let parameters = parameters(&tokens, index + 2);
            self.tuple_parameters += parameters.iter().filter(|first| first.is("(")).count();
            let has_self =
                parameters.iter().any(|first| first.is("self") || first.is("&") || first.is("mut"));
            if tokens[index + 1].is("of") && !has_self {
                broken
                    .push(format!("{}: a constructor is called new, read, parse or from_…", place));
            }
        }
    }

    /// Names what all files together must not have.
    pub fn check(&self, broken: &mut Vec<String>) {
        if self.tuple_parameters > MOST_TUPLE_PARAMETERS {
            broken.push(format!(
                "{} parameters are pairs, at most {} may be: give each value a parameter",
                self.tuple_parameters, MOST_TUPLE_PARAMETERS
            ));
        }
        if self.participles.len() > MOST_PARTICIPLES {
            broken.push(format!(
                "{} functions are called by a bare participle or adverb, at most {} may be: {}",
                self.participles.len(),
                MOST_PARTICIPLES,
                self.participles.join(", ")
            ));
        }
        if self.closures * 10_000 > MOST_CLOSURES * self.lines {
            broken.push(format!(
                "{} closures in {} lines have a name, at most {} in 10,000 may: make them functions",
                self.closures, self.lines, MOST_CLOSURES
            ));
        }
    }

    pub fn print(&self) {
        println!("Rust lines, product / all         {} / {}", self.product_lines, self.lines);
        println!("functions                         {}", self.functions);
        println!("called by a participle (product)  {}", self.participles.len());
        println!("pairs as parameters               {}", self.tuple_parameters);
        let share = self.closures as f64 * 1000.0 / self.lines.max(1) as f64;
        println!("named closures (per 1,000 lines)  {} ({:.1})", self.closures, share);
    }
}

/// True for `asked` and `apart`; not for words that are verbs or nouns as well.
fn is_participle(name: &str) -> bool {
    let is_regular = name.ends_with("ed")
        && !name.ends_with("eed")
        && !["sched", "seed", "speed"].contains(&name);
    !name.contains('_') && (is_regular || IRREGULAR.contains(&name))
}

/// An arm `true =>` or `true if …`, with the pattern of a bool alone.
fn is_bool_arm(tokens: &[Token], index: usize) -> bool {
    let is =
        |ahead: usize, text: &str| tokens.get(index + ahead).map_or(false, |token| token.is(text));
    let begins = index > 0 && ["{", "}", ","].iter().any(|text| tokens[index - 1].is(text));
    begins && (is(0, "true") || is(0, "false")) && (is(1, "=") && is(2, ">") || is(1, "if"))
}

/// `let name = |…|` and `let name = move |…|`.
fn is_closure(tokens: &[Token], index: usize) -> bool {
    let mut rest = tokens[index..].iter().filter(|token| !token.is("mut"));
    let is_let = rest.next().map_or(false, |token| token.is("let"));
    let is_name = rest.next().map_or(false, Token::is_name);
    let is_set = rest.next().map_or(false, |token| token.is("="));
    let first = rest.find(|token| !token.is("move"));
    is_let && is_name && is_set && first.map_or(false, |token| token.is("|"))
}

/// The first token of each parameter of the function whose generics or parameters begin here.
fn parameters(tokens: &[Token], start: usize) -> Vec<&Token> {
    let (mut depth, mut angles, mut is_first, mut found) = (0, 0, false, Vec::new());
    for (index, token) in tokens.iter().enumerate().skip(start) {
        let is_arrow = index > 0 && tokens[index - 1].is("-");
        if is_first && depth == 1 && !token.is(")") {
            found.push(token);
            is_first = false;
        }
        match token.text.as_str() {
            "<" => angles += 1,
            ">" if !is_arrow => angles -= 1,
            "(" | "[" if depth > 0 || angles == 0 => {
                depth += 1;
                is_first = depth == 1;
            }
            ")" | "]" if depth > 0 => {
                depth -= 1;
                if depth == 0 {
                    break;
                }
            }
            "," if depth == 1 && angles == 0 => is_first = true,
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::Counts;

    fn check(text: &str, pairs: usize, closures: usize, broken: usize) {
        let (mut counts, mut found) = (Counts::default(), Vec::new());
        counts.add("crates/a/src/a.rs", text, &mut found);
        let counted = (counts.tuple_parameters, counts.closures, found.len());
        assert_eq!(counted, (pairs, closures, broken), "{}: {:?}", text, found);
    }

    #[test]
    fn more_closures_than_allowed_are_named() {
        let few = Counts { lines: 10_000, closures: super::MOST_CLOSURES, ..Counts::default() };
        let mut broken = Vec::new();
        few.check(&mut broken);
        assert_eq!(broken, Vec::<String>::new());
        Counts { closures: few.closures + 1, ..few }.check(&mut broken);
        assert!(broken.len() == 1 && broken[0].contains("make them functions"), "{:?}", broken);
    }

    #[test]
    fn participles_are_counted() {
        let (mut counts, mut found) = (Counts::default(), Vec::new());
        let text = "fn asked() {} fn apart(&self) {} fn speed() {} fn feed() {} fn read() {} fn is_asked() {}";
        counts.add("crates/a/src/a.rs", text, &mut found);
        counts.add("crates/a/src/tests.rs", text, &mut found);
        assert_eq!(counts.participles, ["crates/a/src/a.rs:1 asked", "crates/a/src/a.rs:1 apart"]);
    }

    #[test]
    fn what_is_not_used_is_found() {
        check("fn f(a: u8, (b, c): (u8, u8)) {}", 1, 0, 0);
        check("fn f<F: Fn(u8) -> (u8, u8)>(&self, g: F, (a, b): (A<u8, u8>, B)) {}", 1, 0, 0);
        check("fn f(a: (u8, u8), b: Map<(u8, u8), u8>) { g((1, 2)); }", 0, 0, 0);
        check("fn f() { let a = |b| b; let mut c = move || d; let e = f(|g| g); }", 0, 2, 0);
        check("fn f() { match a { true => b, false if c => d, false => {} } }", 0, 0, 3);
        check("fn f() { match a { Some(true) => b, (true, _) => c, _ => true } }", 0, 0, 0);
        check("impl A { fn of(a: u8) -> Self { A } fn of_b(&self) {} }", 0, 0, 1);
        check("impl A { fn of(&self, a: u8) -> u8 { a } fn of(self) {} }", 0, 0, 0);
    }
}
