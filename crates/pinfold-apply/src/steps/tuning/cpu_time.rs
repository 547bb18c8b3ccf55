//! Weight and quota of the machine's own group in the cpu controller.
//!
//! Version 2 has `cpu.weight` (default 100) and `cpu.max`, version 1 `cpu.shares` (default 1,024)
//! and `cpu.cfs_period_us` with `cpu.cfs_quota_us`.
//! <https://docs.kernel.org/admin-guide/cgroup-v2.html#cpu>,
//! <https://docs.kernel.org/scheduler/sched-bwc.html>

use pinfold_host::mountinfo::Version;
use pinfold_host::{paths, proc_cgroup};
use pinfold_model::tunables::{cpu_quota, cpu_weight};
use pinfold_model::{Finding, Tid};

use crate::error::ApplyError;
use crate::steps::step_builder::StepBuilder;
use crate::tasks;

const CONTROLLER: &str = "cpu";
const SUBJECT: &str = "cgroup cpu";
const REASON: &str = "requested by the plan";
/// The v1 value that corresponds to a v2 weight of 100.
const USUAL_SHARES: u64 = 1024;

pub(super) fn set(builder: &mut StepBuilder<'_>) -> Result<(), ApplyError> {
    let tuning = &builder.plan.tuning;
    let (weight, quota) = (tuning.number(&cpu_weight::TUNABLE), cpu_quota::quota(tuning));
    if weight.is_none() && quota.is_none() {
        return Ok(());
    }
    if !builder.target.kept.is_empty() {
        let text = "libvirt manages the weight and the quota of its domains";
        let hint = "set them with virsh schedinfo";
        return builder.lacks(Finding::warning(SUBJECT, text).with_hint(hint));
    }
    let Some((version, group)) = own_group(builder)? else {
        let text = "the process has no group of its own with the cpu controller";
        let hint = "start it in one, such as systemd-run --scope -p CPUWeight=100";
        return builder.lacks(Finding::warning(SUBJECT, text).with_hint(hint));
    };
    let mut tunables = Vec::new();
    match version {
        Version::V2 => {
            tunables.extend(weight.map(|weight| (paths::cpu_weight(&group), weight.to_string())));
            tunables.extend(quota.map(|one| {
                (paths::cpu_max(&group), format!("{} {}", one.quota_us, one.period_us))
            }));
        }
        Version::V1 => {
            let shares = weight.map(|weight| weight * USUAL_SHARES / 100);
            // The kernel's minimum is 2.
            tunables.extend(
                shares.map(|shares| (paths::cpu_shares(&group), shares.max(2).to_string())),
            );
            if let Some(one) = quota {
                tunables.push((paths::cpu_cfs_period(&group), one.period_us.to_string()));
                tunables.push((paths::cpu_cfs_quota(&group), one.quota_us.to_string()));
            }
        }
    }
    for (path, value) in tunables {
        builder.set_tunable(SUBJECT, path, value, REASON)?;
    }
    Ok(())
}

/// The machine's group, if it contains no other tasks.
fn own_group(builder: &StepBuilder<'_>) -> Result<Option<(Version, String)>, ApplyError> {
    let Some(mount) = builder.state.mount(CONTROLLER)? else { return Ok(None) };
    let path = paths::process_cgroup(builder.vm.tid);
    let Some(text) = builder.state.text(&path)? else { return Ok(None) };
    let memberships = proc_cgroup::parse(&text).map_err(|error| error.at(&path))?;
    let below = match mount.version {
        Version::V1 => proc_cgroup::v1_path(&memberships, CONTROLLER),
        Version::V2 => proc_cgroup::v2_path(&memberships),
    };
    let Some(group) = below.filter(|path| *path != "/").and_then(|path| mount.group_dir(path))
    else {
        return Ok(None);
    };
    let file = match mount.version {
        Version::V1 => paths::cpu_shares(&group),
        Version::V2 => paths::cpu_weight(&group),
    };
    Ok((builder.state.exists(&file) && is_alone(builder, &group)?)
        .then_some((mount.version, group)))
}

fn is_alone(builder: &StepBuilder<'_>, group: &str) -> Result<bool, ApplyError> {
    let members = builder.state.text(&paths::cgroup_procs(group))?;
    let members: Vec<Tid> = members.map_or_else(Vec::new, |text| tasks::numbers(text.lines()));
    Ok(members == [builder.vm.tid])
}
