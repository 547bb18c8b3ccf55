//! `run`, `apply`, `status` and `undo` on a real QEMU of this test's own.

#![expect(clippy::expect_used, reason = "a test that cannot go on fails")]
#![expect(clippy::print_stdout, reason = "a test that cannot run says so")]

mod common;

use common::until;
use pinfold_host::files::StateDir;
use pinfold_host::process::{Child, Signaled, Spawn, Stdio, capture, find_program};
use pinfold_host::{Clock, Host, HostMut as _, LiveHost, SystemClock};

const PINFOLD: &str = env!("CARGO_BIN_EXE_pinfold");
const SECOND_NS: u64 = 1_000_000_000;
const QEMU: [&str; 12] = [
    "qemu-system-x86_64",
    "-machine",
    "q35",
    "-accel",
    "tcg,thread=multi",
    "-display",
    "none",
    "-nodefaults",
    "-smp",
    "1",
    "-m",
    "64M",
];

fn qemu_is_missing() -> bool {
    let missing = find_program("qemu-system-x86_64").is_none();
    if missing {
        println!("skipped: qemu-system-x86_64 is not installed");
    }
    missing
}

fn pinfold(state: &str, arguments: &[&str]) -> pinfold_host::process::Output {
    let mut words = vec!["--state-dir", state];
    words.extend(arguments);
    capture(PINFOLD, words, 60 * SECOND_NS).expect("pinfold runs")
}

#[test]
fn apply_status_undo_on_a_running_machine() {
    if qemu_is_missing() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().join("state").to_string_lossy().into_owned();
    let socket = folder.path().join("qmp").to_string_lossy().into_owned();
    let mut qemu = Spawn::new(QEMU[0])
        .args(&QEMU[1..])
        .args(["-S", "-name", "guest=t,debug-threads=on", "-qmp"])
        .args([format!("unix:{socket},server=on,wait=off")])
        .stdin(Stdio::Null)
        .die_with_parent(true)
        .start()
        .expect("QEMU starts");
    let host = LiveHost::new().expect("a host");
    let until = SystemClock.now_ns() + 60 * SECOND_NS;
    while !pinfold_host::files::exists(&socket) && SystemClock.now_ns() < until {
        SystemClock.sleep_ns(SECOND_NS / 50);
    }
    let masks = |host: &LiveHost| -> Vec<(String, String)> {
        let folder = pinfold_host::paths::task_dir(qemu.pid());
        let tids = host.list(&folder).expect("threads");
        tids.into_iter()
            .map(|tid| {
                let number = tid.parse().expect("a number");
                let mask = host.affinity(pinfold_model::Tid(number)).expect("a mask");
                (tid, mask.to_string())
            })
            .collect()
    };
    let place = ["apply", "--qmp", &socket, "--strategy", "compact"];
    // The socket is there before the threads are; QEMU answers when they are.
    let ready = pinfold(&state, &[&place[..], &["--dry-run"]].concat());
    assert!(ready.status.success(), "{}", ready.stderr_text());
    let before = masks(&host);
    let dry = pinfold(&state, &[&place[..], &["--dry-run"]].concat());
    assert!(dry.status.success(), "{}", dry.stderr_text());
    assert_eq!(masks(&host), before, "a dry run changes nothing");
    let applied = pinfold(&state, &place);
    assert!(applied.status.success(), "{}", applied.stderr_text());
    let second = pinfold(&state, &[&place[..], &["--keep"]].concat());
    assert_eq!(second.status.code(), Some(3), "{}", second.stderr_text());
    let undo = format!("pinfold --state-dir {state} undo");
    assert!(second.stderr_text().contains(&undo), "{}", second.stderr_text());
    let status = pinfold(&state, &["status"]);
    assert!(status.status.success(), "{}{}", status.stdout_text(), status.stderr_text());
    assert!(status.stdout_text().contains("vcpu(0)"), "{}", status.stdout_text());
    let undone = pinfold(&state, &["undo"]);
    assert!(undone.status.success(), "{}", undone.stderr_text());
    assert_eq!(masks(&host), before, "everything is as it was");
    qemu.kill().expect("QEMU ends");
}

