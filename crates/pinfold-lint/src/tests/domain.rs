//! Settings of a domain file other than pins: a merge keeps them, or replaces them with a comment
//! and a note. Input that libvirt accepts is parsed, input that it refuses is refused.

use pinfold_emit::{Merged, merge_libvirt_domain};
use pinfold_model::{NodeId, Request, Severity, Topology, VnodeRequest};
use pinfold_plan::domain_file::{Domain, Target};
use pinfold_plan::layout::Layout;
use pinfold_plan::plan;
use pinfold_samples::machine::Machine;

use crate::{fix, lint};

/// Two packages of one node, eight cores of two threads each.
fn server() -> Topology {
    let mut topology = Machine::new([2, 1, 1, 8, 2], |place: pinfold_samples::machine::Place| {
        8 * place.package + place.core + 16 * place.thread
    })
    .build();
    topology.nodes.iter_mut().for_each(|node| node.memory_bytes = 64 << 30);
    topology
}

/// What the command line does with a file: its own request, planned and merged.
fn merged(xml: &str, strategy: &str) -> Merged {
    let topology = server();
    let domain = Domain::read(xml).unwrap();
    let mut vnode = VnodeRequest::vm("vm", domain.request(&topology));
    vnode.memory = domain.memory_request(&topology);
    let layout = plan(strategy, &topology, &Request::from_vnodes(vec![vnode])).unwrap();
    merge_libvirt_domain(xml, &layout, layout.single_vnode().unwrap(), &topology).unwrap()
}

fn file(kind: &str, arch: &str, inside: &str) -> String {
    format!(
        "<domain type='{kind}'>\n  <name>vm</name>\n  <memory unit='GiB'>4</memory>\n  {inside}\n  \
         <os><type arch='{arch}'>hvm</type></os>\n</domain>\n"
    )
}

#[track_caller]
fn check(merged: &Merged, there: &[&str], absent: &[&str]) {
    for part in there {
        assert!(merged.text.contains(part), "{part} is not in\n{}", merged.text);
    }
    for part in absent {
        assert!(!merged.text.contains(part), "{part} is in\n{}", merged.text);
    }
}

#[test]
fn memory_that_a_file_binds_keeps_its_vcpus() {
    let numatune =
        "<vcpu>4</vcpu>\n  <numatune>\n    <memory mode='preferred' nodeset='0'/>\n  </numatune>";
    let text = merged(&file("kvm", "x86_64", numatune), "low-latency");
    let kept = numatune.trim_start_matches("<vcpu>4</vcpu>\n");
    check(&text, &[kept, "<vcpupin vcpu='0' cpuset='1'/>"], &["Pinfold:"]);
    // Without a binding, the plan uses the node without the host, and binds the memory there.
    let text = merged(&file("kvm", "x86_64", "<vcpu>4</vcpu>"), "low-latency");
    check(&text, &["<vcpupin vcpu='0' cpuset='8'/>", "<memory mode='strict' nodeset='1'/>"], &[]);
    // A node that this host lacks is replaced, with a comment and a note with the line.
    let text = merged(&file("kvm", "x86_64", &numatune.replace("'0'", "'5'")), "low-latency");
    let comment =
        "<!-- Pinfold: this host has no node 5; before: <memory mode='preferred' nodeset='5'/> -->";
    check(&text, &[comment, "<memory mode='strict' nodeset='1'/>"], &[]);
    assert!(text.notes.iter().any(|note| note.starts_with("line 6: ")), "{:?}", text.notes);
}

#[test]
fn numad_gives_way_to_the_plan() {
    let auto = "<vcpu placement='auto'>4</vcpu>\n  <numatune><memory mode='strict' placement='auto'/></numatune>";
    let text = merged(&file("kvm", "x86_64", auto), "balanced");
    let there = ["<vcpu placement='static'>4</vcpu>", "<memory mode='strict' nodeset='1'/>"];
    check(&text, &there, &["\n  <numatune><memory mode='strict' placement='auto'/>"]);
    assert_eq!(text.notes.len(), 2, "{:?}", text.notes);
}

