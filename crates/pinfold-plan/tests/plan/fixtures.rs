//! Every strategy on every host of `fixtures/hosts`, and `scatter` against `hwloc-distrib`.

use std::collections::{BTreeMap, BTreeSet};

use pinfold_host::process::{capture, find_program};
use pinfold_model::{
    CoreKind, CpuSet, IsolationScope, Plan, Preference, Pu, PuId, Request, Role, Severity, Source,
    Speed, Topology, VcpuCount, VmRequest, VnodeRequest,
};
use pinfold_plan::{explain, plan, schema, strategies, validate};
use pinfold_samples::{from_description, hosts};

const MINUTE_NS: u64 = 60_000_000_000;

fn requests(strategy: &str) -> Vec<Request> {
    let asked = match strategy {
        "vnodes" => vec![vec![group("a", 1)], vec![group("a", 2), group("b", 1)]],
        _ => vec![
            vec![vm("a", VcpuCount::Auto)],
            vec![vm("a", VcpuCount::Exactly(3))],
            vec![vm("a", VcpuCount::Exactly(2)), vm("b", VcpuCount::Exactly(1))],
            vec![vm("a", VcpuCount::Auto), group("b", 1)],
        ],
    };
    asked
        .into_iter()
        .map(|vnodes| Request { isolation: IsolationScope::Host, ..Request::from_vnodes(vnodes) })
        .collect()
}

fn vm(name: &str, vcpus: VcpuCount) -> VnodeRequest {
    VnodeRequest::vm(name, VmRequest::from_vcpus(vcpus))
}

fn group(name: &str, cores: u32) -> VnodeRequest {
    VnodeRequest::processes(name, cores, Speed::FULL)
}

/// Where a number, its noun and its verb do not agree: `1 vCPUs`, `CPU 1-3`, `CPU 17 share`.
fn disagreement(text: &str) -> Option<String> {
    const PLURALS: [&str; 7] = ["vCPUs", "CPUs", "cores", "threads", "sockets", "nodes", "vnodes"];
    const OF_MANY: [&str; 6] = ["share", "are", "have", "carry", "run", "stay"];
    const OF_ONE: [&str; 6] = ["shares", "is", "has", "carries", "runs", "stays"];
    let words: Vec<&str> = text.split_whitespace().collect();
    let wrong = |three: &[&str]| {
        let [first, second, third] = [three[0], three[1], three[2]]
            .map(|word| word.trim_matches(|c: char| "();:,".contains(c)));
        let several = second.contains(['-', ',']);
        match first {
            "1" => PLURALS.contains(&second),
            "CPU" => numbers(second) && (several || OF_MANY.contains(&third)),
            // The head of a column.
            "CPUs" => numbers(second) && several && OF_ONE.contains(&third),
            _ => false,
        }
    };
    words.windows(3).find(|three| wrong(three)).map(|three| three.join(" "))
}

fn numbers(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_digit())
}

#[test]
fn a_number_its_noun_and_its_verb_agree() {
    check_disagreement("at most 1 vCPUs on", Some("1 vCPUs on"));
    check_disagreement("CPU 17 share cores", Some("CPU 17 share"));
    check_disagreement("on CPU 1-3 of it", Some("CPU 1-3 of"));
    check_disagreement("the CPUs 1-3 shares", Some("CPUs 1-3 shares"));
    check_disagreement(
        "at most 1 vCPU, the CPUs 1-3 share 2 cores, CPU 17 shares one, 1 node",
        None,
    );
}

fn check_disagreement(text: &str, wrong: Option<&str>) {
    assert_eq!(disagreement(text).as_deref(), wrong);
}

