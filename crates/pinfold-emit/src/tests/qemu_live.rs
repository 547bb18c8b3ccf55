//! The start script with a real QEMU (TCG, no disk, no network) on two CPUs of this machine.
//!
//! The script's QEMU is a child of a shell that the test starts and ends; nothing else is changed.
//! Without QEMU or a second CPU the tests are skipped and print so.

use std::collections::BTreeMap;

use pinfold_host::process::{self, Child, Spawn, Stdio};
use pinfold_host::{Clock as _, Host as _, LiveHost, SystemClock, paths};
use pinfold_model::{CpuSet, IsolationScope, Plan, PuId, Request, Tid, VcpuCount};
use pinfold_plan::{plan, schema};
use pinfold_qemu::parse;
use pinfold_samples::machine::Machine;

use super::qemu::{SECOND_NS, words};
use crate::qemu;

/// One vCPU on the second CPU that this process may use, the emulator on the first.
struct LiveMachine {
    script: String,
    layout: Plan,
    first: PuId,
    second: PuId,
}

/// `thread` is the value for QEMU's `-accel tcg,thread=`.
fn stage(thread: &str) -> Option<LiveMachine> {
    stage_under(&[], thread)
}

/// The same with a wrapper that starts QEMU.
fn stage_under(wrapper: &[&str], thread: &str) -> Option<LiveMachine> {
    let Some(program) = process::find_program("qemu-system-x86_64") else {
        eprintln!("skipped: qemu-system-x86_64 is not installed");
        return None;
    };
    let own = LiveHost::new().unwrap().affinity(process::own_pid()).unwrap();
    let mut pus = own.iter();
    let (Some(first), Some(second)) = (pus.next(), pus.next()) else {
        eprintln!("skipped: this process may use one CPU only");
        return None;
    };
    let machine =
        Machine::new([1, 1, 1, 2, 1], |place| if place.core == 0 { first.0 } else { second.0 });
    let mut request = Request::vm("vm", VcpuCount::Auto);
    request.isolation = IsolationScope::None;
    *pinfold_samples::iothreads(&mut request) = words(&["disk"]);
    let layout = plan("low-latency", &machine.build(), &request).unwrap();
    let mut argv = words(wrapper);
    argv.extend(words(&[&program, "-nodefaults", "-m", "64", "-display", "none"]));
    argv.extend(["-accel".to_owned(), format!("tcg,thread={thread}")]);
    argv.extend(words(&["-name", "guest=vm", "-object", "iothread,id=disk"]));
    Some(LiveMachine {
        script: qemu(&layout, &machine.build(), &parse(&argv)).unwrap(),
        layout,
        first,
        second,
    })
}

/// A real QEMU accepts the memory options: bound to node 0, touched by its own threads.
#[test]
fn memory_on_a_node() {
    let Some(stage) = stage("multi") else { return };
    let mut layout = stage.layout.clone();
    layout.vnodes[0].memory = Some(pinfold_model::MemoryPlan {
        nodes: vec![pinfold_model::NodeId(0)],
        bytes: Some(64 << 20),
        page_bytes: None,
        is_preferred: false,
        reason: "a test".to_owned(),
    });
    let machine = Machine::new([1, 1, 1, 2, 1], |place| place.core);
    let mut argv = words(&["qemu-system-x86_64", "-nodefaults", "-m", "32", "-display", "none"]);
    argv.extend(words(&["-accel", "tcg,thread=multi", "-object", "iothread,id=disk"]));
    let script = qemu(&layout, &machine.build(), &parse(&argv)).unwrap();
    let host = LiveHost::new().unwrap();
    let mut shell = start(&script, "/usr/bin:/bin");
    let running = wait_until(|| {
        let threads = threads(&host, shell.pid());
        threads.get("CPU 0/TCG").is_some_and(|vcpu| vcpu.ran_ns > SECOND_NS / 50)
    });
    shell.terminate().unwrap();
    assert!(shell.wait_for(&SystemClock, 20 * SECOND_NS).unwrap().is_some());
    assert!(running, "QEMU does not run under\n{script}");
}

