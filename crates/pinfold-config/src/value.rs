//! Values with their position, from TOML or from words of the command line.

use toml::de::{DeTable, DeValue};

use crate::fault::Fault;

/// A value with its position.
pub struct Value {
    /// Byte offset of its start.
    pub at: usize,
    /// The value itself.
    pub what: ValueKind,
}

/// The kinds of values.
pub enum ValueKind {
    /// A text.
    Text(String),
    /// A whole number.
    Number(i64),
    /// A number with a decimal point, as it is written.
    Fraction(String),
    /// `true` or `false`.
    Truth(bool),
    /// A list.
    List(Vec<Value>),
    /// Keys and values, each key with its byte offset.
    Table(Vec<(String, usize, Value)>),
    /// Date or time, which no key accepts.
    Date,
}

impl Value {
    /// A word of the command line: a number or a boolean if it has that form, else a text.
    pub fn infer(word: &str, at: usize) -> Self {
        let what = match (word, word.parse::<i64>()) {
            ("true", _) => ValueKind::Truth(true),
            ("false", _) => ValueKind::Truth(false),
            (_, Ok(number)) => ValueKind::Number(number),
            (_, Err(_)) if word.parse::<f64>().is_ok_and(f64::is_finite) => {
                ValueKind::Fraction(word.to_owned())
            }
            (_, Err(_)) => ValueKind::Text(word.to_owned()),
        };
        Self { at, what }
    }

    /// This table with `now` in place of a key's earlier name, unless it has both.
    #[must_use]
    pub fn with_key_renamed(mut self, earlier: &str, now: &str) -> Self {
        if let ValueKind::Table(entries) = &mut self.what
            && !entries.iter().any(|(key, _, _)| key == now)
        {
            for (key, _, _) in entries.iter_mut().filter(|(key, _, _)| key == earlier) {
                now.clone_into(key);
            }
        }
        self
    }

    /// The value as a text.
    ///
    /// # Errors
    /// [`Fault`] if it is no text.
    pub fn into_text(self, key: &str) -> Result<(String, usize), Fault> {
        if let ValueKind::Text(text) = self.what {
            return Ok((text, self.at));
        }
        Err(self.kind_fault(key, "a string"))
    }

    /// The value as a number, 0 to 2^32 - 1.
    ///
    /// # Errors
    /// [`Fault`] if it is none.
    pub fn count(&self, key: &str) -> Result<u32, Fault> {
        let ValueKind::Number(number) = self.what else {
            return Err(self.kind_fault(key, "a whole number"));
        };
        u32::try_from(number).map_err(|_| self.kind_fault(key, "a number from 0 to 4294967295"))
    }

    /// The fault that the value does not have the kind that the key needs.
    pub fn kind_fault(&self, key: &str, wanted: &str) -> Fault {
        let found = match &self.what {
            ValueKind::Text(text) => format!("{text:?}"),
            ValueKind::Number(number) => number.to_string(),
            ValueKind::Fraction(text) => text.clone(),
            ValueKind::Truth(truth) => truth.to_string(),
            ValueKind::List(_) => "a list".to_owned(),
            ValueKind::Table(_) => "a table".to_owned(),
            ValueKind::Date => "a date".to_owned(),
        };
        Fault::new(self.at, format!("{key}: {found} is not {wanted}"))
    }
}

/// Parses a decimal number such as `12.5` and multiplies it by 10^`shift`; `None` if it is invalid,
/// has more than `shift` decimals, or is too large.
pub(crate) fn decimal(text: &str, shift: usize) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    if whole.is_empty() || !digits(whole) || !digits(part) || part.len() > shift {
        return None;
    }
    format!("{whole}{part:0<shift$}").parse().ok()
}

