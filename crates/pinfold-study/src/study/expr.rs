//! The expression language of study files.
//!
//! It is used for constraints (`strategy == "isolcpus" -> n_vcpu <= 15`), reasons to skip, figures
//! from a program's JSON (`units / elapsed_ns * 1e9`) and the rules of the report's claims. It is
//! pure: names and functions are defined by a [`Scope`].
//!
//! From the weakest to the strongest binding: `->` (implies), `or`, `and`, `not`, comparisons and
//! `in [a, b]`, `+ -`, `* / %`, `-x`. Strings are in double or single quotes. Functions available
//! in every scope: `power_of_two(x)`, `abs(x)`, `min(a, b, …)`, `max(a, b, …)`, `round(x, digits)`.

mod bounds;

use std::fmt;

pub use bounds::Bounds;

/// Maximum nesting depth, because the stack is finite.
const DEEPEST: u32 = 64;

/// A value of an expression.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A number.
    Number(f64),
    /// A string.
    Text(String),
    /// A boolean.
    Truth(bool),
}

impl Value {
    fn kind(&self) -> &'static str {
        match self {
            Value::Number(_) => "a number",
            Value::Text(_) => "a string",
            Value::Truth(_) => "true or false",
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Number(number) => number.fmt(f),
            Value::Text(text) => text.fmt(f),
            Value::Truth(truth) => truth.fmt(f),
        }
    }
}

/// An error in an expression, with its byte offset in the text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExprError {
    /// Byte offset.
    pub at: usize,
    /// What is wrong with the expression.
    pub why: String,
}

impl ExprError {
    /// An error at this byte offset.
    pub fn new(at: usize, why: impl Into<String>) -> Self {
        Self { at, why: why.into() }
    }
}

/// Defines names and further functions.
pub trait Scope {
    /// The value of a name; `None` if it is unknown or has no value here.
    fn value(&self, name: &str) -> Option<Value>;

    /// The value of a function that is not built in; `None` if it is unknown.
    ///
    /// # Errors
    /// The reason if it has no value.
    fn call(&self, function: &str, arguments: &[Argument]) -> Option<Result<Value, ExprError>> {
        let _unknown = (function, arguments);
        None
    }

    /// The interval of a function's value; `None` if its value has no uncertainty.
    ///
    /// # Errors
    /// The reason if it has no value, or no interval.
    fn bounds(&self, function: &str, arguments: &[Argument]) -> Option<Result<Bounds, ExprError>> {
        let _exact = (function, arguments);
        None
    }
}

/// A parsed expression.
#[derive(Clone, Debug, PartialEq)]
pub struct Expr {
    at: usize,
    node: Node,
}

/// An argument of a function: `method = "hogs"`, or without a name.
#[derive(Clone, Debug, PartialEq)]
pub struct Argument {
    /// Name of the argument, if it has one.
    pub name: Option<String>,
    /// Expression of the argument.
    pub value: Expr,
}

#[derive(Clone, Debug, PartialEq)]
enum Node {
    Constant(Value),
    Name(String),
    Not(Box<Expr>),
    Negative(Box<Expr>),
    Binary(Operator, Box<Expr>, Box<Expr>),
    In(Box<Expr>, Vec<Expr>),
    Call(String, Vec<Argument>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Implies,
    Or,
    And,
    Equal,
    Unequal,
    AtMost,
    AtLeast,
    Less,
    More,
    Plus,
    Minus,
    Times,
    Over,
    Modulo,
}

impl Expr {
    /// Parses an expression.
    ///
    /// # Errors
    /// [`ExprError`] with the position of the syntax error.
    pub fn parse(text: &str) -> Result<Self, ExprError> {
        let mut parser = Parser { tokens: tokens(text)?, next: 0, depth: 0 };
        let expr = parser.implies()?;
        if *parser.peek() == Token::End {
            return Ok(expr);
        }
        Err(ExprError::new(parser.at(), format!("unexpected {}", parser.peek())))
    }

    /// The constant, if the expression is only a constant.
    pub fn constant(&self) -> Option<&Value> {
        match &self.node {
            Node::Constant(value) => Some(value),
            Node::Name(_)
            | Node::Not(_)
            | Node::Negative(_)
            | Node::Binary(..)
            | Node::In(..)
            | Node::Call(..) => None,
        }
    }

