//! Tables of command lines and their parsed form.

use pinfold_model::{Accelerator, NodeId};

use super::*;

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn counts_vcpus_as_qemu_does() {
    check("qemu", None);
    check("qemu -smp 3", Some(3));
    check("qemu --smp 3", Some(3));
    check("qemu -smp cpus=4,sockets=1,cores=2,threads=2", Some(4));
    check("qemu -smp sockets=2,cores=3,threads=2", Some(12));
    check("qemu -smp sockets=1,dies=2,cores=2", Some(4));
    check("qemu -smp 2,maxcpus=8", Some(2));
    check("qemu -smp maxcpus=8", Some(8));
    check("qemu -smp 2 -smp 5", Some(5));
    check("qemu -M q35,smp.cpus=6", Some(6));
    check("qemu -machine q35", None);
    check("qemu -append -smp -m 1", None);
    check("qemu -smp", None);
    check("qemu -smp many", None);
    check("qemu -smp sockets=4000000000,cores=4000000000", None);
}

fn check(line: &str, expected: Option<u32>) {
    assert_eq!(parse(&words(line)).vcpus(), expected, "{line}");
}

#[test]
fn finds_what_executes_the_guest() {
    fn check(line: &str, expected: Option<Accelerator>) {
        assert_eq!(parse(&words(line)).accelerator(), expected, "{line}");
    }

    use Accelerator::{Kvm, TcgMulti, TcgSingle};
    check("qemu -accel kvm", Some(Kvm));
    check("qemu -enable-kvm -machine q35,accel=kvm", Some(Kvm));
    check("qemu -accel tcg,thread=multi -cpu kvm64", Some(TcgMulti));
    check("qemu -accel tcg,thread=single", Some(TcgSingle));
    check("qemu -accel accel=tcg -icount shift=1", Some(TcgSingle));
    check("qemu -M microvm,accel=tcg", Some(TcgMulti));
    // QEMU tries the accelerators in order, and its default varies between builds.
    check("qemu -machine q35,accel=kvm:tcg", None);
    check("qemu -accel kvm -accel tcg", None);
    check("qemu -append -enable-kvm -cpu kvm64", None);
    assert_eq!(parse(&words("qemu")).translator(), TcgMulti);
}

#[test]
fn sets_the_guest_topology() {
    let guest = GuestTopology { sockets: 1, cores: 3, threads: 2, reason: String::new() };
    let check = |line: &str, expected: &str| {
        assert_eq!(set_smp(&parse(&words(line)), &guest), words(expected), "{line}");
    };
    let smp = "-smp 6,sockets=1,cores=3,threads=2";
    check("qemu", &format!("qemu {smp}"));
    check("qemu -smp 2 -m 1G", &format!("qemu {smp} -m 1G"));
    check("qemu -smp 2,maxcpus=4 -S -smp 3", &format!("qemu {smp} -S"));
    check("qemu -M q35,smp.cpus=2,usb=on", &format!("qemu -M q35,usb=on {smp}"));
    check("qemu -append -smp", &format!("qemu -append -smp {smp}"));
    check("qemu -m 1G -smp", &format!("qemu -m 1G {smp}"));
}

