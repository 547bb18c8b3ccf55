//! CPUs that the plan takes offline: single ones, or with SMT off all but the first of each core.
//! Also CPUs that its threads need and that are offline; these are brought online.
//!
//! Taking a CPU offline affects more than its tasks. The kernel permanently gives all CPUs to a
//! task or an interrupt that may run nowhere else, and cgroup v1 permanently removes the CPU from
//! every group's list. If such tasks or groups exist, the CPU stays online. Interrupts are moved
//! before, as separate steps. A CPU of the machine's threads, or the last one of the host, is
//! refused.

use pinfold_host::mountinfo::Version;
use pinfold_host::paths;
use pinfold_model::text::{cpus_text, select_verb};
use pinfold_model::tunables::{offline, smt};
use pinfold_model::{Command, CpuSet, Finding, PuId};

use crate::cpusets;
use crate::error::{ApplyError, Refusal};
use crate::steps::step_builder::StepBuilder;

const SUBJECT: &str = "CPUs offline";
const REASON: &str = "requested by the plan";
/// Maximum number of tasks that a finding names.
const NAMED: usize = 5;

/// Brings the CPUs of the machine's threads online before a thread is to run there: a compute
/// service may have taken unused CPUs offline. Undo takes them offline last.
pub(in crate::steps) fn bring_cpus_online(builder: &mut StepBuilder<'_>) -> Result<(), ApplyError> {
    let Some(online) = builder.state.cpu_list(&paths::cpu_online())? else {
        return Ok(());
    };
    for pu in builder.vnode.pus().difference(&online).iter() {
        builder.set_tunable(
            "cpu online",
            paths::cpu_is_online(pu),
            "1".to_owned(),
            "a thread runs there",
        )?;
    }
    Ok(())
}

pub(in crate::steps) fn set(builder: &mut StepBuilder<'_>) -> Result<(), ApplyError> {
    let tuning = &builder.plan.tuning;
    if !tuning.has(&smt::TUNABLE) && !tuning.has(&offline::TUNABLE) {
        return Ok(());
    }
    let online = builder.state.required_cpu_list(&paths::cpu_online())?;
    let smt = match smt_control(builder)? {
        Some("off") if !all_online(builder, &online)? => None,
        word => word,
    };
    let mut going = match smt {
        Some("off") => siblings(builder, &online)?,
        Some(_) | None => CpuSet::new(),
    };
    let single = builder.plan.tuning.cpus(&offline::TUNABLE).cloned().unwrap_or_default();
    let single = single.intersection(&online);
    going.add(&single);
    if !going.is_empty() {
        check(builder, &online, &going)?;
        if !can_take_offline(builder, &going)? {
            return Ok(());
        }
        interrupts(builder, &going)?;
    }
    if let Some(word) = smt {
        builder.set_tunable("SMT", paths::smt_control(), word.to_owned(), REASON)?;
    }
    for pu in single.iter() {
        builder.set_tunable(SUBJECT, paths::cpu_is_online(pu), "0".to_owned(), REASON)?;
    }
    Ok(())
}

