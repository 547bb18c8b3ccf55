//! What Pinfold emits for libvirt passes Pinfold's own check, and so does the plan: every strategy
//! on every host of `fixtures/hosts`, as a fragment and merged into files that people keep. By
//! default these are the hosts with few CPUs; `PINFOLD_TEST_SIZE=full` takes all.

use std::collections::BTreeMap;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use pinfold_emit::{libvirt, merge_libvirt_domain};
use pinfold_lint::{Diagnostic, lint};
use pinfold_model::{
    IsolationScope, MemoryRequest, Plan, Request, Severity, Topology, VcpuCount, VmRequest,
    VnodeRequest,
};
use pinfold_plan::domain_file::Domain;
use pinfold_plan::layout::Layout;
use pinfold_plan::{plan, strategies};
use pinfold_samples::hosts;

use crate::by_size;

/// With more CPUs than this, one plan of all of them takes too long for what it tests.
const LARGE: usize = 200;

/// CPUs of a host by default.
const FEW: usize = 24;

/// The costs that both a plan and the check name: the plan's subject, and the check's names.
const COSTS: &[(&str, &[&str])] = &[
    ("oversubscription", &["vcpus-share-pu"]),
    ("guest topology", &["guest-siblings-hidden"]),
    ("core kinds", &["mixed-cores"]),
    ("isolated CPUs", &["mask-on-isolated"]),
    ("emulator", &["emulator-on-vcpu", "iothread-on-vcpu"]),
    ("host", &["no-housekeeping"]),
    ("L3", &["l3-crossed"]),
    ("NUMA", &["nodes-crossed", "nodes-hidden", "node-without-memory"]),
];

/// Outcomes by name: `clean`, or the first warning, which the plan and the check have both.
#[derive(Default)]
struct Counts {
    clean: usize,
    /// With the first case of each.
    warned: BTreeMap<(String, String), (usize, String)>,
    refused: usize,
    /// Where the plan and the check differ in severity.
    differ: Vec<String>,
}

impl Counts {
    fn files(&self) -> usize {
        self.clean + self.warned.values().map(|(count, _)| count).sum::<usize>()
    }

    /// Counts one file of a plan, with what the check says of it.
    fn take(&mut self, case: &str, strategy: &str, layout: &Plan, diagnostics: &[Diagnostic]) {
        let mut left: Vec<(Severity, &str)> =
            diagnostics.iter().map(|diagnostic| (diagnostic.severity, diagnostic.name)).collect();
        let mut said: Vec<(Severity, &str)> =
            layout.findings.iter().map(|it| (it.severity, it.subject.as_str())).collect();
        for (subject, names) in COSTS {
            let of_file = left.extract_if(.., |(_, name)| names.contains(name)).max();
            let of_plan = said.extract_if(.., |(_, name)| name == subject).max();
            if severity(of_file) != severity(of_plan) {
                self.differ.push(format!("{case}: the file {of_file:?}, the plan {of_plan:?}"));
            }
        }
        // A file does not name the other strategy that holds all vCPUs on the fast cores.
        said.retain(|(_, name)| *name != "slow cores");
        left.extend(said);
        left.retain(|(severity, _)| *severity > Severity::Note);
        left.iter().for_each(|it| self.differ.push(format!("{case}: of one only: {it:?}")));
        match diagnostics.iter().find(|diagnostic| diagnostic.severity > Severity::Note) {
            None => self.clean += 1,
            Some(diagnostic) => {
                let key = (diagnostic.name.to_owned(), strategy.to_owned());
                self.warned.entry(key).or_insert((0, case.to_owned())).0 += 1;
            }
        }
    }

    fn add(&mut self, other: Self) {
        self.clean += other.clean;
        self.refused += other.refused;
        self.differ.extend(other.differ);
        for (key, (count, case)) in other.warned {
            self.warned.entry(key).or_insert((0, case)).0 += count;
        }
    }

    fn print(&self, what: &str) {
        let (files, clean, refused) = (self.files(), self.clean, self.refused);
        eprintln!("{what}: {clean} of {files} without a warning, {refused} refused");
        for ((name, strategy), (count, case)) in &self.warned {
            eprintln!("  {count:5} {name}: {strategy}, such as {case}");
        }
        let (count, shown) = (self.differ.len(), self.differ.iter().take(20).collect::<Vec<_>>());
        assert!(shown.is_empty(), "{count} differences of plan and file: {shown:#?}");
    }
}

