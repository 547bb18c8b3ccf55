//! Advice is what `--fix` changes, no more and no less, and says where to write it.

use pinfold_host::LiveHost;
use pinfold_lint::{Diagnostic, fix, lint};
use pinfold_model::{Request, Role, Severity, Topology, VcpuCount};
use pinfold_plan::layout::Layout;
use pinfold_plan::plan;

const SHARED: &str = "<vcpupin vcpu='0' cpuset='4'/>\n<vcpupin vcpu='1' cpuset='4'/>\n";

fn host(name: &str) -> Topology {
    let live = LiveHost::new().expect("the running machine");
    let path = if name.contains(' ') {
        name.to_owned()
    } else {
        format!("{}/../../fixtures/hosts/{name}", env!("CARGO_MANIFEST_DIR"))
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

fn find_diagnostics(xml: &str, topology: &Topology) -> Vec<Diagnostic> {
    lint(&[Layout::of_text(xml, "m.xml").expect("a domain file")], topology)
}

fn advice<'f>(diagnostics: &'f [Diagnostic], name: &str) -> &'f [String] {
    let diagnostic = diagnostics.iter().find(|diagnostic| diagnostic.name == name);
    &diagnostic.unwrap_or_else(|| panic!("no {name} in {diagnostics:?}")).instead
}

/// The lines of advice for everything worse than a note.
fn lines(diagnostics: &[Diagnostic]) -> Vec<&str> {
    let worse = diagnostics.iter().filter(|diagnostic| diagnostic.severity > Severity::Note);
    worse.flat_map(|diagnostic| &diagnostic.instead).map(String::as_str).collect()
}

#[test]
fn an_element_that_gets_its_first_child_stays() {
    for cpu in ["<cpu mode='host-passthrough'/>", "<cpu mode='host-passthrough'></cpu>"] {
        let xml = domain(2, SHARED, cpu);
        let diagnostics = find_diagnostics(&xml, &ryzen());
        let topology = "<topology sockets='1' cores='2' threads='1'/>";
        assert_eq!(advice(&diagnostics, "guest-sockets-lie"), ["within <cpu>:", topology]);
        assert!(
            lines(&diagnostics).iter().all(|line| !line.contains("remove <")),
            "{diagnostics:?}"
        );
        let fixed =
            fix(&xml, "m.xml", &ryzen(), &Request::from_vnodes(Vec::new())).expect("a domain file");
        assert!(fixed.text.contains("<cpu mode='host-passthrough'>"), "{}", fixed.text);
    }
}

#[test]
fn advice_names_no_line_that_the_fix_leaves() {
    let devices = format!(
        "<devices>\n{}{}{}{}</devices>\n",
        disk("qcow2", "vda"),
        disk("raw", "vdb"),
        function(0),
        function(1)
    );
    let xml = domain(2, SHARED, &devices);
    let diagnostics = find_diagnostics(&xml, &ryzen());
    let there: Vec<&str> = xml.lines().collect();
    let lines = lines(&diagnostics);
    assert!(lines.iter().all(|line| !there.contains(line)), "{lines:?}");
    assert_eq!(
        advice(&diagnostics, "vcpus-share-pu"),
        ["<vcpupin vcpu='0' cpuset='1'/>", "<vcpupin vcpu='1' cpuset='2'/>"]
    );
    // What is advised is in the file that the fix writes.
    let fixed =
        fix(&xml, "m.xml", &ryzen(), &Request::from_vnodes(Vec::new())).expect("a domain file");
    let elements = lines.iter().filter(|line| line.starts_with('<'));
    for line in elements {
        assert!(fixed.text.replace(" dies='1'", "").contains(line), "{line}\n{}", fixed.text);
    }
}

fn disk(kind: &str, target: &str) -> String {
    format!(
        "<disk type='file'>\n<driver name='qemu' type='{kind}'/>\n<source file='/{target}'/>\n\
             <target dev='{target}' bus='virtio'/>\n</disk>\n"
    )
}

