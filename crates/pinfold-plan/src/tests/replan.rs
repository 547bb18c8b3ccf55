//! Plans after changes: single cases, the least possible moves, and a long random life of hosts.

use std::collections::BTreeSet;

use pinfold_model::{
    CpuSet, Finding, IsolationScope, Plan, PuId, Request, Role, ThreadPlan, Topology, VcpuCount,
    VmRequest, VnodeRequest,
};
use pinfold_samples::{from_description, machine, read, set};

use crate::plan;
use crate::replan::{self, Change, Move, Placements, Replan, ReplanError};

fn request(name: &str, vcpus: u32, isolation: IsolationScope) -> Request {
    let vm = VmRequest::from_vcpus(VcpuCount::Exactly(vcpus));
    Request { isolation, ..Request::from_vnodes(vec![VnodeRequest::vm(name, vm)]) }
}

fn arrival(name: &str, strategy: &str, vcpus: u32) -> Change {
    let request = request(name, vcpus, IsolationScope::Host);
    Change::Arrival { strategy: strategy.to_owned(), request }
}

fn added(vnode: &str, vcpu: u32) -> Change {
    Change::Added { vnode: vnode.to_owned(), role: Role::Vcpu(vcpu) }
}

/// The placements after a change, and its effect.
#[derive(Debug)]
struct After {
    placements: Placements,
    moves: Vec<Move>,
    findings: Vec<Finding>,
}

fn replan(host: &Topology, before: &Placements, change: &Change) -> Result<After, ReplanError> {
    let mut placements = before.clone();
    let effect = replan::replan(host, &mut placements, change);
    assert!(effect.is_ok() || placements == *before, "{change:?}: {}", pins(&placements));
    let Replan { moves, findings, .. } = effect?;
    Ok(After { placements, moves, findings })
}

/// The placements after some changes, each without a move.
fn after(topology: &Topology, changes: &[Change]) -> Placements {
    let mut placements = Placements::default();
    for change in changes {
        placements = replan(topology, &placements, change).unwrap().placements;
    }
    placements
}

fn without(topology: &Topology, gone: &str) -> Topology {
    let allowed = topology.allowed.difference(&set(gone));
    Topology { allowed, ..topology.clone() }
}

fn pins(placements: &Placements) -> String {
    let lines = placements.plans.iter().map(|plan| {
        let name = plan.vnodes.iter().map(|vnode| vnode.name.as_str()).collect::<Vec<_>>();
        format!("{} {} [{}]", name.join("+"), pinfold_model::describe_pins(plan), plan.exclusive)
    });
    lines.collect::<Vec<_>>().join("; ")
}

#[track_caller]
fn moves(found: &After, expected: &str) {
    assert_eq!(
        found
            .moves
            .iter()
            .map(|one: &Move| format!("{} {}: {} to {}", one.vnode, one.role, one.from, one.to))
            .collect::<Vec<_>>()
            .join("; "),
        expected
    );
}

#[test]
fn an_added_vcpu_gets_the_nearest_free_cpu_and_a_removed_one_gives_it_back() {
    let host = machine::two_complexes().build();
    let before = after(&host, &[arrival("a", "low-latency", 2), arrival("b", "balanced", 2)]);
    let more = replan(&host, &before, &added("a", 2)).unwrap();
    moves(&more, "");
    let [a, b] = more.placements.plans.as_slice() else { panic!("two plans") };
    assert_eq!(vcpu_cpus(b), vcpu_cpus(&before.plans[1]));
    let cpus = vcpu_cpus(a);
    assert_eq!((cpus.len(), cpus[2].len()), (3, 1));
    assert!(cpus[2].is_subset(&a.exclusive) && cpus[2].is_disjoint(&b.pus()));
    let l3 = |pus: &CpuSet| host.pus.iter().find(|pu| pus.contains(pu.os)).unwrap().l3;
    assert_eq!(l3(&cpus[2]), l3(&cpus[0]), "in the same L3");
    assert_eq!(a.vnodes[0].guest.as_ref().unwrap().vcpus(), 3);
    let role = Role::Vcpu(2);
    let less = Change::Removed { vnode: "a".to_owned(), role };
    let less = replan(&host, &more.placements, &less).unwrap();
    assert_eq!(pins(&less.placements), pins(&before));
    assert_eq!(less.placements.housekeeping(&host), before.housekeeping(&host));
}

