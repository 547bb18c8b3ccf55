//! Advice is what `--fix` changes, no more and no less, and says where to write it.

#![expect(clippy::expect_used, reason = "a test that cannot go on fails")]

use pinfold_host::LiveHost;
use pinfold_model::{Request, Severity, Topology};
use pinfold_plan::review::{Flaw, Layout, fix, review};

const SHARED: &str = "<vcpupin vcpu='0' cpuset='4'/>\n<vcpupin vcpu='1' cpuset='4'/>\n";

fn host(name: &str) -> Topology {
    let live = LiveHost::new().expect("the running machine");
    let path = match name.contains(' ') {
        true => name.to_owned(),
        false => format!("{}/../../fixtures/hosts/{name}", env!("CARGO_MANIFEST_DIR")),
    };
    pinfold_topology::read_input(&live, &path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn ryzen() -> Topology {
    host("ryzen-7950x3d.xml")
}

fn domain(vcpus: usize, tune: &str, rest: &str) -> String {
    format!(
        "<domain type='kvm'>\n<name>m</name>\n<memory unit='GiB'>4</memory>\n<vcpu>{vcpus}</vcpu>\n\
         <cputune>\n{tune}</cputune>\n<os><type arch='x86_64'>hvm</type></os>\n{rest}</domain>\n"
    )
}

fn found(xml: &str, topology: &Topology) -> Vec<Flaw> {
    review(&[Layout::of_text(xml, "m.xml").expect("a domain file")], topology)
}

fn advice<'f>(flaws: &'f [Flaw], name: &str) -> &'f [String] {
    let flaw = flaws.iter().find(|flaw| flaw.name == name);
    &flaw.unwrap_or_else(|| panic!("no {name} in {flaws:?}")).instead
}

/// The lines of advice for everything worse than a note.
fn lines(flaws: &[Flaw]) -> Vec<&str> {
    let worse = flaws.iter().filter(|flaw| flaw.severity > Severity::Note);
    worse.flat_map(|flaw| &flaw.instead).map(String::as_str).collect()
}

#[test]
fn an_element_that_gets_its_first_child_stays() {
    for cpu in ["<cpu mode='host-passthrough'/>", "<cpu mode='host-passthrough'></cpu>"] {
        let xml = domain(2, SHARED, cpu);
        let flaws = found(&xml, &ryzen());
        let topology = "<topology sockets='1' cores='2' threads='1'/>";
        assert_eq!(advice(&flaws, "guest-sockets-lie"), ["within <cpu>:", topology]);
        assert!(lines(&flaws).iter().all(|line| !line.contains("take out")), "{flaws:?}");
        let fixed = fix(&xml, "m.xml", &ryzen(), &Request::of(Vec::new())).expect("a domain file");
        assert!(fixed.text.contains("<cpu mode='host-passthrough'>"), "{}", fixed.text);
    }
}

#[test]
fn advice_names_no_line_that_the_fix_leaves() {
    let disk = |kind: &str, target: &str| {
        format!(
            "<disk type='file'>\n<driver name='qemu' type='{kind}'/>\n<source file='/{target}'/>\n\
             <target dev='{target}' bus='virtio'/>\n</disk>\n"
        )
    };
    let function = |number: u32| {
        format!(
            "<hostdev mode='subsystem' type='pci' managed='yes'>\n<source>\n<address domain='0x0000' \
             bus='0x01' slot='0x00' function='0x{number}'/>\n</source>\n</hostdev>\n"
        )
    };
    let devices = format!(
        "<devices>\n{}{}{}{}</devices>\n",
        disk("qcow2", "vda"),
        disk("raw", "vdb"),
        function(0),
        function(1)
    );
    let xml = domain(2, SHARED, &devices);
    let flaws = found(&xml, &ryzen());
    let there: Vec<&str> = xml.lines().collect();
    let lines = lines(&flaws);
    assert!(lines.iter().all(|line| !there.contains(line)), "{lines:?}");
    assert_eq!(
        advice(&flaws, "vcpus-share-pu"),
        ["<vcpupin vcpu='0' cpuset='1'/>", "<vcpupin vcpu='1' cpuset='2'/>"]
    );
    // What is advised is in the file that the fix writes.
    let fixed = fix(&xml, "m.xml", &ryzen(), &Request::of(Vec::new())).expect("a domain file");
    let elements = lines.iter().filter(|line| line.starts_with('<'));
    for line in elements {
        assert!(fixed.text.replace(" dies='1'", "").contains(line), "{line}\n{}", fixed.text);
    }
}