fn function(number: u32) -> String {
    format!(
        "<hostdev mode='subsystem' type='pci' managed='yes'>\n<source>\n<address domain='0x0000' \
             bus='0x01' slot='0x00' function='0x{number}'/>\n</source>\n</hostdev>\n"
    )
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
    let diagnostics = find_diagnostics(&gaming(16), &ryzen());
    let text = advice(&diagnostics, "not-isolated").join(" ");
    assert!(text.contains("isolcpus=managed_irq,domain,0-7,16-23"), "{text}");
    assert!(text.contains("irqaffinity=8-15,24-31"), "{text}");
}

#[test]
fn threads_that_lie_are_settled_by_the_pins() {
    let diagnostics = find_diagnostics(&gaming(16), &ryzen());
    let lines = advice(&diagnostics, "guest-siblings-lie");
    assert!(
        lines.iter().any(|line| line == "the lines under vcpus-share-pu fix this too"),
        "{lines:?}"
    );
}

#[test]
fn an_l3_cache_without_room_for_all_vcpus_is_not_offered() {
    let xml = gaming(24);
    let diagnostics = find_diagnostics(&xml, &ryzen());
    let l3 = diagnostics
        .iter()
        .find(|diagnostic| diagnostic.name == "l3-crossed")
        .expect("a note of L3");
    assert_eq!((l3.severity, l3.instead.len()), (Severity::Note, 0), "{l3:?}");
    assert!(
        find_diagnostics(&gaming(16), &ryzen())
            .iter()
            .any(|diagnostic| diagnostic.name == "l3-crossed")
    );
    let fixed =
        fix(&xml, "m.xml", &ryzen(), &Request::from_vnodes(Vec::new())).expect("a domain file");
    let left = find_diagnostics(&fixed.text, &ryzen());
    assert!(!fixed.done.is_empty());
    for done in &fixed.done {
        assert!(
            left.iter().all(|diagnostic| diagnostic.name != done.name),
            "{} is still there",
            done.name
        );
    }
}

#[test]
fn machines_of_one_host_get_one_kernel_command_line() {
    let topology = host("e5-2670-dual.synthetic");
    let diagnostics = lint(&[machine("a", 1), machine("b", 3)], &topology);
    let lines: Vec<&String> = diagnostics
        .iter()
        .filter(|diagnostic| diagnostic.name == "not-isolated")
        .flat_map(|diagnostic| &diagnostic.instead)
        .collect();
    assert_eq!(lines.len(), 2, "{diagnostics:?}");
    for (line, (name, others, pins)) in lines
        .iter()
        .zip([("a", "3-4,19-20", "vcpu0-3=1,17,2,18"), ("b", "1-2,17-18", "vcpu0-3=3,19,4,20")])
    {
        assert!(line.contains("irqaffinity=0,5-16,21-31`"), "{line}");
        let command = format!(
            "`pinfold apply --libvirt {name} --avoid {others} --isolate host --pin {pins} \
             --pin emulator=6-7` keeps these pins"
        );
        assert!(line.contains(&command), "{line}");
        // What the command plans is the file's placement, with the CPUs kept apart.
        let mut request = Request::vm(name, VcpuCount::Exactly(4));
        request.isolation = pinfold_model::IsolationScope::Host;
        request.avoid = pinfold_model::CpuSet::parse_list(others).expect("a list");
        for pin in [pins, "emulator=6-7"] {
            request.vnodes[0].pins.extend(pinfold_config::requests::pins(pin).expect("a pin"));
        }
        let made = plan("auto", &topology, &request).expect("a plan");
        assert_eq!(format!("vcpu0-3={}", pinfold_samples::pins(&made)), pins);
        assert_eq!(pinfold_samples::emulator(&made), "6-7");
        let diagnostics = lint(&Layout::of_plan(&made, "plan.json"), &topology);
        assert!(
            diagnostics.iter().all(|diagnostic| diagnostic.severity == Severity::Note),
            "{diagnostics:?}"
        );
        assert!(
            diagnostics.iter().all(|diagnostic| diagnostic.name != "not-isolated"),
            "{diagnostics:?}"
        );
    }
}

