//! `pinfold status`: compares the active placements with their plans.

use std::collections::BTreeSet;

use pinfold_apply::{Status, TunableStatus};
use pinfold_host::LiveHost;
use pinfold_model::text::{count_noun, cpus_text, select_verb};
use pinfold_model::{Command, CpuSet, Policy, Topology, VnodeKind};
use pinfold_plan::layout::Layout;
use pinfold_run::booting::BootingMachine;
use pinfold_run::claims::USED_TWICE;
use pinfold_run::status::{ActivePlacement, ActivePlatform, Found, StatusDocument, find};
use pinfold_run::{Exit, Failure, ended_placements, host, inputs, leftovers};
use serde_json::json;

use crate::cli::StatusArgs;
use crate::output::{self, Tone, print_data, print_message, show};
use crate::screen;

/// Prints each active placement, or the named ones; fails if one has drifted.
pub fn status(arguments: &StatusArgs, state: Option<&str>) -> Result<(), Failure> {
    let host = host::live()?;
    ended_placements::revert_ended(&host, state)?;
    let mut found = find(&host, &host::state_path(state)?)?;
    let left = match &arguments.id {
        Some(wanted) => {
            found.retain_named(&host, wanted)?;
            Vec::new()
        }
        None => leftovers::find(&host, host::existing_state(state)?.as_ref())?,
    };
    if arguments.json {
        print_data(&json!(StatusDocument::new(&found, &left)).to_string());
    } else {
        report(&host, &found, arguments.ignore_claims);
    }
    for one in &found.damaged {
        let hint = one.failure.hint.as_ref().map_or(String::new(), |hint| format!(" ({hint})"));
        print_message(&format!("{}: {}{hint}", output::name(&one.id), one.failure.message));
    }
    for one in &found.lost {
        print_message(&format!("{one} ({})", one.hint()));
    }
    if !left.is_empty() && !arguments.json {
        let paths: Vec<String> = left.iter().map(|path| output::name(path)).collect();
        show(&format!("left behind by processes that have exited: {}", paths.join(", ")));
        show(&format!("  `{}` removes them", Command::new("undo")));
    }
    verdict(&found)?;
    let sharing = found.placements.iter().filter(|one| one.shares_a_cpu()).count();
    if sharing == 0 || arguments.ignore_claims {
        return Ok(());
    }
    let have = select_verb(sharing, "has", "have");
    let text = format!("{} {have} a CPU that is used twice", count_noun(sharing, "placement"));
    Err(Failure::new(Exit::No, text)
        .with_hint("give one of the owners other CPUs; --ignore-claims does not count them"))
}

/// Prints the answer, then each placement and platform.
fn report(host: &LiveHost, found: &Found, ignores_claims: bool) {
    let (tone, text) = answer(found, ignores_claims);
    output::answer(tone, &text);
    // Those of all placements, each set of CPUs once.
    let twice = found.placements.iter().flat_map(ActivePlacement::used_twice);
    let twice: BTreeSet<String> = twice.map(ToString::to_string).collect();
    twice.iter().for_each(|text| show(text));
    // Placements are shown on the machine's cores, if the topology can be read.
    let topology =
        if found.placements.is_empty() { None } else { inputs::topology(host, None).ok() };
    for one in &found.placements {
        show(&format!("\n{}", to_text(one, topology.as_ref())));
    }
    found.platforms.iter().for_each(|one| show(&platform(one)));
    found.booting.iter().for_each(|one| show(&format!("\n{}", booting(one))));
}

fn booting(BootingMachine { name, process, cpus, condition }: &BootingMachine) -> String {
    format!(
        "{} (process {}): boots on {} and waits until {condition}; then it is placed",
        output::name(name),
        process.tid,
        cpus_text(cpus)
    )
}

fn platform(ActivePlatform { id, supervisor, answers, is_alive }: &ActivePlatform) -> String {
    if !is_alive {
        let undo = Command::new("undo --left");
        format!("{id}: a platform of vnodes whose supervisor has exited; `{undo}` reverts it")
    } else if *answers {
        let status = Command::new("emulate status");
        format!("{id}: a platform of vnodes; `{status}` shows their speeds")
    } else {
        format!(
            "{id}: vnodes of the command of process {supervisor}; they end with it \
             (kill -INT {supervisor})"
        )
    }
}