fn digits(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Bytes of a unit of size, in any case. As in libvirt and QEMU, `K`, `M`, `G`, `T` and `KiB`, …
/// are powers of 1024; as in libvirt, `KB`, … are powers of 1000.
pub(crate) fn unit_bytes(unit: &str) -> Option<u64> {
    let unit = unit.to_ascii_lowercase();
    let (letter, rest) = (unit.get(..1)?, unit.get(1..)?);
    if let ("b", "" | "ytes") = (letter, rest) {
        return Some(1);
    }
    let power = match letter {
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        _ => return None,
    };
    match rest {
        "" | "ib" => Some(1 << (10 * power)),
        "b" => Some(1000_u64.pow(power)),
        _ => None,
    }
}

/// Parses a TOML text into its root table.
///
/// ```
/// use pinfold_config::value::{ValueKind, parse_toml};
///
/// let Ok(value) = parse_toml("cores = 2\n") else { panic!("it is TOML") };
/// let ValueKind::Table(entries) = value.what else { panic!("a file is a table") };
/// assert_eq!(entries[0].0, "cores");
/// ```
///
/// # Errors
/// [`Fault`] if the text is not TOML or contains a number that is too large.
pub fn parse_toml(text: &str) -> Result<Value, Fault> {
    let root = DeTable::parse(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start);
        Fault::new(at, format!("the text is not TOML: {}", error.message().trim()))
    })?;
    Ok(Value { at: 0, what: table(root.get_ref())? })
}

fn table(table: &DeTable<'_>) -> Result<ValueKind, Fault> {
    let mut entries = Vec::new();
    for (key, value) in table {
        let what = whole(value.get_ref(), value.span().start)?;
        let value = Value { at: value.span().start, what };
        entries.push((key.get_ref().to_string(), key.span().start, value));
    }
    Ok(ValueKind::Table(entries))
}

fn whole(value: &DeValue<'_>, at: usize) -> Result<ValueKind, Fault> {
    Ok(match value {
        DeValue::String(text) => ValueKind::Text(text.to_string()),
        DeValue::Integer(number) => {
            let parsed = i64::from_str_radix(number.as_str(), number.radix());
            ValueKind::Number(
                parsed.map_err(|_| Fault::new(at, format!("{} is too large", number.as_str())))?,
            )
        }
        DeValue::Float(number) => ValueKind::Fraction(number.as_str().to_owned()),
        DeValue::Boolean(truth) => ValueKind::Truth(*truth),
        DeValue::Datetime(_) => ValueKind::Date,
        DeValue::Array(items) => ValueKind::List(
            items
                .iter()
                .map(|item| {
                    let at = item.span().start;
                    Ok(Value { at, what: whole(item.get_ref(), at)? })
                })
                .collect::<Result<_, Fault>>()?,
        ),
        DeValue::Table(inner) => table(inner)?,
    })
}

/// Parses `key=value,key=value` or `key=value key=value`. The values of `lists` are separated by
/// `+`; `name` is always a text.
pub(crate) fn parse_words(words: &str, lists: &[&str]) -> Result<Value, Fault> {
    let mut entries: Vec<(String, usize, Value)> = Vec::new();
    for word in split_pairs(words) {
        let Some((key, value)) = word.split_once('=') else {
            return Err(Fault::new(0, format!("expected key=value, got {word:?}")));
        };
        if entries.iter().any(|(known, _, _)| known == key) {
            return Err(Fault::new(0, format!("{key} is given twice")));
        }
        let value = match key {
            "name" => text(value),
            key if lists.contains(&key) => {
                Value { at: 0, what: ValueKind::List(value.split('+').map(text).collect()) }
            }
            _ => Value::infer(value, 0),
        };
        entries.push((key.to_owned(), 0, value));
    }
    Ok(Value { at: 0, what: ValueKind::Table(entries) })
}

fn text(text: &str) -> Value {
    Value { at: 0, what: ValueKind::Text(text.to_owned()) }
}

/// The `key=value` words of a text, separated by commas and blanks. A word without `=` belongs to
/// the value before it, as in `memory=16 GiB` or `pins=emulator=0,8`.
fn split_pairs(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for part in text.split(',') {
        for (place, word) in part.split_whitespace().enumerate() {
            match words.last_mut() {
                Some(last) if !word.contains('=') => {
                    last.push(if place == 0 { ',' } else { ' ' });
                    last.push_str(word);
                }
                Some(_) | None => words.push(word.to_owned()),
            }
        }
        if part.trim().is_empty() {
            words.push(String::new());
        }
    }
    words
}
