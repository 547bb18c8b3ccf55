//! `tune` on the real demo guest: it measures, stops when told to, goes on, and leaves
//! nothing behind.

use crate::common::{PINFOLD, SECOND_NS};
use pinfold_host::process::{Child, Spawn, Stdio, capture, find_program};
use pinfold_host::{Clock, SystemClock};
use pinfold_model::{LoadState, Metric};
use pinfold_study::store::{RunId, StartStatus, Store};

const PATIENCE_NS: u64 = 300 * SECOND_NS;

struct Folder {
    _folder: tempfile::TempDir,
    state: String,
    store: String,
    report: String,
}

impl Folder {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
        Self { state: path("state"), store: path("s"), report: path("r"), _folder: folder }
    }

    fn tune(&self, more: &[&str]) -> Child {
        // The budget is long so that a slow machine is not refused; the test ends it early.
        let words = ["tune", "--demo", "--budget", "7m", "--strategies", "none,compact"];
        Spawn::new(PINFOLD)
            .args(["--state-dir", &self.state])
            .args(words)
            .args(["--store", &self.store, "--report", &self.report])
            .args(more)
            .stdin(Stdio::Null)
            .stdout(Stdio::Null)
            .die_with_parent(true)
            .start()
            .expect("pinfold starts")
    }

    fn starts(&self) -> usize {
        let store = Store::open(&self.store).ok();
        store.and_then(|store| store.starts(RunId(1)).ok()).map_or(0, |starts| starts.len())
    }

    /// Lets it run until the store holds so many starts, then asks it to end.
    fn until(&self, mut child: Child, starts: usize) -> Option<i32> {
        let end = SystemClock.now_ns() + PATIENCE_NS;
        while self.starts() < starts && SystemClock.now_ns() < end {
            if child.try_wait().expect("its state").is_some() {
                break;
            }
            SystemClock.sleep_ns(SECOND_NS / 5);
        }
        child.terminate().expect("it may have ended");
        child.wait_for(&SystemClock, PATIENCE_NS).expect("it ends").and_then(|status| status.code())
    }
}

#[test]
fn a_run_is_stopped_gone_on_with_and_leaves_nothing() {
    if find_program("qemu-system-x86_64").is_none() {
        println!("skipped: qemu-system-x86_64 is not installed");
        return;
    }
    let folder = Folder::new();
    assert_eq!(folder.until(folder.tune(&[]), 1), Some(130), "interrupted");
    let list = capture(PINFOLD, ["report", "--list", "--store", &folder.store], SECOND_NS * 60)
        .expect("pinfold runs");
    assert!(list.stdout_text().contains("--resume 1"), "{}", list.stdout_text());
    let before = folder.starts();
    assert!(before >= 1, "the first start is kept");

    // Another guest is refused, the same one goes on where it was.
    let other = folder.tune(&["--resume", "1", "--vcpus", "2"]);
    assert_eq!(folder.until(other, usize::MAX), Some(2));
    let same = folder.tune(&["--resume", "1"]);
    assert_eq!(folder.until(same, before + 1), Some(130));
    assert!(folder.starts() > before);

    let store = Store::open(&folder.store).expect("the store");
    for start in store.starts(RunId(1)).expect("the starts") {
        assert_eq!(start.record.status, StartStatus::Ok, "{:?}", start.record.error);
        let cells = store.cells(start.id).expect("its cells");
        assert_eq!(cells.len(), LoadState::ALL.len());
        for cell in cells {
            let measured = |metric| cell.series.iter().any(|series| series.metric == metric);
            for metric in [Metric::SpinGap, Metric::Wakeup, Metric::IoAhci, Metric::IoVirtio] {
                assert!(measured(metric), "{metric:?} in {}", cell.load);
            }
        }
    }
    let status = capture(PINFOLD, ["--state-dir", &folder.state, "status"], SECOND_NS * 60)
        .expect("pinfold runs");
    assert_eq!(status.stdout_text().trim(), "no placement is active");
}