#[test]
fn reads_names_uuids_and_iothreads() {
    fn check(line: &str, name: Option<&str>) {
        assert_eq!(parse(&words(line)).name(), name, "{line}");
    }

    check("qemu", None);
    check("qemu -name a", Some("a"));
    check("qemu -name guest=a,,b,debug-threads=on", Some("a,b"));
    check("qemu -name a -name debug-threads=on", Some("a"));
    check("qemu -name a -name b", Some("b"));

    iothreads("qemu -object iothread,id=io0 -object rng-random,id=r", &["io0"]);
    iothreads("qemu -object qom-type=iothread,id=a,poll-max-ns=0", &["a"]);
    iothreads(r#"qemu -object {"qom-type":"iothread","id":"j"}"#, &["j"]);
    iothreads("qemu -object {broken -object iothread", &[]);
    assert_eq!(parse(&words("qemu -uuid u")).uuid(), Some("u"));
}

fn iothreads(line: &str, expected: &[&str]) {
    assert_eq!(parse(&words(line)).iothreads(), expected, "{line}");
}

#[test]
fn distinguishes_options_from_values() {
    fn check(line: &str, flag: &str, expected: bool) {
        assert_eq!(parse(&words(line)).has(flag), expected, "{line}");
    }

    check("qemu -S", "S", true);
    check("qemu --S", "S", true);
    check("qemu -append -S", "S", false);
    check("qemu -nodefaults -S", "S", true);
    check("qemu -daemonize", "daemonize", true);
    check("qemu -name -daemonize", "daemonize", false);
    check("qemu disk.img -S", "S", true);
    check("qemu -S -append", "append", true);
}

/// Arguments before QEMU's program belong to the wrapper; `-S` counts only if QEMU gets it.
#[test]
fn qemus_options_begin_after_its_program() {
    fn check(line: &str, before: usize, stopped: bool) {
        let command = parse(&words(line));
        assert_eq!(command.wrapper.len(), before, "{line}: {command:?}");
        assert_eq!(command.program, "qemu-system-x86_64", "{line}");
        assert_eq!(command.has("S"), stopped, "{line}");
        assert_eq!(command.memory_bytes(), Some(64 << 20), "{line}");
        assert_eq!(command.words(), words(line), "{line}");
    }

    let wrappers = [
        "sudo -S",
        "sudo -nS -u kvm -g qemu -- ",
        "sudo --user qemu A=b",
        "doas -u vm",
        "env -i A=1 B=2",
        "env -u S",
        "nice -n 5",
        "nice -10",
        "ionice -c 2 -n 0",
        "chrt -f 10",
        "chrt --sched-runtime 5 --sched-period 9 -d 0",
        "taskset -c 0-3",
        "taskset f",
        "numactl -m 0",
        "numactl --membind 0 -C 0-3 --",
        "numactl -N0 -l",
        "unshare -m",
        "unshare -S 0 --map-user 5 --mount",
        "setpriv --reuid 7 --clear-groups",
        "ip netns exec kvm",
        "ip -n blue netns exec qemu",
        "systemd-run --scope -p MemoryMax=1G -S",
        "systemd-run --user --scope --unit qemu --slice=vm.slice",
        "prlimit --memlock=1 -o X",
        "timeout -s INT 9m",
        "nohup",
        "stdbuf -o L",
        "sudo -u vm env A=1 numactl -m 0 chrt -f 10 taskset -c 1",
        // Programs that are not in the table of wrappers.
        "./start -m 0",
        "/opt/numactl.sh -S -m 0",
        "perf stat -e cycles -S --",
    ];
    for wrapper in wrappers {
        let before = words(wrapper).len();
        check(&format!("{wrapper} qemu-system-x86_64 -m 64"), before, false);
        check(&format!("{wrapper} qemu-system-x86_64 -m 64 -S"), before, true);
        check(&format!("{wrapper} qemu-system-x86_64 -m 64 -append -S"), before, false);
    }
    // A script that is expected to pass its arguments on.
    let script = parse(&words("sudo -S ./start.sh -m 64 -S"));
    assert_eq!((script.program.as_str(), script.has("S")), ("./start.sh", true));
    assert_eq!(parse(&words("sudo -S")).program, "");
    assert_eq!(parse(&[]), QemuCommand::default());
}

#[test]
fn what_env_splits_is_split() {
    fn check(argv: &[&str], expected: &str) {
        let argv: Vec<String> = argv.iter().map(|&word| word.to_owned()).collect();
        let command = parse(&argv);
        assert_eq!(command.program, "qemu-kvm", "{argv:?}");
        assert_eq!(command.words().join("|"), expected, "{argv:?}");
    }

    check(&["env", "-S", "qemu-kvm -m 64"], "env|qemu-kvm|-m|64");
    check(&["env", "-S", "A=1 qemu-kvm", "-S"], "env|A=1|qemu-kvm|-S");
    check(&["env", "-vSqemu-kvm -m 64"], "env|qemu-kvm|-m|64");
    check(&["env", "--split-string=qemu-kvm  -name 'a b'"], "env|qemu-kvm|-name|a b");
    check(&["env", "--split-string", "-i qemu-kvm", "-m", "1"], "env|-i|qemu-kvm|-m|1");
    check(&["env", "-S", r#"qemu-kvm -name "a\_b" c\ d"#], "env|qemu-kvm|-name|a b|c d");
    check(&["env", "-uS", "-C/S", "qemu-kvm"], "env|-uS|-C/S|qemu-kvm");
    assert!(!parse(&words("env -S")).has("S"));
}

#[test]
fn only_a_scope_stays_a_child() {
    fn check(line: &str, expected: bool) {
        assert_eq!(is_handed_over(&parse(&words(line))), expected, "{line}");
    }

    check("systemd-run qemu-kvm", true);
    check("sudo systemd-run --wait -t qemu-kvm", true);
    check("systemd-run --user --scope qemu-kvm", false);
    check("qemu-kvm -name systemd-run", false);
}

#[test]
fn reads_what_a_plan_needs() {
    let line =
        "qemu-system-x86_64 -M pc -machine q35,memory-backend=m0 -smp 4,maxcpus=8 -m 2G,slots=2";
    let command = parse(&words(line));
    assert_eq!((command.vcpus(), command.max_vcpus()), (Some(4), Some(8)));
    assert_eq!((command.architecture(), command.board()), (Some("x86_64"), Some("q35")));
    assert_eq!(command.memory_bytes(), Some(2 << 30));
    assert_eq!(parse(&words("qemu-kvm -smp 4")).max_vcpus(), Some(4));
    assert_eq!(parse(&words("qemu-kvm")).max_vcpus(), None);
    assert_eq!(parse(&words("kvm -m 512")).architecture(), None);

    let backend = "-object memory-backend-ram,id=m0,size=1G,host-nodes=1,policy=bind";
    assert_eq!(nodes(&format!("{line} {backend}")), [NodeId(1)]);
    assert_eq!(nodes("qemu-kvm -m 1G"), []);

    let cells = parse(&words(&format!(
        "qemu-kvm -smp 4 {backend} \
         -object {{\"qom-type\":\"memory-backend-ram\",\"id\":\"m1\",\"size\":1024,\"host-nodes\":[0,2],\"policy\":\"bind\"}} \
         -numa node,nodeid=1,cpus=2-3,memdev=m1 -numa node,nodeid=0,cpus=0,cpus=1,memdev=m0"
    )))
    .cells();
    let seen: Vec<_> = cells
        .iter()
        .map(|cell| (cell.vcpus.to_string(), cell.memory_bytes, cell.host_nodes.clone()))
        .collect();
    let expected = [
        ("0-1".to_owned(), Some(1 << 30), vec![NodeId(1)]),
        ("2-3".to_owned(), Some(1024), vec![NodeId(0), NodeId(2)]),
    ];
    assert_eq!(seen, expected);
}

fn nodes(line: &str) -> Vec<NodeId> {
    parse(&words(line)).memory_nodes()
}
