//! `run --cores`: commands of the tests' own, placed like a machine for as long as they run.

#![expect(clippy::expect_used, reason = "a test that cannot go on fails")]

mod common;

use pinfold_host::process::{self, Child, Output, Signaled, Spawn, Stdio};
use pinfold_host::{Host, LiveHost, files};
use pinfold_model::Tid;

use std::io::Read;
use std::sync::{Mutex, MutexGuard, PoisonError};

use common::until;

const PINFOLD: &str = env!("CARGO_BIN_EXE_pinfold");
const MINUTE_NS: u64 = 60_000_000_000;

/// A placement of one test is a claim for the others, whatever state directory it has.
static ALONE: Mutex<()> = Mutex::new(());

struct TestGroup {
    folder: tempfile::TempDir,
    host: LiveHost,
    _alone: MutexGuard<'static, ()>,
}

impl TestGroup {
    fn new() -> Self {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let host = LiveHost::new().expect("a host");
        Self { folder: tempfile::tempdir().expect("a folder"), host, _alone: alone }
    }

    fn file(&self, name: &str) -> String {
        self.folder.path().join(name).to_string_lossy().into_owned()
    }

    fn spawn(&self, words: &[&str]) -> Spawn {
        Spawn::new(PINFOLD).args(["--state-dir", &self.file("state")]).args(words)
    }

    fn pinfold(&self, words: &[&str]) -> Output {
        self.spawn(words).stdin(Stdio::Null).capture(MINUTE_NS).expect("pinfold runs")
    }

    /// The CPUs that a thread of a file's process may use, if the file has its number.
    fn mask(&self, pid_file: &str) -> Option<(Tid, String)> {
        let text = files::read_text(&self.file(pid_file)).ok()?;
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
        let child = self
            .spawn(&words.concat())
            .stdin(Stdio::Null)
            .stdout(Stdio::Null)
            .start()
            .expect("pinfold starts");
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
        let output = self.pinfold(&words);
        assert!(output.status.success(), "{}", output.stderr_text());
        let text = output.stdout_text();
        let (_, rest) = text.split_once("\"pus\": \"").expect("CPUs");
        rest.split_once('"').expect("a text").0.to_owned()
    }
}

#[test]
fn a_command_has_its_cpus_its_input_and_its_answer() {
    let place = TestGroup::new();
    let script = "grep Cpus_allowed_list /proc/self/status; cat; exit 7";
    let input = place.file("input");
    files::write_atomic(&input, b"what it was given\n").expect("a file");
    let shell = format!(
        "{PINFOLD} --state-dir {} run -s compact --cores 1 -- sh -c '{script}' < {input}",
        place.file("state")
    );
    let output = process::capture("sh", ["-c", shell.as_str()], MINUTE_NS).expect("runs");
    assert_eq!(output.status.code(), Some(7), "{}", output.stderr_text());
    let printed = output.stdout_text();
    let expected = format!("Cpus_allowed_list:\t{}\nwhat it was given\n", place.planned());
    assert_eq!(printed, expected, "{}", output.stderr_text());
    let status = place.pinfold(&["status"]);
    assert!(status.status.success(), "nothing is left: {}", status.stdout_text());
    let missing = place.pinfold(&["run", "--cores", "1", "--", "no-such-program-here"]);
    assert_eq!(missing.status.code(), Some(127), "{}", missing.stderr_text());
    assert!(missing.stderr_text().contains("no program"), "{}", missing.stderr_text());
    let killed =
        place.pinfold(&["run", "-s", "none", "--cores", "1", "--", "sh", "-c", "kill -9 $$"]);
    assert_eq!(killed.status.code(), Some(128 + 9), "{}", killed.stderr_text());
}

#[test]
fn its_memory_is_where_its_cpus_are() {
    let place = TestGroup::new();
    let topology = place.pinfold(&["topo", "--json"]);
    let topology: serde_json::Value = serde_json::from_str(&topology.stdout_text()).expect("JSON");
    if topology["nodes"].as_array().map_or(0, Vec::len) < 2 {
        println!("skipped: this host has one NUMA node");
        return;
    }
    let words =
        ["run", "-s", "numa-exclusive", "--cores", "1", "--", "cat", "/proc/self/numa_maps"];
    let output = place.pinfold(&words);
    assert!(output.stdout_text().contains(" bind:"), "{}", output.stdout_text());
}

