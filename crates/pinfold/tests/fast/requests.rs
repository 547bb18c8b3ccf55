//! The request file of the documentation and the same in flags give the same plan.

use crate::common::{Checked as _, ROOT, Sandbox, assert_parts, pinfold, run};
use pinfold_emit::{FORMATS, Format};
use pinfold_host::files;

/// The first block of `docs/requests.md` in this language.
fn block(language: &str) -> String {
    let docs = files::read_text(&format!("{ROOT}/docs/requests.md")).expect("the page is there");
    let fence = format!("```{language}\n");
    let (_, rest) = docs.split_once(&fence).expect("the block is there");
    rest.split_once("```").expect("the block ends").0.to_owned()
}

/// Asserts the exit code, and returns output and messages.
#[track_caller]
fn expect(code: i32, words: &[&str]) -> (String, String) {
    let output = pinfold(words);
    (output.stdout_text(), output.expect_code(code))
}

#[test]
fn a_file_and_flags_say_the_same() {
    let sandbox = Sandbox::new();
    let path = sandbox.write("request.toml", block("toml"));
    let input = format!("{ROOT}/fixtures/hosts/x5540-dual.synthetic");
    let command = block("sh");
    let flags: Vec<&str> = command.split_whitespace().skip(1).collect();
    for form in ["--json", "--explain"] {
        let of_file =
            ["plan", "--strategy", "multi-vm", "--request", &path, "--input", &input, form];
        let (planned, _) = expect(0, &of_file);
        let mut arguments = flags.clone();
        arguments.extend(["--input", &input, form]);
        let (by_flags, _) = expect(0, &arguments);
        assert_eq!(planned, by_flags);
        assert!(planned.contains("slow") && planned.contains("web"), "{planned}");
    }
}

#[test]
fn what_is_wrong_is_reported_with_its_place() {
    let input = format!("{ROOT}/fixtures/hosts/x5540-dual.synthetic");
    let sandbox = Sandbox::new();
    let in_file = |text: &str, reported: &str| {
        let path = sandbox.write("request.toml", text);
        let (_, said) =
            expect(2, &["plan", "--strategy", "auto", "--request", &path, "--input", &input]);
        assert!(said.contains(reported), "{said}");
    };
    in_file("[[vm]]\nname = \"a\"\nvcpu = 1\n", "line 3, column 1: vm has no key \"vcpu\"");
    in_file("[[vm]]\nname = \"a\"\nvcpu = 1\n", "did you mean vcpus?");
    let avoid = "request.toml: line 1, column 9: avoid: this machine has no CPU 16";
    in_file("avoid = \"16\"\n[[vm]]\nname = \"a\"\n", avoid);
    let pus = "request.toml: line 4, column 7: host.pus: this machine has no CPU 16";
    in_file("[[vm]]\nname = \"a\"\n[host]\npus = \"16\"\n", pus);
    let devices = "request.toml: line 3, column 22: cannot plan for a device of node 4: \
                   this host has the nodes 0, 1";
    in_file("[[vm]]\nname = \"a\"\ndevices = [\"node:0\", \"node:4\"]\n", devices);
    in_file(
        "interrupts = [\"node:4\"]\n[[vm]]\nname = \"a\"\n",
        "request.toml: line 1, column 15: cannot plan for a device of node 4",
    );
    in_file(
        "[[vm]]\nname = \"a\"\nmemory = \"1T\"\n",
        "request.toml: line 3, column 10: \"a\" needs 1024 GiB of memory",
    );
    in_file(
        "[[vm]]\nname = \"a\"\nvcpus = 2\npins = \"vcpu0=40\"\n",
        "request.toml: line 4, column 8: cannot use the requested pins of \"a\": cannot pin \
         vcpu(0) to 40",
    );
    in_file("[[vm]]\nname = \"a\"\nvcpus = 5000\n", "request.toml: line 3, column 9: ");
    in_file(
        "[[vm]]\nname = \"a\"\n[host]\nfree = 16\n",
        "request.toml: line 4, column 8: cannot keep 16 CPUs free",
    );
    in_file(
        "[[group]]\nname = \"a\"\ncores = 1\n[[group]]\nname = \"b\"\ncores = 40\n",
        "request.toml: line 6, column 9: vnodes gives at most",
    );
    check_flags(
        &["--vm", "name=a,vcpus=0"],
        "--vm: vcpus: 0 is not a number of at least 1",
        &input,
    );
    check_flags(&["--free", "all"], "--free: \"all\" is not a number of CPUs", &input);
    check_flags(&["--vm", "name=a", "--vcpus", "2"], "cannot be used with", &input);
    check_flags(&["--request", "/nonexistent/request.toml"], "/nonexistent/request.toml", &input);
    let two = ["--vm", "name=a,vcpus=1", "--vm", "name=b,vcpus=1", "--emit"];
    check_flags(
        &[&two[..], &["libvirt", "--vnode", "c"]].concat(),
        "the plan does not contain \"c\"",
        &input,
    );
    check_flags(
        &[&two[..], &["cmdline", "--vnode", "a"]].concat(),
        "describes the whole host",
        &input,
    );
}

