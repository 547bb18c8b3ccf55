//! Each diagnostic in a minimal domain file; the proposed replacement does not have it.

use pinfold_model::{Request, Severity, Topology};
use pinfold_plan::domain_file::{Domain, Target};
use pinfold_plan::layout::Layout;
use pinfold_plan::{plan, strategies};
use pinfold_samples::machine::{Machine, i7_4790k, plain, two_complexes};
use pinfold_samples::{auto, exactly};

use super::golden;
use crate::{Diagnostic, fix, lint, render};

/// A domain of `vcpus` vCPUs, `<cputune>` and the rest.
fn domain(vcpus: u32, tune: &str, rest: &str) -> String {
    format!(
        "<domain type='kvm'>\n<name>a</name><vcpu>{vcpus}</vcpu>\n<cputune>\n{tune}\n</cputune>\n{rest}\n</domain>\n"
    )
}

/// `<vcpupin>` elements for the vCPUs 0, 1, 2, …
fn pins(lists: &str) -> String {
    let pins = lists.split(' ').enumerate();
    pins.map(|(vcpu, list)| format!("<vcpupin vcpu='{vcpu}' cpuset='{list}'/>\n")).collect()
}

fn shape(cores: u32, threads: u32) -> String {
    format!("<cpu><topology sockets='1' cores='{cores}' threads='{threads}'/></cpu>")
}

fn diagnostics(topology: &Topology, files: &[&str]) -> Vec<Diagnostic> {
    let layouts: Vec<Layout> =
        files.iter().map(|xml| Layout::of_text(xml, "domain.xml").unwrap()).collect();
    lint(&layouts, topology)
}

/// The names of everything worse than a note, worst first.
#[track_caller]
fn check(topology: &Topology, xml: &str, expected: &[&str]) {
    let found = diagnostics(topology, &[xml]);
    let found: Vec<&str> = found
        .iter()
        .filter(|diagnostic| diagnostic.severity > Severity::Note)
        .map(|diagnostic| diagnostic.name)
        .collect();
    assert_eq!(found, expected, "{xml}");
}

#[test]
fn a_good_domain_has_no_diagnostic() {
    let host = i7_4790k().build();
    let good = format!("{}<emulatorpin cpuset='0,4'/>", pins("1 5 2 6 3 7"));
    check(&host, &domain(6, &good, &shape(3, 2)), &[]);
    let good = format!("{}<emulatorpin cpuset='5-7'/>", pins("1 2 3"));
    check(&host, &domain(3, &good, &shape(3, 1)), &[]);
    check(&host, "<domain type='qemu'><vcpu>4</vcpu></domain>", &[]);
}

#[test]
fn siblings() {
    let host = i7_4790k().build();
    let emulator = "<emulatorpin cpuset='0,4'/>";
    // Guest siblings on different cores; host siblings shown as cores.
    check(&host, &build(emulator, "1 2 5 6", &shape(2, 2)), &["guest-siblings-lie"]);
    check(&host, &build(emulator, "1 5 2 6", &shape(4, 1)), &["guest-siblings-hidden"]);
    check(&host, &build(emulator, "1 2 3", &shape(3, 1)), &[]);
    // Masks of both siblings for both vCPUs are one core too.
    check(&host, &build(emulator, "1,5 1,5 2,6 2,6", &shape(2, 2)), &[]);
    check(&host, &build(emulator, "1 5 2 6", ""), &["guest-siblings-hidden", "guest-sockets-lie"]);
    check(&host, &build(emulator, "1 5 2", &shape(4, 2)), &["topology-count"]);
}

fn build(emulator: &str, lists: &str, rest: &str) -> String {
    let count = u32::try_from(lists.split(' ').count()).unwrap();
    domain(count, &format!("{}{emulator}", pins(lists)), rest)
}

/// The file with every line of advice applied as a user would: replacing the element that it names,
/// or at the end of its parent.
fn follow_advice(xml: &str, advice: &[String]) -> String {
    let mut lines: Vec<String> = xml.lines().map(str::to_owned).collect();
    for line in advice {
        let tag = line.split(' ').next().unwrap_or_default();
        let whole = if tag == "<vcpupin" { key(line) } else { tag.to_owned() };
        match lines.iter().position(|old| old.contains(&whole)) {
            Some(at) => lines[at] = line.clone(),
            None => {
                let end = lines.iter().position(|old| old == "</cputune>").unwrap();
                lines.insert(end, line.clone());
            }
        }
    }
    lines.join("\n") + "\n"
}

