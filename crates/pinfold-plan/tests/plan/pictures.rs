//! What every strategy gives, as texts that a person reads: a golden file for each host of
//! `fixtures/hosts`, and the pictures of `docs/strategies.md`.
//!
//! `PINFOLD_BLESS=1` rewrites them; read the difference before it is committed.

use std::fmt::Write as _;

use pinfold_host::files;
use pinfold_model::{
    IsolationScope, Plan, PuId, Request, Role, Speed, ThreadPlan, Topology, VcpuCount, VmRequest,
    VnodeRequest,
};
use pinfold_plan::{plan, strategies};
use pinfold_samples::{HOSTS, hosts};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/strategies.md");
/// Longer rows of vCPUs are cut.
const MOST_VCPUS: usize = 40;

fn vm(name: &str, vcpus: VcpuCount) -> VnodeRequest {
    VnodeRequest::vm(name, VmRequest::from_vcpus(vcpus))
}

/// Process groups as in Buchert 2011 Fig. 2.
fn groups() -> Vec<VnodeRequest> {
    [("1", 1, 75), ("2", 1, 40), ("3", 2, 60), ("4", 4, 25)]
        .map(|(name, cores, percent)| {
            VnodeRequest::processes(
                name,
                cores,
                Speed::from_millionths(percent * 10_000).expect("a speed"),
            )
        })
        .to_vec()
}

/// What each host is asked for, with a word for it.
fn requests(strategy: &str) -> Vec<(&'static str, Vec<VnodeRequest>)> {
    let exactly = VcpuCount::Exactly;
    match strategy {
        "vnodes" => vec![("1+1+2+4 cores", groups())],
        "multi-vm" => vec![
            ("4", vec![vm("a", exactly(4))]),
            ("2+2+1", vec![vm("a", exactly(2)), vm("b", exactly(2)), vm("c", exactly(1))]),
        ],
        _ => vec![
            ("auto", vec![vm("a", VcpuCount::Auto)]),
            ("4", vec![vm("a", exactly(4))]),
            ("2+2", vec![vm("a", exactly(2)), vm("b", exactly(2))]),
        ],
    }
}

fn asked(vnodes: Vec<VnodeRequest>) -> Request {
    Request { isolation: IsolationScope::Host, ..Request::from_vnodes(vnodes) }
}

/// `a: vcpus 1,2,3 · emulator 5-7 · guest 1×3×1`
fn lines(layout: &Plan) -> String {
    let mut text = String::new();
    for vnode in &layout.vnodes {
        let vcpus: Vec<&ThreadPlan> = vnode.vcpus().collect();
        let mut parts = Vec::new();
        if !vcpus.is_empty() {
            let shown: Vec<String> =
                vcpus.iter().take(MOST_VCPUS).map(|thread| thread.pus.to_string()).collect();
            let more = match vcpus.len() - shown.len() {
                0 => String::new(),
                rest => format!(" … {rest} more"),
            };
            parts.push(format!("{} vcpu {}{more}", vcpus.len(), shown.join(" ")));
        }
        for thread in vnode.threads.iter().filter(|thread| !matches!(thread.role, Role::Vcpu(_))) {
            parts.push(format!("{} {}", thread.role, thread.pus));
        }
        if let Some(policy) = vcpus.first().and_then(|thread| thread.policy) {
            parts.push(format!("policy {policy}"));
        }
        if let Some(guest) = &vnode.guest {
            parts.push(format!("guest {}×{}×{}", guest.sockets, guest.cores, guest.threads));
        }
        if let Some(memory) = &vnode.memory {
            let nodes: Vec<String> = memory.nodes.iter().map(ToString::to_string).collect();
            parts.push(format!("memory on {}", nodes.join(",")));
        }
        writeln!(text, "    {}: {}", vnode.name, parts.join(" · ")).expect("a string");
    }
    let alone =
        if layout.exclusive.is_empty() { "-".to_owned() } else { layout.exclusive.to_string() };
    writeln!(text, "    host {} · alone {alone}", layout.housekeeping).expect("a string");
    text
}

