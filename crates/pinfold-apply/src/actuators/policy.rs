//! A thread's scheduling policy: `sched_setattr(2)`.
//!
//! Moving a task between cpusets does not change its policy; only a separate step does. A new
//! thread inherits the policy of its creator.

use pinfold_host::{Host, HostError, HostMut, paths};
use pinfold_model::{Finding, Policy, TaskId, Tid};

use super::undo_context::Former;
use super::{ChangeOutcome, ReadBack, Reverted, UndoContext};
use crate::tasks::{self, LiveThreads};

pub(super) fn apply(
    host: &dyn HostMut,
    seen: &LiveThreads,
    task: TaskId,
    policy: Policy,
) -> Result<ChangeOutcome, HostError> {
    if !seen.is_alive(host, task)? {
        return Ok(ChangeOutcome::Gone);
    }
    let answer = tasks::ignore_gone(host.set_policy(task.tid, policy))?;
    Ok(answer.map_or(ChangeOutcome::Gone, |()| ChangeOutcome::Done(Vec::new())))
}

pub(super) fn verify(host: &dyn Host, task: TaskId, policy: Policy) -> Result<ReadBack, HostError> {
    Ok(match tasks::ignore_gone(host.policy(task.tid))? {
        None => ReadBack::Gone,
        Some(found) if found == policy => ReadBack::AsAsked,
        Some(found) => {
            let is_slice = matches!(policy, Policy::Slice { .. });
            let ignored = if is_slice { "; kernels before Linux 6.12 ignore slices" } else { "" };
            ReadBack::Other { wanted: policy.to_string(), found: format!("{found}{ignored}") }
        }
    })
}

pub(super) fn revert(
    past: &UndoContext<'_>,
    task: TaskId,
    former: Former,
) -> Result<Reverted, HostError> {
    let Some(now) = state(past, task)? else { return Ok(Reverted::Gone) };
    if now == former.policy {
        // Its owner may have restored the policy, beside which the nice value of the plan stays.
        let Some(nice) = former.nice else { return Ok(Reverted::Nothing) };
        let Some(stat) = tasks::stat(past.host, task.tid)? else { return Ok(Reverted::Gone) };
        let is_other = stat.nice != nice && past.wrote_nice(task, stat.nice);
        return if is_other { set(past, task, former) } else { Ok(Reverted::Nothing) };
    }
    if !past.wrote_policy(task, now) && !past.has_inherited_policy(task, now) {
        return Ok(Reverted::Changed(report_change(task, now, &former.to_string())));
    }
    set(past, task, former)
}

/// Reports a moved task whose policy another program changed meanwhile.
pub(super) fn check_moved(
    past: &UndoContext<'_>,
    task: TaskId,
    original: Policy,
) -> Result<Reverted, HostError> {
    Ok(match state(past, task)? {
        None => Reverted::Gone,
        // A separate step restores it.
        Some(now) if now == original || past.wrote_policy(task, now) => Reverted::Nothing,
        Some(now) => Reverted::Changed(report_change(task, now, &original.to_string())),
    })
}

/// Releases a thread that inherited the policy of a placed one.
pub(super) fn release_inherited_policy(
    past: &UndoContext<'_>,
    task: TaskId,
    main: Option<Tid>,
) -> Result<Reverted, HostError> {
    if past.has_policy_of(task) {
        return Ok(Reverted::Nothing);
    }
    let Some(now) = state(past, task)? else { return Ok(Reverted::Gone) };
    let Some(former) = past.inherited_policy(main, now).filter(|former| former.policy != now)
    else {
        return Ok(Reverted::Nothing);
    };
    if let Some(main) = main
        && tasks::ignore_gone(past.host.policy(main))? == Some(now)
    {
        return Ok(Reverted::Nothing);
    }
    set(past, task, former)
}

fn state(past: &UndoContext<'_>, task: TaskId) -> Result<Option<Policy>, HostError> {
    if !tasks::is_alive(past.host, task)? {
        return Ok(None);
    }
    tasks::ignore_gone(past.host.policy(task.tid))
}

fn set(past: &UndoContext<'_>, task: TaskId, former: Former) -> Result<Reverted, HostError> {
    let Former { policy, nice } = former;
    // The policy after that keeps the nice value, and no slice of the plan.
    if let Some(nice) = nice
        && tasks::ignore_gone(past.host.set_policy(task.tid, Policy::Other { nice }))?.is_none()
    {
        return Ok(Reverted::Gone);
    }
    if tasks::ignore_gone(past.host.set_policy(task.tid, policy))?.is_none() {
        return Ok(Reverted::Gone);
    }
    match tasks::ignore_gone(past.host.policy(task.tid))? {
        None => Ok(Reverted::Gone),
        Some(now) if now == policy => Ok(Reverted::Restored),
        Some(now) => Err(HostError::Unexpected {
            path: paths::process_stat(task.tid),
            why: format!("the policy is {now} after it was restored to {policy}"),
        }),
    }
}

fn report_change(task: TaskId, now: Policy, original: &str) -> Finding {
    Finding::warning(
        "scheduling policy",
        format!(
            "the policy of {task} is {now}, which Pinfold did not set; its original {original} was \
             not restored"
        ),
    )
}