    /// The name, if the expression is only a name.
    pub fn as_name(&self) -> Option<&str> {
        match &self.node {
            Node::Name(name) => Some(name),
            Node::Constant(_)
            | Node::Not(_)
            | Node::Negative(_)
            | Node::Binary(..)
            | Node::In(..)
            | Node::Call(..) => None,
        }
    }

    /// The function and its arguments, if the expression is only a call of a function that is not
    /// built in.
    pub fn as_call(&self) -> Option<(&str, &[Argument])> {
        match &self.node {
            Node::Call(function, arguments) if !is_own(function) => Some((function, arguments)),
            Node::Constant(_)
            | Node::Name(_)
            | Node::Not(_)
            | Node::Negative(_)
            | Node::Binary(..)
            | Node::In(..)
            | Node::Call(..) => None,
        }
    }

    /// Its byte offset in the text.
    pub fn at(&self) -> usize {
        self.at
    }

    /// All names in the expression, with their byte offsets. Arguments of functions that are not
    /// built in are left out, because those functions interpret the names themselves.
    #[must_use]
    pub fn names(&self) -> Vec<(&str, usize)> {
        let mut names = Vec::new();
        self.collect(&mut names);
        names
    }

    fn collect<'e>(&'e self, names: &mut Vec<(&'e str, usize)>) {
        match &self.node {
            Node::Constant(_) => {}
            Node::Name(name) => names.push((name, self.at)),
            Node::Not(inner) | Node::Negative(inner) => inner.collect(names),
            Node::Binary(_, left, right) => {
                left.collect(names);
                right.collect(names);
            }
            Node::In(inner, items) => {
                inner.collect(names);
                items.iter().for_each(|item| item.collect(names));
            }
            Node::Call(function, arguments) if is_own(function) => {
                arguments.iter().for_each(|argument| argument.value.collect(names));
            }
            Node::Call(..) => {}
        }
    }

    /// All calls of functions that are not built in.
    pub fn calls(&self) -> Vec<(&str, &[Argument], usize)> {
        let mut calls = Vec::new();
        self.collect_calls(&mut calls);
        calls
    }

    fn collect_calls<'e>(&'e self, calls: &mut Vec<(&'e str, &'e [Argument], usize)>) {
        match &self.node {
            Node::Constant(_) | Node::Name(_) => {}
            Node::Not(inner) | Node::Negative(inner) => inner.collect_calls(calls),
            Node::Binary(_, left, right) => {
                left.collect_calls(calls);
                right.collect_calls(calls);
            }
            Node::In(inner, items) => {
                inner.collect_calls(calls);
                items.iter().for_each(|item| item.collect_calls(calls));
            }
            Node::Call(function, arguments) => {
                if !is_own(function) {
                    calls.push((function, arguments, self.at));
                }
                arguments.iter().for_each(|argument| argument.value.collect_calls(calls));
            }
        }
    }

    /// Evaluates the expression.
    ///
    /// # Errors
    /// [`ExprError`]: a name or function is unknown, or the types do not match.
    pub fn evaluate(&self, scope: &dyn Scope) -> Result<Value, ExprError> {
        match &self.node {
            Node::Constant(value) => Ok(value.clone()),
            Node::Name(name) => scope
                .value(name)
                .ok_or_else(|| ExprError::new(self.at, format!("{name} has no value here"))),
            Node::Not(inner) => Ok(Value::Truth(!inner.evaluate_bool(scope)?)),
            Node::Negative(inner) => Ok(Value::Number(-inner.number(scope)?)),
            Node::Binary(operator, left, right) => self.binary(*operator, left, right, scope),
            Node::In(inner, items) => {
                let value = inner.evaluate(scope)?;
                for item in items {
                    if same(&value, &item.evaluate(scope)?, item.at)? {
                        return Ok(Value::Truth(true));
                    }
                }
                Ok(Value::Truth(false))
            }
            Node::Call(function, arguments) if is_own(function) => {
                self.own(function, arguments, scope)
            }
            Node::Call(function, arguments) => {
                scope.call(function, arguments).unwrap_or_else(|| {
                    Err(ExprError::new(self.at, format!("there is no function {function}")))
                })
            }
        }
    }

