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
//!
//! A row with a fault is left out, with its `place`; the others stay. A file that is not TOML, or
//! has an unknown table, is refused as a whole.

use std::collections::{BTreeMap, BTreeSet};

use pinfold_model::{CpuSet, EmulatorRequest, IsolationScope, Preference, STRATEGY_NAMES, closest};

use crate::ConfigError;
use crate::fault::Fault;
use crate::keys::Keys;
use crate::requests;
use crate::value::{self, Value, ValueKind};

const FILE: &[&str] = &["default", "domain"];
/// The keys of a row, except its `name`, and of `[default]`.
pub const SETTINGS: &[&str] =
    &["place", "strategy", "prefer", "isolate", "emulator", "avoid", TUNABLES];
const TUNABLES: &str = "tunables";
/// The earlier name of the key, which files may still have.
const EARLIER_TUNABLES: &str = "knobs";

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
    /// Tunables, as `--tunable` takes them.
    pub tunables: Option<Vec<String>>,
}

impl DomainSettings {
    /// These settings, with those of `other` for what they do not say.
    #[must_use]
    pub fn merge_defaults(self, other: &Self) -> Self {
        Self {
            place: self.place.or(other.place),
            strategy: self.strategy.or_else(|| other.strategy.clone()),
            prefer: self.prefer.or(other.prefer),
            isolation: self.isolation.or(other.isolation),
            emulator: self.emulator.or(other.emulator),
            avoid: self.avoid.or_else(|| other.avoid.clone()),
            tunables: self.tunables.or_else(|| other.tunables.clone()),
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
    /// Its settings; of a row with a fault only whether the domains are placed.
    pub settings: DomainSettings,
    /// Why its other settings are left out.
    pub fault: Option<ConfigError>,
}

/// The content of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Domains {
    /// The settings of `[default]`. With `place = true` domains without a row are placed too.
    pub default: DomainSettings,
    /// The rows, in the order of the file.
    pub rows: Vec<DomainRow>,
    /// Faults of `[default]`, whose settings are then left out, and of rows without valid patterns.
    pub faults: Vec<ConfigError>,
}

impl Domains {
    /// Parses the file.
    ///
    /// # Errors
    /// [`ConfigError`] with line and column: not TOML, or an unknown table. Other faults are in the
    /// result.
    pub fn from_toml(text: &str) -> Result<Self, ConfigError> {
        let read = value::parse_toml(text).and_then(|root| domains(root, &Lines::from_text(text)));
        read.map_err(|fault| ConfigError::in_file(text, fault))
    }

    /// The line of the first row that forbids to place a domain, whatever other rows match.
    pub fn excluding_line(&self, name: &str, uuid: &str) -> Option<usize> {
        let rows = self.rows_of(name, uuid);
        rows.iter().find(|row| row.settings.place == Some(false)).map(|row| row.line)
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

    /// The faults of names that several rows have in the same words, with their lines.
    pub fn repeated_names(&self) -> Vec<String> {
        let mut lines: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for row in &self.rows {
            for name in row.names.iter().collect::<BTreeSet<_>>() {
                lines.entry(name).or_default().push(row.line.to_string());
            }
        }
        lines.retain(|_, lines| lines.len() > 1);
        let faults = lines.iter().map(|(name, lines)| several_rows(name, lines));
        faults.collect()
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
                Err(several_rows(name, &lines))
            }
        }
    }
}

fn several_rows(name: &str, lines: &[String]) -> String {
    format!("{name:?} has {} rows: lines {}", lines.len(), lines.join(", "))
}

fn domains(root: Value, lines: &Lines<'_>) -> Result<Domains, Fault> {
    let mut keys = Keys::new(root, "the file", FILE)?;
    let mut found = Domains::default();
    if let Some(table) = keys.take("default") {
        let table = table.with_key_renamed(EARLIER_TUNABLES, TUNABLES);
        let read = Keys::new(table, "default", SETTINGS).and_then(|mut keys| settings(&mut keys));
        match read {
            Ok(settings) => found.default = settings,
            Err(fault) => found.faults.push(lines.error(fault)),
        }
    }
    let known = [&["name"], SETTINGS].concat();
    for table in keys.tables("domain")? {
        match row(table, &known, lines) {
            Ok(row) => found.rows.push(row),
            Err(fault) => found.faults.push(lines.error(fault)),
        }
    }
    Ok(found)
}

