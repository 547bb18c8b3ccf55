//! Explains a plan in words: which thread runs where and why, with benefits and costs.
//!
//! The text is for a terminal or a log: no colours, wrapped at the given number of columns. The
//! facts are computed from plan and topology. So a plan from a file, or one for another machine, is
//! explained as it is and not as its strategy intended it.

use pinfold_model::text::count_noun;
use pinfold_model::text::pus_text;
use pinfold_model::tunables::{self, Setting};
use pinfold_model::{
    Core, CpuSet, GuestTopology, IsolationScope, MemoryPlan, Plan, Role, Speed, Topology,
    VnodeKind, VnodePlan,
};

use crate::analysis::host_match::{HostMatch, fit};
use crate::analysis::placement::TopologySpan;
use crate::cores::available::Index;
use crate::error::size;
use crate::layout::Layout;
use crate::messages::core_map::picture;
use crate::messages::group_words::of_groups;
use crate::messages::rows::{CommonProperty, Row, rows};
use crate::messages::sheet::Sheet;
use crate::strategies::pins_nothing;
use crate::text::{mib, verb};

/// A short summary of a plan for the machine of `topology`: its purpose, its cores, and the CPUs of
/// each role.
pub fn outline(plan: &Plan, topology: &Topology, columns: usize) -> String {
    let mut sheet = Sheet::new(columns);
    plan.vnodes.iter().for_each(|vnode| sheet.add_label("", 0, &summary(plan, vnode)));
    sheet.line("");
    let picture = picture(&Layout::of_plan(plan, ""), topology, columns);
    if !picture.is_empty() {
        sheet.line(&picture);
        sheet.line("");
    }
    let mut lines: Vec<(String, String)> = rows(plan, CommonProperty::Placement)
        .into_iter()
        .map(|row| {
            let policy = policy(&row);
            (row.who, format!("CPU {}{policy}", row.cpus))
        })
        .collect();
    let irqs = plan.irqs.iter();
    lines.extend(
        irqs.map(|irq| (format!("interrupts of {}", irq.device), format!("CPU {}", irq.pus))),
    );
    lines.push(("host tasks".to_owned(), format!("CPU {}", plan.housekeeping)));
    for vnode in &plan.vnodes {
        let of = if plan.vnodes.len() > 1 { format!("{} ", vnode.name) } else { String::new() };
        lines.extend(vnode.memory.iter().map(|memory| {
            let nodes: Vec<String> = memory.nodes.iter().map(ToString::to_string).collect();
            (format!("{of}memory"), format!("node {}", nodes.join(", ")))
        }));
    }
    let tunables: Vec<String> = of_host(plan).iter().map(ToString::to_string).collect();
    if !tunables.is_empty() {
        lines.push(("tunables".to_owned(), tunables.join(", ")));
    }
    let label = lines.iter().map(|(label, _)| label.chars().count()).max().unwrap_or(0);
    lines
        .iter()
        .for_each(|(who, where_to)| sheet.add_label(&format!("  {who}"), label + 4, where_to));
    if !plan.findings.is_empty() {
        sheet.line("");
    }
    plan.findings.iter().for_each(|finding| sheet.add_label("", 2, &finding.to_string()));
    sheet.into_text()
}

/// The tunables that are not shown with threads or interrupts.
fn of_host(plan: &Plan) -> Vec<Setting> {
    let mut all = tunables::settings(plan);
    all.retain(|setting| setting.tunable.of.is_empty());
    all
}

fn policy(row: &Row) -> String {
    row.policy.map_or_else(String::new, |policy| format!(" ({policy})"))
}