/// A plan that may be applied there, or a refusal with a way out.
#[test]
fn every_strategy_on_every_host() {
    let hosts = hosts();
    assert!(hosts.len() >= 24, "{} hosts", hosts.len());
    let mut planned = 0;
    for (name, topology) in &hosts {
        for strategy in strategies() {
            for request in requests(strategy.name) {
                let case = format!("{name}, {}", strategy.name);
                let layout = match plan(strategy.name, topology, &request) {
                    Ok(layout) => layout,
                    Err(error) => {
                        assert!(error.hint().is_some(), "{case}: {error} and no way out");
                        let hint = error.hint().unwrap_or_default();
                        assert_eq!(disagreement(&format!("{error} {hint}")), None, "{case}");
                        continue;
                    }
                };
                let texts = explain(&layout, topology, 10_000);
                assert_eq!(disagreement(&texts), None, "{case}: {texts}");
                assert!(texts.contains("why"), "{case}");
                assert_eq!(validate(&layout, topology), vec![], "{case}");
                assert!(!layout.housekeeping.is_empty(), "{case}");
                assert_eq!(schema::from_json(&schema::to_json(&layout)), Ok(layout), "{case}");
                planned += 1;
            }
        }
    }
    // Nearly all: what is refused is refused on machines of one or two CPUs, or for its L3.
    assert!(planned > 1000, "only {planned} plans");
}

fn warns(layout: &Plan) -> bool {
    layout.findings.iter().any(|finding| finding.severity > Severity::Note)
}

/// Numbers of vCPUs around those at which a machine is full.
fn counts_of(topology: &Topology) -> BTreeSet<u32> {
    let pus = u32::try_from(topology.pus.len()).expect("a count");
    let cores = u32::try_from(topology.cores.len()).expect("a count");
    // The largest hosts take long for each number.
    if pus > 100 {
        return [3, cores].into();
    }
    let counts = (1..=16).chain([20, 24, 32]).chain(
        [cores / 2, cores, pus / 2, pus]
            .map(|count: u32| [count.saturating_sub(1), count, count + 1, count + 2])
            .concat(),
    );
    counts.filter(|count| (1..=pus + 1).contains(count)).collect()
}

/// `auto` has a warning only where every strategy has one or refuses.
#[test]
fn auto_warns_only_where_all_do() {
    let (mut quiet, mut loud) = (0, 0);
    for (name, topology) in hosts() {
        for vcpus in counts_of(&topology) {
            // Isolation adds notes only; every second number has it.
            let isolation = [IsolationScope::None, IsolationScope::Host][vcpus as usize % 2];
            let vm = Request::vm("vm", VcpuCount::Exactly(vcpus));
            let request = Request { isolation, ..vm };
            let picked = plan("auto", &topology, &request).expect("auto has a plan");
            if !warns(&picked) {
                quiet += 1;
                continue;
            }
            loud += 1;
            for strategy in strategies() {
                let other = plan(strategy.name, &topology, &request);
                assert!(
                    other.as_ref().map_or(true, warns),
                    "{name}, {vcpus} vCPUs: auto picked {} with {:?}, but {} has no warning",
                    picked.strategy,
                    picked.findings,
                    strategy.name
                );
            }
        }
    }
    // Where no strategy avoids a cost it is a note, so none of these plans warns.
    assert!(quiet > 500 && loud == 0, "{quiet} plans without, {loud} with a warning");
}

/// Machines of these sizes on a host, isolated from it.
fn machines(counts: &[u32]) -> Request {
    let mut vnodes = Vec::new();
    for (number, vcpus) in counts.iter().enumerate() {
        let vm = VmRequest::from_vcpus(VcpuCount::Exactly(*vcpus));
        vnodes.push(VnodeRequest::vm(&format!("vm{number}"), vm));
    }
    Request { isolation: IsolationScope::Host, ..Request::from_vnodes(vnodes) }
}

/// The CPUs of the vCPUs of each machine.
fn pins_of_each(layout: &Plan) -> Vec<CpuSet> {
    layout
        .vnodes
        .iter()
        .map(|vnode| vnode.vcpus().map(|vcpu| &vcpu.pus).collect::<CpuSet>())
        .collect()
}

/// True if no two machines have CPUs of the same part.
fn are_apart(topology: &Topology, layout: &Plan, part: fn(&Pu) -> Option<u32>) -> bool {
    let mut owners = BTreeMap::new();
    pins_of_each(layout).iter().enumerate().all(|(owner, pus)| {
        let on = topology.pus.iter().filter(|pu| pus.contains(pu.os));
        on.filter_map(part)
            .collect::<BTreeSet<_>>()
            .into_iter()
            .all(|it| *owners.entry(it).or_insert(owner) == owner)
    })
}

