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
    tree_with(groups, &[])
}

/// The same with more files.
fn tree_with(groups: &[(&str, &str, &str)], more: &[(&str, &str)]) -> pinfold_host::SnapshotHost {
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
    files.extend(more.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())));
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

#[test]
fn a_group_of_pinfold_without_its_journal_has_an_owner() {
    let groups = [("/pinfold-40-7", "4-5", "member"), ("/pinfold-vnode-a", "6", "root")];
    let events = |text| {
        let paths = ["pinfold-40-7", "pinfold-vnode-a"];
        paths.map(|name| (format!("/sys/fs/cgroup/{name}/cgroup.events"), text))
    };
    let of = |text, known: &[Claim]| {
        let files = events(text);
        let files = files.each_ref().map(|(path, text)| (path.as_str(), *text));
        let mut claims = Claims::default();
        known.iter().for_each(|claim| claims.push(claim.clone()));
        claims.read_owners(&tree_with(&groups, &files));
        claims
    };
    let populated = "populated 1\nfrozen 0\n";
    let claims = of(populated, &[]);
    assert_eq!(found(&claims), ["pinfold 4-5 exclusive", "pinfold 6 exclusive"]);
    assert_eq!(claims.all()[0].owner.to_string(), "pinfold (without an active journal here)");
    // Without processes nothing uses the CPUs.
    assert!(of("populated 0\nfrozen 0\n", &[]).all().is_empty());
    let expected = ["web 4-5 exclusive", "pinfold 6 exclusive"];
    assert_eq!(found(&of(populated, &[claim_of("web", "40-7")])), expected);
    // A second placement of the machine adds a number to the ID.
    assert_eq!(found(&of(populated, &[claim_of("web", "40-7-2")])), expected);
    assert_eq!(of(populated, &[claim_of("web", "40-71")]).all().len(), 3);
    assert_eq!(of(populated, &[claim_of("web", "41-7")]).all().len(), 3);
    let all = [claim_of("web", "40-7"), claim_of("", "99-1")];
    assert_eq!(found(&of(populated, &all)).len(), 2);
}

#[test]
fn all_groups_of_a_placement_belong_to_it() {
    let groups = ["pinfold-40-7", "pinfold-40-7-vm", "pinfold-40-7-part"];
    let paths = groups.map(|name| format!("/{name}"));
    let events = groups.map(|name| format!("/sys/fs/cgroup/{name}/cgroup.events"));
    let tree = tree_with(
        &paths.each_ref().map(|path| (path.as_str(), "4-5", "root")),
        &events.each_ref().map(|path| (path.as_str(), "populated 1\n")),
    );
    for (id, count) in [("40-7", 1), ("40-7-2", 1), ("40-71", 4), ("4-7", 4)] {
        let mut claims = Claims::default();
        claims.push(claim_of("web", id));
        claims.read_owners(&tree);
        assert_eq!(claims.all().len(), count, "{id}: {:?}", found(&claims));
    }
}

fn claim_of(name: &str, id: &str) -> Claim {
    let owner = Owner::new(&super::super::placements::PLACEMENT, name).of_journal(id);
    let cpus = CpuSet::parse_list("4-5").unwrap();
    Claim::new(&owner, cpus, Exclusivity::Exclusive, &Source::default())
}

#[test]
fn a_machine_in_such_a_group_is_found_by_its_masks() {
    let status = crate::owners::tests::status("CPU 0/KVM", 40, "4");
    let files = [
        ("/sys/fs/cgroup/pinfold-40-7/cgroup.procs", "40\n"),
        ("/proc/40/cgroup", "0::/pinfold-40-7\n"),
        ("/proc/40/cmdline", "qemu-system-x86_64\0-name\0web\0"),
        ("/proc/40/task/41/status", status.as_str()),
    ];
    let claims = claims_of(&tree_with(&[("/pinfold-40-7", "4-5", "member")], &files));
    assert_eq!(found(&claims), ["web 4 exclusive", "pinfold 5 exclusive"]);
    assert!(claims.used_twice().is_empty());
}

/// Commands in a partition run on its CPUs, which are no other owner's.
#[test]
fn the_partition_of_the_caller_is_shared() {
    let groups = [("/rt.slice", "4-7", "isolated"), ("/b.slice", "2-3", "root")];
    let of = |group: &str| {
        let own = format!("0::{group}\n");
        found(&claims_of(&tree_with(&groups, &[("/proc/self/cgroup", &own)])))
    };
    assert_eq!(of("/user.slice"), ["b.slice 2-3 exclusive", "rt.slice 4-7 exclusive"]);
    let within = ["b.slice 2-3 exclusive", "rt.slice 4-7 shared"];
    assert_eq!(of("/rt.slice"), within);
    assert_eq!(of("/rt.slice/a.scope"), within);
}

