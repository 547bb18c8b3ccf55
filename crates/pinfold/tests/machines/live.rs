//! `tune` on a machine that runs: an answer, the refusals, and the machine as it was after each end.

use std::collections::BTreeMap;

use crate::common::machine::Machine;
use crate::common::{Checked as _, SECOND_NS, Sandbox, TIMEOUT_NS, assert_parts, until};
use pinfold_host::process::{self, Child, Spawn};
use pinfold_host::{Clock as _, Host as _, HostMut as _, SystemClock};
use pinfold_model::command::split_words;
use pinfold_model::{CpuSet, Policy, Tid};
use pinfold_vm::Monitor as _;
use pinfold_vm::qemu::QmpTransport as _;
use serde_json::json;

/// A machine whose vCPU computes without end, and the masks of its threads.
struct Running {
    machine: Machine,
    before: BTreeMap<Tid, CpuSet>,
}

impl Running {
    /// `None`, reported, without QEMU, or on a host where no other placement exists.
    fn new(more: &str) -> Option<Self> {
        Self::new_by(&[], more)
    }

    /// The same as a part of another command line, which executes it.
    fn new_by(wrap: &[&str], more: &str) -> Option<Self> {
        let sandbox = Sandbox::new();
        // Its first instruction jumps to itself.
        let mut rom = vec![0_u8; 0x1_0000];
        rom[0xfff0..0xfff2].copy_from_slice(&[0xeb, 0xfe]);
        let rom = sandbox.write("rom", rom);
        let options = format!("-M q35 -accel tcg,thread=multi -bios {rom} {more}");
        let machine = Machine::start_by(wrap, sandbox, &options)?;
        let own = machine.host.affinity(Tid(0)).expect("a mask");
        if own.len() < 2 {
            crate::common::skip("only one CPU: there is no other placement");
            return None;
        }
        let before = machine.masks();
        Some(Self { machine, before })
    }

    /// The words of a search by the process. Other tests compute on the same CPUs meanwhile, so
    /// nothing is dropped.
    fn words<'w>(&self, pid: &'w str, budget: &'w str) -> Vec<&'w str> {
        let words = ["tune", "--pid", pid, "--strategies", "compact", "--budget", budget];
        [&words[..], &["--seed", "1", "--max-harm", "100%"]].concat()
    }

    /// Starts a search, and waits until it has moved the vCPU.
    fn search(&self) -> Child {
        let pid = self.machine.pid();
        let child = self.machine.start_logged(&self.words(&pid, "10m"));
        let is_moved = until(|| self.vcpu_mask() != self.before[&self.vcpu()]);
        assert!(is_moved, "{}", self.machine.read("said"));
        child
    }

    fn vcpu(&self) -> Tid {
        self.machine.thread("CPU 0/").expect("a vCPU")
    }

    fn vcpu_mask(&self) -> CpuSet {
        self.machine.host.affinity(self.vcpu()).expect("a mask")
    }

    /// Waits for the end of a search; returns what it printed.
    fn expect_end(&self, mut child: Child, code: i32) -> String {
        let status = child.wait_for(&SystemClock, TIMEOUT_NS).expect("it ends");
        let said = self.machine.read("said");
        assert_eq!(status.and_then(|status| status.code()), Some(code), "{said}");
        said
    }

    #[track_caller]
    fn assert_as_before(&self) {
        assert_eq!(self.machine.changed(&self.before), BTreeMap::new());
        assert_eq!(self.machine.print(&["status"]).trim(), "no placement is active");
    }
}

