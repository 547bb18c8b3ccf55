//! Shares of caches and memory bandwidth: a group in `resctrl` with the machine's threads.
//!
//! Threads that are created later start in their creator's group. Only one program may manage a
//! thread: a thread that another one (libvirt's `<cachetune>`) has put into a group stays there.

use std::collections::{BTreeMap, BTreeSet};

use pinfold_host::paths;
use pinfold_model::tunables::resctrl::{self, shares};
use pinfold_model::{Change, Finding, Tid, Undo};

use crate::actuators;
use crate::error::ApplyError;
use crate::steps::step_builder::StepBuilder;
use crate::tasks;

const SUBJECT: &str = "resctrl";
const REASON: &str = "requested by the plan";

pub(super) fn set(builder: &mut StepBuilder<'_>) -> Result<(), ApplyError> {
    if !builder.plan.tuning.has(&resctrl::TUNABLE) {
        return Ok(());
    }
    let root = paths::resctrl_dir();
    let schemata = builder.state.text(&file(&root, "schemata"))?;
    let Some(schemata) = schemata else {
        let text = "it is not mounted, or the CPU does not support cache and bandwidth allocation";
        let hint = format!(
            "mount it: `mount -t resctrl resctrl {root}`; `pinfold doctor` shows whether the CPU \
             supports it"
        );
        return builder.lacks(Finding::warning(SUBJECT, text).with_hint(hint));
    };
    let known = actuators::shares(&schemata);
    for share in shares(&builder.plan.tuning) {
        if known.contains_key(&(share.resource.clone(), share.domain)) {
            continue;
        }
        let names: BTreeSet<String> =
            known.keys().map(|(resource, domain)| format!("{resource}:{domain}")).collect();
        let names = names.into_iter().collect::<Vec<_>>().join(", ");
        let text = format!("this host has no {}:{}", share.resource, share.domain);
        let hint = format!("it has {names}; {} shows them", file(&root, "schemata"));
        return builder.lacks(Finding::warning(SUBJECT, text).with_hint(hint));
    }
    if !builder.state.is_writable() {
        let text = format!("only root can create groups in {root}");
        return builder.lacks(Finding::warning(SUBJECT, text).with_hint("run it as root"));
    }
    let group = file(&root, &builder.name);
    let elsewhere = members(builder, &root, &group)?;
    if let Some((tid, other)) = elsewhere.first() {
        let text = format!(
            "thread {tid} is in {other}, which is another program's (libvirt's cachetune?)"
        );
        let hint = "remove it there, or leave the shares to the program that created that group";
        return builder.lacks(Finding::warning(SUBJECT, text).with_hint(hint));
    }
    group_steps(builder, &group)
}

fn group_steps(builder: &mut StepBuilder<'_>, group: &str) -> Result<(), ApplyError> {
    builder.needs(group);
    fn undo(group: &str) -> Undo {
        Undo::RemoveGroup { path: group.to_owned() }
    }
    if !builder.state.exists(group) {
        builder.step(Change::MakeGroup { path: group.to_owned() }, undo(group), REASON);
    }
    let mut lines: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for share in shares(&builder.plan.tuning) {
        let text = share.to_string();
        let value = text.split_once(':').map_or(text.as_str(), |(_, value)| value).to_owned();
        lines.entry(&share.resource).or_default().push(value);
    }
    let text: String = lines
        .into_iter()
        .map(|(resource, domains)| format!("{resource}:{}\n", domains.join(";")))
        .collect();
    let path = file(group, "schemata");
    let now = builder.state.text(&path)?.unwrap_or_default();
    let (asked, shown) = (actuators::shares(&text), actuators::shares(&now));
    if asked.iter().any(|(key, amount)| shown.get(key) != Some(amount)) {
        builder.step(Change::WriteFile { path, value: text.into_bytes() }, undo(group), REASON);
    }
    let path = file(group, "tasks");
    let inside = builder.state.text(&path)?.unwrap_or_default();
    let inside = tasks::numbers(inside.lines());
    let missing: Vec<Tid> =
        builder.vm_tids.iter().copied().filter(|tid| !inside.contains(tid)).collect();
    for tid in missing {
        let value = tid.to_string().into_bytes();
        builder.step(Change::WriteFile { path: path.clone(), value }, undo(group), REASON);
    }
    Ok(())
}

/// The machine's threads that are in a group other than Pinfold's or the root.
fn members(
    builder: &StepBuilder<'_>,
    root: &str,
    own: &str,
) -> Result<Vec<(Tid, String)>, ApplyError> {
    let mut found = Vec::new();
    for name in builder.state.names(root)? {
        let group = file(root, &name);
        if group == own || !builder.state.exists(&file(&group, "schemata")) {
            continue;
        }
        let text = builder.state.text(&file(&group, "tasks"))?;
        let tids = tasks::numbers(text.unwrap_or_default().lines());
        let ours = tids.into_iter().filter(|tid| builder.vm_tids.contains(tid));
        found.extend(ours.map(|tid| (tid, group.clone())));
    }
    Ok(found)
}

fn file(group: &str, name: &str) -> String {
    paths::resctrl_file(group, name)
}
