//! Memory that does not fit where it is bound, real-time vCPUs next to the emulator, and where
//! advice is to be written.

use pinfold_host::LiveHost;
use pinfold_lint::{Diagnostic, fix, lint};
use pinfold_model::{
    CpuSet, FreeCpus, MemoryRequest, Plan, Request, Role, Severity, Topology, VcpuCount, VmRequest,
    VnodeRequest,
};
use pinfold_plan::domain_file::Domain;
use pinfold_plan::layout::Layout;
use pinfold_plan::plan;

const GIB: u64 = 1 << 30;

/// Two nodes of 12 GiB, each four cores of two threads: 0-3,8-11 and 4-7,12-15.
fn dual() -> Topology {
    host("x5540-dual.synthetic")
}

fn host(name: &str) -> Topology {
    let live = LiveHost::new().expect("the running machine");
    let path = format!("{}/../../fixtures/hosts/{name}", env!("CARGO_MANIFEST_DIR"));
    pinfold_topology::read_input(&live, &path).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// A machine whose file has these elements.
fn file(name: &str, gib: u64, vcpus: &str, elements: &str) -> String {
    format!(
        "<domain type='kvm'>\n<name>{name}</name>\n<memory unit='GiB'>{gib}</memory>\n{vcpus}\n\
         <os><type arch='x86_64' machine='q35'>hvm</type></os>\n{elements}\n</domain>\n"
    )
}

const FOUR: &str = "<vcpu placement='static'>4</vcpu>";

fn pins(cpus: &[u32]) -> String {
    cpus.iter()
        .enumerate()
        .map(|(vcpu, cpu): (usize, &u32)| format!("<vcpupin vcpu='{vcpu}' cpuset='{cpu}'/>\n"))
        .collect()
}

fn shape(cores: u32) -> String {
    format!("<topology sockets='1' cores='{cores}' threads='1'/>")
}

/// What is worse than a note in files that are checked together.
fn worse(files: &[&str], topology: &Topology) -> Vec<Diagnostic> {
    let layouts: Vec<Layout> = files
        .iter()
        .enumerate()
        .map(|(at, xml): (usize, &&str)| {
            Layout::of_text(xml, &format!("{at}.xml"))
                .unwrap_or_else(|error| panic!("{error}\n{xml}"))
        })
        .collect();
    let mut diagnostics = lint(&layouts, topology);
    diagnostics.retain(|diagnostic| diagnostic.severity >= Severity::Warning);
    diagnostics
}

fn names(diagnostics: &[Diagnostic]) -> Vec<&'static str> {
    diagnostics.iter().map(|diagnostic| diagnostic.name).collect()
}

/// Two cells of two vCPUs, each on its node, with these sizes in GiB.
fn cells(sizes: [u64; 2], [whole, memnode]: [&str; 2]) -> String {
    let [one, other] = sizes;
    file(
        "celled",
        one + other,
        FOUR,
        &format!(
            "<cputune>\n{}<emulatorpin cpuset='0,8'/>\n</cputune>\n<numatune>\n\
             <memory mode='{whole}' nodeset='0-1'/>\n\
             <memnode cellid='0' mode='{memnode}' nodeset='0'/>\n\
             <memnode cellid='1' mode='{memnode}' nodeset='1'/>\n</numatune>\n\
             <cpu><topology sockets='2' cores='2' threads='1'/><numa>\n\
             <cell id='0' cpus='0-1' memory='{one}' unit='GiB'/>\n\
             <cell id='1' cpus='2-3' memory='{other}' unit='GiB'/>\n</numa></cpu>",
            pins(&[1, 2, 5, 6])
        ),
    )
}