fn key(line: &str) -> String {
    line.split("cpuset").next().unwrap_or_default().to_owned()
}

#[test]
fn advice_that_is_followed_adds_up() {
    let host = i7_4790k().build();
    for (lists, cores, threads) in [("1 2 5 6", 2, 2), ("1 5 2 6", 4, 1), ("0 1 2 3 4 5", 3, 2)] {
        let count = u32::try_from(lists.split(' ').count()).unwrap();
        let line = format!("<topology sockets='1' cores='{cores}' threads='{threads}'/>");
        let bad = domain(count, &pins(lists), &format!("<cpu>\n{line}\n</cpu>"));
        let found = diagnostics(&host, &[&bad]);
        let advice: Vec<String> = found
            .iter()
            .filter(|diagnostic| diagnostic.severity > Severity::Note)
            .flat_map(|diagnostic| diagnostic.instead.clone())
            .filter(|line| line.starts_with('<'))
            .collect();
        assert!(advice.iter().all(|line| !bad.contains(line)), "nothing that is there: {advice:?}");
        let good = follow_advice(&bad, &advice);
        check(&host, &good, &[]);
        let fixed = fix(&bad, "", &host, &Request::from_vnodes(Vec::new())).unwrap();
        assert_eq!(words(&fixed.text), words(&good));
    }
}

