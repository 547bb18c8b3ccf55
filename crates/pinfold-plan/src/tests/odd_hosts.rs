//! Hosts that differ from the sources: no SMT, hybrid, many L3s, isolated, offline, sparse.

use pinfold_samples::machine::{Machine, Place, i7_4790k, plain, r910, two_complexes};
use pinfold_samples::{auto, emulator, exactly, finds, pins, set, shape};

use crate::plan;

/// `strategy` with `vcpus` vCPUs (0 means auto) gives these pins, emulator CPUs and topology.
#[track_caller]
fn check(machine: &Machine, strategy: &str, vcpus: u32, expected: [&str; 3]) {
    let request = if vcpus == 0 { auto() } else { exactly(vcpus) };
    let layout = plan(strategy, &machine.build(), &request).unwrap();
    assert_eq!([pins(&layout), emulator(&layout), shape(&layout)], expected, "{strategy} {vcpus}");
}

#[test]
fn without_smt() {
    check(&plain(4), "low-latency", 0, ["1,2,3", "0", "1×3×1"]);
    check(&plain(4), "balanced", 0, ["1,2,3", "0", "1×3×1"]);
    check(&plain(4), "max-performance", 0, ["0,1,2,3", "0-3", "1×4×1"]);
    check(&plain(2), "low-latency", 1, ["1", "0", "1×1×1"]);
    let layout = plan("low-latency", &plain(4).build(), &auto()).unwrap();
    assert!(finds(&layout, "smt", "shares CPUs with the host's tasks"));
    assert!(finds(&plan("balanced", &plain(4).build(), &auto()).unwrap(), "smt", "no SMT"));
}

#[test]
fn wide_smt() {
    let power = Machine::new([1, 1, 1, 3, 4], |place| 4 * place.core + place.thread);
    check(&power, "low-latency", 0, ["4,8", "5-7,9-11", "1×2×1"]);
    check(&power, "balanced", 0, ["4,5,6,7,8,9,10,11", "0-3", "1×2×4"]);
    check(&power, "balanced", 4, ["4,5,6,7", "0-3,8-11", "1×1×4"]);
}

#[test]
fn numbers_of_vcpus_that_do_not_fill_cores() {
    check(&i7_4790k(), "balanced", 5, ["1,5,2,6,3", "0,4", "1×5×1"]);
    let layout = plan("balanced", &i7_4790k().build(), &exactly(5)).unwrap();
    assert!(finds(&layout, "guest topology", "core 3 has fewer"));
    assert!(finds(&layout, "smt", "CPU 7 stays idle"));
    assert_eq!(layout.exclusive, set("1-3,5-7"));
    check(&i7_4790k(), "max-performance", 3, ["0,1,2", "3-7", "1×3×1"]);
    check(&i7_4790k(), "balanced", 1, ["1", "0,2-4,6-7", "1×1×1"]);
}

#[test]
fn cores_that_are_not_needed_stay_with_the_host() {
    let layout = plan("low-latency", &i7_4790k().build(), &exactly(2)).unwrap();
    assert_eq!([pins(&layout), emulator(&layout)], ["1,2", "5-6"]);
    assert_eq!(layout.housekeeping, set("0,3,4,7"));
    assert_eq!(layout.exclusive, set("1,2,5,6"));
}

#[test]
fn the_nearest_cores_and_away_from_the_host_where_both_can_be_had() {
    check(&two_complexes(), "low-latency", 3, ["4,5,6", "12-14", "1×3×1"]);
    check(&two_complexes(), "low-latency", 4, ["4,5,6,7", "12-15", "1×4×1"]);
    check(&two_complexes(), "low-latency", 5, ["1,4,5,6,7", "9,12-15", "1×5×1"]);
    check(&two_complexes(), "balanced", 8, ["4,12,5,13,6,14,7,15", "0-3,8-11", "1×4×2"]);
    check(&r910(), "low-latency", 4, ["1,5,9,13", "17,21,25,29", "1×4×1"]);
    check(
        &r910(),
        "balanced",
        16,
        [
            "1,17,5,21,9,25,13,29,2,18,6,22,10,26,14,30",
            "0,3-4,7-8,11-12,15-16,19-20,23-24,27-28,31",
            "2×4×2",
        ],
    );
    let crossing = plan("low-latency", &two_complexes().build(), &exactly(5)).unwrap();
    assert!(finds(&crossing, "L3", "2 L3 domains (0, 1)"));
    let far = plan("balanced", &r910().build(), &exactly(16)).unwrap();
    assert!(finds(&far, "NUMA", "2 NUMA nodes (1, 2)"));
}

