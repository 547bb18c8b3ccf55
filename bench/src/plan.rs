//! `plan`: the duration of planning, on machines of 2 to 4,096 CPUs.
//!
//! The largest case is 500 virtual machines with 10,000 vCPUs in total on 4,096 CPUs in 64 nodes;
//! smaller machines get proportionally fewer. Strategies that give each vCPU its own CPU are used
//! with as many as fit. The lower bound is a loop that only assigns CPUs to vCPUs. hwloc's own
//! programs do a part of the job (a set of CPUs for each part, without roles, reasons or checks)
//! and are timed as whole programs, which first read the same machine from its description.

use std::collections::BTreeMap;
use std::hint::black_box;

use pinfold_host::{Clock as _, LiveHost, SnapshotHost, SystemClock, paths, process};
use pinfold_model::{
    Core, CoreId, CoreKind, CpuSet, IsolationScope, L3Domain, L3Id, LogicalPu, NodeId, NumaNode,
    Package, PackageId, Plan, Pu, PuId, Request, Role, Smt, Source, Speed, Tid, Topology,
    VcpuCount, VmRequest, VnodeRequest,
};
use pinfold_plan::layout::Layout;
use pinfold_plan::replan::{Change, Placements, replan};
use pinfold_plan::{plan, strategies};

use crate::arguments::{Arguments, Failure};
use crate::origin;
use crate::page::{Figures, Table};
use crate::pairs::{self, Contender, Times};

const ROUNDS: u32 = 15;
const SIZES: [u32; 8] = [2, 8, 32, 64, 256, 1024, 2048, 4096];
const MOST: u32 = 4096;
const VCPUS: u32 = 10_000;
const DESCRIPTION: &str = "numa:64 l3:8 core:4 pu:2";
const TIMEOUT_NS: u64 = 60_000_000_000;

/// Times every strategy on every size, and the largest together with the competitors.
pub fn run(arguments: &Arguments) -> Result<Figures, Failure> {
    let host = LiveHost::new()?;
    let here = pinfold_topology::discover(&host)?;
    let rounds = arguments.rounds.unwrap_or(ROUNDS);
    let peers = peers(rounds, arguments.seed)?;
    let (growth, slowest) = growth(rounds, arguments.seed)?;
    Ok(Figures {
        name: "plan".to_owned(),
        title: "planning 10,000 vCPUs in 500 machines on 4,096 CPUs".to_owned(),
        origin: format!(
            "{}; Pinfold {}; {rounds} rounds, seed {}",
            origin::of_host(&host, &here)?,
            env!("CARGO_PKG_VERSION"),
            arguments.seed
        ),
        tables: vec![pairs::table(&peers, &[0]), growth],
        notes: vec![
            "The second table has medians in milliseconds; – marks a request that the strategy \
             refuses on a machine of this size.".to_owned(),
            "The last column is the exponent of the growth from 256 to 4,096 CPUs (1 is linear; n log n is 1.15 there).".to_owned(),
            "The claims are read from files and processes of a simulated host with as many machines, and printed.".to_owned(),
            "The machine that is added has 8 vCPUs; the vCPUs of the others are on all CPUs but \
             the last 32.".to_owned(),
            format!("The slowest plan of a strategy takes {slowest:.1} ms. The bounds, as ratios to hwloc-distrib: 0.15 for one strategy, 0.4 for `auto`, 1 for a check; 1 ms for one more machine and for each re-plan; 50 ms for the claims."),
        ],
    })
}

