//! What is asked for a machine that is planned when it starts: by the metadata of its domain, and by
//! its row in `/etc/pinfold/domains.toml`.
//!
//! What is not understood never prevents a placement: it is a warning with its line, and the
//! machine is placed with the default.

use pinfold_config::domains::{self, DomainSettings, Domains};
use pinfold_config::{ConfigError, requests};
use pinfold_host::files::{self, StateDir};
use pinfold_model::Finding;
use pinfold_plan::domain_file::PlacementMetadata;

use crate::inputs::input_failure;
use crate::{Exit, Failure};

const METADATA: &str = "metadata";
const FILE: &str = "domains";
/// Maximum size of the file; 10,000 rows have a twentieth of it.
const MOST_BYTES: usize = 16 << 20;

/// A machine, as far as it is known before it is placed.
#[derive(Clone, Copy, Debug)]
pub struct KnownMachine<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its UUID; empty if it has none.
    pub uuid: &'a str,
    /// The XML of its domain, if libvirt manages it.
    pub xml: Option<&'a str>,
}

/// What is asked for a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DomainRequest {
    /// Its settings; `None` if it is not placed.
    pub settings: Option<DomainSettings>,
    /// What was not understood.
    pub findings: Vec<Finding>,
    /// Where the settings are from, in words.
    pub origin: String,
    /// True if a row forbids to place it.
    pub is_excluded: bool,
    /// True if the file has a fault, so that its rows are not known.
    pub is_file_ignored: bool,
}

/// The content of the file; `None` without one.
///
/// # Errors
/// As [`read_text`]; [`Failure`] if it is not TOML or has an unknown table, with line and column.
pub fn read(path: &str) -> Result<Option<Domains>, Failure> {
    let Some(text) = read_text(path)? else { return Ok(None) };
    crate::inputs::name_option(path, Domains::from_toml(&text)).map(Some)
}

/// The text of the file; `None` without one. Its tunables are set as root, so the file and its
/// folder must belong to the caller and must not be writable by others.
///
/// # Errors
/// [`Failure`] if it is not safe or cannot be read.
pub fn read_text(path: &str) -> Result<Option<String>, Failure> {
    let (folder, name) = path.rsplit_once('/').unwrap_or((".", path));
    let folder = if folder.is_empty() { "/" } else { folder };
    let Some(folder) = StateDir::open_existing(folder)? else { return Ok(None) };
    if !folder.contains(name) {
        return Ok(None);
    }
    // Through the open folder: the path could refer to another file by now.
    let bytes = folder.read_at_most(name, MOST_BYTES)?;
    files::text(path, bytes).map(Some).map_err(|error| input_failure(&error))
}

/// Parses the text of the file, of which no row may have a fault.
///
/// # Errors
/// [`Failure`] with the path, and the line of each fault.
pub fn parse_whole(path: &str, text: &str) -> Result<Domains, Failure> {
    let domains = crate::inputs::name_option(path, Domains::from_toml(text))?;
    let rows = domains.rows.iter().filter_map(|row| row.fault.as_ref());
    let faults: Vec<&ConfigError> = domains.faults.iter().chain(rows).collect();
    let mut texts: Vec<String> = faults.iter().map(ToString::to_string).collect();
    texts.extend(domains.repeated_names());
    if texts.is_empty() {
        return Ok(domains);
    }
    let failure = Failure::new(Exit::Input, format!("{path}: {}", texts.join("; ")));
    Err(Failure { hint: faults.iter().find_map(|fault| fault.hint()), ..failure })
}

/// Why a machine is not placed, and how to have it placed; `origin` is where its settings are from.
#[must_use]
pub fn exclusion(origin: &str) -> String {
    format!("place = false ({origin}); to place it, remove that key or change the name of the row")
}

