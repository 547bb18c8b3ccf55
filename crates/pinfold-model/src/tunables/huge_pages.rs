//! A node's pool of huge pages of one size
//! (<https://docs.kernel.org/admin-guide/mm/hugetlbpage.html>).

use super::{
    FormatAnswer, FormatRule, HOST_SETTING, HugePagePool, KernelFile, Place, Scope, Setting, Shape,
    Tunable, Value, Values,
};
use crate::{Finding, Plan, Topology, Tuning, VnodePlan};

/// The file of a pool.
pub(super) const FILE: &str = "nr_hugepages";

impl HugePagePool {
    /// The file with the number of its pages.
    pub(super) fn path(self) -> String {
        let (node, kib) = (self.node, self.page_bytes >> 10);
        format!("/sys/devices/system/node/node{node}/hugepages/hugepages-{kib}kB/{FILE}")
    }
}

/// The pools of a plan.
pub fn pools(tuning: &Tuning) -> impl Iterator<Item = HugePagePool> {
    tuning
        .all(&TUNABLE)
        .iter()
        .filter_map(|value: &Value| if let Value::Pool(pool) = value { Some(*pool) } else { None })
}

/// The row of this tunable.
pub static TUNABLE: Tunable = Tunable {
    key: "huge-pages",
    field: "huge_pages",
    name: "huge pages",
    meaning: "pool of huge pages: node, size in KiB, number of pages",
    values: Values::Pool,
    kernel: Some(KernelFile { place: Place::Pool, shape: Shape::Rounded, usual: "0" }),
    example: "0:2048:16",
    trial_refusal: |_| Some("a machine that runs does not use pages of a pool that is made later"),
    wrong,
    said: &[
        (
            "libvirt",
            FormatRule::By(|setting, _| {
                let words = allocpages(setting, ["", "", ""]);
                FormatAnswer::Nothing(format!(
                    "it is a setting of the host: `{words}` makes the pool"
                ))
            }),
        ),
        (
            "virsh",
            FormatRule::By(|setting, _| {
                let options = ["--pagesize ", "--pagecount ", "--cellno "];
                FormatAnswer::line(allocpages(setting, options))
                    .with_difference("of the host, until it reboots")
            }),
        ),
        ("cmdline", FormatRule::By(cmdline)),
        (
            "proxmox",
            FormatRule::Nothing(
                "Proxmox makes the pool for a machine with --hugepages when it starts, and frees it after",
            ),
        ),
        (
            "nova",
            FormatRule::Nothing(
                "the compute node makes its pools at boot; [DEFAULT] reserved_huge_pages keeps some from Nova",
            ),
        ),
    ],
    ..HOST_SETTING
};

fn allocpages(setting: &Setting, [size, count, node]: [&str; 3]) -> String {
    let Value::Pool(pool) = setting.value else { return String::new() };
    let kib = pool.page_bytes >> 10;
    format!("virsh allocpages {size}{kib} {count}{} {node}{}", pool.pages, pool.node)
}

/// The pools of one size are one list, because a size may not be given twice.
fn cmdline(setting: &Setting, scope: &Scope<'_>) -> FormatAnswer {
    let Value::Pool(pool) = setting.value else { return FormatAnswer::host() };
    let kin = || pools(&scope.plan.tuning).filter(move |one| one.page_bytes == pool.page_bytes);
    if kin().next() != Some(pool) {
        return FormatAnswer::lines("", Vec::new())
            .with_difference("in the list of its size; Linux 5.16");
    }
    let nodes: Vec<String> = kin().map(|one| format!("{}:{}", one.node, one.pages)).collect();
    let size = match pool.page_bytes {
        bytes if bytes.is_multiple_of(1 << 30) => format!("{}G", bytes >> 30),
        bytes if bytes.is_multiple_of(1 << 20) => format!("{}M", bytes >> 20),
        bytes => format!("{}K", bytes >> 10),
    };
    FormatAnswer::line(format!("hugepagesz={size} hugepages={}", nodes.join(",")))
        .with_difference("Linux 5.16")
}