fn vcpu_cpus(plan: &Plan) -> Vec<CpuSet> {
    plan.vnodes[0].vcpus().map(|thread| thread.pus.clone()).collect()
}

/// The mask of a vCPU that is added to the machine whose first one floats over CPUs 0 and 1.
fn mask_of_added(host: &Topology, before: &Placements) -> CpuSet {
    let found = replan(host, before, &added("a", 1)).unwrap();
    let vcpus = vcpu_cpus(&found.placements.plans[0]);
    assert_eq!(vcpus[0], set("0-1"), "the owner's change stays");
    vcpus[1].clone()
}

#[test]
fn an_added_vcpu_that_floats_as_an_older_one_gets_no_cpu_that_others_keep() {
    let host = from_description("numa:1 core:4 pu:1");
    for strategy in ["none", "node-shared", "balanced"] {
        let mut before = Placements::default();
        for (name, strategy) in [("a", strategy), ("b", "balanced"), ("c", "balanced")] {
            let mut plan = plan(strategy, &host, &request(name, 1, IsolationScope::None)).unwrap();
            plan.vnodes[0].threads.iter_mut().for_each(|thread| thread.pus = set("0-1"));
            before.plans.push(plan);
        }
        assert_eq!(mask_of_added(&host, &before), set("0-1"), "{strategy}");
        before.plans[1].exclusive = set("1");
        assert_eq!(mask_of_added(&host, &before), set("0"), "{strategy}");
        before.plans[2].vnodes[0].threads[0].pus = set("0");
        assert_eq!(mask_of_added(&host, &before), set("0-1"), "{strategy}: nothing is left");
        before.plans.truncate(1);
        before.taken = set("0");
        assert_eq!(mask_of_added(&host, &before), set("1"), "{strategy}");
    }
}

#[test]
fn an_added_iothread_runs_where_the_emulator_does() {
    let host = machine::i7_4790k().build();
    let before = after(&host, &[arrival("a", "low-latency", 2)]);
    let role = Role::Iothread("disk".to_owned());
    let change = Change::Added { vnode: "a".to_owned(), role: role.clone() };
    let found = replan(&host, &before, &change).unwrap();
    moves(&found, "");
    let vnode = &found.placements.plans[0].vnodes[0];
    let place = vnode.threads.iter().position(|thread| thread.role == role).unwrap();
    assert_eq!(vnode.threads[place].pus, vnode.thread(&Role::Emulator).unwrap().pus);
    let gone = replan(&host, &found.placements, &Change::Removed { vnode: "a".to_owned(), role });
    assert_eq!(
        gone.unwrap().placements.plans[0].vnodes[0].threads,
        before.plans[0].vnodes[0].threads
    );
}

#[test]
fn only_the_vcpu_of_an_offline_cpu_moves_and_it_stays_when_the_cpu_returns() {
    let host = from_description("numa:1 core:6 pu:1");
    let before = after(&host, &[arrival("a", "balanced", 2), arrival("b", "balanced", 2)]);
    let pin = before.plans[0].vnodes[0].vcpus().next().unwrap().pus.clone();
    let fewer = without(&host, &pin.to_string());
    let found = replan(&fewer, &before, &Change::Host).unwrap();
    assert_eq!(found.moves.len(), 1, "{:?}", found.moves);
    assert_eq!((found.moves[0].vnode.as_str(), &found.moves[0].from), ("a", &pin));
    assert_eq!(found.findings, []);
    let back = replan(&host, &found.placements, &Change::Host).unwrap();
    moves(&back, "");
}

#[test]
fn a_vcpu_without_a_free_cpu_shares_until_one_is_free() {
    let host = from_description("numa:1 core:4 pu:1");
    let before = after(&host, &[arrival("a", "balanced", 2), arrival("b", "balanced", 1)]);
    let found = replan(&host, &before, &added("b", 1)).unwrap();
    assert_eq!(found.findings.len(), 1, "{:?}", found.findings);
    assert_eq!(found.findings[0].subject, "degraded");
    let freed = Change::Departure { vnode: "a".to_owned() };
    let healed = replan(&host, &found.placements, &freed).unwrap();
    assert_eq!(healed.findings, []);
    assert_eq!(healed.moves.len(), 1);
    assert_eq!((healed.moves[0].vnode.as_str(), &healed.moves[0].role), ("b", &Role::Vcpu(1)));
}

