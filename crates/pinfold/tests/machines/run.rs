//! `run`, `apply`, `status` and `undo` on a real QEMU of this test's own.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;

use crate::common::machine::{Machine, QEMU, list_threads};
use crate::common::{Checked as _, MINUTE_NS, Sandbox, assert_parts, is_missing, skip, until};
use pinfold_host::files::StateDir;
use pinfold_host::process::{self, Output, Signaled, Stdio};
use pinfold_host::{Host as _, HostMut as _, LiveHost, SystemClock};
use pinfold_model::CpuSet;

#[test]
fn apply_status_undo_on_a_running_machine() {
    let Some(machine) = Machine::new("-smp 1") else { return };
    let qmp = machine.qmp();
    let place = ["apply", "--qmp", &qmp, "--strategy", "compact"];
    let before = machine.masks();
    machine.print(&[&place[..], &["--dry-run"]].concat());
    assert_eq!(machine.masks(), before, "a dry run changes nothing");
    machine.print(&place);
    let undo = format!("pinfold --state-dir {} undo", machine.path("state"));
    machine.refuse(&[&place[..], &["--keep"]].concat(), 3, &undo);
    assert_parts(&machine.print(&["status"]), &["vcpu(0)"]);
    machine.print(&["undo"]);
    assert_eq!(machine.masks(), before, "everything is as it was");
}

#[test]
fn undo_names_the_process_that_holds_a_placement_and_leaves_it() {
    if is_missing(&[QEMU]) {
        return;
    }
    let sandbox = Sandbox::new();
    let words = ["run", "--strategy", "compact", "--", QEMU, "-M", "q35", "-accel"];
    let options = ["tcg,thread=multi", "-display", "none", "-nodefaults", "-m", "64M"];
    let run = sandbox.spawn(&[&words[..], &options].concat());
    let run = run.stdout(Stdio::Null).stderr(Stdio::Null).die_with_parent(true);
    let mut run = run.start().expect("pinfold starts");
    let status = || sandbox.run(&["status"]).stdout_text();
    assert!(until(|| status().contains("vcpu(0)")), "{}", status());
    let pid = run.pid().to_string();
    for words in [&["undo"][..], &["undo", "--all"]] {
        let said = sandbox.run(words).expect_code(3);
        let holder = format!("belongs to process {pid}, which is running");
        assert_parts(&said, &[&holder, &format!("kill -INT {pid}")]);
        assert!(status().contains("vcpu(0)"), "it stays");
    }
    run.signal(Signaled::Stop).expect("it runs");
    let is_stopped = || status().contains("monitored by a Pinfold process that is suspended");
    assert!(until(is_stopped), "status says so");
    let said = sandbox.run(&["undo", "--all"]).stderr_text();
    let holder = format!("process {pid}, which is suspended");
    assert_parts(&said, &[&holder, &format!("kill -CONT {pid}")]);
    assert!(is_stopped());
    run.signal(Signaled::Continue).expect("it is stopped");
    sandbox.print(&["undo", "--left"]);
    assert!(status().contains("vcpu(0)"), "it is not left behind");
    run.signal(Signaled::Interrupt).expect("it runs");
    let ended = run.wait_for(&SystemClock, MINUTE_NS).expect("its state");
    assert_eq!(ended.and_then(|status| status.code()), Some(130));
    assert!(!status().contains("vcpu(0)"));
    sandbox.print(&["undo", "--all"]);
}

