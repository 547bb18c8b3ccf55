//! State files of the kubelet, as `pkg/kubelet/cm/cpumanager/state` writes them.

use proptest::prelude::*;

use super::*;
use crate::owners::tests::{claims_of, found, host};

const PATH: &str = "/var/lib/kubelet/cpu_manager_state";
const STATIC: &str = r#"{"policyName":"static","defaultCpuSet":"0-1,6-7","entries":{"235148fe-393f-47a8-a17d-bd55bc1a836b":{"app":"2-3","sidecar":"4"},"9d2c8f0a-0000-4a6b-8a3e-1d2b3c4d5e6f":{"db":"5"}},"checksum":1552716370}"#;

fn state(text: &str) -> Claims {
    claims_of(&host(8, &[(PATH, text.to_owned())]))
}

#[test]
fn containers_have_their_cpus_and_the_others_share_the_rest() {
    let expected = [
        "app 2-3 exclusive",
        "sidecar 4 exclusive",
        "db 5 exclusive",
        "the other Kubernetes containers 0-1,6-7 shared",
    ];
    let claims = state(STATIC);
    assert_eq!(found(&claims), expected);
    assert!(claims.findings().is_empty());
    let source = claims.all()[0].source.to_string();
    assert_eq!(source, format!("{PATH}: pod 235148fe-393f-47a8-a17d-bd55bc1a836b"));
}

#[test]
fn the_earlier_format_and_the_policy_none_are_read() {
    let none = r#"{"policyName":"none","defaultCpuSet":"","checksum":1353318690}"#;
    assert!(state(none).all().is_empty());
    assert!(state(none).findings().is_empty());
    let earlier =
        r#"{"policyName":"static","defaultCpuSet":"0,2-3","entries":{"3f1d8a":"1"},"checksum":0}"#;
    let expected = ["3f1d8a 1 exclusive", "the other Kubernetes containers 0,2-3 shared"];
    assert_eq!(found(&state(earlier)), expected);
}

#[test]
fn a_file_of_another_version_is_a_finding() {
    let entries = STATIC.replace("{\"app\":\"2-3\",\"sidecar\":\"4\"}", "[\"2-3\"]");
    assert_eq!(check(&entries, "entries.235148fe-393f-47a8-a17d-bd55bc1a836b is [\"2-3\"]"), 2);
    assert_eq!(check(&STATIC.replace("policyName", "policy"), "policyName is missing"), 0);
    // What is known of it counts.
    assert_eq!(check(&STATIC.replace("checksum", "podEntries"), "podEntries"), 4);
    assert_eq!(check(&STATIC.replace("2-3", "3-2"), "entries.235148fe"), 3);
    let policy = STATIC.replace("static", "distributed");
    assert_eq!(check(&policy, "policy distributed is unknown (known: none, static); its"), 4);
    assert!(!state(&policy).findings()[0].text.contains("not counted"));
    assert_eq!(check("", "EOF"), 0);
    assert_eq!(check("[]", "no JSON object"), 0);
    assert_eq!(check(&"[".repeat(100_000), "recursion"), 0);
}

fn check(text: &str, expected: &str) -> usize {
    let claims = state(text);
    let findings: Vec<String> = claims.findings().iter().map(ToString::to_string).collect();
    assert_eq!(findings.len(), 1, "{text}: {findings:?}");
    assert!(findings[0].contains(PATH) && findings[0].contains(expected), "{findings:?}");
    claims.all().len()
}

#[test]
fn a_container_is_found_by_the_cgroup_of_its_process() {
    let claims = state(STATIC);
    let systemd =
        "/kubepods.slice/kubepods-pod235148fe_393f_47a8_a17d_bd55bc1a836b.slice/cri-1.scope";
    let cgroupfs = "/kubepods/pod235148fe-393f-47a8-a17d-bd55bc1a836b/1";
    for group in [systemd, cgroupfs] {
        let own: Vec<bool> = claims.all().iter().map(|claim| contains(claim, group)).collect();
        assert_eq!(own, [true, true, false, true], "{group}");
    }
    assert!(claims.all().iter().all(|claim| !contains(claim, "/system.slice")));
}

