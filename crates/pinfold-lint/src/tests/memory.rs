//! Memory bound to nodes: in the domain file, in the fragment, in QEMU's options.

use pinfold_emit::{libvirt, merge_libvirt_domain, qemu};
use pinfold_model::{MemoryPlan, NodeId, Plan, Topology};
use pinfold_plan::domain_file::Domain;
use pinfold_plan::layout::Layout;
use pinfold_plan::plan;
use pinfold_qemu::parse;
use pinfold_samples::exactly;
use pinfold_samples::machine::Machine;

use crate::lint;

/// Two nodes of two cores each; 64 MiB on `nodes`.
fn place(vcpus: u32, nodes: &[u32], page_bytes: Option<u64>) -> (Plan, Topology) {
    let topology = Machine::new([2, 1, 1, 2, 1], |place| 2 * place.package + place.core).build();
    let mut layout = plan("sequential", &topology, &exactly(vcpus)).unwrap();
    layout.vnodes[0].memory = Some(MemoryPlan {
        nodes: nodes.iter().map(|node| NodeId(*node)).collect(),
        bytes: Some(64 << 20),
        page_bytes,
        is_preferred: false,
        reason: "a test".to_owned(),
    });
    (layout, topology)
}

#[track_caller]
fn holds(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part}\nis not in\n{text}");
    }
}

#[test]
fn cells_for_two_nodes() {
    let xml = "<domain type='kvm'>\n  <memory unit='MiB'>64</memory>\n  <vcpu>4</vcpu>\n  \
               <numatune>\n    <!-- old -->\n    <memory mode='preferred' nodeset='1'/>\n  \
               </numatune>\n</domain>";
    let (layout, topology) = place(4, &[0, 1], Some(2 << 20));
    let text =
        merge_libvirt_domain(xml, &layout, layout.single_vnode().unwrap(), &topology).unwrap().text;
    let memnodes = "    <memnode cellid='0' mode='strict' nodeset='0'/>\n    \
                    <memnode cellid='1' mode='strict' nodeset='1'/>\n";
    let cells = [
        "<cell id='0' cpus='0-1' memory='32768' unit='KiB'/>",
        "<cell id='1' cpus='2-3' memory='32768' unit='KiB'/>",
    ];
    holds(&text, &cells);
    holds(
        &text,
        &["  <memory unit='MiB'>64</memory>\n", memnodes, "<page size='2048' unit='KiB'/>"],
    );
    holds(
        &text,
        &["    <!-- old -->\n    <!-- Pinfold: the memory follows the vCPUs; before: \
           <memory mode='preferred' nodeset='1'/> -->\n    <memory mode='strict' nodeset='0-1'/>\n"],
    );
    assert_eq!(
        merge_libvirt_domain(&text, &layout, layout.single_vnode().unwrap(), &topology)
            .unwrap()
            .text,
        text
    );
    holds(&libvirt(&layout, &topology).unwrap(), &cells);
    // The emitted file passes the check.
    let reviewed = Layout::of_domain(&Domain::read(&text).unwrap(), "x");
    let diagnostics = lint(&[reviewed], &topology);
    let names: Vec<&str> = diagnostics.iter().map(|diagnostic| diagnostic.name).collect();
    assert!(!names.contains(&"memory-far") && !names.contains(&"nodes-hidden"), "{names:?}");

    let script = qemu(&layout, &topology, &parse(&["qemu".to_owned()])).unwrap();
    holds(&script, &["-m size=67108864B", "-object thread-context,id=pinfold-tc1,node-affinity=1"]);
    holds(&script, &["size=33554432B,hugetlb=on,hugetlbsize=2097152B,host-nodes=1,policy=bind"]);
    holds(&script, &["-numa node,nodeid=1,cpus=2-3,memdev=pinfold-mem1"]);
}

#[test]
fn one_node_needs_no_cells() {
    let (layout, topology) = place(2, &[0], None);
    let bare = "<domain type='qemu'><vcpu>2</vcpu><memory>65536</memory></domain>";
    let text = merge_libvirt_domain(bare, &layout, layout.single_vnode().unwrap(), &topology)
        .unwrap()
        .text;
    holds(&text, &["<memory mode='strict' nodeset='0'/>", "<memory>65536</memory>"]);
    for absent in ["<cell", "memnode", "hugepages"] {
        assert!(!text.contains(absent), "{text}");
    }
    let script = qemu(&layout, &topology, &parse(&words("qemu -m 32"))).unwrap();
    holds(&script, &["bytes replace your -m", "-machine memory-backend=pinfold-mem0"]);
    let own = qemu(&layout, &topology, &parse(&words("qemu -m 1G -numa node,memdev=x"))).unwrap();
    holds(&own, &["your own memory backends are left as they are", "-m 1G"]);
    assert!(!own.contains("pinfold-mem0"));
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

/// Memory that cannot be divided, and an unknown size.
#[test]
fn what_cannot_be_bound_is_stated() {
    let (mut layout, topology) = place(4, &[0, 1], Some(1 << 30));
    let xml = "<domain type='qemu'><vcpu>4</vcpu></domain>";
    let error =
        merge_libvirt_domain(xml, &layout, layout.single_vnode().unwrap(), &topology).unwrap_err();
    assert!(error.why.contains("cannot be divided among 2 NUMA cells"), "{error}");
    if let Some(memory) = &mut layout.vnodes[0].memory {
        memory.bytes = None;
    }
    let script = qemu(&layout, &topology, &parse(&["qemu".to_owned()])).unwrap();
    holds(&script, &["its size is not known; say -m SIZE"]);
}
