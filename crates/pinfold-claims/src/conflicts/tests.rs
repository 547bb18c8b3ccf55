//! CPUs with many owners.

use pinfold_host::SnapshotHost;

use super::*;
use crate::owners::{cpusets::UNIT, kubelet, libvirt, openvswitch, placements};

fn list(text: &str) -> CpuSet {
    CpuSet::parse_list(text).unwrap()
}

#[test]
fn five_thousand_owners_of_a_cpu_are_in_one_warning() {
    let mut claims = Claims::default();
    let source = Source::default();
    for number in 0..5000 {
        let owner = Owner::new(&libvirt::KIND, format!("vm{number}"));
        claims.add(&owner, list("1"), Exclusivity::Dedicated, &source);
        let emulator = Claim::new(&owner, list("0-1"), Exclusivity::Shared, &source);
        claims.push(Claim { bound: list("0"), ..emulator });
    }
    let unit = Claim::new(&Owner::new(&UNIT, "bound"), list("1"), Exclusivity::Shared, &source);
    claims.push(Claim { bound: list("1"), ..unit });
    claims.add(&Owner::new(&UNIT, "moves"), list("0-1"), Exclusivity::Shared, &source);
    let conflicts = claims.used_twice();
    assert_eq!(conflicts.len(), 5000, "one for each owner but the first");
    let users = all_users(&conflicts);
    assert_eq!(users.len(), 1);
    let names: Vec<&str> = users[0].1.iter().map(|owner| owner.name.as_str()).collect();
    assert_eq!((&users[0].0, names.len()), (&list("1"), 5001));
    assert_eq!((names[0], names[4999], names[5000]), ("vm0", "vm4999", "bound"));
    let text = findings(&conflicts)[0].text.clone();
    assert!(text.starts_with("CPU 1 is used by vm0 (libvirt domain), by vm1 "), "{text}");
    let topology = pinfold_topology::read_input(&SnapshotHost::new(), "core:2 pu:1").unwrap();
    assert!(crate::render::claims(&claims, &topology, None).contains(&text));
    let json = crate::schema::to_json(&claims, &list("0-1"));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["used_twice"][0]["owners"].as_array().map(Vec::len), Some(5001));
    assert_eq!(json["cpus"]["used_twice"], "1");
}

fn shared(cpus: &str, users: &[&str]) -> SharedCpus {
    let users = users.iter().map(|user| (*user).to_owned()).collect();
    SharedCpus { cpus: list(cpus), users, processes: vec![Tid(7)], hint: "a hint" }
}

#[test]
fn what_is_resolved_is_past_and_names_its_users() {
    fn check(left: &[SharedCpus], expected: Option<&str>) {
        let found = shared("0-1", &["m1", "m2", "m3"]).resolved(left);
        assert_eq!(found.map(|finding| finding.text).as_deref(), expected, "{left:?}");
    }

    let all = "resolved: the CPUs 0-1 are no longer used by m1, by m2 and by m3 together";
    check(&[], Some(all));
    check(&[shared("0-1", &["m1", "m3"])], Some(all));
    let one = all.replace("the CPUs 0-1 are", "CPU 1 is");
    check(&[shared("0", &["m1", "m2", "m3"]), shared("1", &["m1", "m2"])], Some(&one));
    check(&[shared("0-3", &["m1", "m2", "m3", "m4"])], None);
}

/// A machine with a CPU of its own, on which three others run too, which do not disturb each other.
#[test]
fn the_reports_of_all_users_of_a_cpu_are_merged() {
    let reports = [
        shared("0", &["a", "b", "c", "d"]),
        shared("0", &["b", "a"]),
        shared("0", &["c", "a"]),
        shared("0", &["d", "a"]),
        shared("2-3", &["b", "e"]),
    ];
    let merged = merge_shared(&reports);
    assert_eq!(merged, [shared("0", &["a", "b", "c", "d"]), shared("2-3", &["b", "e"])]);
    assert!(merge_shared(&[]).is_empty());
}

/// Numbers that are the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(self.0 >> 33).unwrap() % limit
    }

    fn cpus(&mut self) -> CpuSet {
        (0..3).filter(|_| self.below(2) == 0).map(pinfold_model::PuId).collect()
    }
}

#[test]
fn each_owner_is_named_with_all_cpus_on_which_another_contradicts_it() {
    let kinds = [&libvirt::KIND, &placements::PLACEMENT, &UNIT, &openvswitch::KIND, &kubelet::POOL];
    let mut numbers = Numbers(1);
    let mut found = 0;
    for case in 0..2000 {
        let mut claims = Claims::default();
        for _ in 0..2 + numbers.below(6) {
            let mut owner = Owner::new(kinds[numbers.below(5)], format!("{}", numbers.below(4)));
            owner.manager = (numbers.below(4) == 0).then_some(&kubelet::POOL);
            let exclusivity = [Exclusivity::Exclusive, Exclusivity::Dedicated, Exclusivity::Shared];
            let exclusivity = exclusivity[numbers.below(3)];
            let claim = Claim::new(&owner, numbers.cpus(), exclusivity, &Source::default());
            let bound = numbers.cpus().intersection(&claim.cpus);
            claims.push(Claim { bound, ..claim });
        }
        let mut expected: BTreeMap<String, CpuSet> = BTreeMap::new();
        let bound = claims.with_bound_threads();
        let all = bound.all();
        for (place, first) in all.iter().enumerate() {
            for second in &all[place + 1..] {
                let shared = [first, second].iter().all(|one| !one.exclusivity.is_exclusive());
                let cpus = first.cpus.intersection(&second.cpus);
                let twice = contradiction(first, second, &cpus);
                for one in [first, second] {
                    if !shared && !twice.is_empty() {
                        expected.entry(format!("{:?}", one.owner)).or_default().add(&twice);
                    }
                }
            }
        }
        let mut named: BTreeMap<String, CpuSet> = BTreeMap::new();
        for Conflict { cpus, first, second } in claims.used_twice() {
            for owner in [first, second] {
                named.entry(format!("{owner:?}")).or_default().add(&cpus);
            }
        }
        found += named.len();
        assert_eq!(named, expected, "{case}: {claims:#?}");
    }
    assert!(found > 2000, "{found}");
}

#[test]
fn a_thread_of_a_machine_that_has_only_cpus_of_others_is_in_conflict_with_them() {
    let source = Source::default();
    let owner = |name: &str| Owner::new(&placements::PLACEMENT, name);
    let cpus = |list: &str| CpuSet::parse_list(list).unwrap();
    let mut claims = Claims::default();
    claims.add(&owner("a"), cpus("16-17"), Exclusivity::Dedicated, &source);
    claims.add(&owner("b"), cpus("16-18"), Exclusivity::Shared, &source);
    assert!(claims.used_twice().is_empty(), "it may run on 18");
    claims.add(&owner("b"), cpus("18"), Exclusivity::Dedicated, &source);
    assert!(claims.used_twice().is_empty(), "18 is its own");
    claims.add(&owner("c"), cpus("16-17"), Exclusivity::Shared, &source);
    let twice = claims.used_twice();
    let [Conflict { cpus: shared, .. }] = twice.as_slice() else { panic!("{twice:?}") };
    assert_eq!(*shared, cpus("16-17"));
}
