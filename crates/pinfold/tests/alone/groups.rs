//! `run --cores`: commands of the tests' own, placed like a machine for as long as they run.

use std::io::Read;
use std::ops::Deref;
use std::sync::MutexGuard;

use crate::common::{Checked as _, PINFOLD, Sandbox, assert_parts, run, skip, take_turn, until};
use pinfold_host::process::{self, Child, Signaled, Stdio};
use pinfold_host::{Host, LiveHost, files};
use pinfold_model::Tid;

struct TestGroup {
    sandbox: Sandbox,
    host: LiveHost,
    _turn: MutexGuard<'static, ()>,
}

impl Deref for TestGroup {
    type Target = Sandbox;

    fn deref(&self) -> &Sandbox {
        &self.sandbox
    }
}

impl TestGroup {
    fn new() -> Self {
        Self::new_in(Sandbox::new())
    }

    fn new_in(sandbox: Sandbox) -> Self {
        let turn = take_turn();
        Self { sandbox, host: LiveHost::new().expect("a host"), _turn: turn }
    }

    /// The CPUs that a thread of a file's process may use, if the file has its number.
    fn mask(&self, pid_file: &str) -> Option<(Tid, String)> {
        let text = files::read_text(&self.path(pid_file)).ok()?;
        let tid = Tid(text.trim().parse().ok()?);
        Some((tid, self.host.affinity(tid).ok()?.to_string()))
    }

    /// Starts `sh -c SCRIPT` on one core, and waits until it has written its number.
    fn start(&self, script: &str) -> Child {
        self.start_with(&[], script)
    }

    /// The same with further options.
    fn start_with(&self, options: &[&str], script: &str) -> Child {
        let words =
            [&["run", "-s", "compact", "--cores", "1"], options, &["--", "sh", "-c", script]];
        let child = self.spawn(&words.concat()).stdout(Stdio::Null).start();
        let child = child.expect("pinfold starts");
        assert!(until(|| self.mask("pid").is_some()), "the command has begun");
        child
    }

    fn own(&self) -> String {
        self.host.affinity(process::own_tid()).expect("a mask").to_string()
    }

    /// The CPU that a core of the strategy is here.
    fn planned(&self) -> String {
        let words =
            ["plan", "-s", "compact", "--group", "name=g cores=1", "--json", "--ignore-claims"];
        let text = self.print(&words);
        let (_, rest) = text.split_once("\"pus\": \"").expect("CPUs");
        rest.split_once('"').expect("a text").0.to_owned()
    }
}

#[test]
fn a_command_has_its_cpus_its_input_and_its_answer() {
    let place = TestGroup::new();
    let script = "grep Cpus_allowed_list /proc/self/status; cat; exit 7";
    let input = place.write("input", b"what it was given\n");
    let shell = format!(
        "{PINFOLD} --state-dir {} run -s compact --cores 1 -- sh -c '{script}' < {input}",
        place.path("state")
    );
    let output = run("sh", ["-c", &shell]);
    output.expect_code(7);
    let printed = output.stdout_text();
    let expected = format!("Cpus_allowed_list:\t{}\nwhat it was given\n", place.planned());
    assert_eq!(printed, expected, "{}", output.stderr_text());
    let status = place.run(&["status"]);
    assert!(status.status.success(), "nothing is left: {}", status.stdout_text());
    place.refuse(&["run", "--cores", "1", "--", "no-such-program-here"], 127, "no program");
    place
        .run(&["run", "-s", "none", "--cores", "1", "--", "sh", "-c", "kill -9 $$"])
        .expect_code(128 + 9);
}

#[test]
fn its_memory_is_where_its_cpus_are() {
    let place = TestGroup::new();
    let topology = place.run(&["topo", "--json"]).json();
    if topology["nodes"].as_array().map_or(0, Vec::len) < 2 {
        return skip("this host has one NUMA node");
    }
    let words =
        ["run", "-s", "numa-exclusive", "--cores", "1", "--", "cat", "/proc/self/numa_maps"];
    assert_parts(&place.run(&words).stdout_text(), &[" bind:"]);
}

