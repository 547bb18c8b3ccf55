//! Kernel command line: parameters that exclude the host's tasks from the vCPUs' CPUs from boot on.
//!
//! Parameters are documented at <https://docs.kernel.org/admin-guide/kernel-parameters.html>. Most
//! effects of `isolcpus` can be set, and undone, at run time; the text names the exceptions.

use std::collections::BTreeMap;

use pinfold_model::tunables::huge_pages::{self, pools};
use pinfold_model::tunables::{FormatAnswer, HugePagePool, Scope, Value, new_irqs};
use pinfold_model::{CpuSet, IrqPlan, NodeId, Plan, ThreadPlan, Topology, VnodePlan};

use super::common::{comment, headline, nothing_kept, replace_control_chars};
use super::format::{Format, Syntax};
use super::tunable_answers::Line;
use pinfold_plan::boot::{self, BootParameterState, isolation_parameters, without_boot_pu};
use pinfold_plan::guest_numa::{cells, shares};
use pinfold_plan::text::verb;

/// The format.
pub(super) const FORMAT: Format = Format {
    name: "cmdline",
    summary: "Kernel parameters",
    is_of_host: true,
    can_merge: false,
    syntax: Syntax::Lines,
    write: |plan, topology, _| Ok(cmdline(plan, topology)),
    together: None,
    tunable: |_, _| FormatAnswer::host(),
};

/// The parameters on one line, with comments on how to set them, their requirements and their
/// costs.
pub fn cmdline(plan: &Plan, topology: &Topology) -> String {
    let mut text = format!("# {}\n", headline(plan));
    let reserved = Reserved::new(plan, topology);
    let tunables = FORMAT.answers(Scope::of_host(plan));
    let mut line = isolation(plan, &reserved.all());
    let mut notes = String::new();
    for said in tunables.lines("") {
        match said {
            Line::Comment(name) => notes.push_str(&format!("#   {name}\n")),
            Line::Text(parameter) if !line.contains(&parameter) => line.push(parameter),
            Line::Text(_) => {}
        }
    }
    if reserved.online.is_empty() {
        text.push_str(&nothing_kept(plan, topology, "cmdline"));
    }
    if !line.is_empty() {
        text.push_str(&changes(&line, topology));
        text.push_str(&format!("{}\n", line.join(" ")));
    }
    if !notes.is_empty() {
        text.push_str(&format!("\n# On this line from the plan's tunables:\n{notes}"));
    }
    text.push_str(&tunables.missing_text("The kernel command line"));
    text.push_str(&missing_pages(plan, topology));
    if !reserved.online.is_empty() {
        remarks(&mut text, plan, &reserved.all());
        reserved.remark(&mut text, topology);
    }
    wrap(&text)
}

/// The huge pages of the plan's memory that neither its tunables nor the host's boot parameters
/// reserve, as a comment with the tunables that do.
fn missing_pages(plan: &Plan, topology: &Topology) -> String {
    let mut needed: BTreeMap<(NodeId, u64), u64> = BTreeMap::new();
    for vnode in &plan.vnodes {
        for (key, pages) in pages_of(vnode, topology) {
            *needed.entry(key).or_default() += pages;
        }
    }
    let at_boot = topology.boot_parameters.iter().any(|word| word.starts_with("hugepages="));
    let has = |(node, size): (NodeId, u64)| {
        let set = pools(&plan.tuning);
        let set = set.filter(|pool| (pool.node, pool.page_bytes) == (node, size));
        let there = topology.nodes.iter().filter(|known| at_boot && known.id == node);
        let there = there.flat_map(|known| &known.huge_pages);
        let there = there.filter(|pool| pool.page_bytes == size).map(|pool| pool.total);
        set.map(|pool| pool.pages).chain(there).max().unwrap_or(0)
    };
    let missing = needed.into_iter().filter(|(key, pages)| has(*key) < *pages);
    let tunables: Vec<String> = missing
        .map(|((node, page_bytes), pages)| {
            let pool = HugePagePool { node, page_bytes, pages };
            format!("`--tunable {}={}`", huge_pages::TUNABLE.key, Value::Pool(pool))
        })
        .collect();
    if tunables.is_empty() {
        String::new()
    } else {
        format!(
            "# The plan's memory is in huge pages, and this line reserves none for it: {} adds them.\n",
            tunables.join(" ")
        )
    }
}

/// How many huge pages of which size a machine needs on each node.
fn pages_of(vnode: &VnodePlan, topology: &Topology) -> Vec<((NodeId, u64), u64)> {
    let Some(memory) = &vnode.memory else { return Vec::new() };
    let size = memory.page_bytes.filter(|size| *size > 0);
    let Some((bytes, size)) = memory.bytes.zip(size) else { return Vec::new() };
    let pages = bytes.div_ceil(size);
    let cells = cells(vnode, topology);
    if let Some(parts) = shares(&cells, pages, 1) {
        return cells.iter().zip(parts).map(|(cell, part)| ((cell.node, size), part)).collect();
    }
    let count = memory.nodes.len().max(1) as u64;
    (0..)
        .zip(&memory.nodes)
        .map(|(place, node)| ((*node, size), part_of(pages, count, place)))
        .collect()
}

fn part_of(pages: u64, count: u64, place: u64) -> u64 {
    pages / count + u64::from(place < pages % count)
}

/// The same with its comments wrapped; the parameters stay on one line.
fn wrap(text: &str) -> String {
    text.lines()
        .map(|line| if line.starts_with('#') { comment(line) } else { format!("{line}\n") })
        .collect()
}

/// CPUs reserved for vCPUs from boot on.
struct Reserved {
    online: CpuSet,
    /// Offline CPUs that may be siblings of the online ones.
    siblings: CpuSet,
}