#[test]
fn a_cell_larger_than_its_node_is_a_problem() {
    let topology = dual();
    let strict = ["strict", "strict"];
    assert_eq!(names(&worse(&[&cells([6, 6], strict)], &topology)), Vec::<&str>::new());
    let found = worse(&[&cells([4, 14], strict)], &topology);
    assert_eq!(names(&found), ["memory-too-large"]);
    assert_eq!(found[0].severity, Severity::Problem);
    assert_eq!(
        found[0].what,
        "the guest's cell 1 has 14336 MiB of memory bound to node 1, which has 12288 MiB"
    );
    let lines: Vec<_> = found[0].places.iter().map(|place| (place.line, &*place.file)).collect();
    assert_eq!(lines, [(Some(20), "0.xml"), (Some(16), "0.xml")], "{:?}", found[0].places);
    // What the kernel may take from elsewhere fits.
    assert_eq!(names(&worse(&[&cells([4, 14], ["preferred"; 2])], &topology)), Vec::<&str>::new());
    // Nor is such a file merged.
    let xml = cells([4, 14], strict);
    let request = Request::from_vnodes(vec![VnodeRequest::vm(
        "celled",
        Domain::read(&xml).expect("a file").request(&topology),
    )]);
    if let Ok(layout) = plan("auto", &topology, &request) {
        let error = pinfold_emit::merge_libvirt_domain(&xml, &layout, &layout.vnodes[0], &topology);
        assert!(error.expect_err("too large").why.contains("the guest's cell 1 has 14336 MiB"));
    }
}

#[test]
fn restrictive_bounds_memory_as_strict_does() {
    let topology = dual();
    let restrictive = ["restrictive", "restrictive"];
    assert_eq!(names(&worse(&[&cells([4, 14], restrictive)], &topology)), ["memory-too-large"]);
    for mode in ["strict", "restrictive"] {
        assert_eq!(names(&worse(&[&whole(mode)], &topology)), ["memory-too-large"], "{mode}");
    }
    assert_eq!(names(&worse(&[&whole("interleave")], &topology)), Vec::<&str>::new());
    // It binds no cell: that is said, and is no fault.
    let layout = Layout::of_text(&cells([4, 4], restrictive), "vm.xml").expect("a file");
    let found = lint(&[layout], &topology);
    let note =
        found.iter().find(|diagnostic| diagnostic.name == "cells-restricted").expect("a note");
    assert_eq!(note.severity, Severity::Note);
    assert!(found.iter().all(|diagnostic| diagnostic.severity == Severity::Note), "{found:?}");
    // libvirt refuses a mixture.
    for modes in [["restrictive", "strict"], ["strict", "restrictive"]] {
        let xml = cells([4, 4], modes);
        assert_eq!(names(&worse(&[&xml], &topology)), ["memory-modes-mixed"], "{modes:?}");
        let fixed =
            fix(&xml, "vm.xml", &topology, &Request::from_vnodes(Vec::new())).expect("a file");
        assert_eq!(fixed.left, Vec::new());
        assert_eq!(names(&worse(&[&fixed.text], &topology)), Vec::<&str>::new());
        assert_eq!(fixed.text.matches(&format!("mode='{}'", modes[0])).count(), 3);
    }
}

fn whole(mode: &str) -> String {
    let memory = format!("<numatune><memory mode='{mode}' nodeset='1'/></numatune>");
    file("whole", 16, FOUR, &memory)
}

#[test]
fn files_that_fit_alone_and_not_together() {
    let topology = dual();
    let (a, b, c) =
        (domain_on("a", 0, [1, 2]), domain_on("b", 0, [3, 11]), domain_on("c", 1, [5, 6]));
    assert_eq!(names(&worse(&[&a, &c], &topology)), Vec::<&str>::new());
    let b = b.replace("<vcpupin vcpu='1' cpuset='11'/>", "<vcpupin vcpu='1' cpuset='8'/>");
    let found = worse(&[&a, &b], &topology);
    let together =
        found.iter().find(|diagnostic| diagnostic.name == "memory-overcommitted").expect("it");
    assert_eq!(
        together.what,
        "the machines \"a\" and \"b\" have 16384 MiB of memory together, bound to node 0, where this \
         host has 12288 MiB"
    );
    assert!(together.instead[0].contains("node 1 has room for the memory of \"a\""));
    let places: Vec<_> = together.places.iter().map(|place| (&*place.file, place.line)).collect();
    assert_eq!(
        places,
        [("0.xml", Some(3)), ("0.xml", Some(11)), ("1.xml", Some(3)), ("1.xml", Some(11))]
    );
    // With a third on the other node there is no room left.
    let found = worse(&[&a, &b, &c], &topology);
    let together =
        found.iter().find(|diagnostic| diagnostic.name == "memory-overcommitted").expect("it");
    assert!(together.instead[0].contains("another host"), "{:?}", together.instead);
    // Memory of the whole host, bound or not, and its CPUs.
    assert_eq!(names_of([&floating(12, 8), &floating(12, 8)], &topology), Vec::<&str>::new());
    assert_eq!(names_of([&floating(13, 8), &floating(12, 8)], &topology), ["memory-overcommitted"]);
    assert_eq!(names_of([&floating(12, 9), &floating(12, 8)], &topology), ["vcpus-overcommitted"]);
    let found = worse(&[&floating(12, 9), &floating(12, 8)], &topology);
    assert!(found[0].what.contains("17 vCPUs together, and this host has 16 CPUs"), "{found:?}");
    assert_eq!(names_of([&a, &floating(12, 15)], &topology), ["vcpus-overcommitted"]);
}