fn machine(name: &str, first: u32) -> Layout {
    let pins: String = (0..4)
        .map(|vcpu| {
            let cpu = first + vcpu / 2 + 16 * (vcpu % 2);
            format!("<vcpupin vcpu='{vcpu}' cpuset='{cpu}'/>\n")
        })
        .collect();
    let shape = "<cpu mode='host-passthrough'><topology sockets='1' cores='2' threads='2'/></cpu>";
    let tune = format!("{pins}<emulatorpin cpuset='6-7'/>\n");
    let xml = domain(4, &tune, shape).replace("<name>m<", &format!("<name>{name}<"));
    Layout::of_text(&xml, name).expect("a domain file")
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
    let diagnostics = lint(&Layout::of_plan(&made, "plan.json"), &topology);
    assert!(
        diagnostics.iter().any(|diagnostic| diagnostic.severity > Severity::Note),
        "{diagnostics:?}"
    );
    let lines = lines(&diagnostics);
    assert!(lines.iter().all(|line| !line.contains("remove <")), "{lines:?}");
}

#[test]
fn costs_and_places_are_those_of_the_file() {
    let windows = "<features>\n<hyperv mode='custom'>\n<relaxed state='on'/>\n<vapic state='on'/>\n\
                   </hyperv>\n</features>\n<clock offset='localtime'>\n</clock>\n";
    let diagnostics = find_diagnostics(&domain(2, "", windows), &ryzen());
    let of = |name: &str| {
        diagnostics.iter().find(|diagnostic| diagnostic.name == name).expect("the finding")
    };
    let cost = &of("hyperv-missing").cost;
    assert!(!cost.contains("vapic") && !cost.contains("relaxed"), "{cost}");
    assert!(cost.contains("without synthetic timers"), "{cost}");
    for name in ["timer-hypervclock", "timer-hpet"] {
        assert!(of(name).places[0].text.starts_with("<clock"), "{:?}", of(name).places);
    }
}

/// A domain file of `tests/domains`.
fn file(name: &str) -> String {
    let path = format!("{}/tests/domains/{name}", env!("CARGO_MANIFEST_DIR"));
    pinfold_host::files::read_text(&path).expect("a domain file")
}

/// The file that follows the advice of one check: of the warnings as `--fix` does, of the notes
/// what they say of caches and iothreads.
fn all_followed(xml: &str, topology: &Topology) -> String {
    let diagnostics = find_diagnostics(xml, topology);
    let mut text =
        fix(xml, "m.xml", topology, &Request::from_vnodes(Vec::new())).expect("a file").text;
    let notes = diagnostics.iter().filter(|diagnostic| diagnostic.severity == Severity::Note);
    for line in notes.flat_map(|diagnostic| &diagnostic.instead) {
        let put = |before: &str| text.replacen(before, &format!("{line}\n{before}"), 1);
        if line.starts_with("<cache ") && !text.contains("<cache ") {
            text = put("</cpu>");
        } else if line.starts_with("<iothreadpin ") {
            text = put("</cputune>");
        } else if line.starts_with("<iothreads>") && !text.contains("<iothreads>") {
            text = put("<cputune>");
        }
    }
    text
}

