//! The guest has no more sockets than the host has packages, and a desktop Windows at most two.

use pinfold_emit::merge_libvirt_domain;
use pinfold_host::LiveHost;
use pinfold_lint::{Diagnostic, fix, lint};
use pinfold_model::{
    IsolationScope, MemoryRequest, Request, Topology, VcpuCount, VmRequest, VnodeRequest,
};
use pinfold_plan::domain_file::{Domain, Shape};
use pinfold_plan::layout::Layout;
use pinfold_plan::{plan, plan_if_possible};
use pinfold_samples::hosts;

const WINDOWS: &str = "<metadata><o:libosinfo xmlns:o='http://libosinfo.org/x'>\
                       <o:os id='http://microsoft.com/win/11'/></o:libosinfo></metadata>";

fn host(description: &str) -> Topology {
    let live = LiveHost::new().expect("the running machine");
    pinfold_topology::read_input(&live, description).expect("a description")
}

/// A file for this many vCPUs, with more elements of `<cpu>` and of `<domain>`.
fn file(vcpus: u32, of_cpu: &str, more: &str) -> String {
    format!(
        "<domain type='kvm'>\n<name>vm</name>\n{more}\n<memory unit='GiB'>6</memory>\n\
         <vcpu placement='static'>{vcpus}</vcpu>\n\
         <os><type arch='x86_64' machine='q35'>hvm</type></os>\n\
         <cpu mode='host-passthrough' check='none'>{of_cpu}</cpu>\n</domain>"
    )
}

/// The file with the plan of a strategy, and the topology in it.
fn merge(xml: &str, strategy: &str, topology: &Topology) -> (String, Shape) {
    let domain = Domain::read(xml).expect("a domain file");
    let mut vnode = VnodeRequest::vm("vm", domain.request(topology));
    vnode.memory = domain.memory_request(topology);
    let layout = plan(strategy, topology, &Request::from_vnodes(vec![vnode])).expect("a plan");
    let vnode = layout.single_vnode().expect("one machine");
    let text = merge_libvirt_domain(xml, &layout, vnode, topology).expect("a file").text;
    let shape = Domain::read(&text).expect("a file").shape.expect("a topology").value;
    (text, shape)
}

fn shape(sockets: u32, dies: u32, cores: u32, threads: u32) -> Shape {
    Shape { sockets, dies, clusters: 1, cores, threads }
}

fn findings(text: &str, topology: &Topology) -> Vec<Diagnostic> {
    lint(&[Layout::of_text(text, "vm.xml").expect("a domain file")], topology)
}

fn names(text: &str, topology: &Topology) -> Vec<&'static str> {
    let found = findings(text, topology);
    found
        .iter()
        .filter(|it| it.severity > pinfold_model::Severity::Note)
        .map(|it| it.name)
        .collect()
}

#[test]
fn no_plan_has_more_sockets_than_the_host_has_packages() {
    let mut planned = 0;
    for (name, topology) in hosts() {
        for vcpus in [1, 2, 3, 5, 8, 12, 16, 20, 24, 31, 40, 48, 64] {
            for strategy in ["auto", "balanced", "scatter", "max-performance"] {
                for bytes in [None, Some(4 << 30)] {
                    let vm = VmRequest::from_vcpus(VcpuCount::Exactly(vcpus));
                    let mut vnode = VnodeRequest::vm("vm", vm);
                    vnode.memory = bytes.map(|bytes| MemoryRequest { bytes, page_bytes: None });
                    let request = Request {
                        isolation: IsolationScope::None,
                        ..Request::from_vnodes(vec![vnode])
                    };
                    let Some(layout) = plan_if_possible(strategy, &topology, &request) else {
                        continue;
                    };
                    let guest = layout.vnodes[0].guest.as_ref().expect("a topology");
                    let case = format!("{name}, {strategy}, {vcpus} vCPUs: {guest:?}");
                    assert!(guest.sockets as usize <= topology.packages.len(), "{case}");
                    assert_eq!(guest.vcpus(), vcpus, "{case}");
                    planned += 1;
                }
            }
        }
    }
    assert!(planned > 1000, "{planned}");
}

/// Cells of different sizes are legal, and none needs a socket of its own.
#[test]
fn cells_of_a_file_may_be_parts_of_a_socket() {
    let topology = host("package:2 [numa(memory=16GiB)] core:8 pu:2");
    let cells = "<topology sockets='1' dies='1' cores='5' threads='1'/>\
                 <numa><cell id='0' cpus='0-2' memory='3' unit='GiB'/>\
                 <cell id='1' cpus='3-4' memory='3' unit='GiB'/></numa>";
    let (text, found) = merge(&file(5, cells, ""), "auto", &topology);
    assert_eq!(found, shape(1, 1, 5, 1));
    assert_eq!(names(&text, &topology), [""; 0], "{text}");
}

/// A virtual machine as host, whose packages have one core each.
#[test]
fn packages_of_one_core_are_no_sockets() {
    for (description, vcpus) in [("package:12 core:1 pu:1", 6), ("package:12 core:1 pu:2", 12)] {
        let topology = host(description);
        for strategy in ["auto", "balanced", "compact"] {
            let (_, found) = merge(&file(vcpus, "", WINDOWS), strategy, &topology);
            assert_eq!(found.sockets, 1, "{description}, {strategy}");
        }
    }
}