#[test]
fn one_vcpu_moves_to_make_a_core_free() {
    let host = from_description("numa:1 core:4 pu:2");
    let mut before = after(&host, &[arrival("a", "low-latency", 1)]);
    // Two machines that need a CPU each are on half of a core.
    for (name, cpu) in [("b", "4"), ("c", "6")] {
        let mut plan = plan("balanced", &host, &request(name, 1, IsolationScope::Host)).unwrap();
        plan.vnodes[0].threads.iter_mut().for_each(|thread| thread.pus = set("0-1"));
        plan.vnodes[0].threads[0].pus = set(cpu);
        (plan.exclusive, plan.housekeeping) = (set(cpu), set("0-1"));
        before.plans.push(plan);
    }
    let found = replan(&host, &before, &added("a", 1)).unwrap();
    assert_eq!((found.moves.len(), found.findings.len()), (1, 0), "{}", pins(&found.placements));
}

#[test]
fn the_host_keeps_a_cpu_when_its_own_go_offline() {
    let host = from_description("numa:1 core:4 pu:1");
    let before = after(&host, &[arrival("a", "low-latency", 3)]);
    let fewer = without(&host, &before.housekeeping(&host).to_string());
    let found = replan(&fewer, &before, &Change::Host).unwrap();
    assert_eq!(found.placements.housekeeping(&fewer).len(), 1);
    assert_eq!(found.findings.len(), 1);
}

#[test]
fn cpus_that_another_owner_takes_are_left() {
    let host = from_description("numa:1 core:6 pu:1");
    let mut before = after(&host, &[arrival("a", "balanced", 2)]);
    let pin = before.plans[0].vnodes[0].vcpus().next().unwrap().pus.clone();
    before.taken = pin.clone();
    let found = replan(&host, &before, &Change::Host).unwrap();
    assert_eq!(found.moves.iter().filter(|one| one.role == Role::Vcpu(0)).count(), 1);
    assert!(found.placements.plans[0].pus().is_disjoint(&pin));
}

#[test]
fn what_is_not_there_is_an_error() {
    let host = from_description("numa:1 core:4 pu:1");
    let placements = after(&host, &[arrival("a", "balanced", 1)]);
    let gone = Change::Departure { vnode: "b".to_owned() };
    let error = replan(&host, &placements, &gone).unwrap_err();
    assert_eq!(error, ReplanError::NotPlaced("b".to_owned()));
    let error = replan(&host, &placements, &arrival("a", "balanced", 1)).unwrap_err();
    assert_eq!(error.to_string(), "a is placed already");
    let role = Role::Vcpu(7);
    let error = replan(&host, &placements, &Change::Removed { vnode: "a".to_owned(), role });
    assert_eq!(error.unwrap_err().to_string(), "the plan of a has no vcpu(7)");
}

/// Random numbers, the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(self.0 >> 33).unwrap() % limit.max(1)
    }
}

/// No exclusive CPU is used twice, each thread has available CPUs, and the host's tasks have one.
#[track_caller]
fn keeps_the_rules(host: &Topology, placements: &Placements, context: &str) {
    let shown = pins(placements);
    assert!(!placements.housekeeping(host).is_empty(), "{context}: no housekeeping: {shown}");
    for (place, plan) in placements.plans.iter().enumerate() {
        assert!(!plan.housekeeping.is_empty(), "{context}: {shown}");
        assert!(plan.housekeeping.is_disjoint(&plan.exclusive), "{context}: {shown}");
        for (vnode, thread) in plan.threads() {
            let within = !thread.pus.is_empty() && thread.pus.is_subset(&host.allowed);
            assert!(within, "{context}: {} {} is on {}", vnode.name, thread.role, thread.pus);
        }
        for other in &placements.plans[place + 1..] {
            let twice = plan.exclusive.intersection(&other.pus());
            let reverse = other.exclusive.intersection(&plan.pus());
            let all = twice.union(&reverse).union(&plan.exclusive.intersection(&other.exclusive));
            assert!(all.is_empty(), "{context}: {all} is used twice: {shown}");
        }
        if !plan.exclusive.is_empty() {
            own_cpus_once(plan, context);
        }
    }
}