fn names_of(files: [&str; 2], topology: &Topology) -> Vec<&'static str> {
    names(&worse(&files, topology))
}

fn domain_on(name: &str, node: u32, cpus: [u32; 2]) -> String {
    let helpers = if node == 0 { "0,8" } else { "4,12" };
    file(
        name,
        8,
        "<vcpu placement='static'>2</vcpu>",
        &format!(
            "<cputune>\n{}<emulatorpin cpuset='{helpers}'/>\n</cputune>\n\
                 <numatune><memory mode='strict' nodeset='{node}'/></numatune>\n<cpu>{}</cpu>",
            pins(&cpus),
            shape(2)
        ),
    )
}

fn floating(gib: u64, vcpus: u32) -> String {
    file("f", gib, &format!("<vcpu placement='static'>{vcpus}</vcpu>"), "")
}

#[test]
fn a_plan_with_more_memory_than_its_nodes_is_a_problem() {
    let topology = dual();
    let memory = Some(MemoryRequest { bytes: 4 * GIB, page_bytes: None });
    let vm = VmRequest::from_vcpus(VcpuCount::Exactly(4));
    let request = Request::from_vnodes(vec![VnodeRequest { memory, ..VnodeRequest::vm("vm", vm) }]);
    let mut layout = plan("numa-exclusive", &topology, &request).expect("a plan");
    let found = |layout: &Plan| {
        let mut diagnostics = lint(&Layout::of_plan(layout, "plan.json"), &topology);
        diagnostics.retain(|diagnostic| diagnostic.severity >= Severity::Warning);
        diagnostics
    };
    assert_eq!(names(&found(&layout)), Vec::<&str>::new());
    let memory = layout.vnodes[0].memory.as_mut().expect("memory");
    memory.bytes = Some(20 * GIB);
    let node = memory.nodes[0];
    let diagnostics = found(&layout);
    assert_eq!(names(&diagnostics), ["memory-too-large"]);
    let what =
        format!("the machine has 20480 MiB of memory bound to node {node}, which has 12288 MiB");
    assert_eq!(diagnostics[0].what, what);
    let place = format!("vnodes[0].memory.size_bytes: {}", 20 * GIB);
    assert!(
        diagnostics[0].places.iter().any(|found| found.text == place && found.file == "plan.json")
    );
}

/// Four vCPUs of node 0 and memory that is not bound.
fn unbound(gib: u64) -> String {
    let tune =
        format!("<cputune>\n{}<emulatorpin cpuset='0,8'/>\n</cputune>", pins(&[1, 9, 2, 10]));
    let cpu = "<cpu mode='host-passthrough'><topology sockets='1' cores='2' threads='2'/></cpu>";
    file("large", gib, FOUR, &format!("{tune}\n{cpu}"))
}

