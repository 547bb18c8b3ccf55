//! A QEMU command line says what machine it is: `plan`, `run`.

use crate::common::machine::QEMU;
use crate::common::{Checked as _, ROOT, Sandbox, assert_parts, is_missing, pinfold};
use pinfold_host::process::Output;

fn run_line(line: &str) -> Output {
    pinfold(line.split_whitespace())
}

#[test]
fn the_plan_is_for_the_machine_of_the_command_line() {
    let line =
        "numactl -m 1 qemu-system-x86_64 -cpu host -smp 4 -m 2G -name db -object iothread,id=io1";
    let plan: serde_json::Value = serde_json::from_str(&words("--json", line)).expect("JSON");
    let vnode = &plan["vnodes"][0];
    assert_eq!(vnode["name"], "db");
    assert_eq!(vnode["memory"]["size_bytes"], 2_u64 << 30, "{vnode}");
    let roles: Vec<&str> = vnode["threads"]
        .as_array()
        .expect("threads")
        .iter()
        .filter_map(|thread| thread["role"].as_str())
        .collect();
    assert_eq!(roles, ["vcpu(0)", "vcpu(1)", "vcpu(2)", "vcpu(3)", "emulator", "iothread(io1)"]);

    let script = words("--emit qemu", line);
    assert_parts(
        &script,
        &[
            "-smp 4,sockets=1,cores=2,threads=2",
            "set -- numactl -m 1 qemu-system-x86_64",
            "host-nodes=1,policy=bind",
        ],
    );
    // What is asked counts; a reserve is planned too.
    assert!(words("--emit qemu --vcpus 6", line).contains("-smp 6,sockets=1,cores=3"));
    let clusters = "qemu-system-aarch64 -M virt -cpu max -smp 4,clusters=2";
    assert_parts(&words("--emit qemu", clusters), &[",clusters=2,cores="]);
    let spice = words("--emit qemu", "qemu-system-x86_64-spice -accel kvm -cpu host -smp 0x4");
    assert!(spice.contains("-smp 4,sockets=1,cores=2,threads=2"), "{spice}");
    let reserve = words("--emit qemu", "qemu-kvm -cpu host -smp 2,maxcpus=4");
    assert!(reserve.contains("-smp 2,maxcpus=4,sockets=1,cores=2,threads=2"), "{reserve}");
    // Without room for the reserve, the vCPUs at the start are planned.
    let large = words("--emit qemu", "qemu-kvm -cpu host -smp 2,maxcpus=64");
    assert!(large.contains("-smp 2,sockets=1"), "{large}");
    // Where the command line binds its memory, there are its vCPUs.
    let bound = "qemu-kvm -smp 4 -m 2G -machine q35,memory-backend=m \
                 -object memory-backend-ram,id=m,size=2G,host-nodes=0,policy=bind";
    let plan: serde_json::Value = serde_json::from_str(&words("--json", bound)).expect("JSON");
    assert_eq!(plan["vnodes"][0]["threads"][0]["pus"], "2", "{plan}");
    // Each of the guest's cells goes to the node of its memory.
    let cells = "qemu-kvm -cpu host -smp 4 -m 2G \
                 -object memory-backend-ram,id=a,size=1G,host-nodes=1,policy=bind \
                 -object memory-backend-ram,id=b,size=1G,host-nodes=0,policy=bind \
                 -numa node,nodeid=0,cpus=0-1,memdev=a -numa node,nodeid=1,cpus=2-3,memdev=b";
    let plan: serde_json::Value = serde_json::from_str(&words("--json", cells)).expect("JSON");
    let threads = plan["vnodes"][0]["threads"].as_array().expect("threads").clone();
    let pus: Vec<u32> = threads
        .iter()
        .take(4)
        .map(|thread| thread["pus"].as_str().expect("a CPU").parse().expect("a number"))
        .collect();
    assert!(pus[..2].iter().all(|pu| *pu >= 16) && pus[2..].iter().all(|pu| *pu < 16), "{pus:?}");
    assert_parts(&words("--emit qemu", cells), &["-numa node,nodeid=0,cpus=0-1,memdev=a"]);
}

fn words(options: &str, rest: &str) -> String {
    let mut words: Vec<String> = ["plan", "-s", "balanced", "--input"].map(str::to_owned).into();
    words.push("package:2 [numa(memory=8GB)] core:8 pu:2".to_owned());
    words.extend(options.split_whitespace().map(str::to_owned));
    words.push("--".to_owned());
    words.extend(rest.split_whitespace().map(str::to_owned));
    let output = pinfold(&words);
    assert!(output.status.success(), "{words:?}: {}", output.stderr_text());
    output.stdout_text()
}

/// A number that QEMU would refuse, or that is not on the command line, is an error, never a guest
/// of another size.
#[test]
fn a_number_of_vcpus_that_cannot_be_read_is_refused() {
    check(&["qemu-kvm", "-smp", "abc"], "-smp cpus=abc: must be a positive integer");
    check(&["qemu-kvm", "-smp", "4,cores=0"], "-smp cores=0");
    check(&["qemu-kvm", "-M", "q35,smp.cpus=4.5"], "-smp cpus=4.5");
    check(&["qemu-kvm", "-readconfig", "vm.cfg"], "give it with --vcpus");
    check(&["bash", "-c", "qemu-kvm -smp 4"], "bash -c runs a string");
}

fn check(line: &[&str], expected: &str) {
    let input = format!("{ROOT}/fixtures/hosts/i7-4790k.synthetic");
    let mut words = vec!["plan", "--emit", "qemu", "--input", &input, "--"];
    words.extend(line);
    let words: Vec<String> = words.into_iter().map(str::to_owned).collect();
    let output = pinfold(&words);
    let said = output.stderr_text();
    assert_eq!(output.status.code(), Some(2), "{line:?}: {said}");
    assert!(said.contains(expected), "{line:?}: {said}");
}

/// The message says why there is no monitor, and the wait can be set.
#[test]
fn a_script_that_drops_its_arguments_is_named() {
    if is_missing(&[QEMU]) {
        return;
    }
    let sandbox = Sandbox::new();
    let text = "exec qemu-system-x86_64 -M none -nodefaults -display none\n";
    let (folder, script) = (sandbox.root(), sandbox.write("start-vm", text));
    let line =
        format!("--state-dir {folder}/state run -s none --start-timeout 1s -- sh {script} -smp 1");
    let said = run_line(&line).expect_code(4);
    assert_parts(&said, &["did not open its QMP socket within 1 s: it started QEMU", "\"$@\""]);
    run_line("run -s none --start-timeout soon -- qemu-kvm").expect_code(2);
    assert!(run_line("run --help-all").stdout_text().contains("--start-timeout <TIME>"));
}