#[test]
fn a_search_answers_and_leaves_every_mask_as_it_was() {
    let Some(running) = Running::new("-smp 1") else { return };
    let qmp = running.machine.qmp();
    let words = ["tune", "--qmp", &qmp, "--strategies", "compact,sequential", "--budget", "30s"];
    let more = ["--seed", "7", "--max-harm", "100%", "--json"];
    let found = running.machine.print_json(&[&words[..], &more].concat());
    assert_eq!((&found["format"], &found["seed"]), (&json!("pinfold-live-tune/1"), &json!(7)));
    let placements = found["placements"].as_array().expect("placements");
    let names: Vec<&str> = placements.iter().filter_map(|one| one["name"].as_str()).collect();
    assert_eq!(names[..3], ["present", "present (again)", "compact"], "{found}");
    let blocks = found["blocks"].as_u64().expect("a number");
    assert!(blocks >= 2, "{found}");
    for one in placements.iter().filter(|one| one["dropped"].is_null()) {
        assert_eq!(one["windows"].as_u64(), Some(blocks), "{found}");
        assert!(one["figure"].as_f64().is_some_and(|figure| figure > 0.0), "{found}");
    }
    assert!(found["wash_out"]["windows"].as_u64().is_some_and(|windows| windows >= blocks * 2));
    let subjects: Vec<&str> = found["findings"]
        .as_array()
        .expect("findings")
        .iter()
        .filter_map(|finding| finding["subject"].as_str())
        .collect();
    assert!(subjects.contains(&"memory"), "{found}");
    running.assert_as_before();
}

#[test]
fn a_figure_that_is_no_number_ends_the_search() {
    let Some(running) = Running::new("-smp 1") else { return };
    let (pid, calls) = (running.machine.pid(), running.machine.path("calls"));
    // The fourth call is after at least one window of another placement.
    let late =
        format!("sh -c 'echo >>{calls}; test $(wc -l <{calls}) -lt 4 || exec sleep 600; echo 5'");
    let cases = [
        ("true", "it printed nothing"),
        ("echo NaN", "not a number above zero"),
        ("echo 3 apples", "not a number above zero"),
        ("echo 0", "not a number above zero"),
        ("sh -c 'exit 3'", "exit code 3"),
        ("", "it has no program"),
        ("sh -c 'echo 5", "a quote is not closed"),
        ("sleep 600", "it did not finish within"),
        (&late, "it did not finish within"),
    ];
    for (figure, part) in cases {
        let words = running.words(&pid, "40s");
        running.machine.refuse(&[&words[..], &["--figure", figure]].concat(), 2, part);
        running.assert_as_before();
    }
}

#[test]
fn a_figure_of_a_command_is_compared() {
    let Some(running) = Running::new("-smp 1") else { return };
    let pid = running.machine.pid();
    let more = ["--figure", "sh -c 'sleep 0.1; echo 5'", "--better", "higher"];
    let said = running.machine.print(&[&running.words(&pid, "24s")[..], &more].concat());
    assert_parts(
        &said,
        &["what sh -c 'sleep 0.1; echo 5' prints; higher is better", "memory", "wash-out"],
    );
    assert!(!said.contains("apply"), "equal figures have no winner: {said}");
    running.assert_as_before();
}

#[test]
fn a_placement_that_does_harm_is_dropped() {
    let Some(running) = Running::new("-smp 1") else { return };
    let pid = running.machine.pid();
    let words = ["tune", "--pid", &pid, "--strategies", "compact", "--budget", "24s"];
    for text in ["0%", "x", "120%"] {
        running.machine.refuse(&[&words[..], &["--max-harm", text]].concat(), 2, "percentage");
    }
    // The CPU of `compact` is shared with programs that compute, so a vCPU there waits.
    let placed: CpuSet = running.before[&running.vcpu()].iter().take(1).collect();
    let spinners: Vec<Child> = (0..8).map(|_| spinner(&placed)).collect();
    let more = ["--max-harm", "10%", "--json"];
    let found = running.machine.print_json(&[&words[..], &more].concat());
    drop(spinners);
    let compact = &found["placements"][2];
    let why = compact["dropped"].as_str().unwrap_or_default();
    assert!(why.contains("--max-harm allows"), "{found}");
    assert_eq!((compact["name"].as_str(), found["winner"].as_str()), (Some("compact"), None));
    running.assert_as_before();
}

