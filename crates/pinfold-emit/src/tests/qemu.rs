//! The start script as text, and run by `sh` with other programs instead of QEMU.

use pinfold_host::process;
use pinfold_model::{Plan, Policy, Role};
use pinfold_plan::plan;
use pinfold_qemu::parse;
use pinfold_samples::machine::i7_4790k;
use pinfold_samples::{auto, exactly};

use crate as emit;

pub const SECOND_NS: u64 = 1_000_000_000;

pub fn words(words: &[&str]) -> Vec<String> {
    words.iter().copied().map(str::to_owned).collect()
}

pub fn qemu(layout: &Plan, argv: &[String]) -> Result<String, pinfold_model::NotSingleVnode> {
    emit::qemu(layout, &i7_4790k().build(), &parse(argv))
}

fn make_plan() -> Plan {
    plan("low-latency", &i7_4790k().build(), &auto()).unwrap()
}

fn has(argv: &[&str], expected: &[&str], absent: &[&str]) {
    let script = qemu(&make_plan(), &words(argv)).unwrap();
    for text in expected {
        assert!(script.contains(text), "{text} is not in\n{script}");
    }
    for text in absent {
        assert!(!script.contains(text), "{text} is in\n{script}");
    }
}

#[test]
fn the_plan_takes_the_place_of_the_commands_own_options() {
    has(
        &["qemu", "-smp", "8,maxcpus=16", "-m", "1G"],
        &[
            "-smp 3,sockets=1,cores=3,threads=1",
            "guest topology replaces your `-smp 8,maxcpus=16`",
            "-m 1G",
        ],
        &["    -smp 8"],
    );
    has(&["qemu", "--smp", "2", "-smp", "4"], &["`-smp 2`", "`-smp 4`"], &["--smp"]);
    has(&["qemu", "-daemonize"], &["# Your `-daemonize` was removed"], &["    -daemonize"]);
    has(&["qemu", "-smp"], &["-smp 3,"], &[]);
    has(&["qemu"], &["stays_stopped=no", "vcpus=3", "isolates=yes"], &[]);
    has(&["qemu", "-S"], &["stays_stopped=yes"], &[]);
    has(&["qemu", "-incoming", "tcp:0:1"], &["stays_stopped=yes"], &[]);
}

#[test]
fn what_taskset_cannot_do_needs_pinfold() {
    let mut request = auto();
    *pinfold_samples::iothreads(&mut request) = words(&["disk", "a-disk-with-a-long-name"]);
    let mut layout = plan("low-latency", &i7_4790k().build(), &request).unwrap();
    let script = qemu(&layout, &words(&["qemu"])).unwrap();
    assert!(script.contains("pin_one 'IO disk' 5-7"), "{script}");
    assert!(script.contains("too long for a thread's name; pin_all has put it there"));
    for thread in &mut layout.vnodes[0].threads {
        thread.policy = match thread.role {
            Role::Vcpu(0) => Some(Policy::Fifo { priority: 1 }),
            Role::Vcpu(_) => Some(Policy::Deadline { runtime_ns: 1, deadline_ns: 2, period_ns: 3 }),
            Role::Emulator | Role::Iothread(_) | Role::Vhost(_) | Role::Worker | Role::Task => None,
        };
    }
    let script = qemu(&layout, &words(&["qemu"])).unwrap();
    assert!(script.contains("schedule 'CPU 0/' -f -p 1 || return 1"), "{script}");
    assert!(script.contains("vcpu(1) needs the policy deadline 1/3 ns: install pinfold"));
    assert_sh_reads(&script);
}

/// Runs the script; with `-n` in `flags`, only checks its syntax.
fn sh(flags: &str, script: &str, arguments: &[&str]) -> process::Output {
    let mut args = vec![format!("{flags}c"), script.to_owned(), "start.sh".to_owned()];
    args.extend(words(arguments));
    process::capture("sh", args, 30 * SECOND_NS).unwrap()
}

pub fn assert_sh_reads(script: &str) {
    let output = sh("-n", script, &[]);
    assert!(output.status.success(), "{}\n{script}", output.stderr_text());
}