/// A row; the fault if the domains that it is for are not known.
fn row(table: Value, known: &[&'static str], lines: &Lines<'_>) -> Result<DomainRow, Fault> {
    let line = lines.line_of(table.at);
    let table = table.with_key_renamed(EARLIER_TUNABLES, TUNABLES);
    let (mut keys, unknown) = Keys::with_unknown(table, "domain", known)?;
    let unknown = match unknown {
        // It may be the name, misspelt.
        Some(fault) if !keys.has("name") => return Err(fault),
        unknown => unknown,
    };
    let names = names(&mut keys)?;
    let place = place(&mut keys);
    let read = match unknown {
        Some(fault) => Err(fault),
        None => settings(&mut keys),
    };
    let (settings, fault) = match (place, read) {
        (Ok(place), Ok(settings)) => (DomainSettings { place, ..settings }, None),
        (Ok(place), Err(fault)) => {
            (DomainSettings { place, ..DomainSettings::default() }, Some(fault))
        }
        // A row has this key to forbid a placement, so a misspelt value does not allow it.
        (Err(fault), _) => {
            (DomainSettings { place: Some(false), ..DomainSettings::default() }, Some(fault))
        }
    };
    let fault = fault.map(|fault| lines.error(fault));
    Ok(DomainRow { names, line, settings, fault })
}

/// The patterns of a row.
fn names(keys: &mut Keys) -> Result<Vec<String>, Fault> {
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
    }
    Ok(names.into_iter().map(|(name, _)| name).collect())
}

fn place(keys: &mut Keys) -> Result<Option<bool>, Fault> {
    match keys.take("place") {
        None => Ok(None),
        Some(Value { what: ValueKind::Truth(place), .. }) => Ok(Some(place)),
        Some(value) => Err(value.kind_fault("place", "true or false")),
    }
}