    /// Evaluates the expression, which must give a boolean.
    ///
    /// # Errors
    /// As [`Expr::evaluate`].
    pub fn evaluate_bool(&self, scope: &dyn Scope) -> Result<bool, ExprError> {
        match self.evaluate(scope)? {
            Value::Truth(truth) => Ok(truth),
            other @ (Value::Number(_) | Value::Text(_)) => {
                Err(self.is_not(&other, "true or false"))
            }
        }
    }

    /// Evaluates the expression, which must give a number.
    ///
    /// # Errors
    /// As [`Expr::evaluate`].
    pub fn number(&self, scope: &dyn Scope) -> Result<f64, ExprError> {
        match self.evaluate(scope)? {
            Value::Number(number) => Ok(number),
            other @ (Value::Text(_) | Value::Truth(_)) => Err(self.is_not(&other, "a number")),
        }
    }

    fn is_not(&self, found: &Value, wanted: &str) -> ExprError {
        ExprError::new(self.at, format!("{found} is {}, not {wanted}", found.kind()))
    }

    fn binary(
        &self,
        operator: Operator,
        left: &Expr,
        right: &Expr,
        scope: &dyn Scope,
    ) -> Result<Value, ExprError> {
        let compared = |holds: fn(f64, f64) -> bool| {
            let (left, right) = numbers(left, scope, right)?;
            Ok(Value::Truth(holds(left, right)))
        };
        let worked_out = |result: fn(f64, f64) -> f64| {
            let (left, right) = numbers(left, scope, right)?;
            Ok(Value::Number(result(left, right)))
        };
        match operator {
            // Short-circuit: the right side is only evaluated if the left side is true.
            Operator::Implies => {
                Ok(Value::Truth(!left.evaluate_bool(scope)? || right.evaluate_bool(scope)?))
            }
            Operator::Or => {
                Ok(Value::Truth(left.evaluate_bool(scope)? || right.evaluate_bool(scope)?))
            }
            Operator::And => {
                Ok(Value::Truth(left.evaluate_bool(scope)? && right.evaluate_bool(scope)?))
            }
            Operator::Equal | Operator::Unequal => {
                let is_same = same(&left.evaluate(scope)?, &right.evaluate(scope)?, self.at)?;
                Ok(Value::Truth(is_same == (operator == Operator::Equal)))
            }
            Operator::AtMost => compared(|left, right| left <= right),
            Operator::AtLeast => compared(|left, right| left >= right),
            Operator::Less => compared(|left, right| left < right),
            Operator::More => compared(|left, right| left > right),
            Operator::Plus => worked_out(|left, right| left + right),
            Operator::Minus => worked_out(|left, right| left - right),
            Operator::Times => worked_out(|left, right| left * right),
            Operator::Over => worked_out(|left, right| left / right),
            Operator::Modulo => worked_out(|left, right| left % right),
        }
    }

    fn own(
        &self,
        function: &str,
        arguments: &[Argument],
        scope: &dyn Scope,
    ) -> Result<Value, ExprError> {
        let numbers: Vec<f64> = arguments
            .iter()
            .map(|argument| argument.value.number(scope))
            .collect::<Result<_, _>>()?;
        match (function, numbers.as_slice()) {
            ("power_of_two", [number]) => {
                let power = *number >= 1.0 && number.log2().fract() == 0.0;
                Ok(Value::Truth(power))
            }
            ("abs", [number]) => Ok(Value::Number(number.abs())),
            ("min", [first, rest @ ..]) => {
                Ok(Value::Number(rest.iter().copied().fold(*first, f64::min)))
            }
            ("max", [first, rest @ ..]) => {
                Ok(Value::Number(rest.iter().copied().fold(*first, f64::max)))
            }
            ("round", [number, digits]) => {
                let scale = 10_f64.powf(digits.clamp(0.0, 12.0).floor());
                Ok(Value::Number((number * scale).round() / scale))
            }
            ("power_of_two" | "abs", _) => Err(self.fail(function, "one number")),
            ("round", _) => Err(self.fail(function, "a number and how many digits")),
            (_, _) => Err(self.fail(function, "at least one number")),
        }
    }

    fn fail(&self, function: &str, wanted: &str) -> ExprError {
        ExprError::new(self.at, format!("{function} takes {wanted}"))
    }
}