/// Two cells, each with its own backend and thread context, in a real QEMU. Both are bound to node
/// 0 here, because few machines have two nodes.
#[test]
fn memory_in_two_cells() {
    let Some(stage) = stage("multi") else { return };
    let machine = Machine::new([2, 1, 1, 1, 1], |place| match place.package {
        0 => stage.first.0,
        _ => stage.second.0,
    });
    let mut layout =
        plan("sequential", &machine.build(), &Request::vm("vm", VcpuCount::Exactly(2))).unwrap();
    layout.vnodes[0].memory = Some(pinfold_model::MemoryPlan {
        nodes: vec![pinfold_model::NodeId(0), pinfold_model::NodeId(1)],
        bytes: Some(64 << 20),
        page_bytes: None,
        is_preferred: false,
        reason: "a test".to_owned(),
    });
    let argv = ["qemu-system-x86_64", "-nodefaults", "-display", "none", "-accel"];
    let argv = words(&[&argv[..], &["tcg,thread=multi"]].concat());
    let script = qemu(&layout, &machine.build(), &parse(&argv)).unwrap();
    for (part, count) in [("host-nodes=1", 1), ("node-affinity=1", 1), ("-numa node", 2)] {
        assert_eq!(script.matches(part).count(), count, "{part} in\n{script}");
    }
    let here = script.replace("host-nodes=1", "host-nodes=0");
    let here = here.replace("node-affinity=1", "node-affinity=0");
    let host = LiveHost::new().unwrap();
    let mut shell = start(&here, "/usr/bin:/bin");
    let running = wait_until(|| {
        let threads = threads(&host, shell.pid());
        let placed = |(name, pu): (&str, PuId)| {
            threads.get(name).is_some_and(|thread| thread.mask == CpuSet::single(pu))
        };
        placed(("CPU 0/TCG", stage.first)) && placed(("CPU 1/TCG", stage.second))
    });
    shell.terminate().unwrap();
    assert!(shell.wait_for(&SystemClock, 20 * SECOND_NS).unwrap().is_some());
    assert!(running, "QEMU does not run under\n{here}");
}

fn start(script: &str, path: &str) -> Child {
    Spawn::new("sh")
        .args(["-c", script, "start.sh"])
        .env("PATH", path)
        .stdin(Stdio::Null)
        .stdout(Stdio::Pipe)
        .stderr(Stdio::Null)
        .start()
        .unwrap()
}

#[test]
fn one_thread_for_all_vcpus_is_refused() {
    let Some(stage) = stage("single") else {
        return;
    };
    let args = ["-c", &stage.script, "start.sh"];
    let output = process::capture("sh", args, 60 * SECOND_NS).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(output.stderr_text().contains("use -accel tcg,thread=multi"), "{output:?}");
}

#[test]
fn by_taskset() {
    pinned_by_taskset(&[]);
}

/// QEMU is not the process that the script started, but its child, as with sudo.
#[test]
fn by_taskset_below_a_program_that_waits() {
    pinned_by_taskset(&["env", "A=1", "sh", "-c", "\"$@\" & wait $!", "sh"]);
}

fn pinned_by_taskset(wrapper: &[&str]) {
    let Some(stage) = stage_under(wrapper, "multi") else { return };
    let host = LiveHost::new().unwrap();
    // A PATH without pinfold.
    let mut shell = start(&stage.script, "/usr/bin:/bin");
    let wanted = [("CPU 0/TCG", stage.second), ("IO disk", stage.first)];
    let running = wait_until(|| {
        let threads = threads(&host, shell.pid());
        let pinned = wanted.iter().all(|(name, pu)| {
            threads.get(*name).is_some_and(|thread| thread.mask == CpuSet::single(*pu))
        });
        pinned && threads.get("CPU 0/TCG").is_some_and(|vcpu| vcpu.ran_ns > SECOND_NS / 50)
    });
    let found = threads(&host, shell.pid());
    shell.terminate().unwrap();
    let ended = shell.wait_for(&SystemClock, 20 * SECOND_NS).unwrap();
    assert!(running, "{found:?}");
    assert!(ended.is_some(), "the script does not end when it is told to");
    let others = found.iter().filter(|(name, _)| *name != "CPU 0/TCG");
    for (name, thread) in others {
        assert_eq!(thread.mask, CpuSet::single(stage.first), "{name}");
    }
}