#[test]
fn groups_that_cannot_be_read_are_counted() {
    fn finding(host: &pinfold_sim::SimHost) -> String {
        claims_of(host).findings()[0].to_string()
    }

    let cpus = CpuSet::parse_list("1-2").unwrap();
    let groups = ["/a", "/b", "/c"];
    let mut builder = SimBuilder::new(CgroupVersion::V2, 8);
    for group in groups {
        builder = builder.group(group, cpus.clone(), CpuSet::new());
    }
    let host = builder.build();
    host.fail_on("read /sys/fs/cgroup/a/cpuset.cpus.effective", 5);
    assert_eq!(found(&claims_of(&host)), ["b 1-2 shared", "c 1-2 shared"]);
    assert!(finding(&host).contains("CPUs of a cgroup are not known"), "{}", finding(&host));
    host.fail_on("cpuset.cpus.effective", 5);
    let text = finding(&host);
    assert!(text.contains("4 cgroups are not known; the first: cannot read /sys/"), "{text}");
}

#[test]
fn containers_that_the_kubelet_does_not_know_have_their_cpus() {
    let state = r#"{"policyName":"static","defaultCpuSet":"0-1","entries":{"u-1":{"app":"2-3"}}}"#;
    let kubelet = ("/var/lib/kubelet/cpu_manager_state", state);
    let groups = [
        ("/kubepods", "0-7", "member"),
        ("/kubepods/podu-1", "2-3", "member"),
        ("/kubepods/podu-2", "0-1", "member"),
        ("/kubepods/podu-3", "5", "member"),
    ];
    let claims = claims_of(&tree_with(&groups, &[kubelet]));
    let expected =
        ["app 2-3 exclusive", "the other Kubernetes containers 0-1 shared", "podu-3 5 shared"];
    assert_eq!(found(&claims), expected);
}

/// The findings about CPUs that are used twice, with a machine on CPUs 4 and 5 and a unit with these
/// CPUs and processes.
fn twice(cpus: &str, processes: &str, machine_group: &str) -> Vec<String> {
    let threads = ["4", "5"].map(|cpu| crate::owners::tests::status("CPU 0/KVM", 40, cpu));
    let group = format!("0::{machine_group}\n");
    let files = [
        ("/sys/fs/cgroup/web.service/cgroup.procs", processes),
        ("/proc/40/cgroup", group.as_str()),
        ("/proc/40/cmdline", "qemu-system-x86_64\0-name\0vm\0"),
        ("/proc/40/task/41/status", threads[0].as_str()),
        ("/proc/40/task/42/status", threads[1].as_str()),
    ];
    let claims = claims_of(&tree_with(&[("/web.service", cpus, "member")], &files));
    let findings = crate::conflicts::findings(&claims.used_twice());
    findings.iter().map(ToString::to_string).collect()
}

#[test]
fn a_group_with_only_cpus_of_a_machine_is_a_conflict() {
    let scope = "/vm.scope";
    let found = twice("4-5", "60\n", scope);
    let [text] = found.as_slice() else { panic!("{found:?}") };
    let used =
        "the CPUs 4-5 are used by vm (virtual machine, process 40) and by web.service (cgroup)";
    assert!(text.contains(used), "{text}");
    assert!(text.contains("AllowedCPUs="), "{text}");
    assert_eq!(twice("4", "60\n", scope).len(), 1);
    // Its processes have another CPU, it has none, or they are the machine's.
    assert!(twice("4-6", "60\n", scope).is_empty());
    assert!(twice("4-5", "", scope).is_empty());
    assert!(twice("4-5", "40\n", scope).is_empty());
    assert!(twice("4-5", "40\n60\n", "/web.service").is_empty());
}

/// Without libvirt's own files, as in a container, and where the domain is a placement of Pinfold.
#[test]
fn the_groups_of_a_domain_belong_to_it() {
    check("/machine", "/machine/qemu-3-web.libvirt-qemu");
    check("/machine.slice", "/machine.slice/machine-qemu-3-web.scope");

    fn check(above: &str, domain: &str) {
        let names = ["", "/emulator", "/vcpu0", "/iothread1"];
        let paths = names.map(|name| format!("{domain}{name}"));
        let cpus = ["0-7", "6-7", "4", "5"];
        let groups = paths.iter().zip(cpus).map(|(path, cpus)| (path.as_str(), cpus, "member"));
        let groups: Vec<_> = groups.chain([(above, "0-7", "member")]).collect();
        let status = crate::owners::tests::status("CPU 0/KVM", 40, "4");
        let own = format!("0::{domain}/emulator\n");
        let files = [
            ("/proc/40/cgroup", own.as_str()),
            ("/proc/40/cmdline", "qemu-system-x86_64\0-name\0web\0"),
            ("/proc/40/task/41/status", status.as_str()),
        ];
        assert_eq!(found(&claims_of(&tree_with(&groups, &files))), ["web 4 exclusive"], "{domain}");
        // Those of a domain that is not known have their CPUs.
        assert_eq!(found(&claims_of(&tree(&groups))).len(), 3, "{domain}");
    }
}
