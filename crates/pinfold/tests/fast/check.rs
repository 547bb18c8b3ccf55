//! `plan --check`: advice that is followed passes, hints repeat what the user gave, `--fix` writes
//! the file.

use crate::common::{Answer, RYZEN, Sandbox, assert_parts, pinfold};

fn answer(words: &[&str]) -> Answer {
    pinfold(words).into()
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
    let old = sandbox.write("old.xml", windows());
    let found = answer(&["plan", "--check", &old, "--input", RYZEN, "--host-cpus", "0,16"]);
    assert_eq!(found.code, Some(1), "{}", found.stdout);
    for name in
        ["guest-siblings-lie", "l3-crossed", "timer-hpet", "timer-hypervclock", "hyperv-missing"]
    {
        assert!(found.stdout.contains(&format!("  name     {name}\n")), "{name}: {}", found.stdout);
    }
    // The command that the hint names is run as it stands.
    let command = found.stderr.split('`').find_map(|part| part.strip_prefix("pinfold "));
    let command = command.and_then(|line| line.split(" > NEW").next()).expect("a command");
    assert_parts(command, &["--fix", &format!("--input {RYZEN}"), "--host-cpus 0,16"]);
    let words: Vec<&str> = command.split(' ').collect();
    let fixed = answer(&words);
    assert_eq!(fixed.code, Some(0), "{}", fixed.stderr);
    assert!(fixed.stderr.contains("fixed: l3-crossed:"), "{}", fixed.stderr);
    assert!(
        !fixed.stdout.contains("cpuset='0'") && !fixed.stdout.contains("cpuset='16'"),
        "{}",
        fixed.stdout
    );
    let new = sandbox.write("new.xml", &fixed.stdout);
    let again = answer(&["plan", "--check", &new, "--input", RYZEN]);
    assert_eq!(again.code, Some(0), "{}", again.stdout);
    let stays = answer(&["plan", "--check", &new, "--input", RYZEN, "--fix"]);
    assert_eq!(stays.stdout, fixed.stdout);
}

#[test]
fn fix_takes_one_domain_file_and_says_what_cannot_be_fixed() {
    let sandbox = Sandbox::new();
    let old = sandbox.write("old.xml", windows());
    let two = answer(&["plan", "--check", &old, &old, "--fix", "--input", RYZEN]);
    assert_eq!((two.code, two.stdout.as_str()), (Some(2), ""), "{}", two.stderr);
    let small = "core:4 pu:2";
    let made = answer(&["plan", "-s", "balanced", "--vcpus", "3", "--json", "--input", small]);
    let plan = sandbox.write("plan.json", &made.stdout);
    let refused = answer(&["plan", "--check", &plan, "--fix", "--input", small]);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("--input 'core:4 pu:2'"), "{}", refused.stderr);
    // No placement makes the memory fit.
    let large = "<domain type='kvm'><name>a</name><memory unit='TiB'>4</memory><vcpu>2</vcpu><cputune>\
                 <vcpupin vcpu='0' cpuset='2'/><vcpupin vcpu='1' cpuset='4'/></cputune></domain>";
    sandbox.write("old.xml", large);
    let large = answer(&["plan", "--check", &old, "--fix", "--input", RYZEN]);
    assert_eq!((large.code, large.stdout.as_str()), (Some(1), ""), "{}", large.stderr);
    assert!(large.stderr.contains("4194304 MiB"), "{}", large.stderr);
}

/// Three vCPUs on cores of two threads: the advice is not what is there already.
#[test]
fn advice_for_an_odd_number_of_vcpus_is_another_placement() {
    let sandbox = Sandbox::new();
    let small = "core:4 pu:2";
    let pins = ["--pin", "vcpu0=2", "--pin", "vcpu1=3", "--pin", "vcpu2=4"];
    let words = ["plan", "-s", "compact", "--vcpus", "3", "--json", "--input", small];
    let made = answer(&[&words[..], &pins].concat());
    let plan = sandbox.write("plan.json", &made.stdout);
    let found = answer(&["plan", "--check", &plan, "--input", small]);
    assert_eq!(found.code, Some(1), "{}", found.stdout);
    // The strategy of the plan is kept: the pins by hand are what is wrong.
    let hint = "pinfold plan --strategy compact --vcpus 3 --input 'core:4 pu:2' --json";
    assert!(found.stderr.contains(hint), "{}", found.stderr);
    let advised = answer(&words);
    sandbox.write("plan.json", &advised.stdout);
    assert_eq!(answer(&["plan", "--check", &plan, "--input", small]).code, Some(0));
}