fn settings(keys: &mut Keys) -> Result<DomainSettings, Fault> {
    let mut found = DomainSettings { place: place(keys)?, ..DomainSettings::default() };
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
    let tunables = keys.texts(TUNABLES)?;
    for (words, at) in &tunables {
        // Which values are valid depends on the plan.
        requests::tunables::parts(words).map_err(|fault| Fault { at: *at, ..fault })?;
    }
    if !tunables.is_empty() {
        found.tunables = Some(tunables.into_iter().map(|(words, _)| words).collect());
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

/// Where the lines of a text begin, so that each of many rows finds its own without reading what
/// is above it.
struct Lines<'t> {
    text: &'t str,
    starts: Vec<usize>,
}

impl<'t> Lines<'t> {
    fn from_text(text: &'t str) -> Self {
        let ends = text.match_indices('\n').map(|(end, _)| end + 1);
        Self { text, starts: std::iter::once(0).chain(ends).collect() }
    }

    /// The number of the line of an offset, from 1.
    fn line_of(&self, at: usize) -> usize {
        self.starts.partition_point(|start| *start <= at).max(1)
    }

    fn error(&self, fault: Fault) -> ConfigError {
        let line = self.line_of(fault.at);
        let start = self.starts.get(line - 1).copied().unwrap_or(0);
        let at = fault.at.saturating_sub(start);
        let rest = self.text.get(start..).unwrap_or_default();
        let mut error = ConfigError::in_file(rest, Fault { at, ..fault });
        error.place = error.place.map(|(_, column)| (line, column));
        error
    }
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
tunables = [\"new-irqs=housekeeping\"]

[[domain]]
name = \"db-test?\"
place = false
";

    #[test]
    fn tunables_have_the_same_effect_under_the_earlier_name_of_their_key() {
        let [now, earlier] = ["tunables", "knobs"].map(|key| {
            let lines = format!("{key} = [\"thp=never\"]\n");
            let text = format!("[default]\n{lines}[[domain]]\nname = \"a\"\n{lines}");
            Domains::from_toml(&text).unwrap()
        });
        assert_eq!(now, earlier);
        assert!(now.faults.is_empty() && now.default.tunables.is_some(), "{now:?}");
        assert!(now.rows.iter().all(|row| row.settings.tunables.is_some()), "{now:?}");
    }

    #[test]
    fn a_domain_has_its_row_by_name_or_uuid_and_the_defaults() {
        let domains = Domains::from_toml(FILE).unwrap();
        let uuid = "6695eb01-f6a4-8304-79aa-97f2502e193f";
        let row = domains.row("db-1", uuid).unwrap().unwrap();
        assert_eq!(row.line, 4);
        let found = row.settings.clone().merge_defaults(&domains.default);
        assert_eq!(found.strategy.as_deref(), Some("low-latency"));
        assert_eq!(found.prefer, Some(Preference::Frequency));
        assert_eq!(found.isolation, Some(IsolationScope::Host));
        assert_eq!(found.avoid, Some(CpuSet::first_n(2)));
        assert_eq!(found.tunables.as_deref(), Some(&["new-irqs=housekeeping".to_owned()][..]));
        assert_eq!(domains.row("web", uuid), Ok(None));
        let other = Domains::from_toml(&format!("[[domain]]\nname = \"{uuid}\"")).unwrap();
        let row = other.row("web", uuid).unwrap().unwrap();
        let found = row.settings.clone().merge_defaults(&domains.default);
        assert_eq!(found.strategy.as_deref(), Some("balanced"));
    }

    #[test]
    fn two_rows_for_one_domain_are_named_by_their_lines() {
        let domains = Domains::from_toml(FILE).unwrap();
        let why = domains.row("db-test1", "").unwrap_err();
        assert_eq!(why, "\"db-test1\" has 2 rows: lines 4, 12");
        let text = "[[domain]]\nname = \"a\"\n[[domain]]\nname = [\"b\", \"a\"]";
        let why = Domains::from_toml(text).unwrap().row("a", "").unwrap_err();
        assert_eq!(why, "\"a\" has 2 rows: lines 1, 3");
    }

    #[test]
    fn a_row_with_a_fault_is_left_out_with_its_place_and_the_others_stay() {
        let text = "[default]\nisolate = \"all\"\n[[domain]]\nname = \"bad\"\nplace = false
tunables = [\"thp never\"]\n[[domain]]\nname = \"good\"\nstrategy = \"compact\"\n[[domain]]\nname = \"\"";
        let found = Domains::from_toml(text).unwrap();
        let row = |name| found.row(name, "").unwrap().unwrap();
        assert_eq!(row("good").settings.strategy.as_deref(), Some("compact"));
        assert_eq!(row("good").fault, None);
        let place = Some(false);
        assert_eq!(row("bad").settings, DomainSettings { place, ..DomainSettings::default() });
        let why = row("bad").fault.as_ref().map(ToString::to_string).unwrap();
        assert_eq!(why, "line 6, column 13: expected KEY=VALUE, got \"thp never\"");
        assert_eq!(found.default, DomainSettings::default());
        let others: Vec<_> = found.faults.iter().filter_map(|fault| fault.place).collect();
        assert_eq!(others, [(2, 11), (11, 8)]);
    }

    /// Neither the lines nor the names above are read again for each row.
    #[test]
    fn ten_thousand_rows_are_read() {
        let count = 10_000;
        let rows = (0..count).map(|number| format!("[[domain]]\nname = \"vm-{number}\"\n"));
        let found = Domains::from_toml(&rows.collect::<String>()).unwrap();
        assert_eq!((found.rows.len(), found.rows[count - 1].line), (count, 2 * count - 1));
    }

    #[test]
    fn faults_have_line_and_column() {
        check("[[domain]]\nstrategy = \"auto\"", "line 1, column 1: domain needs the key \"name\"");
        check("[[domain]]\nnam = \"a\"", "line 2, column 1: domain has no key \"nam\"");
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
        check("[default]\ntunables = [\"nonsense=1\"]", "line 2, column 13: ");
        check(
            "[default]\ntunables = []\nknobs = []",
            "line 3, column 1: default has no key \"knobs\"",
        );
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
        let error = match Domains::from_toml(text) {
            Err(error) => error.to_string(),
            Ok(Domains { rows, faults, .. }) => {
                let faults = faults.into_iter().chain(rows.into_iter().filter_map(|row| row.fault));
                faults.map(|fault| fault.to_string()).collect()
            }
        };
        assert!(error.starts_with(expected), "{error}\n{text}");
    }
}