const NASTY: &[&str] = &[
    "a b",
    "'",
    "''\"$(touch /nowhere)`id`\\",
    "$HOME",
    "line\nfeed; exit 9",
    "",
    "*",
    "~",
    "# no comment",
    "-append",
    "END_OF_PLAN",
    "größer",
];

#[test]
fn sh_reads_every_script() {
    // All strategies that place a virtual machine.
    for strategy in pinfold_plan::strategies().iter().filter(|strategy| strategy.name != "vnodes") {
        let mut request = exactly(3);
        request.vnodes[0].name = "x\n$(exit 9)`exit 9`'".to_owned();
        *pinfold_samples::iothreads(&mut request) = words(&["it's", "$(x)"]);
        let mut layout = plan(strategy.name, &i7_4790k().build(), &request).unwrap();
        for thread in &mut layout.vnodes[0].threads {
            thread.reason = "because\nexit 9\nEND_OF_PLAN\n}".to_owned();
        }
        let script = qemu(&layout, &words(NASTY)).unwrap();
        assert!(!script.lines().any(|line| line.trim() == "exit 9"), "{script}");
        assert_sh_reads(&script);
        assert_sh_reads(&qemu(&layout, &[]).unwrap());
    }
}

/// `printf` instead of QEMU: it prints its arguments and exits, and the script exits too.
#[test]
fn arguments_arrive_to_the_character() {
    let mut command = words(&["printf", "<%s>\\n"]);
    command.extend(words(NASTY));
    let output = sh("-", &qemu(&make_plan(), &command).unwrap(), &["further one"]);
    let mut expected: String = NASTY.iter().map(|word| format!("<{word}>\n")).collect();
    expected.push_str("<further one>\n<-smp>\n<3,sockets=1,cores=3,threads=1>\n");
    let printed = output.stdout_text();
    assert!(printed.starts_with(&expected), "{printed}\n{}", output.stderr_text());
    assert_eq!(output.status.code(), Some(0), "{}", output.stderr_text());
}

#[test]
fn a_qemu_that_does_not_start_says_so_itself() {
    let output = sh(
        "-",
        &qemu(&make_plan(), &words(&["sh", "-c", "echo no such disk >&2; exit 3"])).unwrap(),
        &[],
    );
    assert_eq!(output.status.code(), Some(3));
    assert_eq!(output.stderr_text(), "no such disk\n");
    let output = sh("-", &qemu(&make_plan(), &words(&["/does/not/exist"])).unwrap(), &[]);
    assert_eq!(output.status.code(), Some(127), "{}", output.stderr_text());
}

#[test]
fn the_command_has_the_scripts_own_input() {
    let script = qemu(&make_plan(), &words(&["sh", "-c", "cat"])).unwrap();
    let command = "printf 'typed' | sh -c \"$1\" start.sh";
    let output = process::capture("sh", ["-c", command, "sh", &script], 30 * SECOND_NS).unwrap();
    assert_eq!(output.stdout_text(), "typed", "{}", output.stderr_text());
}

/// The options of a wrapper are not QEMU's, and stay unchanged.
#[test]
fn a_wrapper_keeps_its_options() {
    has(
        &["numactl", "-m", "0", "sudo", "-S", "qemu-system-x86_64", "-m", "1G", "-smp", "8"],
        &["set -- numactl -m 0 sudo -S qemu-system-x86_64 \"$@\" \\\n    -smp 3,", "-m 1G"],
        &["stays_stopped=yes"],
    );
    has(
        &["env", "-S", "A=1 qemu-system-x86_64 -S -smp 8"],
        &["set -- env A=1 qemu-system-x86_64 \\\n    -S \"$@\"", "replaces your `-smp 8`"],
        &["stays_stopped=no"],
    );
}

/// A machine with room for more vCPUs starts with its present number, and keeps the room.
#[test]
fn vcpus_that_are_plugged_in_later_have_a_place() {
    has(
        &["qemu-system-x86_64", "-smp", "1,maxcpus=3", "-m", "1G,slots=2,maxmem=2G"],
        &[
            "vcpus=1\n",
            "-smp 1,maxcpus=3,sockets=1,cores=3,threads=1",
            "pin_one 'CPU 0/' 1",
            "# vcpu(2) is for 3 when it is plugged in.",
            "-m 1G,slots=2,maxmem=2G",
        ],
        &["pin_one 'CPU 1/'"],
    );
    let mut layout = make_plan();
    layout.vnodes[0].memory = Some(pinfold_model::MemoryPlan {
        nodes: vec![pinfold_model::NodeId(0)],
        bytes: Some(1 << 30),
        page_bytes: None,
        is_preferred: false,
        reason: "a test".to_owned(),
    });
    let script = qemu(&layout, &words(&["qemu", "-m", "1G,slots=2,maxmem=2G"])).unwrap();
    assert!(script.contains("-m size=1073741824B,slots=2,maxmem=2G"), "{script}");
}