/// The reason of `auto` is what its plan shows, and the isolation is lost only where no CPU can
/// stay with the host.
#[test]
fn the_reason_of_auto_is_true() {
    let (mut claims, mut isolated) = (0, 0);
    for (name, topology) in hosts() {
        let half = u32::try_from(topology.pus.len() / 2).expect("a count").clamp(1, 40);
        let most =
            u32::try_from(topology.pus.len()).expect("a count").saturating_sub(1).clamp(1, 63);
        let sizes = [&[2, 2][..], &[1; 5], &[4, 4, 4], &[8, 8], &[half], &[3], &[24], &[most]];
        for counts in sizes {
            let request = machines(counts);
            let layout = plan("auto", &topology, &request).expect("auto has a plan");
            let reason = layout.findings.iter().find(|it| it.subject == "auto").expect("a reason");
            let text = reason.text.split(" (").next().unwrap_or_default();
            let case = format!("{name}, {counts:?}: {text}: {:?}", pins_of_each(&layout));
            if text.contains("its own core") {
                let all: usize = pins_of_each(&layout).iter().map(CpuSet::len).sum();
                let pus = pins_of_each(&layout).iter().collect::<CpuSet>();
                assert_eq!(
                    (all, counts_of_cores(&topology, &pus)),
                    (pus.len(), pus.len()),
                    "{case}"
                );
                assert!(are_apart(&topology, &layout, |pu: &Pu| Some(pu.core.0)), "{case}");
                claims += 1;
            }
            if text.contains("its own NUMA node") {
                assert!(are_apart(&topology, &layout, |pu| pu.node.map(|node| node.0)), "{case}");
                claims += 1;
            }
            if text.contains("its own L3 domain") {
                assert!(are_apart(&topology, &layout, |pu| pu.l3.map(|l3| l3.0)), "{case}");
                claims += 1;
            }
            isolated += usize::from(layout.isolation == IsolationScope::Host);
            if layout.isolation == IsolationScope::None && layout.strategy != "none" {
                let vcpus: u32 = counts.iter().sum();
                assert!(topology.allowed.len() <= vcpus as usize, "{case}");
            }
        }
    }
    assert!(claims > 100 && isolated > 150, "{claims} claims, {isolated} isolate");
}

fn counts_of_cores(topology: &Topology, pus: &CpuSet) -> usize {
    let on = topology.pus.iter().filter(|pu| pus.contains(pu.os));
    on.map(|pu| pu.core).collect::<BTreeSet<_>>().len()
}

/// A note that names a preference is true: with it the machine is where the note says, wholly on
/// the preferred cores, and without it it is not.
#[test]
fn notes_about_preferences_are_true() {
    let mut checked = 0;
    for (name, topology) in hosts() {
        let kinds: BTreeSet<CoreKind> = topology.pus.iter().map(|pu| pu.kind).collect();
        let fastest = kinds.first().copied();
        for vcpus in counts_of(&topology) {
            for strategy in ["auto", "low-latency", "balanced"] {
                let request = Request::vm("vm", VcpuCount::Exactly(vcpus));
                let Ok(layout) = plan(strategy, &topology, &request) else { continue };
                let about = layout.findings.iter().filter(|it| it.subject == "preference");
                for text in about.map(|finding| &finding.text) {
                    let Some((_, rest)) = text.split_once("with a preference for ") else {
                        continue;
                    };
                    let words: Vec<&str> = rest.split(' ').collect();
                    let [word, "it", "is", "on", there, ..] = words.as_slice() else {
                        panic!("{name}: {text}");
                    };
                    let prefer = match *word {
                        "cache" => Preference::Cache,
                        "frequency" => Preference::Frequency,
                        _ => Preference::Efficiency,
                    };
                    let case = format!("{name}, {strategy}, {vcpus} vCPUs: {text}");
                    let asked = Request { prefer, ..request.clone() };
                    let other = plan(strategy, &topology, &asked).expect("the plan of the note");
                    assert_eq!(pins(&other).to_string(), **there, "{case}");
                    let is_slow = |pu: PuId| topology.pu(pu).map(|pu| pu.kind) > fastest;
                    if prefer == Preference::Efficiency && kinds.len() > 1 {
                        assert!(pins(&other).iter().all(is_slow), "{case}");
                        assert!(!pins(&layout).iter().all(is_slow), "{case}");
                    }
                    checked += 1;
                }
            }
        }
    }
    assert!(checked > 100, "only {checked}");
}

