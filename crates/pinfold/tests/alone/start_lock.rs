//! No start chooses CPUs while another start has read the claims and is not yet in the journal; and
//! commands that read the claims first revert placements whose machine has ended.

use crate::common::machine::QEMU;
use crate::common::{SECOND_NS, Sandbox, is_missing, skip, take_turn, until};
use pinfold_emulate::Facts;
use pinfold_host::files::{Lock, StateDir};
use pinfold_host::process::Child;
use pinfold_host::{Clock as _, Host as _, LiveHost, SystemClock, paths};
use pinfold_model::Method;

struct Starts {
    sandbox: Sandbox,
    journals: StateDir,
}

impl Starts {
    fn new() -> Self {
        let sandbox = Sandbox::with_claims();
        let state = sandbox.path("state");
        StateDir::open(&state).expect("a state");
        let journals = StateDir::open(&format!("{state}/journal")).expect("journals");
        Self { sandbox, journals }
    }

    /// As another process that is starting a placement.
    fn lock(&self) -> Lock {
        self.journals.lock("start.lock").expect("a file").expect("a lock")
    }

    /// A journal of a machine that has ended: the kernel gives no process such a number.
    fn put_ended(&self) {
        let host = LiveHost::new().expect("a host");
        let boot = host.read_text(&paths::boot_id()).expect("a boot id");
        let task = r#"{"tid":4999997,"start_time":9}"#;
        let boot = boot.trim();
        let text = format!(
            r#"{{"format":"pinfold-journal/1","id":"4999997-9","boot_id":"{boot}","created_unix_s":1770000000,"supervisor":{{"tid":4999996,"start_time":1}},"vm":{task},"vm_name":"ended","threads":[],"plan":"{{}}"}}
{{"step":{{"index":0,"reason":"","change":{{"set_affinity":{{"task":{task},"mask":"1"}}}},"undo":{{"set_affinity":{{"task":{task},"original":"0-3"}}}}}}}}
{{"outcome":{{"index":0,"result":"done","detail":null}}}}
"#
        );
        self.journals.create_new("4999997-9.jsonl", text.as_bytes()).expect("written");
    }

    fn is_ended(&self) -> bool {
        let bytes = self.journals.read("4999997-9.jsonl").expect("it is there");
        String::from_utf8_lossy(&bytes).contains(r#"{"end""#)
    }

    fn journal_count(&self) -> usize {
        let names = self.journals.list().expect("names");
        names.iter().filter(|name| name.ends_with(".jsonl")).count()
    }

    fn spawn(&self, words: &[&str]) -> Child {
        self.sandbox.start_logged(words)
    }

    fn said(&self) -> String {
        self.sandbox.read("said")
    }

    /// The command reverts what has ended, makes no journal while the lock is held, and makes one
    /// afterwards.
    fn waits(&self, words: &[&str]) -> Child {
        self.put_ended();
        let lock = self.lock();
        let mut child = self.spawn(words);
        assert!(until(|| self.is_ended()), "{}", self.said());
        SystemClock.sleep_ns(SECOND_NS);
        assert_eq!(self.journal_count(), 1, "it did not wait: {}", self.said());
        assert!(child.try_wait().expect("its state").is_none(), "{}", self.said());
        drop(lock);
        assert!(until(|| self.journal_count() == 2), "{}", self.said());
        child
    }
}

fn why_no_vnode() -> Option<String> {
    let host = LiveHost::new().expect("a host");
    pinfold_emulate::refusal(Method::Stall, &Facts::find(&host).expect("facts"))
}

fn code(mut child: Child) -> Option<i32> {
    let status = child.wait_for(&SystemClock, 120 * SECOND_NS).expect("it ends");
    status.expect("it ends within two minutes").code()
}

#[test]
fn a_command_on_cores_waits_for_another_start() {
    let _turn = take_turn();
    let starts = Starts::new();
    let child = starts.waits(&["run", "-s", "compact", "--cores", "1", "--", "sleep", "1"]);
    assert_eq!(code(child), Some(0), "{}", starts.said());
}

#[test]
fn a_slow_command_waits_for_another_start() {
    let _turn = take_turn();
    if let Some(why) = why_no_vnode() {
        return skip(format!("stall: {why}"));
    }
    let starts = Starts::new();
    let child = starts.waits(&["run", "--speed", "50%", "--", "true"]);
    assert_eq!(code(child), Some(0), "{}", starts.said());
}

#[test]
fn a_platform_waits_for_another_start() {
    let _turn = take_turn();
    if let Some(why) = why_no_vnode() {
        return skip(format!("stall: {why}"));
    }
    let starts = Starts::new();
    let text = "[[vnode]]\nname = \"waits\"\ncores = 1\nspeed = \"50%\"\nmethod = \"stall\"\n";
    let file = starts.sandbox.write("platform.toml", text);
    let mut child = starts.waits(&["emulate", "up", "--foreground", &file]);
    child.terminate().expect("it is asked to end");
    assert_eq!(code(child), Some(0), "{}", starts.said());
    // In the background, the supervisor takes the lock and not its starter.
    let child = starts.spawn(&["emulate", "up", &file]);
    assert_eq!(code(child), Some(0), "{}", starts.said());
    assert_eq!(code(starts.spawn(&["emulate", "down"])), Some(0), "{}", starts.said());
}

#[test]
fn a_tuning_run_waits_for_another_start() {
    let _turn = take_turn();
    if is_missing(&[QEMU]) {
        return;
    }
    let starts = Starts::new();
    let (store, report) = (starts.sandbox.path("s"), starts.sandbox.path("r"));
    let tune = ["tune", "--budget", "4m", "--settle", "1s", "--strategies", "compact"];
    let qemu = [QEMU, "-machine", "q35", "-accel", "tcg", "-display", "none", "-nodefaults"];
    let more = ["--store", &store, "--report", &report, "--"];
    let words = [&tune[..], &more, &qemu, &["-smp", "1", "-m", "64M"]].concat();
    let mut child = starts.waits(&words);
    child.terminate().expect("it is asked to end");
    assert_eq!(code(child), Some(130), "{}", starts.said());
}