/// A program that computes without end on one CPU; it ends with the test.
fn spinner(cpu: &CpuSet) -> Child {
    let spawn = Spawn::new("sh").args(["-c", "while :; do :; done"]).die_with_parent(true);
    spawn.affinity(cpu.clone()).start().expect("it starts")
}

#[test]
fn the_end_of_the_machine_ends_the_search() {
    let Some(mut running) = Running::new("-smp 1") else { return };
    let search = running.search();
    running.machine.qemu.kill().expect("it ends");
    let said = running.expect_end(search, 4);
    assert_parts(&said, &["ended during the search"]);
    assert_eq!(running.machine.print(&["status"]).trim(), "no placement is active");
}

#[test]
fn a_paused_machine_is_not_measured() {
    let Some(running) = Running::new("-smp 1") else { return };
    let search = running.search();
    running.machine.connect().stop().expect("it stops");
    assert_parts(&running.expect_end(search, 4), &["is paused"]);
    running.assert_as_before();
    let qmp = running.machine.qmp();
    running.machine.refuse(&["tune", "--qmp", &qmp, "--strategies", "compact"], 4, "is paused");
    running.assert_as_before();
}

#[test]
fn what_the_owner_moves_stays_and_ends_the_search() {
    let Some(running) = Running::new("-smp 1") else { return };
    let (mut search, vcpu) = (running.search(), running.vcpu());
    // A CPU on which no window has the vCPU alone.
    let placed = running.vcpu_mask();
    let own = running.before[&vcpu].difference(&placed).iter().take(1).collect::<CpuSet>();
    // A change while a window begins is taken for that of the window.
    while search.try_wait().expect("its state").is_none() {
        running.machine.host.set_affinity(vcpu, &own).expect("it is moved");
        SystemClock.sleep_ns(SECOND_NS / 2);
    }
    let said = running.expect_end(search, 1);
    assert_parts(&said, &["vcpu(0)", "was moved from", "that change was kept"]);
    assert_eq!(running.vcpu_mask(), own);
    running.machine.host.set_affinity(vcpu, &running.before[&vcpu]).expect("it is moved");
    running.assert_as_before();
}

#[test]
fn a_new_vcpu_ends_the_search() {
    let Some(running) = Running::new("-smp 1,maxcpus=2,sockets=2,cores=1,threads=1") else {
        return;
    };
    let search = running.search();
    let device =
        json!({ "driver": "qemu64-x86_64-cpu", "socket-id": 1, "core-id": 0, "thread-id": 0 });
    running.machine.connect().execute("device_add", Some(device)).expect("a vCPU");
    let said = running.expect_end(search, 1);
    assert_parts(&said, &["it has 2 vCPUs with other threads, 1 before"]);
    running.assert_as_before();
}

#[test]
fn a_killed_search_is_reverted() {
    let Some(running) = Running::new("-smp 1") else { return };
    let mut search = running.search();
    search.kill().expect("it ends");
    assert!(until(|| running.machine.changed(&running.before).is_empty()));
    // Until its journal has ended too, `status` reports a drift.
    assert!(until(|| running.machine.run(&["status"]).status.success()));
    running.machine.run(&["undo", "--left"]).expect_success();
    running.assert_as_before();
}

#[test]
fn an_interrupted_search_leaves_the_machine_and_a_second_one_is_refused() {
    let Some(running) = Running::new("-smp 1") else { return };
    let mut search = running.search();
    let pid = running.machine.pid();
    let second = running.words(&pid, "10s");
    running.machine.refuse(&second, 3, "another pinfold process is managing this process");
    search.terminate().expect("it runs");
    let said = running.expect_end(search, 130);
    assert_parts(&said, &["interrupted; what the search changed was reverted"]);
    running.assert_as_before();
    // A machine that is placed already is no baseline.
    running.machine.print(&["apply", "--pid", &pid, "--strategy", "compact"]);
    running.machine.refuse(&running.words(&pid, "10s"), 3, "undo");
    running.machine.print(&["undo"]);
    running.assert_as_before();
}