fn words(xml: &str) -> String {
    let lines = xml.lines().filter(|line| !line.contains("<!-- Pinfold: "));
    let text: String = lines.map(|line| line.replace(" dies='1'", "") + " ").collect();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Free cores are used before siblings and before the host's core; advice never names an existing
/// mask.
#[test]
fn advice_takes_free_cores_first() {
    let host = Machine::new([1, 1, 1, 16, 2], |place| place.core + 16 * place.thread).build();
    let half = cores(&fix_domain(&host, &domain(8, &pins("2 3"), &shape(8, 1))));
    assert!(!half.contains(&0) && half.windows(2).all(|pair| pair[0] < pair[1]), "{half:?}");
    let masks = "<domain type='qemu'><vcpu cpuset='0,16'>2</vcpu><cputune><emulatorpin cpuset='4'/></cputune>\
                 <cpu><topology sockets='1' cores='2' threads='1'/></cpu></domain>";
    let found = diagnostics(&host, &[masks]);
    assert_eq!(found[0].name, "guest-siblings-hidden");
    assert!(found[0].instead.iter().all(|line| !masks.contains(line.as_str())), "{found:?}");
    assert_eq!(cores(&fix_domain(&host, masks)).len(), 2);
}

fn fix_domain(host: &Topology, xml: &str) -> Domain {
    let fixed = fix(xml, "", host, &Request::from_vnodes(Vec::new())).unwrap();
    assert_eq!(fixed.left, [], "{}", fixed.text);
    Domain::read(&fixed.text).unwrap()
}

fn cores(domain: &Domain) -> Vec<u32> {
    let vcpus = (0..domain.vcpus.value).map(|index| domain.pin(Target::Vcpu(index)).unwrap().0);
    let mut cores: Vec<u32> = vcpus.map(|pus| pus.first().unwrap().0 % 16).collect();
    cores.sort_unstable();
    cores
}

#[test]
fn helpers_on_the_pus_of_vcpus() {
    fn build(more: &str, rest: &str) -> String {
        domain(3, &format!("{}{more}", pins("1 2 3")), &format!("{}{rest}", shape(3, 1)))
    }

    let host = i7_4790k().build();
    check(&host, &build("", ""), &["emulator-on-vcpu"]);
    check(&host, &build("<emulatorpin cpuset='0-3'/>", ""), &["emulator-on-vcpu"]);
    check(&host, &build("<emulatorpin cpuset='3'/>", ""), &["emulator-on-vcpu"]);
    let fifo = "<emulatorpin cpuset='3'/><vcpusched vcpus='0-2' scheduler='fifo' priority='1'/>";
    check(&host, &build(fifo, ""), &["fifo-starves"]);
    let disk = "<emulatorpin cpuset='0'/><iothreadpin iothread='1' cpuset='1'/>";
    check(&host, &build(disk, "<iothreads>1</iothreads>"), &["iothread-on-vcpu"]);
    let stray = "<emulatorpin cpuset='0'/><iothreadpin iothread='4' cpuset='0'/>";
    check(&host, &build(stray, ""), &["pin-of-nothing"]);
}

#[test]
fn iothreads_on_another_node() {
    fn build(lists: &str, iothread: &str) -> String {
        let count = u32::try_from(lists.split(' ').count()).unwrap();
        let tune = format!(
            "{}<emulatorpin cpuset='0,8'/><iothreadpin iothread='1' cpuset='{iothread}'/>",
            pins(lists)
        );
        let rest =
            "<iothreads>1</iothreads><numatune><memory mode='strict' nodeset='1'/></numatune>";
        domain(count, &tune, &format!("{}{rest}", shape(count / 2, 2)))
    }

    let host = pinfold_samples::machine::dual_x5540().build();
    check(&host, &build("4 12 5 13", "0,8"), &["iothread-far"]);
    check(&host, &build("4 12 5 13", "6,14"), &[]);
    // The emulator is as far away, which is a note.
    let far = |lists: &str| {
        let found = diagnostics(&host, &[&build(lists, "6,14")]);
        found.into_iter().find(|diagnostic| diagnostic.name == "emulator-far")
    };
    let found = far("4 12 5 13").unwrap();
    assert_eq!(
        (found.severity, &*found.instead[0]),
        (Severity::Note, "<emulatorpin cpuset='6-7,14-15'/>",)
    );
    assert_eq!(far("0 8 1 9"), None);
    // A partly near mask counts as near; if the node has no free CPU there is no better place.
    check(&host, &build("4 12 5 13", "0,6"), &[]);
    check(&host, &build("4 12 5 13 6 14 7 15", "0,8"), &[]);
}

#[test]
fn pus_that_are_not_there_or_not_alone() {
    fn build(lists: &str) -> String {
        domain(2, &format!("{}<emulatorpin cpuset='0'/>", pins(lists)), &shape(2, 1))
    }

    let host = i7_4790k().offline("7").isolated("2-3").build();
    check(&host, &build("1 7"), &["offline-pu"]);
    check(&host, &build("1 2,99"), &["absent-pu"]);
    check(&host, &build("1 1"), &["vcpus-share-pu"]);
    check(&host, &build("2-3 2-3"), &["mask-on-isolated"]);
    check(&host, &domain(2, &pins("1"), &shape(2, 1)), &["half-pinned", "emulator-on-vcpu"]);
    let none_left = plain(2).build();
    let all = format!("{}<emulatorpin cpuset='0-1'/>", pins("0 1"));
    // As many vCPUs as CPUs: no placement of them leaves a CPU for the host.
    check(&none_left, &domain(2, &all, &shape(2, 1)), &[]);
    let full = diagnostics(&none_left, &[&domain(2, &all, &shape(2, 1))]);
    let note = |name| full.iter().any(|it| it.name == name && it.severity == Severity::Note);
    assert!(note("no-housekeeping") && note("emulator-on-vcpu"), "{full:?}");
    let fifo = format!("{all}<vcpusched vcpus='0-1' scheduler='rr' priority='1'/>");
    check(&none_left, &domain(2, &fifo, &shape(2, 1)), &["fifo-starves", "fifo-without-host"]);
}

#[test]
fn nodes_caches_and_kinds_of_cores() {
    fn build(lists: &str, rest: &str) -> String {
        let count = u32::try_from(lists.split(' ').count()).unwrap();
        let tune = format!("{}<emulatorpin cpuset='0'/>", pins(lists));
        domain(count, &tune, &format!("{}{rest}", shape(count, 1)))
    }

    let two_nodes = Machine::new([2, 1, 1, 4, 1], |place| 4 * place.package + place.core).build();
    check(&two_nodes, &build("1 2", &bind("0")), &[]);
    check(&two_nodes, &build("1 2", &bind("1")), &["memory-far"]);
    check(&two_nodes, &build("1 2", &bind("5")), &["absent-node", "memory-far"]);
    check(&two_nodes, &build("1 2", ""), &["memory-not-bound"]);
    check(&two_nodes, &build("1 5", &bind("0-1")), &["nodes-crossed"]);
    check(&two_nodes, &build("1 2 3 5 6 7", &bind("0-1")), &["nodes-hidden"]);
    let cells = "<cpu><topology sockets='1' cores='6' threads='1'/><numa><cell id='0' cpus='0-2' memory='1'/>\
                 <cell id='1' cpus='3-5' memory='1'/></numa></cpu>";
    check(&two_nodes, &domain_with_cells(cells, &memnodes(0, 1)), &[]);
    check(&two_nodes, &domain_with_cells(cells, &memnodes(1, 0)), &["memory-far", "memory-far"]);

    let complexes = two_complexes().build();
    check(&complexes, &build("1 2 4 5", ""), &["l3-crossed"]);
    check(&complexes, &build("4 5 6 7", ""), &[]);
    let hybrid = Machine::hybrid(4, 4).build();
    check(&hybrid, &build("2 4 8", ""), &["mixed-cores"]);
}

fn domain_with_cells(cells: &str, memory: &str) -> String {
    let tune = format!("{}<emulatorpin cpuset='0'/>", pins("1 2 3 5 6 7"));
    domain(6, &tune, &format!("{cells}{memory}"))
}

fn bind(nodes: &str) -> String {
    format!("<numatune><memory mode='strict' nodeset='{nodes}'/></numatune>")
}

fn memnodes(one: u32, other: u32) -> String {
    format!(
        "<numatune><memnode cellid='0' mode='strict' nodeset='{one}'/>\
             <memnode cellid='1' mode='strict' nodeset='{other}'/></numatune>"
    )
}

#[test]
fn two_machines_on_one_host() {
    let host = i7_4790k().build();
    assert_eq!(names(&host, "1", "2"), Vec::<&str>::new());
    assert_eq!(names(&host, "1 2", "2 3"), ["pu-used-twice"]);
    assert_eq!(names(&host, "1 2", "5 7"), ["core-used-twice"]);
}

fn names(host: &Topology, one: &str, other: &str) -> Vec<&'static str> {
    let found = diagnostics(host, &[&vm(one), &vm(other)]);
    let found = found.iter().filter(|diagnostic| diagnostic.severity > Severity::Note);
    found.map(|diagnostic| diagnostic.name).collect()
}

