//! The placements of domains that are planned when they start: `/etc/pinfold/domains.toml`.
//!
//! ```toml
//! [default]
//! strategy = "balanced"
//!
//! [[domain]]
//! name = ["db-*", "cache"]
//! strategy = "low-latency"
//! isolate = "host"
//! ```
//! A row is for the domains whose name or UUID matches one of its patterns; `[default]` has the
//! values of the keys that a row does not have. Two rows for one domain are a fault of the file,
//! which only shows when the name of the domain is known: [`Domains::row`].

use pinfold_model::{CpuSet, EmulatorRequest, IsolationScope, Preference, STRATEGY_NAMES, closest};

use crate::ConfigError;
use crate::fault::Fault;
use crate::keys::Keys;
use crate::requests;
use crate::value::{self, Value, ValueKind};

const FILE: &[&str] = &["default", "domain"];
/// The keys of a row, except its `name`, and of `[default]`.
pub const SETTINGS: &[&str] =
    &["place", "strategy", "prefer", "isolate", "emulator", "avoid", "knobs"];

/// How a domain is placed; `None` where the file does not say it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DomainSettings {
    /// Whether it is placed at all.
    pub place: Option<bool>,
    /// The strategy.
    pub strategy: Option<String>,
    /// Which cores are used first.
    pub prefer: Option<Preference>,
    /// Which other tasks are excluded from its CPUs.
    pub isolation: Option<IsolationScope>,
    /// Where its emulator runs.
    pub emulator: Option<EmulatorRequest>,
    /// CPUs that it must not use.
    pub avoid: Option<CpuSet>,
    /// Tunables, as `--knob` takes them.
    pub knobs: Option<Vec<String>>,
}

impl DomainSettings {
    /// These settings, with those of `other` for what they do not say.
    #[must_use]
    pub fn or(self, other: &Self) -> Self {
        Self {
            place: self.place.or(other.place),
            strategy: self.strategy.or_else(|| other.strategy.clone()),
            prefer: self.prefer.or(other.prefer),
            isolation: self.isolation.or(other.isolation),
            emulator: self.emulator.or(other.emulator),
            avoid: self.avoid.or_else(|| other.avoid.clone()),
            knobs: self.knobs.or_else(|| other.knobs.clone()),
        }
    }
}

/// A row of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainRow {
    /// Patterns of names: `*` matches any text, `?` one character.
    pub names: Vec<String>,
    /// Line number in the file, from 1.
    pub line: usize,
    /// Its settings.
    pub settings: DomainSettings,
}

/// The content of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Domains {
    /// The settings of `[default]`. With `place = true` domains without a row are placed too.
    pub default: DomainSettings,
    /// The rows, in the order of the file.
    pub rows: Vec<DomainRow>,
}

impl Domains {
    /// Parses the file.
    ///
    /// # Errors
    /// [`ConfigError`] with line and column: not TOML, an unknown or missing key, a value of the
    /// wrong type or out of range, a pattern that is given twice.
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        let read = value::parse_toml(text).and_then(|root| domains(root, text));
        read.map_err(|fault| ConfigError::in_file(text, fault))
    }

    /// True if a row forbids to place a domain, whatever other rows match.
    pub fn excludes(&self, name: &str, uuid: &str) -> bool {
        self.rows_of(name, uuid).iter().any(|row| row.settings.place == Some(false))
    }

    /// The rows that match a name or UUID.
    fn rows_of(&self, name: &str, uuid: &str) -> Vec<&DomainRow> {
        self.rows
            .iter()
            .filter(|row| {
                row.names.iter().any(|pattern| matches(pattern, name) || matches(pattern, uuid))
            })
            .collect()
    }

    /// The row of a domain, by its name or UUID; `None` without one.
    ///
    /// # Errors
    /// The fault that several rows match, with their lines.
    pub fn row(&self, name: &str, uuid: &str) -> Result<Option<&DomainRow>, String> {
        match self.rows_of(name, uuid).as_slice() {
            [] => Ok(None),
            [only] => Ok(Some(only)),
            many => {
                let lines: Vec<String> = many.iter().map(|row| row.line.to_string()).collect();
                Err(format!("{name:?} has {} rows: lines {}", many.len(), lines.join(", ")))
            }
        }
    }
}