#[test]
fn notes_are_judged_by_the_placement_that_is_advised() {
    let files = ["gaming.xml", "windows-11.xml", "windows-11-cache.xml", "no-topoext.xml"];
    for name in ["ryzen-7950x3d.xml", "i5-12600k.capture", "ultra-255h.capture"] {
        let host = host(name);
        for file_name in files {
            let followed = all_followed(&file(file_name), &host);
            let left = find_diagnostics(&followed, &host);
            let open: Vec<_> = left
                .iter()
                .filter(|diagnostic| diagnostic.severity > Severity::Note && !diagnostic.is_final)
                .collect();
            assert!(open.is_empty(), "{file_name} on {name}: {open:?}\n{followed}");
        }
    }
    const NO_LONGER: &str = "nothing: this does not apply to the suggested placement";
    let gaming = find_diagnostics(&file("gaming.xml"), &ryzen());
    assert_eq!(advice(&gaming, "cache-unknown"), [NO_LONGER]);
    assert_eq!(advice(&gaming, "topoext-missing"), [NO_LONGER]);
    let windows = find_diagnostics(&file("windows-11.xml"), &ryzen());
    let iothreads = advice(&windows, "disk-without-iothread").join(" ");
    assert!(iothreads.contains("<iothreadpin iothread='1' cpuset='8-15,24-31'/>"), "{iothreads}");
}

#[test]
fn a_pin_to_all_cpus_is_no_advice() {
    for name in ["i5-12600k.capture", "ultra-255h.capture"] {
        let host = host(name);
        let diagnostics = find_diagnostics(&file("windows-11.xml"), &host);
        let lines = lines(&diagnostics);
        let all = format!("cpuset='{}'", host.allowed);
        assert!(lines.iter().any(|line| line.starts_with("<topology ")), "{name}: {lines:?}");
        assert!(lines.iter().all(|line| !line.contains(&all)), "{name}: {lines:?}");
    }
}

/// `windows-11-hybrid.xml` with these CPUs for all threads.
fn floating(cpuset: &str) -> String {
    let xml = file("windows-11-hybrid.xml");
    assert!(xml.contains(" cpuset='0-11'"), "{xml}");
    xml.replace(" cpuset='0-11'", &format!(" cpuset='{cpuset}'"))
}

#[test]
fn a_parent_that_is_missing_is_added_once() {
    for name in ["ryzen-7950x3d.xml", "i5-12600k.capture", "ultra-255h.capture"] {
        let diagnostics = find_diagnostics(&floating("0-7"), &host(name));
        let lines: Vec<&String> =
            diagnostics.iter().flat_map(|diagnostic| &diagnostic.instead).collect();
        let added = lines.iter().filter(|line| line.contains("add <cputune> with")).count();
        assert_eq!(added, 1, "{name}: {lines:?}");
    }
}

#[test]
fn a_mask_is_judged_like_pins() {
    assert_eq!(notes_of("ryzen-7950x3d.xml", "0-11"), ["l3-crossed", "not-pinned"]);
    assert_eq!(notes_of("ultra-255h.capture", "0-11"), ["mixed-cores", "not-pinned"]);
    assert_eq!(notes_of("i5-12600k.capture", "0-11"), ["guest-siblings-hidden", "not-pinned"]);
    let xml = floating("0-11");
    let diagnostics = find_diagnostics(&xml, &ryzen());
    let text = &diagnostics
        .iter()
        .find(|diagnostic| diagnostic.name == "not-pinned")
        .expect("a note")
        .what;
    assert!(text.contains("moves the vCPUs 0-11 and the emulator over the CPUs 0-11"), "{text}");
    assert!(
        diagnostics.iter().all(|diagnostic| diagnostic.severity == Severity::Note),
        "{diagnostics:?}"
    );
}

fn notes_of(name: &str, cpuset: &str) -> Vec<&'static str> {
    let mut names: Vec<_> = find_diagnostics(&floating(cpuset), &host(name))
        .iter()
        .map(|diagnostic| diagnostic.name)
        .collect();
    names.sort_unstable();
    names
}