fn own_cpus_once(plan: &Plan, context: &str) {
    let mut seen = CpuSet::new();
    for (vnode, thread) in plan.threads() {
        if thread.role.is_vcpu() && !is_degraded(thread) {
            let is_new = thread.pus.is_disjoint(&seen);
            assert!(is_new, "{context}: {} {} shares {}", vnode.name, thread.role, thread.pus);
            seen.add(&thread.pus);
        }
    }
}

const STRATEGIES: [&str; 5] =
    ["low-latency", "balanced", "l3-exclusive", "numa-exclusive", "max-performance"];

/// The kind of a change. [`random_change`] makes each of them.
fn kind_of(change: &Change) -> &'static str {
    match change {
        Change::Arrival { .. } => "arrival",
        Change::Departure { .. } => "departure",
        Change::Added { .. } => "added",
        Change::Removed { .. } => "removed",
        Change::Host => "host",
    }
}

/// One random change; the topology changes with it if CPUs go offline or return.
fn random_change(
    numbers: &mut Numbers,
    whole: &Topology,
    host: &mut Topology,
    placements: &Placements,
    number: usize,
) -> Change {
    let plans = &placements.plans;
    let vnode = plans.get(numbers.below(plans.len())).map(|plan| &plan.vnodes[0]);
    match (numbers.below(10), vnode) {
        (0..=1, Some(vnode)) => Change::Departure { vnode: vnode.name.clone() },
        (2..=3, Some(vnode)) => added(&vnode.name, u32::try_from(vnode.vcpus().count()).unwrap()),
        (4, Some(vnode)) if vnode.vcpus().count() > 1 => {
            let role = vnode.vcpus().last().unwrap().role.clone();
            Change::Removed { vnode: vnode.name.clone(), role }
        }
        (5, Some(vnode)) => {
            let role = Role::Iothread(format!("io{number}"));
            Change::Added { vnode: vnode.name.clone(), role }
        }
        (6..=7, Some(_)) => {
            let gone = whole.allowed.difference(&host.allowed);
            let all: Vec<PuId> = whole.allowed.iter().collect();
            let cpu = all[numbers.below(all.len())];
            if gone.len() > 2 || gone.contains(cpu) {
                host.allowed.clone_from(&whole.allowed);
            } else {
                host.allowed.remove(cpu);
            }
            Change::Host
        }
        (_, _) => {
            let strategy = STRATEGIES[numbers.below(STRATEGIES.len())];
            let vcpus = u32::try_from(1 + numbers.below(6)).unwrap();
            arrival(&format!("vm{number}"), strategy, vcpus)
        }
    }
}

#[test]
fn a_thousand_random_changes_of_four_hosts_keep_the_rules() {
    let names =
        ["i7-4790k.synthetic", "epyc-7373x.xml", "e5-2670-dual.synthetic", "epyc-7702p.synthetic"];
    for (seed, name) in names.into_iter().enumerate() {
        let (_, whole) = read(name.to_owned());
        let mut host = whole.clone();
        let mut numbers = Numbers(seed as u64 + 1);
        let (mut placements, mut kinds) = (Placements::default(), BTreeSet::new());
        for number in 0..1000 {
            let before = host.allowed.clone();
            let change = random_change(&mut numbers, &whole, &mut host, &placements, number);
            let context = format!("{name}, {number}: {change:?}");
            kinds.insert(kind_of(&change));
            let found = match replan(&host, &placements, &change) {
                Ok(found) => found,
                Err(ReplanError::Arrival(_)) => continue,
                Err(error) => panic!("{context}: {error}"),
            };
            keeps_the_rules(&host, &found.placements, &context);
            moves_are_needed(&placements, &found, &before.difference(&host.allowed), &context);
            placements = found.placements;
        }
        assert_eq!(kinds.len(), 5, "{name}: {kinds:?}");
        assert!(placements.plans.len() > 1, "{name}: {}", pins(&placements));
    }
}