fn domains(root: Value, text: &str) -> Result<Domains, Fault> {
    let mut keys = Keys::new(root, "the file", FILE)?;
    let default = match keys.take("default") {
        None => DomainSettings::default(),
        Some(table) => settings(&mut Keys::new(table, "default", SETTINGS)?)?,
    };
    let mut rows: Vec<DomainRow> = Vec::new();
    let known = [&["name"], SETTINGS].concat();
    for table in keys.tables("domain")? {
        let line = line_of(text, table.at);
        let mut keys = Keys::new(table, "domain", &known)?;
        let names = names(&mut keys, &rows)?;
        rows.push(DomainRow { names, line, settings: settings(&mut keys)? });
    }
    Ok(Domains { default, rows })
}

/// The patterns of a row, none of which another row has.
fn names(keys: &mut Keys, rows: &[DomainRow]) -> Result<Vec<String>, Fault> {
    let value = keys.take_required("name")?;
    let at = value.at;
    let names = if let ValueKind::List(items) = value.what {
        items.into_iter().map(|item| item.into_text("name")).collect::<Result<Vec<_>, _>>()?
    } else {
        vec![value.into_text("name")?]
    };
    if names.is_empty() {
        return Err(Fault::new(at, "name: the list names no domain".to_owned())
            .with_hint("write a name or a pattern such as \"db-*\", or omit the row"));
    }
    for (name, at) in &names {
        if name.is_empty() || name.contains(|letter: char| letter.is_control() || letter == '/') {
            return Err(Fault::new(*at, format!("name: {name:?} is not a valid domain name")));
        }
        if let Some(row) = rows.iter().find(|row| row.names.contains(name)) {
            let text = format!("{name:?} has a row already, in line {}", row.line);
            return Err(Fault::new(*at, text).with_hint("merge the two rows"));
        }
    }
    Ok(names.into_iter().map(|(name, _)| name).collect())
}

fn settings(keys: &mut Keys) -> Result<DomainSettings, Fault> {
    let mut found = DomainSettings::default();
    if let Some(value) = keys.take("place") {
        let ValueKind::Truth(place) = value.what else {
            return Err(value.not("place", "true or false"));
        };
        found.place = Some(place);
    }
    if let Some((text, at)) = keys.text("strategy")? {
        found.strategy = Some(strategy_at(&text, at)?);
    }
    if let Some((text, at)) = keys.text("prefer")? {
        found.prefer = Some(requests::parse_preference(&text, at)?);
    }
    if let Some((text, at)) = keys.text("isolate")? {
        found.isolation = Some(requests::isolation(&text, at)?);
    }
    if let Some((text, at)) = keys.text("emulator")? {
        found.emulator = Some(requests::emulator_request(&text, at)?);
    }
    if let Some((text, at)) = keys.text("avoid")? {
        found.avoid = Some(requests::pus("avoid", &text, at)?);
    }
    let knobs = keys.texts("knobs")?;
    for (words, at) in &knobs {
        // Which values are valid depends on the plan.
        requests::knobs::parts(words).map_err(|fault| Fault { at: *at, ..fault })?;
    }
    if !knobs.is_empty() {
        found.knobs = Some(knobs.into_iter().map(|(words, _)| words).collect());
    }
    Ok(found)
}

/// Parses the name of a strategy.
///
/// # Errors
/// [`ConfigError`] if there is none of this name.
pub fn strategy(text: &str) -> Result<String, ConfigError> {
    Ok(strategy_at(text, 0)?)
}

fn strategy_at(text: &str, at: usize) -> Result<String, Fault> {
    if STRATEGY_NAMES.contains(&text) {
        return Ok(text.to_owned());
    }
    let fault = Fault::new(at, format!("strategy: {text:?} is not a strategy"));
    Err(match closest(text, STRATEGY_NAMES.into_iter()) {
        Some(nearest) => fault.with_hint(format!("did you mean {nearest}?")),
        None => fault.with_hint("`pinfold plan --list` lists them"),
    })
}

fn line_of(text: &str, at: usize) -> usize {
    text.get(..at).unwrap_or(text).matches('\n').count() + 1
}