#[test]
fn an_attribute_of_absent_cpus_is_one_finding() {
    for name in ["i5-12600k.capture", "ultra-255h.capture"] {
        let diagnostics = find_diagnostics(&floating("0-31"), &host(name));
        let worse: Vec<_> =
            diagnostics.iter().filter(|diagnostic| diagnostic.severity > Severity::Note).collect();
        let [diagnostic] = worse.as_slice() else { panic!("{name}: {worse:?}") };
        assert_eq!((diagnostic.name, diagnostic.places.len()), ("absent-pu", 1));
        assert_eq!(diagnostic.places[0].line, Some(4));
        let start = "the vCPUs 0-11 and the emulator are limited to 0-31, of which the CPUs 16-31 ";
        assert!(diagnostic.what.starts_with(start), "{}", diagnostic.what);
        assert!(
            diagnostics.iter().all(|diagnostic| diagnostic.name != "not-pinned"),
            "{diagnostics:?}"
        );
    }
}

#[test]
fn an_l3_border_is_noted_where_no_placement_avoids_it() {
    let vcpus: Vec<u32> = (0..6).chain(8..14).collect();
    let pins: String = vcpus
        .iter()
        .enumerate()
        .map(|(vcpu, cpu)| format!("<vcpupin vcpu='{vcpu}' cpuset='{cpu}'/>\n"))
        .collect();
    let cpu =
        "<cpu mode='host-passthrough'>\n<topology sockets='1' cores='12' threads='1'/>\n</cpu>\n";
    let xml = domain(12, &format!("{pins}<emulatorpin cpuset='6-7'/>\n"), cpu);
    let diagnostics = find_diagnostics(&xml, &ryzen());
    let l3 = diagnostics
        .iter()
        .find(|diagnostic| diagnostic.name == "l3-crossed")
        .expect("a finding of L3");
    assert_eq!(l3.severity, Severity::Note, "{l3:?}");
    assert_eq!(l3.what, "the vCPUs are spread over 2 L3 caches");
    // A plan and its check say the same.
    let vm = Request::vm("m", VcpuCount::Exactly(10));
    let plan = plan("low-latency", &ryzen(), &vm).expect("a plan");
    assert!(plan.findings.iter().any(|finding| finding.subject == "L3"));
    let diagnostics = lint(&Layout::of_plan(&plan, "m.json"), &ryzen());
    assert!(
        diagnostics.iter().any(|diagnostic| diagnostic.name == "l3-crossed"),
        "{diagnostics:?}"
    );
}

#[test]
fn a_file_is_reviewed_for_the_host_that_is_named() {
    let path = "e5-2670-dual.synthetic";
    let topology = host(path);
    let layout = Layout::of_text(&file("gaming.xml"), "gaming.xml").expect("a domain file");
    let text = pinfold_lint::render(&[layout], &[], &topology, 400);
    let head = text.lines().next().unwrap_or_default();
    assert!(!head.contains("this machine"), "{head}");
    assert!(head.contains("(16 cores, 32 CPUs)"), "{head}");
}

#[test]
fn floating_vcpus_are_drawn_as_a_range() {
    let layout = Layout::of_text(&floating("0-11"), "m.xml").expect("a domain file");
    let picture = pinfold_plan::picture(&[layout], &ryzen(), 400);
    assert!(picture.contains("vCPU 0-11 + emulator"), "{picture}");
    assert!(!picture.contains("more vCPU"), "{picture}");
}

/// A file with real-time vCPUs: `apply` without the strategy would take their policy away.
#[test]
fn the_command_that_isolates_repeats_the_strategy() {
    let tune = "<vcpupin vcpu='0' cpuset='1'/>\n<vcpupin vcpu='1' cpuset='2'/>\n";
    let topology = "<cpu><topology sockets='1' cores='2' threads='1'/></cpu>\n";
    let fifo = "<vcpusched vcpus='0-1' scheduler='fifo' priority='1'/>\n";
    for (policy, words) in [("", ""), (fifo, " --strategy realtime")] {
        let diagnostics =
            find_diagnostics(&domain(2, &format!("{tune}{policy}"), topology), &ryzen());
        let pins = "--isolate host --pin vcpu0-1=1-2 --pin emulator=0,3";
        let apply = format!("`pinfold apply --libvirt m{words} {pins}");
        let lines = advice(&diagnostics, "not-isolated");
        assert!(lines.iter().any(|line| line.contains(&apply)), "{lines:?}");
    }
}