/// Fast cores that stay idle because each vCPU has a core of its own are a warning with the command
/// that uses them.
#[test]
fn idle_fast_cores_are_a_warning() {
    let topology = host("i9-13900k.xml");
    for vcpus in 9..=16 {
        let request = Request::vm("vm", VcpuCount::Exactly(vcpus));
        let layout = plan("low-latency", &topology, &request).expect("a plan");
        let found =
            layout.findings.iter().find(|it| it.subject == "slow cores").expect("a finding");
        assert_eq!(found.severity, Severity::Warning);
        let hint = found.hint.as_deref().unwrap_or_default();
        let command = format!("pinfold plan --strategy balanced --vcpus {vcpus} --input");
        assert!(hint.contains(&command), "{hint}");
        let other = plan("balanced", &topology, &request).expect("a plan");
        assert!(
            pins(&other).is_subset(&CpuSet::parse_list("0-15").expect("a list")),
            "{}",
            pins(&other)
        );
    }
    let few = Request::vm("vm", VcpuCount::Exactly(7));
    let layout = plan("low-latency", &topology, &few).expect("a plan");
    assert!(!layout.findings.iter().any(|it| it.subject == "slow cores"));
}

fn host(name: &str) -> Topology {
    let (_, topology) = pinfold_samples::read(name.to_owned());
    topology
}

/// vCPUs, emulator and host of a machine with so many vCPUs, isolated from the host.
fn layout(topology: &Topology, strategy: &str, vcpus: u32, prefer: Preference) -> [String; 3] {
    let vm = Request::vm("vm", VcpuCount::Exactly(vcpus));
    let request = Request { isolation: IsolationScope::Host, prefer, ..vm };
    let made = plan(strategy, topology, &request).expect("a plan");
    let emulator = made.vnodes[0].thread(&Role::Emulator).expect("an emulator");
    [pins(&made).to_string(), emulator.pus.to_string(), made.housekeeping.to_string()]
}

/// What owners of these two do: the guest on the whole large die or on the fast cores, the host
/// and the emulator on the rest.
#[test]
fn unequal_machines_to_the_pu() {
    let all_strategies = ["auto", "balanced", "l3-exclusive"];
    let x3d = host("ryzen-7950x3d.xml");
    let (large, small) = ("0-7,16-23".to_owned(), "8-15,24-31".to_owned());
    for prefer in [Preference::Cache, Preference::Auto, Preference::Efficiency] {
        for strategy in all_strategies {
            let expected = [large.clone(), small.clone(), small.clone()];
            assert_eq!(layout(&x3d, strategy, 16, prefer), expected, "{strategy}");
        }
    }
    for strategy in all_strategies {
        let found = layout(&x3d, strategy, 16, Preference::Frequency);
        assert_eq!(found, [small.clone(), large.clone(), large.clone()], "{strategy}");
    }
    let intel = host("i5-12600k.capture");
    for strategy in ["auto", "balanced"] {
        for prefer in [Preference::Auto, Preference::Cache, Preference::Frequency] {
            let found = layout(&intel, strategy, 12, prefer);
            assert_eq!(found, ["0-11", "12-15", "12-15"], "{strategy}");
        }
    }
    let found = layout(&intel, "auto", 4, Preference::Efficiency);
    assert_eq!(found, ["12-15", "0-11", "0-11"]);
}

/// Every number of vCPUs that fits on the large die is wholly there, the emulator never.
#[test]
fn guests_lie_wholly_on_the_large_die() {
    let x3d = host("ryzen-7950x3d.xml");
    let large = CpuSet::parse_list("0-7,16-23").expect("a list");
    for (strategy, most) in
        [("low-latency", 8), ("balanced", 16), ("l3-exclusive", 16), ("auto", 16)]
    {
        for vcpus in 1..=most {
            let [pins, emulator, _] = layout(&x3d, strategy, vcpus, Preference::Auto);
            let [pins, emulator] =
                [pins, emulator].map(|list| CpuSet::parse_list(&list).expect("a list"));
            assert!(pins.is_subset(&large), "{strategy}, {vcpus}: {pins}");
            assert!(emulator.is_disjoint(&large), "{strategy}, {vcpus}: {emulator}");
        }
    }
}