fn golden(path: &str, text: &str) {
    if std::env::var_os("PINFOLD_BLESS").is_some() {
        files::write_atomic(path, text.as_bytes()).expect("the file can be written");
    }
    let there = files::read_text(path).unwrap_or_default();
    assert!(there == text, "{path} is not what the planner gives: cargo xtask golden, then read");
}

#[test]
fn every_strategy_on_every_host_is_what_was_read() {
    for (name, topology) in hosts() {
        let stem = name.rsplit_once('.').map_or(name.as_str(), |(stem, _)| stem);
        let mut text = String::new();
        for strategy in strategies() {
            for (word, vnodes) in requests(strategy.name) {
                writeln!(text, "{} {word}", strategy.name).expect("a string");
                match plan(strategy.name, &topology, &asked(vnodes)) {
                    Ok(layout) => text.push_str(&lines(&layout)),
                    Err(error) => writeln!(text, "    refused: {error}").expect("a string"),
                }
            }
        }
        golden(&format!("{HOSTS}/{stem}.plans"), &text);
    }
}

/// Who runs on a CPU: `v0`, `a0` with several machines, `E` the emulator, `h` the host.
fn cell(layout: &Plan, topology: &Topology, pu: PuId) -> String {
    let several = layout.vnodes.len() > 1;
    let mut names = Vec::new();
    for (vnode, thread) in layout.threads().filter(|(_, thread)| {
        thread.pus.contains(pu)
            && !topology.nodes.iter().any(|node| node.pus.is_subset(&thread.pus))
    }) {
        let of = if several { vnode.name.as_str() } else { "v" };
        match &thread.role {
            Role::Vcpu(index) => names.push(format!("{of}{index}")),
            Role::Emulator if several => names.push(format!("E{of}")),
            Role::Emulator => names.push("E".to_owned()),
            Role::Iothread(_) | Role::Vhost(_) | Role::Worker => names.push(format!("I{of}")),
            Role::Task => names.push(format!("G{of}")),
        }
    }
    if layout.housekeeping.contains(pu) && layout.housekeeping.len() < topology.online().len() {
        names.push("h".to_owned());
    }
    if names.is_empty() { "·".to_owned() } else { names.join("+") }
}

/// A row for each thread of the cores, a block for each package.
fn picture(layout: &Plan, topology: &Topology) -> String {
    let mut text = String::new();
    let widest = topology
        .pus
        .iter()
        .map(|pu| format!("{:>2} {}", pu.os, cell(layout, topology, pu.os)).chars().count())
        .max()
        .unwrap_or(0);
    for package in &topology.packages {
        let cores: Vec<_> =
            topology.cores.iter().filter(|core| !package.pus.is_disjoint(&core.pus)).collect();
        let threads = cores.iter().map(|core| core.pus.len()).max().unwrap_or(0);
        for row in 0..threads {
            let cells = cores.iter().map(|core| {
                let pu = core.pus.iter().nth(row);
                let text = pu.map_or_else(String::new, |pu| {
                    format!("{pu:>2} {}", cell(layout, topology, pu))
                });
                format!("{text:widest$}")
            });
            let cells: Vec<String> = cells.collect();
            writeln!(text, "| {} |", cells.join(" | ")).expect("a string");
        }
        text.push('\n');
    }
    text.trim_end().to_owned()
}

const HEAD: &str = "\
# The strategies

Written by `cargo xtask golden` from the planner itself; a test compares them.

Each picture is a machine: a block for each package, a column for each core, a row for each thread of the cores.
The number is the CPU number in Linux. After it is what is pinned there: `v0` vCPU 0 (`a0`: vCPU 0 of machine *a*), `E` the emulator, `G` a process group, `I` an iothread, `h` the host's own tasks.
A dot is a CPU without pinned threads; threads that may run on a whole NUMA node are not drawn.
The desktop is an i7-4790K (4 cores of 2 threads) whose machine has as many vCPUs as the strategy chooses; the server has two E5-2670 (8 cores of 2 threads each) and two machines with 6 vCPUs.
Isolation is requested.