/// A thread moves off a lost CPU, or from CPUs that it shared. In addition one for each vCPU that
/// had none, to make room.
fn moves_are_needed(before: &Placements, found: &After, lost: &CpuSet, context: &str) {
    let mut is_forced = Vec::new();
    for one in &found.moves {
        let plan = before.plans.iter().find(|plan| plan.vnodes[0].name == one.vnode).unwrap();
        let old = plan.vnodes[0].thread(&one.role).unwrap();
        is_forced.push(one.from.is_subset(lost) || is_degraded(old));
    }
    let forced = is_forced.iter().filter(|forced| **forced).count();
    // One more for the added vCPU, and one for the host's last CPU.
    assert!(found.moves.len() <= 2 * (forced + 1) + lost.len(), "{context}: {:?}", found.moves);
    // The most that a core has.
    if lost.is_empty() && forced == 0 {
        assert!(found.moves.len() <= 2, "{context}: {:?}", found.moves);
    }
}

fn is_degraded(thread: &ThreadPlan) -> bool {
    thread.reason.starts_with("no CPU is free")
}

/// A vCPU in the search for the least moves.
struct Item {
    needs_core: bool,
    /// Its CPU before; `None` if it shared or is new.
    before: Option<PuId>,
    is_new: bool,
}

/// The search over all placements for the smallest numbers of vCPUs without their unit, and of
/// moves.
struct Search<'t> {
    host: &'t Topology,
    items: Vec<Item>,
    /// The CPUs that no vCPU may use: those where threads of other kinds have their home.
    closed: CpuSet,
    /// Those of them that are exclusive.
    reserved: CpuSet,
    /// No CPU is left for the host's tasks.
    needs_housekeeping: bool,
    best: (usize, usize),
}

impl Search<'_> {
    fn core(&self, cpu: PuId) -> CpuSet {
        let core = self.host.cores.iter().find(|core| core.pus.contains(cpu)).unwrap();
        core.pus.intersection(&self.host.allowed)
    }

    fn try_all(&mut self, place: usize, pins: &mut Vec<Option<PuId>>, cost: (usize, usize)) {
        if cost >= self.best {
            return;
        }
        if place == self.items.len() {
            if self.is_valid(pins) {
                self.best = cost;
            }
            return;
        }
        let Item { before, is_new, needs_core } = self.items[place];
        // A vCPU with a core does not move for another vCPU.
        let stays = before.filter(|cpu| needs_core && self.host.allowed.contains(*cpu));
        let open = match stays {
            Some(cpu) => CpuSet::single(cpu),
            None => self.host.allowed.difference(&self.closed),
        };
        let none = (stays.is_none() || self.needs_housekeeping).then_some(None);
        let choices: Vec<Option<PuId>> = open.iter().map(Some).chain(none).collect();
        for choice in choices {
            if choice.is_some() && pins.contains(&choice) {
                continue;
            }
            let moved = usize::from(choice != before && !is_new);
            let cost = (cost.0 + usize::from(choice.is_none()), cost.1 + moved);
            pins.push(choice);
            self.try_all(place + 1, pins, cost);
            pins.pop();
        }
    }

    fn is_valid(&self, pins: &[Option<PuId>]) -> bool {
        let mut exclusive = self.reserved.clone();
        for (item, pin) in self.items.iter().zip(pins) {
            let Some(pin) = pin else { continue };
            let unit = if item.needs_core { self.core(*pin) } else { CpuSet::single(*pin) };
            if item.needs_core {
                let others = pins.iter().flatten().filter(|other| *other != pin);
                if others.clone().any(|other| unit.contains(*other))
                    || !unit.is_disjoint(&self.closed)
                {
                    return false;
                }
            }
            exclusive.add(&unit);
        }
        !self.host.allowed.is_subset(&exclusive)
    }
}