fn numbers(left: &Expr, scope: &dyn Scope, right: &Expr) -> Result<(f64, f64), ExprError> {
    Ok::<_, ExprError>((left.number(scope)?, right.number(scope)?))
}

/// True for the built-in functions.
fn is_own(function: &str) -> bool {
    matches!(function, "power_of_two" | "abs" | "min" | "max" | "round")
}

fn same(left: &Value, right: &Value, at: usize) -> Result<bool, ExprError> {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => Ok(left == right),
        (Value::Text(left), Value::Text(right)) => Ok(left == right),
        (Value::Truth(left), Value::Truth(right)) => Ok(left == right),
        (Value::Number(_) | Value::Text(_) | Value::Truth(_), _) => {
            let why = format!("{left} is {}, {right} is {}", left.kind(), right.kind());
            Err(ExprError::new(at, why))
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Number(f64),
    Text(String),
    Word(String),
    Sign(&'static str),
    End,
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Token::Number(number) => number.fmt(f),
            Token::Text(text) => write!(f, "{text:?}"),
            Token::Word(word) => f.write_str(word),
            Token::Sign(sign) => write!(f, "{sign:?}"),
            Token::End => f.write_str("the end"),
        }
    }
}

/// Longer operators first.
const SIGNS: [&str; 18] =
    ["->", "==", "!=", "<=", ">=", "<", ">", "+", "-", "*", "/", "%", "(", ")", "[", "]", ",", "="];

fn tokens(text: &str) -> Result<Vec<(Token, usize)>, ExprError> {
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(letter) = text[at..].chars().next() {
        let rest = &text[at..];
        let length = if letter.is_whitespace() {
            letter.len_utf8()
        } else if letter == '"' || letter == '\'' {
            let inner = &rest[1..];
            let end = inner
                .find(letter)
                .ok_or_else(|| ExprError::new(at, "this string has no closing quote"))?;
            found.push((Token::Text(inner[..end].to_owned()), at));
            end + 2
        } else if letter.is_ascii_digit() {
            let (number, length) =
                number(rest).ok_or_else(|| ExprError::new(at, "this is not a number"))?;
            found.push((Token::Number(number), at));
            length
        } else if letter.is_ascii_alphabetic() || letter == '_' {
            let length = rest.find(|c: char| !is_part(c)).unwrap_or(rest.len());
            found.push((Token::Word(rest[..length].to_owned()), at));
            length
        } else if let Some(sign) = SIGNS.into_iter().find(|sign| rest.starts_with(sign)) {
            found.push((Token::Sign(sign), at));
            sign.len()
        } else {
            return Err(ExprError::new(at, format!("unexpected {letter:?}")));
        };
        at += length;
    }
    found.push((Token::End, at));
    Ok(found)
}

fn is_part(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '.')
}

/// The number at the start of a text, and its length in bytes.
fn number(text: &str) -> Option<(f64, usize)> {
    let mut length = 0;
    let mut last = ' ';
    for letter in text.chars() {
        let sign_of_power = matches!(letter, '+' | '-') && matches!(last, 'e' | 'E');
        let digit = letter.is_ascii_digit() || matches!(letter, '.' | 'e' | 'E');
        if !digit && !sign_of_power {
            break;
        }
        last = letter;
        length += 1;
    }
    let number: f64 = text[..length].parse().ok()?;
    Some((number, length))
}

struct Parser {
    tokens: Vec<(Token, usize)>,
    next: usize,
    depth: u32,
}

impl Parser {
    fn peek(&self) -> &Token {
        self.tokens.get(self.next).map_or(&Token::End, |(token, _)| token)
    }

    fn at(&self) -> usize {
        self.tokens.get(self.next).or(self.tokens.last()).map_or(0, |(_, at)| *at)
    }

    fn take(&mut self, wanted: &str) -> bool {
        let is_it = match self.peek() {
            Token::Sign(sign) => *sign == wanted,
            Token::Word(word) => word == wanted,
            Token::Number(_) | Token::Text(_) | Token::End => false,
        };
        self.next += usize::from(is_it);
        is_it
    }

    fn need(&mut self, wanted: &str) -> Result<(), ExprError> {
        let at = self.at();
        if self.take(wanted) {
            Ok(())
        } else {
            let why = format!("found {}, but expected {wanted:?}", self.peek());
            Err(ExprError::new(at, why))
        }
    }