/// More cores than there are: what names no strategy is refused with the numbers; a strategy that
/// starts again at its first CPU says so.
#[test]
fn a_command_never_gets_fewer_cpus_in_silence() {
    let place = TestGroup::new();
    let too_many = (process_cpus(&place) + 1).to_string();
    let said = place.run(&["run", "--cores", &too_many, "--", "true"]).expect_code(2);
    assert!(said.contains(&format!("on this host, the request asks for {too_many}")), "{said}");
    assert!(said.contains("request at most ") && !said.contains("vCPU"), "{said}");
    let said =
        place.run(&["run", "-s", "compact", "--cores", &too_many, "--", "true"]).expect_code(0);
    let reported = format!("warning: fewer CPUs: true requests {too_many} cores, but gets CPU ");
    assert!(said.contains(&reported) && said.contains("threads share"), "{said}");
    assert!(!said.contains("vCPU") && !said.contains("virtual machine\n"), "{said}");
}

/// How many CPUs this machine has online.
fn process_cpus(place: &TestGroup) -> usize {
    let online = place.host.read_text(&pinfold_host::paths::cpu_online()).expect("a list");
    pinfold_model::CpuSet::parse_list(online.trim()).expect("a list").len()
}

/// A command that runs under `run` has its status, also with a pin by hand, and `undo` names it.
#[test]
fn a_command_that_runs_has_its_status() {
    let place = TestGroup::new();
    let pid = place.path("pid");
    let own = place.host.affinity(process::own_tid()).expect("a mask");
    let last = own.iter().last().expect("a CPU").to_string();
    let script = format!("echo $$ > {pid}; exec sleep 600");
    let mut run = place.start_with(&["--pin", &format!("task={last}")], &script);
    let (tid, mask) = place.mask("pid").expect("it runs");
    assert_eq!(mask, last);
    let status = place.run(&["status"]);
    let (code, text) = (status.status.code(), status.stdout_text());
    assert_eq!(code, Some(0), "{text}");
    assert_parts(
        &text,
        &[
            "1 placement is active, as planned",
            ": sh under compact, monitored by a running Pinfold process",
        ],
    );
    let json = place.run(&["status", "--json"]).json();
    let roles = json["in_force"][0]["roles"].as_array().expect("roles").clone();
    if own.len() > 1 {
        let role = serde_json::json!({
            "role": "task", "tid": tid.0, "planned": last, "found": last,
            "planned_policy": null, "found_policy": "other", "ok": true,
        });
        assert!(roles.contains(&role), "{roles:?}");
    }
    let said = place.run(&["undo"]).expect_code(3);
    assert!(said.contains("belongs to process"), "{said}");
    assert!(!said.contains("virtual machine"), "{said}");
    run.signal(Signaled::Terminate).expect("a signal");
    assert!(until(|| run.try_wait().expect("a child").is_some()));
    assert_parts(&place.run(&["status"]).stdout_text(), &["no placement is active"]);
}

#[test]
fn signals_are_the_commands() {
    let place = TestGroup::new();
    let pid = place.path("pid");
    let script = format!("trap 'exit 9' TERM; echo $$ > {pid}; while :; do sleep 0.1; done");
    let mut run = place.start(&script);
    let (_, mask) = place.mask("pid").expect("it runs");
    assert_eq!(mask, place.planned());
    run.signal(Signaled::Terminate).expect("a signal");
    let mut ended = None;
    assert!(until(|| {
        ended = run.try_wait().expect("a child");
        ended.is_some()
    }));
    assert_eq!(ended.and_then(|status| status.code()), Some(9));
    assert!(place.mask("pid").is_none(), "the command has ended");
}

#[test]
fn what_a_killed_pinfold_leaves_is_undone_by_undo() {
    let place = TestGroup::new();
    if place.own() == place.planned() {
        return skip("one CPU is all there is");
    }
    let pid = place.path("pid");
    let script = format!("echo $$ > {pid}; exec sleep 600");
    let mut run = place.start(&script);
    let (tid, mask) = place.mask("pid").expect("it runs");
    assert_eq!(mask, place.planned());
    run.kill().expect("killed");
    assert_eq!(place.mask("pid").map(|(_, mask)| mask), Some(place.planned()), "it goes on");
    place.run(&["undo", "--all"]).expect_success();
    assert_eq!(place.mask("pid").map(|(_, mask)| mask), Some(place.own()), "its mask is back");
    process::signal(tid, Signaled::Kill).expect("a signal");
    assert!(until(|| place.mask("pid").is_none()), "the command ends");
}