/// A machine that `run` starts gets the part of a joint plan that has its name.
#[test]
fn run_takes_the_part_of_a_joint_plan_that_has_the_machines_name() {
    if several_cpus().is_none() || is_missing(&[QEMU]) {
        return;
    }
    let sandbox = Sandbox::new();
    let words = ["plan", "-s", "compact", "--vm", "name=a,vcpus=1", "--vm", "name=b,vcpus=1"];
    let plan = sandbox.print(&[&words[..], &["--json", "--ignore-claims"]].concat());
    let file = sandbox.write("joint.json", plan);
    let run = |name: &str| {
        let words = ["run", "--plan", &file, "--", QEMU, "-M", "q35", "-accel", "tcg", "-S"];
        let options = ["-display", "none", "-nodefaults", "-m", "32M", "-name", name];
        let run = sandbox.spawn(&[&words[..], &options].concat()).stdout(Stdio::Null);
        run.stderr(Stdio::Pipe).die_with_parent(true)
    };
    let status = || sandbox.run(&["status"]).stdout_text();
    let mut started = run("b").start().expect("pinfold starts");
    assert!(until(|| status().contains("vcpu(0)") && status().contains(": b ")), "{}", status());
    started.signal(Signaled::Interrupt).expect("it runs");
    started.wait_for(&SystemClock, MINUTE_NS).expect("its state");
    let said = run("c").capture(MINUTE_NS).expect("it ends").expect_code(2);
    assert!(said.contains("choose one of a, b, as in `--vnode a`"), "{said}");
}

/// The CPUs of this process; `None`, reported, if a mask that shows cannot be made of them.
fn several_cpus() -> Option<CpuSet> {
    let own = LiveHost::new().expect("a host").affinity(process::own_pid()).expect("a mask");
    if own.len() < 2 {
        skip("a placement that shows needs two CPUs");
        return None;
    }
    Some(own)
}

/// Restricts all threads of a machine to one CPU.
fn restrict(machine: &Machine, cpus: &CpuSet) {
    for tid in list_threads(&machine.host, machine.qemu.pid()) {
        machine.host.set_affinity(tid, cpus).expect("it is ours");
    }
}

/// A mask forbids nothing: from a shell on one CPU a machine goes to the others all the same.
#[test]
fn the_mask_of_pinfold_itself_forbids_nothing() {
    let Some(own) = several_cpus() else { return };
    if is_missing(&["taskset"]) {
        return;
    }
    let Some(machine) = Machine::new("-smp 2") else { return };
    let first = own.first().expect("a CPU").to_string();
    let narrow = |words: &[&str]| machine.run_by(&["taskset", "-c", &first], words);
    let (name, qmp) = (machine.name.as_str(), machine.qmp());
    let applied = narrow(&["apply", name, "--strategy", "compact"]).expect_success();
    narrow(&["apply", name, "--strategy", "compact", "--config"]).expect_code(2);
    narrow(&["apply", name, "--qmp", &qmp, "--strategy", "compact"]).expect_code(2);
    let masks = machine.masks();
    let elsewhere = masks.values().any(|mask| mask.len() == 1 && mask.to_string() != first);
    assert!(elsewhere, "{}", applied.stdout_text());
    assert!(narrow(&["status", name]).stdout_text().contains("1 placement is active"));
    narrow(&["undo", name]).expect_success();
}

#[test]
fn a_running_machine_is_checked_as_it_is() {
    let Some(machine) = Machine::new("-smp 2,cores=2") else { return };
    let (qmp, pid) = (machine.qmp(), machine.pid());
    let asked = [["plan", "--check", "--qmp", &qmp], ["plan", "--check", "--pid", &pid]];
    // It has no placement, which is valid: a note.
    for words in &asked {
        assert_parts(&machine.print(words), &["not-pinned", "2 vCPUs"]);
    }
    assert_parts(&machine.print(&asked[0]), &[&format!(": {}, 2 vCPUs", machine.name)]);

    // Both vCPUs may run on one CPU only: told by role, with the thread and what to do.
    let Some(own) = several_cpus() else { return };
    let one = CpuSet::single(own.first().expect("a CPU"));
    restrict(&machine, &one);
    for words in &asked {
        let output = machine.run(words);
        output.expect_code(1);
        let parts = ["vcpus-share-pu", "emulator-on-vcpu", &format!(": {one}, ")];
        assert_parts(&output.stdout_text(), &parts);
    }
}

