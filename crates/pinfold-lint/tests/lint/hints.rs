//! Whoever follows a hint of a plan gets a plan without that finding.

use std::mem::discriminant;

use pinfold_lint::lint;
use pinfold_model::{
    IsolationScope, MemoryRequest, Plan, Request, Topology, VcpuCount, VmRequest, Work,
};
use pinfold_plan::layout::Layout;
use pinfold_plan::{PlanError, plan, strategies};

/// More CPUs than this make the plans take longer than they say; the second one by default.
const LARGE: (usize, usize) = (130, 64);

fn new_request(vcpus: u32, memory: Option<u64>) -> Request {
    let mut request = Request::vm("vm", VcpuCount::Exactly(vcpus));
    request.vnodes[0].memory = memory.map(|bytes| MemoryRequest { bytes, page_bytes: None });
    request
}

fn with_vcpus(request: &Request, vcpus: u32) -> Request {
    let mut request = request.clone();
    request.vnodes[0].work = Work::Vm(VmRequest::from_vcpus(VcpuCount::Exactly(vcpus)));
    request
}

/// What a hint says to ask for: requests, each with its strategy. Empty for other hints.
fn follow_hint(hint: &str, strategy: &str, request: &Request) -> Vec<(String, Request)> {
    let words: Vec<&str> = hint.split([' ', ',', '`']).filter(|word| !word.is_empty()).collect();
    let own = |vcpus| (strategy.to_owned(), with_vcpus(request, vcpus));
    let other = |name: &str| (name.to_owned(), request.clone());
    match words.as_slice() {
        ["request", "at", "most", count, unit @ ("GiB" | "MiB"), ..] => {
            let shift = if *unit == "GiB" { 30 } else { 20 };
            let mut less = request.clone();
            let bytes = u64::from(number(count).expect("a number")) << shift;
            less.vnodes[0].memory = Some(MemoryRequest { bytes, page_bytes: None });
            vec![(strategy.to_owned(), less)]
        }
        ["request", "at", "most", count, "vCPU" | "vCPUs", rest @ ..] => {
            let mut all = vec![own(number(count).expect("a number"))];
            if let ["or", "use", name, ..] = rest {
                all.push(other(name));
            }
            all
        }
        ["request", count, "vCPU" | "vCPUs"] => vec![own(number(count).expect("a number"))],
        ["request", fewer, "or", more, "vCPUs"] => {
            [fewer, more].map(|count| own(number(count).expect("a number"))).to_vec()
        }
        ["-s", name, "runs", ..] | [name, "gives", ..] | ["use", name, "which", ..] => {
            vec![other(name)]
        }
        _ => Vec::new(),
    }
}

fn number(word: &str) -> Option<u32> {
    word.parse::<u32>().ok()
}

fn is_without(subject: &str, made: &Result<Plan, PlanError>) -> bool {
    made.as_ref().is_ok_and(|made| made.findings.iter().all(|found| found.subject != subject))
}

/// Follows the hints of one request; how many there were.
fn follow(name: &str, topology: &Topology, strategy: &str, request: &Request) -> usize {
    let mut count = 0;
    let mut check = |what: &str, hint: &str, goes: &dyn Fn(&Result<Plan, PlanError>) -> bool| {
        for (other, request) in follow_hint(hint, strategy, request) {
            count += 1;
            let made = plan(&other, topology, &request);
            assert!(goes(&made), "{name}, {strategy}: {what}: {hint}, {made:?}");
        }
    };
    match plan(strategy, topology, request) {
        Ok(layout) => {
            for finding in &layout.findings {
                check(&finding.subject, finding.hint.as_deref().unwrap_or(""), &|made: &_| {
                    is_without(&finding.subject, made)
                });
            }
        }
        // What was refused for two reasons may then be refused for the other one.
        Err(error) => check(&error.to_string(), error.hint().as_deref().unwrap_or(""), &|made| {
            made.as_ref().err().is_none_or(|next| discriminant(next) != discriminant(&error))
        }),
    }
    count
}

#[test]
fn every_hint_leads_to_a_plan_without_its_finding() {
    let mut hints = 0;
    let most = crate::by_size(LARGE.0, LARGE.1);
    for (name, topology) in pinfold_samples::hosts().iter().filter(|(_, it)| it.pus.len() <= most) {
        let pus = u32::try_from(topology.pus.len()).expect("few CPUs");
        let node = topology.nodes.iter().map(|node| node.memory_bytes).max().unwrap_or(0);
        let large = (node > 0 && topology.nodes.len() > 1).then_some(node / 2 * 3);
        for strategy in strategies().iter().map(|it| it.name).filter(|name| *name != "vnodes") {
            for vcpus in [pus / 4, pus / 2 + 1, pus - 1, pus + 1] {
                for memory in [None, large] {
                    let request = new_request(vcpus.max(1), memory);
                    hints += follow(name, topology, strategy, &request);
                }
            }
        }
    }
    assert!(hints > 500, "{hints}");
}

