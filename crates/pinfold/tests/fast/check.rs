//! `plan --check`: advice that is followed passes, hints repeat what the user gave, `--fix` writes
//! the file.

use crate::common::{MINUTE_NS, PINFOLD, RYZEN, Sandbox};
use pinfold_host::files;
use pinfold_host::process::capture;

struct Answer {
    code: Option<i32>,
    said: String,
    hint: String,
}

fn pinfold(arguments: &[&str]) -> Answer {
    let output = capture(PINFOLD, arguments, MINUTE_NS).expect("pinfold runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    Answer { code: output.status.code(), said: text, hint: output.stderr_text() }
}

/// Sixteen vCPUs on both dies, shown as siblings that they are not, without an emulator pin; the
/// rest of the file as it is copied from forums.
fn windows() -> String {
    let pins: String =
        (0..16).map(|n| format!("    <vcpupin vcpu='{n}' cpuset='{n}'/>\n")).collect();
    format!(
        "<domain type='kvm'>\n  <name>win11</name>\n  <memory unit='GiB'>32</memory>\n  \
         <vcpu placement='static'>16</vcpu>\n  <cputune>\n{pins}  </cputune>\n  \
         <os><type arch='x86_64' machine='pc-q35-8.1'>hvm</type></os>\n  \
         <features><acpi/><hyperv mode='custom'><relaxed state='on'/></hyperv></features>\n  \
         <cpu mode='host-passthrough'>\n    <topology sockets='1' dies='1' cores='8' threads='2'/>\n  \
         </cpu>\n  <clock offset='localtime'><timer name='hpet' present='yes'/></clock>\n</domain>\n"
    )
}

#[test]
fn what_fix_writes_passes_and_stays() {
    let sandbox = Sandbox::new();
    let (old, new) = (sandbox.path("old.xml"), sandbox.path("new.xml"));
    files::write_atomic(&old, windows().as_bytes()).expect("a file");
    let found = pinfold(&["plan", "--check", &old, "--input", RYZEN, "--host-cpus", "0,16"]);
    assert_eq!(found.code, Some(1), "{}", found.said);
    for name in
        ["guest-siblings-lie", "l3-crossed", "timer-hpet", "timer-hypervclock", "hyperv-missing"]
    {
        assert!(found.said.contains(&format!("  name     {name}\n")), "{name}: {}", found.said);
    }
    // The command that the hint names is run as it stands.
    let command = found.hint.split('`').find_map(|part| part.strip_prefix("pinfold "));
    let command = command.and_then(|line| line.split(" > NEW").next()).expect("a command");
    for option in ["--fix", &format!("--input {RYZEN}"), "--host-cpus 0,16"] {
        assert!(command.contains(option), "{option} is not in {command}");
    }
    let words: Vec<&str> = command.split(' ').collect();
    let fixed = pinfold(&words);
    assert_eq!(fixed.code, Some(0), "{}", fixed.hint);
    assert!(fixed.hint.contains("fixed: l3-crossed:"), "{}", fixed.hint);
    assert!(
        !fixed.said.contains("cpuset='0'") && !fixed.said.contains("cpuset='16'"),
        "{}",
        fixed.said
    );
    files::write_atomic(&new, fixed.said.as_bytes()).expect("a file");
    let again = pinfold(&["plan", "--check", &new, "--input", RYZEN]);
    assert_eq!(again.code, Some(0), "{}", again.said);
    let stays = pinfold(&["plan", "--check", &new, "--input", RYZEN, "--fix"]);
    assert_eq!(stays.said, fixed.said);
}

#[test]
fn fix_takes_one_domain_file_and_says_what_cannot_be_fixed() {
    let sandbox = Sandbox::new();
    let (old, plan) = (sandbox.path("old.xml"), sandbox.path("plan.json"));
    files::write_atomic(&old, windows().as_bytes()).expect("a file");
    let two = pinfold(&["plan", "--check", &old, &old, "--fix", "--input", RYZEN]);
    assert_eq!((two.code, two.said.as_str()), (Some(2), ""), "{}", two.hint);
    let small = "core:4 pu:2";
    let made = pinfold(&["plan", "-s", "balanced", "--vcpus", "3", "--json", "--input", small]);
    files::write_atomic(&plan, made.said.as_bytes()).expect("a file");
    let refused = pinfold(&["plan", "--check", &plan, "--fix", "--input", small]);
    assert_eq!(refused.code, Some(2), "{}", refused.hint);
    assert!(refused.hint.contains("--input 'core:4 pu:2'"), "{}", refused.hint);
    // No placement makes the memory fit.
    let large = "<domain type='kvm'><name>a</name><memory unit='TiB'>4</memory><vcpu>2</vcpu><cputune>\
                 <vcpupin vcpu='0' cpuset='2'/><vcpupin vcpu='1' cpuset='4'/></cputune></domain>";
    files::write_atomic(&old, large.as_bytes()).expect("a file");
    let large = pinfold(&["plan", "--check", &old, "--fix", "--input", RYZEN]);
    assert_eq!((large.code, large.said.as_str()), (Some(1), ""), "{}", large.hint);
    assert!(large.hint.contains("4194304 MiB"), "{}", large.hint);
}

/// Three vCPUs on cores of two threads: the advice is not what is there already.
#[test]
fn advice_for_an_odd_number_of_vcpus_is_another_placement() {
    let sandbox = Sandbox::new();
    let plan = sandbox.path("plan.json");
    let small = "core:4 pu:2";
    let pins = ["--pin", "vcpu0=2", "--pin", "vcpu1=3", "--pin", "vcpu2=4"];
    let words = ["plan", "-s", "compact", "--vcpus", "3", "--json", "--input", small];
    let made = pinfold(&[&words[..], &pins].concat());
    files::write_atomic(&plan, made.said.as_bytes()).expect("a file");
    let found = pinfold(&["plan", "--check", &plan, "--input", small]);
    assert_eq!(found.code, Some(1), "{}", found.said);
    // The strategy of the plan is kept: the pins by hand are what is wrong.
    let hint = "pinfold plan --strategy compact --vcpus 3 --input 'core:4 pu:2' --json";
    assert!(found.hint.contains(hint), "{}", found.hint);
    let advised = pinfold(&words);
    files::write_atomic(&plan, advised.said.as_bytes()).expect("a file");
    assert_eq!(pinfold(&["plan", "--check", &plan, "--input", small]).code, Some(0));
}
