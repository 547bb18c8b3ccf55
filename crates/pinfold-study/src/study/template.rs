//! `{factor}` in commands, and durations in text form.

/// Replaces the placeholders in a word: `{n_threads}`; `{{` and `}}` are literal braces.
///
/// # Errors
/// Names a placeholder without a value, or an unclosed brace.
pub fn fill(word: &str, value: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let mut filled = String::with_capacity(word.len());
    let mut rest = word;
    while let Some(at) = rest.find(['{', '}']) {
        filled.push_str(&rest[..at]);
        let tail = &rest[at..];
        if tail.starts_with("{{") || tail.starts_with("}}") {
            filled.push_str(&tail[..1]);
            rest = &tail[2..];
            continue;
        }
        let Some(inner) = tail.strip_prefix('{') else {
            return Err(format!("{word:?} has a closing brace without an opening one"));
        };
        let end = inner.find('}').ok_or_else(|| format!("a brace of {word:?} is not closed"))?;
        let name = inner[..end].trim();
        filled.push_str(&value(name).ok_or_else(|| format!("{{{name}}} is not known"))?);
        rest = &inner[end + 1..];
    }
    filled.push_str(rest);
    Ok(filled)
}

/// Parses a duration such as `90s`, `1.5 min`, `200ms` or `2h 30min` to nanoseconds.
pub fn duration_ns(text: &str) -> Option<u64> {
    let mut total = 0_u64;
    let mut rest = text.trim();
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        let tail = tail.trim_start();
        let letters = tail.find(|c: char| !c.is_alphabetic()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(letters);
        let ns = match unit {
            "ns" => 1.0,
            "us" | "µs" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            "m" | "min" => 60e9,
            "h" => 3600e9,
            _ => return None,
        };
        let part: f64 = number.parse().ok()?;
        let part = (part * ns).round();
        if !(0.0..=1e18).contains(&part) {
            return None;
        }
        #[expect(clippy::cast_possible_truncation, reason = "checked above")]
        #[expect(clippy::cast_sign_loss, reason = "checked above")]
        let part = part as u64;
        total = total.checked_add(part)?;
        rest = tail.trim_start();
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces() {
        fn check(word: &str, expected: Result<&str, &str>) {
            let expected = expected.map(str::to_owned).map_err(str::to_owned);
            assert_eq!(fill(word, &value), expected, "{word}");
        }

        check("--threads={n}", Ok("--threads=4"));
        check("{ n }{n}", Ok("44"));
        check("{{n}} }}", Ok("{n} }"));
        check("{m}", Err("{m} is not known"));
        check("{n", Err("a brace of \"{n\" is not closed"));
        check("n}", Err("\"n}\" has a closing brace without an opening one"));
    }

    fn value(name: &str) -> Option<String> {
        (name == "n").then(|| "4".to_owned())
    }

    #[test]
    fn times() {
        check("90s", Some(90_000_000_000));
        check("1.5 min", Some(90_000_000_000));
        check("2h 30min", Some(9_000_000_000_000));
        check("200ms", Some(200_000_000));
        check("10", None);
        check("", None);
        check("-1s", None);
        check("1e3s", None);
        check("99999999999h", None);
    }

    fn check(text: &str, expected: Option<u64>) {
        assert_eq!(duration_ns(text), expected, "{text:?}");
    }
}
