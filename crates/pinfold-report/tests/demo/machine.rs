//! Regular machines of any size, and plans as some strategies would make them.

use std::collections::BTreeMap;

use pinfold_model::{
    Core, CoreId, CoreKind, CpuSet, Finding, GuestTopology, IsolationScope, L3Domain, L3Id,
    LogicalPu, NodeId, NumaNode, Package, PackageId, Plan, Pu, PuId, Role, Smt, Source, Speed,
    ThreadPlan, Topology, VnodeKind, VnodePlan,
};

/// Numbers of a regular machine: packages × NUMA nodes × L3 domains × cores × CPUs per core.
/// CPUs are numbered as Linux does on x86: first one CPU of each core, then the siblings.
#[derive(Clone, Copy)]
struct Sizes {
    cores: u32,
    threads: u32,
    per_l3: u32,
    per_node: u32,
    per_package: u32,
}

impl Sizes {
    fn pu(self, core: u32, rank: u32) -> Pu {
        Pu {
            os: PuId(rank * self.cores + core),
            logical: LogicalPu(core * self.threads + rank),
            core: CoreId(core),
            smt_rank: rank,
            l3: Some(L3Id(core / self.per_l3)),
            node: Some(NodeId(core / self.per_node)),
            package: PackageId(core / self.per_package),
            kind: CoreKind::Uniform,
        }
    }

    /// Groups of `size` cores with the CPUs of each.
    fn groups(self, size: u32) -> impl Iterator<Item = (u32, CpuSet)> {
        (0..self.cores / size).map(move |group| {
            let cores = group * size..(group + 1) * size;
            let pus = cores.flat_map(|core| (0..self.threads).map(move |rank| self.pu(core, rank)));
            (group, pus.map(|pu| pu.os).collect())
        })
    }
}

/// The machine of this shape.
pub fn machine(shape: [u32; 5]) -> Topology {
    let [packages, nodes, l3s, cores, threads] = shape;
    let sizes = Sizes {
        cores: packages * nodes * l3s * cores,
        threads,
        per_l3: cores,
        per_node: l3s * cores,
        per_package: nodes * l3s * cores,
    };
    let pus: Vec<Pu> = (0..sizes.cores)
        .flat_map(|core| (0..threads).map(move |rank| sizes.pu(core, rank)))
        .collect();
    Topology {
        source: Source::Synthetic("example".to_owned()),
        fingerprint: "5f1c0ffee0example".to_owned(),
        model: Some("Example CPU @ 2.60 GHz".to_owned()),
        hypervisor: Some("KVM".to_owned()),
        cores: sizes.groups(1).map(|(id, pus)| core(sizes, id, pus)).collect(),
        l3: sizes.groups(sizes.per_l3).map(|(id, pus)| l3(id, pus)).collect(),
        nodes: sizes.groups(sizes.per_node).map(|(id, pus)| node(id, pus)).collect(),
        packages: sizes
            .groups(sizes.per_package)
            .map(|(id, pus)| Package { id: PackageId(id), pus })
            .collect(),
        smt: if threads > 1 { Smt::On } else { Smt::NotSupported },
        offline: CpuSet::new(),
        isolated: CpuSet::new(),
        nohz_full: CpuSet::new(),
        allowed: pus.iter().map(|pu| pu.os).collect(),
        mask: None,
        l2_domains: Vec::new(),
        frequency_domains: Vec::new(),
        highest_khz: BTreeMap::new(),
        core_ranking: BTreeMap::new(),
        devices: Vec::new(),
        boot_parameters: Vec::new(),
        findings: vec![Finding::note("cpufreq", "no frequency domains are shown to this machine")],
        pus,
    }
}

fn core(sizes: Sizes, id: u32, pus: CpuSet) -> Core {
    let package = PackageId(id / sizes.per_package);
    Core { id: CoreId(id), pus, package, kind: CoreKind::Uniform }
}