/// A program named pinfold that records its arguments.
fn stand_in(folder: &str, ends_with: u8) -> String {
    let made = format!(
        "mkdir -p {folder} && cat >{folder}/pinfold <<'END'\n\
         #!/bin/sh\n[ \"$1 $2 $4\" = 'apply --qmp --plan' ] && [ -S \"$3\" ] && cp \"$5\" {folder}/plan\n\
         exit {ends_with}\nEND\nchmod +x {folder}/pinfold"
    );
    assert!(process::capture("sh", ["-c", &made], SECOND_NS * 10).unwrap().status.success());
    format!("{folder}:/usr/bin:/bin")
}

#[test]
fn by_pinfold() {
    let Some(stage) = stage("multi") else { return };
    let host = LiveHost::new().unwrap();
    let folder = format!("/tmp/pinfold-plan-by-{}", process::own_pid());
    let mut shell = start(&stage.script, &stand_in(&folder, 0));
    let running = wait_until(|| {
        let threads = threads(&host, shell.pid());
        threads.get("CPU 0/TCG").is_some_and(|vcpu| vcpu.ran_ns > SECOND_NS / 50)
    });
    shell.terminate().unwrap();
    let ended = shell.wait_for(&SystemClock, 20 * SECOND_NS).unwrap();
    let given = process::capture("cat", [format!("{folder}/plan")], SECOND_NS * 10).unwrap();

    let mut refused = start(&stage.script, &stand_in(&folder, 1));
    let refusal = refused.wait_for(&SystemClock, 40 * SECOND_NS).unwrap();
    let removed = process::capture("rm", ["-r", &folder], SECOND_NS * 10).unwrap();

    assert!(running && ended.is_some() && removed.status.success());
    assert_eq!(schema::from_json(&given.stdout_text()), Ok(stage.layout));
    assert_eq!(refusal.and_then(|status| status.code()), Some(1), "a guest that is not pinned");
}

fn wait_until(mut done: impl FnMut() -> bool) -> bool {
    (0..300).any(|_| {
        SystemClock.sleep_ns(SECOND_NS / 10);
        done()
    })
}

#[derive(Debug)]
struct Thread {
    mask: CpuSet,
    ran_ns: u64,
}

/// The threads of the script's QEMU by name; only one of those that have the process's name.
fn threads(host: &LiveHost, shell: Tid) -> BTreeMap<String, Thread> {
    let mut threads = BTreeMap::new();
    let mut processes = vec![shell];
    while let Some(process) = processes.pop() {
        let children = text(host, paths::task_file(process, process, "children"));
        processes.extend(numbers(children.split_whitespace().map(str::to_owned).collect()));
        let child = process;
        if child == shell {
            continue;
        }
        for tid in numbers(host.list(&paths::task_dir(child)).unwrap_or_default()) {
            let name = text(host, paths::task_comm(child, tid)).trim_end().to_owned();
            let ran = text(host, paths::task_schedstat(child, tid));
            let ran_ns = ran.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or(0);
            // The shell's own helper processes are no threads of QEMU.
            let helper = ["sh", "sed", "sleep"].contains(&name.as_str());
            if let (Ok(mask), false) = (host.affinity(tid), helper) {
                threads.insert(name, Thread { mask, ran_ns });
            }
        }
    }
    threads
}

fn text(host: &LiveHost, path: String) -> String {
    host.read_text(&path).unwrap_or_default()
}

fn numbers(names: Vec<String>) -> Vec<Tid> {
    names.iter().filter_map(|name| name.parse().ok()).map(Tid).collect()
}