/// A second command gets other CPUs than the first as long as there are some; with none left, a
/// warning names both, and `status` reports it until one of them ends.
#[test]
fn a_second_command_gets_other_cpus() {
    let place = TestGroup::new_in(Sandbox::with_claims());
    let script = format!("echo $$ > {}; exec sleep 600", place.path("pid"));
    let mut first = place.start(&script);
    let (_, taken) = place.mask("pid").expect("it runs");
    let script = "grep Cpus_allowed_list /proc/self/status; exit 0";
    let run = ["run", "-s", "compact", "--cores", "1"];
    let second = place.run(&[&run[..], &["--", "sh", "-c", script]].concat());
    let (printed, said) = (second.stdout_text(), second.stderr_text());
    assert_eq!(second.status.code(), Some(0), "{said}");
    // A domain of a test that runs at the same time may have the other CPU.
    let is_full = process_cpus(&place) == 1 || said.contains("pinfold-test");
    let has_taken = printed == format!("Cpus_allowed_list:\t{taken}\n");
    assert!(has_taken <= is_full, "{printed}{said}");
    let is_said =
        said.contains("cpu-used-twice") || (!has_taken && said.contains("reserved for sh"));
    assert!(is_said, "{printed}{said}");
    let ignoring = [&run[..], &["--ignore-claims", "--", "sh", "-c", script]].concat();
    let printed = place.run(&ignoring).stdout_text();
    assert_eq!(printed, format!("Cpus_allowed_list:\t{}\n", place.planned()));

    // On the same CPU on purpose.
    let script = format!("echo $$ > {}; exec sleep 600", place.path("other"));
    let pin = format!("task={taken}");
    let words = ["--pin", &pin, "--", "sh", "-c", &script];
    let mut other = place
        .spawn(&[&run[..], &words].concat())
        .stdout(Stdio::Null)
        .stderr(Stdio::Pipe)
        .start()
        .expect("pinfold starts");
    assert!(until(|| place.mask("other").is_some()), "the command has begun");
    let shown = place.run(&["status"]);
    shown.expect_code(1);
    let text = shown.stdout_text();
    let start = "2 placements are active; 2 placements have a CPU that is used twice";
    assert_parts(&text, &[start, "warning: cpu-used-twice"]);
    assert_eq!(text.matches("cpu-used-twice").count(), 1, "one line for all users: {text}");
    place.run(&["status", "--ignore-claims"]).expect_code(0);
    other.signal(Signaled::Terminate).expect("a signal");
    assert!(until(|| other.try_wait().expect("a child").is_some()));
    let mut said = String::new();
    other.stderr().expect("a pipe").read_to_string(&mut said).expect("a text");
    assert!(said.contains("warning: cpu-used-twice") && said.contains("used by sh"), "{said}");
    place.run(&["status", "--ignore-claims"]).expect_code(0);
    first.signal(Signaled::Terminate).expect("a signal");
    assert!(until(|| first.try_wait().expect("a child").is_some()));
}

/// Each command gets the part of its group.
#[test]
fn a_plan_of_several_groups_starts_the_one_that_is_named() {
    let place = TestGroup::new();
    let groups = ["--group", "name=a cores=1", "--group", "name=b cores=1"];
    let words = [&["plan", "-s", "compact", "--json", "--ignore-claims"], &groups[..]].concat();
    let text = place.print(&words);
    let plan: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let file = place.write("joint.json", &text);
    for (index, name) in ["a", "b"].into_iter().enumerate() {
        let threads = &plan["vnodes"][index]["threads"];
        let planned = threads[0]["pus"].as_str().expect("CPUs");
        let script = "grep Cpus_allowed_list /proc/self/status";
        let words = ["run", "--plan", &file, "--vnode", name, "--", "sh", "-c", script];
        assert_eq!(place.print(&words), format!("Cpus_allowed_list:\t{planned}\n"), "{name}");
    }
    let without = ["run", "--plan", &file, "--", "true"];
    place.refuse(&without, 2, "places 2 groups: a, b");
    place.refuse(&without, 2, "--vnode a");
    place.refuse(&["run", "--plan", &file, "--vnode", "c", "--", "true"], 2, "it places a, b");
}