#[test]
fn undo_names_the_process_that_holds_a_placement_and_leaves_it() {
    if qemu_is_missing() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().join("state").to_string_lossy().into_owned();
    let mut run = Spawn::new(PINFOLD)
        .args(["--state-dir", &state, "run", "--strategy", "compact", "--"])
        .args(QEMU)
        .stdin(Stdio::Null)
        .stdout(Stdio::Null)
        .stderr(Stdio::Null)
        .die_with_parent(true)
        .start()
        .expect("pinfold starts");
    let status = || pinfold(&state, &["status"]).stdout_text();
    let until = SystemClock.now_ns() + 60 * SECOND_NS;
    while !status().contains("vcpu(0)") && SystemClock.now_ns() < until {
        SystemClock.sleep_ns(SECOND_NS / 10);
    }
    let pid = run.pid().to_string();
    for words in [&["undo"][..], &["undo", "--all"]] {
        let refused = pinfold(&state, words);
        let said = refused.stderr_text();
        assert_eq!(refused.status.code(), Some(3), "{said}");
        assert!(said.contains(&format!("belongs to process {pid}, which is running")), "{said}");
        assert!(said.contains(&format!("kill -INT {pid}")), "{said}");
        assert!(status().contains("vcpu(0)"), "it stays");
    }
    run.signal(pinfold_host::process::Signaled::Stop).expect("it runs");
    let stopped = || status().contains("monitored by a Pinfold process that is suspended");
    let until = SystemClock.now_ns() + 60 * SECOND_NS;
    while !stopped() && SystemClock.now_ns() < until {
        SystemClock.sleep_ns(SECOND_NS / 10);
    }
    let said = pinfold(&state, &["undo", "--all"]).stderr_text();
    for part in [&format!("process {pid}, which is suspended"), &format!("kill -CONT {pid}")] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert!(stopped(), "status says so");
    run.signal(pinfold_host::process::Signaled::Continue).expect("it is stopped");
    let left = pinfold(&state, &["undo", "--left"]);
    let said = left.stderr_text();
    assert!(left.status.success(), "{said}");
    assert!(status().contains("vcpu(0)"), "it is not left behind");
    run.signal(pinfold_host::process::Signaled::Interrupt).expect("it runs");
    let ended = run.wait_for(&SystemClock, 60 * SECOND_NS).expect("its state");
    assert_eq!(ended.and_then(|status| status.code()), Some(130));
    assert!(!status().contains("vcpu(0)"));
    assert!(pinfold(&state, &["undo", "--all"]).status.success());
}

/// A stopped QEMU with its socket; it answers when its threads are up.
fn started(folder: &tempfile::TempDir, vcpus: &str) -> (pinfold_host::process::Child, String) {
    let socket = folder.path().join("qmp").to_string_lossy().into_owned();
    let qemu = Spawn::new(QEMU[0])
        .args(&QEMU[1..8])
        .args(["-smp", vcpus, "-m", "64M"])
        .args(["-S", "-name", &format!("guest={},debug-threads=on", name_in(folder)), "-qmp"])
        .args([format!("unix:{socket},server=on,wait=off")])
        .stdin(Stdio::Null)
        .die_with_parent(true)
        .start()
        .expect("QEMU starts");
    let until = SystemClock.now_ns() + 60 * SECOND_NS;
    while !pinfold_host::files::exists(&socket) && SystemClock.now_ns() < until {
        SystemClock.sleep_ns(SECOND_NS / 50);
    }
    (qemu, socket)
}

/// The name of the machine of this folder; no other machine on this host has it.
fn name_in(folder: &tempfile::TempDir) -> String {
    let name = folder.path().file_name().expect("a name").to_string_lossy().into_owned();
    name.trim_start_matches('.').to_owned()
}