fn vm(lists: &str) -> String {
    let count = u32::try_from(lists.split(' ').count()).unwrap();
    domain(count, &format!("{}<emulatorpin cpuset='0,4'/>", pins(lists)), &shape(count, 1))
}

/// Five hundred machines: a CPU with several claimants is reported once, whatever their number.
#[test]
fn many_machines_on_one_host() {
    fn vm(name: u32, first: u32, second: u32) -> String {
        let tune = pins(&format!("{first} {second}"));
        domain(2, &tune, &shape(2, 1)).replace("<name>a</name>", &format!("<name>vm{name}</name>"))
    }

    const MANY: u32 = 500;
    let host = plain(1024).build();
    assert!(host.pus.len() >= 2 * MANY as usize);
    let apart = layouts((0..MANY).map(|number| vm(number, 2 * number, 2 * number + 1)).collect());
    assert_eq!(count_repeated(&host, &apart), []);
    // Each shares a CPU with the next: as many diagnostics as pairs of neighbours.
    let chain = layouts((0..MANY).map(|number| vm(number, number, number + 1)).collect());
    let found = count_repeated(&host, &chain);
    assert_eq!(found.len(), MANY as usize - 1);
    assert_eq!(found[0].what, "CPU 1 has vCPUs of \"vm0\" and \"vm1\"");
    // All on the same two CPUs: one diagnostic that names some machines and counts the others.
    let heap = layouts((0..MANY).map(|number| vm(number, 0, 1)).collect());
    let found = count_repeated(&host, &heap);
    assert_eq!(found.len(), 1);
    assert!(found[0].what.starts_with("the CPUs 0-1 have vCPUs of \"vm0\""), "{}", found[0].what);
    assert!(found[0].what.ends_with("and 494 more"), "{}", found[0].what);
}

fn count_repeated(host: &Topology, layouts: &[Layout]) -> Vec<Diagnostic> {
    let found = lint(layouts, host);
    found.into_iter().filter(|diagnostic| diagnostic.name == "pu-used-twice").collect()
}

