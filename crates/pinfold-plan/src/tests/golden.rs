//! The strategies against the layouts that their sources give, to the character.

use pinfold_model::{IsolationScope, Request, Role, VcpuCount};

use super::machine::{Machine, i7_4790k, plain, r910, r910_without_smt};
use super::{auto, emulator, exactly, pins, set, shape};
use crate::plan;

#[test]
fn badaroux_compact_on_the_r910() {
    let layout = plan("compact", &r910().build(), &exactly(34)).unwrap();
    assert_eq!(
        pins(&layout),
        "0,16,4,20,8,24,12,28,1,17,5,21,9,25,13,29,2,18,6,22,10,26,14,30,3,19,7,23,11,27,15,31,0,16"
    );
    assert_eq!(shape(&layout), "1×34×1", "vCPUs that share a PU have no shape");
    assert_eq!(shape(&plan("compact", &r910().build(), &exactly(32)).unwrap()), "4×4×2");
}

#[test]
fn badaroux_compact_cores_on_the_r910() {
    let order = "0,4,8,12,1,5,9,13,2,6,10,14,3,7,11,15,0";
    for machine in [r910(), r910_without_smt()] {
        let layout = plan("compact-cores", &machine.build(), &exactly(17)).unwrap();
        assert_eq!(pins(&layout), order);
    }
    assert_eq!(shape(&plan("compact-cores", &r910().build(), &auto()).unwrap()), "4×4×1");
}

#[test]
fn lindroth_on_the_i7_4790k() {
    let check =
        |strategy: &str, vcpus: &str, emulated: &str, guest: &str, host: &str, alone: &str| {
            let layout = plan(strategy, &i7_4790k().build(), &auto()).unwrap();
            assert_eq!(pins(&layout), vcpus, "{strategy}");
            assert_eq!(emulator(&layout), emulated, "{strategy}");
            assert_eq!(shape(&layout), guest, "{strategy}");
            assert_eq!(layout.housekeeping.to_string(), host, "{strategy}");
            assert_eq!(layout.exclusive.to_string(), alone, "{strategy}");
        };
    check("low-latency", "1,2,3", "5-7", "1×3×1", "0,4", "1-3,5-7");
    check("balanced", "1,5,2,6,3,7", "0,4", "1×3×2", "0,4", "1-3,5-7");
    check("max-performance", "0,4,1,5,2,6,3,7", "0-7", "1×4×2", "0-7", "");
}

#[test]
fn automatic_numbers_of_vcpus() {
    let check = |machine: Machine, expected: [usize; 6]| {
        let topology = machine.build();
        let names =
            ["none", "compact", "compact-cores", "low-latency", "balanced", "max-performance"];
        let counts =
            names.map(|name| plan(name, &topology, &auto()).unwrap().vnode.vcpus().count());
        assert_eq!(counts, expected);
    };
    check(i7_4790k(), [8, 8, 4, 3, 6, 8]);
    check(i7_4790k().allowed("0-2,4-6"), [6, 6, 3, 2, 4, 6]);
    check(r910(), [32, 32, 16, 15, 30, 32]);
    check(plain(2), [2, 2, 2, 1, 1, 2]);
    check(Machine::hybrid(4, 8), [16, 16, 12, 3, 6, 16]);
}

#[test]
fn none_lets_all_float() {
    let layout = plan("none", &i7_4790k().build(), &exactly(2)).unwrap();
    assert_eq!(pins(&layout), "0-7,0-7");
    assert_eq!((emulator(&layout).as_str(), shape(&layout).as_str()), ("0-7", "1×2×1"));
    assert_eq!((layout.housekeeping, layout.exclusive), (set("0-7"), set("")));
}

#[test]
fn iothreads_follow_the_emulator_with_a_reason_of_their_own() {
    let check = |strategy: &str, pus: &str| {
        let mut request = auto();
        request.vm.iothreads = vec!["disk".to_owned(), "net".to_owned()];
        let layout = plan(strategy, &i7_4790k().build(), &request).unwrap();
        let roles: Vec<&Role> = layout.vnode.threads.iter().map(|thread| &thread.role).collect();
        let last: Vec<&&Role> = roles.iter().rev().take(3).rev().collect();
        let (disk, net) = (Role::Iothread("disk".to_owned()), Role::Iothread("net".to_owned()));
        assert_eq!(last, [&&Role::Emulator, &&disk, &&net]);
        let disk = layout.vnode.thread(&disk).unwrap();
        assert_eq!(disk.pus, set(pus));
        assert!(disk.reason.contains("iothread disk"), "{}", disk.reason);
    };
    check("low-latency", "5-7");
    check("balanced", "0,4");
    check("max-performance", "0-7");
}

#[test]
fn the_scope_none_isolates_nothing() {
    for strategy in ["low-latency", "balanced"] {
        let request = Request::vm("vm", VcpuCount::Auto);
        let layout = plan(strategy, &i7_4790k().build(), &request).unwrap();
        assert_eq!(layout.exclusive, set(""), "{strategy}");
        assert_eq!(layout.housekeeping, set("0-7"), "{strategy}");
        assert_eq!(layout.isolation, IsolationScope::None, "{strategy}");
        assert!(super::finds(&layout, "isolation", "1-3,5-7"), "{strategy}");
    }
}

#[test]
fn every_reason_names_its_place() {
    for strategy in ["compact", "compact-cores", "low-latency", "balanced", "max-performance"] {
        for thread in plan(strategy, &r910().build(), &auto()).unwrap().vnode.vcpus() {
            let pu = thread.pus.first().unwrap();
            let topology = r910().build();
            let place = topology.pu(pu).unwrap();
            let named = [
                format!("PU {pu} "),
                format!("core {}", place.core),
                format!("L3 {}", place.l3.unwrap()),
                format!("node {}", place.node.unwrap()),
                format!("package {}", place.package),
            ];
            for part in named {
                assert!(thread.reason.contains(&part), "{strategy}: {part}: {}", thread.reason);
            }
        }
    }
}