#[test]
fn without_bpf_the_sums_of_the_kernel_are_compared() {
    let Some(running) = Running::new("-smp 1") else { return };
    if !process::is_root() || crate::common::is_missing(&["setpriv"]) {
        return crate::common::skip("only root can take the right away here, with setpriv");
    }
    let pid = running.machine.pid();
    let without = ["setpriv", "--bounding-set=-bpf,-perfmon,-sys_admin", "--inh-caps=-all"];
    let output = running.machine.run_by(&without, &running.words(&pid, "24s"));
    let said = output.expect_success().stdout_text();
    assert_parts(&said, &["from schedstat; single waits were not recorded: "]);
    running.assert_as_before();
}

/// The words of a search for settings of the vCPU.
fn policy_words<'w>(pid: &'w str, budget: &'w str, tries: &[&'w str]) -> Vec<&'w str> {
    let words = ["tune", "--pid", pid, "--budget", budget, "--seed", "1", "--max-harm", "100%"];
    let tries = tries.iter().flat_map(|setting| ["--try", setting]);
    words.into_iter().chain(tries).collect()
}

impl Running {
    fn policy(&self) -> Policy {
        self.machine.host.policy(self.vcpu()).expect("a policy")
    }

    /// Starts a search for a setting, and waits until the vCPU has it.
    fn search_policy(&self) -> Child {
        let pid = self.machine.pid();
        let child = self.machine.start_logged(&policy_words(&pid, "10m", &[BATCH]));
        let is_set = until(|| self.policy() == Policy::Batch { nice: 0 });
        assert!(is_set, "{}", self.machine.read("said"));
        child
    }

    #[track_caller]
    fn assert_policy_as_before(&self) {
        assert_eq!(self.policy(), Policy::default());
        self.assert_as_before();
    }
}

const BATCH: &str = "policy:vcpu=batch:0";

#[test]
fn settings_are_tried_on_the_present_placement() {
    let Some(running) = Running::new("-smp 1") else { return };
    let pid = running.machine.pid();
    let tries = [BATCH, "policy:vcpu=other:0"];
    let more = ["--strategies", "compact", "--json"];
    let words = [&policy_words(&pid, "30s", &tries)[..], &more].concat();
    let found = running.machine.print_json(&words);
    let placements = found["placements"].as_array().expect("placements");
    let names: Vec<&str> = placements.iter().filter_map(|one| one["name"].as_str()).collect();
    assert_eq!(names, ["present", "present (again)", "compact", BATCH], "{found}");
    let blocks = found["blocks"].as_u64().expect("a number");
    assert!(blocks >= 2, "{found}");
    for (one, is_setting) in placements[2..].iter().zip([false, true]) {
        let facts = (&one["setting"], &one["dropped"]);
        assert_eq!(facts, (&json!(is_setting), &json!(null)), "{found}");
        assert_eq!(one["windows"].as_u64(), Some(blocks), "{found}");
    }
    let texts = found["findings"].to_string();
    assert!(texts.contains("is the present setting"), "{found}");
    running.assert_policy_as_before();
}

#[test]
fn the_command_for_a_setting_keeps_the_placement_and_sets_it() {
    let Some(running) = Running::new("-smp 1") else { return };
    let pid = running.machine.pid();
    // The owner has pinned the vCPU.
    let vcpu = running.vcpu();
    let own: CpuSet = running.before[&vcpu].iter().take(1).collect();
    running.machine.host.set_affinity(vcpu, &own).expect("it is moved");
    let pinned = running.machine.masks();
    // This figure is better while the vCPU has the policy batch (3), which is field 41 of its file;
    // its name has a blank.
    let stat = format!("/proc/{pid}/task/{vcpu}/stat");
    let figure =
        format!("sh -c 'sleep 0.1; test $(cut -d\" \" -f42 {stat}) = 3 && echo 1 || echo 2'");
    let more = ["--figure", &figure, "--json"];
    let found =
        running.machine.print_json(&[&policy_words(&pid, "60s", &[BATCH])[..], &more].concat());
    assert_eq!(found["winner"], json!(BATCH), "{found}");
    let next = found["next"].as_str().expect("a command");
    let words = split_words(next);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let at = words.iter().position(|word| *word == "apply").expect("apply");
    running.machine.print(&words[at..]);
    assert_eq!(running.policy(), Policy::Batch { nice: 0 });
    assert_eq!(running.machine.changed(&pinned), BTreeMap::new(), "{next}");
    running.machine.print(&["undo"]);
    running.machine.host.set_affinity(vcpu, &running.before[&vcpu]).expect("it is moved");
    running.assert_policy_as_before();
}