fn layouts(files: Vec<String>) -> Vec<Layout> {
    files.iter().map(|xml| Layout::of_text(xml, "domain.xml").unwrap()).collect()
}

/// No strategy's plan has a problem.
#[test]
fn own_plans_hold() {
    let machines = [
        i7_4790k(),
        two_complexes(),
        pinfold_samples::machine::r910(),
        Machine::hybrid(4, 8),
        plain(3),
    ];
    for machine in machines {
        let topology = machine.build();
        for strategy in strategies() {
            let Ok(layout) = plan(strategy.name, &topology, &auto()) else { continue };
            let found = lint(&Layout::of_plan(&layout, "plan.json"), &topology);
            let problem = found.iter().find(|diagnostic| diagnostic.severity == Severity::Problem);
            assert_eq!(problem, None, "{} on {}", strategy.name, topology.fingerprint);
        }
    }
    let topology = i7_4790k().build();
    for name in ["low-latency", "balanced"] {
        let layout = plan(name, &topology, &exactly(2)).unwrap();
        let found = lint(&Layout::of_plan(&layout, "plan.json"), &topology);
        let worse = found.iter().find(|diagnostic| diagnostic.severity > Severity::Note);
        assert_eq!(worse, None, "{name}");
    }
}

#[test]
fn as_a_person_sees_it() {
    let topology = i7_4790k().build();
    let tune = format!(
        "{}<emulatorpin cpuset='0-1'/>\n<vcpusched vcpus='0-5' scheduler='fifo' priority='1'/>",
        pins("0 1 2 3 4 5")
    );
    let xml = domain(6, &tune, &shape(3, 2));
    let layouts = [Layout::of_text(&xml, "win10.xml").unwrap()];
    let found = lint(&layouts, &topology);
    assert!(
        found
            .iter()
            .any(|diagnostic| diagnostic.instead.iter().any(|line| line.contains("cpuset='0,4'")))
    );
    golden("review-win10.txt", &render(&layouts, &found, &topology, 80));
    assert_eq!(crate::counts(&found), "1 problem, 1 warning, 2 notes");
}

/// A compute service takes dedicated CPUs offline while no guest needs them.
#[test]
fn an_offline_pu_is_usable_once_online() {
    let host = i7_4790k().offline("7").build();
    let text = domain(2, &format!("{}<emulatorpin cpuset='0'/>", pins("1 7")), &shape(2, 1));
    let diagnostics = diagnostics(&host, &[&text]);
    assert_eq!(diagnostics[0].severity, Severity::Warning);
    assert!(
        diagnostics[0].what.ends_with("which is offline: usable once online"),
        "{}",
        diagnostics[0].what
    );
    assert_eq!(diagnostics[0].instead, ["`echo 1 > /sys/devices/system/cpu/cpu7/online`"]);
}

/// A file of another host has one cause, however many pins it has.
#[test]
fn pins_of_another_host_are_one_finding() {
    let pins: String =
        (0..4).map(|vcpu| format!("<vcpupin vcpu='{vcpu}' cpuset='{}'/>\n", 32 + vcpu)).collect();
    let strays = "<vcpupin vcpu='8' cpuset='1'/><vcpupin vcpu='9' cpuset='2'/>";
    let xml = format!(
        "<domain type='kvm'><name>a</name><vcpu>4</vcpu><cputune>{pins}\
         <emulatorpin cpuset='40'/>{strays}</cputune></domain>"
    );
    let layout = Layout::of_text(&xml, "a.xml").expect("a domain file");
    let found = lint(&[layout], &i7_4790k().build());
    let of =
        |name: &str| found.iter().filter(|diagnostic| diagnostic.name == name).collect::<Vec<_>>();
    let absent = of("absent-pu");
    assert_eq!(absent.len(), 1, "{found:?}");
    assert_eq!(
        absent[0].what,
        "the vCPUs 0-3 and the emulator are limited to 32-35,40: the CPUs 32-35,40 are not on this \
         host"
    );
    assert_eq!((absent[0].severity, absent[0].places.len()), (Severity::Problem, 5));
    let nothing = of("pin-of-nothing");
    assert_eq!((nothing.len(), nothing[0].places.len()), (1, 2), "{found:?}");
    assert!(nothing[0].what.starts_with("the vCPUs 8-9 are pinned, but the machine has 4 vCPUs"));
}
