//! A plan in words: who runs where and why, what that gives and what it costs.
//!
//! The text is for a terminal or a log: no colours, wrapped at 100 columns. Facts
//! are computed from plan and topology, so that a plan read from a file, or one for
//! another machine, is explained as it is and not as its strategy meant it.

use pinfold_model::{Core, CpuSet, GuestTopology, IsolationScope, Plan, Topology};

use crate::draft::{counted, pus_text, verb};
use crate::spread::Spread;

const WIDTH: usize = 100;

/// A readable account of `plan` on the machine of `topology`.
#[must_use]
pub fn explain(plan: &Plan, topology: &Topology) -> String {
    let spread = Spread::of(topology, &plan.vnode.threads);
    let mut text = String::new();
    wrap(&mut text, "", &summary(plan));
    roles(&mut text, plan);
    section(&mut text, "Host", host(plan));
    if let Some(guest) = &plan.vnode.guest {
        section(&mut text, "Guest topology", vec![format!("{}: {}", shape(guest), guest.reason)]);
    }
    section(&mut text, "What it gives", gives(plan, topology, &spread));
    section(&mut text, "What it costs", costs(plan, topology, &spread));
    let mut findings: Vec<String> = Vec::new();
    if plan.fingerprint != topology.fingerprint {
        findings.push(format!(
            "warning: the plan was made for the host {}, this is {}",
            plan.fingerprint, topology.fingerprint
        ));
    }
    findings.extend(plan.findings.iter().map(ToString::to_string));
    if !findings.is_empty() {
        section(&mut text, "Findings", findings);
    }
    text
}

fn summary(plan: &Plan) -> String {
    let vcpus = plan.vnode.vcpus().count();
    let pus = plan.vnode.vcpus().fold(CpuSet::new(), |set, thread| set.union(&thread.pus));
    let pinned = plan.vnode.vcpus().all(|thread| thread.pus.len() == 1);
    let where_they_run = match pinned {
        true => format!("pinned to {pus}"),
        false => format!("floating over {pus}"),
    };
    let guest = plan
        .vnode
        .guest
        .as_ref()
        .map_or_else(String::new, |guest| format!(", shown to the guest as {}", shape(guest)));
    let isolation = match plan.isolation {
        IsolationScope::None => "nothing is kept off these PUs".to_owned(),
        IsolationScope::Own => format!("Pinfold's own tasks are kept off {}", plan.exclusive),
        IsolationScope::Host => format!("the host's movable tasks are kept off {}", plan.exclusive),
    };
    format!(
        "{} for {}: {} {where_they_run}{guest}; {isolation}",
        plan.strategy,
        plan.vnode.name,
        counted(vcpus, "vCPU")
    )
}

fn roles(text: &mut String, plan: &Plan) {
    let rows: Vec<[String; 2]> = plan
        .vnode
        .threads
        .iter()
        .map(|thread| {
            let policy = thread.policy.map_or_else(String::new, |policy| format!(" ({policy})"));
            [thread.role.to_string(), format!("{}{policy}", thread.pus)]
        })
        .collect();
    let widest = |column: usize, title: &str| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).chain([title.len()]).max().unwrap_or(0)
    };
    // A list of many PUs must not squeeze the reasons.
    let (role, pus) = (widest(0, "role").min(24), widest(1, "PUs").min(24));
    text.push('\n');
    let mut line = |a: &str, b: &str, why: &str| wrap(text, &format!("{a:role$}  {b:pus$}  "), why);
    line("role", "PUs", "why");
    for ([name, list], thread) in rows.iter().zip(&plan.vnode.threads) {
        line(name, list, &thread.reason);
    }
}

fn host(plan: &Plan) -> Vec<String> {
    let mut lines = vec![format!("{}: {}", plan.housekeeping, plan.housekeeping_reason)];
    if !plan.exclusive.is_empty() {
        lines.push(format!(
            "other tasks are kept off {} (isolation scope {})",
            plan.exclusive, plan.isolation
        ));
    }
    lines
}

