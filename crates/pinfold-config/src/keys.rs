//! The keys of one table: each is taken once, and unknown keys are refused.
//!
//! Also used for the study files of `pinfold-study`, which have the same syntax.

use pinfold_model::closest;

use crate::fault::Fault;
use crate::value::{Value, ValueKind};

/// The keys of a table that were not taken yet.
///
/// ```
/// use pinfold_config::keys::Keys;
/// use pinfold_config::value::parse_toml;
///
/// let Ok(table) = parse_toml("name = \"web\"\nvcpus = 4\n") else { panic!("it is TOML") };
/// assert!(Keys::new(table, "the machine", &["name"]).is_err(), "vcpus is no known key");
/// ```
pub struct Keys {
    /// Byte offset of the table.
    at: usize,
    name: &'static str,
    entries: Vec<(String, usize, Value)>,
}

impl Keys {
    /// The keys of a table, all of which must be `known`.
    ///
    /// # Errors
    /// [`Fault`] with the position.
    pub fn new(table: Value, name: &'static str, known: &[&'static str]) -> Result<Self, Fault> {
        match Self::with_unknown(table, name, known)? {
            (_, Some(fault)) => Err(fault),
            (keys, None) => Ok(keys),
        }
    }

    /// The keys of a table, with the fault of the first that is not `known`.
    ///
    /// # Errors
    /// [`Fault`] if it is no table.
    pub fn with_unknown(
        table: Value,
        name: &'static str,
        known: &[&'static str],
    ) -> Result<(Self, Option<Fault>), Fault> {
        let at = table.at;
        let ValueKind::Table(entries) = table.what else {
            return Err(table.kind_fault(name, "a table"));
        };
        let unknown = entries.iter().find(|(key, _, _)| !known.contains(&key.as_str()));
        let fault = unknown.map(|(key, at, _)| {
            let fault = Fault::new(*at, format!("{name} has no key {key:?}"));
            match closest(key, known.iter().copied()) {
                Some(nearest) => fault.with_hint(format!("did you mean {nearest}?")),
                None => fault.with_hint(format!("its keys are {}", known.join(", "))),
            }
        });
        Ok((Self { at, name, entries }, fault))
    }

    /// True if the key is there and was not taken yet.
    #[must_use]
    pub fn has(&self, key: &str) -> bool {
        self.entries.iter().any(|(known, _, _)| known == key)
    }

    /// The value of a key, if present.
    pub fn take(&mut self, key: &str) -> Option<Value> {
        let place = self.entries.iter().position(|(known, _, _)| known == key)?;
        Some(self.entries.swap_remove(place).2)
    }

    /// The value of a required key.
    ///
    /// # Errors
    /// [`Fault`] with the position.
    pub fn take_required(&mut self, key: &str) -> Result<Value, Fault> {
        let missing = Fault::new(self.at, format!("{} needs the key {key:?}", self.name));
        self.take(key).ok_or(missing)
    }

    /// The text of a key, if present.
    ///
    /// # Errors
    /// [`Fault`] with the position.
    pub fn text(&mut self, key: &str) -> Result<Option<(String, usize)>, Fault> {
        self.take(key).map(|value| value.into_text(key)).transpose()
    }

    /// The texts of a key whose value is a list of texts, or a single text.
    ///
    /// # Errors
    /// [`Fault`] with the position.
    pub fn texts(&mut self, key: &str) -> Result<Vec<(String, usize)>, Fault> {
        match self.take(key) {
            None => Ok(Vec::new()),
            Some(Value { what: ValueKind::List(items), .. }) => {
                items.into_iter().map(|item| item.into_text(key)).collect()
            }
            Some(value @ Value { what: ValueKind::Text(_), .. }) => Ok(vec![value.into_text(key)?]),
            Some(value) => Err(value.kind_fault(key, "a list of strings")),
        }
    }

    /// The tables of a key: `[[key]]`.
    ///
    /// # Errors
    /// [`Fault`] with the position.
    pub fn tables(&mut self, key: &'static str) -> Result<Vec<Value>, Fault> {
        match self.take(key) {
            None => Ok(Vec::new()),
            Some(Value { what: ValueKind::List(items), .. }) => Ok(items),
            Some(value) => Err(value
                .kind_fault(key, "a list of tables")
                .with_hint(format!("write [[{key}]] in double brackets"))),
        }
    }
}
