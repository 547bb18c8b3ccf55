//! Cgroups with their own CPUs.

use pinfold_sim::{CgroupVersion, SimBuilder};

use super::*;
use crate::owners::tests::{claims_of, found, host};

#[test]
fn groups_are_told_apart_by_their_files() {
    check(Some("member\n"), "0-7", Group::Same);
    check(Some("member\n"), "0-3", Group::Narrowed);
    check(None, "0-3", Group::Narrowed);
    check(None, "", Group::Same);
    check(Some("isolated\n"), "4-7", Group::Partition);
    check(Some("root\n"), "8-9", Group::Partition);
    let why = "Parent is not a partition root";
    check(Some(&format!("root invalid ({why})\n")), "4-7", Group::Refused(why.to_owned()));
}

fn check(partition: Option<&str>, cpus: &str, expected: Group) {
    let cpus = CpuSet::parse_list(cpus).unwrap();
    assert_eq!(Group::parse(partition, &cpus, &CpuSet::first_n(8)), expected, "{partition:?}");
}

/// A v2 hierarchy with these groups: path, CPUs and partition.
fn tree(groups: &[(&str, &str, &str)]) -> pinfold_host::SnapshotHost {
    let root = "/sys/fs/cgroup";
    let mounts = format!("30 23 0:26 / {root} rw - cgroup2 cgroup2 rw\n");
    let mut files = vec![
        ("/proc/self/mountinfo".to_owned(), mounts),
        (format!("{root}/cgroup.controllers"), "cpuset cpu memory\n".to_owned()),
        (format!("{root}/cpuset.cpus.effective"), "0-7\n".to_owned()),
    ];
    for (path, cpus, partition) in groups {
        files.push((format!("{root}{path}/cpuset.cpus.effective"), format!("{cpus}\n")));
        files.push((format!("{root}{path}/cpuset.cpus.partition"), format!("{partition}\n")));
    }
    let files: Vec<(&str, String)> =
        files.iter().map(|(path, text)| (path.as_str(), text.clone())).collect();
    host(8, &files)
}

#[test]
fn partitions_and_narrowed_groups_are_claims() {
    let claims = claims_of(&tree(&[
        ("/rt.slice", "6-7", "isolated"),
        ("/system.slice", "0-3", "member"),
        ("/system.slice/docker-1.scope", "2", "member"),
        ("/user.slice", "0-5", "member"),
        ("/bad.slice", "0-5", "isolated invalid (Cpu list in cpuset.cpus not exclusive)"),
        ("/pinfold-vnode-a", "5", "root"),
    ]));
    assert_eq!(
        found(&claims),
        [
            "rt.slice 6-7 exclusive",
            "system.slice 0-3 shared",
            "docker-1.scope 2 shared",
            "user.slice 0-5 shared",
        ]
    );
    assert!(contains(&claims.all()[0], "/rt.slice/a.service"));
    assert!(!contains(&claims.all()[0], "/rt.slicex"));
    let finding = claims.findings()[0].to_string();
    assert!(finding.contains("/bad.slice") && finding.contains("not exclusive"), "{finding}");
}

#[test]
fn groups_of_a_simulated_host_are_found() {
    let cpus = CpuSet::parse_list("1-2").unwrap();
    for version in [CgroupVersion::V1, CgroupVersion::V2] {
        let host = SimBuilder::new(version, 8).group("/box", cpus.clone(), CpuSet::new()).build();
        assert_eq!(found(&claims_of(&host)), ["box 1-2 shared"], "{version:?}");
    }
}
