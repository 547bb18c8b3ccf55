//! `cpuset.cpus.partition` of a v2 group: CPUs for its exclusive use.
//!
//! ```text
//! isolated
//! isolated invalid (Parent is not a partition root)
//! ```
//! The kernel accepts the word without an error and shows a fault only when the file is read; the
//! reason may be absent. An invalid partition excludes no tasks, so it is made a plain member again
//! and reported with the hint. Reasons: `perr_strings` in `kernel/cgroup/cpuset.c`.

use pinfold_host::{Host, HostError, HostMut};
use pinfold_model::Finding;

use super::{ChangeOutcome, ReadBack, Reverted, UndoContext, write_error};
use crate::tasks;

const MEMBER: &[u8] = b"member";
const SUBJECT: &str = "cgroup partition";

/// The kernel's reasons, each with a hint.
const PARTITION_HINTS: [(&str, &str); 9] = [
    (
        "Parent is not a partition root",
        "Linux 6.7 and newer allow a partition in any group; on older kernels start the process in \
         the root group",
    ),
    ("Parent is an invalid partition root", "fix the parent partition first"),
    (
        "Cpu list in cpuset.cpus not exclusive",
        "a sibling group lists these CPUs in its cpuset.cpus: give it others, or plan around it \
         with --avoid",
    ),
    (
        "Invalid cpu list in cpuset.cpus.exclusive",
        "another group has these CPUs in its cpuset.cpus.exclusive: plan around it with --avoid",
    ),
    (
        "Parent unable to distribute cpu downstream",
        "the parent group has tasks and would have no CPU: leave it one",
    ),
    ("No cpu available due to hotplug", "its CPUs are offline: bring them online, or plan again"),
    (
        "cpuset.cpus and cpuset.cpus.exclusive are empty",
        "another program emptied them: apply again",
    ),
    (
        "partition config conflicts with housekeeping setup",
        "CPUs of the boot parameter isolcpus may only be in isolated partitions: partition=isolated",
    ),
    ("Enable partition not permitted", "run it as root on the host, outside a container"),
];

pub(super) fn apply(
    host: &dyn HostMut,
    path: &str,
    value: &[u8],
) -> Result<ChangeOutcome, HostError> {
    if let Err(error) = host.write(path, value) {
        return match write_error::finding(&error) {
            Some(finding) => Ok(ChangeOutcome::Refused { error, finding }),
            None => Err(error),
        };
    }
    let shown = host.read(path)?;
    let Some(finding) = fault(path, &shown) else { return Ok(ChangeOutcome::Done(Vec::new())) };
    host.write(path, MEMBER)?;
    let error = HostError::Unexpected { path: path.to_owned(), why: finding.text.clone() };
    Ok(ChangeOutcome::Refused { error, finding })
}

pub(super) fn verify(host: &dyn Host, path: &str, value: &[u8]) -> Result<ReadBack, HostError> {
    let shown = host.read(path)?;
    Ok(if shown.trim_ascii() == value.trim_ascii() {
        ReadBack::AsAsked
    } else {
        ReadBack::Other { wanted: text(value), found: text(&shown) }
    })
}

pub(super) fn revert(
    past: &UndoContext<'_>,
    path: &str,
    original: &[u8],
) -> Result<Reverted, HostError> {
    let Some(now) = tasks::ignore_gone(past.host.read(path))? else { return Ok(Reverted::Gone) };
    if kind(&now) == kind(original) {
        return Ok(Reverted::Nothing);
    }
    // A partition of Pinfold's stays Pinfold's after it became invalid.
    if !past.written_values(path).any(|value| kind(value) == kind(&now)) {
        let text = format!(
            "{path} is {:?}, which Pinfold did not write; the original {:?} was not restored",
            text(&now),
            text(original)
        );
        return Ok(Reverted::Changed(Finding::warning(SUBJECT, text)));
    }
    past.host.write(path, kind(original))?;
    Ok(Reverted::Restored)
}

/// The fault of a partition, derived from its file; `None` for a valid one and a member.
pub(crate) fn fault(path: &str, shown: &[u8]) -> Option<Finding> {
    let shown = text(shown);
    let (_, reason) = shown.split_once(" invalid")?;
    let known = PARTITION_HINTS.iter().find(|(known, _)| reason.contains(known));
    let hint = known.map_or(
        "the kernel gives no reason: see cpuset.cpus.effective of the parent groups",
        |(_, hint)| hint,
    );
    let text = format!(
        "{path} reads {shown:?}: the partition is not active, so it excludes no other tasks"
    );
    Some(Finding::warning(SUBJECT, text).with_hint(hint))
}

/// The first word: the requested kind, valid or not.
fn kind(bytes: &[u8]) -> &[u8] {
    bytes.split(u8::is_ascii_whitespace).next().unwrap_or_default()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::fault;

    #[test]
    fn each_reason_has_its_way_out() {
        assert_eq!(hint("member\n"), None);
        assert_eq!(hint("isolated\n"), None);
        check("isolated invalid (Parent is not a partition root)\n", "6.7");
        check("root invalid (Cpu list in cpuset.cpus not exclusive)\n", "--avoid");
        check("isolated invalid (No cpu available due to hotplug)\n", "offline");
        check("isolated invalid\n", "cpuset.cpus.effective");
    }

    fn hint(shown: &str) -> Option<Option<String>> {
        fault("/g/cpuset.cpus.partition", shown.as_bytes()).map(|f| f.hint)
    }

    fn check(shown: &str, part: &str) {
        assert!(hint(shown).flatten().is_some_and(|hint| hint.contains(part)), "{shown}");
    }
}