/// What a command of a hint asks for, read as its options stand.
fn of_command(command: &str) -> (String, Request) {
    let mut words = command.split(' ').skip(2);
    let (mut strategy, mut request) = ("auto".to_owned(), Request::from_vnodes(Vec::new()));
    while let Some(option) = words.next() {
        let mut value = || words.next().expect("a value").trim_matches('\'');
        match option {
            "--strategy" => strategy = value().to_owned(),
            "--vcpus" => {
                request.vnodes.extend(new_request(value().parse().expect("vCPUs"), None).vnodes)
            }
            "--name" => request.vnodes[0].name = value().to_owned(),
            "--vm" => request
                .vnodes
                .push(pinfold_config::requests::parse_vm_spec(value()).expect("a machine")),
            "--isolate" if value() == "host" => request.isolation = IsolationScope::Host,
            "--json" => {}
            // The host is the one that the test has, and its description has spaces.
            "--input" => break,
            other => panic!("{other} in {command}"),
        }
    }
    (strategy, request)
}

#[test]
fn the_command_for_a_plan_keeps_it_and_is_without_the_finding() {
    let topology = pinfold_samples::read("e5-2670-dual.synthetic".to_owned()).1;
    let two = Request::from_vnodes(vec![named("a"), named("b")]);
    for (strategy, request) in [("realtime", new_request(3, None)), ("low-latency", two)] {
        let first = plan(strategy, &topology, &request).expect("a plan");
        let diagnostics = lint(&Layout::of_plan(&first, "plan.json"), &topology);
        let open = diagnostics.iter().filter(|diagnostic| diagnostic.name == "not-isolated");
        let lines: Vec<&String> = open.flat_map(|diagnostic| &diagnostic.instead).collect();
        assert_eq!(lines.len(), request.vnodes.len(), "{diagnostics:?}");
        for line in lines {
            let command = line.split('`').nth(1).expect("a command");
            let (again, request) = of_command(command);
            let made = plan(&again, &topology, &request).expect("a plan");
            assert_eq!(again, strategy, "{command}");
            assert_eq!(memory_of(&made), memory_of(&first), "{command}");
            let left = lint(&Layout::of_plan(&made, "plan.json"), &topology);
            assert!(
                left.iter().all(|diagnostic| diagnostic.name != "not-isolated"),
                "{command}: {left:?}"
            );
        }
    }
}

fn named(name: &str) -> pinfold_model::VnodeRequest {
    let mut request = new_request(4, Some(8 << 30));
    request.vnodes[0].name = name.to_owned();
    request.vnodes.remove(0)
}

fn memory_of(plan: &Plan) -> Vec<(String, Option<u64>)> {
    let vnodes = plan.vnodes.iter();
    vnodes
        .map(|it| {
            (
                it.name.clone(),
                it.memory.as_ref().and_then(|bound: &pinfold_model::MemoryPlan| bound.bytes),
            )
        })
        .collect()
}

/// The hint of a plan's finding, if it has such a finding.
fn hint_of<'p>(plan: &'p Plan, subject: &str) -> Option<&'p str> {
    plan.findings.iter().find(|finding| finding.subject == subject)?.hint.as_deref()
}

#[test]
fn no_hint_asks_for_more_than_the_host_has_or_for_something_worse() {
    let (_, topology) = pinfold_samples::read("i5-12600k.capture".to_owned());
    let layout = plan("auto", &topology, &new_request(16, None)).expect("a plan");
    assert!(layout.findings.iter().any(|finding| finding.subject == "guest topology"));
    let hint = hint_of(&layout, "guest topology").unwrap_or_default();
    assert!(!hint.contains("17"), "{hint}");
    assert_eq!(hint_of(&layout, "core kinds"), Some("request at most 12 vCPUs"));
}

#[test]
fn the_boot_core_is_offered_to_the_host_only_where_the_guest_stays_on_its_part() {
    // The guest has all CPUs of the large cache.
    assert_eq!(boot_cpu_hint("ryzen-7950x3d.xml", "auto", 16), None);
    let offered = Some("`--host-cpus 0,16` keeps it for the host".to_owned());
    assert_eq!(boot_cpu_hint("e5-2670-dual.synthetic", "multi-vm", 4), offered);
}

fn boot_cpu_hint(host: &str, strategy: &str, vcpus: u32) -> Option<String> {
    let (_, topology) = pinfold_samples::read(host.to_owned());
    let layout = plan(strategy, &topology, &new_request(vcpus, None)).expect("a plan");
    assert!(layout.findings.iter().any(|finding| finding.subject == "boot CPU"), "{host}");
    hint_of(&layout, "boot CPU").map(str::to_owned)
}

#[test]
fn a_guest_on_slow_cores_is_told_how_many_fit_the_fast_ones() {
    let (_, topology) = pinfold_samples::read("ultra-255h.capture".to_owned());
    let layout = plan("auto", &topology, &new_request(8, None)).expect("a plan");
    assert_eq!(hint_of(&layout, "preference"), Some("`--vcpus 6` fits the faster cores"));
    let fast = plan("auto", &topology, &new_request(6, None)).expect("a plan");
    let pins: Vec<String> = fast.vnodes[0].vcpus().map(|vcpu| vcpu.pus.to_string()).collect();
    assert_eq!(pins, ["0", "1", "2", "3", "4", "5"]);
}
