//! Expressions over values with an interval: a comparison is true or false only if it is for each
//! value within the intervals, else undecided.
//!
//! Interval arithmetic takes each operand as independent of the others, so that the result is never
//! too narrow. `and`, `or`, `not` and `->` are those of Kleene's three-valued logic.

use super::{Argument, Expr, ExprError, Node, Operator, Scope, Value, is_own};

/// The smallest and the largest possible value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds {
    /// The smallest.
    pub low: f64,
    /// The largest; not below `low`.
    pub high: f64,
}

impl Bounds {
    /// One value, without uncertainty.
    pub fn exact(value: f64) -> Self {
        Self { low: value, high: value }
    }

    fn from_values(values: &[f64]) -> Self {
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Self { low, high }
    }

    fn is_exact(self) -> bool {
        self.low == self.high
    }
}

/// A value of an expression, as far as it is decided.
#[derive(Clone, Debug, PartialEq)]
enum Bounded {
    Number(Bounds),
    Text(String),
    /// `None`: undecided.
    Truth(Option<bool>),
}

impl From<Value> for Bounded {
    fn from(value: Value) -> Self {
        match value {
            Value::Number(number) => Bounded::Number(Bounds::exact(number)),
            Value::Text(text) => Bounded::Text(text),
            Value::Truth(truth) => Bounded::Truth(Some(truth)),
        }
    }
}

impl Expr {
    /// Evaluates the expression, which must give a boolean, over the intervals of its values.
    /// `None`: the intervals do not decide it.
    ///
    /// # Errors
    /// [`ExprError`]: a name or function is unknown, a value is missing, the types do not match, or
    /// `%` or `round` is applied to an interval.
    pub fn decide(&self, scope: &dyn Scope) -> Result<Option<bool>, ExprError> {
        match self.bound(scope)? {
            Bounded::Truth(truth) => Ok(truth),
            Bounded::Number(_) | Bounded::Text(_) => Err(self.not_a("true or false")),
        }
    }

    fn not_a(&self, wanted: &str) -> ExprError {
        ExprError::new(self.at, format!("this is not {wanted}"))
    }

    /// The interval of a number over the intervals of its parts.
    ///
    /// # Errors
    /// As [`Self::decide`], or it is no number.
    pub fn bounds(&self, scope: &dyn Scope) -> Result<Bounds, ExprError> {
        match self.bound(scope)? {
            Bounded::Number(bounds) => Ok(bounds),
            Bounded::Text(_) | Bounded::Truth(_) => Err(self.not_a("a number")),
        }
    }

    fn bound(&self, scope: &dyn Scope) -> Result<Bounded, ExprError> {
        match &self.node {
            Node::Constant(_) | Node::Name(_) => Ok(self.evaluate(scope)?.into()),
            Node::Not(inner) => Ok(Bounded::Truth(inner.decide(scope)?.map(|truth| !truth))),
            Node::Negative(inner) => {
                let Bounds { low, high } = inner.bounds(scope)?;
                Ok(Bounded::Number(Bounds { low: -high, high: -low }))
            }
            Node::Binary(operator, left, right) => self.combine(*operator, left, right, scope),
            Node::In(inner, items) => {
                let value = inner.bound(scope)?;
                let mut found = Some(false);
                for item in items {
                    found = either(found, item.equals(&value, &item.bound(scope)?)?);
                }
                Ok(Bounded::Truth(found))
            }
            Node::Call(function, arguments) if is_own(function) => {
                self.apply(function, arguments, scope)
            }
            Node::Call(function, arguments) => match scope.bounds(function, arguments) {
                Some(bounds) => bounds.map(Bounded::Number),
                None => Ok(self.evaluate(scope)?.into()),
            },
        }
    }

    fn equals(&self, left: &Bounded, right: &Bounded) -> Result<Option<bool>, ExprError> {
        match (left, right) {
            (Bounded::Number(left), Bounded::Number(right)) => {
                if left.is_exact() && left == right {
                    return Ok(Some(true));
                }
                let overlap = left.low <= right.high && right.low <= left.high;
                Ok((!overlap).then_some(false))
            }
            (Bounded::Text(left), Bounded::Text(right)) => Ok(Some(left == right)),
            (Bounded::Truth(left), Bounded::Truth(right)) => {
                Ok(left.zip(*right).map(|(left, right)| left == right))
            }
            (Bounded::Number(_) | Bounded::Text(_) | Bounded::Truth(_), _) => {
                Err(ExprError::new(self.at, "cannot compare values of two kinds"))
            }
        }
    }