#[test]
fn nodes_of_one_package_are_dies_with_a_cell_each() {
    let topology = host("package:1 numa:4(memory=4GiB) core:4 pu:2");
    for system in [WINDOWS, ""] {
        let (text, found) = merge(&file(24, "", system), "auto", &topology);
        assert_eq!(found, shape(1, 3, 4, 2));
        assert!(text.contains("<cell id='2' cpus='16-23' memory='2097152' unit='KiB'/>"), "{text}");
        assert!(!names(&text, &topology).contains(&"guest-sockets-lie"), "{text}");
    }
    // Boards without dies: all in one socket.
    let arm = file(24, "", "").replace("x86_64", "aarch64").replace("q35", "virt");
    assert_eq!(merge(&arm, "auto", &topology).1, shape(1, 1, 12, 2));
}

#[test]
fn a_desktop_windows_has_its_further_sockets_as_dies() {
    let topology = host("package:4 [numa(memory=4GiB)] l3:1 core:5 pu:2");
    let (_, linux) = merge(&file(30, "", ""), "auto", &topology);
    assert_eq!(linux, shape(3, 1, 5, 2));
    let server = WINDOWS.replace("win/11", "win/2k22");
    assert_eq!(merge(&file(30, "", &server), "auto", &topology).1, shape(3, 1, 5, 2));
    let (text, windows) = merge(&file(30, "", WINDOWS), "auto", &topology);
    assert_eq!(windows, shape(1, 3, 5, 2));
    assert!(!names(&text, &topology).contains(&"guest-sockets-lie"), "{text}");
    // A file that says otherwise gets the same topology.
    let three = text.replace("sockets='1' dies='3'", "sockets='3' dies='1'");
    assert!(names(&three, &topology).contains(&"guest-sockets-lie"), "{three}");
    let fixed =
        fix(&three, "vm.xml", &topology, &Request::from_vnodes(Vec::new())).expect("a file");
    let found = Domain::read(&fixed.text).expect("a file").shape.expect("a topology").value;
    assert_eq!((found.sockets, found.vcpus()), (1, Some(30)), "{}", fixed.text);
    let linux = three.replace("http://microsoft.com/win/11", "http://debian.org/debian/12");
    assert!(!names(&linux, &topology).contains(&"guest-sockets-lie"), "a Linux guest uses all");
}

/// A socket for each NUMA cell is one too many on a host of one package.
#[test]
fn a_socket_for_each_cell_is_found() {
    let topology = host("package:1 numa:2(memory=8GiB) l3:1 core:4 pu:1");
    let cells = "<topology sockets='2' dies='1' cores='2' threads='1'/>\
                 <numa><cell id='0' cpus='0-1' memory='3' unit='GiB'/>\
                 <cell id='1' cpus='2-3' memory='3' unit='GiB'/></numa>";
    let pins = "<cputune><vcpupin vcpu='0' cpuset='1'/><vcpupin vcpu='1' cpuset='2'/>\
                <vcpupin vcpu='2' cpuset='5'/><vcpupin vcpu='3' cpuset='6'/>\
                <emulatorpin cpuset='0'/></cputune>\
                <numatune><memory mode='strict' nodeset='0-1'/>\
                <memnode cellid='0' mode='strict' nodeset='0'/>\
                <memnode cellid='1' mode='strict' nodeset='1'/></numatune>";
    let text = file(4, cells, pins);
    assert_eq!(names(&text, &topology), ["guest-sockets-lie"]);
    let fixed = fix(&text, "vm.xml", &topology, &Request::from_vnodes(Vec::new())).expect("a file");
    let found = Domain::read(&fixed.text).expect("a file").shape.expect("a topology").value;
    assert_eq!(found, shape(1, 2, 2, 1), "{}", fixed.text);
    assert_eq!(names(&fixed.text, &topology), [""; 0], "{}", fixed.text);
}

/// The finding about sockets quotes the topology, and pins stand under the finding about pins; what
/// `--fix` repairs is what the check names, also on AMD hosts, where QEMU needs `topoext`.
#[test]
fn advice_about_sockets_leaves_the_pins_to_others() {
    let mut named = 0;
    for topology in hosts().into_iter().map(|(_, topology)| topology) {
        for (of_cpu, first) in [("", 1_u32), ("<cache mode='passthrough'/>", 4), ("", 0)] {
            let pins: String = (0..8)
                .map(|vcpu| format!("<vcpupin vcpu='{vcpu}' cpuset='{}'/>\n", first + vcpu))
                .collect();
            let text = file(8, of_cpu, &format!("<cputune>\n{pins}</cputune>"));
            let found = findings(&text, &topology);
            let of = |name: &str| found.iter().find(|it| it.name == name);
            if let (Some(sockets), Some(_)) = (of("guest-sockets-lie"), of("l3-crossed")) {
                let pins = sockets.instead.iter().filter(|line| line.contains("<vcpupin"));
                assert_eq!(pins.count(), 0, "{:?}", sockets.instead);
                named += 1;
            }
            let wrong = found.iter().filter(|it| it.name != "guest-siblings-lie").find(is_settled);
            assert!(wrong.is_none(), "{wrong:?}");
            let conditions = Request::from_vnodes(Vec::new());
            let Ok(repaired) = fix(&text, "vm.xml", &topology, &conditions) else { continue };
            for done in &repaired.done {
                assert!(of(done.name).is_some(), "{}: not in the check\n{text}", done.name);
            }
        }
    }
    assert!(named > 3, "{named}");
}

fn is_settled(it: &&Diagnostic) -> bool {
    it.instead.iter().any(|line| line.contains("under guest-sockets-lie settle"))
}