/// A mask forbids nothing: from a shell on one CPU a machine goes to the others all the same.
#[test]
fn the_mask_of_pinfold_itself_forbids_nothing() {
    let host = LiveHost::new().expect("a host");
    let own = host.affinity(pinfold_host::process::own_pid()).expect("a mask");
    let Some(taskset) = find_program("taskset").filter(|_| own.len() > 1) else {
        println!("skipped: taskset is not installed, or there is one CPU");
        return;
    };
    if qemu_is_missing() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().join("state").to_string_lossy().into_owned();
    let (mut qemu, socket) = started(&folder, "2");
    let first = own.first().expect("a CPU").to_string();
    let narrow = |arguments: &[&str]| {
        let words = [&["-c", &first, PINFOLD, "--state-dir", &state], arguments].concat();
        capture(&taskset, words, 60 * SECOND_NS).expect("pinfold runs")
    };
    let name = name_in(&folder);
    let applied = narrow(&["apply", &name, "--strategy", "compact"]);
    assert!(applied.status.success(), "{}", applied.stderr_text());
    let config = narrow(&["apply", &name, "--strategy", "compact", "--config"]);
    assert_eq!(config.status.code(), Some(2), "{}", config.stderr_text());
    let both = narrow(&["apply", &name, "--qmp", &socket, "--strategy", "compact"]);
    assert_eq!(both.status.code(), Some(2), "{}", both.stderr_text());
    let tids = host.list(&pinfold_host::paths::task_dir(qemu.pid())).expect("threads");
    let elsewhere = tids.iter().any(|tid| {
        let mask = host.affinity(pinfold_model::Tid(tid.parse().expect("a number")));
        mask.is_ok_and(|mask| mask.len() == 1 && mask.to_string() != first)
    });
    assert!(elsewhere, "{}", applied.stdout_text());
    assert!(narrow(&["status", &name]).stdout_text().contains("1 placement is active"));
    let undone = narrow(&["undo", &name]);
    assert!(undone.status.success(), "{}", undone.stderr_text());
    qemu.kill().expect("QEMU ends");
}

#[test]
fn a_running_machine_is_checked_as_it_is() {
    if qemu_is_missing() {
        return;
    }
    let host = LiveHost::new().expect("a host");
    let own = host.affinity(pinfold_host::process::own_pid()).expect("a mask");
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().join("state").to_string_lossy().into_owned();
    let (mut qemu, socket) = started(&folder, "2,cores=2");
    let pid = qemu.pid().to_string();
    let asked = [["--qmp", socket.as_str()], ["--pid", pid.as_str()]];
    // Nobody placed it, which is valid: a note.
    for words in &asked {
        let output = pinfold(&state, &[&["plan", "--check"], &words[..]].concat());
        let said = format!("{}{}", output.stdout_text(), output.stderr_text());
        assert_eq!(output.status.code(), Some(0), "{said}");
        assert!(said.contains("not-pinned") && said.contains("2 vCPUs"), "{said}");
    }
    let named = pinfold(&state, &["plan", "--check", "--qmp", &socket]);
    assert!(
        named.stdout_text().contains(&format!(": {}, 2 vCPUs", name_in(&folder))),
        "{}",
        named.stdout_text()
    );

    // Both vCPUs may run on one CPU only: told by role, with the thread and what to do.
    let one = pinfold_model::CpuSet::single(own.first().expect("a CPU"));
    if own.len() > 1 {
        let folder = pinfold_host::paths::task_dir(qemu.pid());
        for tid in host.list(&folder).expect("threads") {
            let tid = pinfold_model::Tid(tid.parse().expect("a number"));
            host.set_affinity(tid, &one).expect("it is ours");
        }
        for words in &asked {
            let output = pinfold(&state, &[&["plan", "--check"], &words[..]].concat());
            assert_eq!(output.status.code(), Some(1), "{}", output.stdout_text());
            let said = output.stdout_text();
            for name in ["vcpus-share-pu", "emulator-on-vcpu", &format!(": {one}, ")] {
                assert!(said.contains(name), "{name:?} is not in\n{said}");
            }
        }
    } else {
        println!("skipped: a wrong mask needs two CPUs");
    }
    qemu.kill().expect("QEMU ends");
}