For every strategy:

- **Kinds of cores and unequal caches**: a machine stays on one kind of core, and inside one L3 cache, where that has room; the preferred part is taken first, and the host's tasks and the emulator take the weaker one. `--prefer` says which part is preferred ([requests](requests.md#which-cores-are-taken-first)). Strategies that are an order of CPUs (`compact`, `compact-cores`, `sequential`, `scatter`, `isolcpus`) stay on one kind and keep their order.
- **Isolated CPUs** (`isolcpus=`, isolated partitions) carry vCPUs first, and are never the host's. `--explain` names those that stay unused.
- **Offline CPUs** are not used. A request that names one is refused with the command that brings it online. A saved plan may be applied while its CPUs are offline: they are brought online first, and `undo` takes them offline again. The sibling of a `realtime` vCPU that is offline is on the line of `--emit cmdline`, so that it stays isolated if it comes online.
- **Process groups** get as many CPUs as they ask for cores, or the strategy refuses. The strategies that start again at their first CPU (\"wraps\") and `none` place a group that asks for more than there are, with the warning `fewer CPUs`. A group at less than full speed that gets sibling threads in place of cores has the warning `fewer cores`, and `auto` refuses it.
- **Large machines**: a machine that no NUMA node holds is divided over as few nodes as can be, by the strategies that promise no order of CPUs and no domain. Of several machines that do not fit next to each other otherwise the largest is placed first, the others on what is left.
- **Emulators** that float do so over CPUs without a vCPU. Where none is left, they have the CPUs of their own machine's vCPUs, with the note `emulator`, and never those of another machine alone.
- **Helpers** with the host's tasks (emulator, iothreads, vhost workers) may use each of the host's CPUs on the nodes of their vCPUs; if none is left there, those of the same package, then all. If the request names or counts the host's CPUs, only these.
- **Several machines** go each to the node with the most free cores (`low-latency`, `balanced`); nodes without memory, or without the memory or free huge pages that are asked for, come last.
- **Memory** that no node with CPUs has is taken from nodes without CPUs (CXL), with the note `memory`.
- **Memory** that leaves the host at most 1 GiB, or less than 5 % of what it has, is the warning `host memory`.
";

fn section(strategy: &pinfold_plan::Strategy, hosts: &[(String, Topology)]) -> String {
    let mut text = format!(
        "\n## `{}`\n\n{}.\nSource: {}.\n",
        strategy.name, strategy.summary, strategy.source
    );
    let asks: [(&str, Vec<VnodeRequest>); 2] = match strategy.name {
        "vnodes" => [("i7-4790k", groups()), ("e5-2670-dual", groups())],
        "multi-vm" => [
            ("i7-4790k", vec![vm("a", VcpuCount::Exactly(2)), vm("b", VcpuCount::Exactly(1))]),
            ("e5-2670-dual", twice()),
        ],
        _ => [("i7-4790k", vec![vm("a", VcpuCount::Auto)]), ("e5-2670-dual", twice())],
    };
    for (host, vnodes) in asks {
        let found = hosts.iter().find(|(name, _)| name.starts_with(host));
        let (_, topology) = found.expect("the host is there");
        text.push('\n');
        match plan(strategy.name, topology, &asked(vnodes)) {
            Ok(layout) => {
                let picture = picture(&layout, topology);
                writeln!(text, "```text\n{picture}\n```").expect("a string");
                for finding in &layout.findings {
                    writeln!(text, "- {finding}").expect("a string");
                }
            }
            Err(error) => writeln!(text, "Refused on {host}: {error}.").expect("a string"),
        }
    }
    text
}

fn twice() -> Vec<VnodeRequest> {
    ["a", "b"].map(|name| vm(name, VcpuCount::Exactly(6))).to_vec()
}

#[test]
fn the_page_of_the_strategies_is_what_they_do() {
    let hosts = hosts();
    let mut page = HEAD.to_owned();
    for strategy in strategies() {
        page.push_str(&section(strategy, &hosts));
    }
    golden(PAGE, &page);
}
