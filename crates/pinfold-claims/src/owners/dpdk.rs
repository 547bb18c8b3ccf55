//! CPUs of programs that poll with DPDK or SPDK, by their command lines.
//!
//! ```text
//! dpdk-testpmd -l 1-3 -n 4 --file-prefix=a -- --nb-cores=2
//! spdk_tgt -m 0xF            spdk_tgt -m [4,5]
//! l3fwd -c 0x3e -n 4 --huge-dir /mnt/huge     app --lcores=(0-1)@8,2@(9,10)
//! ```
//! <https://doc.dpdk.org/guides/linux_gsg/linux_eal_parameters.html>,
//! <https://spdk.io/doc/app_overview.html>. A program counts if its name is one of theirs, or if it
//! has mapped huge pages and an option is only theirs: `-l` and `-m` alone are options of many
//! programs.

use pinfold_model::CpuSet;

use super::kubelet;
use crate::claim::{Claim, Exclusivity, Kind, Owner, OwnerCategory, Source};
use crate::claim_set::Claims;
use crate::context::Context;
use crate::processes::Process;
use crate::programs;

/// A program with DPDK or SPDK.
pub const KIND: Kind = Kind { name: "dpdk", noun: "DPDK or SPDK", sort: OwnerCategory::Program };

/// What is read.
pub const READS: &str = "command lines of programs with DPDK or SPDK";

/// Options that only DPDK and SPDK have.
const SIGNS: [&str; 7] = [
    "--file-prefix",
    "--huge-dir",
    "--socket-mem",
    "--lcores",
    "--proc-type",
    "--huge-unlink",
    "--iova-mode",
];

/// A function that parses the value of an option.
type Parser = fn(&str) -> Result<CpuSet, String>;

/// The options of DPDK's EAL with CPUs.
const EAL: [(&str, Parser); 3] = [("--lcores", lcores), ("-l", list), ("-c", mask)];

/// The options of SPDK's programs with CPUs.
const SPDK: [(&str, Parser); 3] =
    [("-m", mask_or_list), ("--cpumask", mask_or_list), ("--lcores", lcores)];

/// The CPUs of a command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cores {
    /// The option with its value.
    pub option: String,
    /// The CPUs, or what is wrong with the value.
    pub cpus: Result<CpuSet, String>,
}

fn is_dpdk(process: &Process) -> bool {
    programs::is_dpdk(&process.program)
        || SIGNS.iter().any(|option| process.has_option(option))
        || process.arguments.iter().any(|argument: &String| argument.contains("/dev/hugepages"))
}

/// The CPUs that a command line names; `None` if the program has none.
#[must_use]
pub fn cores(process: &Process) -> Option<Cores> {
    if pinfold_vm::hypervisors::find_by_program(&process.program).is_some() {
        return None;
    }
    // Its `-m` is a mask of CPUs, that of DPDK an amount of memory.
    let options: &[(&str, Parser)] = if programs::is_spdk(&process.program) {
        &SPDK
    } else if is_dpdk(process) {
        &EAL
    } else {
        return None;
    };
    let (option, value, parser) = options
        .iter()
        .find_map(|(option, parser)| Some((option, process.option(option)?, parser)))?;
    Some(Cores { option: format!("{option} {value}"), cpus: parser(value) })
}

fn mask(text: &str) -> Result<CpuSet, String> {
    CpuSet::parse_mask(text).map_err(|error| error.to_string())
}

fn list(text: &str) -> Result<CpuSet, String> {
    CpuSet::parse_list(text).map_err(|error| error.to_string())
}

/// `0xF` or `[0-3,5]`; SPDK also takes a mask without `0x`.
fn mask_or_list(text: &str) -> Result<CpuSet, String> {
    match text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(inner) => list(inner),
        None => mask(text),
    }
}

/// The CPUs of a map of lcores: `1,2@8,(3-4)@(9,10)`. A part without `@` has the CPUs of its
/// numbers.
///
/// # Errors
/// A sentence with the part.
pub fn lcores(text: &str) -> Result<CpuSet, String> {
    let mut all = CpuSet::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (lcores, after) = group(rest)?;
        let (cpus, after) = match after.strip_prefix('@') {
            Some(after) => group(after)?,
            None => (lcores, after),
        };
        all.add(&list(cpus)?);
        rest = match after.strip_prefix(',') {
            Some(rest) => rest,
            None if after.is_empty() => "",
            None => return Err(format!("cannot parse the lcore map {text:?}: {after:?}")),
        };
    }
    Ok(all)
}

/// The first group of a map, without its parentheses, and what follows.
fn group(text: &str) -> Result<(&str, &str), String> {
    if let Some(inner) = text.strip_prefix('(') {
        let end = inner.split_once(')');
        return end.ok_or_else(|| format!("{text:?}: the parenthesis is not closed"));
    }
    let end = text.find([',', '@']).unwrap_or(text.len());
    if end == 0 {
        return Err(format!("cannot parse the lcore map {text:?}"));
    }
    Ok(text.split_at(end))
}

/// Adds the CPUs of these programs.
pub fn read(context: &Context<'_>, claims: &mut Claims) {
    for process in context.processes() {
        let Some(Cores { option, cpus }) = cores(process) else { continue };
        if context.belongs(process.pid, claims) || kubelet::owns(context, process.pid, claims) {
            continue;
        }
        let source = Source::process(process.pid).with_value(option);
        match cpus {
            Ok(cpus) => {
                let owner = Owner::new(&KIND, &process.program).of_process(process.pid);
                context.add(claims, Claim::new(&owner, cpus, Exclusivity::Exclusive, &source));
            }
            Err(why) => context.refuse(claims, &source, why),
        }
    }
}

#[cfg(test)]
mod tests;