/// A detailed explanation of `plan` for the machine of `topology`, in lines of at most `columns`.
pub fn explain(plan: &Plan, topology: &Topology, columns: usize) -> String {
    let index = Index::from_topology(topology);
    let mut text = Sheet::new(columns);
    match plan.vnodes.as_slice() {
        [only] => text.add_label("", 0, &format!("{}; {}", summary(plan, only), isolation(plan))),
        several => {
            several.iter().for_each(|vnode| text.add_label("", 0, &summary(plan, vnode)));
            text.add_label("", 0, &format!("{}: {}", plan.strategy, isolation(plan)));
        }
    }
    roles(&mut text, plan);
    section(&mut text, "Host", host(plan));
    let lines = |of_vnode: &dyn Fn(&VnodePlan) -> Vec<String>| -> Vec<String> {
        plan.vnodes
            .iter()
            .flat_map(|vnode| {
                let name =
                    if plan.vnodes.len() > 1 { format!("{}: ", vnode.name) } else { String::new() };
                of_vnode(vnode)
                    .into_iter()
                    .map(move |line| format!("{name}{line}"))
                    .collect::<Vec<_>>()
            })
            .collect()
    };
    let guests = lines(&|vnode| {
        let guest = vnode.guest.iter();
        guest.map(|guest| format!("{}: {}", shape(guest), guest.reason)).collect()
    });
    let memory = lines(&|vnode| vnode.memory.iter().map(memory_line).collect());
    let tunables = of_host(plan).iter().map(setting_line).collect();
    let sections = [("Guest topology", guests), ("Memory", memory), ("Tunables", tunables)];
    for (title, lines) in sections {
        if !lines.is_empty() {
            section(&mut text, title, lines);
        }
    }
    let on = |vnode: &VnodePlan| TopologySpan::new(&index, &vnode.threads);
    let given = lines(&|vnode| in_words_of(vnode, gives(plan, vnode, topology, &on(vnode))));
    section(&mut text, "What it gives", given);
    let mut paid = vec![host_share(plan, topology)];
    paid.extend(unused_cores(plan, topology));
    paid.extend(lines(&|vnode| in_words_of(vnode, costs(plan, vnode, topology, &on(vnode)))));
    section(&mut text, "What it costs", paid);
    let mut findings: Vec<String> = Vec::new();
    if matches!(fit(plan, topology), HostMatch::Other(_)) {
        findings.push(format!(
            "warning: the plan was made for the host {}, this is {}",
            plan.fingerprint, topology.fingerprint
        ));
    }
    findings.extend(plan.findings.iter().map(ToString::to_string));
    if !findings.is_empty() {
        section(&mut text, "Findings", findings);
    }
    text.into_text()
}

fn setting_line(it: &Setting) -> String {
    format!("{it}: {}", it.tunable.meaning)
}

/// Process groups have threads where machines have vCPUs.
fn in_words_of(vnode: &VnodePlan, lines: Vec<String>) -> Vec<String> {
    match vnode.kind {
        VnodeKind::VirtualMachine => lines,
        VnodeKind::ProcessGroup => lines.iter().map(|line| of_groups(line)).collect(),
    }
}

fn memory_line(memory: &MemoryPlan) -> String {
    let nodes: Vec<String> = memory.nodes.iter().map(ToString::to_string).collect();
    let bytes = memory.bytes.map_or_else(String::new, |bytes| format!("{} ", size(bytes)));
    let pages =
        memory.page_bytes.map_or_else(String::new, |page| format!(", in pages of {}", size(page)));
    let node = if nodes.len() == 1 { "node" } else { "nodes" };
    let on = if memory.is_preferred { "preferred on" } else { "on" };
    format!("{bytes}{on} {node} {}{pages}: {}", nodes.join(", "), memory.reason)
}

fn summary(plan: &Plan, vnode: &VnodePlan) -> String {
    let mut pus = CpuSet::new();
    vnode
        .threads
        .iter()
        .filter(|thread| thread.role.runs_work())
        .for_each(|thread| pus.add(&thread.pus));
    let what = match vnode.kind {
        VnodeKind::VirtualMachine => {
            // Where there is one CPU only, all threads are on it without a pin.
            let by_hand = vnode.vcpus().any(|thread| thread.is_manual());
            let pins = !pins_nothing(&plan.strategy) || by_hand;
            let pinned = pins && vnode.vcpus().all(|thread| thread.pus.len() == 1);
            let how = if pinned { "pinned to" } else { "floating over" };
            format!("{} {how} {pus}", count_noun(vnode.vcpus().count(), "vCPU"))
        }
        VnodeKind::ProcessGroup => {
            let speed = match vnode.speed {
                Speed::FULL => "at full speed".to_owned(),
                part => format!("at {part} of full speed"),
            };
            format!("tasks on {} ({pus}) {speed}", count_noun(pus.len(), "CPU"))
        }
    };
    let guest = vnode
        .guest
        .as_ref()
        .map_or_else(String::new, |guest| format!(", shown to the guest as {}", shape(guest)));
    format!("{} for {}: {what}{guest}", plan.strategy, vnode.name)
}

