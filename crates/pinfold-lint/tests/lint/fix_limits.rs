//! What advice and `--fix` keep: the user's conditions, the machine's node, the kind of its cores;
//! and what they advise can be followed.

use pinfold_host::LiveHost;
use pinfold_lint::{Diagnostic, RepairedFile, fix, lint_under};
use pinfold_model::{
    CpuSet, FreeCpus, MemoryRequest, Request, Role, Severity, Topology, VcpuCount, VmRequest,
    VnodeRequest,
};
use pinfold_plan::domain_file::Domain;
use pinfold_plan::layout::Layout;
use pinfold_plan::plan;

fn host(name: &str) -> Topology {
    synthetic(&format!("{}/../../fixtures/hosts/{name}", env!("CARGO_MANIFEST_DIR")))
}

/// A host by its file or hwloc's description of it.
fn synthetic(text: &str) -> Topology {
    let live = LiveHost::new().expect("the running machine");
    pinfold_topology::read_input(&live, text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

/// What a merge asks for this file.
fn request_of(domain: &Domain, topology: &Topology) -> Request {
    let vnode = VnodeRequest::vm("vm", domain.request(topology));
    Request::from_vnodes(vec![VnodeRequest { memory: domain.memory_request(topology), ..vnode }])
}

/// Two nodes of four CPUs.
fn two_nodes() -> Topology {
    synthetic("package:2 [numa(memory=4GiB)] core:4 pu:1")
}

fn set(list: &str) -> CpuSet {
    CpuSet::parse_list(list).expect("a list")
}

fn conditions(avoid: &str, free: &str) -> Request {
    let free = (!free.is_empty()).then(|| FreeCpus::These(set(free)));
    Request { avoid: set(avoid), free, ..Request::from_vnodes(Vec::new()) }
}

/// A machine with a CPU for each vCPU, and what else its `<cputune>` and its root have.
fn domain(pins: &[u32], tune: &str, rest: &str) -> String {
    let pinned: String = pins
        .iter()
        .enumerate()
        .map(|(vcpu, pu): (usize, &u32)| format!("<vcpupin vcpu='{vcpu}' cpuset='{pu}'/>\n"))
        .collect();
    file(pins.len(), &format!("{pinned}{tune}"), rest)
}

fn file(vcpus: usize, tune: &str, rest: &str) -> String {
    format!(
        "<domain type='kvm'>\n<name>vm</name>\n<memory unit='MiB'>512</memory>\n\
         <vcpu placement='static'>{vcpus}</vcpu>\n<cputune>\n{tune}</cputune>\n\
         <os><type arch='x86_64' machine='q35'>hvm</type></os>\n{rest}<devices/>\n</domain>\n"
    )
}

fn shape(cores: u32, threads: u32) -> String {
    format!(
        "<cpu mode='host-passthrough'><topology sockets='1' cores='{cores}' threads='{threads}'/></cpu>\n"
    )
}

const STRICT_0: &str = "<numatune><memory mode='strict' nodeset='0'/></numatune>\n";
const STRICT_1: &str = "<numatune><memory mode='strict' nodeset='1'/></numatune>\n";

fn fix_domain(xml: &str, topology: &Topology, conditions: &Request) -> RepairedFile {
    fix(xml, "vm.xml", topology, conditions).unwrap_or_else(|error| panic!("{error}\n{xml}"))
}

fn worse(xml: &str, topology: &Topology, conditions: &Request) -> Vec<Diagnostic> {
    let layout = Layout::of_text(xml, "vm.xml").unwrap_or_else(|error| panic!("{error}\n{xml}"));
    let mut diagnostics = lint_under(&[layout], topology, conditions).diagnostics;
    diagnostics.retain(|diagnostic| diagnostic.severity >= Severity::Warning);
    diagnostics
}

/// The file without warnings that the fix makes.
#[track_caller]
fn clean(xml: &str, on: (&Topology, &Request)) -> Layout {
    let fixed = fix_domain(xml, on.0, on.1);
    assert_eq!(fixed.left, Vec::new(), "{xml}");
    assert_eq!(worse(&fixed.text, on.0, on.1), Vec::new(), "{}", fixed.text);
    Layout::of_text(&fixed.text, "vm.xml").expect("a fixed file")
}

/// The CPUs of the vCPUs together.
fn of_vcpus(layout: &Layout) -> CpuSet {
    let vcpus = layout.pins.iter().filter(|pin| matches!(pin.role, Role::Vcpu(_)));
    vcpus.filter_map(|pin| pin.pus.as_ref()).collect::<CpuSet>()
}

/// The number of vCPUs that the last line of advice names.
fn read_advice(diagnostics: &[Diagnostic]) -> Option<u32> {
    let line = diagnostics.first()?.instead.last()?;
    line.rsplit_once("configure ")?.1.split_once(' ')?.0.parse().ok()
}

/// The file of somebody who follows such advice: fewer vCPUs, fewer pins, no topology.
fn with_count(xml: &str, count: u32) -> String {
    let lines = xml
        .lines()
        .filter(|line| {
            let index =
                line.strip_prefix("<vcpupin vcpu='").and_then(|rest| rest.split('\'').next());
            index.is_none_or(|index| index.parse::<u32>().expect("a number") < count)
        })
        .filter(|line| !line.contains("<topology"));
    let lines = lines.map(|line| {
        if line.contains("<vcpu ") {
            format!("<vcpu placement='static'>{count}</vcpu>")
        } else {
            line.to_owned()
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn helpers_stay_off_cpus_to_avoid() {
    // The only free CPU of the vCPUs' node is to be avoided: nothing is nearer.
    let (topology, limits) = (two_nodes(), conditions("0", "4"));
    let tune = "<emulatorpin cpuset='4'/>\n<iothreadpin iothread='1' cpuset='4'/>\n";
    let rest = format!("<iothreads>1</iothreads>\n{STRICT_0}{}", shape(3, 1));
    let xml = domain(&[1, 2, 3], tune, &rest);
    assert_eq!(worse(&xml, &topology, &limits), Vec::new());
    let far = worse(&xml, &topology, &conditions("", "4"));
    assert_eq!(far.iter().map(|diagnostic| diagnostic.name).collect::<Vec<_>>(), ["iothread-far"]);
    // "All but the vCPUs'" is without those to avoid.
    let (topology, limits) = (host("i5-12600k.capture"), conditions("11", ""));
    let layout = clean(&domain(&[0], "", &shape(1, 1)), (&topology, &limits));
    let emulator = layout.pin(&Role::Emulator).and_then(|pin| pin.pus.clone());
    assert_eq!(emulator, Some(set("2-10,12-15")));
}

#[test]
fn cpus_that_a_vcpu_may_not_have_are_no_room() {
    // Of the larger cache's ten cores five are slow: the ten fast cores are on both.
    let topology = host("gb10.xml");
    let all = conditions("", "");
    let fast = [5, 6, 7, 8, 9, 15, 16, 17, 18, 19];
    let tune = "<emulatorpin cpuset='0-4,10-14'/>\n";
    assert_eq!(worse(&domain(&fast, tune, &shape(10, 1)), &topology, &all), Vec::new());
    // Five fit into one.
    let crossed = worse(&domain(&[5, 6, 7, 15, 16], tune, &shape(5, 1)), &topology, &all);
    assert!(crossed.iter().any(|diagnostic| diagnostic.name == "l3-crossed"), "{crossed:?}");
    assert!(crossed[0].what.contains("(5 CPUs)"), "{}", crossed[0].what);
    // Two caches of four cores: with one to avoid, neither has room for four vCPUs.
    let caches = synthetic("package:1 l3:2 core:4 pu:1");
    let xml = domain(&[1, 2, 5, 6], "<emulatorpin cpuset='0'/>\n", &shape(4, 1));
    let names = |limits: &Request| {
        worse(&xml, &caches, limits).iter().map(|diagnostic| diagnostic.name).collect::<Vec<_>>()
    };
    assert_eq!(names(&all), ["l3-crossed"]);
    assert_eq!(names(&conditions("3,7", "")), Vec::<&str>::new());
    assert_eq!(names(&conditions("", "3,7")), Vec::<&str>::new());
}

#[test]
fn a_machine_of_one_node_stays_on_it() {
    let topology = host("x5540-dual.synthetic");
    let node_1 = set("4-7,12-15");
    let rest = format!("{STRICT_1}{}", shape(5, 1));
    let siblings = domain(&[4, 12, 5, 13, 6], "<emulatorpin cpuset='7,15'/>\n", &rest);
    let on = (&topology, &conditions("", ""));
    let done = fix_domain(&siblings, on.0, on.1);
    let layout = Layout::of_text(&done.text, "vm.xml").expect("a file");
    assert!(of_vcpus(&layout).is_subset(&node_1), "{}", done.text);
    assert!(done.text.contains(STRICT_1.trim_end()), "{}", done.text);
    if let Some(count) = read_advice(&done.left) {
        clean(&with_count(&siblings, count), on);
    }
    // Four vCPUs of which two share a core: two cores of two threads are on the node.
    let on = (&topology, &conditions("", "4,11"));
    let bare = domain(&[13, 6, 14, 7], "<emulatorpin cpuset='9,15'/>\n", &shape(4, 1));
    let layout = clean(&bare, on);
    assert!(of_vcpus(&layout).is_subset(&node_1), "{layout:?}");
    assert_eq!(layout.cells.len(), 0);
}

#[test]
fn a_priority_that_the_kernel_refuses_is_rewritten() {
    let topology = host("ryzen-7950x3d.xml");
    let on = (&topology, &conditions("", ""));
    for (element, good) in [
        (
            "<vcpusched vcpus='0' scheduler='fifo' priority='0'/>",
            "<vcpusched vcpus='0' scheduler='fifo' priority='1'/>",
        ),
        (
            "<emulatorsched scheduler='rr' priority='100'/>",
            "<emulatorsched scheduler='rr' priority='1'/>",
        ),
    ] {
        let other = "<vcpusched vcpus='1' scheduler='fifo' priority='2'/>";
        let xml = file(4, &format!("{other}\n{element}\n"), &shape(4, 1));
        let found = worse(&xml, on.0, on.1);
        let diagnostic =
            found.iter().find(|diagnostic| diagnostic.name == "priority-range").expect("a finding");
        assert_eq!(diagnostic.places[0].text, element);
        assert_eq!(diagnostic.places[0].line, Some(7));
        assert!(diagnostic.instead.contains(&good.to_owned()), "{:?}", diagnostic.instead);
        let done = fix_domain(&xml, on.0, on.1);
        assert_eq!(done.left, Vec::new());
        assert!(done.text.contains(good) && done.text.contains(other), "{}", done.text);
    }
}

/// The emulator of a machine with FIFO vCPUs is not on their cores, wherever they are: where the
/// file pins no vCPU, where its pins stay, and where they are replaced.
#[test]
fn the_emulator_leaves_the_cores_of_fifo_vcpus() {
    for name in [
        "i7-4790k.synthetic",
        "e5-2670-dual.synthetic",
        "ryzen-5950x.synthetic",
        "ryzen-7950x3d.xml",
        "power9-smt4.synthetic",
    ] {
        let topology = host(name);
        let on = (&topology, &conditions("", ""));
        let firsts: Vec<u32> = topology
            .cores
            .iter()
            .skip(1)
            .filter_map(|core| core.pus.first().map(|pu| pu.0))
            .take(3)
            .collect();
        let first = set(&firsts[0].to_string());
        let own = topology.cores.iter().find(|core| !core.pus.is_disjoint(&first));
        let sibling = own.expect("the core").pus.difference(&first);
        let fifo = "<vcpusched vcpus='0-2' scheduler='fifo' priority='2'/>\n";
        let beside = format!("<emulatorpin cpuset='{sibling}'/>\n{fifo}");
        let on_vcpu = format!("<emulatorpin cpuset='{first}'/>\n{fifo}");
        // Distant vCPUs move.
        let pinned = set(&firsts.iter().map(u32::to_string).collect::<Vec<_>>().join(","));
        let is_near = topology.l3.iter().any(|domain| pinned.is_subset(&domain.pus));
        let twice = [firsts[0], firsts[0], firsts[1]];
        for (xml, stays) in [
            (file(3, fifo, &shape(3, 1)), false),
            (domain(&firsts, &on_vcpu, &shape(3, 1)), is_near),
            (domain(&firsts, &beside, &shape(1, 3)), is_near),
            (domain(&twice, &beside, &shape(3, 1)), false),
        ] {
            let layout = clean(&xml, on);
            let (vcpus, emulator) = (of_vcpus(&layout), layout.pin(&Role::Emulator));
            let emulator = emulator.and_then(|pin| pin.pus.clone()).expect("a pin");
            let cores = topology.cores.iter().filter(|core| !core.pus.is_disjoint(&vcpus));
            let cores = cores.map(|core| &core.pus).collect::<CpuSet>();
            assert!(emulator.is_disjoint(&cores), "{name}: {emulator} on {cores}\n{xml}");
            assert!(layout.text.expect("a file").contains(fifo.trim_end()), "{name}");
            assert!(!stays || vcpus == pinned, "{name}: {vcpus}, were {pinned}");
        }
    }
}

#[test]
fn a_number_of_vcpus_that_is_advised_can_be_had() {
    // A real-time vCPU on every CPU of the host.
    let sub_numa = [6, 6, 1, 6, 7, 4, 6, 7, 6, 2, 7, 7, 6, 1, 5, 4];
    let dual = [0, 11, 11, 2, 10, 11, 10, 8, 8, 11, 1, 11, 3, 9, 10, 2];
    // Real-time vCPUs may not float over a mask.
    let policy = "<vcpusched vcpus='0-15' scheduler='fifo' priority='1'/>";
    let cases = [
        ("snc2.synthetic", domain(&sub_numa, policy, &shape(8, 2)), conditions("", "0,10")),
        ("x5540-dual.synthetic", domain(&dual, policy, &shape(16, 1)), conditions("13,15", "")),
        ("snc2.synthetic", domain_of(&sub_numa, &shape(8, 2)), conditions("", "0,10")),
        ("x5540-dual.synthetic", domain_of(&dual, &shape(16, 1)), conditions("13,15", "")),
        ("snc2.synthetic", domain_of(&sub_numa, &shape(16, 1)), conditions("3", "")),
        (
            "ryzen-5950x.synthetic",
            domain_of(&[0, 0, 1, 17, 2, 3, 5], &shape(7, 1)),
            conditions("9", "0"),
        ),
        ("i7-4790k.synthetic", domain_of(&[0, 1, 2, 3, 4, 5, 6], &shape(7, 1)), conditions("", "")),
        ("i7-4790k.synthetic", fifo(8), conditions("", "")),
        ("ryzen-5950x.synthetic", fifo(32), conditions("", "")),
    ];
    let mut counts = 0;
    for (name, xml, limits) in cases {
        let topology = host(name);
        let on = (&topology, &limits);
        let left = fix_domain(&xml, on.0, on.1).left;
        if let Some(count) = read_advice(&left) {
            clean(&with_count(&xml, count), on);
            counts += 1;
        }
    }
    assert!(counts >= 2, "{counts}");
}

fn domain_of(pins: &[u32], rest: &str) -> String {
    domain(pins, "", rest)
}

fn fifo(cpus: u32) -> String {
    let tune = format!(
        "<emulatorpin cpuset='0'/>\n<vcpusched vcpus='0-{}' scheduler='fifo' priority='1'/>\n",
        cpus - 1
    );
    domain(&(0..cpus).collect::<Vec<_>>(), &tune, &shape(cpus, 1))
}

#[test]
fn what_a_merge_makes_clean_is_fixed() {
    let topology = host("x5540-dual.synthetic");
    let on = (&topology, &conditions("", ""));
    let pins: Vec<u32> = (0..16).collect();
    let rest = format!("<iothreads>1</iothreads>\n{STRICT_0}{}", shape(8, 2));
    let xml = domain(&pins, "", &rest);
    let domain = Domain::read(&xml).expect("a file");
    let request = request_of(&domain, &topology);
    let merged = plan("auto", &topology, &request).expect("a plan");
    let merged = pinfold_emit::merge_libvirt_domain(&xml, &merged, &merged.vnodes[0], &topology)
        .expect("a merge");
    assert_eq!(worse(&merged.text, on.0, on.1), Vec::new(), "{}", merged.text);
    let layout = clean(&xml, on);
    assert_eq!(of_vcpus(&layout), set("0-3,8-11"));
}

#[test]
fn a_machine_larger_than_the_host_is_a_problem() {
    let topology = host("ryzen-7950x3d.xml");
    let on = (&topology, &conditions("", ""));
    let xml = large(200, "");
    let found = worse(&xml, on.0, on.1);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((found[0].severity, found[0].name), (Severity::Problem, "memory-too-large"));
    assert_eq!(found[0].places[0].line, Some(3));
    assert!(found[0].what.contains("204800 MiB"), "{}", found[0].what);
    assert_eq!(fix_domain(&xml, on.0, on.1).left.len(), 1);
    let refused = merge(&xml, &topology).expect_err("more than there is");
    assert!(refused.starts_with("line 3, column 1: the machine has 204800 MiB"), "{refused}");
    merge(&large(32, ""), &topology).expect("as much as there is");
    // A strict binding bounds it to the memory of its nodes.
    let dual = host("x5540-dual.synthetic");
    let names = |rest: &str| {
        let diagnostics = worse(&large(16, rest), &dual, on.1);
        diagnostics.iter().map(|diagnostic| diagnostic.name).collect::<Vec<_>>()
    };
    assert_eq!(names(STRICT_1), ["memory-too-large"]);
    assert_eq!(names(""), Vec::<&str>::new());
    assert_eq!(names(&STRICT_1.replace("strict", "preferred")), Vec::<&str>::new());
}

fn merge(xml: &str, topology: &Topology) -> Result<pinfold_emit::Merged, String> {
    let domain = Domain::read(xml).expect("a file");
    let plan = plan("auto", topology, &request_of(&domain, topology));
    let plan = plan.map_err(|error| error.to_string())?;
    pinfold_emit::merge_libvirt_domain(xml, &plan, &plan.vnodes[0], topology)
        .map_err(|error| error.to_string())
}

fn large(gib: u32, rest: &str) -> String {
    let size = format!("<memory unit='GiB'>{gib}<!-- much --></memory>");
    file(4, "", rest).replace("<memory unit='MiB'>512</memory>", &size)
}

#[test]
fn what_libvirt_refuses_is_refused_with_its_line() {
    for current in ["8", "0", "x", ""] {
        let why =
            format!("line 2, column 2: current='{current}' of <vcpu> is not a number from 1 to 4");
        check(&vcpu(current), &why);
    }
    Domain::read(&vcpu("4")).expect("all online");
    check("\n<domain id='3'>\n<vcpu>4</vcpu></domain>", "line 2, column 1: <domain> has no type");
}

fn check(xml: &str, why: &str) {
    let error = Domain::read(xml).expect_err(xml).to_string();
    assert_eq!(error, why, "{xml}");
}

fn vcpu(current: &str) -> String {
    format!("<domain type='kvm'>\n <vcpu current='{current}'>4</vcpu>\n</domain>")
}

#[test]
fn more_vcpus_than_cpus_of_their_mask_are_named() {
    let on = (&host("snc2.synthetic"), &conditions("", ""));
    let names = |xml: &str| {
        worse(xml, on.0, on.1).iter().map(|diagnostic| diagnostic.name).collect::<Vec<_>>()
    };
    assert!(names(&floating("6-7")).contains(&"vcpus-crowded"), "{:?}", names(&floating("6-7")));
    assert!(!names(&floating("0-15")).contains(&"vcpus-crowded"));
}

fn floating(mask: &str) -> String {
    format!(
        "<domain type='kvm'><name>vm</name><memory unit='MiB'>512</memory>\
             <vcpu cpuset='{mask}'>16</vcpu>\
             <cpu><topology sockets='1' cores='8' threads='2'/></cpu></domain>"
    )
}

/// Memory is divided by vCPUs, and no cell gets more than its node has.
#[test]
fn no_cell_gets_more_memory_than_its_node_has() {
    for (name, vcpus, gib) in [("x5570-dual.capture", 3, 24), ("snc2.synthetic", 7, 64)] {
        let topology = host(name);
        let vnode = VnodeRequest {
            memory: Some(MemoryRequest { bytes: gib << 30, page_bytes: None }),
            ..VnodeRequest::vm("vm", VmRequest::from_vcpus(VcpuCount::Exactly(vcpus)))
        };
        for strategy in ["auto", "balanced", "scatter", "compact", "max-performance"] {
            let request = Request::from_vnodes(vec![vnode.clone()]);
            let Ok(layout) = plan(strategy, &topology, &request) else { continue };
            let text = pinfold_emit::libvirt(&layout, &topology).expect("one machine");
            let xml = format!("<domain type='kvm'><name>vm</name>{text}</domain>");
            let domain = Domain::read(&xml).expect("a domain");
            for memnode in domain.memnodes.iter().map(|memnode| &memnode.value) {
                let (cell, node) = (memnode.cell, &memnode.nodes);
                let line = format!("<cell id='{cell}' ");
                let cell = text.lines().find(|text| text.contains(&line)).expect("a cell");
                let size = cell.split("memory='").nth(1).and_then(|rest| rest.split('\'').next());
                let kib: u64 = size.and_then(|size| size.parse().ok()).expect("a size");
                let there: u64 = topology
                    .nodes
                    .iter()
                    .filter(|of| node.contains(&of.id))
                    .map(|of| of.memory_bytes >> 10)
                    .sum();
                assert!(kib <= there, "{name}, {strategy}: {cell} on {there} KiB");
            }
        }
    }
}

#[test]
fn a_file_on_cpus_that_are_to_be_avoided_is_changed() {
    let topology = host("i7-4790k.synthetic");
    let cpu = "<cpu><topology sockets='1' cores='2' threads='1'/></cpu>\n";
    let xml = domain(&[1, 2], "<emulatorpin cpuset='0,4'/>\n", cpu);
    assert_eq!(worse(&xml, &topology, &conditions("", "")), Vec::new());
    for conditions in [conditions("1", ""), conditions("", "1,5")] {
        let found = worse(&xml, &topology, &conditions);
        assert_eq!(
            found.iter().map(|diagnostic| diagnostic.name).collect::<Vec<_>>(),
            ["cpu-excluded"]
        );
        let fixed = fix_domain(&xml, &topology, &conditions);
        assert_eq!(fixed.left, Vec::new(), "{}", fixed.text);
        let layout = Layout::of_text(&fixed.text, "vm.xml").expect("a domain file");
        assert!(!of_vcpus(&layout).contains(pinfold_model::PuId(1)), "{}", fixed.text);
    }
}

/// The cache of the host is passed on and true with the pins that `--fix` writes.
#[test]
fn a_cache_that_becomes_true_stays() {
    let cpu = "<cpu mode='host-passthrough'><cache mode='passthrough'/>\
               <topology sockets='1' cores='8' threads='2'/></cpu>\n";
    let topology = host("ryzen-7950x3d.xml");
    let on = (&topology, &conditions("", ""));
    let xml = domain(&(0..16).collect::<Vec<u32>>(), "", cpu);
    assert!(worse(&xml, on.0, on.1).iter().any(|diagnostic| diagnostic.name == "cache-untrue"));
    let fixed = fix_domain(&xml, on.0, on.1);
    assert_eq!(fixed.left, Vec::new(), "{}", fixed.text);
    assert!(fixed.text.contains("<cache mode='passthrough'/>"), "{}", fixed.text);
}