#[test]
fn vcpus_that_are_not_online_at_boot_stay_so() {
    let current = "<vcpu placement='static' current='2'>8</vcpu>";
    check(&merged(&file("kvm", "x86_64", current), "balanced"), &[current], &["Pinfold:"]);
    let auto = "<vcpu placement='auto' current='2'>8</vcpu>";
    check(&merged(&file("kvm", "x86_64", auto), "balanced"), &[current], &[]);
}

#[test]
fn a_board_gets_only_what_it_has() {
    let vcpus = "<vcpu>4</vcpu>";
    let kvm = merged(&file("kvm", "x86_64", vcpus), "balanced");
    check(
        &kvm,
        &["<cpu>\n    <topology sockets='1' dies='1' cores='2' threads='2'/>"],
        &["host-passthrough"],
    );
    let arm = merged(&file("qemu", "aarch64", vcpus), "balanced");
    check(&arm, &["<topology sockets='1' cores='2' threads='2'/>"], &["dies"]);
    let s390 = merged(&file("qemu", "s390x", vcpus), "balanced");
    check(&s390, &["<topology sockets='1' cores='4' threads='1'/>"], &["dies"]);
    let riscv = merged(&file("qemu", "riscv64", vcpus), "balanced");
    check(&riscv, &["<vcpupin"], &["<cpu>", "<topology"]);
    assert!(riscv.notes.iter().any(|note| note.contains("starts no machine")), "{:?}", riscv.notes);
    let clusters = "<vcpu>8</vcpu><cpu mode='host-passthrough'><topology sockets='1' dies='1' \
                    clusters='2' cores='4' threads='1'/></cpu>";
    let kept = clusters.trim_start_matches("<vcpu>8</vcpu>");
    check(&merged(&file("kvm", "aarch64", clusters), "low-latency"), &[kept], &["Pinfold:"]);
    let more = merged(&file("kvm", "aarch64", clusters), "balanced");
    check(&more, &["<topology sockets='1' clusters='2' cores='2' threads='2'/>"], &[]);
}

/// Two cells of eight vCPUs whose memory is on `nodes`.
fn cells(nodes: [u32; 2]) -> String {
    let [first, second] = nodes;
    file(
        "kvm",
        "x86_64",
        &format!(
            "<vcpu>16</vcpu>\n  <numatune><memory mode='strict' nodeset='0-1'/>\
             <memnode cellid='0' mode='strict' nodeset='{first}'/>\
             <memnode cellid='1' mode='strict' nodeset='{second}'/></numatune>\n  \
             <cpu><topology sockets='2' cores='8' threads='1'/><numa>\
             <cell id='0' cpus='0-7' memory='2' unit='gib'/><cell id='1' cpus='8-15' memory='2' unit='GIB'/>\
             </numa></cpu>"
        ),
    )
}

#[test]
fn cells_of_a_file_stay_and_get_their_nodes() {
    for nodes in [[0, 1], [1, 0]] {
        for strategy in ["balanced", "compact", "max-performance", "auto"] {
            let xml = cells(nodes);
            let text = merged(&xml, strategy).text;
            let domain = Domain::read(&text).unwrap();
            for vcpu in 0..16 {
                let node = u32::from(pus_of(&domain, vcpu) % 16 >= 8);
                assert_eq!(node, nodes[usize::from(vcpu >= 8)], "{strategy}: vCPU {vcpu}\n{text}");
            }
            let numatune = xml.lines().find(|line| line.contains("numatune")).unwrap();
            assert!(text.contains(numatune), "{text}");
            assert_eq!(domain.shape.unwrap().value.sockets, 2, "{strategy}");
        }
    }
    // A plan for another machine would split them.
    let topology = server();
    let layout = plan("compact", &topology, &pinfold_samples::exactly(16)).unwrap();
    let error =
        merge_libvirt_domain(&cells([0, 1]), &layout, layout.single_vnode().unwrap(), &topology)
            .unwrap_err();
    assert!(
        error.why.contains("cell 1 has its memory on node 1, but the plan has its vCPUs on node 0"),
        "{error}"
    );
    assert!(error.hint.is_some() && error.line > 1);
}

