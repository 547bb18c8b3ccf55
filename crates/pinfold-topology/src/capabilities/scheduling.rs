//! Scheduler features: affinity, real-time policies, statistics.
//! <https://docs.kernel.org/scheduler/index.html>

use pinfold_host::{HostError, paths};
use pinfold_model::Tid;

use super::{Capability, Context, LinuxCapability};
use crate::reader::describe_error;

/// Setting affinity masks: always for own children, with permission for other processes.
pub(super) fn affinity(context: &Context<'_>) -> Capability {
    const NAME: &str = "affinity";
    let capability = if !context.host.is_live() {
        not_live(NAME)
    } else {
        match context.host.affinity(Tid(0)) {
            Err(error) => Capability::no(NAME, describe_error(&error))
                .hint("a seccomp filter forbids the call: run outside the sandbox"),
            Ok(mask) if mask.is_empty() => {
                Capability::no(NAME, "the affinity mask of this process is empty")
            }
            Ok(mask) if mask.len() == 1 => Capability::partly(
                NAME,
                format!("this process is bound to CPU {mask} alone, so there is no choice"),
            )
            .hint("start it without taskset, or in a larger cpuset"),
            Ok(mask) if context.has(LinuxCapability::SysNice) => Capability::yes(
                NAME,
                format!("any thread can be pinned; mask of this process: {mask}"),
            ),
            Ok(mask) => Capability::yes(
                NAME,
                format!("threads of this user can be pinned; mask of this process: {mask}"),
            ),
        }
    };
    capability.require()
}

/// The kernel's statistics of how long each thread waited for a CPU.
pub(super) fn run_delay(context: &Context<'_>) -> Capability {
    const NAME: &str = "run delay";
    let capability = match context.text(&paths::own_schedstat()) {
        Err(error) => Capability::unread(NAME, &error),
        Ok(None) if !context.host.is_live() => not_live(NAME),
        Ok(None) => Capability::no(NAME, "the kernel has no schedstat for tasks")
            .hint("use a kernel with CONFIG_SCHED_INFO (every distribution's has it)"),
        Ok(Some(text)) if text.split_ascii_whitespace().all(|number| number == "0") => {
            Capability::no(NAME, "the kernel's schedstat is always zero")
                .hint("use a kernel with CONFIG_SCHED_INFO, outside of user-mode kernels")
        }
        Ok(Some(_)) => Capability::yes(NAME, "schedstat counts run time, wait time and slices"),
    };
    capability.require()
}

/// `SCHED_FIFO`: permission, and real-time run time of this process's group.
pub(super) fn real_time(context: &Context<'_>) -> Capability {
    const NAME: &str = "real-time scheduling";
    let limit = match rtprio_limit(context) {
        Ok(limit) => limit,
        Err(error) => return Capability::unread(NAME, &error),
    };
    let right = match (context.has(LinuxCapability::SysNice), limit) {
        (true, _) => "CAP_SYS_NICE".to_owned(),
        (false, Some(priority)) if priority > 0 => format!("RLIMIT_RTPRIO of {priority}"),
        (false, Some(_) | None) => {
            return Capability::no(NAME, "neither CAP_SYS_NICE nor a real-time priority limit")
                .hint("run as root, or set LimitRTPRIO= (systemd) or rtprio (limits.conf)");
        }
    };
    let Ok(groups) = &context.groups else {
        return Capability::yes(NAME, format!("allowed by {right}"));
    };
    let Some(directory) = groups.own("cpu").and_then(|own| own.directory) else {
        return Capability::yes(NAME, format!("allowed by {right}"));
    };
    let path = paths::cpu_rt_runtime(&directory);
    match context.text(&path) {
        Err(error) => Capability::unread(NAME, &error),
        Ok(None) => Capability::yes(NAME, format!("allowed by {right}")),
        Ok(Some(runtime)) if runtime == "0" => Capability::no(
            NAME,
            format!(
                "allowed by {right}, but the cpu cgroup of this process has no real-time \
                     runtime (RT_GROUP_SCHED)"
            ),
        )
        .hint(format!("give it some, from the root group down: `echo 950000 > {path}`")),
        Ok(Some(runtime)) => Capability::yes(
            NAME,
            format!(
                "allowed by {right}; the cpu cgroup of this process has {runtime} µs per \
                     period (RT_GROUP_SCHED), new groups have none"
            ),
        ),
    }
}

/// The soft limit of `Max realtime priority`; `None` if the file does not exist.
fn rtprio_limit(context: &Context<'_>) -> Result<Option<u64>, HostError> {
    let limits = context.text(&paths::own_limits())?;
    Ok(limits.as_deref().and_then(|limits| {
        let rest = limits.lines().find_map(|line| line.strip_prefix("Max realtime priority"))?;
        let soft = rest.split_ascii_whitespace().next()?;
        if soft == "unlimited" { Some(99) } else { soft.parse().ok() }
    }))
}

/// Real-time throttling, which protects against real-time tasks that never sleep.
pub(super) fn throttle(context: &Context<'_>) -> Capability {
    const NAME: &str = "real-time throttle";
    let (runtime, period) =
        match (read(context, "sched_rt_runtime_us"), read(context, "sched_rt_period_us")) {
            (Ok(Some(runtime)), Ok(Some(period))) => (runtime, period),
            (Err(error), _) | (_, Err(error)) => return Capability::unread(NAME, &error),
            (Ok(None), _) | (_, Ok(None)) => {
                return Capability::no(NAME, "the kernel has no sched_rt_runtime_us");
            }
        };
    match (runtime.parse::<i64>(), period.parse::<i64>()) {
        (Ok(-1), _) => Capability::partly(
            NAME,
            "switched off: a spinning real-time thread never gives up its CPU",
        )
        .hint("`sysctl kernel.sched_rt_runtime_us=950000` restores the safety net"),
        (Ok(0), _) => Capability::no(NAME, "real-time tasks get no runtime")
            .hint("`sysctl kernel.sched_rt_runtime_us=950000`"),
        (Ok(runtime), Ok(period)) if period > 0 => Capability::yes(
            NAME,
            format!(
                "real-time tasks may use {} % of each {} ms; a spinning one pauses for the rest",
                runtime.saturating_mul(100) / period,
                period / 1000
            ),
        ),
        (Ok(_) | Err(_), _) => Capability::partly(
            NAME,
            format!(
                "cannot parse sched_rt_runtime_us / sched_rt_period_us: {runtime:?} / {period:?}"
            ),
        ),
    }
}

fn read(context: &Context<'_>, name: &str) -> Result<Option<String>, HostError> {
    context.text(&paths::sysctl_kernel(name))
}

/// Wake-up and migration statistics, which are off by default because of their overhead.
pub(super) fn detailed_statistics(context: &Context<'_>) -> Capability {
    const NAME: &str = "schedstats";
    match context.text(&paths::sysctl_kernel("sched_schedstats")) {
        Err(error) => Capability::unread(NAME, &error),
        Ok(None) => Capability::no(
            NAME,
            "the kernel is built without CONFIG_SCHEDSTATS: no longest waits per thread",
        )
        .hint("run delay and migrations work without it"),
        Ok(Some(value)) if value == "0" => {
            Capability::partly(NAME, "built in, but switched off (its default)")
                .hint("`sysctl kernel.sched_schedstats=1`, for longest waits per thread")
        }
        Ok(Some(_)) => Capability::yes(NAME, "longest waits per thread are counted"),
    }
}

/// Result for a question that only a running kernel can answer.
pub(super) fn not_live(name: &'static str) -> Capability {
    Capability::partly(name, "not known: this is a captured machine")
}