fn wrong(setting: &Setting, plan: &Plan, topology: &Topology) -> Vec<Finding> {
    fn size(one: &HugePagePool) -> u128 {
        u128::from(one.pages) * u128::from(one.page_bytes)
    }

    let Value::Pool(pool) = setting.value else { return Vec::new() };
    let HugePagePool { node, page_bytes, pages } = pool;
    let kib = page_bytes >> 10;
    let mut findings = Vec::new();
    if pools(&plan.tuning).filter(|one| (one.node, one.page_bytes) == (node, page_bytes)).count()
        > 1
    {
        let text = format!("{node}:{kib} is set twice");
        findings.push(problem(text, "leave one of them out".to_owned()));
    }
    let Some(known) = topology.nodes.iter().find(|known| known.id == node) else {
        let text = format!("this host has no node {node}");
        findings.push(problem(text, "`pinfold topo` shows the nodes".to_owned()));
        return findings;
    };
    let sizes = || known.huge_pages.iter().map(|pages| pages.page_bytes);
    if !known.huge_pages.is_empty() && !sizes().any(|size| size == page_bytes) {
        let sizes: Vec<String> = sizes().map(|size| (size >> 10).to_string()).collect();
        let text = format!("node {node} has no pages of {kib} KiB");
        findings.push(problem(text, format!("its sizes in KiB are {}", sizes.join(", "))));
    }
    // 0 if the source of the topology does not report the memory.
    let bytes = u128::from(known.memory_bytes);
    let on_node = || pools(&plan.tuning).filter(|one| one.node == node);
    let all: u128 = on_node().map(|one| size(&one)).sum();
    let does_fit = size(&pool) <= bytes;
    if bytes > 0 && (!does_fit || all > bytes && on_node().next() == Some(pool)) {
        let what = if does_fit {
            format!("all its pools together ({} MiB)", all >> 20)
        } else {
            format!("{pages} pages of {kib} KiB")
        };
        let text = format!(
            "{what} do not fit into node {node}, which has {} MiB of memory",
            known.memory_bytes >> 20
        );
        findings.push(problem(text, "`pinfold topo` shows the memory of each node".to_owned()));
    }
    findings.extend(too_few(pool, plan, topology));
    findings
}

fn problem(text: String, hint: String) -> Finding {
    Finding::problem("huge-pages", text).with_hint(hint)
}

/// A machine whose nodes have too few pages of the pool's size; reported for the first pool of it.
fn too_few(pool: HugePagePool, plan: &Plan, topology: &Topology) -> Vec<Finding> {
    let (page_bytes, kib) = (pool.page_bytes, pool.page_bytes >> 10);
    let of_size = || pools(&plan.tuning).filter(|one| one.page_bytes == page_bytes);
    if of_size().next() != Some(pool) {
        return Vec::new();
    }
    let memory = |vnode: &VnodePlan| {
        let memory = vnode.memory.clone();
        memory.filter(|memory| memory.page_bytes == Some(page_bytes) && !memory.nodes.is_empty())
    };
    // The pages that a node has after the pools are made; without a pool the free ones.
    let mut findings = Vec::new();
    for vnode in &plan.vnodes {
        let Some(own) = memory(vnode) else { continue };
        let all = plan.vnodes.iter().filter_map(memory);
        let sharing = all.filter(|other| other.nodes == own.nodes);
        let bytes: u64 = sharing.filter_map(|other| other.bytes).sum();
        let needed = bytes.div_ceil(page_bytes.max(1));
        let there: u64 = own
            .nodes
            .iter()
            .map(|id| {
                let made = of_size().find(|one| one.node == *id).map(|one| one.pages);
                let node = topology.nodes.iter().find(|node| node.id == *id);
                let free = node
                    .and_then(|node| node.huge_pages.iter().find(|it| it.page_bytes == page_bytes));
                made.unwrap_or(free.map_or(0, |pages| pages.free))
            })
            .sum();
        if there < needed {
            let nodes: Vec<String> = own.nodes.iter().map(ToString::to_string).collect();
            let nodes = nodes.join(", ");
            let text = format!(
                "{} does not start: on node {nodes} it needs {needed} pages of {kib} KiB, and there \
                 are {there}",
                vnode.name
            );
            let hint =
                format!("make a pool of {needed} pages there: huge-pages={nodes}:{kib}:{needed}");
            let hint =
                if own.nodes.len() == 1 { hint } else { "make pools on these nodes".to_owned() };
            findings.push(Finding::warning("huge-pages", text).with_hint(hint));
        }
    }
    findings
}