/// Several running machines are checked together, so that a CPU of two of them is found.
#[test]
fn running_machines_are_checked_together() {
    if qemu_is_missing() {
        return;
    }
    let host = LiveHost::new().expect("a host");
    let folders = [0, 1, 2].map(|_| tempfile::tempdir().expect("a folder"));
    let state = folders[0].path().join("state").to_string_lossy().into_owned();
    let mut machines = folders.each_ref().map(|folder| started(folder, "1"));
    let names = folders.each_ref().map(name_in);
    let mut words = vec!["plan", "--check"];
    for (_, socket) in &machines {
        words.extend(["--qmp", socket.as_str()]);
    }
    let apart = pinfold(&state, &words).stdout_text();
    assert!(names.iter().all(|name| apart.contains(name)), "{apart}");
    assert!(!apart.contains("pu-used-twice"), "{apart}");

    let own = host.affinity(pinfold_host::process::own_pid()).expect("a mask");
    let one = pinfold_model::CpuSet::single(own.first().expect("a CPU"));
    for (qemu, _) in &machines {
        for tid in host.list(&pinfold_host::paths::task_dir(qemu.pid())).expect("threads") {
            let tid = pinfold_model::Tid(tid.parse().expect("a number"));
            host.set_affinity(tid, &one).expect("it is ours");
        }
    }
    // `--all` also finds machines of other tests, which may have ended when it examines them.
    for words in [words, vec!["plan", "--check", "--all"]] {
        let output = pinfold(&state, &words);
        let said = output.stdout_text();
        assert_eq!(output.status.code(), Some(1), "{said}{}", output.stderr_text());
        assert!(names.iter().all(|name| said.contains(name)), "{said}");
        assert!(said.contains("pu-used-twice"), "{said}");
        assert!(
            output.stderr_text().contains(" apply NAME --strategy"),
            "{}",
            output.stderr_text()
        );
    }
    for (qemu, _) in &mut machines {
        qemu.kill().expect("QEMU ends");
    }
    let refused = pinfold(&state, &["plan", "--all", "--vcpus", "2"]);
    assert_eq!(refused.status.code(), Some(2), "{}", refused.stderr_text());
}

/// A machine whose journals are changed by hand.
struct PlacedMachine {
    host: LiveHost,
    folder: tempfile::TempDir,
    qemu: pinfold_host::process::Child,
    own: String,
}