fn gives(plan: &Plan, topology: &Topology, spread: &Spread) -> Vec<String> {
    let emulator = plan.vnode.thread(&pinfold_model::Role::Emulator);
    let others = emulator.map(|thread| thread.pus.clone()).unwrap_or_default();
    let quiet = spread.pus.intersection(&plan.exclusive).difference(&others);
    let mut lines = Vec::new();
    if spread.pus.is_empty() {
        lines.push("the kernel may use any idle PU for any thread".to_owned());
    } else {
        lines.push(format!("vCPUs that never migrate, on {}", counted(spread.cores.len(), "core")));
    }
    if !quiet.is_empty() {
        lines.push(format!(
            "{} {} vCPUs alone: no emulator, and none of the tasks that are kept off",
            pus_text(&quiet),
            verb(&quiet, "runs", "run")
        ));
    }
    if spread.pus.len() > 1 && spread.l3s.len() == 1 {
        lines.push("all vCPUs share one L3".to_owned());
    }
    let whole = |core: &&Core| core.pus.is_subset(&spread.pus) && core.pus.len() > 1;
    let mirrored = topology.cores.iter().filter(whole).count();
    if plan.vnode.guest.as_ref().is_some_and(|guest| guest.threads > 1) {
        lines.push(format!(
            "the guest's scheduler knows the siblings of {}",
            counted(mirrored, "core")
        ));
    }
    lines
}

fn costs(plan: &Plan, topology: &Topology, spread: &Spread) -> Vec<String> {
    let free = |core: &&Core| core.pus.is_subset(&plan.housekeeping);
    let partly = |core: &&Core| !core.pus.is_disjoint(&plan.housekeeping) && !free(core);
    let all = topology.cores.len();
    let (whole, part) =
        (topology.cores.iter().filter(free).count(), topology.cores.iter().filter(partly).count());
    let also = if part > 0 { format!(", and {part} in part") } else { String::new() };
    let mut lines =
        vec![format!("the host's tasks keep {whole} of {}{also}", counted(all, "core"))];
    let shared = spread.pus.intersection(&plan.housekeeping);
    if !shared.is_empty() && plan.exclusive.is_empty() {
        lines.push(format!("vCPUs compete with the host's tasks on {shared}"));
    }
    lines.extend(siblings(plan, topology, spread));
    let crowded = spread.crowded();
    if !crowded.is_empty() {
        lines.push(format!("several vCPUs take turns on {crowded}"));
    }
    let crossed = |name: &str, count: usize, of: usize| {
        (count > 1).then(|| format!("the vCPUs lie in {count} of {of} {name}"))
    };
    lines.extend(crossed("L3 domains", spread.l3s.len(), topology.l3.len()));
    lines.extend(crossed("NUMA nodes", spread.nodes.len(), topology.nodes.len()));
    lines
}

/// Who shares a core with a vCPU.
fn siblings(plan: &Plan, topology: &Topology, spread: &Spread) -> Vec<String> {
    let on = |core: &&Core| core.pus.intersection(&spread.pus).len() > 1;
    let paired = topology.cores.iter().filter(on).count();
    let mut lines = Vec::new();
    if paired > 0 {
        lines.push(format!("on {} vCPUs share a core with each other", counted(paired, "core")));
    }
    let beside = spread.idle_siblings(topology);
    let emulator = plan.vnode.thread(&pinfold_model::Role::Emulator);
    let emulated = emulator.map(|thread| thread.pus.intersection(&beside)).unwrap_or_default();
    if !emulated.is_empty() {
        lines.push(format!("the emulator shares the vCPUs' cores on {emulated}"));
    }
    let within = emulator.map(|thread| thread.pus.intersection(&spread.pus)).unwrap_or_default();
    if !within.is_empty() {
        lines.push(format!("the emulator competes with vCPUs on {within}"));
    }
    let hosted = plan.housekeeping.intersection(&beside);
    if !hosted.is_empty() {
        lines.push(format!("the host's tasks may share the vCPUs' cores on {hosted}"));
    }
    let idle = plan.exclusive.intersection(&beside).difference(&emulated);
    if !idle.is_empty() {
        lines.push(format!("{} {} idle", pus_text(&idle), verb(&idle, "stays", "stay")));
    }
    lines
}

fn shape(guest: &GuestTopology) -> String {
    format!("{} × {} × {} (sockets × cores × threads)", guest.sockets, guest.cores, guest.threads)
}

fn section(text: &mut String, title: &str, lines: Vec<String>) {
    text.push_str(&format!("\n{title}\n"));
    for line in lines {
        wrap(text, "  - ", &line);
    }
}

/// Appends `head` and `body`; lines that `body` fills beyond the width go on below its start.
fn wrap(text: &mut String, head: &str, body: &str) {
    let indent = head.chars().count();
    let mut line = head.to_owned();
    let mut column = indent;
    let mut fresh = true;
    for word in body.split(' ') {
        let length = word.chars().count();
        if !fresh && column + 1 + length > WIDTH {
            text.push_str(line.trim_end());
            text.push('\n');
            line = " ".repeat(indent);
            column = indent;
            fresh = true;
        }
        if !fresh {
            line.push(' ');
            column += 1;
        }
        line.push_str(word);
        column += length;
        fresh = false;
    }
    text.push_str(line.trim_end());
    text.push('\n');
}