fn pus_of(domain: &Domain, vcpu: u32) -> u32 {
    domain.pin(Target::Vcpu(vcpu)).unwrap().0.first().unwrap().0
}

/// Bindings to nodes that this host lacks are replaced, each with a comment; the others stay
/// unchanged.
#[test]
fn cells_bound_to_nodes_that_the_host_lacks_are_bound_again() {
    let text = merged(&cells([0, 5]), "balanced");
    let domain = Domain::read(&text.text).unwrap();
    let bound = domain.memnodes.iter().map(|memnode| &memnode.value);
    let bound: Vec<_> = bound.map(|memnode| (memnode.cell, memnode.nodes.clone())).collect();
    assert_eq!(bound, [(0, vec![NodeId(0)]), (1, vec![NodeId(1)])], "{}", text.text);
    let before = "before: <memnode cellid='1' mode='strict' nodeset='5'/> -->";
    check(&text, &[before, "<memory mode='strict' nodeset='0-1'/>"], &["before: <memory"]);
    let whole = cells([0, 1]).replace("nodeset='0-1'", "nodeset='0-5'");
    let text = merged(&whole, "balanced");
    let memnode = "<memnode cellid='0' mode='strict' nodeset='0'/>";
    let before = "before: <memory mode='strict' nodeset='0-5'/> -->";
    check(
        &text,
        &[memnode, before, "<memory mode='strict' nodeset='0-1'/>"],
        &["before: <memnode"],
    );
    assert_eq!(merged(&text.text, "balanced").text, text.text);
}

#[test]
fn what_libvirt_reads_is_read() {
    let xml = "<domain type='kvm'><name>a<!-- one -->b</name><vcpu><!-- four -->4</vcpu>\
               <x:cputune xmlns:x='urn:x'><x:vcpupin/></x:cputune></domain>";
    let read = Domain::read(xml).unwrap();
    assert_eq!((read.name.as_str(), read.vcpus.value), ("ab", 4));
    for (unit, expected) in [
        ("mib", 3 << 20),
        ("MIB", 3 << 20),
        ("gb", 3_000_000_000),
        ("BYTE", 3),
        ("E", 3 << 60),
        ("", 3 << 10),
    ] {
        assert_eq!(bytes(unit), Some(expected), "{unit}");
    }
    let list = |list: &str| {
        let xml = format!("<domain type='qemu'><vcpu cpuset='{list}'>4</vcpu></domain>");
        Domain::read(&xml).map(|domain| domain.default.unwrap().value.to_string())
    };
    assert_eq!(list("^3,1-8"), Ok("1-8".to_owned()));
    assert_eq!(list("1-8,^9"), Ok("1-8".to_owned()));
    assert!(list("1-8,^3-5").unwrap_err().why.contains("^N, not ^N-M"));
    let domain = Domain::read(&cells([1, 0])).unwrap();
    assert_eq!(domain.cells[1].value.bytes, Some(2 << 30));
    assert_eq!(domain.request(&server()).cells[0].nodes, [NodeId(1)]);
}

fn bytes(unit: &str) -> Option<u64> {
    let xml = format!("<domain type='qemu'><memory unit='{unit}'>3</memory></domain>");
    Domain::read(&xml).unwrap().memory_bytes
}

#[test]
fn a_priority_that_the_kernel_refuses_is_a_finding() {
    for (priority, wrong) in [("0", true), ("100", true), ("-1", true), ("1", false), ("99", false)]
    {
        let xml = format!(
            "<domain type='qemu'><vcpu>1</vcpu><cputune><vcpupin vcpu='0' cpuset='1'/>\n\
             <vcpusched vcpus='0' scheduler='fifo' priority='{priority}'/></cputune></domain>"
        );
        let layout = Layout::of_domain(&Domain::read(&xml).unwrap(), "x");
        let diagnostics = lint(&[layout], &server());
        let found = diagnostics.iter().any(|diagnostic| {
            diagnostic.name == "priority-range" && diagnostic.severity == Severity::Problem
        });
        assert_eq!(found, wrong, "{priority}");
    }
}

