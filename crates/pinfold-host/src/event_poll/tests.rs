//! Events of threads and files of this test.

use std::os::unix::net::UnixStream;
use std::sync::mpsc;
use std::thread;

use super::*;
use crate::{files, process};

/// Timeout, longer than any step here takes; the wait ends at the first event.
const TIMEOUT_NS: u64 = 20 * NS_PER_S;

/// Waits for an event; other events are skipped.
fn hears(watcher: &mut EventWatcher, what: impl Fn(&Events) -> bool) -> bool {
    (0..100).any(|_| what(&watcher.wait(TIMEOUT_NS / 100, &[]).unwrap()))
}

#[test]
fn a_new_task_and_an_end_are_received() {
    let (report, reported) = mpsc::channel();
    let (go, gone) = mpsc::channel::<()>();
    let maker = thread::spawn(move || {
        report.send(process::own_tid()).unwrap();
        gone.recv().unwrap();
        thread::spawn(|| {}).join().unwrap();
        gone.recv().unwrap_err();
    });
    let tid = reported.recv().unwrap();
    let mut watcher = EventWatcher::new();
    match watcher.follow_threads(&BTreeSet::from([tid])) {
        Ok(is_new) => assert!(is_new),
        Err(error) => return println!("skipped: {error}: {:?}", error.errno()),
    }
    assert!(!watcher.follow_threads(&BTreeSet::from([tid])).unwrap());
    assert_eq!(watcher.wait(0, &[]).unwrap(), Events::default());
    go.send(()).unwrap();
    assert!(hears(&mut watcher, |received| received.threads.contains(&tid)), "the birth");
    drop(go);
    maker.join().unwrap();
    assert!(hears(&mut watcher, |received| received.threads.contains(&tid)), "the end");
    assert!(hears(&mut watcher, |_| true));
    assert!(watcher.threads.is_empty(), "who has ended does not wake us again");
    // It cannot be watched any more, which is no error.
    assert!(!watcher.follow_threads(&BTreeSet::from([tid])).unwrap());
}

#[test]
fn files_that_are_written_made_and_removed_are_received() {
    let folder = tempfile::tempdir().unwrap();
    files::write_atomic(&path_in("a", &folder), b"1").unwrap();
    files::write_atomic(&path_in("b", &folder), b"1").unwrap();
    let mut watcher = EventWatcher::new();
    watcher
        .follow_files(&BTreeSet::from([path_in("a", &folder), path_in("absent", &folder)]))
        .unwrap();
    assert_eq!(watcher.files.len(), 1);
    files::remove(&path_in("b", &folder)).unwrap();
    assert!(!watcher.wait(0, &[]).unwrap().files, "another file");
    std::fs::write(path_in("a", &folder), b"2").unwrap();
    assert!(watcher.wait(TIMEOUT_NS, &[]).unwrap().files);
    assert!(!watcher.wait(0, &[]).unwrap().files, "told once");
    files::remove(&path_in("a", &folder)).unwrap();
    assert!(watcher.wait(TIMEOUT_NS, &[]).unwrap().files);
    assert!(watcher.files.is_empty());
    watcher.follow_files(&BTreeSet::from([path_in("", &folder)])).unwrap();
    files::write_atomic(&path_in("c", &folder), b"1").unwrap();
    assert!(watcher.wait(TIMEOUT_NS, &[]).unwrap().files, "a new name in a directory");
    watcher.follow_files(&BTreeSet::new()).unwrap();
    assert!(watcher.inotify.is_none());
}

fn path_in(name: &str, folder: &tempfile::TempDir) -> String {
    folder.path().join(name).to_string_lossy().into_owned()
}

#[test]
fn others_end_the_wait_too() {
    use std::io::Write as _;
    let (here, mut there) = UnixStream::pair().unwrap();
    there.write_all(b"x").unwrap();
    let received = EventWatcher::new().wait(TIMEOUT_NS, &[here.as_fd()]).unwrap();
    assert_eq!(received, Events { others: true, ..Events::default() });
}