/// More cores than there are: what names no strategy is refused with the numbers; a strategy that
/// starts again at its first CPU says so.
#[test]
fn a_command_never_gets_fewer_cpus_in_silence() {
    let place = TestGroup::new();
    let too_many = (process_cpus(&place) + 1).to_string();
    let refused = place.pinfold(&["run", "--cores", &too_many, "--", "true"]);
    let said = refused.stderr_text();
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains(&format!("on this host, {too_many} were asked for")), "{said}");
    assert!(said.contains("ask for at most ") && !said.contains("vCPU"), "{said}");
    let shared = place.pinfold(&["run", "-s", "compact", "--cores", &too_many, "--", "true"]);
    let said = shared.stderr_text();
    assert_eq!(shared.status.code(), Some(0), "{said}");
    let reported = format!("warning: fewer CPUs: true asks for {too_many} cores, and gets CPU ");
    assert!(said.contains(&reported) && said.contains("take turns"), "{said}");
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
    let pid = place.file("pid");
    let own = place.host.affinity(process::own_tid()).expect("a mask");
    let last = own.iter().last().expect("a CPU").to_string();
    let script = format!("echo $$ > {pid}; exec sleep 600");
    let mut run = place.start_with(&["--pin", &format!("task={last}")], &script);
    let (tid, mask) = place.mask("pid").expect("it runs");
    assert_eq!(mask, last);
    let status = place.pinfold(&["status"]);
    let (code, text) = (status.status.code(), status.stdout_text());
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("1 placement is active, as planned"), "{text}");
    assert!(text.contains(": sh under compact, monitored by a running Pinfold process"), "{text}");
    let json: serde_json::Value =
        serde_json::from_str(&place.pinfold(&["status", "--json"]).stdout_text()).expect("JSON");
    let roles = json["in_force"][0]["roles"].as_array().expect("roles").clone();
    if own.len() > 1 {
        let role = serde_json::json!({
            "role": "task", "tid": tid.0, "planned": last, "found": last,
            "planned_policy": null, "found_policy": "other", "ok": true,
        });
        assert!(roles.contains(&role), "{roles:?}");
    }
    let undone = place.pinfold(&["undo"]);
    let said = undone.stderr_text();
    assert_eq!(undone.status.code(), Some(3), "{said}");
    assert!(said.contains("belongs to process"), "{said}");
    assert!(!said.contains("virtual machine"), "{said}");
    run.signal(Signaled::Terminate).expect("a signal");
    assert!(until(|| run.try_wait().expect("a child").is_some()));
    let status = place.pinfold(&["status"]);
    assert!(status.stdout_text().contains("no placement is active"), "{}", status.stdout_text());
}

#[test]
fn signals_are_the_commands() {
    let place = TestGroup::new();
    let pid = place.file("pid");
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
        println!("skipped: one CPU is all there is");
        return;
    }
    let pid = place.file("pid");
    let script = format!("echo $$ > {pid}; exec sleep 600");
    let mut run = place.start(&script);
    let (tid, mask) = place.mask("pid").expect("it runs");
    assert_eq!(mask, place.planned());
    run.kill().expect("killed");
    assert_eq!(place.mask("pid").map(|(_, mask)| mask), Some(place.planned()), "it goes on");
    let undone = place.pinfold(&["undo", "--all"]);
    assert!(undone.status.success(), "{}", undone.stderr_text());
    assert_eq!(place.mask("pid").map(|(_, mask)| mask), Some(place.own()), "its mask is back");
    process::signal(tid, Signaled::Kill).expect("a signal");
    assert!(until(|| place.mask("pid").is_none()), "the command ends");
}

/// A second command gets other CPUs than the first as long as there are some; with none left, a
/// warning names both, and `status` reports it until one of them ends.
#[test]
fn a_second_command_gets_other_cpus() {
    let place = TestGroup::new();
    let script = format!("echo $$ > {}; exec sleep 600", place.file("pid"));
    let mut first = place.start(&script);
    let (_, taken) = place.mask("pid").expect("it runs");
    let script = "grep Cpus_allowed_list /proc/self/status; exit 0";
    let run = ["run", "-s", "compact", "--cores", "1"];
    let second = place.pinfold(&[&run[..], &["--", "sh", "-c", script]].concat());
    let (printed, said) = (second.stdout_text(), second.stderr_text());
    assert_eq!(second.status.code(), Some(0), "{said}");
    let is_alone = process_cpus(&place) == 1;
    assert_eq!(printed == format!("Cpus_allowed_list:\t{taken}\n"), is_alone, "{printed}{said}");
    assert!(said.contains(if is_alone { "cpu-used-twice" } else { "reserved for sh" }), "{said}");
    let ignoring = [&run[..], &["--ignore-claims", "--", "sh", "-c", script]].concat();
    let printed = place.pinfold(&ignoring).stdout_text();
    assert_eq!(printed, format!("Cpus_allowed_list:\t{}\n", place.planned()));

    // On the same CPU on purpose.
    let script = format!("echo $$ > {}; exec sleep 600", place.file("other"));
    let pin = format!("task={taken}");
    let words = ["--pin", &pin, "--", "sh", "-c", &script];
    let mut other = place
        .spawn(&[&run[..], &words].concat())
        .stdin(Stdio::Null)
        .stdout(Stdio::Null)
        .stderr(Stdio::Pipe)
        .start()
        .expect("pinfold starts");
    assert!(until(|| place.mask("other").is_some()), "the command has begun");
    let status = place.pinfold(&["status"]);
    let (code, text) = (status.status.code(), status.stdout_text());
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("2 placements have a CPU that is used twice"), "{text}");
    assert!(text.contains("cpu-used-twice"), "{text}");
    other.signal(Signaled::Terminate).expect("a signal");
    assert!(until(|| other.try_wait().expect("a child").is_some()));
    let mut said = String::new();
    other.stderr().expect("a pipe").read_to_string(&mut said).expect("a text");
    assert!(said.contains("warning: cpu-used-twice") && said.contains("used by sh"), "{said}");
    let status = place.pinfold(&["status"]);
    assert_eq!(status.status.code(), Some(0), "{}", status.stdout_text());
    first.signal(Signaled::Terminate).expect("a signal");
    assert!(until(|| first.try_wait().expect("a child").is_some()));
}
