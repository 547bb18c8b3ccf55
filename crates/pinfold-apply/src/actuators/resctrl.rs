//! Pinfold's group in `resctrl`, its schemata, and its threads.
//!
//! It is no cgroup. A thread joins by writing its number to `tasks`, and returns to the root group
//! when the group is removed, so removing the group undoes everything. The kernel reports errors of
//! a schemata line in `info/last_cmd_status`. <https://docs.kernel.org/filesystems/resctrl.html>

use std::collections::BTreeMap;
use std::io::ErrorKind;

use pinfold_host::{Host, HostError, HostMut, paths};
use pinfold_model::Finding;
use pinfold_model::tunables::ResourceShare;

use super::group::PREFIX;
use super::{ChangeOutcome, ReadBack, Reverted};

const SUBJECT: &str = "resctrl";

/// Shares by resource and domain ID.
type Shares = BTreeMap<(String, u32), u64>;

/// True for a group or a file in `resctrl`.
pub(crate) fn is_inside(path: &str) -> bool {
    path.strip_prefix(&paths::resctrl_dir()).is_some_and(|rest| rest.starts_with('/'))
}

/// The shares that a file shows or a step writes; lines of other resources are skipped.
pub(crate) fn shares(text: &str) -> Shares {
    let mut found = Shares::new();
    for line in text.lines() {
        let Some((resource, domains)) = line.trim().split_once(':') else { continue };
        for domain in domains.split(';') {
            let share = ResourceShare::parse(&format!("{resource}:{domain}"));
            found.extend(share.map(|one| ((one.resource, one.domain), one.amount)));
        }
    }
    found
}

pub(super) fn make(host: &dyn HostMut, path: &str) -> Result<ChangeOutcome, HostError> {
    match host.make_dir(path) {
        Ok(()) => Ok(ChangeOutcome::Done(Vec::new())),
        Err(error) => explain_refusal(host, error),
    }
}

pub(super) fn apply(
    host: &dyn HostMut,
    path: &str,
    value: &[u8],
) -> Result<ChangeOutcome, HostError> {
    match host.write(path, value) {
        Ok(()) => Ok(ChangeOutcome::Done(Vec::new())),
        // ESRCH refers to the thread, any other error to the group.
        Err(error) if error.errno() == Some(ESRCH) => Ok(ChangeOutcome::Gone),
        Err(error) => explain_refusal(host, error),
    }
}

const ESRCH: i32 = 3;

/// Meaning of the kernel's errors here, each with a hint.
const ERROR_HINTS: [(ErrorKind, &str); 6] = [
    (
        ErrorKind::StorageFull,
        "all classes of service are in use: remove a group that is not needed, see num_closids",
    ),
    (
        ErrorKind::InvalidInput,
        "a cache's mask has no gaps and at least min_cbm_bits ways (info/L3); bandwidth is percent on Intel, eighths of a GB/s on AMD (info/MB)",
    ),
    (
        ErrorKind::ResourceBusy,
        "the monitoring IDs (RMIDs) of a removed group are still in use: try again later",
    ),
    (
        ErrorKind::NotFound,
        "the group does not exist: it was refused before, or another program removed it",
    ),
    (ErrorKind::PermissionDenied, "run it as root on the host, outside a container"),
    (ErrorKind::ReadOnlyFilesystem, "run it as root on the host, outside a container"),
];

fn explain_refusal(host: &dyn Host, error: HostError) -> Result<ChangeOutcome, HostError> {
    let HostError::File { source, .. } = &error else { return Err(error) };
    let kind = source.kind();
    let Some((_, hint)) = ERROR_HINTS.iter().find(|(known, _)| *known == kind) else {
        return Err(error);
    };
    let mut text = format!("{error}: {source}");
    // The kernel may give more details.
    let status = paths::resctrl_file(&paths::resctrl_dir(), "info/last_cmd_status");
    if let Ok(more) = host.read_text(&status)
        && more.trim() != "ok"
    {
        text.push_str(&format!(" ({})", more.trim()));
    }
    let finding = Finding::warning(SUBJECT, text).with_hint(*hint);
    Ok(ChangeOutcome::Refused { error, finding })
}

pub(super) fn verify(host: &dyn Host, path: &str, value: &[u8]) -> Result<ReadBack, HostError> {
    let found = host.read_text(path)?;
    let asked = String::from_utf8_lossy(value);
    if path.ends_with("/tasks") {
        let joined = found.lines().any(|line| line.trim() == asked.trim());
        return Ok(if joined { ReadBack::AsAsked } else { ReadBack::Gone });
    }
    let shown = shares(&found);
    for ((resource, domain), amount) in shares(&asked) {
        let got = shown.get(&(resource.clone(), domain)).copied();
        if got == Some(amount) {
            continue;
        }
        let share = |amount| ResourceShare { resource: resource.clone(), domain, amount };
        let wanted = share(amount);
        let Some(got) = got.map(share) else {
            return Ok(ReadBack::Other { wanted: wanted.to_string(), found: "nothing".to_owned() });
        };
        let text = format!("{path} is {got}, not the requested {wanted}");
        let hint = "bandwidth is given in steps (bandwidth_gran)";
        return Ok(ReadBack::Less(Finding::warning(SUBJECT, text).with_hint(hint)));
    }
    Ok(ReadBack::AsAsked)
}

pub(super) fn verify_group(host: &dyn Host, path: &str) -> ReadBack {
    if host.exists(&paths::resctrl_file(path, "schemata")) {
        return ReadBack::AsAsked;
    }
    let (wanted, found) = ("a group of shares".to_owned(), "none".to_owned());
    ReadBack::Other { wanted, found }
}

pub(super) fn revert(host: &dyn HostMut, path: &str) -> Result<Reverted, HostError> {
    let name = path.rsplit('/').next().unwrap_or(path);
    if !name.starts_with(PREFIX) {
        let why = "the journal lists a group for removal that Pinfold did not create".to_owned();
        return Err(HostError::Untrusted { path: path.to_owned(), why });
    }
    if !host.exists(path) {
        return Ok(Reverted::Nothing);
    }
    match host.remove_dir(path) {
        Ok(()) => Ok(Reverted::Restored),
        Err(error) if error.is_gone() => Ok(Reverted::Nothing),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::{is_inside, shares};

    #[test]
    fn the_kernels_text_is_read_as_numbers() {
        // Documentation/filesystems/resctrl.rst.
        let text = "    MB:0= 50;1=100\n L3CODE:0=fffff;1=000ff\n    L3:0=0x7\nPMG:0=1\n";
        let found: Vec<String> = shares(text)
            .into_iter()
            .map(|((resource, domain), amount)| format!("{resource}:{domain}={amount}"))
            .collect();
        let expected = ["L3:0=7", "L3CODE:0=1048575", "L3CODE:1=255", "MB:0=50", "MB:1=100"];
        assert_eq!(found, expected);
        assert!(is_inside("/sys/fs/resctrl/pinfold-1-2/tasks"));
        assert!(!is_inside("/sys/fs/resctrl") && !is_inside("/sys/fs/resctrlx/a"));
    }
}
