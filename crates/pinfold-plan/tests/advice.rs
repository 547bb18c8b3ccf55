//! Advice is what `--fix` changes, no more and no less, and says where to write it.

#![expect(clippy::expect_used, reason = "a test that cannot go on fails")]

use pinfold_host::LiveHost;
use pinfold_model::{Request, Role, Severity, Topology, VcpuCount};
use pinfold_plan::lint::{Diagnostic, Layout, fix, lint};
use pinfold_plan::plan;

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

fn found(xml: &str, topology: &Topology) -> Vec<Diagnostic> {
    lint(&[Layout::of_text(xml, "m.xml").expect("a domain file")], topology)
}

fn advice<'f>(flaws: &'f [Diagnostic], name: &str) -> &'f [String] {
    let flaw = flaws.iter().find(|flaw| flaw.name == name);
    &flaw.unwrap_or_else(|| panic!("no {name} in {flaws:?}")).instead
}

/// The lines of advice for everything worse than a note.
fn lines(flaws: &[Diagnostic]) -> Vec<&str> {
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

/// Eight cores of one die for 16 vCPUs, the last two on one CPU.
fn gaming(vcpus: usize) -> String {
    let pins: String = (0..16_usize)
        .map(|vcpu| format!("<vcpupin vcpu='{vcpu}' cpuset='{}'/>\n", vcpu.min(14)))
        .collect();
    let shape =
        "<cpu mode='host-passthrough'>\n<topology sockets='1' cores='8' threads='2'/>\n</cpu>\n";
    domain(vcpus, &format!("{pins}<emulatorpin cpuset='0-1'/>\n"), shape)
}

#[test]
fn kernel_parameters_are_for_the_placement_that_is_advised() {
    let flaws = found(&gaming(16), &ryzen());
    let text = advice(&flaws, "not-isolated").join(" ");
    assert!(text.contains("isolcpus=managed_irq,domain,0-7,16-23"), "{text}");
    assert!(text.contains("irqaffinity=8-15,24-31"), "{text}");
}

#[test]
fn threads_that_lie_are_settled_by_the_pins() {
    let flaws = found(&gaming(16), &ryzen());
    let lines = advice(&flaws, "guest-siblings-lie");
    assert!(
        lines.iter().any(|line| line == "the lines under vcpus-share-pu settle this too"),
        "{lines:?}"
    );
}

#[test]
fn an_l3_cache_without_room_for_all_vcpus_is_not_offered() {
    let xml = gaming(24);
    let flaws = found(&xml, &ryzen());
    assert!(flaws.iter().all(|flaw| flaw.name != "l3-crossed"), "{flaws:?}");
    assert!(found(&gaming(16), &ryzen()).iter().any(|flaw| flaw.name == "l3-crossed"));
    let fixed = fix(&xml, "m.xml", &ryzen(), &Request::of(Vec::new())).expect("a domain file");
    let left = found(&fixed.text, &ryzen());
    assert!(!fixed.done.is_empty());
    for done in &fixed.done {
        assert!(left.iter().all(|flaw| flaw.name != done.name), "{} is still there", done.name);
    }
}

#[test]
fn machines_of_one_host_get_one_kernel_command_line() {
    let topology = host("e5-2670-dual.synthetic");
    let machine = |name: &str, first: u32| {
        let pin = |vcpu: u32| {
            let cpu = first + vcpu / 2 + 16 * (vcpu % 2);
            format!("<vcpupin vcpu='{vcpu}' cpuset='{cpu}'/>\n")
        };
        let pins: String = (0..4).map(pin).collect();
        let shape =
            "<cpu mode='host-passthrough'><topology sockets='1' cores='2' threads='2'/></cpu>";
        let tune = format!("{pins}<emulatorpin cpuset='6-7'/>\n");
        let xml = domain(4, &tune, shape).replace("<name>m<", &format!("<name>{name}<"));
        Layout::of_text(&xml, name).expect("a domain file")
    };
    let flaws = lint(&[machine("a", 1), machine("b", 3)], &topology);
    let lines: Vec<&String> = flaws
        .iter()
        .filter(|flaw| flaw.name == "not-isolated")
        .flat_map(|flaw| &flaw.instead)
        .collect();
    assert_eq!(lines.len(), 2, "{flaws:?}");
    for line in lines {
        assert!(line.contains("irqaffinity=0,5-16,21-31`"), "{line}");
    }
}

#[test]
fn memory_of_a_plan_that_is_bound_stays_bound() {
    let topology = host("e5-2670-dual.synthetic");
    let mut made =
        plan("low-latency", &topology, &Request::vm("vm", VcpuCount::Exactly(3))).expect("a plan");
    let vnode = made.vnodes.first_mut().expect("one machine");
    let vcpu = vnode.threads[0].pus.clone();
    let emulator = vnode.threads.iter_mut().find(|thread| thread.role == Role::Emulator);
    emulator.expect("an emulator").pus = vcpu;
    assert!(vnode.memory.is_some());
    let flaws = lint(&Layout::of_plan(&made, "plan.json"), &topology);
    assert!(flaws.iter().any(|flaw| flaw.severity > Severity::Note), "{flaws:?}");
    let lines = lines(&flaws);
    assert!(lines.iter().all(|line| !line.contains("take out")), "{lines:?}");
}

#[test]
fn costs_and_places_are_those_of_the_file() {
    let windows = "<features>\n<hyperv mode='custom'>\n<relaxed state='on'/>\n<vapic state='on'/>\n\
                   </hyperv>\n</features>\n<clock offset='localtime'>\n</clock>\n";
    let flaws = found(&domain(2, "", windows), &ryzen());
    let of = |name: &str| flaws.iter().find(|flaw| flaw.name == name).expect("the finding");
    let cost = &of("hyperv-missing").cost;
    assert!(!cost.contains("vapic") && !cost.contains("relaxed"), "{cost}");
    assert!(cost.contains("without synthetic timers"), "{cost}");
    for name in ["timer-hypervclock", "timer-hpet"] {
        assert!(of(name).places[0].text.starts_with("<clock"), "{:?}", of(name).places);
    }
}