/// What is asked for a machine, with the content of the file at `path`.
#[must_use]
pub fn domain_request(
    machine: KnownMachine<'_>,
    path: &str,
    file: Result<Option<Domains>, Failure>,
) -> DomainRequest {
    let mut asked = DomainRequest { is_file_ignored: file.is_err(), ..Default::default() };
    let (mut own_origin, mut origins) = (None, Vec::new());
    let own = match machine.xml.map_or(Ok(None), metadata) {
        Ok(None) => None,
        Ok(Some((settings, line))) => {
            own_origin = Some(format!("its metadata, line {line}"));
            Some(settings)
        }
        Err(finding) => {
            asked.findings.push(finding);
            Some(DomainSettings::default())
        }
    };
    let file = file.unwrap_or_else(|failure| {
        asked.findings.push(file_warning(failure, "the file is ignored"));
        None
    });
    let file = file.unwrap_or_default();
    let left_out = |fault: &ConfigError, what| {
        warning(FILE, format!("{path}: {fault}; {what} left out"), fault.hint())
    };
    asked.findings.extend(file.faults.iter().map(|fault| left_out(fault, "this table is")));
    let row = match file.row(machine.name, machine.uuid) {
        Ok(None) => None,
        Ok(Some(row)) if row.fault.is_some() => {
            let fault = row.fault.as_ref();
            asked
                .findings
                .extend(fault.map(|fault| left_out(fault, "the settings of this row are")));
            origins.extend(row.settings.place.map(|_| format!("{path}, line {}", row.line)));
            Some(row.settings.clone())
        }
        Ok(Some(row)) => {
            origins.push(format!("{path}, line {}", row.line));
            Some(row.settings.clone())
        }
        Err(why) => {
            let text = format!("{path}: {why}; none of them is used");
            let hint = "change the patterns so that one row is left".to_owned();
            asked.findings.push(warning(FILE, text, Some(hint)));
            let excluding = file.excluding_line(machine.name, machine.uuid);
            origins.extend(excluding.map(|line| format!("{path}, line {line}")));
            let place = excluding.map(|_| false);
            Some(DomainSettings { place, ..DomainSettings::default() })
        }
    };
    let is_placed = match &row {
        Some(settings) => settings.place != Some(false),
        None => own.is_some() || file.default.place == Some(true),
    };
    asked.is_excluded = row.as_ref().is_some_and(|settings| settings.place == Some(false));
    // Only a row can have that key.
    let own_origin = own_origin.filter(|_| !asked.is_excluded);
    let origins: Vec<String> = own_origin.into_iter().chain(origins).collect();
    asked.origin = if origins.is_empty() { "by default".to_owned() } else { origins.join("; ") };
    asked.settings = is_placed.then(|| {
        own.unwrap_or_default()
            .merge_defaults(&row.unwrap_or_default())
            .merge_defaults(&file.default)
    });
    asked
}

/// The finding about a file with a fault, and what happens instead.
pub fn file_warning(failure: Failure, instead: &str) -> Finding {
    warning(FILE, format!("{}; {instead}", failure.message), failure.hint)
}

/// The settings in the metadata of a domain, with the line.
fn metadata(xml: &str) -> Result<Option<(DomainSettings, u32)>, Finding> {
    let request = PlacementMetadata::read(xml).map_err(|error| {
        let hint = error.hint.map(str::to_owned);
        warning(METADATA, format!("{error}; the domain is placed by default"), hint)
    })?;
    let Some(request) = request else { return Ok(None) };
    let strategy = request.strategy.as_deref().map(domains::strategy).transpose();
    let prefer = request.prefer.as_deref().map(requests::preference).transpose();
    let emulator = request.emulator.as_deref().map(requests::parse_emulator_request).transpose();
    match (strategy, prefer, emulator) {
        (Ok(strategy), Ok(prefer), Ok(emulator)) => {
            let settings =
                DomainSettings { strategy, prefer, emulator, ..DomainSettings::default() };
            Ok(Some((settings, request.line)))
        }
        (strategy, prefer, emulator) => {
            let errors = [strategy.err(), prefer.err(), emulator.err()];
            let errors: Vec<ConfigError> = errors.into_iter().flatten().collect();
            let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
            let texts = texts.join("; ");
            let text = format!("line {}: {texts}; the domain is placed by default", request.line);
            Err(warning(METADATA, text, errors.iter().find_map(ConfigError::hint)))
        }
    }
}

