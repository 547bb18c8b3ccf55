//! CPUs that boot parameters keep for pinned work: `isolcpus` and `nohz_full`. They have no owner.
//!
//! The kernel prints both sets in `/sys/devices/system/cpu`, with its own reading of the parameters
//! (`8-N`, flags). <https://docs.kernel.org/admin-guide/kernel-parameters.html>

use pinfold_host::paths;
use pinfold_model::CpuSet;

use crate::claim::{Claim, Exclusivity, Kind, Owner, OwnerCategory, Source};
use crate::claim_set::Claims;
use crate::context::Context;

/// A boot parameter.
pub const KIND: Kind =
    Kind { name: "boot", noun: "boot parameter", sort: OwnerCategory::Configuration };

/// What is read.
pub const READS: &str = "isolcpus and nohz_full of the running kernel";

/// The value of a parameter in `/proc/cmdline`: the last one counts.
#[must_use]
pub fn parameter<'t>(cmdline: &'t str, name: &str) -> Option<&'t str> {
    let words = cmdline.split_ascii_whitespace();
    words.rev().find_map(|word| word.strip_prefix(name)?.strip_prefix('='))
}

/// Adds what the parameters keep.
pub fn read(context: &Context<'_>, claims: &mut Claims) {
    let host = context.host;
    let cmdline = host.read_text(&paths::kernel_cmdline()).unwrap_or_default();
    for (name, path) in [("isolcpus", paths::cpu_isolated()), ("nohz_full", paths::cpu_nohz_full())]
    {
        // Partitions are in `isolated` too; those are claims already.
        let Some(value) = parameter(&cmdline, name) else { continue };
        let Ok(text) = host.read_text(&path) else { continue };
        let cpus = match text.trim() {
            "(null)" => CpuSet::new(),
            list => match CpuSet::parse_list(list) {
                Ok(cpus) => cpus,
                Err(error) => {
                    context.refuse(claims, &Source::file(&path, None), error);
                    continue;
                }
            },
        };
        let source = Source::file(&path, None).with_value(format!("{name}={value}"));
        let owner = Owner::new(&KIND, name);
        context.add(claims, Claim::new(&owner, cpus, Exclusivity::Preferred, &source));
    }
}

#[cfg(test)]
mod tests;
