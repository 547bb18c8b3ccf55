//! Pinfold in the place of numad, asked by a real libvirt: domains with `placement='auto'` start,
//! and their vCPUs and their memory are on the nodes of the answer.

use crate::common::machine::list_masks;
use crate::common::{PINFOLD, Sandbox, is_missing, run, skip, until};
use crate::daemon::Daemon;
use pinfold_host::process::{find_program, is_root};
use pinfold_host::{LiveHost, files};
use pinfold_model::{CpuSet, Tid};

const NAME: &str = "pinfold-numad";
/// Runs a program with this binary as `/usr/bin/numad`, which may not be there, and with a log of
/// its own in place of the host's journal: in a mount namespace, so the host's stay as they are.
/// It runs on CPU 0, which a domain inherits unless libvirt sets what it was answered. The CPUs of
/// other tests do not count.
const IN_PLACE: &str = "set -e
    layer=$1 log=$2 binary=$3
    shift 3
    mount -t overlay overlay -o lowerdir=\"$layer\":/usr/bin /usr/bin
    [ -z \"$binary\" ] || mount --bind \"$binary\" /usr/bin/numad
    mount --bind \"$log\" /var/log
    taskset -p -c 0 $$ >/dev/null
    export PINFOLD_IGNORE_CLAIMS=true
    [ ! -d /run/systemd/journal ] || mount -t tmpfs tmpfs /run/systemd/journal
    exec \"$@\"";

/// What is before the command line of a daemon that asks this binary; `None` if it cannot be here.
fn in_place(sandbox: &Sandbox) -> Option<Vec<String>> {
    if !is_root() {
        skip("only root can put another program in the place of /usr/bin/numad, with unshare");
        return None;
    }
    if is_missing(&["unshare", "mount", "taskset"]) {
        return None;
    }
    for folder in ["layer", "log"] {
        files::make_dirs(&sandbox.path(folder)).expect("a folder");
    }
    let program = sandbox.write("layer/numad", "");
    let log = sandbox.path("log");
    run("chmod", ["755", &program]);
    run("chmod", ["777", &log]);
    let words = ["unshare", "-m", "sh", "-c", IN_PLACE, "-", &sandbox.path("layer"), &log, PINFOLD];
    let words = words.map(str::to_owned).to_vec();
    let probe = run("env", [&words[..], &["true".to_owned()]].concat());
    if !probe.status.success() {
        skip(format_args!("/usr/bin/numad cannot be replaced here: {}", probe.stderr_text()));
        return None;
    }
    Some(words)
}

/// Writes the file of the domain.
fn write(daemon: &Daemon, vcpus: &str, more: &str) -> String {
    let emulator = find_program("qemu-system-x86_64").expect("it was found before");
    let xml = format!(
        "<domain type='qemu'><name>{NAME}</name><memory unit='MiB'>33</memory>{vcpus}{more}
         <os><type arch='x86_64' machine='q35'>hvm</type></os>
         <devices><emulator>{emulator}</emulator></devices></domain>"
    );
    let file = format!("{}/domain.xml", daemon.folder.path().display());
    files::write_atomic(&file, xml.as_bytes()).expect("written");
    file
}

/// Starts the domain paused, and returns its process.
fn start(daemon: &Daemon, vcpus: &str, more: &str) -> Result<Tid, String> {
    let root = daemon.folder.path().to_string_lossy();
    daemon.virsh(&["create", &write(daemon, vcpus, more), "--paused"])?;
    let text = files::read_text(&format!("{root}/libvirt/qemu/run/{NAME}.pid"));
    Ok(Tid(text.expect("a pid file").trim().parse().expect("a number")))
}

/// The nodes of the last answer, and its line.
fn last_answer(sandbox: &Sandbox) -> (String, String) {
    let log = sandbox.read("log/pinfold/numad.log");
    let line = log.lines().last().expect("an answer").to_owned();
    let (_, after) = line.split_once(": node ").expect("nodes");
    let nodes = after.split(':').next().expect("nodes").to_owned();
    (nodes, line)
}

/// Number of answers so far.
fn count(sandbox: &Sandbox) -> usize {
    let log = files::read_text(&sandbox.path("log/pinfold/numad.log")).unwrap_or_default();
    log.lines().count()
}

/// The CPUs of nodes, as the kernel reports them.
fn cpus_of(nodes: &str) -> CpuSet {
    let nodes = CpuSet::parse_list(nodes).expect("nodes");
    let lists = nodes.iter().map(|node| {
        let file = format!("/sys/devices/system/node/node{}/cpulist", node.0);
        CpuSet::parse_list(files::read_text(&file).expect("a node").trim()).expect("CPUs")
    });
    lists.fold(CpuSet::default(), |all, one| all.union(&one))
}

#[test]
fn vcpus_and_memory_are_on_the_nodes_that_libvirt_was_given() {
    let sandbox = Sandbox::new();
    let Some(wrap) = in_place(&sandbox) else { return };
    let Some(daemon) = Daemon::start_by(NAME, &wrap) else { return };
    let auto = "<vcpu placement='auto'>2</vcpu>";
    for (vcpus, more, policy) in [
        // libvirt binds the memory without being asked.
        (auto, String::new(), "bind"),
        (auto, numatune("strict"), "bind"),
        ("<vcpu>2</vcpu>", numatune("strict"), "bind"),
        (auto, numatune("interleave"), "interleave"),
        (auto, numatune("preferred"), "prefer"),
    ] {
        let asked = count(&sandbox);
        let pid = start(&daemon, vcpus, &more).unwrap_or_else(|error| panic!("{more}: {error}"));
        let (nodes, line) = last_answer(&sandbox);
        let all = count(&sandbox);
        assert_eq!(all, asked + 1, "libvirt asks once: {line}");
        assert!(
            line.contains(" UTC -w 2:33: node ") && line.contains("free for 2 vCPUs"),
            "{line}"
        );
        let masks = list_masks(&LiveHost::new().expect("a host"), pid);
        let node_cpus = cpus_of(&nodes);
        assert!(masks.values().all(|mask| *mask == node_cpus), "{masks:?} {line}");
        let maps = files::read_text(&format!("/proc/{}/numa_maps", pid.0)).expect("maps");
        let policy = format!("{policy}:{nodes}");
        let is_bound = maps.lines().any(|line| line.split(' ').nth(1) == Some(&policy));
        assert!(is_bound, "no memory has the policy {policy} in\n{maps}");
        daemon.virsh(&["destroy", NAME]).expect("it ends");
        assert!(until(|| !files::exists(&format!("/proc/{}/stat", pid.0))), "QEMU {} ends", pid.0);
    }
}

fn numatune(mode: &str) -> String {
    format!("<numatune><memory mode='{mode}' placement='auto'/></numatune>")
}

/// The definition has the size of the pages, which libvirt does not pass.
#[test]
fn pages_of_the_size_in_the_definition_are_counted() {
    let sandbox = Sandbox::new();
    let Some(wrap) = in_place(&sandbox) else { return };
    let Some(daemon) = Daemon::start_by(NAME, &wrap) else { return };
    let auto = "<vcpu placement='auto'>2</vcpu>";
    for (backing, expected) in [
        ("<hugepages><page size='2' unit='MiB'/></hugepages>", "33 MiB in pages of 2 MiB"),
        ("<locked/>", "33 MiB; for domain"),
    ] {
        let backing = format!("<memoryBacking>{backing}</memoryBacking>");
        daemon.virsh(&["define", &write(&daemon, auto, &backing)]).expect("it is defined");
        // Without such pages, or the right to lock memory, it ends at once.
        let started = daemon.virsh(&["start", NAME, "--paused"]);
        let (_, line) = last_answer(&sandbox);
        assert!(line.contains(expected), "{line} {started:?}");
        assert!(line.contains("; for domain pinfold-numad"), "{line}");
        daemon.virsh(&["undefine", NAME]).expect("it is not defined any more");
    }
}

/// What libvirt does without an answer; a program that fails once would do the same.
#[test]
fn without_the_program_such_a_domain_does_not_start() {
    let sandbox = Sandbox::new();
    let Some(mut wrap) = in_place(&sandbox) else { return };
    *wrap.last_mut().expect("the binary") = String::new();
    let Some(daemon) = Daemon::start_by(NAME, &wrap) else { return };
    let error = start(&daemon, "<vcpu placement='auto'>2</vcpu>", "").expect_err("no numad");
    assert!(error.contains("numad"), "{error}");
    assert!(start(&daemon, "<vcpu>2</vcpu>", "").is_ok(), "another one does");
}