fn check_flags(flags: &[&str], reported: &str, input: &str) {
    let mut arguments = vec!["plan", "--strategy", "auto", "--input", input];
    arguments.extend(flags);
    let (_, said) = expect(2, &arguments);
    assert!(said.contains(reported), "{said}");
}

/// Every format: a text for each machine under its name, and each alone as it stands there.
#[test]
fn several_machines_are_emitted_one_by_one() {
    let input = format!("{ROOT}/fixtures/hosts/r910.synthetic");
    let base = ["plan", "--strategy", "multi-vm", "--input", &input, "--isolate", "host"];
    let vms = ["--vm", "name=web,vcpus=2", "--vm", "name=db,vcpus=4,iothreads=io", "--emit"];
    let emit = |more: &[&str]| -> String {
        let (text, _) = expect(0, &[&base[..], &vms[..], more].concat());
        text
    };
    let (of_host, of_vnode): (Vec<&Format>, Vec<&Format>) =
        FORMATS.iter().partition(|format| format.is_of_host);
    for format in of_vnode.iter().map(|format| format.name) {
        let all = emit(&[format]);
        let (head, texts) = all.split_once("==== web ====").expect("marked by name");
        let (web, db) = texts.split_once("==== db ====").expect("marked by name");
        assert!(head.contains("2 texts") && head.contains("vnode NAME"), "{format}: {head}");
        for (name, part) in [("web", web), ("db", db)] {
            let alone = emit(&[format, "--vnode", name]);
            assert!(!alone.contains("===="), "{format}: {alone}");
            assert!(part.contains(&alone), "{format} of {name}:\n{alone}\nis not in\n{part}");
        }
        if ["qemu", "cloud-hypervisor", "proxmox", "nova"].contains(&format) {
            let ran = run("sh", ["-c", all.as_str(), "all"]);
            assert_eq!(ran.status.code(), Some(2), "{format}");
            assert!(ran.stderr_text().contains("--vnode NAME"), "{}", ran.stderr_text());
        }
    }
    // A plan for one machine keeps nobody off the CPUs of another's threads.
    let script = emit(&["qemu", "--vnode", "web"]);
    assert!(
        script.contains("\"exclusive_pus\": \"0,4,16,20\"") && !script.contains("\"db\""),
        "{script}"
    );
    for format in of_host {
        assert!(!emit(&[format.name]).contains("===="), "one text for the host");
    }
}