    /// Increments the nesting depth.
    fn deeper(
        &mut self,
        inner: fn(&mut Parser) -> Result<Expr, ExprError>,
    ) -> Result<Expr, ExprError> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(ExprError::new(self.at(), "this is nested too deeply"));
        }
        let expr = inner(self);
        self.depth -= 1;
        expr
    }

    fn implies(&mut self) -> Result<Expr, ExprError> {
        let left = self.or()?;
        let at = self.at();
        if !self.take("->") {
            return Ok(left);
        }
        let right = self.deeper(Parser::implies)?;
        Ok(binary(at, Operator::Implies, left, right))
    }

    fn or(&mut self) -> Result<Expr, ExprError> {
        self.chain(&[("or", Operator::Or)], Parser::and)
    }

    fn and(&mut self) -> Result<Expr, ExprError> {
        self.chain(&[("and", Operator::And)], Parser::not)
    }

    fn not(&mut self) -> Result<Expr, ExprError> {
        let at = self.at();
        if self.take("not") {
            let inner = self.deeper(Parser::not)?;
            return Ok(Expr { at, node: Node::Not(Box::new(inner)) });
        }
        self.comparison()
    }

    fn comparison(&mut self) -> Result<Expr, ExprError> {
        const COMPARISONS: [(&str, Operator); 6] = [
            ("==", Operator::Equal),
            ("!=", Operator::Unequal),
            ("<=", Operator::AtMost),
            (">=", Operator::AtLeast),
            ("<", Operator::Less),
            (">", Operator::More),
        ];
        let left = self.sum()?;
        let at = self.at();
        if self.take("in") {
            self.need("[")?;
            let mut items = vec![self.sum()?];
            while self.take(",") {
                items.push(self.sum()?);
            }
            self.need("]")?;
            return Ok(Expr { at, node: Node::In(Box::new(left), items) });
        }
        for (sign, operator) in COMPARISONS {
            if self.take(sign) {
                let right = self.sum()?;
                return Ok(binary(at, operator, left, right));
            }
        }
        Ok(left)
    }

    fn sum(&mut self) -> Result<Expr, ExprError> {
        self.chain(&[("+", Operator::Plus), ("-", Operator::Minus)], Parser::product)
    }

    fn product(&mut self) -> Result<Expr, ExprError> {
        let operators = [("*", Operator::Times), ("/", Operator::Over), ("%", Operator::Modulo)];
        self.chain(&operators, Parser::atom)
    }

    fn chain(
        &mut self,
        operators: &[(&str, Operator)],
        inner: fn(&mut Parser) -> Result<Expr, ExprError>,
    ) -> Result<Expr, ExprError> {
        let mut left = inner(self)?;
        let mut links = 0_u32;
        loop {
            let at = self.at();
            let Some((_, operator)) = operators.iter().find(|(sign, _)| self.take(sign)) else {
                return Ok(left);
            };
            links += 1;
            if links > DEEPEST {
                return Err(ExprError::new(at, "this expression is too long"));
            }
            let right = inner(self)?;
            left = binary(at, *operator, left, right);
        }
    }

    fn atom(&mut self) -> Result<Expr, ExprError> {
        let at = self.at();
        let node = match self.peek().clone() {
            Token::Number(number) => Node::Constant(Value::Number(number)),
            Token::Text(text) => Node::Constant(Value::Text(text)),
            Token::Word(word) => match word.as_str() {
                "true" | "false" => Node::Constant(Value::Truth(word == "true")),
                "and" | "or" | "not" | "in" => {
                    return Err(ExprError::new(at, format!("found {word}, but expected a value")));
                }
                _ => {
                    self.next += 1;
                    return self.name_or_call(word, at);
                }
            },
            Token::Sign("(") => {
                self.next += 1;
                let inner = self.deeper(Parser::implies)?;
                self.need(")")?;
                return Ok(inner);
            }
            Token::Sign("-") => {
                self.next += 1;
                let inner = self.deeper(Parser::atom)?;
                return Ok(Expr { at, node: Node::Negative(Box::new(inner)) });
            }
            other @ (Token::Sign(_) | Token::End) => {
                return Err(ExprError::new(at, format!("found {other}, but expected a value")));
            }
        };
        self.next += 1;
        Ok(Expr { at, node })
    }

    fn name_or_call(&mut self, word: String, at: usize) -> Result<Expr, ExprError> {
        if !self.take("(") {
            return Ok(Expr { at, node: Node::Name(word) });
        }
        let mut arguments = Vec::new();
        if !self.take(")") {
            loop {
                arguments.push(self.argument()?);
                if self.take(")") {
                    break;
                }
                self.need(",")?;
            }
        }
        Ok(Expr { at, node: Node::Call(word, arguments) })
    }

    fn argument(&mut self) -> Result<Argument, ExprError> {
        if let Token::Word(word) = self.peek().clone()
            && matches!(self.tokens.get(self.next + 1), Some((Token::Sign("="), _)))
        {
            self.next += 2;
            let value = self.deeper(Parser::implies)?;
            return Ok(Argument { name: Some(word), value });
        }
        Ok(Argument { name: None, value: self.deeper(Parser::implies)? })
    }
}