#[test]
fn every_refusal_says_what_to_do() {
    let refused = [
        "<domain type='lxc'><vcpu cpuset='0-1'>2</vcpu></domain>",
        "<domain type='xen'/>",
        "<network/>",
        "<domain",
        "<!DOCTYPE a><domain/>",
        "<domain type='qemu'><vcpu>0</vcpu></domain>",
        "<domain type='qemu'><vcpu cpuset='1-8,^3-5'>4</vcpu></domain>",
        "<domain type='qemu'><memory unit='furlong'>4</memory></domain>",
        "<domain type='qemu'><cputune><vcpupin vcpu='0'/></cputune></domain>",
        "<domain type='qemu'><cputune><vcpusched vcpus='0' scheduler='fifo' priority='x'/></cputune></domain>",
        "<domain type='qemu'><iothreads>many</iothreads></domain>",
        "<domain type='qemu'><cpu><topology sockets='0' cores='1' threads='1'/></cpu></domain>",
    ];
    for xml in refused {
        let error = Domain::read(xml).unwrap_err();
        assert!(error.hint.is_some() && error.line == 1, "{xml}: {error}");
    }
    let error = Domain::read(refused[0]).unwrap_err();
    assert!(error.why.contains("type='lxc'"), "{error}");
}

/// On an AMD host QEMU shows threads only with `topoext`, for every AMD model of the guest.
#[test]
fn threads_on_amd_come_with_their_feature() {
    let mut topology = server();
    topology.model = Some("AMD EPYC 7763 64-Core Processor".to_owned());
    let feature = "<feature policy='require' name='topoext'/>";
    for cpu in [
        "<cpu mode='host-passthrough'/>",
        "<cpu mode='host-model'/>",
        "<cpu mode='custom' match='exact'><model>EPYC-Rome</model></cpu>",
        "<cpu mode='host-passthrough'><feature policy='disable' name='topoext'/></cpu>",
    ] {
        let text = merge(&topology, cpu).text;
        assert_eq!(text.matches(feature).count(), 1, "{text}");
        assert!(text.contains("threads='2'"), "{text}");
    }
    let intel = merge(&topology, "<cpu mode='custom' match='exact'><model>Haswell</model></cpu>");
    let bare = merge(&topology, "<cpu><topology sockets='1' cores='4' threads='1'/></cpu>");
    check(&intel, &[], &["topoext"]);
    check(&bare, &[], &["topoext"]);
    assert!(bare.notes.iter().any(|note| note.contains("names no model")), "{:?}", bare.notes);
}

fn merge(topology: &Topology, cpu: &str) -> Merged {
    let xml = file("kvm", "x86_64", &format!("<vcpu>4</vcpu>\n  {cpu}"));
    let domain = Domain::read(&xml).unwrap();
    let vnode = VnodeRequest::vm("vm", domain.request(topology));
    let layout = plan("balanced", topology, &Request::from_vnodes(vec![vnode])).unwrap();
    let merged =
        merge_libvirt_domain(&xml, &layout, layout.single_vnode().unwrap(), topology).unwrap();
    let diagnostics = lint(&[Layout::of_text(&merged.text, "x").unwrap()], topology);
    assert!(
        diagnostics.iter().all(|diagnostic| diagnostic.name != "topoext-missing"),
        "{diagnostics:?}"
    );
    merged
}

/// A node that the host lacks: the finding names the existing ones, and `--fix` writes them.
#[test]
fn a_node_that_the_host_lacks_is_exchanged_for_one_that_it_has() {
    let xml = cells([5, 1]);
    let layout = Layout::of_text(&xml, "x").unwrap();
    let diagnostics = lint(&[layout], &server());
    let absent = diagnostics.iter().find(|diagnostic| diagnostic.name == "absent-node").unwrap();
    assert!(absent.what.contains("it has nodes 0, 1"), "{}", absent.what);
    let fixed = fix(&xml, "x", &server(), &Request::from_vnodes(Vec::new())).unwrap();
    assert!(fixed.text.contains("cellid='0' mode='strict' nodeset='0'"), "{}", fixed.text);
}
