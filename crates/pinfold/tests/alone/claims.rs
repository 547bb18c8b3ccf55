//! The owners of CPUs, as the program shows and respects them.

use pinfold_host::files;
use pinfold_host::process::{Output, capture};
use serde_json::Value;

use crate::common::{MINUTE_NS, PINFOLD, take_turn};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/examples");

fn pinfold(words: &[&str]) -> Output {
    let state = concat!("PINFOLD_STATE_DIR=", env!("CARGO_TARGET_TMPDIR"), "/claims-state");
    let words = [&[state, "COLUMNS=80", "PINFOLD_IGNORE_CLAIMS=false", PINFOLD], words].concat();
    capture("env", words, MINUTE_NS).expect("it runs")
}

fn example(name: &str) -> String {
    format!("{EXAMPLES}/{name}.capture")
}

fn json(words: &[&str]) -> Value {
    let output = pinfold(words);
    assert_eq!(output.status.code(), Some(0), "{words:?}: {}", output.stderr_text());
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn a_captured_host_has_its_owners() {
    let _turn = take_turn();
    let found = json(&["claims", "--json", "--input", &example("kubernetes-ovs")]);
    assert_eq!(found["cpus"]["owned"], "2-7,16-17");
    assert_eq!(found["cpus"]["preferred"], "16-31");
    assert_eq!(found["cpus"]["used_twice"], "");
    let kinds: Vec<&str> = found["claims"]
        .as_array()
        .expect("an array")
        .iter()
        .filter_map(|claim| claim["owner"]["kind"].as_str())
        .collect();
    let expected = [
        "kubelet",
        "kubelet-pool",
        "openvswitch",
        "openvswitch",
        "dpdk",
        "boot",
        "boot",
        "irqbalance",
    ];
    assert_eq!(kinds, expected);
    let twice = json(&["claims", "--json", "--input", &example("several-machines")]);
    assert_eq!(twice["used_twice"][0]["cpus"], "5");
}

#[test]
fn plans_avoid_what_others_own_unless_told_otherwise() {
    let _turn = take_turn();
    let plan = ["plan", "-s", "low-latency", "--vm", "name=new,vcpus=4", "--json", "--input"];
    let path = example("kubernetes-ovs");
    let plan = [&plan[..], &[path.as_str()]].concat();
    let around = json(&plan);
    assert_eq!(subjects(&around).iter().filter(|one| *one == "claims").count(), 1);
    assert!(!subjects(&around).contains(&"cpu-used-twice".to_owned()));
    let alone = json(&[&plan[..], &["--ignore-claims"]].concat());
    assert!(!subjects(&alone).contains(&"claims".to_owned()));
    assert_ne!(around["vnodes"], alone["vnodes"]);
    // A conflict that cannot be avoided is a warning with both names, and no refusal.
    let large = ["plan", "-s", "balanced", "--vm", "name=big,vcpus=28", "--json", "--input", &path];
    let text = json(&large).to_string();
    for part in ["cpu-used-twice", "used by big and by", "Open vSwitch poll-mode threads"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// Its CPUs are not those of another machine, and the plan says whose they are.
#[test]
fn a_plan_for_a_running_machine_may_use_its_cpus() {
    let _turn = take_turn();
    let path = example("several-machines");
    let plan = |name: &str| {
        let vm = format!("name={name},vcpus=2");
        json(&["plan", "-s", "compact", "--vm", &vm, "--json", "--input", &path])
    };
    let again = plan("web");
    assert_eq!(again["vnodes"][0]["threads"][0]["pus"], "0");
    let text = again["findings"].to_string();
    assert!(text.contains("web is running") && text.contains("its CPUs 0-5 again"), "{text}");
    assert!(!text.contains("used by web"), "{text}");
    let other = plan("new").to_string();
    assert!(
        other.contains("web (libvirt domain, process 2201)") && !other.contains("is running"),
        "{other}"
    );
}

fn subjects(plan: &Value) -> Vec<String> {
    let findings = plan["findings"].as_array().expect("an array").iter();
    findings.filter_map(|one| one["subject"].as_str().map(str::to_owned)).collect()
}

#[test]
fn a_capture_of_this_host_has_its_claims_without_names() {
    let _turn = take_turn();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("host.capture").to_string_lossy().into_owned();
    let captured = pinfold(&["topo", "--capture"]);
    assert_eq!(captured.status.code(), Some(0), "{}", captured.stderr_text());
    assert!(captured.stdout_text().contains("/pinfold/claims.json"));
    files::write_atomic(&path, &captured.stdout).expect("a file");
    let here = json(&["claims", "--json", "--seconds", "0"]);
    let there = json(&["claims", "--json", "--input", &path]);
    assert_eq!(there["format"], "pinfold-claims/1");
    assert_eq!(there["cpus"]["online"], here["cpus"]["online"]);
    let claims = there["claims"].as_array().expect("an array");
    assert!(claims.iter().all(|claim| claim["source"]["file"].is_null()), "{there}");
}

#[test]
fn hostile_files_are_findings_and_their_names_have_no_effect() {
    let _turn = take_turn();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("host.capture").to_string_lossy().into_owned();
    let check = |more: &str, parts: &[&str]| {
        let text = files::read_text(&example("several-machines")).expect("a capture");
        files::write_atomic(&path, (text + more).as_bytes()).expect("a file");
        let output = pinfold(&["claims", "--input", &path]);
        assert_eq!(output.status.code(), Some(0), "{}", output.stderr_text());
        let words = output.stdout_text();
        let flat = words.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in parts {
            assert!(flat.contains(part), "{part}: {words}");
        }
        assert!(!words.contains('\u{1b}'), "{words:?}");
        assert!(words.lines().all(|line| line.chars().count() <= 80), "{words}");
        let plan = pinfold(&["plan", "-s", "balanced", "--vcpus", "2", "--input", &path]);
        assert_eq!(plan.status.code(), Some(0), "{}", plan.stderr_text());
    };
    let state = "file /var/lib/kubelet/cpu_manager_state\n\t";
    check(&format!("{state}{{\"policyName\":3}}\n"), &["policyName is 3", "another version"]);
    check(
        &format!("{state}{{\"policyName\":\"static\",\"defaultCpuSet\":\"0-99\"}}\n"),
        &["/var/lib/kubelet/cpu_manager_state", "does not have: 32-99"],
    );
    check(
        "file /proc/70/cmdline\n\tspdk_\\x1b[31mtgt\\x00-m\\x000x100\\x00\\\n",
        &["\\u001b[31mtgt"],
    );
    check("link /etc/nova/nova.conf -> /etc/shadow\n", &["is a link to /etc/shadow"]);
    check("file /pinfold/claims.json\n\t{}\n", &["/pinfold/claims.json"]);
}

#[test]
fn masks_are_read_wherever_a_list_is() {
    let _turn = take_turn();
    let input = "package:1 l3:4 core:8 pu:2";
    let plan = |avoid: &str| {
        pinfold(&[
            "plan", "-s", "balanced", "--vcpus", "2", "--avoid", avoid, "--input", input, "--json",
        ])
    };
    assert_eq!(plan("0x82082").stdout, plan("1,7,13,19").stdout);
    for digits in ["82082", "ff", "f0,1"] {
        let refused = plan(digits);
        assert_eq!(refused.status.code(), Some(2), "{digits}");
        assert!(refused.stderr_text().contains("with 0x in front"), "{}", refused.stderr_text());
    }
}