/// hwloc's programs, the lower bound and Pinfold on the largest machine.
fn peers(rounds: u32, seed: u64) -> Result<Vec<Times>, Failure> {
    let topology = &machine(MOST);
    let placed = &placements(topology)?;
    let mut contenders = programs()?;
    contenders.push(Contender::new("a loop that deals CPUs", || Ok(time(|| deal(topology)))));
    for strategy in strategies() {
        let asked = request(strategy.name, MOST);
        if plan(strategy.name, topology, &asked).is_err() {
            continue;
        }
        let name = format!("pinfold, {}", strategy.name);
        contenders.push(Contender::new(&name, move || {
            Ok(time(|| plan(strategy.name, topology, &asked)))
        }));
    }
    let made = plan("compact", topology, &request("compact", MOST))?;
    let layouts = Layout::of_plan(&made, "plan.json");
    contenders.push(Contender::new("pinfold, check of compact", move || {
        Ok(time(|| pinfold_lint::lint(&layouts, topology)))
    }));
    let more = one_more(topology);
    contenders.push(Contender::new("pinfold, one more machine", move || {
        Ok(time(|| plan(ONE_MORE, topology, &more)))
    }));
    for (name, change) in changes() {
        contenders.push(Contender::new(&format!("pinfold, {name}"), move || {
            let mut own = placed.clone();
            Ok(time(|| replan(topology, &mut own, &change)))
        }));
    }
    pairs::rounds(&mut contenders, rounds, seed)
}

/// The strategy for one more machine on an occupied host.
const ONE_MORE: &str = "balanced";

/// One more machine, where the others leave the last 32 CPUs.
fn one_more(topology: &Topology) -> Request {
    let last = topology.pus.len().saturating_sub(32);
    let mut request = Request::vm("new", VcpuCount::Exactly(8));
    request.isolation = IsolationScope::Host;
    request.avoid = topology.pus.iter().take(last).map(|pu| pu.os).collect();
    request
}

/// Machines of 8 vCPUs, one placement each, as many as leave 32 CPUs, at most 500.
fn placements(topology: &Topology) -> Result<Placements, Failure> {
    let count = (topology.pus.len().saturating_sub(32) / 8).min(500);
    let vm = VmRequest::from_vcpus(VcpuCount::Exactly(8));
    let vnodes = (0..count).map(|number| VnodeRequest::vm(&format!("vm{number}"), vm.clone()));
    let mut request = Request::from_vnodes(vnodes.collect());
    request.isolation = IsolationScope::Host;
    let all = plan(ONE_MORE, topology, &request).map_err(|error| error.to_string())?;
    // Each placement records its own CPUs and findings, not those of all.
    let plans = all.vnodes.iter().map(|vnode| Plan {
        cpus: None,
        findings: Vec::new(),
        ..all.extract_vnode(vnode)
    });
    Ok(Placements::new(plans.collect(), CpuSet::new()))
}