impl PlacedMachine {
    /// Placed; `None` if a placement would not show here.
    fn new() -> Option<Self> {
        if qemu_is_missing() {
            return None;
        }
        let host = LiveHost::new().expect("a host");
        let own = host.affinity(pinfold_host::process::own_pid()).expect("a mask");
        if own.len() < 2 {
            println!("skipped: a placement that shows needs two CPUs");
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let (qemu, _) = started(&folder, "1");
        let machine = Self { host, folder, qemu, own: own.to_string() };
        machine.succeeds(&machine.apply());
        assert!(machine.is_placed());
        Some(machine)
    }

    fn file(&self, name: &str) -> String {
        self.folder.path().join(name).to_string_lossy().into_owned()
    }

    fn pid(&self) -> String {
        self.qemu.pid().to_string()
    }

    fn apply(&self) -> Vec<String> {
        ["apply", "--qmp", &self.file("qmp"), "--strategy", "compact"].map(str::to_owned).to_vec()
    }

    fn run(&self, words: &[String]) -> pinfold_host::process::Output {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        pinfold(&self.file("state"), &words)
    }

    fn succeeds(&self, words: &[String]) {
        let output = self.run(words);
        assert!(output.status.success(), "{words:?}: {}", output.stderr_text());
    }

    /// `undo` with this option, and its value if it has one.
    fn undo(&self, words: &[&str]) {
        let words = [&["undo"], words].concat();
        self.succeeds(&words.into_iter().map(str::to_owned).collect::<Vec<_>>());
    }

    fn refused(&self, words: &[&str], code: i32, part: &str) {
        let output = pinfold(&self.file("state"), words);
        let said = output.stderr_text();
        assert_eq!(output.status.code(), Some(code), "{words:?}: {said}");
        assert!(said.contains(part), "{words:?}: {said}");
    }

    fn is_placed(&self) -> bool {
        let tids = self.host.list(&pinfold_host::paths::task_dir(self.qemu.pid()));
        let tids = tids.expect("threads").into_iter();
        let tids = tids.map(|tid| pinfold_model::Tid(tid.parse().expect("a number")));
        let mut masks = tids.map(|tid| self.host.affinity(tid).expect("a mask").to_string());
        masks.any(|mask| mask != self.own)
    }

    fn journals(&self) -> StateDir {
        StateDir::open(&format!("{}/journal", self.file("state"))).expect("journals")
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
    let Some(mut machine) = PlacedMachine::new() else { return };
    let (journals, name, pid) = (machine.journals(), machine.journal(), machine.pid());
    let whole = journals.read(&name).expect("a journal");
    let lines = whole.split_inclusive(|byte| *byte == b'\n').take(2);
    journals.replace(&name, &lines.flatten().copied().collect::<Vec<u8>>()).expect("it is cut");
    machine.refused(&["undo", "--all"], 5, "lines are missing");
    assert!(machine.is_placed());
    machine.undo(&["--reset", &pid]);
    assert!(!machine.is_placed());
    assert!(journals.contains(&name.replace(".jsonl", ".damaged")) && !journals.contains(&name));

    machine.succeeds(&machine.apply());
    journals.replace(&machine.journal(), b"").expect("it is emptied");
    machine.refused(&["undo", "--all"], 5, "is truncated");
    machine.refused(&["status"], 3, "is truncated");
    assert!(machine.is_placed());
    machine.undo(&["--reset", &pid]);
    assert!(!machine.is_placed());
    machine.succeeds(&machine.apply());
    machine.undo(&["--all"]);
    machine.refused(&["undo", "--reset", "0"], 2, "no process has this number");
    machine.qemu.kill().expect("QEMU ends");
}

#[test]
fn a_journal_that_was_removed_is_noticed() {
    let Some(mut machine) = PlacedMachine::new() else { return };
    machine.journals().remove(&machine.journal()).expect("it is removed");
    let again = machine.run(&machine.apply());
    assert!(!again.status.success(), "{}", again.stdout_text());
    assert!(again.stderr_text().contains("undo --reset"), "{}", again.stderr_text());
    machine.refused(&["undo", "--all"], 5, "is missing");
    machine.refused(&["status"], 3, "is missing");
    assert!(machine.is_placed());
    machine.undo(&["--reset", &machine.pid()]);
    assert!(!machine.is_placed());
    machine.succeeds(&machine.apply());
    machine.undo(&["--all"]);
    machine.qemu.kill().expect("QEMU ends");
}

/// An end that no undo has written does not close a journal while its threads have the masks.
#[test]
fn an_end_that_was_written_by_hand_is_noticed() {
    let Some(mut machine) = PlacedMachine::new() else { return };
    let (journals, first) = (machine.journals(), machine.journal());
    machine.undo(&["--all"]);
    let ended = String::from_utf8(journals.read(&first).expect("it is there")).expect("text");
    let end = ended.lines().last().expect("an end");
    machine.succeeds(&machine.apply());
    let second = machine.journal();
    let whole = journals.read(&second).expect("it is there");
    let forged = [&whole, end.as_bytes(), b"\n"].concat();
    journals.replace(&second, &forged).expect("written");
    for (words, code) in [(&["status"][..], 3), (&["undo", "--all"], 5), (&["undo", "--left"], 5)] {
        machine.refused(words, code, "records its end");
        machine.refused(words, code, "delete the last line of that file");
    }
    let again = machine.run(&machine.apply());
    assert!(again.stderr_text().contains("records its end"), "{}", again.stderr_text());
    journals.replace(&second, &whole).expect("as the hint says");
    machine.undo(&["--all"]);
    assert!(!machine.is_placed());
    machine.succeeds(&["status".to_owned()]);
    machine.qemu.kill().expect("QEMU ends");
}

/// The masks of all threads of a machine.
fn masks_of(host: &LiveHost, qemu: &Child) -> Vec<String> {
    let tids = host.list(&pinfold_host::paths::task_dir(qemu.pid())).expect("threads");
    let tids = tids.iter().map(|tid| pinfold_model::Tid(tid.parse().expect("a number")));
    tids.map(|tid| host.affinity(tid).expect("a mask").to_string()).collect()
}

/// The first machine has the part of the second, which another Pinfold holds: it has this plan
/// again after the joint plan failed.
fn what_was_replaced_is_put_back(
    state: &str,
    file: &str,
    names: &[String; 2],
    machines: &[(Child, String); 2],
) {
    let host = LiveHost::new().expect("a host");
    let status = || pinfold(state, &["status"]).stdout_text();
    let part = ["apply", "--qmp", &machines[0].1, "--plan", file, "--vnode", &names[1]];
    assert!(pinfold(state, &part).status.success());
    let placed = masks_of(&host, &machines[0].0);
    let pid = machines[1].0.pid().to_string();
    let words = ["--state-dir", state, "apply", "--pid", &pid, "--plan", file];
    let words = [&words[..], &["--vnode", &names[1], "--watch"]].concat();
    let held = Spawn::new(PINFOLD).args(words).stdin(Stdio::Null).stderr(Stdio::Null);
    let mut held = held.die_with_parent(true).start().expect("it starts");
    assert!(until(|| status().starts_with("2 placements are active")), "{}", status());
    let refused = pinfold(state, &["apply", "--plan", file]);
    assert_eq!(refused.status.code(), Some(3), "{}", refused.stderr_text());
    assert_eq!(masks_of(&host, &machines[0].0), placed);
    held.signal(Signaled::Interrupt).expect("it runs");
    assert!(until(|| status().starts_with("1 placement is active, as planned")), "{}", status());
    assert!(pinfold(state, &["undo", "--all"]).status.success());
}

/// A plan of several machines is applied to all of them or to none, or one part to one machine.
#[test]
fn a_joint_plan_is_applied_to_all_of_its_machines_or_to_none() {
    if qemu_is_missing() {
        return;
    }
    let host = LiveHost::new().expect("a host");
    let own = host.affinity(pinfold_host::process::own_pid()).expect("a mask");
    if own.len() < 2 {
        println!("skipped: two machines on CPUs of their own need two CPUs");
        return;
    }
    let folders = [0, 1].map(|_| tempfile::tempdir().expect("a folder"));
    let path = |name: &str| folders[0].path().join(name).to_string_lossy().into_owned();
    let state = path("state");
    let mut machines = folders.each_ref().map(|folder| started(folder, "1"));
    let names = folders.each_ref().map(name_in);
    let vms = names.each_ref().map(|name| format!("name={name},vcpus=1"));
    let words = ["plan", "-s", "compact", "--vm", &vms[0], "--vm", &vms[1], "--json"];
    // Placements of other tests are claims, whatever state directory they have.
    let words = [&words[..], &["--ignore-claims"]].concat();
    let planned = pinfold(&state, &words);
    assert!(planned.status.success(), "{}", planned.stderr_text());
    let file = path("joint.json");
    pinfold_host::files::write_atomic(&file, planned.stdout_text().as_bytes()).expect("a plan");
    let masks = || machines.each_ref().map(|(qemu, _)| masks_of(&host, qemu));
    let before = masks();
    let status = || pinfold(&state, &["status"]).stdout_text();

    let both = pinfold(&state, &["apply", "--plan", &file]);
    assert!(both.status.success(), "{}", both.stderr_text());
    assert!(status().starts_with("2 placements are active, all as planned"), "{}", status());
    let [first, second] = masks();
    assert!(first.iter().all(|mask| !second.contains(mask)), "{first:?} {second:?}");
    assert!(pinfold(&state, &["undo", "--all"]).status.success());
    assert_eq!(masks(), before);

    what_was_replaced_is_put_back(&state, &file, &names, &machines);
    assert_eq!(masks(), before);

    // The second machine is placed already and is to stay so: the first is reverted.
    let one = pinfold(&state, &["apply", &names[1], "--plan", &file]);
    assert!(one.status.success(), "{}", one.stderr_text());
    let refused = pinfold(&state, &["apply", "--plan", &file, "--keep"]);
    assert!(!refused.status.success(), "{}", refused.stdout_text());
    assert!(status().starts_with("1 placement is active, as planned"), "{}", status());
    assert_eq!(masks()[0], before[0]);
    assert!(pinfold(&state, &["undo", "--all"]).status.success());

    // The part of one machine for another.
    let part = ["apply", "--qmp", &machines[0].1, "--plan", &file, "--vnode", &names[1]];
    let part = pinfold(&state, &part);
    assert!(part.status.success(), "{}", part.stderr_text());
    assert_eq!(masks()[0], second);
    let unknown = pinfold(&state, &["apply", &names[0], "--plan", &file, "--vnode", "none"]);
    assert_eq!(unknown.status.code(), Some(2), "{}", unknown.stderr_text());
    assert!(unknown.stderr_text().contains("it places "), "{}", unknown.stderr_text());
    assert!(pinfold(&state, &["undo", "--all"]).status.success());

    // Without one of its machines nothing is placed.
    machines[1].0.kill().expect("QEMU ends");
    let missing = pinfold(&state, &["apply", "--plan", &file]);
    assert_eq!(missing.status.code(), Some(4), "{}", missing.stderr_text());
    assert_eq!(status().trim(), "no placement is active");
    machines[0].0.kill().expect("QEMU ends");
}

#[test]
fn a_running_machine_that_was_placed_is_well_placed() {
    if qemu_is_missing() {
        return;
    }
    let host = LiveHost::new().expect("a host");
    let own = host.affinity(pinfold_host::process::own_pid()).expect("a mask");
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().join("state").to_string_lossy().into_owned();
    let (mut qemu, socket) = started(&folder, "1");
    let pid = qemu.pid().to_string();
    let placed = pinfold(&state, &["apply", "--qmp", &socket, "--strategy", "low-latency"]);
    if own.len() < 2 {
        println!("skipped: a vCPU beside the host needs two CPUs");
    } else {
        assert!(placed.status.success(), "{}", placed.stderr_text());
        for words in [["--qmp", socket.as_str()], ["--pid", pid.as_str()]] {
            let output = pinfold(&state, &[&["plan", "--check"], &words[..]].concat());
            let said = format!("{}{}", output.stdout_text(), output.stderr_text());
            assert_eq!(output.status.code(), Some(0), "{said}");
            assert!(said.contains("vCPU 0") && !said.contains("not-pinned"), "{said}");
        }
        let undone = pinfold(&state, &["undo"]);
        assert!(undone.status.success(), "{}", undone.stderr_text());
    }
    qemu.kill().expect("QEMU ends");
}

#[test]
fn a_plan_of_another_machine_is_not_applied() {
    if qemu_is_missing() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().join("state").to_string_lossy().into_owned();
    let (mut qemu, socket) = started(&folder, "1");
    // The CPUs of this plan are there on every machine; only the fingerprint tells.
    let words = ["plan", "--strategy", "none", "--vcpus", "1", "--input", "core:1 pu:1", "--json"];
    let made = pinfold(&state, &words);
    assert!(made.status.success(), "{}", made.stderr_text());
    let file = folder.path().join("plan.json").to_string_lossy().into_owned();
    pinfold_host::files::write_atomic(&file, &made.stdout).expect("written");
    let refused = pinfold(&state, &["apply", "--qmp", &socket, "--plan", &file, "--dry-run"]);
    let said = refused.stderr_text();
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains(&format!("{file} was created for another machine")), "{said}");
    assert!(said.contains("pinfold plan --strategy none --vcpus 1 --json"), "{said}");
    qemu.kill().expect("QEMU ends");
}

#[test]
fn a_process_that_is_no_machine_is_not_checked() {
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().to_string_lossy().into_owned();
    let own = pinfold_host::process::own_pid().to_string();
    let output = pinfold(&state, &["plan", "--check", "--pid", &own]);
    assert_eq!(output.status.code(), Some(4), "{}", output.stderr_text());
    assert!(output.stderr_text().contains(&own), "{}", output.stderr_text());
    // More than any kernel gives out.
    let output = pinfold(&state, &["plan", "--check", "--pid", "4999999"]);
    assert_eq!(output.status.code(), Some(4), "{}", output.stderr_text());
    assert!(output.stderr_text().contains("4999999"), "{}", output.stderr_text());
    let output = pinfold(&state, &["plan", "--check", "--qmp", "/nonexistent/qmp"]);
    assert_eq!(output.status.code(), Some(4), "{}", output.stderr_text());
    assert!(output.stderr_text().contains("/nonexistent/qmp"), "{}", output.stderr_text());
}

#[test]
fn a_qemu_that_does_not_start_shows_its_own_message() {
    if qemu_is_missing() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().to_string_lossy().into_owned();
    let words = ["run", "--strategy", "compact", "--", QEMU[0], "-no-such-option"];
    let output = pinfold(&state, &words);
    assert_eq!(output.status.code(), Some(4), "{}", output.stderr_text());
    assert!(output.stderr_text().contains("no-such-option"), "{}", output.stderr_text());
}