fn warning(subject: &'static str, text: String, hint: Option<String>) -> Finding {
    let finding = Finding::warning(subject, text);
    match hint {
        Some(hint) => finding.with_hint(hint),
        None => finding,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: &str = "[default]
strategy = \"compact\"
[[domain]]
name = \"db*\"
strategy = \"balanced\"
prefer = \"cache\"
[[domain]]
name = \"*-off\"
place = false
";

    #[test]
    fn metadata_override_the_row_and_the_row_the_default() {
        let found = check("db", "<p:placement xmlns:p='urn:pinfold:placement' prefer='none'/>");
        let settings = found.settings.unwrap();
        assert_eq!(settings.strategy.as_deref(), Some("balanced"));
        assert_eq!(settings.prefer, Some(pinfold_model::Preference::None));
        assert_eq!(found.origin, "its metadata, line 2; /d.toml, line 3");
        assert_eq!(found.findings, []);
        let only = check("web", "<p:placement xmlns:p='urn:pinfold:placement'/>");
        assert_eq!(only.settings.unwrap().strategy.as_deref(), Some("compact"));
        assert_eq!(check("web", "").settings, None);
        assert!(check("web-off", "").is_excluded && !check("web", "").is_excluded);
        let off = check("web-off", "<p:placement xmlns:p='urn:pinfold:placement'/>");
        assert_eq!((off.settings, off.origin.as_str()), (None, "/d.toml, line 7"));
    }

    #[test]
    fn domains_without_a_row_are_placed_only_if_the_default_says_so() {
        for (text, is_placed) in [("", false), ("[default]\nplace = true", true)] {
            let file = Ok(Some(Domains::from_toml(text).unwrap()));
            let machine = KnownMachine { name: "web", uuid: "", xml: None };
            let found = domain_request(machine, "/d.toml", file);
            assert_eq!(
                (found.settings.is_some(), found.origin.as_str()),
                (is_placed, "by default")
            );
        }
    }

    #[test]
    fn what_is_not_understood_is_a_warning_with_its_line_and_the_default() {
        let wrong = "<p:placement xmlns:p='urn:pinfold:placement' strategy='blanced'/>";
        let found = check("web", wrong);
        assert_eq!(found.settings.unwrap().strategy.as_deref(), Some("compact"));
        assert_eq!(
            found.findings[0].to_string(),
            "warning: metadata: line 2: strategy: \"blanced\" is not a strategy; the domain is placed \
             by default (did you mean balanced?)"
        );
        let several =
            "<p:placement xmlns:p='urn:pinfold:placement' strategy='blanced' prefer='x'/>";
        let text = check("web", several).findings[0].text.clone();
        assert!(text.starts_with("line 2: strategy: \"blanced\" is not a strategy; "), "{text}");
        assert!(text.contains("prefer") && text.contains("\"x\""), "{text}");
        // One of the two rows forbids to place it.
        let twice = check("db-off", "");
        assert_eq!(twice.settings, None);
        let text = twice.findings[0].to_string();
        assert!(text.contains("/d.toml: \"db-off\" has 2 rows: lines 3, 7; none of"), "{text}");
    }

    #[test]
    fn a_row_with_a_fault_is_a_warning_with_file_line_and_value() {
        let text = "[default]\nstrategy = \"compact\"\n[[domain]]\nname = \"db\"
strategy = \"balanced\"\ntunables = [\"thp never\"]\n[[domain]]\nname = \"web\"\nstrategy = \"low-latency\"";
        let asked = |name| {
            let machine = KnownMachine { name, uuid: "", xml: None };
            domain_request(machine, "/d.toml", Ok(Some(Domains::from_toml(text).unwrap())))
        };
        let web = asked("web");
        assert_eq!(web.settings.unwrap().strategy.as_deref(), Some("low-latency"));
        assert_eq!(web.findings, []);
        let db = asked("db");
        assert_eq!(db.settings.unwrap().strategy.as_deref(), Some("compact"));
        assert_eq!(
            db.findings[0].text,
            "/d.toml: line 6, column 13: expected KEY=VALUE, got \"thp never\"; the settings of \
             this row are left out"
        );
    }

    #[test]
    fn a_misspelt_key_of_a_row_is_a_warning_and_the_domain_is_placed_by_the_default() {
        let text =
            "[default]\nstrategy = \"balanced\"\n[[domain]]\nname = \"db\"\nstratgy = \"compact\"";
        let machine = KnownMachine { name: "db", uuid: "", xml: None };
        let found = domain_request(machine, "/d.toml", Ok(Some(Domains::from_toml(text).unwrap())));
        assert_eq!(found.settings.unwrap().strategy.as_deref(), Some("balanced"));
        assert_eq!(
            found.findings[0].to_string(),
            "warning: domains: /d.toml: line 5, column 1: domain has no key \"stratgy\"; the \
             settings of this row are left out (did you mean strategy?)"
        );
    }

    #[test]
    fn a_row_whose_place_is_no_truth_value_does_not_place() {
        let machine = KnownMachine { name: "db", uuid: "", xml: None };
        for value in ["\"false\"", "\"no\"", "0", "[]"] {
            let text =
                format!("[default]\nplace = true\n[[domain]]\nname = \"db\"\nplace = {value}");
            let found =
                domain_request(machine, "/d.toml", Ok(Some(Domains::from_toml(&text).unwrap())));
            assert!(found.settings.is_none() && found.is_excluded, "{value}");
            let why = found.findings[0].to_string();
            assert!(why.contains("/d.toml: line 5, column 9: place: "), "{why}");
            assert!(why.contains("is not true or false; "), "{why}");
            assert_eq!(found.origin, "/d.toml, line 3");
        }
        // In [default] it places nothing more.
        let file = Domains::from_toml("[default]\nplace = \"true\"").unwrap();
        let found = domain_request(machine, "/d.toml", Ok(Some(file)));
        assert_eq!(found.settings, None);
        let why = found.findings[0].to_string();
        assert!(why.contains("line 2, column 9: place: \"true\" is not true or false"), "{why}");
    }

    #[test]
    fn a_file_with_a_fault_leaves_what_the_metadata_ask() {
        let xml =
            "<domain><metadata><placement xmlns='urn:pinfold:placement'/></metadata></domain>";
        for (xml, is_placed) in [(Some(xml), true), (None, false)] {
            let file = Err(Failure::new(Exit::Input, "/d.toml: line 1, column 1: x"));
            let found = domain_request(KnownMachine { name: "db", uuid: "", xml }, "/d.toml", file);
            assert_eq!(found.settings, is_placed.then(DomainSettings::default));
            assert!(found.findings[0].text.contains("line 1, column 1: x; the file is ignored"));
        }
    }

    fn check(name: &str, metadata: &str) -> DomainRequest {
        let xml = format!("<domain><metadata>\n{metadata}</metadata></domain>");
        let machine = KnownMachine { name, uuid: "", xml: Some(&xml) };
        domain_request(machine, "/d.toml", Ok(Some(Domains::from_toml(ROWS).unwrap())))
    }
}
