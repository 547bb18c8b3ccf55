//! The CPUs that OpenStack Nova gives to its instances.
//!
//! ```text
//! [compute]
//! cpu_dedicated_set = 4-15,^8
//! cpu_shared_set = 0-3
//! ```
//! <https://docs.openstack.org/nova/latest/configuration/config.html>. Of two files, the later one
//! counts (`--config-file` of nova-compute, in this order: `nova-compute.conf` of Debian and Ubuntu,
//! `nova-cpu.conf` of DevStack); `vcpu_pin_set` is the earlier name of the dedicated set.

use pinfold_model::CpuSet;

use crate::claim::{Claim, Exclusivity, Kind, Owner, OwnerCategory, Source};
use crate::claim_set::Claims;
use crate::context::Context;

/// Nova.
pub const KIND: Kind = Kind { name: "nova", noun: "", sort: OwnerCategory::Pool };

/// What is read.
pub const READS: &str = "nova.conf, nova-compute.conf, nova-cpu.conf and nova.conf.d in /etc/nova";

const FILES: [&str; 3] =
    ["/etc/nova/nova.conf", "/etc/nova/nova-compute.conf", "/etc/nova/nova-cpu.conf"];
const FOLDER: &str = "/etc/nova/nova.conf.d";

/// The options, with their section.
const OPTIONS: [(&str, &str, Exclusivity); 3] = [
    ("compute", "cpu_dedicated_set", Exclusivity::Dedicated),
    ("compute", "cpu_shared_set", Exclusivity::Shared),
    ("DEFAULT", "vcpu_pin_set", Exclusivity::Dedicated),
];

/// A set of CPUs of a configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Name of the option.
    pub name: &'static str,
    /// How its CPUs are used.
    pub exclusivity: Exclusivity,
    /// Its line, from 1.
    pub line: u32,
    /// Its value.
    pub value: String,
    /// The CPUs, or what is wrong with the value.
    pub cpus: Result<CpuSet, String>,
}

/// The settings of a file (oslo.config: sections, `name = value` or `name: value`, comments with
/// `#` or `;`). The last one of a name counts.
#[must_use]
pub fn parse(text: &str) -> Vec<Setting> {
    let mut found: Vec<Setting> = Vec::new();
    let mut section = "DEFAULT";
    // The option that the next indented line continues.
    let mut open: Option<&'static str> = None;
    for (line, text) in (1..).zip(text.lines()) {
        let is_continued = text.starts_with([' ', '\t']);
        let text = text.trim();
        if is_continued && !text.is_empty() {
            if let Some(setting) = found.iter_mut().find(|setting| Some(setting.name) == open) {
                setting.value = format!("{} {text}", setting.value);
                setting.cpus = parse_cpus(&setting.value);
            }
            continue;
        }
        // A comment leaves it open.
        if text.starts_with(['#', ';']) {
            continue;
        }
        open = None;
        if text.is_empty() {
            continue;
        }
        if let Some(name) = text.strip_prefix('[') {
            section = name.split(']').next().unwrap_or(name).trim();
            continue;
        }
        let (name, value) = match text.split_once(['=', ':']) {
            Some((name, value)) => (name, Some(value)),
            None => (text.split_whitespace().next().unwrap_or(text), None),
        };
        let is_known = |known: &str| match known {
            "DEFAULT" => section == known,
            // oslo.config does not distinguish the case of other sections.
            _ => section.eq_ignore_ascii_case(known),
        };
        let option =
            OPTIONS.iter().find(|(known, option, _)| is_known(known) && *option == name.trim());
        let Some((_, name, exclusivity)) = option else { continue };
        let Some(value) = value else {
            found.push(Setting {
                name,
                exclusivity: *exclusivity,
                line,
                value: String::new(),
                cpus: Err(format!("expected {name} = CPUS, got {text:?}")),
            });
            continue;
        };
        open = Some(name);
        let value = value.trim().trim_matches(['"', '\'']);
        found.retain(|setting| setting.name != *name);
        found.push(Setting {
            name,
            exclusivity: *exclusivity,
            line,
            value: value.to_owned(),
            cpus: parse_cpus(value),
        });
    }
    found
}

/// A set of CPUs as Nova's `parse_cpu_spec` reads it: an exclusion may stand before its range, and
/// need not be in one.
///
/// # Errors
/// A sentence with the part.
pub fn parse_cpus(text: &str) -> Result<CpuSet, String> {
    let (mut included, mut excluded) = (CpuSet::new(), CpuSet::new());
    for part in text.split(',').map(str::trim) {
        let (set, list) = match part.strip_prefix('^') {
            Some(rest) => (&mut excluded, rest),
            None => (&mut included, part),
        };
        set.add(&CpuSet::parse_list(list).map_err(|error| error.to_string())?);
    }
    Ok(included.difference(&excluded))
}

/// Adds the sets of Nova.
pub fn read(context: &Context<'_>, claims: &mut Claims) {
    let mut files: Vec<String> = FILES.iter().map(|path| (*path).to_owned()).collect();
    let more = context.names(FOLDER, ".conf", claims);
    files.extend(more.into_iter().map(|name| format!("{FOLDER}/{name}")));
    let mut settings: Vec<(String, Setting)> = Vec::new();
    for path in files {
        let Some(text) = context.text(&path, claims) else { continue };
        for setting in parse(&text) {
            settings.retain(|(_, known)| known.name != setting.name);
            settings.push((path.clone(), setting));
        }
    }
    let has_new = settings.iter().any(|(_, setting)| setting.name == "cpu_dedicated_set");
    for (path, Setting { name, exclusivity, line, value, cpus }) in settings {
        if has_new && name == "vcpu_pin_set" {
            continue;
        }
        let source = Source::file(path, Some(line)).with_value(format!("{name}={value}"));
        match cpus {
            Ok(cpus) => {
                let owner = Owner::new(&KIND, "OpenStack Nova");
                context.add(claims, Claim::new(&owner, cpus, exclusivity, &source));
            }
            Err(why) => context.refuse(claims, &source, format!("{name}: {why}")),
        }
    }
}

#[cfg(test)]
mod tests;