/// One kind of core for every machine that one kind has room for.
#[test]
fn machines_stay_on_one_kind_of_core() {
    let mut checked = 0;
    for (name, topology) in hosts() {
        let mut room: BTreeMap<CoreKind, usize> = BTreeMap::new();
        topology.pus.iter().for_each(|pu| *room.entry(pu.kind).or_default() += 1);
        if room.len() < 2 {
            continue;
        }
        let fastest = room.values().next().copied().unwrap_or(0);
        for vcpus in 1..=fastest {
            let vm = Request::vm("vm", VcpuCount::Exactly(u32::try_from(vcpus).expect("a count")));
            for strategy in ["auto", "balanced", "numa-exclusive"] {
                let Ok(made) = plan(strategy, &topology, &vm) else { continue };
                let on = pins(&made);
                let kinds: BTreeSet<CoreKind> =
                    on.iter().filter_map(|pu| topology.pu(pu)).map(|pu| pu.kind).collect();
                assert_eq!(kinds.len(), 1, "{name}, {strategy}, {vcpus}: {on}");
                checked += 1;
            }
        }
    }
    assert!(checked > 60, "only {checked}");
}

/// A preference that would change the plan is offered with the command that asks for it.
#[test]
fn preferences_are_offered_with_their_command() {
    let [x3d] = hints("ryzen-7950x3d.xml", "balanced", Preference::Auto).try_into().expect("one");
    assert!(x3d.contains("is on 1-2,17-18 (L3 0, 96 MiB)"), "{x3d}");
    assert!(x3d.contains("for frequency it is on 8-9,24-25 (L3 1, 32 MiB)"), "{x3d}");
    assert!(x3d.contains("pinfold plan --strategy balanced --vcpus 4 --prefer frequency"), "{x3d}");
    assert!(x3d.contains("--input"), "{x3d}");
    let [intel] = hints("i5-12600k.capture", "auto", Preference::Auto).try_into().expect("one");
    assert!(intel.contains("(the efficiency cores)"), "{intel}");
    assert!(intel.contains("pinfold plan --vcpus 4 --prefer efficiency"), "{intel}");
    let [none] =
        hints("ryzen-7950x3d.xml", "auto", Preference::Efficiency).try_into().expect("one");
    assert!(none.contains("efficiency makes no difference here"), "{none}");
    let [order] = hints("ryzen-7950x3d.xml", "compact", Preference::Cache).try_into().expect("one");
    assert!(order.contains("has a fixed order"), "{order}");
    for (name, strategy) in [("i7-4790k.synthetic", "auto"), ("ryzen-7950x3d.xml", "compact")] {
        assert_eq!(hints(name, strategy, Preference::Auto), Vec::<String>::new());
    }
}

fn hints(name: &str, strategy: &str, prefer: Preference) -> Vec<String> {
    let request = Request { prefer, ..Request::vm("vm", VcpuCount::Exactly(4)) };
    let made = plan(strategy, &host(name), &request).expect("a plan");
    let about = made.findings.into_iter().filter(|finding| finding.subject == "preference");
    about.map(|finding| finding.to_string()).collect()
}

/// The emulator and the iothreads are where the guest's memory is.
#[test]
fn emulator_and_iothreads_stay_on_the_node() {
    let topology = host("e5-2670-dual.synthetic");
    let vm = VmRequest {
        iothreads: vec!["disk".to_owned()],
        ..VmRequest::from_vcpus(VcpuCount::Exactly(6))
    };
    let request = Request::from_vnodes(vec![VnodeRequest::vm("vm", vm)]);
    let nodes = |pus: &CpuSet| -> BTreeSet<u32> {
        pus.iter().filter_map(|pu| topology.pu(pu)?.node).map(|node| node.0).collect()
    };
    for strategy in strategies() {
        let Ok(made) = plan(strategy.name, &topology, &request) else { continue };
        let guest = nodes(&pins(&made));
        if strategy.name == "none" {
            continue;
        }
        for thread in made.vnodes[0].threads.iter().filter(|t| !matches!(t.role, Role::Vcpu(_))) {
            let near = nodes(&thread.pus).is_subset(&guest);
            assert!(near, "{}: {} on {}", strategy.name, thread.role, thread.pus);
        }
    }
}

