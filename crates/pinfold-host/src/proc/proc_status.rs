//! `/proc/PID/status`: lines of key, colon, tab, value.
//!
//! ```text
//! Name:   qemu-system-x86
//! Tgid:   42
//! Cpus_allowed_list:      0-3
//! voluntary_ctxt_switches:        17
//! ```
//!
//! The kernel escapes newlines and backslashes in `Name`, so each field is one line.
//! <https://docs.kernel.org/filesystems/proc.html#id9>

use pinfold_model::{CpuSet, Tid, escape};

use super::ProcError;

/// The fields that Pinfold uses. Fields that a kernel may lack are optional.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcStatus {
    /// `Name`, with the kernel's escapes.
    pub name: String,
    /// `Tgid`: the PID of the process.
    pub tgid: Tid,
    /// `PPid`.
    pub ppid: Tid,
    /// Effective user ID, the second number of `Uid`.
    pub uid: u32,
    /// `Threads`; absent for a zombie.
    pub threads: Option<u32>,
    /// `Cpus_allowed_list`.
    pub cpus_allowed: Option<CpuSet>,
    /// `voluntary_ctxt_switches`.
    pub voluntary_switches: Option<u64>,
    /// `nonvoluntary_ctxt_switches`.
    pub involuntary_switches: Option<u64>,
}

/// The value of a field, without surrounding blanks.
pub fn field<'t>(text: &'t str, key: &str) -> Option<&'t str> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).map(str::trim)
}

/// `VmPTE` in KiB: the page tables of a process; `None` for a kernel thread or a zombie.
///
/// # Errors
/// [`ProcError`] if it is not a number.
pub fn page_tables_kib(text: &str) -> Result<Option<u64>, ProcError> {
    field(text, "VmPTE").map(|value| number(value.trim_end_matches("kB").trim_end())).transpose()
}

/// Parses the file.
///
/// # Errors
/// [`ProcError`] if `Name`, `Tgid`, `PPid` or `Uid` is missing, or a number is not valid.
pub fn parse(text: &str) -> Result<ProcStatus, ProcError> {
    let uids = need(text, "Uid")?;
    let uid = uids
        .split_ascii_whitespace()
        .nth(1)
        .ok_or_else(|| ProcError::new("the Uid field of a task's status", uids))?;
    Ok(ProcStatus {
        name: escape::name(need(text, "Name")?).into_owned(),
        tgid: Tid(number(need(text, "Tgid")?)?),
        ppid: Tid(number(need(text, "PPid")?)?),
        uid: number(uid)?,
        threads: field(text, "Threads").map(number).transpose()?,
        cpus_allowed: field(text, "Cpus_allowed_list")
            .map(|list| {
                CpuSet::parse_list(list).map_err(|_| ProcError::new("Cpus_allowed_list", list))
            })
            .transpose()?,
        voluntary_switches: field(text, "voluntary_ctxt_switches").map(number).transpose()?,
        involuntary_switches: field(text, "nonvoluntary_ctxt_switches").map(number).transpose()?,
    })
}

fn need<'a>(text: &'a str, key: &str) -> Result<&'a str, ProcError> {
    field(text, key).ok_or_else(|| ProcError::new("the status of a task", text))
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, ProcError> {
    text.parse().map_err(|_| ProcError::new("a number in the status of a task", text))
}