/// Several running machines are checked together, so that a CPU of two of them is found.
#[test]
fn running_machines_are_checked_together() {
    let [Some(a), Some(b), Some(c)] = [(); 3].map(|()| Machine::new("-smp 1")) else { return };
    let machines = [&a, &b, &c];
    let names = machines.map(|machine| machine.name.as_str());
    let sockets = machines.map(|machine| machine.qmp());
    let words = sockets.iter().flat_map(|socket| ["--qmp", socket]);
    let words: Vec<&str> = ["plan", "--check"].into_iter().chain(words).collect();
    let apart = a.run(&words).stdout_text();
    assert_parts(&apart, &names);
    assert!(!apart.contains("pu-used-twice"), "{apart}");

    let own = a.host.affinity(process::own_pid()).expect("a mask");
    let one = CpuSet::single(own.first().expect("a CPU"));
    machines.iter().for_each(|machine| restrict(machine, &one));
    // `--all` also finds machines of other tests, which may have ended when it examines them.
    for words in [&words[..], &["plan", "--check", "--all"]] {
        let output = a.run(words);
        assert_parts(&output.expect_code(1), &[" apply NAME --strategy"]);
        assert_parts(&output.stdout_text(), &[&names[..], &["pu-used-twice"]].concat());
    }
    a.run(&["plan", "--all", "--vcpus", "2"]).expect_code(2);
}

/// A machine whose journals are changed by hand.
struct PlacedMachine {
    machine: Machine,
    own: CpuSet,
}

impl Deref for PlacedMachine {
    type Target = Machine;

    fn deref(&self) -> &Machine {
        &self.machine
    }
}

impl PlacedMachine {
    /// Placed; `None` if a placement would not show here.
    fn new() -> Option<Self> {
        let own = several_cpus()?;
        let placed = Self { machine: Machine::new("-smp 1")?, own };
        placed.apply().expect_success();
        assert!(placed.is_placed());
        Some(placed)
    }

    fn apply(&self) -> Output {
        self.run(&["apply", "--qmp", &self.qmp(), "--strategy", "compact"])
    }

    fn reset(&self) {
        self.print(&["undo", "--reset", &self.pid()]);
        assert!(!self.is_placed());
    }

    fn is_placed(&self) -> bool {
        self.masks().values().any(|mask| *mask != self.own)
    }

    fn journals(&self) -> StateDir {
        StateDir::open(&self.path("state/journal")).expect("journals")
    }

    /// Name of the latest journal.
    fn journal(&self) -> String {
        let names = self.journals().list().expect("names");
        let all = names.into_iter().filter(|name| name.ends_with(".jsonl"));
        all.max_by_key(|name| {
            let id = name.trim_end_matches(".jsonl").to_owned();
            id.split('-').nth(2).map_or(1, |number| number.parse::<u32>().expect("a number"))
        })
        .expect("a journal")
    }
}

/// A journal that was cut while its machine is placed is never taken for a whole one. A reset keeps
/// it under another name, and the machine can be placed again.
#[test]
fn a_journal_that_was_cut_is_noticed() {
    let Some(machine) = PlacedMachine::new() else { return };
    let (journals, name) = (machine.journals(), machine.journal());
    let whole = journals.read(&name).expect("a journal");
    let lines = whole.split_inclusive(|byte| *byte == b'\n').take(2);
    journals.replace(&name, &lines.flatten().copied().collect::<Vec<u8>>()).expect("it is cut");
    machine.refuse(&["undo", "--all"], 5, "lines are missing");
    machine.refuse(&["status"], 3, "lines are missing");
    assert!(machine.is_placed());
    machine.reset();
    assert!(journals.contains(&name.replace(".jsonl", ".damaged")) && !journals.contains(&name));

    machine.apply().expect_success();
    journals.replace(&machine.journal(), b"").expect("it is emptied");
    machine.refuse(&["undo", "--all"], 5, "is truncated");
    machine.refuse(&["status"], 3, "is truncated");
    assert!(machine.is_placed());
    machine.reset();
    machine.apply().expect_success();
    machine.print(&["undo", "--all"]);
    machine.refuse(&["undo", "--reset", "0"], 2, "0 is not the ID of a process");
}