/// Changes on an occupied host.
fn changes() -> [(&'static str, Change); 3] {
    let mut request = Request::vm("new", VcpuCount::Exactly(8));
    request.isolation = IsolationScope::Host;
    let strategy = ONE_MORE.to_owned();
    let (vnode, role) = ("vm0".to_owned(), Role::Vcpu(8));
    [
        ("re-plan for an arrival", Change::Arrival { strategy, request }),
        ("re-plan for one more vCPU", Change::Added { vnode: vnode.clone(), role }),
        ("re-plan for a departure", Change::Departure { vnode }),
    ]
}

/// Re-plans for a change of one machine among as many as are on the host.
fn replanning(
    machines: &[(u32, Topology)],
    rounds: u32,
    seed: u64,
) -> Result<Vec<Vec<String>>, Failure> {
    let mut rows = Vec::new();
    for (name, change) in changes() {
        let mut row = vec![format!("({name})")];
        let mut by_size = Vec::new();
        for (pus, topology) in machines {
            let placed = placements(topology).ok().filter(|placed| !placed.plans.is_empty());
            let Some(placed) = placed else {
                row.push("–".to_owned());
                continue;
            };
            let times = pairs::rounds(
                &mut [Contender::new(name, || {
                    let mut own = placed.clone();
                    Ok(time(|| replan(topology, &mut own, &change)))
                })],
                rounds,
                seed,
            )?;
            let median = pinfold_stats::median(&times[0].samples).unwrap_or(0.0) / 1e6;
            by_size.push((f64::from(*pus), median));
            row.push(format!("{median:.3}"));
        }
        row.push(exponent(&by_size));
        rows.push(row);
    }
    Ok(rows)
}

/// hwloc's programs.
fn programs<'c>() -> Result<Vec<Contender<'c>>, Failure> {
    let mut contenders = Vec::new();
    let count = VCPUS.to_string();
    let distrib = vec!["-i".to_owned(), DESCRIPTION.to_owned(), "--single".to_owned(), count];
    let calc = ["-i", DESCRIPTION, "-I", "pu", "all"].map(str::to_owned).to_vec();
    for (program, words) in [("hwloc-distrib", distrib), ("hwloc-calc", calc)] {
        let path = process::find_program(program)
            .ok_or_else(|| format!("{program} is not installed; apt-get install hwloc"))?;
        contenders.push(Contender::new(&format!("{program}, whole program"), move || {
            let begin = SystemClock.now_ns();
            let output = process::capture(&path, &words, TIMEOUT_NS)?;
            let end = SystemClock.now_ns();
            if output.status.success() {
                Ok(end.saturating_sub(begin) as f64)
            } else {
                Err(format!("{program} failed: {}", output.stderr_text().trim()).into())
            }
        }));
    }
    Ok(contenders)
}

/// The time to make something, in nanoseconds, without the time to drop it.
fn time<T>(work: impl FnOnce() -> T) -> f64 {
    let begin = SystemClock.now_ns();
    let made = black_box(work());
    let spent = pairs::since(begin);
    drop(made);
    spent
}

/// Assigns one CPU to each vCPU, in order.
fn deal(topology: &Topology) -> Vec<CpuSet> {
    let pus = topology.pus.iter().map(|pu| pu.os).cycle();
    pus.take(VCPUS as usize).map(|pu| CpuSet::from_iter([pu])).collect()
}

/// Medians of every strategy by size, and the longest of them (ms).
fn growth(rounds: u32, seed: u64) -> Result<(Table, f64), Failure> {
    let machines: Vec<(u32, Topology)> = SIZES.iter().map(|pus| (*pus, machine(*pus))).collect();
    let mut head = vec!["strategy".to_owned()];
    head.extend(SIZES.iter().map(|pus| format!("{pus} CPUs")));
    head.push("exponent".to_owned());
    let mut rows = Vec::new();
    let mut slowest: f64 = 0.0;
    for strategy in strategies() {
        let mut row = vec![strategy.name.to_owned()];
        let mut by_size = Vec::new();
        for (pus, topology) in &machines {
            let asked = request(strategy.name, *pus);
            if plan(strategy.name, topology, &asked).is_err() {
                row.push("–".to_owned());
                continue;
            }
            let mut one = [Contender::new(strategy.name, || {
                Ok(time(|| plan(strategy.name, topology, &asked)))
            })];
            let times = pairs::rounds(&mut one, rounds, seed)?;
            let median = pinfold_stats::median(&times[0].samples).unwrap_or(0.0) / 1e6;
            slowest = slowest.max(median);
            by_size.push((f64::from(*pus), median));
            row.push(format!("{median:.3}"));
        }
        row.push(exponent(&by_size));
        rows.push(row);
    }
    rows.push(checking(&machines, rounds, seed)?);
    rows.push(adding(&machines, rounds, seed)?);
    rows.extend(replanning(&machines, rounds, seed)?);
    rows.push(claiming(&machines, rounds, seed)?);
    Ok((Table { head, rows }, slowest))
}

/// The growth from 256 to 4,096 CPUs, as an exponent.
fn exponent(by_size: &[(f64, f64)]) -> String {
    match (time_at(256.0, by_size), time_at(4096.0, by_size)) {
        (Some(few), Some(many)) => format!("{:.2}", (many / few).ln() / 16_f64.ln()),
        (_, _) => "–".to_owned(),
    }
}

fn time_at(pus: f64, by_size: &[(f64, f64)]) -> Option<f64> {
    by_size.iter().find(|(size, _)| *size == pus).map(|(_, time)| *time)
}

/// `plan --check` of the plans of `compact`: all machines together, most CPUs used by several.
fn checking(machines: &[(u32, Topology)], rounds: u32, seed: u64) -> Result<Vec<String>, Failure> {
    let mut row = vec!["(check of compact)".to_owned()];
    let mut by_size = Vec::new();
    for (pus, topology) in machines {
        let made = plan("compact", topology, &request("compact", *pus))?;
        let layouts = Layout::of_plan(&made, "plan.json");
        let times = pairs::rounds(
            &mut [Contender::new("check", || Ok(time(|| pinfold_lint::lint(&layouts, topology))))],
            rounds,
            seed,
        )?;
        let median = pinfold_stats::median(&times[0].samples).unwrap_or(0.0) / 1e6;
        by_size.push((f64::from(*pus), median));
        row.push(format!("{median:.3}"));
    }
    row.push(exponent(&by_size));
    Ok(row)
}

/// Planning one more machine on an occupied host.
fn adding(machines: &[(u32, Topology)], rounds: u32, seed: u64) -> Result<Vec<String>, Failure> {
    let mut row = vec!["(one more machine)".to_owned()];
    let mut by_size = Vec::new();
    for (pus, topology) in machines {
        let more = one_more(topology);
        if plan(ONE_MORE, topology, &more).is_err() {
            row.push("–".to_owned());
            continue;
        }
        let times = pairs::rounds(
            &mut [Contender::new(ONE_MORE, || Ok(time(|| plan(ONE_MORE, topology, &more))))],
            rounds,
            seed,
        )?;
        let median = pinfold_stats::median(&times[0].samples).unwrap_or(0.0) / 1e6;
        by_size.push((f64::from(*pus), median));
        row.push(format!("{median:.3}"));
    }
    row.push(exponent(&by_size));
    Ok(row)
}

/// Reading and printing the claims of a simulated host with 500 machines for 4,096 CPUs: half of
/// them domains of libvirt, half of them known by their threads only.
fn claiming(machines: &[(u32, Topology)], rounds: u32, seed: u64) -> Result<Vec<String>, Failure> {
    let mut row = vec!["(claims)".to_owned()];
    let mut by_size = Vec::new();
    for (pus, topology) in machines {
        let host = occupied_host(*pus);
        let times = pairs::rounds(
            &mut [Contender::new("claims", || {
                Ok(time(|| {
                    let claims = pinfold_claims::read_captured(&host);
                    pinfold_claims::render::claims(&claims, topology, Some(80))
                }))
            })],
            rounds,
            seed,
        )?;
        let median = pinfold_stats::median(&times[0].samples).unwrap_or(0.0) / 1e6;
        by_size.push((f64::from(*pus), median));
        row.push(format!("{median:.3}"));
    }
    row.push(exponent(&by_size));
    Ok(row)
}

/// A host whose machines have 8 vCPUs, each on a CPU of its own.
fn occupied_host(pus: u32) -> SnapshotHost {
    let mut host = SnapshotHost::new();
    host.insert_file(&paths::cpu_online(), format!("0-{}\n", pus - 1));
    host.insert_file(&paths::own_mountinfo(), "1 0 0:1 / /sys/fs/cgroup rw - cgroup2 none rw\n");
    host.insert_file(&paths::cgroup_controllers("/sys/fs/cgroup"), "cpuset cpu\n");
    let all = format!("0-{}\n", pus - 1);
    for machine in 0..(pus * 500).div_ceil(4096) {
        let pid = Tid(1000 + machine * 100);
        let name = format!("guest=vm{machine},debug-threads=on");
        let line = ["/usr/bin/qemu-system-x86_64", "-name", &name, "-smp", "8", ""].join("\0");
        host.insert_file(&paths::process_cmdline(pid), line);
        let mut pins = String::new();
        for vcpu in 0..8 {
            let cpu = (machine * 8 + vcpu) % pus;
            let status = format!("Name:\tCPU {vcpu}/KVM\nCpus_allowed_list:\t{cpu}\n");
            host.insert_file(&paths::task_status(pid, Tid(pid.0 + 1 + vcpu)), status);
            pins.push_str(&format!("<vcpupin vcpu='{vcpu}' cpuset='{cpu}'/>\n"));
        }
        let group = format!("/sys/fs/cgroup/machine.slice/machine-qemu-{machine}.scope");
        host.insert_file(&paths::cpuset_cpus_effective(&group), all.clone());
        if machine % 2 == 0 {
            let domain = format!(
                "<domstatus state='running' pid='{pid}'>\n<domain type='kvm'><name>vm{machine}</name>\
                 \n<vcpu>8</vcpu>\n<cputune>\n{pins}</cputune>\n</domain>\n</domstatus>\n"
            );
            host.insert_file(&format!("/run/libvirt/qemu/vm{machine}.xml"), domain);
        }
    }
    host
}

/// The number of vnodes and vCPUs in proportion to 500 and 10,000.
fn request(strategy: &str, pus: u32) -> Request {
    let vnodes = (pus * 500).div_ceil(4096);
    let vcpus = match strategy {
        "none" | "node-shared" | "compact" | "compact-cores" | "sequential" | "scatter"
        | "auto" => (pus * 10_000).div_ceil(4096).div_ceil(vnodes).min(pus),
        // At most as many as a domain has.
        "l3-exclusive" => 8,
        "numa-exclusive" => pus.saturating_sub(2).min(7),
        "isolcpus" | "balanced" | "balanced-shared" | "max-performance" => {
            (pus - pus.min(2)).checked_div(vnodes).unwrap_or(1) / 2 * 2
        }
        _ => (pus / 2).saturating_sub(1) / vnodes,
    };
    let mut request = Request::from_vnodes(
        (0..vnodes)
            .map(|number| {
                let name = format!("vm{number}");
                match strategy {
                    "vnodes" => VnodeRequest::processes(&name, vcpus.max(1), Speed::FULL),
                    _ => VnodeRequest::vm(
                        &name,
                        VmRequest::from_vcpus(VcpuCount::Exactly(vcpus.max(1))),
                    ),
                }
            })
            .collect(),
    );
    request.isolation = IsolationScope::Host;
    request
}

/// The CPUs of those of these cores that there are.
fn core_set(cores: u32, wanted: std::ops::Range<u32>) -> CpuSet {
    let there = wanted.filter(|core| *core < cores);
    there.flat_map(|core| [PuId(core), PuId(core + cores)]).collect()
}

/// Cores of two CPUs with non-adjacent numbers, 4 cores per L3, 64 CPUs per node, one node per
/// package.
fn machine(pus: u32) -> Topology {
    let cores = pus / 2;
    let set = |part: u32, of: u32| core_set(cores, part * of..(part + 1) * of);
    let pu = |logical: u32| Pu {
        os: PuId(logical / 2 + logical % 2 * cores),
        logical: LogicalPu(logical),
        core: CoreId(logical / 2),
        smt_rank: logical % 2,
        l3: Some(L3Id(logical / 8)),
        node: Some(NodeId(logical / 64)),
        package: PackageId(logical / 64),
        kind: CoreKind::Uniform,
    };
    Topology {
        source: Source::Synthetic("speed".to_owned()),
        fingerprint: format!("speed-{pus}"),
        model: None,
        hypervisor: None,
        pus: (0..pus).map(pu).collect(),
        cores: (0..cores)
            .map(|core: u32| Core {
                id: CoreId(core),
                pus: set(core, 1),
                package: PackageId(core / 32),
                kind: CoreKind::Uniform,
            })
            .collect(),
        l3: (0..pus.div_ceil(8))
            .map(|l3: u32| L3Domain {
                id: L3Id(l3),
                pus: set(l3, 4),
                size_bytes: 32 << 20,
                ways: 16,
            })
            .collect(),
        nodes: (0..pus.div_ceil(64))
            .map(|node: u32| NumaNode {
                id: NodeId(node),
                pus: set(node, 32),
                memory_bytes: 1 << 38,
                free_bytes: None,
                huge_pages: Vec::new(),
            })
            .collect(),
        packages: (0..pus.div_ceil(64))
            .map(|package: u32| Package { id: PackageId(package), pus: set(package, 32) })
            .collect(),
        smt: Smt::On,
        offline: CpuSet::new(),
        isolated: CpuSet::new(),
        nohz_full: CpuSet::new(),
        boot_parameters: Vec::new(),
        allowed: CpuSet::first_n(pus),
        mask: None,
        l2_domains: Vec::new(),
        frequency_domains: Vec::new(),
        highest_khz: BTreeMap::new(),
        core_ranking: BTreeMap::new(),
        devices: Vec::new(),
        findings: Vec::new(),
    }
}
