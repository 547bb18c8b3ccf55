//! What a strategy costs by its definition: a note for a user who named it, a warning otherwise.

use pinfold_config::requests;
use pinfold_emit::{libvirt, merge_libvirt_domain};
use pinfold_lint::lint;
use pinfold_model::{Plan, Request, Severity, Topology, VcpuCount};
use pinfold_plan::domain_file::Domain;
use pinfold_plan::layout::Layout;
use pinfold_plan::plan;

fn host(name: &str) -> Topology {
    pinfold_samples::read(name.to_owned()).1
}

fn make_plan(strategy: &str, topology: &Topology, vcpus: u32) -> Plan {
    plan(strategy, topology, &Request::vm("vm", VcpuCount::Exactly(vcpus))).expect("a plan")
}

/// The severity of a finding of the check.
fn severity(text: &str, topology: &Topology, name: &str) -> Option<Severity> {
    let domain = Domain::read(text).expect("a domain file");
    let diagnostics = lint(&[Layout::of_domain(&domain, "vm.xml")], topology);
    let found = diagnostics.iter().filter(|diagnostic| diagnostic.name == name);
    found.map(|diagnostic| diagnostic.severity).max()
}

const MARK: &str = "<pinfold:placement ";

#[test]
fn the_file_of_a_named_strategy_says_so_and_another_does_not() {
    let cases = [
        ("scatter", "ryzen-5950x.synthetic", 4, "L3", "l3-crossed"),
        ("compact", "i7-4790k.synthetic", 10, "oversubscription", "vcpus-share-pu"),
        ("low-latency", "i5-12600k.capture", 8, "core kinds", "mixed-cores"),
        ("balanced-shared", "i7-4790k.synthetic", 2, "emulator", "emulator-on-vcpu"),
    ];
    for (strategy, on, vcpus, subject, name) in cases {
        let topology = host(on);
        let layout = make_plan(strategy, &topology, vcpus);
        let Some(finding) = layout.findings.iter().find(|it| it.subject == subject) else {
            assert_eq!(subject, "emulator", "{strategy}");
            continue;
        };
        assert_eq!(finding.severity, Severity::Note, "{strategy}");
        assert!(
            finding.text.ends_with(&format!("{strategy} places threads this way by definition"))
        );
        let of_plan = lint(&Layout::of_plan(&layout, "plan"), &topology);
        assert!(
            of_plan.iter().all(|diagnostic| diagnostic.severity <= Severity::Note),
            "{of_plan:?}"
        );
        let fragment = libvirt(&layout, &topology).expect("one machine");
        let text = format!("<domain type='kvm'><name>vm</name>\n{fragment}</domain>");
        assert_eq!(severity(&text, &topology, name), Some(Severity::Note), "{text}");
        // The same pins without the mark, and with a mark of other pins.
        let marks = text.lines().filter(|line| line.contains(MARK));
        let mark = marks.collect::<String>();
        let bare = text.replace(&mark, "");
        assert_eq!(severity(&bare, &topology, name), Some(Severity::Warning), "{bare}");
        let other = text.replace(&mark, &mark.replace("pins='", "pins='0 "));
        assert_eq!(severity(&other, &topology, name), Some(Severity::Warning), "{other}");
    }
}

#[test]
fn a_mark_goes_with_its_placement_and_metadata_of_others_stays() {
    let topology = host("ryzen-5950x.synthetic");
    let os = "<o:os xmlns:o='urn:o' id='x'/>";
    for metadata in [String::new(), format!("<metadata>{os}</metadata>")] {
        let xml = format!(
            "<domain type='kvm'>\n  <name>vm</name>\n  {metadata}\n  <vcpu>4</vcpu>\n</domain>\n"
        );
        let scattered = merge(&xml, "scatter", &topology);
        assert_eq!(scattered.matches(MARK).count(), 1, "{scattered}");
        assert_eq!(merge(&scattered, "scatter", &topology), scattered);
        assert_eq!(severity(&scattered, &topology, "l3-crossed"), Some(Severity::Note));
        let near = merge(&scattered, "balanced", &topology);
        assert!(!near.contains(MARK), "{near}");
        assert_eq!(near.contains("<metadata>"), !metadata.is_empty(), "{near}");
        assert_eq!(near.contains(os), !metadata.is_empty(), "{near}");
    }
}

fn merge(xml: &str, strategy: &str, topology: &Topology) -> String {
    let layout = make_plan(strategy, topology, 4);
    let vnode = layout.single_vnode().expect("one machine");
    merge_libvirt_domain(xml, &layout, vnode, topology).expect("a merge").text
}

#[test]
fn pins_by_hand_and_the_choice_of_auto_are_not_excused() {
    let topology = host("ryzen-5950x.synthetic");
    let mut request = Request::vm("vm", VcpuCount::Exactly(4));
    request.vnodes[0].pins = requests::pins("vcpu0-3=0,8,1,9").expect("pins");
    let layout = plan("scatter", &topology, &request).expect("a plan");
    let found = layout.findings.iter().find(|finding| finding.subject == "L3").expect("a finding");
    assert_eq!(found.severity, Severity::Warning);
    assert!(!libvirt(&layout, &topology).expect("one machine").contains(MARK));
    for (name, topology) in pinfold_samples::hosts().iter().filter(|(_, it)| it.pus.len() <= 64) {
        for vcpus in [2, 7, 12] {
            let layout = make_plan("auto", topology, vcpus);
            let text = libvirt(&layout, topology).expect("one machine");
            assert!(!text.contains(MARK), "{name}: {text}");
        }
    }
}