fn severity(of: Option<(Severity, &str)>) -> Severity {
    of.map_or(Severity::Note, |it| it.0)
}

/// The counts of all hosts, each of which one of the machine's threads takes.
fn of_all_hosts(of_one: impl Fn(&str, &Topology) -> [Counts; 2] + Sync) -> [Counts; 2] {
    static HOSTS: LazyLock<Vec<(String, Topology)>> = LazyLock::new(|| {
        let most = by_size(usize::MAX, FEW);
        hosts().into_iter().filter(|(_, topology)| topology.pus.len() <= most).collect()
    });
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    let mut all = <[Counts; 2]>::default();
                    while let Some((name, topology)) =
                        HOSTS.get(next.fetch_add(1, Ordering::Relaxed))
                    {
                        for (sum, part) in all.iter_mut().zip(of_one(name, topology)) {
                            sum.add(part);
                        }
                    }
                    all
                })
            })
            .collect();
        let mut all = <[Counts; 2]>::default();
        for worker in workers {
            let parts = worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            all.iter_mut().zip(parts).for_each(|(sum, part)| sum.add(part));
        }
        all
    })
}

fn placers() -> impl Iterator<Item = &'static str> {
    strategies().iter().map(|known| known.name).filter(|name| *name != "vnodes")
}

fn request(vm: VmRequest, memory: Option<u64>, isolation: IsolationScope) -> Request {
    let mut vnode = VnodeRequest::vm("vm", vm);
    vnode.memory = memory.map(|bytes| MemoryRequest { bytes, page_bytes: None });
    Request { isolation, ..Request::from_vnodes(vec![vnode]) }
}

fn review(text: &str, topology: &Topology) -> Vec<Diagnostic> {
    let domain = Domain::read(text).expect("what is emitted can be read");
    lint(&[Layout::of_domain(&domain, "emitted")], topology)
}

#[test]
fn what_is_emitted_passes_the_check_and_so_does_the_plan() {
    let [plans, files] = of_all_hosts(|name, topology| {
        let mut counts = <[Counts; 2]>::default();
        let half = u32::try_from(topology.pus.len() / 2).unwrap_or(u32::MAX).clamp(1, 64);
        let mut sizes = vec![VcpuCount::Exactly(2), VcpuCount::Exactly(half)];
        if topology.pus.len() <= LARGE {
            sizes.push(VcpuCount::Auto);
        }
        for strategy in placers() {
            for vcpus in &sizes {
                (0..8).for_each(|option| {
                    let case = Case { name, topology, strategy, vcpus: *vcpus, option };
                    one(&mut counts, &case);
                });
            }
        }
        counts
    });
    plans.print("plans");
    files.print("fragments");
    let least = by_size(12_000, 5_000);
    assert!(plans.clean > least && plans.clean == plans.files(), "{}", plans.clean);
    assert!(files.clean > least && files.clean == files.files(), "{}", files.clean);
}

/// One request: bits of `option` are isolation, an iothread, and memory.
struct Case<'a> {
    name: &'a str,
    topology: &'a Topology,
    strategy: &'a str,
    vcpus: VcpuCount,
    option: u32,
}

/// Counts the plan and the fragment of one request.
fn one([plans, files]: &mut [Counts; 2], case: &Case<'_>) {
    let Case { name, topology, strategy, vcpus, option } = *case;
    let scope = [IsolationScope::None, IsolationScope::Host][(option & 1) as usize];
    let iothreads = if option & 2 == 0 { vec![] } else { vec!["io".to_owned()] };
    let memory = (option & 4 != 0).then_some(256 << 20);
    let vm = VmRequest { iothreads, ..VmRequest::from_vcpus(vcpus) };
    let case = format!("{name}, {strategy}, {vcpus:?}, option {option}");
    let Ok(layout) = plan(strategy, topology, &request(vm, memory, scope)) else {
        files.refused += 1;
        return;
    };
    let of_plan = lint(&Layout::of_plan(&layout, "plan"), topology);
    plans.take(&case, strategy, &layout, &of_plan);
    let fragment = libvirt(&layout, topology).expect("one machine");
    let text = format!("<domain type='kvm'>\n<name>vm</name>\n{fragment}</domain>");
    files.take(&case, strategy, &layout, &review(&text, topology));
}