#[test]
fn memory_that_is_not_bound_is_bound_where_it_fits_and_the_pins_stay() {
    let topology = dual();
    for (gib, line, nodes) in [
        (8, "<memory mode='strict' nodeset='0'/>", ""),
        (20, "<memory mode='interleave' nodeset='0-1'/>", "nodes 0, 1 are needed"),
    ] {
        let xml = unbound(gib);
        let found = worse(&[&xml], &topology);
        assert_eq!(names(&found), ["memory-not-bound"]);
        assert!(found[0].what.contains(nodes), "{}", found[0].what);
        assert_eq!(found[0].instead, ["in <domain>, add <numatune> with:", line]);
        let fixed =
            fix(&xml, "vm.xml", &topology, &Request::from_vnodes(Vec::new())).expect("a file");
        assert_eq!(fixed.left, Vec::new(), "{}", fixed.text);
        assert_eq!(names(&worse(&[&fixed.text], &topology)), Vec::<&str>::new(), "{}", fixed.text);
        assert!(fixed.text.contains(line) && fixed.text.contains(&pins(&[1, 9, 2, 10])));
    }
    // More than the host has: that is the finding, and no binding is advised.
    let found = worse(&[&unbound(40)], &topology);
    assert_eq!(names(&found), ["memory-too-large"]);
    assert_eq!(found[0].instead, ["give the machine less memory"]);
}

/// More vCPUs than CPUs, merged under `--free 2`: their mask is what the user chose. It spans all
/// nodes, so that the kernel places each vCPU next to its pages, and no binding is missing.
#[test]
fn a_mask_of_many_vcpus_over_all_nodes_stays_and_needs_no_binding() {
    let topology = dual();
    let xml = file("many", 16, "<vcpu placement='static'>32</vcpu>", "");
    let domain = Domain::read(&xml).expect("a file");
    let vnode = VnodeRequest::vm("many", domain.request(&topology));
    let vnode = VnodeRequest { memory: domain.memory_request(&topology), ..vnode };
    let request = Request { free: Some(FreeCpus::Pus(2)), ..Request::from_vnodes(vec![vnode]) };
    let layout = plan("none", &topology, &request).expect("a plan");
    let merged = pinfold_emit::merge_libvirt_domain(&xml, &layout, &layout.vnodes[0], &topology)
        .expect("a merge");
    // The same file without a binding.
    let text: String = merged
        .text
        .lines()
        .filter(|line| !line.contains("<memory mode"))
        .fold(String::new(), |text, line| text + line + "\n");
    assert_eq!(names(&worse(&[&text], &topology)), Vec::<&str>::new(), "{text}");
    let fixed = fix(&text, "vm.xml", &topology, &Request::from_vnodes(Vec::new())).expect("a file");
    assert_eq!(masks(&fixed.text), masks(&text), "{}", fixed.text);
    assert_eq!(names(&worse(&[&fixed.text], &topology)), Vec::<&str>::new());
}

fn masks(xml: &str) -> Vec<(Role, Option<CpuSet>)> {
    let layout = Layout::of_text(xml, "vm.xml").expect("a file");
    layout.pins.into_iter().map(|pin| (pin.role, pin.pus)).collect()
}

#[test]
fn real_time_vcpus_that_float_over_the_emulators_cpus_starve_it() {
    let topology = host("i7-4790k.synthetic");
    let xml = fifo("");
    let found = worse(&[&xml], &topology);
    assert_eq!(names(&found), ["fifo-starves", "fifo-starves"], "{found:?}");
    assert!(found.iter().all(|diagnostic| diagnostic.severity == Severity::Warning), "{found:?}");
    assert_eq!(
        found[0].what,
        "the emulator runs only on the CPUs 1-3, which belong to vCPUs under a real-time policy"
    );
    let advice: Vec<&String> = found.iter().flat_map(|diagnostic| &diagnostic.instead).collect();
    for element in
        ["<emulatorpin cpuset=", "<iothreadpin iothread='1' cpuset=", "<vcpupin vcpu='0'"]
    {
        assert!(advice.iter().any(|line| line.starts_with(element)), "{element}: {advice:?}");
    }
    let fixed = fix(&xml, "vm.xml", &topology, &Request::from_vnodes(Vec::new())).expect("a file");
    assert_eq!(fixed.left, Vec::new());
    assert_eq!(names(&worse(&[&fixed.text], &topology)), Vec::<&str>::new(), "{}", fixed.text);
    assert!(fixed.text.contains("<vcpusched vcpus='0-1' scheduler='fifo' priority='1'/>"));
    // Off their CPUs it is not starved, and without a real-time policy threads may float together.
    let apart = "<emulatorpin cpuset='0,4'/>\n<iothreadpin iothread='1' cpuset='0,4'/>\n";
    assert_eq!(names(&worse(&[&fifo(apart)], &topology)), Vec::<&str>::new());
    let usual = xml.replace("<vcpusched vcpus='0-1' scheduler='fifo' priority='1'/>", "");
    assert_eq!(names(&worse(&[&usual], &topology)), Vec::<&str>::new());
}