fn isolation(plan: &Plan) -> String {
    match plan.isolation {
        IsolationScope::None => "no task is excluded from these CPUs".to_owned(),
        IsolationScope::Own => format!("Pinfold's own tasks are excluded from {}", plan.exclusive),
        IsolationScope::Host => {
            format!("the host's movable tasks and interrupts are excluded from {}", plan.exclusive)
        }
    }
}

fn roles(sheet: &mut Sheet, plan: &Plan) {
    let rows = rows(plan, CommonProperty::Reason);
    let cells: Vec<[String; 2]> =
        rows.iter().map(|row| [row.who.clone(), format!("{}{}", row.cpus, policy(row))]).collect();
    // A long list of CPUs must not narrow the column of reasons.
    let most = sheet.columns() / 4;
    let widest = |column: usize, title: &str| {
        let cells = cells.iter().filter_map(|row| row.get(column));
        let widths = cells.map(|cell| cell.chars().count()).filter(|width| *width <= most);
        widths.chain([title.len()]).max().unwrap_or(0)
    };
    let (role, cpus) = (widest(0, "role"), widest(1, "CPUs"));
    let indent = role + 2 + cpus + 2;
    sheet.line("");
    sheet.line(&format!("{:role$}  {:cpus$}  why", "role", "CPUs"));
    for ([who, list], row) in cells.iter().zip(&rows) {
        let head = format!("{who:role$}  {list:cpus$}  ");
        if head.chars().count() > indent {
            sheet.add_label(&format!("{who:role$}  "), role + 2, list);
            sheet.add_label("", indent, &row.reason);
        } else {
            sheet.add_label(&head, indent, &row.reason)
        }
    }
}

fn host(plan: &Plan) -> Vec<String> {
    let mut lines = vec![format!("{}: {}", plan.housekeeping, plan.housekeeping_reason)];
    if !plan.exclusive.is_empty() {
        lines.push(format!(
            "other tasks are excluded from {} (isolation scope {})",
            plan.exclusive, plan.isolation
        ));
    }
    let irqs = plan.irqs.iter();
    lines.extend(
        irqs.map(|irq| format!("interrupts of {} on {}: {}", irq.device, irq.pus, irq.reason)),
    );
    lines
}

fn gives(
    plan: &Plan,
    vnode: &VnodePlan,
    topology: &Topology,
    spread: &TopologySpan,
) -> Vec<String> {
    let emulator = vnode.thread(&Role::Emulator);
    let others = emulator.map(|thread| thread.pus.clone()).unwrap_or_default();
    let quiet = spread.pus.intersection(&plan.exclusive).difference(&others);
    let mut lines = Vec::new();
    if spread.pus.is_empty() {
        lines.push("the kernel may use any idle CPU for any thread".to_owned());
    } else if vnode.kind == VnodeKind::ProcessGroup {
        lines.push(format!("tasks that stay on {}", count_noun(spread.cores.len(), "core")));
    } else {
        lines.push(format!(
            "vCPUs that never migrate, on {}",
            count_noun(spread.cores.len(), "core")
        ));
    }
    if !quiet.is_empty() && vnode.kind == VnodeKind::VirtualMachine {
        lines.push(format!(
            "{} {} only vCPUs: no emulator, and no task that is excluded from them",
            pus_text(&quiet),
            verb(&quiet, "runs", "run")
        ));
    }
    if spread.pus.len() > 1 && spread.l3s.len() == 1 {
        let l3 = topology.l3.iter().find(|domain| spread.l3s.contains(&domain.id));
        let sized = l3.filter(|domain| domain.size_bytes > 0);
        let which = sized.map_or_else(String::new, |domain| {
            format!(" (L3 {}, {})", domain.id, mib(domain.size_bytes))
        });
        lines.push(format!("all vCPUs share one L3{which}"));
    }
    let mirrored = on(topology, spread)
        .filter(|core: &&Core| core.pus.is_subset(&spread.pus) && core.pus.len() > 1)
        .count();
    if vnode.guest.as_ref().is_some_and(|guest| guest.threads > 1) {
        lines.push(format!(
            "the guest's scheduler knows the siblings of {}",
            count_noun(mirrored, "core")
        ));
    }
    lines
}