/// The answer in one line.
pub fn answer(found: &Found, ignores_claims: bool) -> (Tone, String) {
    let Found { placements: found, damaged, platforms, lost, booting, ended: _ } = found;
    let drifted = found.iter().filter(|one| !one.is_as_planned()).count();
    let orphans = platforms.iter().filter(|one| !one.is_alive).count();
    let mut parts = Vec::new();
    let placements = count_noun(found.len(), "placement");
    let sharing = found.iter().filter(|one| one.shares_a_cpu()).count();
    match (found.len(), drifted) {
        (0, _) => {}
        (1, 0) if sharing > 0 && !ignores_claims => parts.push("1 placement is active".to_owned()),
        (_, 0) if sharing > 0 && !ignores_claims => parts.push(format!("{placements} are active")),
        (1, 0) => parts.push("1 placement is active, as planned".to_owned()),
        (_, 0) => parts.push(format!("{placements} are active, all as planned")),
        (1, _) => parts.push("1 placement is active, not as planned".to_owned()),
        (_, drifted) => parts.push(format!("{placements} are active, {drifted} not as planned")),
    }
    if !platforms.is_empty() {
        let alone = match orphans {
            0 => String::new(),
            orphans => format!(" ({orphans} without a supervisor)"),
        };
        parts.push(format!("{} of vnodes{alone}", count_noun(platforms.len(), "platform")));
    }
    if !damaged.is_empty() {
        parts.push(format!("{} cannot be read", count_noun(damaged.len(), "journal")));
    }
    if !lost.is_empty() {
        parts.push(format!("{} without a usable journal", count_noun(lost.len(), "placement")));
    }
    if !booting.is_empty() {
        let wait = select_verb(booting.len(), "waits", "wait");
        parts.push(format!("{} {wait} for a placement", count_noun(booting.len(), "machine")));
    }
    if sharing > 0 {
        let have = select_verb(sharing, "has", "have");
        parts.push(format!("{} {have} a CPU that is used twice", count_noun(sharing, "placement")));
    }
    if parts.is_empty() {
        return (Tone::Good, "no placement is active".to_owned());
    }
    let is_good = drifted + orphans + damaged.len() + lost.len() + sharing == 0;
    (if is_good { Tone::Good } else { Tone::Bad }, parts.join("; "))
}

fn verdict(found: &Found) -> Result<(), Failure> {
    let drifted = found.placements.iter().filter(|one| !one.is_as_planned()).count();
    if drifted > 0 {
        let verb = select_verb(drifted, "is", "are");
        let text = format!("{} {verb} not as planned", count_noun(drifted, "placement"));
        let undo = Command::new("undo");
        return Err(Failure::new(Exit::No, text)
            .with_hint(format!("revert with `{undo}`, then apply again")));
    }
    if !found.damaged.is_empty() {
        let journals = count_noun(found.damaged.len(), "journal");
        let text = format!("{journals} cannot be read; what was applied may still be active");
        return Err(Failure::new(Exit::Host, text));
    }
    if !found.lost.is_empty() {
        let placements = count_noun(found.lost.len(), "placement");
        let verb = select_verb(found.lost.len(), "has", "have");
        let text = format!("{placements} {verb} no usable journal, so `undo` cannot revert them");
        return Err(Failure::new(Exit::Host, text));
    }
    let orphans = found.platforms.iter().filter(|one| !one.is_alive).count();
    if orphans == 0 {
        return Ok(());
    }
    let text = format!("{} of vnodes without a supervisor", count_noun(orphans, "platform"));
    let hint = format!("`{}` reverts what is left", Command::new("undo --left"));
    Err(Failure::new(Exit::No, text).with_hint(hint))
}

fn to_text(one: &ActivePlacement, topology: Option<&Topology>) -> String {
    // "under none" reads as a word of the sentence.
    let strategy = match one.plan.strategy.as_str() {
        "none" => "the strategy `none`",
        name => name,
    };
    let mut text = format!("{}: {} under {strategy}", one.id, output::short_name(&one.vm_name));
    text.push_str(&match (one.stopped, one.supervised || one.watched) {
        (Some(pid), _) => format!(
            ", monitored by a Pinfold process that is suspended ({pid}; `kill -CONT {pid}` \
             continues it)"
        ),
        (None, true) => ", monitored by a running Pinfold process".to_owned(),
        (None, false) => ", not monitored".to_owned(),
    });
    let Some(status) = &one.status else {
        text.push_str(&exited(one));
        return text;
    };
    text.push('\n');
    if let Some(topology) = topology {
        text.push_str(&picture(one, status, topology));
    }
    text.push_str(&roles(status));
    if !one.tunables.is_empty() {
        let changed: Vec<String> =
            one.tunables.iter().filter(|tunable| !tunable.ok).map(drift).collect();
        text.push_str(&format!(
            "\ntunables set: {}; changed since: {}",
            one.tunables.len(),
            changed.len()
        ));
        changed.iter().for_each(|line| text.push_str(&format!("\n  {line}")));
    }
    let dangers = status.dangers.iter().filter(|danger| danger.subject != USED_TWICE);
    for finding in one.vanished.iter().chain(&status.findings).chain(dangers) {
        text.push_str(&format!("\n{finding}"));
    }
    if let Some((tables, far)) = one.page_tables() {
        text.push_str(&format!("\n{tables}"));
        far.iter().for_each(|finding| text.push_str(&format!("\n{finding}")));
    }
    for counter in &one.counters {
        let bytes =
            counter.bytes.map_or_else(|| "unavailable".to_owned(), |b| format!("{b} bytes"));
        text.push_str(&format!("\n{}: {bytes}", counter.name));
    }
    if !one.plan.exclusive.is_empty() {
        text.push_str(&format!("\nreserved for it: {}", cpus_text(&one.plan.exclusive)));
        text.push_str(&list("tasks that may still run there", &status.movable));
        text.push_str(&list("kernel threads that cannot be moved", &status.immovable));
    }
    text
}