/// Threads are written only if the guest's board and CPU model support them, dies only for a PC.
#[test]
fn the_shape_is_one_that_the_board_can_show() {
    let (amd, intel) = (Some("AMD Ryzen"), Some("Intel Core"));
    let (threads, cores) =
        ("16,sockets=1,dies=2,cores=4,threads=2", "16,sockets=1,dies=2,cores=8,threads=1");
    check("qemu-system-x86_64 -accel kvm -cpu host", amd, threads);
    check("qemu-system-x86_64 -cpu host,topoext=off", amd, cores);
    check("qemu-system-x86_64 -enable-kvm -cpu Nehalem", amd, threads);
    check("qemu-kvm", amd, cores);
    check("qemu-kvm", intel, threads);
    check("qemu-system-x86_64 -accel tcg -cpu EPYC", intel, cores);
    check("qemu-system-x86_64 -accel tcg -cpu Nehalem", amd, threads);
    check("qemu-system-x86_64", None, cores);
    check("./start.sh", amd, threads);
    check("./start.sh", None, "16,sockets=1,cores=8,threads=2");
    check("qemu-system-x86_64 -M microvm -cpu Nehalem", amd, "16,sockets=1,cores=8,threads=2");
    check("qemu-system-aarch64 -M virt", amd, "16,sockets=1,cores=8,threads=2");
    check("qemu-system-riscv64 -M virt", amd, "16,sockets=1,cores=16,threads=1");
    check("qemu-system-s390x", intel, "16,sockets=1,cores=16,threads=1");
}

fn check(line: &str, model: Option<&str>, expected: &str) {
    let mut topology = pinfold_samples::machine::two_complexes().build();
    topology.model = model.map(str::to_owned);
    let layout = plan("max-performance", &topology, &auto()).unwrap();
    let argv: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    let script = emit::qemu(&layout, &topology, &parse(&argv)).unwrap();
    let smp = script.lines().find_map(|line| line.trim().strip_prefix("-smp ")).unwrap();
    assert_eq!(smp.trim_end_matches(" \\"), expected, "{line} on {model:?}\n{script}");
}

/// QEMU accepts the options written for its board without a warning.
#[test]
fn every_qemu_takes_its_shape() {
    let topology = pinfold_samples::machine::two_complexes().build();
    let layout = plan("max-performance", &topology, &auto()).unwrap();
    for (program, rest) in [
        ("qemu-system-x86_64", "-M q35"),
        ("qemu-system-x86_64", "-M microvm -cpu Nehalem"),
        ("qemu-system-x86_64", "-cpu EPYC"),
        ("qemu-system-aarch64", "-M virt,gic-version=3 -cpu max"),
        ("qemu-system-riscv64", "-M virt"),
        ("qemu-system-s390x", ""),
    ] {
        if process::find_program(program).is_none() {
            eprintln!("skipped: {program} is not installed");
            continue;
        }
        let line = format!("{program} {rest} -accel tcg -nodefaults -display none");
        let argv: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let script = emit::qemu(&layout, &topology, &parse(&argv)).unwrap();
        let smp = script.lines().find_map(|line| line.trim().strip_prefix("-smp ")).unwrap();
        let smp = smp.trim_end_matches(" \\");
        let line = format!("printf 'quit\\n' | {line} -S -monitor stdio -smp {smp}");
        let output = process::capture("sh", ["-c", &line], 60 * SECOND_NS).unwrap();
        let said = format!("{}{}", output.stdout_text(), output.stderr_text());
        assert!(output.status.success(), "{line}: {said}");
        for word in ["not supported by", "hyperthreading"] {
            assert!(!said.contains(word), "{line}: {said}");
        }
    }
}