/// The host's CPUs that are nearest to some vCPUs: on their nodes, else their packages, else all.
fn nearest(topology: &Topology, hosts: &CpuSet, vcpus: &CpuSet) -> CpuSet {
    let own: Vec<_> = topology.pus.iter().filter(|pu| vcpus.contains(pu.os)).collect();
    let nodes: BTreeSet<_> = own.iter().map(|pu| pu.node).collect();
    let packages: BTreeSet<_> = own.iter().map(|pu| pu.package).collect();
    let hosts = || topology.pus.iter().filter(|pu| hosts.contains(pu.os));
    let of_node = hosts().filter(|pu| pu.node.is_none() || nodes.contains(&pu.node));
    let of_package = hosts().filter(|pu| packages.contains(&pu.package));
    let levels: [CpuSet; 3] = [
        of_node.map(|pu| pu.os).collect(),
        of_package.map(|pu| pu.os).collect(),
        hosts().map(|pu| pu.os).collect(),
    ];
    levels.into_iter().find(|pus| !pus.is_empty()).unwrap_or_default()
}

/// Machines with an iothread each, isolated from the host.
fn with_iothreads(counts: &[u32]) -> Request {
    let mut vnodes = Vec::new();
    for (number, vcpus) in counts.iter().enumerate() {
        let vcpus = VcpuCount::Exactly(*vcpus);
        let vm = VmRequest { iothreads: vec!["x".to_owned()], ..VmRequest::from_vcpus(vcpus) };
        vnodes.push(VnodeRequest::vm(&format!("vm{number}"), vm));
    }
    Request { isolation: IsolationScope::Host, ..Request::from_vnodes(vnodes) }
}

/// Threads that run with the host's tasks may use each of the host's CPUs that is as near to their
/// vCPUs and as weak: never one core while others idle.
#[test]
fn helpers_with_the_host_have_all_its_near_cpus() {
    let named = ["low-latency", "low-latency-rt", "multi-vm", "balanced", "realtime"];
    let mut checked = 0;
    for (name, topology) in hosts() {
        let l3_bytes = |l3| topology.l3.iter().find(|it| Some(it.id) == l3).map(|l3| l3.size_bytes);
        let classes: BTreeMap<PuId, _> =
            topology.pus.iter().map(|pu| (pu.os, (pu.kind, l3_bytes(pu.l3)))).collect();
        let half = u32::try_from(topology.pus.len() / 2).expect("a count").clamp(1, 64);
        for (strategy, counts) in named.iter().flat_map(|it| [(it, [2, 1]), (it, [half, 1])]) {
            let request = with_iothreads(&counts);
            let Ok(made) = plan(strategy, &topology, &request) else { continue };
            for vnode in &made.vnodes {
                let vcpus = vnode.vcpus().map(|vcpu| &vcpu.pus).collect::<CpuSet>();
                let helpers = vnode.threads.iter().filter(|it| !it.role.is_vcpu());
                for helper in helpers.filter(|it| !it.pus.is_disjoint(&made.housekeeping)) {
                    let own: BTreeSet<_> =
                        helper.pus.iter().filter_map(|pu| classes.get(&pu)).collect();
                    let near = nearest(&topology, &made.housekeeping, &vcpus);
                    let expected: CpuSet = near
                        .iter()
                        .filter(|pu: &PuId| classes.get(pu).is_some_and(|it| own.contains(it)))
                        .collect();
                    let case = format!("{name}, {strategy}, {counts:?}: {}", helper.role);
                    assert_eq!(helper.pus, expected, "{case} of vCPUs on {vcpus}");
                    checked += 1;
                }
            }
        }
    }
    assert!(checked > 300, "only {checked}");
}