/// What is left of a placement whose machine has ended.
fn exited(one: &ActivePlacement) -> String {
    let what = match one.plan.vnodes.first().map(|vnode| vnode.kind) {
        Some(VnodeKind::ProcessGroup) => "the process group",
        Some(VnodeKind::VirtualMachine) | None => "the virtual machine",
    };
    let undo = Command::new("undo").arg(&one.id);
    if one.is_in_definition {
        format!(
            "\nthe process of this placement has exited; the definition of the domain still has the \
             pins of this plan (--config), with which it starts; `{undo}` removes them from the \
             definition, and a domain that was started again keeps them until it ends"
        )
    } else {
        format!("\n{what} has exited; `{undo}` reverts the placement")
    }
}

/// The planned and the actual CPUs of each thread, with its policy where the plan sets one.
fn roles(status: &Status) -> String {
    let mut table = screen::rows();
    table.set_header(["role", "thread", "planned", "found", ""]);
    for role in &status.roles {
        let found_policy = role.planned_policy.and(role.found_policy);
        let found = pus_and_policy(role.found.as_ref(), found_policy, "ended");
        let verdict = match (&role.planned, role.ok) {
            (None, _) => "not in the plan",
            (Some(_), true) => "as planned",
            (Some(_), false) => "DRIFTED",
        };
        let planned = pus_and_policy(role.planned.as_ref(), role.planned_policy, "none");
        table.add_row([
            role.role.to_string(),
            role.task.tid.to_string(),
            planned,
            found,
            verdict.to_owned(),
        ]);
    }
    screen::draw_table(table, 1..2)
}

/// `2-3`, or `2-3, fifo 1`.
fn pus_and_policy(pus: Option<&CpuSet>, policy: Option<Policy>, none: &str) -> String {
    let pus = pus.map_or_else(|| none.to_owned(), ToString::to_string);
    policy.map_or_else(|| pus.clone(), |policy| format!("{pus}, {policy}"))
}

/// The cores with the threads on them.
fn picture(one: &ActivePlacement, status: &Status, topology: &Topology) -> String {
    let mut layouts = Layout::of_plan(&one.plan, "");
    if let [only] = layouts.as_mut_slice() {
        for pin in &mut only.pins {
            let found = status.roles.iter().find(|role| role.role == pin.role);
            if let Some(mask) = found.and_then(|role| role.found.clone()) {
                pin.pus = Some(mask);
            }
        }
    }
    match pinfold_plan::picture(&layouts, topology, usize::from(screen::width())) {
        picture if picture.is_empty() => picture,
        picture => format!("\n{picture}\n"),
    }
}

fn drift(tunable: &TunableStatus) -> String {
    let found = tunable.found.as_deref().unwrap_or("gone");
    format!("{} was set to {} and is now {found}", tunable.path, tunable.planned)
}

fn list(title: &str, tasks: &[pinfold_apply::ForeignTask]) -> String {
    if tasks.is_empty() {
        return String::new();
    }
    let names: Vec<String> =
        tasks.iter().map(|task| format!("{} {}", task.tid, output::name(&task.name))).collect();
    format!("\n{title} ({}): {}", tasks.len(), names.join(", "))
}

#[cfg(test)]
mod tests {
    use pinfold_model::{Role, TaskId, Tid};

    use super::*;

    #[test]
    fn a_thread_with_another_policy_shows_both() {
        let pus = Some(CpuSet::parse_list("2").unwrap());
        let role = pinfold_apply::RoleStatus {
            role: Role::Vcpu(0),
            task: TaskId { tid: Tid(7), start_time: 1 },
            planned: pus.clone(),
            found: pus,
            planned_policy: Some(Policy::Fifo { priority: 1 }),
            found_policy: Some(Policy::Other { nice: 0 }),
            ok: false,
        };
        let table = roles(&Status { roles: vec![role.clone()], ..Status::default() });
        assert!(table.contains("2, fifo 1") && table.contains("2, other"), "{table}");
        // A policy that the plan leaves alone is not shown.
        let free = pinfold_apply::RoleStatus { planned_policy: None, ok: true, ..role };
        let table = roles(&Status { roles: vec![free], ..Status::default() });
        assert!(!table.contains("other"), "{table}");
    }
}