impl Reserved {
    fn new(plan: &Plan, topology: &Topology) -> Self {
        let online = boot::boot_isolated(plan, topology);
        let siblings = boot::possible_siblings(&online, topology);
        Self { online, siblings }
    }

    fn all(&self) -> CpuSet {
        self.online.union(&self.siblings)
    }

    /// Adds comments on offline CPUs that are included, and on CPUs that are isolated now but not
    /// included.
    fn remark(&self, text: &mut String, topology: &Topology) {
        if !self.siblings.is_empty() {
            text.push_str(&format!(
                "# {} {} {} offline, and the kernel does not show their cores: they may be siblings of \
                 the isolated ones, so they stay isolated if they come online.\n",
                verb(&self.siblings, "CPU", "CPUs"),
                self.siblings,
                verb(&self.siblings, "is", "are")
            ));
        }
        let booted = &topology.boot_parameters;
        let isolating = booted.iter().filter(|word| word.starts_with("isolcpus="));
        let now = isolating.fold(CpuSet::new(), |all, word| all.union(&boot::cpus(word)));
        let freed = now.difference(&self.all());
        if !freed.is_empty() {
            text.push_str(&format!(
                "# {} {freed} {} isolated now, but not by these parameters: add {} if another \
                 machine uses {}.\n",
                verb(&freed, "CPU", "CPUs"),
                verb(&freed, "is", "are"),
                verb(&freed, "it", "them"),
                verb(&freed, "it", "them")
            ));
        }
    }
}

/// How to set these parameters; those on the host's present command line are replaced, not added.
fn changes(line: &[String], topology: &Topology) -> String {
    const PLACES: &str = "#   Debian, Ubuntu: GRUB_CMDLINE_LINUX_DEFAULT in /etc/default/grub, then update-grub.\n\
                          #   Fedora: grubby --update-kernel=ALL, with --remove-args=\"OLD\" --args=\"NEW\".\n\
                          #   systemd-boot: /etc/kernel/cmdline.\n";
    let standing =
        |parameter: &String| boot::compare_boot_parameter(parameter, &topology.boot_parameters);
    let standings: Vec<BootParameterState> = line.iter().map(standing).collect();
    if standings.iter().all(|one| *one == BootParameterState::New) {
        return "# Debian, Ubuntu: append to GRUB_CMDLINE_LINUX_DEFAULT in /etc/default/grub, then update-grub.\n\
                # Fedora: grubby --update-kernel=ALL --args=\"…\". systemd-boot: /etc/kernel/cmdline.\n"
            .to_owned();
    }
    if standings.iter().all(|one| *one == BootParameterState::There) {
        return "# This host already boots with all of these parameters: no change is needed.\n"
            .to_owned();
    }
    let mut text =
        "# This host boots with some of these parameters already. In its kernel command line:\n"
            .to_owned();
    for (parameter, standing) in line.iter().zip(&standings) {
        let change = match standing {
            BootParameterState::New => format!("append {parameter}"),
            BootParameterState::There => format!("{parameter}: already there"),
            BootParameterState::Other(old) => format!("replace {old} with {parameter}"),
        };
        text.push_str(&format!("#   {}\n", replace_control_chars(&change)));
    }
    text + "# Where that line is:\n" + PLACES + "# The parameters after the change:\n"
}

/// Parameters that exclude the host's tasks from the CPUs of vCPUs; empty if the plan does not
/// isolate.
fn isolation(plan: &Plan, reserved: &CpuSet) -> Vec<String> {
    if reserved.is_empty() {
        return Vec::new();
    }
    let mut line = isolation_parameters(reserved);
    if !plan.tuning.has(&new_irqs::TUNABLE) && all_irqs(plan).is_none() {
        line.push(format!("irqaffinity={}", plan.housekeeping.difference(reserved)));
    }
    line
}

/// The CPUs for all interrupts, if the plan has such a tunable.
fn all_irqs(plan: &Plan) -> Option<String> {
    let all = plan.irqs.iter().find(|irq| irq.device == IrqPlan::ALL);
    all.map(|irq| irq.pus.to_string())
}

/// Adds comments on requirements and costs of the parameters.
fn remarks(text: &mut String, plan: &Plan, reserved: &CpuSet) {
    text.push_str("\n# All of this line needs a reboot. Without one:\n");
    text.push_str(
        "#   isolcpus=domain: `pinfold apply --isolate host` moves the host's tasks away by cpuset, and `undo` back\n\
         #   irqaffinity: the affinity of each interrupt can be written at run time, managed ones excepted\n\
         #   isolcpus=managed_irq, nohz_full, rcu_nocbs: only at boot; try without them first, then measure\n\
         # What it costs: isolated CPUs do no load balancing (a thread stays where its mask puts it, so pin each \
         to one CPU), and they are lost to every other task, also while the machine is off. nohz_full makes \
         each entry to the kernel slower; it pays for guests that spin or poll, and for few others.\n",
    );
    if without_boot_pu(reserved) != *reserved {
        text.push_str(
            "# CPU 0 keeps time for all: it cannot be in nohz_full, so it is left out there.\n",
        );
    }
    if plan.threads().any(|(_, thread)| runs(thread) && is_floating(reserved, thread)) {
        text.push_str(
            "# This plan has threads that may run on several of these CPUs: under isolcpus they would all stay on one.\n",
        );
    }
}

fn runs(thread: &ThreadPlan) -> bool {
    thread.role.runs_work()
}

fn is_floating(reserved: &CpuSet, thread: &ThreadPlan) -> bool {
    thread.pus.intersection(reserved).len() > 1
}