/// The cores that carry vCPUs of a vnode.
fn on<'t>(topology: &'t Topology, spread: &'t TopologySpan) -> impl Iterator<Item = &'t Core> {
    spread.cores.iter().filter_map(|core| topology.cores.get(core.index()))
}

fn host_share(plan: &Plan, topology: &Topology) -> String {
    let free = |core: &&Core| core.pus.is_subset(&plan.housekeeping);
    let all = topology.cores.len();
    let (whole, part) = (
        topology.cores.iter().filter(free).count(),
        topology
            .cores
            .iter()
            .filter(|core: &&Core| !core.pus.is_disjoint(&plan.housekeeping) && !free(core))
            .count(),
    );
    let also = if part > 0 { format!(", and parts of {part}") } else { String::new() };
    format!("the host's tasks have {whole} of {}{also}", count_noun(all, "core"))
}

/// The cores that neither the host nor the plan uses, and CPUs that are in no core at present.
fn unused_cores(plan: &Plan, topology: &Topology) -> Vec<String> {
    let taken = plan.pus().union(&plan.exclusive).union(&plan.housekeeping);
    let cores = topology.cores.iter().filter(|core| core.pus.is_disjoint(&taken));
    let (isolated, others): (Vec<&Core>, Vec<&Core>) =
        cores.partition(|core| core.pus.is_subset(&topology.isolated));
    let offline = (!topology.offline.is_empty()).then(|| {
        let offline = &topology.offline;
        let (cpu, is) = (verb(offline, "CPU", "CPUs"), verb(offline, "is", "are"));
        format!("{cpu} {offline} {is} offline: the kernel does not report their cores")
    });
    [
        unused_line(&isolated, "they are isolated, and the plan does not need them"),
        unused_line(&others, "they are avoided, or not in the cpuset of this process"),
        offline,
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn unused_line(cores: &[&Core], why: &str) -> Option<String> {
    let cpus = cores.iter().map(|core| &core.pus).collect::<CpuSet>();
    let count = count_noun(cores.len(), "core");
    (!cores.is_empty()).then(|| {
        let cpu = verb(&cpus, "CPU", "CPUs");
        format!("{count} ({cpu} {cpus}) stay unused: {why}")
    })
}

fn costs(
    plan: &Plan,
    vnode: &VnodePlan,
    topology: &Topology,
    spread: &TopologySpan,
) -> Vec<String> {
    let mut lines = Vec::new();
    let shared = spread.pus.intersection(&plan.housekeeping);
    if !shared.is_empty() && plan.exclusive.is_empty() {
        lines.push(format!("vCPUs compete with the host's tasks on {shared}"));
    }
    lines.extend(siblings(plan, vnode, topology, spread));
    let crowded = &spread.crowded;
    if !crowded.is_empty() {
        lines.push(format!("several vCPUs share {crowded}"));
    }
    lines.extend(span_note("L3 domains", spread.l3s.len(), topology.l3.len()));
    lines.extend(span_note("NUMA nodes", spread.nodes.len(), topology.nodes.len()));
    lines
}

fn span_note(name: &str, count: usize, of: usize) -> Option<String> {
    (count > 1).then(|| format!("the vCPUs span {count} of {of} {name}"))
}

/// Which threads share a core with a vCPU.
fn siblings(
    plan: &Plan,
    vnode: &VnodePlan,
    topology: &Topology,
    spread: &TopologySpan,
) -> Vec<String> {
    let paired =
        on(topology, spread).filter(|core| core.pus.intersection(&spread.pus).len() > 1).count();
    let mut lines = Vec::new();
    if paired > 0 {
        lines.push(format!("on {} vCPUs share a core with each other", count_noun(paired, "core")));
    }
    let beside = spread.idle_siblings(topology);
    let emulator = vnode.thread(&Role::Emulator);
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
    let of = |count: u32, noun| count_noun(count as usize, noun);
    let [sockets, cores] = [of(guest.sockets, "socket"), of(guest.cores, "core")];
    format!("{sockets} × {cores} × {}", of(guest.threads, "thread"))
}

fn section(sheet: &mut Sheet, title: &str, lines: Vec<String>) {
    sheet.line("");
    sheet.line(title);
    for line in lines {
        sheet.add_label("  - ", 4, &line);
    }
}
