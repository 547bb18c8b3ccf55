//! CPUs to which irqbalance gives no interrupts. They have no owner: pinned work runs well there.
//!
//! ```text
//! IRQBALANCE_BANNED_CPULIST=2-7
//! IRQBALANCE_BANNED_CPUS=000000ff,ffffff00
//! ```
//! The list is newer (1.9) and counts if both are set. `irqbalance(1)`.

use pinfold_model::CpuSet;

use crate::claim::{Claim, Exclusivity, Kind, Owner, OwnerCategory, Source};
use crate::claim_set::Claims;
use crate::context::Context;

/// irqbalance.
pub const KIND: Kind = Kind { name: "irqbalance", noun: "", sort: OwnerCategory::Configuration };

/// What is read.
pub const READS: &str = "/etc/default/irqbalance, /etc/sysconfig/irqbalance";

const FILES: [&str; 2] = ["/etc/default/irqbalance", "/etc/sysconfig/irqbalance"];
const LIST: &str = "IRQBALANCE_BANNED_CPULIST";
const MASK: &str = "IRQBALANCE_BANNED_CPUS";

/// The banned CPUs of a configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Banned {
    /// The line of the variable, from 1.
    pub line: u32,
    /// The variable as it is written.
    pub text: String,
    /// The CPUs, or what is wrong with the value.
    pub cpus: Result<CpuSet, String>,
}

/// Parses the file, which is a list of variables of a shell; `None` without banned CPUs.
#[must_use]
pub fn parse(text: &str) -> Option<Banned> {
    let mut found: [Option<Banned>; 2] = [None, None];
    for (line, text) in (1..).zip(text.lines()) {
        let text = text.trim();
        let text = text.strip_prefix("export ").unwrap_or(text).trim();
        let Some((name, value)) = text.split_once('=') else { continue };
        let value = value.trim().trim_matches(['"', '\'']);
        let (place, cpus) = match name {
            LIST => (0, CpuSet::parse_list(value)),
            MASK if value.is_empty() => (1, Ok(CpuSet::new())),
            MASK => (1, CpuSet::parse_mask(value)),
            _ => continue,
        };
        let cpus = cpus.map_err(|error| error.to_string());
        found[place] = Some(Banned { line, text: format!("{name}={value}"), cpus });
    }
    let [list, mask] = found;
    list.filter(is_set).or(mask.filter(is_set))
}

fn is_set(banned: &Banned) -> bool {
    banned.cpus.as_ref().map_or(true, |cpus| !cpus.is_empty())
}

/// Adds the banned CPUs.
pub fn read(context: &Context<'_>, claims: &mut Claims) {
    for path in FILES {
        let Some(text) = context.text(path, claims) else { continue };
        let Some(Banned { line, text, cpus }) = parse(&text) else { continue };
        let source = Source::file(path, Some(line)).with_value(text);
        match cpus {
            Ok(cpus) => {
                let owner = Owner::new(&KIND, "irqbalance's banned CPUs");
                context.add(claims, Claim::new(&owner, cpus, Exclusivity::Preferred, &source));
            }
            Err(why) => context.refuse(claims, &source, why),
        }
    }
}

#[cfg(test)]
mod tests;