fn binary(at: usize, operator: Operator, left: Expr, right: Expr) -> Expr {
    Expr { at, node: Node::Binary(operator, Box::new(left), Box::new(right)) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    struct TestValues(BTreeMap<&'static str, Value>);

    impl Scope for TestValues {
        fn value(&self, name: &str) -> Option<Value> {
            self.0.get(name).cloned()
        }
    }

    fn known_values() -> TestValues {
        TestValues(BTreeMap::from([
            ("n_vcpu", Value::Number(16.0)),
            ("n_threads", Value::Number(12.0)),
            ("strategy", Value::Text("isolcpus".to_owned())),
            ("ht.on", Value::Truth(true)),
        ]))
    }

    #[test]
    fn values() {
        check("1 + 2 * 3 - 4 / 2", Value::Number(5.0));
        check("-(2 - 5) % 2", Value::Number(1.0));
        check("n_threads <= n_vcpu", Value::Truth(true));
        check("strategy == \"isolcpus\" -> n_vcpu <= 15", Value::Truth(false));
        check("strategy == 'none' -> unknown_name", Value::Truth(true));
        check("power_of_two(n_vcpu) and not power_of_two(n_threads)", Value::Truth(true));
        check("power_of_two(0) or power_of_two(0.3)", Value::Truth(false));
        check("n_vcpu in [8, 16] and strategy in ['none', 'isolcpus']", Value::Truth(true));
        check("max(1, n_threads, 3) - min(2, 1)", Value::Number(11.0));
        check("ht.on and 1.5e3 == 1500", Value::Truth(true));
        check("round(2.34567, 2)", Value::Number(2.35));
    }

    fn check(text: &str, expected: Value) {
        assert_eq!(Expr::parse(text).unwrap().evaluate(&known_values()), Ok(expected), "{text}");
    }

    #[test]
    fn errors_have_their_place() {
        fn check(text: &str, at: usize, why: &str) {
            let error = match Expr::parse(text) {
                Ok(expr) => expr.evaluate(&known_values()).unwrap_err(),
                Err(error) => error,
            };
            assert_eq!((error.at, error.why.as_str()), (at, why), "{text}");
        }

        check("n_vcpu <=", 9, "found the end, but expected a value");
        check("n_vcpu = 4", 7, "unexpected \"=\"");
        check("'open", 0, "this string has no closing quote");
        check("1 & 2", 2, "unexpected '&'");
        check("n_vcpus > 1", 0, "n_vcpus has no value here");
        check("strategy > 1", 0, "isolcpus is a string, not a number");
        check("strategy == 1", 9, "isolcpus is a string, 1 is a number");
        check("fib(3)", 0, "there is no function fib");
        check("power_of_two(1, 2)", 0, "power_of_two takes one number");
        check("(1", 2, "found the end, but expected \")\"");
        check(&"(".repeat(1_000), 65, "this is nested too deeply");
        check(&vec!["1"; 200].join("+"), 129, "this expression is too long");
    }

    #[test]
    fn names_and_calls_are_reported() {
        let expr = Expr::parse("ratio(rate, method = 'x') < limit + max(a, 2)").unwrap();
        assert_eq!(expr.names(), [("limit", 28), ("a", 40)]);
        let calls = expr.calls();
        assert_eq!((calls.len(), calls[0].0, calls[0].1.len()), (1, "ratio", 2));
    }
}