#[test]
fn a_killed_search_for_settings_is_reverted() {
    let Some(running) = Running::new("-smp 1") else { return };
    let mut search = running.search_policy();
    search.kill().expect("it ends");
    let is_reverted = until(|| running.policy() == Policy::default());
    assert!(is_reverted, "{}\n{}", running.policy(), running.machine.print(&["journal", "--json"]));
    assert!(until(|| running.machine.run(&["status"]).status.success()));
    running.machine.run(&["undo", "--left"]).expect_success();
    running.assert_policy_as_before();
}

#[test]
fn a_policy_that_the_owner_sets_stays_and_ends_the_search() {
    let Some(running) = Running::new("-smp 1") else { return };
    let (mut search, vcpu) = (running.search_policy(), running.vcpu());
    // A change while a window begins is taken for that of the window.
    while search.try_wait().expect("its state").is_none() {
        running.machine.host.set_policy(vcpu, Policy::Idle).expect("it is set");
        SystemClock.sleep_ns(SECOND_NS / 2);
    }
    let said = running.expect_end(search, 1);
    assert_parts(&said, &["the policy of vcpu(0)", "was changed from", "that change was kept"]);
    assert_eq!(running.policy(), Policy::Idle);
    running.machine.host.set_policy(vcpu, Policy::default()).expect("it is set");
    running.assert_policy_as_before();
}

#[test]
fn a_setting_that_the_kernel_refuses_is_dropped() {
    if !process::is_root() || crate::common::is_missing(&["setpriv"]) {
        return crate::common::skip("only root can take the right away here, with setpriv");
    }
    let without = ["setpriv", "--bounding-set=-sys_nice", "--inh-caps=-all"];
    // Pinfold may change threads only if they have no more rights than itself.
    let Some(running) = Running::new_by(&without, "-smp 1") else { return };
    let pid = running.machine.pid();
    let tries = ["policy:vcpu=other:-5", BATCH];
    let words = [&policy_words(&pid, "24s", &tries)[..], &["--json"]].concat();
    let output = running.machine.run_by(&without, &words);
    let said = output.expect_success().stdout_text();
    let found: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    let [refused, other] = [&found["placements"][2], &found["placements"][3]];
    let why = refused["dropped"].as_str().unwrap_or_default();
    assert!(why.contains("cannot be applied") && why.contains("not permitted"), "{found}");
    assert_eq!((&other["name"], &other["dropped"]), (&json!(BATCH), &json!(null)), "{found}");
    assert!(found["blocks"].as_u64().is_some_and(|blocks| blocks >= 2), "{found}");
    running.assert_policy_as_before();
}

#[test]
fn what_cannot_be_tried_is_refused() {
    let Some(running) = Running::new("-smp 1") else { return };
    let pid = running.machine.pid();
    for (words, part) in [
        ("timer-migraton=off", "did you mean timer-migration?"),
        ("latensy", "did you mean latency?"),
        ("timer-migration=maybe", "is not one of on, off"),
        ("smt=off", "cannot be tried in windows of a few seconds"),
    ] {
        running.machine.refuse(&policy_words(&pid, "10s", &[words]), 2, part);
    }
    let present = policy_words(&pid, "10s", &["policy:vcpu=other"]);
    running.machine.refuse(&present, 1, "there is no other setting to try");
    // A search by restarts sets no tunables.
    let by_starts = ["tune", "--demo", "--try", BATCH];
    running.machine.refuse(&by_starts, 2, "--libvirt");
    running.assert_policy_as_before();
}
