//! CPUs of programs that poll with DPDK or SPDK, by their command lines.
//!
//! ```text
//! dpdk-testpmd -l 1-3 -n 4 --file-prefix=a -- --nb-cores=2
//! spdk_tgt -m 0xF            spdk_tgt -m [4,5]             spdk_nvme_perf -q 32 -c 0xC0000
//! l3fwd -c 0x3e -n 4 --huge-dir /mnt/huge     app --lcores=(0-1)@8,2@(9,10)
//! ```
//! A program counts if its name is one of theirs, or if it has mapped huge pages and an option is
//! only theirs: `-l` and `-m` alone are options of many programs.
//!
//! - DPDK: <https://doc.dpdk.org/guides/linux_gsg/linux_eal_parameters.html>. `-l` is a short form of
//!   `--lcores` (`lib/eal/common/eal_option_list.h`; before, a list, which is a map too). Without
//!   an option it runs on each CPU of the mask with which it was started
//!   (`eal_auto_detect_cores` in `lib/eal/common/eal_common_options.c`), and binds its main thread
//!   and a thread `dpdk-worker1` or `lcore-worker-1` for each further one
//!   (`lib/eal/linux/eal.c`).
//! - SPDK: <https://spdk.io/doc/app_overview.html>. Each `-m` replaces the one before, and the default
//!   is CPU 0 (`SPDK_APP_DPDK_DEFAULT_CORE_MASK` in `lib/event/app.c`).
//! - `spdk_nvme_perf` has its mask in `-c`, with the same default; its `-m` is another option
//!   (`app/spdk_nvme_perf/perf.c`, before `examples/nvme/perf/perf.c`).

use pinfold_host::Host;
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
const EAL: [(&str, Parser); 3] = [("--lcores", lcores), ("-l", lcores), ("-c", mask)];

/// The options of SPDK's programs with CPUs.
const SPDK: [(&str, Parser); 3] =
    [("-m", mask_or_list), ("--cpumask", mask_or_list), ("--lcores", lcores)];

/// The options of SPDK's benchmark of NVMe devices with CPUs.
const SPDK_PERF: [(&str, Parser); 2] = [("-c", mask_or_list), ("--core-mask", mask_or_list)];

/// Beginnings of the names of DPDK's threads, except that of the main thread.
const WORKERS: [&str; 2] = ["dpdk-worker", "lcore-worker-"];

/// The CPUs of a command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cores {
    /// The option with its value, or that there is none.
    pub option: String,
    /// The CPUs, or what is wrong with the value.
    pub cpus: Result<CpuSet, String>,
}

fn is_dpdk(process: &Process) -> bool {
    programs::is_dpdk(&process.program)
        || SIGNS.iter().any(|option| process.has_option(option))
        || process.arguments.iter().any(|argument: &String| argument.contains("/dev/hugepages"))
}

/// The CPUs that a command line names, or that are SPDK's default; `None` if the program has none.
#[must_use]
pub fn cores(process: &Process) -> Option<Cores> {
    if pinfold_vm::hypervisors::find_by_program(&process.program).is_some() {
        return None;
    }
    // Its `-m` is a mask of CPUs, that of DPDK an amount of memory.
    let options: &[(&str, Parser)] = if programs::is_spdk_perf(&process.program) {
        &SPDK_PERF
    } else if programs::is_spdk(&process.program) {
        &SPDK
    } else if is_dpdk(process) {
        &EAL
    } else {
        return None;
    };
    let found =
        options.iter().find_map(|(option, parser)| Some((option, process.option(option)?, parser)));
    match found {
        Some((option, value, parser)) => {
            Some(Cores { option: format!("{option} {value}"), cpus: parser(value) })
        }
        None if programs::polls_by_default(&process.program) => {
            Some(Cores { option: format!("{} 0x1 (the default)", options[0].0), cpus: mask("0x1") })
        }
        None => None,
    }
}

/// The CPUs of the threads that DPDK has bound, for a command line that names none; `None` if it
/// has bound none.
fn bound_cores(process: &Process, host: &dyn Host) -> Option<Cores> {
    if !is_dpdk(process) || programs::is_spdk(&process.program) {
        return None;
    }
    let (main, others): (Vec<_>, Vec<_>) =
        process.threads(host).into_iter().partition(|thread| thread.tid == process.pid);
    let workers = others
        .iter()
        .filter(|thread| WORKERS.iter().any(|beginning| thread.name.starts_with(beginning)));
    let workers: CpuSet = workers.map(|thread| &thread.cpus).collect();
    let main: CpuSet =
        main.iter().map(|thread| &thread.cpus).filter(|cpus| cpus.len() == 1).collect();
    // The main thread alone may have been bound by another program.
    let is_bound = !workers.is_empty() || programs::is_dpdk(&process.program);
    let cpus = workers.union(&main);
    let option = "no -l; its threads".to_owned();
    (is_bound && !cpus.is_empty()).then_some(Cores { option, cpus: Ok(cpus) })
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
        let found = cores(process).or_else(|| bound_cores(process, context.host));
        let Some(Cores { option, cpus }) = found else { continue };
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
