//! How long planning takes on machines of 2 to 4,096 PUs: `cargo run --release -p pinfold-plan --example speed`.
//!
//! The largest case is 500 virtual machines with 10,000 vCPUs together on 4,096 PUs in 64
//! nodes; smaller machines get as much less. Strategies that give each vCPU a PU of its own
//! are asked for what fits. Each figure is the median of 9 plans, in milliseconds.

#![expect(clippy::expect_used, reason = "a program that prints a table and ends")]

use std::io::Write;

use pinfold_host::{Clock, SystemClock};
use pinfold_model::{
    Core, CoreId, CoreKind, CpuSet, IsolationScope, L3Domain, L3Id, LogicalPu, NodeId, NumaNode,
    Package, PackageId, Pu, PuId, Request, Smt, Source, Speed, Topology, VcpuCount, VmRequest,
    VnodeRequest,
};
use pinfold_plan::{plan, strategies};

const REPETITIONS: usize = 9;

fn main() {
    let mut out = std::io::stdout();
    let sizes = [2, 8, 32, 64, 256, 1024, 2048, 4096];
    write!(out, "{:16}", "PUs").expect("a line");
    sizes.iter().for_each(|pus| write!(out, "{pus:>10}").expect("a cell"));
    writeln!(out).expect("a line");
    for strategy in strategies() {
        write!(out, "{:16}", strategy.name).expect("a name");
        for pus in sizes {
            let topology = machine(pus);
            match median_ms(strategy.name, &topology, pus) {
                Some(time) => write!(out, "{time:>10.3}").expect("a cell"),
                None => write!(out, "{:>10}", "-").expect("a cell"),
            }
            out.flush().expect("a cell");
        }
        writeln!(out).expect("a line");
    }
}

/// The median time of a plan; `None` if the strategy refuses the request.
fn median_ms(strategy: &str, topology: &Topology, pus: u32) -> Option<f64> {
    let request = request(strategy, pus);
    let clock = SystemClock;
    let mut times = Vec::new();
    for _ in 0..REPETITIONS {
        let start = clock.now_ns();
        let made = plan(strategy, topology, &request);
        let end = clock.now_ns();
        made.ok()?;
        times.push(end - start);
    }
    times.sort_unstable();
    let median = times.get(REPETITIONS / 2).copied()?;
    Some(f64::from(u32::try_from(median).unwrap_or(u32::MAX)) / 1e6)
}

/// As many vnodes and vCPUs as the machine's part of 500 and 10,000.
fn request(strategy: &str, pus: u32) -> Request {
    let vnodes = (pus * 500).div_ceil(4096);
    let vcpus = match strategy {
        "none" | "compact" | "compact-cores" | "sequential" | "scatter" | "numa-exclusive"
        | "auto" => (pus * 10_000).div_ceil(4096).div_ceil(vnodes).min(pus),
        // Not more than a domain has.
        "l3-exclusive" => 8,
        "isolcpus" | "balanced" | "balanced-shared" | "max-performance" => {
            (pus - pus.min(2)).checked_div(vnodes).unwrap_or(1) / 2 * 2
        }
        _ => (pus / 2).saturating_sub(1) / vnodes,
    };
    let of = |number: u32| {
        let name = format!("vm{number}");
        match strategy {
            "vnodes" => VnodeRequest::processes(&name, vcpus.max(1), Speed::FULL),
            _ => VnodeRequest::vm(&name, VmRequest::of(VcpuCount::Exactly(vcpus.max(1)))),
        }
    };
    let mut request = Request::of((0..vnodes).map(of).collect());
    request.isolation = IsolationScope::Host;
    request
}

/// Cores of two PUs numbered apart, 4 cores per L3, 64 PUs per node, one node per package.
fn machine(pus: u32) -> Topology {
    let cores = pus / 2;
    let os = |core: u32, thread: u32| PuId(core + thread * cores);
    let set = |part: u32, of: u32| -> CpuSet {
        let inside = (part * of..(part + 1) * of).filter(|core| *core < cores);
        inside.flat_map(|core| [os(core, 0), os(core, 1)]).collect()
    };
    let pu = |logical: u32| Pu {
        os: os(logical / 2, logical % 2),
        logical: LogicalPu(logical),
        core: CoreId(logical / 2),
        smt_rank: logical % 2,
        l3: Some(L3Id(logical / 8)),
        node: Some(NodeId(logical / 64)),
        package: PackageId(logical / 64),
        kind: CoreKind::Uniform,
    };
    let core = |core: u32| Core {
        id: CoreId(core),
        pus: set(core, 1),
        package: PackageId(core / 32),
        kind: CoreKind::Uniform,
    };
    let l3 = |l3: u32| L3Domain { id: L3Id(l3), pus: set(l3, 4), size_bytes: 32 << 20 };
    let node = |node: u32| NumaNode { id: NodeId(node), pus: set(node, 32), memory_bytes: 1 << 38 };
    let package = |package: u32| Package { id: PackageId(package), pus: set(package, 32) };
    Topology {
        source: Source::Synthetic("speed".to_owned()),
        fingerprint: format!("speed-{pus}"),
        model: None,
        hypervisor: None,
        pus: (0..pus).map(pu).collect(),
        cores: (0..cores).map(core).collect(),
        l3: (0..pus.div_ceil(8)).map(l3).collect(),
        nodes: (0..pus.div_ceil(64)).map(node).collect(),
        packages: (0..pus.div_ceil(64)).map(package).collect(),
        smt: Smt::On,
        offline: CpuSet::new(),
        isolated: CpuSet::new(),
        nohz_full: CpuSet::new(),
        allowed: CpuSet::first_n(pus),
        frequency_domains: Vec::new(),
        devices: Vec::new(),
        findings: Vec::new(),
    }
}
