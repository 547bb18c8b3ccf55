//! Pages of a process that are on other nodes than planned: `migrate_pages(2)`.
//!
//! The kernel moves what it can. Pages that a device holds, or that other processes map too, stay.
//! The former node of a moved page is not recorded, so undo cannot move it back and only reports
//! this.

use pinfold_host::{Host, HostError, HostMut, numa_maps, paths};
use pinfold_model::{Finding, NodeId, TaskId};

use super::{ChangeOutcome, ReadBack, Reverted};
use crate::page_tables;
use crate::tasks::{self, LiveThreads};

const SUBJECT: &str = "memory";

pub(super) fn apply(
    host: &dyn HostMut,
    seen: &LiveThreads,
    task: TaskId,
    from: &[NodeId],
    to: &[NodeId],
) -> Result<ChangeOutcome, HostError> {
    if !seen.is_alive(host, task)? {
        return Ok(ChangeOutcome::Gone);
    }
    let Some(before) = kib_on(host, task, from)? else { return Ok(ChangeOutcome::Gone) };
    let Some(refused) = tasks::ignore_gone(host.migrate_pages(task.tid, from, to))? else {
        return Ok(ChangeOutcome::Gone);
    };
    let Some(left) = kib_on(host, task, from)? else { return Ok(ChangeOutcome::Gone) };
    let moved = before.saturating_sub(left);
    let text = format!("{moved} KiB of {task} were moved, {left} KiB stay where they are");
    let finding = match left {
        0 => Finding::note(SUBJECT, text),
        _ => Finding::warning(SUBJECT, format!("{text} ({refused} pages were refused)")).with_hint(
            "pages that a device has pinned or that other processes share cannot be moved: bind \
             the memory when the machine starts",
        ),
    };
    let tables = page_tables::page_tables_finding(host, task.tid)?;
    Ok(ChangeOutcome::Done([finding].into_iter().chain(tables).collect()))
}

pub(super) fn verify(host: &dyn Host, task: TaskId) -> Result<ReadBack, HostError> {
    // The distribution of the pages was already reported; only the process may be gone.
    Ok(if tasks::is_alive(host, task)? { ReadBack::AsAsked } else { ReadBack::Gone })
}

pub(super) fn revert(
    host: &dyn Host,
    task: TaskId,
    kib: &[(NodeId, u64)],
) -> Result<Reverted, HostError> {
    if !tasks::is_alive(host, task)? {
        return Ok(Reverted::Gone);
    }
    let was: Vec<String> =
        kib.iter().map(|(node, kib)| format!("{kib} KiB on node {node}")).collect();
    let text = format!("pages of {task} are left where they are now; before, {}", was.join(", "));
    Ok(Reverted::Near(Finding::note(SUBJECT, text)))
}

/// Memory of a process on these nodes; `None` if it has ended.
fn kib_on(host: &dyn Host, task: TaskId, nodes: &[NodeId]) -> Result<Option<u64>, HostError> {
    let path = paths::process_numa_maps(task.tid);
    let Some(text) = tasks::ignore_gone(host.read_text(&path))? else { return Ok(None) };
    let kib = numa_maps::parse(&text).map_err(|error| error.at(&path))?;
    Ok(Some(nodes.iter().filter_map(|node| kib.get(node)).sum()))
}
