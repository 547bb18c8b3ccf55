//! `tune` on the real demo guest: it measures, stops when told to, goes on, and leaves
//! nothing behind.

use crate::common::machine::{Machine, QEMU};
use crate::common::{SECOND_NS, Sandbox, TIMEOUT_NS, is_missing, until};
use pinfold_host::process::Child;
use pinfold_host::{Clock, SystemClock};
use pinfold_model::{LoadState, Metric};
use pinfold_study::store::{RunId, StartStatus, Store};

struct Folder {
    sandbox: Sandbox,
    store: String,
}

impl Folder {
    fn new() -> Self {
        let sandbox = Sandbox::new();
        Self { store: sandbox.path("s"), sandbox }
    }

    fn tune(&self, more: &[&str]) -> Child {
        // Long enough for a slow machine; a longer one makes each measurement longer.
        let words = ["tune", "--demo", "--budget", "15m", "--strategies", "none,compact"];
        let files = ["--store", &self.store, "--report", &self.sandbox.path("r")];
        self.sandbox.start_without_kvm(&[&words[..], &files, more].concat())
    }

    fn starts(&self) -> usize {
        let store = Store::open(&self.store).ok();
        store.and_then(|store| store.starts(RunId(1)).ok()).map_or(0, |starts| starts.len())
    }

    /// Lets it run until the store holds so many starts, then asks it to end.
    fn until(&self, mut child: Child, starts: usize) -> Option<i32> {
        let end = SystemClock.now_ns() + TIMEOUT_NS;
        while self.starts() < starts && SystemClock.now_ns() < end {
            if child.try_wait().expect("its state").is_some() {
                break;
            }
            SystemClock.sleep_ns(SECOND_NS / 5);
        }
        child.terminate().expect("it may have ended");
        child.wait_for(&SystemClock, TIMEOUT_NS).expect("it ends").and_then(|status| status.code())
    }
}

#[test]
fn a_run_is_stopped_gone_on_with_and_leaves_nothing() {
    if is_missing(&[QEMU]) {
        return;
    }
    let folder = Folder::new();
    assert_eq!(folder.until(folder.tune(&[]), 1), Some(130), "interrupted");
    let list = folder.sandbox.print(&["report", "--list", "--store", &folder.store]);
    assert!(list.contains("--resume 1"), "{list}");
    let before = folder.starts();
    assert!(before >= 1, "the first start is kept");

    // Another guest is refused, the same one goes on where it was.
    let other = folder.tune(&["--resume", "1", "--vcpus", "2"]);
    assert_eq!(folder.until(other, usize::MAX), Some(2));
    let same = folder.tune(&["--resume", "1"]);
    assert_eq!(folder.until(same, before + 1), Some(130));
    assert!(folder.starts() > before);

    let store = Store::open(&folder.store).expect("the store");
    // On a busy machine, all load states do not fit in the budget.
    let settings = store.run(RunId(1)).expect("the run").config_json;
    let settings: serde_json::Value = serde_json::from_str(&settings).expect("JSON");
    let loads = settings["load_states"].as_array().expect("the load states").len();
    assert!([2, LoadState::ALL.len()].contains(&loads), "{settings}");
    for start in store.starts(RunId(1)).expect("the starts") {
        assert_eq!(start.record.status, StartStatus::Ok, "{:?}", start.record.error);
        let cells = store.cells(start.id).expect("its cells");
        assert_eq!(cells.len(), loads);
        for cell in cells {
            for metric in [Metric::SpinGap, Metric::Wakeup, Metric::IoAhci, Metric::IoVirtio] {
                assert!(
                    cell.series.iter().any(|series| series.metric == metric),
                    "{metric:?} in {}",
                    cell.load
                );
            }
        }
    }
    assert_eq!(folder.sandbox.print(&["status"]).trim(), "no placement is active");
}

/// A machine of the same state directory has CPUs of its own.
#[test]
fn owners_of_cpus_are_named_unless_they_are_ignored() {
    let Some(machine) = Machine::new_in(Sandbox::with_claims(), "-smp 1") else { return };
    let qmp = machine.qmp();
    machine.print(&["apply", "--qmp", &qmp, "--strategy", "compact", "--ignore-claims"]);
    for (more, is_named) in [(&[][..], true), (&["--ignore-claims"], false)] {
        let folder = machine.path(&format!("store{}", more.len()));
        let words = ["tune", "--demo", "--budget", "2h", "--strategies", "compact"];
        machine.write("said", "");
        let words = [&words[..], &["--store", &folder], more].concat();
        let mut child = machine.sandbox.start_without_kvm(&words);
        let has_begun = || Store::open(&folder).is_ok_and(|store| store.run(RunId(1)).is_ok());
        assert!(until(has_begun), "{}", machine.read("said"));
        child.terminate().expect("it may have ended");
        let status = child.wait_for(&SystemClock, TIMEOUT_NS).expect("it ends");
        // The directory of the store has the machine's name too.
        let said = machine.read("said").replace(&folder, "STORE");
        assert_eq!(status.and_then(|status| status.code()), Some(130), "{said}");
        assert_eq!(said.contains(&machine.name), is_named, "{more:?}: {said}");
    }
}