/// Files that people keep, with what of them a plan has to respect.
const FILES: &[(&str, &str)] = &[
    ("plain", include_str!("../domains/plain.xml")),
    ("numatune-node0", include_str!("../domains/numatune-node0.xml")),
    ("cells", include_str!("../domains/cells.xml")),
    ("cells-swapped", include_str!("../domains/cells-swapped.xml")),
    ("current", include_str!("../domains/current.xml")),
    ("no-cpu", include_str!("../domains/no-cpu.xml")),
    ("numad", include_str!("../domains/numad.xml")),
    ("iothreads", include_str!("../domains/iothreads.xml")),
];

/// All memory of a host in bytes.
fn memory_of(topology: &Topology) -> u64 {
    topology.nodes.iter().map(|node| node.memory_bytes).sum()
}

#[test]
fn a_merged_file_passes_the_check() {
    let [merges, _] = of_all_hosts(|name, topology| {
        let mut counts = Counts::default();
        for (file, xml) in FILES {
            let domain = Domain::read(xml).expect("a domain file");
            for strategy in placers() {
                let case = format!("{file} on {name}, {strategy}");
                let memory = domain.memory_request(topology).map(|memory| memory.bytes);
                let asked = request(domain.request(topology), memory, IsolationScope::None);
                let Ok(layout) = plan(strategy, topology, &asked) else {
                    counts.refused += 1;
                    continue;
                };
                let vnode = layout.single_vnode().expect("one machine");
                let merged = merge_libvirt_domain(xml, &layout, vnode, topology);
                let merged = match merged {
                    Ok(merged) => merged,
                    Err(error) if domain.memory_bytes > Some(memory_of(topology)) => {
                        assert!(error.why.contains("this host has"), "{case}: {error}");
                        counts.refused += 1;
                        continue;
                    }
                    Err(error) => panic!("{case}: {error}"),
                };
                let diagnostics = review(&merged.text, topology);
                counts.take(&case, strategy, &layout, &diagnostics);
                let again = merge_libvirt_domain(&merged.text, &layout, vnode, topology);
                assert_eq!(again.map(|again| again.text), Ok(merged.text), "{case}: twice");
            }
        }
        [counts, Counts::default()]
    });
    merges.print("merges");
    let least = by_size(3_500, 1_400);
    assert!(merges.clean > least && merges.clean * 100 > merges.files() * 99, "{}", merges.clean);
}

/// The file does what the plan's note says: memory that does not fit on the nodes of the CPUs, and
/// only that, comes from the node without CPUs.
#[test]
fn memory_of_a_node_without_cpus_is_taken_last() {
    let all = hosts();
    let (_, topology) = all.iter().find(|(name, _)| name.starts_with("cxl-")).expect("the host");
    let (mut near, mut far) = (0, 0);
    for strategy in ["auto", "balanced", "low-latency", "numa-exclusive", "max-performance"] {
        for gib in [20, 64, 65, 100, 150] {
            let mut request = Request::vm("vm", VcpuCount::Exactly(3));
            request.vnodes[0].memory = Some(MemoryRequest { bytes: gib << 30, page_bytes: None });
            let Ok(made) = plan(strategy, topology, &request) else { continue };
            let bytes = format!("{} GiB of the memory of vm are on node 2", gib.saturating_sub(64));
            let is_said = made.findings.iter().any(|it| it.text.starts_with(&bytes));
            assert_eq!(is_said, gib > 64, "{strategy} {gib}: {:?}", made.findings);
            let xml = format!(
                "<domain type='kvm'>\n<name>vm</name>\n<memory unit='GiB'>{gib}</memory>\n\
                 <vcpu placement='static'>3</vcpu>\n<os><type arch='x86_64'>hvm</type></os>\n\
                 <devices/>\n</domain>\n"
            );
            let merged =
                merge_libvirt_domain(&xml, &made, &made.vnodes[0], topology).expect("a merge");
            let nodes = if is_said { "0,2" } else { "0" };
            let line = format!("<memory mode='strict' nodeset='{nodes}'/>");
            assert!(merged.text.contains(&line), "{strategy} {gib}: {}", merged.text);
            let layout = Layout::of_text(&merged.text, "vm.xml").expect("a file");
            let diagnostics = lint(&[layout], topology);
            let warned = diagnostics
                .iter()
                .find(|it| it.severity > Severity::Note && it.name.starts_with("memory"));
            assert!(warned.is_none(), "{strategy} {gib}: {warned:?}");
            *(if is_said { &mut far } else { &mut near }) += 1;
        }
    }
    assert!(near > 2 && far > 2, "{near} near, {far} far");
}