/// The emulator stays in the package of its machine where the nodes of the vCPUs are full.
#[test]
fn helpers_are_on_the_nearest_node_with_room() {
    assert_eq!(helpers("package:1 core:16 pu:1", &[4, 4]), ["0,9-15"; 4]);
    let groups = "package:2 group:4 [numa(memory=8GiB)] core:4 pu:1";
    assert_eq!(helpers(groups, &[8]), ["24-31"; 2]);
    // All of the vCPUs' package is full: the host's CPUs are on the other one.
    assert_eq!(helpers("package:2 [numa(memory=8GiB)] core:8 pu:1", &[8]), ["0-7"; 2]);
}

fn helpers(machine: &str, vcpus: &[u32]) -> Vec<String> {
    let topology = from_description(machine);
    let made = plan("auto", &topology, &with_iothreads(vcpus)).expect("a plan");
    let others = made.vnodes.iter().flat_map(|vnode| &vnode.threads);
    others.filter(|it| !it.role.is_vcpu()).map(|it| it.pus.to_string()).collect()
}

/// Caches that are all stacked, or unequal but small, are no reason to go anywhere.
#[test]
fn no_large_cache_where_none_stands_out() {
    let [pins, ..] = layout(&host("epyc-7373x.xml"), "balanced", 4, Preference::Auto);
    assert_eq!(pins, "2-3,18-19", "the first L3 besides the host's");
    let [pins, ..] = layout(&host("ryzen-hx370.xml"), "balanced", 8, Preference::Cache);
    assert_eq!(pins, "0-3,12-15", "the larger L3 if it is asked for");
}

/// One package of two, with its memory, is the best that one machine can have.
#[test]
fn one_machine_gets_one_package_of_two() {
    let made = plan("auto", &host("x5540-dual.synthetic"), &Request::vm("vm", VcpuCount::Auto));
    let made = made.expect("a plan");
    assert_eq!(
        (made.strategy.as_str(), pins(&made).to_string().as_str()),
        ("numa-exclusive", "4-7,12-15")
    );
}

/// How many of the CPUs are in each part, most first.
fn counts(topology: &Topology, pus: &CpuSet, level: &str) -> Vec<usize> {
    let mut parts: BTreeMap<Option<u32>, usize> = BTreeMap::new();
    for pu in topology.pus.iter().filter(|pu| pus.contains(pu.os)) {
        let part = match level {
            "package" => Some(pu.package.0),
            "node" => pu.node.map(|node| node.0),
            "L3" => pu.l3.map(|l3| l3.0),
            _ => Some(pu.core.0),
        };
        *parts.entry(part).or_default() += 1;
    }
    let mut counts: Vec<usize> = parts.into_values().collect();
    counts.sort_unstable_by(|a, b| b.cmp(a));
    counts
}

fn pins(layout: &Plan) -> CpuSet {
    layout.vnodes[0].vcpus().filter_map(|vcpu| vcpu.pus.first()).collect()
}

#[test]
fn scatter_spreads_as_hwloc_distrib_does() {
    let Some(distrib) = find_program("hwloc-distrib") else {
        eprintln!("skipped: hwloc-distrib is not installed");
        return;
    };
    for (name, topology) in hosts() {
        // On irregular hosts it weighs parts by their CPUs, another rule.
        let Source::Synthetic(description) = &topology.source else { continue };
        let most = topology.pus.len();
        for vcpus in (1..=most.min(64)).chain([most / 2, most]).filter(|count| *count > 0) {
            let count = vcpus.to_string();
            let arguments = ["-i", description, "--single", "--taskset", &count];
            let output = capture(&distrib, arguments, MINUTE_NS).expect("hwloc-distrib runs");
            let masks = output.stdout_text();
            let theirs: CpuSet = masks
                .lines()
                .flat_map(|line| {
                    let set = CpuSet::parse_mask(line).expect("a mask");
                    set.iter().collect::<Vec<PuId>>()
                })
                .collect();
            let request =
                Request::vm("vm", VcpuCount::Exactly(u32::try_from(vcpus).expect("a count")));
            let ours = pins(&plan("scatter", &topology, &request).expect("a plan"));
            for level in ["package", "node", "L3", "core"] {
                assert_eq!(
                    counts(&topology, &ours, level),
                    counts(&topology, &theirs, level),
                    "{name}: {vcpus} vCPUs by {level}: {ours} against {theirs}"
                );
            }
        }
    }
}