#[test]
fn a_journal_that_was_removed_is_noticed() {
    let Some(machine) = PlacedMachine::new() else { return };
    machine.journals().remove(&machine.journal()).expect("it is removed");
    let again = machine.apply();
    assert!(!again.status.success(), "{}", again.stdout_text());
    assert!(again.stderr_text().contains("undo --reset"), "{}", again.stderr_text());
    machine.refuse(&["undo", "--all"], 5, "is missing");
    machine.refuse(&["status"], 3, "is missing");
    assert!(machine.is_placed());
    machine.reset();
    machine.apply().expect_success();
    machine.print(&["undo", "--all"]);
}

/// An end that no undo has written does not close a journal while its threads have the masks.
#[test]
fn an_end_that_was_written_by_hand_is_noticed() {
    let Some(machine) = PlacedMachine::new() else { return };
    let (journals, first) = (machine.journals(), machine.journal());
    machine.print(&["undo", "--all"]);
    let ended = String::from_utf8(journals.read(&first).expect("it is there")).expect("text");
    let end = ended.lines().last().expect("an end");
    machine.apply().expect_success();
    let second = machine.journal();
    let whole = journals.read(&second).expect("it is there");
    let forged = [&whole, end.as_bytes(), b"\n"].concat();
    journals.replace(&second, &forged).expect("written");
    for (words, code) in [(&["status"][..], 3), (&["undo", "--all"], 5), (&["undo", "--left"], 5)] {
        machine.refuse(words, code, "records its end");
        machine.refuse(words, code, "delete the last line of that file");
    }
    let again = machine.apply();
    assert!(again.stderr_text().contains("records its end"), "{}", again.stderr_text());
    journals.replace(&second, &whole).expect("as the hint says");
    machine.print(&["undo", "--all"]);
    assert!(!machine.is_placed());
    machine.print(&["status"]);
}

/// The first machine has the part of the second, which another Pinfold holds: it has this plan
/// again after the joint plan failed.
fn what_was_replaced_is_put_back(file: &str, first: &Machine, second: &Machine) {
    fn status(first: &Machine) -> String {
        first.run(&["status"]).stdout_text()
    }
    first.print(&["apply", "--qmp", &first.qmp(), "--plan", file, "--vnode", &second.name]);
    let placed = first.masks();
    let words = ["apply", "--pid", &second.pid(), "--plan", file, "--vnode", &second.name];
    let mut held = first.start(&[&words[..], &["--watch"]].concat());
    assert!(until(|| status(first).starts_with("2 placements are active")), "{}", status(first));
    first.run(&["apply", "--plan", file]).expect_code(3);
    assert_eq!(first.changed(&placed), BTreeMap::new());
    held.signal(Signaled::Interrupt).expect("it runs");
    assert!(
        until(|| status(first).starts_with("1 placement is active, as planned")),
        "{}",
        status(first)
    );
    first.print(&["undo", "--all"]);
}