#[test]
fn a_package_that_gives_fewer_cores_leaves_one_socket() {
    let layout = plan("low-latency", &r910().build(), &auto()).unwrap();
    assert_eq!(shape(&layout), "1×15×1");
    assert!(
        layout.vnodes[0].guest.as_ref().unwrap().reason.contains("do not have the same number")
    );
}

#[test]
fn hybrid_cores_are_not_mixed_unless_asked() {
    let hybrid = Machine::hybrid(4, 8);
    check(&hybrid, "low-latency", 0, ["0,2,4,6", "8-15", "1×4×1"]);
    check(&hybrid, "balanced", 0, ["0,1,2,3,4,5,6,7", "8-15", "1×4×2"]);
    let layout = plan("low-latency", &hybrid.build(), &auto()).unwrap();
    assert_eq!(layout.housekeeping, set("8-15"));
    assert!(layout.housekeeping_reason.contains("one of the efficiency cores"));
    assert!(!finds(&layout, "core kinds", ""));
    assert!(finds(&layout, "boot CPU", "the kernel boots on CPU 0"));
    // The boot core is used last.
    check(&hybrid, "low-latency", 3, ["2,4,6", "8-15", "1×3×1"]);
    check(&hybrid, "balanced", 6, ["2,3,4,5,6,7", "8-15", "1×3×2"]);
    // A kind that has room for all vCPUs is preferred to a mixture; the host's core is moved if
    // that helps.
    check(&hybrid, "low-latency", 7, ["9,10,11,12,13,14,15", "8", "1×7×1"]);
    check(&hybrid, "low-latency", 8, ["8,9,10,11,12,13,14,15", "0-7", "1×8×1"]);

    check(&hybrid, "balanced", 10, ["0,1,2,3,4,5,6,7,9,10", "8,11-15", "1×10×1"]);
    let mixed = plan("balanced", &hybrid.build(), &exactly(10)).unwrap();
    assert!(finds(&mixed, "core kinds", "2 of 10 vCPUs lie on slower cores"));
    assert!(finds(&mixed, "guest topology", "one thread per core"));
    let mixed = plan("low-latency", &hybrid.build(), &exactly(9)).unwrap();
    assert_eq!(emulator(&mixed), "8,14-15");
    assert!(finds(&mixed, "core kinds", "5 of 9"));
}

#[test]
fn isolated_pus_carry_vcpus_first_and_never_the_host() {
    let machine = i7_4790k().isolated("2,3,6,7");
    // All threads of the emulator would stay on one of the isolated siblings.
    check(&machine, "low-latency", 2, ["2,3", "0-1,4-5", "1×2×1"]);
    check(&machine, "low-latency", 1, ["2", "6", "1×1×1"]);
    let layout = plan("low-latency", &machine.build(), &exactly(2)).unwrap();
    assert_eq!(layout.housekeeping, set("0,1,4,5"));
    assert!(!finds(&layout, "isolated CPUs", ""));
    let mut reasons = layout.vnodes[0].vcpus().map(|vcpu| vcpu.reason.as_str());
    assert!(reasons.all(|reason| reason.contains("chosen because it is isolated")));
    check(&machine, "isolcpus", 5, ["2,6,3,7,1", "0,4", "1×5×1"]);
    let floating = plan("none", &machine.build(), &exactly(1)).unwrap();
    let free = set("0,1,4,5");
    assert_eq!((pins(&floating), &floating.housekeeping), (free.to_string(), &free));
    let mirrored = plan("max-performance", &machine.build(), &auto()).unwrap();
    assert_eq!(
        (pins(&mirrored).as_str(), emulator(&mirrored)),
        ("0,4,1,5,2,6,3,7", free.to_string())
    );
    // The lowest CPU is isolated: the host keeps the lowest one that is not.
    check(&i7_4790k().isolated("0,4"), "balanced", 0, ["0,4,2,6,3,7", "1,5", "1×3×2"]);
    // Half of the host core is isolated: the host has the other half.
    check(&i7_4790k().isolated("4"), "balanced", 0, ["1,5,2,6,3,7", "0", "1×3×2"]);
}