#[test]
fn a_bad_entry_leaves_the_other_containers() {
    let text = r#"{"policyName":"static","defaultCpuSet":"0","entries":{"u":{"a":"16-23","b":"9-3"},"v":7,"w":{"c":[]}}}"#;
    let claims = claims_of(&host(32, &[(PATH, text.to_owned())]));
    assert_eq!(found(&claims), ["a 16-23 exclusive", "the other Kubernetes containers 0 shared"]);
    let findings: Vec<String> = claims.findings().iter().map(ToString::to_string).collect();
    assert_eq!(findings.len(), 3, "{findings:?}");
    for (finding, part) in
        findings.iter().zip(["entries.u.b: \"9-3\"", "entries.v is 7", "w.c is []"])
    {
        assert!(finding.contains(PATH) && finding.contains(part), "{finding}");
    }
}

#[test]
fn a_bad_pool_leaves_the_containers() {
    assert_eq!(check(&STATIC.replace("0-1,6-7", "7-6"), "defaultCpuSet: \"7-6\""), 3);
    assert_eq!(check(&STATIC.replace("\"0-1,6-7\"", "[0]"), "defaultCpuSet is [0]"), 3);
    let entries = STATIC.replace("\"entries\":{", "\"entries\":5,\"checksum\":{");
    assert_eq!(check(&entries, "entries is 5"), 1);
}

#[test]
fn many_bad_entries_are_counted() {
    let entries: Vec<String> = (0..5_000).map(|number| format!(r#""c{number}":"9-3""#)).collect();
    let text =
        format!(r#"{{"policyName":"static","entries":{{"u":{{"a":"2",{}}}}}}}"#, entries.join(","));
    let claims = state(&text);
    assert_eq!(found(&claims), ["a 2 exclusive"]);
    assert_eq!(claims.findings().len(), 11);
    assert!(claims.findings()[10].text.contains("4990 more values"), "{}", claims.findings()[10]);
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused(text in "\\PC*") {
        assert!(parse(&text).is_err() || text.contains("policyName"));
    }
}

/// The state file stays when the kubelet is removed.
#[test]
fn without_a_kubelet_its_file_is_no_claim_of_one_that_runs() {
    assert_eq!(claims_beside("kubelet")[2], "db 5 exclusive");
    assert_eq!(claims_beside("sshd")[2], "db 5 exclusive, not running");
}

fn claims_beside(program: &str) -> Vec<String> {
    let process = ("/proc/77/cmdline", format!("/usr/bin/{program}\0--config\0/x\0"));
    found(&claims_of(&host(8, &[(PATH, STATIC.to_owned()), process])))
}

#[test]
fn k0s_has_its_state_elsewhere() {
    let path = "/var/lib/k0s/kubelet/cpu_manager_state";
    let claims = claims_of(&host(8, &[(path, STATIC.to_owned())]));
    assert_eq!(claims.all().len(), 4);
    assert!(claims.all()[0].source.to_string().starts_with(path));
}

#[test]
fn two_containers_of_one_name_are_two_owners() {
    let twice = STATIC.replace("\"db\":\"5\"", "\"app\":\"3\"");
    let claims = state(&twice);
    let owners: Vec<&str> = claims.all().iter().map(|claim| claim.owner.name.as_str()).collect();
    let first = "app of pod 235148fe-393f-47a8-a17d-bd55bc1a836b";
    assert_eq!(owners[..2], [first, "sidecar"]);
    assert_eq!(claims.used_twice().len(), 1, "CPU 3 is used by both");
}

/// A machine in a container is its own owner if the kubelet gave the container no CPUs.
#[test]
fn a_machine_in_a_container_is_named_once() {
    assert_eq!(claims_of_pod("235148fe-393f-47a8-a17d-bd55bc1a836b").len(), 4);
    assert_eq!(
        claims_of_pod("00000000-393f-47a8-a17d-bd55bc1a836b").last().unwrap(),
        "vm 3 exclusive"
    );
}

fn claims_of_pod(pod: &str) -> Vec<String> {
    let status = crate::owners::tests::status("CPU 0/KVM", 40, "3");
    let group = format!("0::/kubepods/pod{pod}/1\n");
    found(&claims_of(&host(
        8,
        &[
            (PATH, STATIC.to_owned()),
            ("/proc/40/cgroup", group),
            ("/proc/40/cmdline", "qemu-system-x86_64\0-name\0vm\0".to_owned()),
            ("/proc/40/task/41/status", status),
            ("/proc/50/cmdline", "kubelet\0".to_owned()),
        ],
    )))
}