/// A plan of several machines is applied to all of them or to none, or one part to one machine.
#[test]
fn a_joint_plan_is_applied_to_all_of_its_machines_or_to_none() {
    if several_cpus().is_none() {
        return;
    }
    let [Some(first), Some(mut second)] = [(); 2].map(|()| Machine::new("-smp 1")) else { return };
    let vms = [&first, &second].map(|machine| format!("name={},vcpus=1", machine.name));
    let plan = first.print(&["plan", "-s", "compact", "--vm", &vms[0], "--vm", &vms[1], "--json"]);
    let file = first.write("joint.json", plan);
    let before = [first.masks(), second.masks()];
    let is_reverted = || {
        let changed = [first.changed(&before[0]), second.changed(&before[1])];
        assert_eq!(changed, [BTreeMap::new(), BTreeMap::new()]);
    };
    let status = || first.run(&["status"]).stdout_text();

    let names = [&first, &second].map(|machine| format!("{}: ", machine.name));
    let is_named = |line: &str| names.iter().any(|name| line.starts_with(name));
    let steps = first.print(&["apply", "--plan", &file, "--dry-run"]);
    assert!(!steps.is_empty() && steps.lines().all(is_named), "{steps}");
    let said = first.run(&["apply", "--plan", &file]).expect_code(0);
    for words in [" applied", "active until the machine ends or `"] {
        let lines: Vec<&str> = said.lines().filter(|line| line.contains(words)).collect();
        assert!(lines.len() == 2 && lines.iter().copied().all(is_named), "{said}");
    }
    assert!(status().starts_with("2 placements are active, all as planned"), "{}", status());
    let (of_first, of_second) = (cpus(&first), cpus(&second));
    assert!(of_first.is_disjoint(&of_second), "{of_first:?} {of_second:?}");
    first.print(&["undo", "--all"]);
    is_reverted();

    what_was_replaced_is_put_back(&file, &first, &second);
    is_reverted();

    // The second machine is placed already and is to stay so: the first is reverted.
    first.print(&["apply", &second.name, "--plan", &file]);
    let refused = first.run(&["apply", "--plan", &file, "--keep"]);
    assert!(!refused.status.success(), "{}", refused.stdout_text());
    assert!(status().starts_with("1 placement is active, as planned"), "{}", status());
    assert_eq!(first.changed(&before[0]), BTreeMap::new());
    first.print(&["undo", "--all"]);

    // The part of one machine for another.
    first.print(&["apply", "--qmp", &first.qmp(), "--plan", &file, "--vnode", &second.name]);
    assert_eq!(cpus(&first), of_second);
    let unknown = ["apply", &first.name, "--plan", &file, "--vnode", "none"];
    first.refuse(&unknown, 2, "it places ");
    first.print(&["undo", "--all"]);

    // Without one of its machines nothing is placed.
    second.qemu.kill().expect("QEMU ends");
    first.run(&["apply", "--plan", &file]).expect_code(4);
    assert_eq!(status().trim(), "no placement is active");
}

fn cpus(machine: &Machine) -> BTreeSet<CpuSet> {
    machine.masks().into_values().collect::<BTreeSet<CpuSet>>()
}

#[test]
fn a_running_machine_that_was_placed_is_well_placed() {
    if several_cpus().is_none() {
        return;
    }
    let Some(machine) = Machine::new("-smp 1") else { return };
    let (qmp, pid) = (machine.qmp(), machine.pid());
    machine.print(&["apply", "--qmp", &qmp, "--strategy", "low-latency"]);
    for words in [["--qmp", qmp.as_str()], ["--pid", pid.as_str()]] {
        let said = machine.print(&[&["plan", "--check"], &words[..]].concat());
        assert!(said.contains("vCPU 0") && !said.contains("not-pinned"), "{said}");
    }
    machine.print(&["undo"]);
}

#[test]
fn a_plan_of_another_machine_is_not_applied() {
    let Some(machine) = Machine::new("-smp 1") else { return };
    // Every machine has the CPUs of this plan; only the fingerprint differs.
    let words = ["plan", "--strategy", "none", "--vcpus", "1", "--input", "core:1 pu:1", "--json"];
    let file = machine.write("plan.json", machine.print(&words));
    let words = ["apply", "--qmp", &machine.qmp(), "--plan", &file, "--dry-run"];
    machine.refuse(&words, 2, &format!("{file} was created for another machine"));
    machine.refuse(&words, 2, "pinfold plan --strategy none --vcpus 1 --json");
}

#[test]
fn a_process_that_is_no_machine_is_not_checked() {
    let sandbox = Sandbox::new();
    let own = process::own_pid().to_string();
    sandbox.refuse(&["plan", "--check", "--pid", &own], 4, &own);
    // More than any kernel gives out.
    sandbox.refuse(&["plan", "--check", "--pid", "4999999"], 4, "4999999");
    sandbox.refuse(&["plan", "--check", "--qmp", "/nonexistent/qmp"], 4, "/nonexistent/qmp");
}

#[test]
fn a_qemu_that_does_not_start_shows_its_own_message() {
    if is_missing(&[QEMU]) {
        return;
    }
    let words = ["run", "--strategy", "compact", "--", QEMU, "-no-such-option"];
    Sandbox::new().refuse(&words, 4, "no-such-option");
}