/// Without pins a topology is shown all the same: Windows uses two sockets of fourteen. A guest
/// that uses all of them is only warned of what its file says.
#[test]
fn sockets_of_a_guest_without_pins_count() {
    let windows = "<features><hyperv mode='passthrough'/></features>\n";
    let written = "<cpu><topology sockets='14' cores='1' threads='1'/></cpu>\n";
    let host = ryzen();
    for (rest, is_found) in [
        (windows.to_owned(), true),
        (written.to_owned(), true),
        (format!("{windows}{written}"), true),
        (String::new(), false),
        ("<cpu><topology sockets='1' cores='14' threads='1'/></cpu>\n".to_owned(), false),
    ] {
        let xml = domain(14, "", &rest);
        let diagnostics = find_diagnostics(&xml, &host);
        let names: Vec<&str> = diagnostics.iter().map(|diagnostic| diagnostic.name).collect();
        assert_eq!(names.contains(&"guest-sockets-lie"), is_found, "{rest}: {diagnostics:?}");
        if !is_found {
            continue;
        }
        let advised = advice(&diagnostics, "guest-sockets-lie");
        let shape = "<topology sockets='1' cores='14' threads='1'/>";
        assert_eq!(advised.last().map(String::as_str), Some(shape), "{advised:?}");
        let fixed =
            fix(&xml, "m.xml", &host, &Request::from_vnodes(Vec::new())).expect("a domain file");
        assert!(fixed.left.is_empty() && fixed.text.contains(shape), "{}", fixed.text);
        assert!(!fixed.text.contains("vcpupin"), "not pinned by this: {}", fixed.text);
        let again =
            fix(&fixed.text, "m.xml", &host, &Request::from_vnodes(Vec::new())).expect("a file");
        assert_eq!(again.text, fixed.text);
    }
}

#[test]
fn what_a_guest_cannot_see_is_not_advised() {
    let xml = include_str!("../domains/hypervisor-bit-hidden.xml");
    let diagnostics =
        find_diagnostics(xml, &host("package:1 [numa(memory=8GiB)] l3:2 core:2 pu:2"));
    let names: Vec<&str> = diagnostics.iter().map(|diagnostic| diagnostic.name).collect();
    assert!(names.contains(&"hypervisor-hidden"), "{names:?}");
    assert!(!names.contains(&"hyperv-missing"), "{names:?}");
}

#[test]
fn nothing_to_isolate_gets_no_kernel_parameters() {
    let xml = include_str!("../domains/more-vcpus-than-cpus.xml");
    let diagnostics =
        find_diagnostics(xml, &host("package:1 [numa(memory=8GiB)] l3:1 core:4 pu:1"));
    assert!(
        diagnostics.iter().all(|diagnostic| !diagnostic.instead.join(" ").contains("isolcpus")),
        "{diagnostics:?}"
    );
}

#[test]
fn numad_places_a_machine_that_asks_for_it() {
    let xml = include_str!("../domains/placement-auto.xml");
    let diagnostics = find_diagnostics(xml, &host("e5-2670-dual.synthetic"));
    let [only] = diagnostics.as_slice() else { panic!("{diagnostics:?}") };
    assert!(only.what.contains("numad selects their nodes"), "{}", only.what);
    let with = xml.replace("placement='auto'>4", "placement='auto' cpuset='0-3'>4");
    let diagnostics = find_diagnostics(&with, &host("e5-2670-dual.synthetic"));
    assert!(
        diagnostics.iter().all(|diagnostic| !diagnostic.what.contains("numad selects")),
        "{diagnostics:?}"
    );
}