    fn combine(
        &self,
        operator: Operator,
        left: &Expr,
        right: &Expr,
        scope: &dyn Scope,
    ) -> Result<Bounded, ExprError> {
        match operator {
            // As in an evaluation of values, the right side counts only if the left side does not
            // decide.
            Operator::Implies => match left.decide(scope)? {
                Some(false) => Ok(Bounded::Truth(Some(true))),
                first @ (Some(true) | None) => {
                    let first = first.map(|truth| !truth);
                    Ok(Bounded::Truth(either(first, right.decide(scope)?)))
                }
            },
            Operator::Or => match left.decide(scope)? {
                Some(true) => Ok(Bounded::Truth(Some(true))),
                first @ (Some(false) | None) => {
                    Ok(Bounded::Truth(either(first, right.decide(scope)?)))
                }
            },
            Operator::And => match left.decide(scope)? {
                Some(false) => Ok(Bounded::Truth(Some(false))),
                first @ (Some(true) | None) => {
                    Ok(Bounded::Truth(both(first, right.decide(scope)?)))
                }
            },
            Operator::Equal => {
                Ok(Bounded::Truth(self.equals(&left.bound(scope)?, &right.bound(scope)?)?))
            }
            Operator::Unequal => {
                let same = self.equals(&left.bound(scope)?, &right.bound(scope)?)?;
                Ok(Bounded::Truth(same.map(|same| !same)))
            }
            Operator::AtMost
            | Operator::AtLeast
            | Operator::Less
            | Operator::More
            | Operator::Plus
            | Operator::Minus
            | Operator::Times
            | Operator::Over
            | Operator::Modulo => {
                self.combine_numbers(operator, left.bounds(scope)?, right.bounds(scope)?)
            }
        }
    }

    fn combine_numbers(
        &self,
        operator: Operator,
        left: Bounds,
        right: Bounds,
    ) -> Result<Bounded, ExprError> {
        Ok(match operator {
            Operator::AtMost => Bounded::Truth(is_at_most(left, right)),
            Operator::AtLeast => Bounded::Truth(is_at_most(right, left)),
            Operator::More => Bounded::Truth(is_at_most(left, right).map(|truth| !truth)),
            Operator::Less => Bounded::Truth(is_at_most(right, left).map(|truth| !truth)),
            Operator::Plus => {
                Bounded::Number(Bounds { low: left.low + right.low, high: left.high + right.high })
            }
            Operator::Minus => {
                Bounded::Number(Bounds { low: left.low - right.high, high: left.high - right.low })
            }
            Operator::Times => Bounded::Number(products(left, right)),
            Operator::Over if right.low <= 0.0 && right.high >= 0.0 => {
                return Err(ExprError::new(self.at, "the interval of the divisor contains 0"));
            }
            Operator::Over => Bounded::Number(products(
                left,
                Bounds { low: 1.0 / right.high, high: 1.0 / right.low },
            )),
            Operator::Modulo if left.is_exact() && right.is_exact() => {
                Bounded::Number(Bounds::exact(left.low % right.low))
            }
            Operator::Modulo
            | Operator::Implies
            | Operator::Or
            | Operator::And
            | Operator::Equal
            | Operator::Unequal => return Err(self.not_a("possible with an interval")),
        })
    }

    fn apply(
        &self,
        function: &str,
        arguments: &[Argument],
        scope: &dyn Scope,
    ) -> Result<Bounded, ExprError> {
        let all: Vec<Bounds> =
            arguments.iter().map(|one| one.value.bounds(scope)).collect::<Result<_, _>>()?;
        let lows = || all.iter().map(|one| one.low);
        let highs = || all.iter().map(|one| one.high);
        match (function, all.as_slice()) {
            ("abs", [one]) => {
                let (low, high) = (one.low.abs(), one.high.abs());
                let contains_zero = one.low <= 0.0 && one.high >= 0.0;
                let low = if contains_zero { 0.0 } else { low.min(high) };
                Ok(Bounded::Number(Bounds { low, high: one.low.abs().max(high) }))
            }
            ("min", [_, ..]) => Ok(Bounded::Number(Bounds {
                low: lows().fold(f64::INFINITY, f64::min),
                high: highs().fold(f64::INFINITY, f64::min),
            })),
            ("max", [_, ..]) => Ok(Bounded::Number(Bounds {
                low: lows().fold(f64::NEG_INFINITY, f64::max),
                high: highs().fold(f64::NEG_INFINITY, f64::max),
            })),
            _ if all.iter().all(|one| one.is_exact()) => Ok(self.evaluate(scope)?.into()),
            _ => Err(self.not_a("possible with an interval")),
        }
    }
}