#[test]
fn offline_and_forbidden_siblings() {
    let half = i7_4790k().offline("7");
    check(&half, "balanced", 0, ["1,5,2,6", "0,3-4", "1×2×2"]);
    check(&half, "balanced", 5, ["1,5,2,6,3", "0,4", "1×5×1"]);
    check(&half, "low-latency", 0, ["1,2,3", "5-6", "1×3×1"]);
    let no_smt = i7_4790k().offline("4-7");
    check(&no_smt, "low-latency", 0, ["1,2,3", "0", "1×3×1"]);
    let forbidden = i7_4790k().allowed("0-3");
    check(&forbidden, "low-latency", 0, ["1,2,3", "0", "1×3×1"]);
    let layout = plan("low-latency", &forbidden.build(), &auto()).unwrap();
    assert!(finds(&layout, "smt", "the CPUs 5-7 share cores with vCPUs"));
}

#[test]
fn avoided_pus() {
    let mut request = auto();
    request.avoid = set("0,4,77");
    let layout = plan("low-latency", &i7_4790k().build(), &request).unwrap();
    assert_eq!([pins(&layout), emulator(&layout)], ["2,3", "6-7"]);
    assert_eq!(layout.housekeeping, set("1,5"));
    assert!(layout.housekeeping_reason.contains("the lowest that the host's tasks may use"));
    assert!(finds(&layout, "avoid", "77"));
}

#[test]
fn sparse_numbers_and_machines_without_caches_or_nodes() {
    let machine =
        Machine::new([1, 1, 1, 3, 2], |place: Place| 100 * (place.core + 1) + 7 * place.thread);
    check(&machine, "balanced", 0, ["200,207,300,307", "100,107", "1×2×2"]);
    check(&two_complexes().without_l3_and_nodes(), "low-latency", 2, ["1,2", "9-10", "1×2×1"]);
    let bare =
        plan("low-latency", &two_complexes().without_l3_and_nodes().build(), &auto()).unwrap();
    assert!(bare.vnodes[0].vcpus().all(|vcpu| !vcpu.reason.contains("L3")));
}

#[test]
fn nodes_smaller_than_an_l3() {
    // Sub-NUMA clusters: the L3 is shared by the package, whose halves are the nodes.
    let mut topology = Machine::new([1, 2, 1, 4, 1], |place| 4 * place.node + place.core).build();
    let l3 = topology.l3[0].id;
    topology.pus.iter_mut().for_each(|pu| pu.l3 = Some(l3));
    topology.l3.truncate(1);
    let layout = plan("low-latency", &topology, &exactly(4)).unwrap();
    assert_eq!(pins(&layout), "4,5,6,7");
}

#[test]
fn nodes_without_memory_and_hosts_that_are_guests() {
    let machine = r910().memoryless(1).with_hypervisor("KVM");
    // The first node apart from the host's has no memory, the next one has.
    check(&machine, "low-latency", 4, ["2,6,10,14", "18,22,26,30", "1×4×1"]);
    let layout = plan("scatter", &machine.build(), &exactly(4)).unwrap();
    assert!(finds(&layout, "NUMA", "a node without memory: 1"));
    assert!(finds(&layout, "virtual host", "KVM"));
    let floating = plan("none", &machine.build(), &exactly(4)).unwrap();
    assert!(!finds(&floating, "virtual host", ""));
}

#[test]
fn more_vcpus_than_pus() {
    let layout = plan("compact", &plain(2).build(), &exactly(3)).unwrap();
    assert!(finds(&layout, "oversubscription", "CPU 0"));
    let layout = plan("none", &plain(2).build(), &exactly(3)).unwrap();
    assert!(finds(&layout, "oversubscription", "3 vCPUs float on 2 CPUs"));
    let layout = plan("compact-cores", &i7_4790k().build(), &exactly(5)).unwrap();
    assert_eq!(pins(&layout), "0,1,2,3,0");
    assert!(finds(&layout, "smt", "5 vCPUs share 4 cores"));
}

#[test]
fn the_largest_machines() {
    // 4 packages × 4 nodes × 4 L3 × 16 cores × 2 threads.
    let big = Machine::new([4, 4, 4, 16, 2], |place| {
        let core = ((place.package * 4 + place.node) * 4 + place.l3) * 16 + place.core;
        core + 1024 * place.thread
    });
    let topology = big.build();
    for strategy in ["low-latency", "balanced", "max-performance"] {
        let layout = plan(strategy, &topology, &auto()).unwrap();
        assert_eq!(crate::validate(&layout, &topology), vec![], "{strategy}");
    }
    let most = plan("compact", &topology, &exactly(4096)).unwrap();
    assert_eq!(most.vnodes[0].vcpus().count(), 4096);
    assert!(crate::explain(&most, &topology, 80).contains("several vCPUs share 0-2047"));
}