#[test]
fn real_time_above_the_interrupt_threads_is_a_warning_on_shared_cpus() {
    let cpu = "<cpu mode='host-passthrough'><topology sockets='1' cores='2' threads='1'/></cpu>";
    let warned = |priority: u32, host: &Topology| {
        let diagnostics = find_diagnostics(&domain(2, &tune(priority), cpu), host);
        diagnostics.iter().any(|diagnostic| {
            diagnostic.name == "fifo-above-interrupts" && diagnostic.severity == Severity::Warning
        })
    };
    let shared = host("package:1 [numa(memory=8GiB)] l3:1 core:4 pu:1");
    assert!(warned(95, &shared) && warned(51, &shared));
    assert!(!warned(50, &shared) && !warned(1, &shared));
    let mut isolated = shared;
    isolated.isolated = [2, 3].map(pinfold_model::PuId).into_iter().collect();
    assert!(!warned(95, &isolated));
}

fn tune(priority: u32) -> String {
    format!(
        "<vcpupin vcpu='0' cpuset='2'/><vcpupin vcpu='1' cpuset='3'/><emulatorpin cpuset='0'/>\
             <vcpusched vcpus='0-1' scheduler='fifo' priority='{priority}'/>"
    )
}

/// A file that Nova writes anew at each start: the note names the flavor.
#[test]
fn a_file_of_another_program_is_noted() {
    let nova = "<metadata><nova:instance xmlns:nova='http://openstack.org/xmlns/libvirt/nova/1.1'/>\
                </metadata>\n";
    for (rest, count) in [(nova, 1), ("", 0)] {
        let xml = domain(2, "", rest);
        let diagnostics = find_diagnostics(&xml, &ryzen());
        let managed = diagnostics
            .iter()
            .filter(|diagnostic| diagnostic.name == "file-managed")
            .collect::<Vec<_>>();
        assert_eq!(managed.len(), count, "{diagnostics:?}");
        for diagnostic in managed {
            assert_eq!((diagnostic.severity, diagnostic.places.len()), (Severity::Note, 1));
            assert!(diagnostic.instead[0].contains("flavor"), "{diagnostic:?}");
        }
        let made =
            plan("auto", &ryzen(), &Request::vm("m", VcpuCount::Exactly(2))).expect("a plan");
        let vnode = made.single_vnode().expect("one machine");
        let merged =
            pinfold_emit::merge_libvirt_domain(&xml, &made, vnode, &ryzen()).expect("a file");
        let noted = merged.notes.iter().filter(|note| note.contains("Nova writes this file"));
        assert_eq!(noted.count(), count, "{:?}", merged.notes);
    }
}

/// On a host of two CPUs, one vCPU and the emulator have a CPU each; on one of them they do not.
#[test]
fn a_placement_is_denied_only_for_the_cpus_that_are_left() {
    let topology = pinfold_samples::from_description("package:1 core:2 pu:1");
    let tune = "<vcpupin vcpu=\"0\" cpuset=\"0\"/><emulatorpin cpuset=\"0\"/>";
    let layouts = [Layout::of_text(&domain(1, tune, ""), "vm.xml").unwrap()];
    let mut conditions = Request::from_vnodes(Vec::new());
    let under = |conditions: &Request| {
        let found = pinfold_lint::lint_under(&layouts, &topology, conditions).diagnostics;
        let lines: Vec<String> = lines(&found).into_iter().map(str::to_owned).collect();
        lines.into_iter().find(|line| line.starts_with("no placement"))
    };
    assert_eq!(under(&conditions), None);
    conditions.avoid = pinfold_samples::set("1");
    assert_eq!(
        under(&conditions).unwrap(),
        "no placement of 1 vCPU on this host without CPU 1 is free of warnings: exclude fewer \
         CPUs, remove the pins, or use another host"
    );
}