fn fifo(tune: &str) -> String {
    let sched = "<vcpusched vcpus='0-1' scheduler='fifo' priority='1'/>";
    file(
        "rt",
        2,
        "<vcpu placement='static' cpuset='1-3'>2</vcpu>\n<iothreads>1</iothreads>",
        &format!(
            "<memoryBacking><locked/></memoryBacking>\n<memtune><hard_limit unit='GiB'>4\
                 </hard_limit></memtune>\n<cputune>\n{tune}{sched}\n</cputune>\n<cpu>{}</cpu>",
            shape(2)
        ),
    )
}

/// An element that the file lacks is to be added, with the one that it goes into.
#[test]
fn memory_is_a_whole_number_of_its_huge_pages() {
    let found = worse(&[&pages("<memory unit='MiB'>4608</memory>")], &dual());
    let diagnostic =
        found.iter().find(|diagnostic| diagnostic.name == "huge-page-multiple").expect("a finding");
    assert_eq!(diagnostic.instead, ["4 GiB or 5 GiB of memory"]);
    let found = worse(&[&pages("<memory unit='GiB'>4</memory>")], &dual());
    assert!(!names(&found).contains(&"huge-page-multiple"));
}

fn pages(memory: &str) -> String {
    let pages = "<memoryBacking><hugepages><page size='1' unit='GiB'/></hugepages></memoryBacking>";
    let text = file("a", 4, FOUR, pages);
    text.replace("<memory unit='GiB'>4</memory>", memory)
}

#[test]
fn advice_says_what_to_add_and_below_what() {
    let topology = host("ryzen-7950x3d.xml");
    let where_to = |xml: &str, name: &str| {
        let found = worse(&[xml], &topology);
        let diagnostic = found.iter().find(|diagnostic| diagnostic.name == name);
        let diagnostic = diagnostic.unwrap_or_else(|| panic!("no {name} in {found:?}"));
        assert!(
            diagnostic.places.iter().all(|place| place.line.is_some() && place.file == "0.xml")
        );
        diagnostic.instead.first().cloned().expect("advice")
    };
    let check = |features: &str, clock: &str, [hyperv, timer]: [&str; 2]| {
        let xml = windows(features, clock);
        assert_eq!(where_to(&xml, "hyperv-missing"), hyperv);
        assert_eq!(where_to(&xml, "timer-hypervclock"), timer);
    };
    check(
        "",
        "",
        [
            "in <domain>, add <features> <hyperv mode='custom'> with:",
            "in <domain>, add <clock offset='utc'> with:",
        ],
    );
    check(
        "<features><acpi/></features>",
        "<clock offset='utc'/>",
        ["in <features>, add <hyperv mode='custom'> with:", "within <clock>:"],
    );
    check(
        "<features><hyperv mode='custom'><relaxed state='on'/></hyperv></features>",
        "<clock offset='utc'/>",
        ["within <features> <hyperv>:", "within <clock>:"],
    );
}

fn windows(features: &str, clock: &str) -> String {
    file(
        "w",
        4,
        "<vcpu placement='static'>2</vcpu>",
        &format!(
            "<metadata><libosinfo:libosinfo xmlns:libosinfo='http://libosinfo.org/xmlns/libvirt/\
                 domain/1.0'><libosinfo:os id='http://microsoft.com/win/11'/></libosinfo:libosinfo>\
                 </metadata>{features}{clock}"
        ),
    )
}

#[test]
fn a_file_that_is_nested_too_deep_is_refused() {
    Domain::read(&nest(100)).expect("as deep as libvirt reads");
    let error = Domain::read(&nest(60_000)).expect_err("far too deep");
    assert!(error.why.contains("nested more than 256 deep"), "{error}");
    assert_eq!((error.line, error.hint.is_some()), (1, true));
}

fn nest(depth: usize) -> String {
    format!(
        "<domain type='kvm'><vcpu>1</vcpu><a>{}{}</a></domain>",
        "<b>".repeat(depth),
        "</b>".repeat(depth)
    )
}