/// The commands that the page shows for layouts that others published, on the machine of theirs.
#[test]
fn published_layouts_are_one_command_each() {
    let docs = files::read_text(&format!("{ROOT}/docs/requests.md")).expect("the page is there");
    let (_, section) = docs.split_once("## Pins by hand").expect("the section is there");
    let commands: Vec<&str> =
        section.lines().filter(|line| line.starts_with("pinfold plan ")).collect();
    let [affinity, isolate] = commands.as_slice() else { panic!("{commands:?}") };
    let input = format!("{ROOT}/fixtures/hosts/ryzen-5950x.synthetic");
    let planned = |line: &str, form: &[&str]| -> String {
        let mut words: Vec<&str> = line.split_whitespace().skip(1).collect();
        words.extend(["--input", &input]);
        words.extend(form);
        let (text, _) = expect(0, &words);
        text
    };
    let xml = planned(affinity, &["--emit", "libvirt"]);
    assert_parts(
        &xml,
        &[
            "<vcpupin vcpu='2' cpuset='2,6'/>",
            "<iothreadpin iothread='1' cpuset='0'/>",
            "<iothreadpin iothread='2' cpuset='7'/>",
        ],
    );
    let xml = planned(isolate, &["--emit", "libvirt"]);
    assert_parts(
        &xml,
        &[
            "<vcpupin vcpu='0' cpuset='8'/>",
            "<vcpupin vcpu='15' cpuset='31'/>",
            "<emulatorpin cpuset='7,23'/>",
            "<iothreadpin iothread='1' cpuset='7,23'/>",
            "<vcpusched vcpus='15' scheduler='rr' priority='1'/>",
            "<iothreadsched iothreads='1' scheduler='fifo' priority='98'/>",
            "<topology sockets='1' cores='8' threads='2'/>",
        ],
    );
    let json = planned(isolate, &["--json"]);
    assert_parts(
        &json,
        &[
            "\"housekeeping_pus\": \"0-6,16-22\"",
            "\"exclusive_pus\": \"7-15,23-31\"",
            "pinned to the CPUs 7,23 by hand",
        ],
    );
    assert_parts(&planned(isolate, &["--explain"]), &["note: pins: emulator=7,23 by hand"]);
}

#[test]
fn a_pin_that_cannot_be_is_refused_before_anything_is_planned() {
    let input = format!("{ROOT}/fixtures/hosts/ryzen-5950x.synthetic");
    let check = |flags: &[&str], reported: &str| {
        let mut arguments = vec!["plan", "-s", "balanced", "--vcpus", "4", "--input", &input];
        arguments.extend(flags);
        let (_, said) = expect(2, &arguments);
        assert!(said.contains(reported), "{said}");
    };
    check(&["--pin", "vcpu3"], "--pin: expected ROLE=CPUS, got \"vcpu3\"");
    check(&["--pin", "vcpu3=40"], "cannot pin vcpu(3) to 40: CPU 40 does not exist");
    check(&["--pin", "vcpu3=2", "--avoid", "2"], "the request avoids CPU 2");
    check(&["--name", "my vm"], "--name: invalid name \"my vm\": it contains white space");
    let two =
        ["plan", "-s", "balanced", "--vm", "name=a vcpus=2", "--vm", "name=b", "--pin", "vcpu0=1"];
    let (_, said) = expect(2, &two);
    assert!(said.contains("write pins=ROLE=CPUS among the keys of --vm"), "{said}");
}

/// A pin names a vCPU by its number in the domain file, also where numbers before it are a reserve.
#[test]
fn pins_have_the_numbers_of_the_domain_file() {
    let sandbox = Sandbox::new();
    let path = sandbox.path("sparse.xml");
    let xml = "<domain type='kvm'><name>sparse</name><memory unit='MiB'>512</memory>\n\
        <vcpu placement='static' current='2'>4</vcpu>\n\
        <vcpus><vcpu id='0' enabled='yes' hotpluggable='no'/><vcpu id='1' enabled='no' \
        hotpluggable='yes'/><vcpu id='2' enabled='no' hotpluggable='yes'/><vcpu id='3' \
        enabled='yes' hotpluggable='yes'/></vcpus>\n\
        <os><type arch='x86_64' machine='q35'>hvm</type></os></domain>\n";
    pinfold_host::files::write_atomic(&path, xml.as_bytes()).expect("a file");
    let input = "package:1 [numa(memory=8GiB)] l3:1 core:4 pu:1";
    let plan = |pin: &str| {
        let words = ["plan", "-s", "balanced", "--into", &path, "--pin", pin, "--input", input];
        pinfold([&words[..], &["--emit", "libvirt"]].concat())
    };
    let text = plan("vcpu3=2").expect_success().stdout_text();
    assert!(text.contains("<vcpupin vcpu='3' cpuset='2'/>"), "{text}");
    let said = plan("vcpu1=2").expect_code(2);
    assert!(said.contains("has no vCPU 1") && said.contains("it has 0, 3"), "{said}");
}