fn units(placements: &Placements) -> Vec<(String, Role, bool, Option<PuId>)> {
    let mut found = Vec::new();
    let floating = ["none", "node-shared"];
    let plans = placements.plans.iter();
    for plan in plans.filter(|plan| !floating.contains(&plan.strategy.as_str())) {
        for (vnode, thread) in plan.threads().filter(|(_, thread)| thread.role.is_vcpu()) {
            let pin = thread.pus.first().filter(|_| thread.pus.len() == 1 && !is_degraded(thread));
            let needs_core = plan.strategy == "low-latency";
            found.push((vnode.name.clone(), thread.role.clone(), needs_core, pin));
        }
    }
    found
}

/// Compares one change with the best of all placements.
fn compare(host: &Topology, before: &Placements, found: &After, context: &str) {
    let (old, new) = (units(before), units(&found.placements));
    let items = new.iter().map(|(name, role, needs_core, _)| {
        let known = old.iter().find(|one| one.0 == *name && one.1 == *role);
        Item {
            needs_core: *needs_core,
            before: known.and_then(|one| one.3),
            is_new: known.is_none(),
        }
    });
    let items: Vec<Item> = items.collect();
    let (mut closed, mut reserved) = (CpuSet::new(), CpuSet::new());
    for plan in &found.placements.plans {
        let vcpus = plan.threads().filter(|(_, thread)| thread.role.is_vcpu());
        let pins = vcpus.filter(|(_, thread)| !is_degraded(thread));
        let pins = pins.map(|(_, thread)| &thread.pus).collect::<CpuSet>();
        for (_, thread) in plan.threads() {
            let is_home = !thread.role.is_vcpu() && thread.pus.len() <= 2;
            if is_home && !(plan.strategy == "low-latency" && thread.pus.is_subset(&plan.exclusive))
            {
                closed.add(&thread.pus.difference(&pins));
            }
        }
        if plan.strategy != "low-latency" {
            closed.add(&plan.exclusive.difference(&pins));
            reserved.add(&plan.exclusive.difference(&pins));
        }
    }
    let ours = (
        new.iter().filter(|one| one.3.is_none()).count(),
        new.iter().zip(&items).filter(|(one, item)| !item.is_new && one.3 != item.before).count(),
    );
    let limit = (ours.0, ours.1 + 1);
    let needs_housekeeping = before.housekeeping(host).is_empty();
    let mut search = Search { host, items, closed, reserved, needs_housekeeping, best: limit };
    search.try_all(0, &mut Vec::new(), (0, 0));
    let least = search.best;
    let shown = format!("{} became {}", pins(before), pins(&found.placements));
    assert_eq!(ours.0, least.0, "{context}: vCPUs without a CPU: {shown}");
    assert!(
        ours.1 <= least.1 + 1,
        "{context}: {} moves, {} are possible: {shown}",
        ours.1,
        least.1
    );
}

#[test]
fn at_most_one_move_more_than_the_least_possible() {
    let mut compared = 0;
    for (seed, description) in
        (1..=60).flat_map(|seed| ["core:4 pu:2", "numa:2 core:3 pu:1"].map(|host| (seed, host)))
    {
        let whole = from_description(description);
        let mut numbers = Numbers(seed);
        let mut placements = Placements::default();
        for number in 0..6 {
            let strategy = ["low-latency", "balanced"][numbers.below(2)];
            let vcpus = u32::try_from(1 + numbers.below(2)).unwrap();
            let vnode = placements.plans.last().map(|plan| plan.vnodes[0].clone());
            let change = match (numbers.below(4), vnode) {
                (0, Some(vnode)) => {
                    added(&vnode.name, u32::try_from(vnode.vcpus().count()).unwrap())
                }
                (1, Some(vnode)) if number > 2 => Change::Departure { vnode: vnode.name.clone() },
                (_, _) => arrival(&format!("vm{number}"), strategy, vcpus),
            };
            let context = format!("{description}, {seed}, {number}: {change:?}");
            let Ok(found) = replan(&whole, &placements, &change) else { continue };
            compare(&whole, &placements, &found, &context);
            placements = found.placements;
            let cpu = PuId(u32::try_from(numbers.below(whole.pus.len())).unwrap());
            let fewer = without(&whole, &cpu.to_string());
            let found = replan(&fewer, &placements, &Change::Host).unwrap();
            compare(&fewer, &placements, &found, &format!("{context}; without {cpu}"));
            compared += 2;
        }
    }
    assert!(compared > 400, "{compared}");
}
