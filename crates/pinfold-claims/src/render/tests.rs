//! The text of claims.

use pinfold_host::SnapshotHost;

use super::*;
use crate::Source;
use crate::owners::{cpusets::UNIT, libvirt, openvswitch};

fn topology(text: &str) -> Topology {
    pinfold_topology::read_input(&SnapshotHost::new(), text).unwrap()
}

fn list(text: &str) -> CpuSet {
    CpuSet::parse_list(text).unwrap()
}

fn sample() -> Claims {
    let mut claims = Claims::default();
    let source = Source::file("/run/libvirt/qemu/web.xml", Some(12));
    let web = Owner::new(&libvirt::KIND, "web");
    claims.add(&web, list("1-2"), Exclusivity::Dedicated, &source);
    let vswitch = Owner::new(&openvswitch::KIND, "Open vSwitch poll-mode threads");
    claims.add(&vswitch, list("2-3"), Exclusivity::Exclusive, &Source::default());
    let unit = Owner::new(&UNIT, "system.slice");
    claims.add(&unit, list("0"), Exclusivity::Shared, &Source::unit("/system.slice"));
    claims
}

#[test]
fn the_machine_is_shown_with_the_owners() {
    let expected = "\
8 CPUs: 3 owned, 1 shared, 4 free; 1 used twice: 2

package 0, node 0
  L3 0 (CPUs 0-3)
    CPU 0 (core 0): system.slice (cgroup), shared
    CPU 1 (core 0): web (libvirt domain)
    CPU 2 (core 1): used twice: web (libvirt domain); Open vSwitch poll-mode
      threads
    CPU 3 (core 1): Open vSwitch poll-mode threads
  L3 1 (CPUs 4-7)
    CPUs 4-7 (cores 2-3): free

owners
  web (libvirt domain): CPUs 1-2 exclusive; /run/libvirt/qemu/web.xml, line 12
  Open vSwitch poll-mode threads: CPUs 2-3 exclusive
  system.slice (cgroup): CPU 0 shared; cgroup /system.slice

warning: cpu-used-twice: CPU 2 is used by web (libvirt domain) and by Open
  vSwitch poll-mode threads, and at least one of them should have it alone (give
  one of them other CPUs; `pinfold claims` shows where they are set)";
    let topology = topology("package:1 numa:1 l3:2 core:2 pu:2");
    assert_eq!(super::claims(&sample(), &topology, Some(80)), expected);
    // Without a terminal each entry is one line.
    assert!(
        super::claims(&sample(), &topology, None)
            .contains("domain); Open vSwitch poll-mode threads\n")
    );
    assert_eq!(
        short(&sample(), &topology),
        "8 CPUs: 3 owned, 1 shared, 4 free; 1 used twice: 2 (2 by web (libvirt domain), 2 by Open \
         vSwitch poll-mode threads)"
    );
}

#[test]
fn json_and_captures_keep_the_cpus() {
    let topology = topology("package:1 numa:1 l3:2 core:2 pu:2");
    let text = crate::schema::to_json(&sample(), &topology.online());
    assert_eq!(crate::schema::from_json(&text).unwrap(), sample());
    let entry = crate::for_capture(&sample(), &topology.online());
    let mut capture = SnapshotHost::new();
    capture.insert_file(&pinfold_host::paths::captured_claims(), entry.clone());
    let captured = crate::read_captured(&capture);
    for name in ["web", "system.slice", "/run"] {
        assert!(!entry.contains(&format!("\"{name}\"")), "{entry}");
    }
    let cpus = |claims: &Claims| -> Vec<_> {
        claims.all().iter().map(|one| (one.cpus.clone(), one.exclusivity, one.owner.kind)).collect()
    };
    assert_eq!(cpus(&captured), cpus(&sample()));
    assert_eq!(captured.usage(&topology.online()), sample().usage(&topology.online()));
    capture.insert_file(&pinfold_host::paths::captured_claims(), "{}");
    assert_eq!(crate::read_captured(&capture).findings().len(), 1);
}