/// True if a pattern with `*` and `?` matches a whole text.
fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), text.chars().collect());
    let (mut at, mut read) = (0, 0);
    // Where to go on if a later part does not match: behind the last `*`, one character further.
    let mut last_star: Option<(usize, usize)> = None;
    while let Some(letter) = text.get(read) {
        match pattern.get(at) {
            Some('*') => {
                at += 1;
                last_star = Some((at, read));
            }
            Some(wanted) if *wanted == '?' || wanted == letter => {
                at += 1;
                read += 1;
            }
            Some(_) | None => {
                let Some((behind, from)) = last_star else { return false };
                (at, read) = (behind, from + 1);
                last_star = Some((behind, from + 1));
            }
        }
    }
    pattern.get(at..).unwrap_or_default().iter().all(|letter| *letter == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "[default]
strategy = \"balanced\"

[[domain]]
name = [\"db-*\", \"cache\"]
strategy = \"low-latency\"
prefer = \"frequency\"
isolate = \"host\"
avoid = \"0-1\"
knobs = [\"new-irqs=housekeeping\"]

[[domain]]
name = \"db-test?\"
place = false
";

    #[test]
    fn a_domain_has_its_row_by_name_or_uuid_and_the_defaults() {
        let domains = Domains::from_toml(FILE).unwrap();
        let uuid = "6695eb01-f6a4-8304-79aa-97f2502e193f";
        let row = domains.row("db-1", uuid).unwrap().unwrap();
        assert_eq!(row.line, 4);
        let found = row.settings.clone().or(&domains.default);
        assert_eq!(found.strategy.as_deref(), Some("low-latency"));
        assert_eq!(found.prefer, Some(Preference::Frequency));
        assert_eq!(found.isolation, Some(IsolationScope::Host));
        assert_eq!(found.avoid, Some(CpuSet::first_n(2)));
        assert_eq!(found.knobs.as_deref(), Some(&["new-irqs=housekeeping".to_owned()][..]));
        assert_eq!(domains.row("web", uuid), Ok(None));
        let other = Domains::from_toml(&format!("[[domain]]\nname = \"{uuid}\"")).unwrap();
        let row = other.row("web", uuid).unwrap().unwrap();
        let found = row.settings.clone().or(&domains.default);
        assert_eq!(found.strategy.as_deref(), Some("balanced"));
    }

    #[test]
    fn two_rows_for_one_domain_are_named_by_their_lines() {
        let domains = Domains::from_toml(FILE).unwrap();
        let why = domains.row("db-test1", "").unwrap_err();
        assert_eq!(why, "\"db-test1\" has 2 rows: lines 4, 12");
        check(
            "[[domain]]\nname = \"a\"\n[[domain]]\nname = [\"b\", \"a\"]",
            "line 4, column 14: \"a\" has a row already, in line 1",
        );
    }

    #[test]
    fn faults_have_line_and_column() {
        check("[[domain]]\nstrategy = \"auto\"", "line 1, column 1: domain needs the key \"name\"");
        check(
            "[domain]\nname = \"a\"",
            "line 1, column 1: domain: a table is not a list of tables",
        );
        check("[[domain]]\nname = 3", "line 2, column 8: name: 3 is not a string");
        check("[[domain]]\nname = []", "line 2, column 8: name: the list names no domain");
        check(
            "[[domain]]\nname = \"a/b\"",
            "line 2, column 8: name: \"a/b\" is not a valid domain name",
        );
        check("[[domain]]\nname = \"a\"\nplace = 1", "line 3, column 9: place: 1 is not true");
        check("[default]\nstrategy = \"blanced\"", "line 2, column 12: strategy: \"blanced\"");
        check(
            "[default]\nprefer = \"speed\"",
            "line 2, column 10: prefer: \"speed\" is not one of",
        );
        check("[default]\nisolate = \"all\"", "line 2, column 11: isolate: \"all\" is not one of");
        check("[default]\navoid = \"x\"", "line 2, column 9: avoid: ");
        check("[default]\nknobs = [\"nonsense=1\"]", "line 2, column 10: ");
        check("[default]\nname = \"a\"", "line 2, column 1: default has no key \"name\"");
        check("nonsense", "line 1, column ");
    }

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, text) in
            [("*", ""), ("a*", "a"), ("a*c", "abcc"), ("?b*", "abc"), ("*-*-x", "a-b-c-x")]
        {
            assert!(matches(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [("", "a"), ("a", "ab"), ("a?", "a"), ("*b", "abc"), ("a*c", "ab")] {
            assert!(!matches(pattern, text), "{pattern} {text}");
        }
    }

    fn check(text: &str, expected: &str) {
        let error = Domains::from_toml(text).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}\n{text}");
    }
}