/// The word to write, if it differs from the present one and this machine has the switch.
fn smt_control(builder: &mut StepBuilder<'_>) -> Result<Option<&'static str>, ApplyError> {
    let Some(wanted) = builder.plan.tuning.switch(&smt::TUNABLE) else { return Ok(None) };
    let path = paths::smt_control();
    let shown = builder.state.text(&path)?.unwrap_or_default();
    let word = if wanted { "on" } else { "off" };
    match shown.trim() {
        "on" | "off" => Ok(Some(word).filter(|word| *word != shown.trim())),
        "notsupported" | "notimplemented" | "" if !wanted => Ok(None),
        other => {
            let shown = if other.is_empty() { "(no such file)" } else { other };
            let text = format!("SMT cannot be switched {word}: {path} reads {shown:?}");
            let hint = "forceoff comes from the boot parameter nosmt=force, notsupported from the firmware or the processor";
            builder.lacks(Finding::warning("SMT", text).with_hint(hint))?;
            Ok(None)
        }
    }
}

/// False, with a finding, if a CPU is offline. It may be the first thread of its core; SMT off
/// would then leave that core without a CPU.
fn all_online(builder: &mut StepBuilder<'_>, online: &CpuSet) -> Result<bool, ApplyError> {
    let present = builder.state.required_cpu_list(&paths::cpu_present())?;
    let absent = present.difference(online);
    if absent.is_empty() {
        return Ok(true);
    }
    let text = format!(
        "SMT stays on: with {} offline it is not known which thread is the first of its core",
        cpus_text(&absent)
    );
    let hint = "bring them online first, or take individual CPUs offline with offline=CPUS";
    builder.lacks(Finding::warning("SMT", text).with_hint(hint))?;
    Ok(false)
}

/// All CPUs of each core except the first.
fn siblings(builder: &StepBuilder<'_>, online: &CpuSet) -> Result<CpuSet, ApplyError> {
    let mut others = CpuSet::new();
    for pu in online.iter() {
        let path = paths::cpu_file(pu, "topology/thread_siblings_list");
        let core = builder.state.required_cpu_list(&path)?;
        if core.iter().next() != Some(pu) {
            others.insert(pu);
        }
    }
    Ok(others)
}

/// Refuses to take CPUs that the machine or the host needs.
fn check(builder: &StepBuilder<'_>, online: &CpuSet, going: &CpuSet) -> Result<(), Refusal> {
    let used = builder.vnode.pus().intersection(going);
    if !used.is_empty() {
        return Err(Refusal::OfflineInUse { pus: used });
    }
    if builder.plan.housekeeping.intersection(online).is_subset(going) {
        return Err(Refusal::NoHousekeeping);
    }
    Ok(())
}

/// False, with a finding, if masks or groups would be changed permanently.
fn can_take_offline(builder: &mut StepBuilder<'_>, going: &CpuSet) -> Result<bool, ApplyError> {
    if let Some(cpusets) = builder.state.cpusets()?.filter(|one| one.version() == Version::V1)
        && !cpusets.children(builder.state, cpusets.root())?.is_empty()
    {
        let text =
            format!("cgroup v1 would permanently remove {} from its groups", cpus_text(going));
        let hint = "boot with nosmt or maxcpus=, or with cgroup v2";
        builder.lacks(Finding::warning(SUBJECT, text).with_hint(hint))?;
        return Ok(false);
    }
    let mut bound = Vec::new();
    for pid in builder.state.processes()? {
        for tid in builder.state.threads_of(pid)? {
            let Some(mask) = builder.state.mask(tid)? else { continue };
            if mask.is_empty() || !mask.is_subset(going) {
                continue;
            }
            let Some(stat) = builder.state.stat(tid)? else { continue };
            // A task that this plan moves has its mask in the journal; undo restores it.
            if !stat.is_unmovable() && !builder.moves(stat.task()) {
                bound.push(format!("{} ({})", tid, stat.comm));
            }
        }
    }
    if bound.is_empty() {
        return Ok(true);
    }
    let more = bound.len().saturating_sub(NAMED);
    bound.truncate(NAMED);
    let and = if more > 0 { format!(" and {more} more") } else { String::new() };
    let text = format!(
        "{} {} online, because tasks that may run only there would lose their masks: {}{and}",
        cpus_text(going),
        select_verb(going.len(), "stays", "stay"),
        bound.join(", ")
    );
    let hint = format!(
        "they may belong to another placement (`{}` shows it): give them other CPUs",
        Command::new("status")
    );
    builder.lacks(Finding::warning(SUBJECT, text).with_hint(hint))?;
    Ok(false)
}

/// Moves interrupts that have no other CPU to the host's CPUs first, so that undo knows their
/// original CPUs.
fn interrupts(builder: &mut StepBuilder<'_>, going: &CpuSet) -> Result<(), ApplyError> {
    let goal = builder.plan.housekeeping.difference(going);
    let listed = builder.state.names(&paths::irqs_dir())?;
    for number in listed.iter().filter_map(|name| name.parse::<u32>().ok()) {
        let path = paths::irq_file(number, "smp_affinity_list");
        let Some(bytes) = builder.state.file(&path)? else { continue };
        let set = cpusets::parse(&path, &bytes)?;
        if !set.is_empty() && set.is_subset(going) {
            let reason = "its CPU goes offline";
            builder.set_tunable("IRQ affinity", path, goal.to_string(), reason)?;
        }
    }
    Ok(())
}

/// CPUs of the plan that are offline now, with the threads that were to run there.
pub(crate) fn missing(online: &CpuSet, plan: &pinfold_model::Plan) -> Vec<Finding> {
    let planned = plan.threads().map(|(_, thread)| &thread.pus).collect::<CpuSet>();
    planned.difference(online).iter().map(|pu| missing_pu(plan, pu)).collect()
}

fn missing_pu(plan: &pinfold_model::Plan, pu: PuId) -> Finding {
    let there = plan.threads().filter(|(_, thread)| thread.pus.contains(pu));
    let roles: Vec<String> = there.map(|(_, thread)| thread.role.to_string()).collect();
    let text = format!("CPU {pu} is offline: {} cannot run there", roles.join(", "));
    let hint = format!("`echo 1 > {}`, or undo and plan again", paths::cpu_is_online(pu));
    Finding::warning(SUBJECT, text).with_hint(hint)
}