fn l3(id: u32, pus: CpuSet) -> L3Domain {
    L3Domain { id: L3Id(id), pus, size_bytes: 32 << 20, ways: 16 }
}

fn node(id: u32, pus: CpuSet) -> NumaNode {
    NumaNode {
        id: NodeId(id),
        pus,
        memory_bytes: 16 << 30,
        free_bytes: None,
        huge_pages: Vec::new(),
    }
}

/// How the made-up strategies place.
#[derive(Clone, Copy)]
pub enum Shape {
    /// Everything floats.
    Float,
    /// vCPUs pinned one per core, away from core 0, other tasks excluded.
    Apart,
    /// vCPUs pinned in order from CPU 0.
    Packed,
}

/// The vCPUs' entries.
fn vcpus(topology: &Topology, shape: Shape, count: u32) -> Vec<ThreadPlan> {
    let (places, reason) = match shape {
        Shape::Float => (Vec::new(), "nothing is pinned"),
        Shape::Packed => (
            cyclic(order(topology, u32::MAX), 0).take(count as usize).collect(),
            "the next CPU in the order of packages, cores and siblings",
        ),
        Shape::Apart => (
            cyclic(order(topology, 0), 1).take(count as usize).collect(),
            "a core of its own, away from the host’s core",
        ),
    };
    (0..count)
        .map(|index| thread(Role::Vcpu(index), place(&places, topology, index), reason))
        .collect()
}

fn order(topology: &Topology, most: u32) -> Vec<PuId> {
    topology.pus.iter().filter(|pu| pu.smt_rank <= most).map(|pu| pu.os).collect()
}

fn place(places: &[CpuSet], topology: &Topology, index: u32) -> CpuSet {
    places.get(index as usize).cloned().unwrap_or(topology.online())
}

fn cyclic(pus: Vec<PuId>, skip: usize) -> impl Iterator<Item = CpuSet> {
    pus.into_iter().map(CpuSet::single).collect::<Vec<_>>().into_iter().cycle().skip(skip)
}

fn thread(role: Role, pus: CpuSet, reason: &str) -> ThreadPlan {
    ThreadPlan { role, pus, policy: None, reason: reason.to_owned() }
}

/// A plan of `count` vCPUs.
pub fn plan(topology: &Topology, strategy: &str, shape: Shape, count: u32) -> Plan {
    let all = topology.online();
    let mut threads = vcpus(topology, shape, count);
    let used = threads.iter().map(|it| &it.pus).collect::<CpuSet>();
    let apart = matches!(shape, Shape::Apart) && topology.cores.len() > 1;
    let (host, exclusive) = if apart {
        let host = topology.core(CoreId(0)).pus.clone();
        let exclusive = used.difference(&host);
        (host, exclusive)
    } else {
        (all.clone(), CpuSet::new())
    };
    let siblings = all.difference(&used).difference(&host);
    let emulator = if apart && !siblings.is_empty() { siblings } else { host.clone() };
    threads.push(thread(Role::Emulator, emulator, "kept away from the CPUs of the vCPUs"));
    let isolation = if apart { IsolationScope::Own } else { IsolationScope::None };
    let guest = GuestTopology {
        sockets: 1,
        cores: count,
        threads: 1,
        reason: "one thread per core, as the vCPUs are placed".to_owned(),
    };
    Plan {
        strategy: strategy.to_owned(),
        fingerprint: topology.fingerprint.clone(),
        vnodes: vec![VnodePlan {
            name: "demo".to_owned(),
            kind: VnodeKind::VirtualMachine,
            threads,
            guest: Some(guest),
            memory: None,
            speed: Speed::FULL,
        }],
        irqs: Vec::new(),
        tuning: pinfold_model::Tuning::default(),
        cpus: None,
        housekeeping: host,
        exclusive,
        isolation,
        avoid_pus: pinfold_model::CpuSet::new(),
        moved: Vec::new(),
        housekeeping_reason: "the core that takes most interrupts".to_owned(),
        findings: Vec::new(),
    }
}