fn products(left: Bounds, right: Bounds) -> Bounds {
    let (l, r) = ([left.low, left.high], [right.low, right.high]);
    Bounds::from_values(&[l[0] * r[0], l[0] * r[1], l[1] * r[0], l[1] * r[1]])
}

fn is_at_most(left: Bounds, right: Bounds) -> Option<bool> {
    if left.high <= right.low {
        Some(true)
    } else if left.low > right.high {
        Some(false)
    } else {
        None
    }
}

fn either(left: Option<bool>, right: Option<bool>) -> Option<bool> {
    match (left, right) {
        (Some(true), _) | (_, Some(true)) => Some(true),
        (Some(false), Some(false)) => Some(false),
        (None, _) | (_, None) => None,
    }
}

fn both(left: Option<bool>, right: Option<bool>) -> Option<bool> {
    match (left, right) {
        (Some(false), _) | (_, Some(false)) => Some(false),
        (Some(true), Some(true)) => Some(true),
        (None, _) | (_, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `a` to `d` are functions with an interval; the values of names have none.
    struct Intervals;

    impl Scope for Intervals {
        fn value(&self, name: &str) -> Option<Value> {
            match name {
                "limit" => Some(Value::Number(1.0)),
                "name" => Some(Value::Text("x".to_owned())),
                _ => None,
            }
        }

        fn call(&self, function: &str, _: &[Argument]) -> Option<Result<Value, ExprError>> {
            let bounds = self.bounds(function, &[])?;
            Some(bounds.map(|bounds| Value::Number((bounds.low + bounds.high) / 2.0)))
        }

        fn bounds(&self, function: &str, _: &[Argument]) -> Option<Result<Bounds, ExprError>> {
            let (low, high) = match function {
                "below" => (0.5, 0.9),
                "across" => (0.8, 1.2),
                "above" => (1.1, 1.3),
                "negative" => (-3.0, -2.0),
                _ => return None,
            };
            Some(Ok(Bounds { low, high }))
        }
    }

    #[test]
    fn a_comparison_is_decided_by_the_whole_interval() {
        check("below(x) < limit", Some(true));
        check("above(x) < limit", Some(false));
        check("across(x) < limit", None);
        check("across(x) > 0.79 and across(x) <= 1.2", Some(true));
        check("across(x) < limit and above(x) < limit", Some(false));
        check("across(x) < limit or below(x) < limit", Some(true));
        check("not across(x) < limit", None);
        check("across(x) < limit -> above(x) > limit", Some(true));
        check("above(x) / below(x) > 1.2", Some(true));
        check("above(x) - below(x) > 0", Some(true));
        check("above(x) + below(x) * 2 > 2", Some(true));
        check("abs(negative(x)) >= 2 and -negative(x) <= 3", Some(true));
        check("max(below(x), above(x)) > 1 and min(below(x), above(x)) < 1", Some(true));
        check("below(x) == above(x)", Some(false));
        check("across(x) == 1", None);
        check("name in ['x', 'y'] and limit in [1, 2]", Some(true));
    }

    fn check(text: &str, expected: Option<bool>) {
        assert_eq!(Expr::parse(text).unwrap().decide(&Intervals), Ok(expected), "{text}");
    }

    #[test]
    fn what_has_no_interval_is_an_error() {
        fn check(text: &str, why: &str) {
            let error = Expr::parse(text).unwrap().decide(&Intervals).unwrap_err();
            assert_eq!(error.why, why, "{text}");
        }

        check("limit / (across(x) - 1) > 1", "the interval of the divisor contains 0");
        check("across(x) % 2 == 1", "this is not possible with an interval");
        check("round(across(x), 1) == 1", "this is not possible with an interval");
        check("across(x)", "this is not true or false");
        check("name < 1", "this is not a number");
        check("name == 1", "cannot compare values of two kinds");
        check("other(x) < 1", "there is no function other");
    }
}
