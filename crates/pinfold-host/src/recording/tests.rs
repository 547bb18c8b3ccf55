//! A capture gives the same results as the recorded host.

use super::*;

fn machine() -> SnapshotHost {
    let mut tree = SnapshotHost::from_files([
        ("/sys/devices/cpu0/id", "0\n"),
        ("/sys/devices/cpu0/unread", "secret\n"),
        ("/proc/1/stat", "1 (a) S\n"),
        ("/proc/100/mountinfo", "x\n"),
    ]);
    tree.insert_link("/sys/bus/cpu0", "../devices/cpu0");
    tree.insert_link("/proc/self", "100");
    tree.insert_bare("/dev/kvm");
    tree
}

#[test]
fn a_capture_answers_what_was_asked_and_nothing_else() {
    let host = machine();
    let recording = RecordingHost::new(&host);
    let expected = ask(&host);
    assert_eq!(ask(&recording), expected);
    let tree = recording.into_tree();
    assert_eq!(ask(&tree), expected);
    // Listed but not read: the name exists, the content does not.
    assert!(tree.exists("/sys/devices/cpu0/unread"));
    assert_eq!(tree.read("/sys/devices/cpu0/unread").unwrap_err().errno(), Some(libc::ENODATA));
    assert!(!tree.exists("/proc/1"));
    assert_eq!(SnapshotHost::parse(&tree.to_text()), Ok(tree));
}

/// What a host says about files, links and tasks.
type Answers = (
    Option<Vec<u8>>,
    Option<Vec<u8>>,
    Option<Vec<String>>,
    Option<String>,
    bool,
    bool,
    Result<Vec<u8>, Option<i32>>,
    Result<Vec<u8>, Option<i32>>,
);

fn ask(host: &dyn Host) -> Answers {
    (
        host.read("/sys/bus/cpu0/id").ok(),
        host.read("/proc/self/mountinfo").ok(),
        host.list("/sys/devices/cpu0").ok(),
        host.link("/sys/bus/cpu0").ok(),
        host.exists("/dev/kvm"),
        host.exists("/nowhere"),
        host.read("/missing").map_err(|error| error.errno()),
        host.read("/dev/kvm").map_err(|error| error.errno()),
    )
}

#[test]
fn accesses_are_noted_in_order() {
    let host = machine();
    let recording = RecordingHost::new(&host);
    assert!(recording.read("/proc/1/stat").is_ok());
    assert!(!recording.exists("/x"));
    assert!(recording.affinity(Tid(7)).is_err());
    assert!(!recording.is_live());
    assert_eq!(
        recording.accesses(),
        [
            note(Operation::Read, "/proc/1/stat"),
            note(Operation::Exists, "/x"),
            note(Operation::Affinity, "7"),
        ]
    );
}

fn note(operation: Operation, path: &str) -> Access {
    Access { operation, path: path.to_owned() }
}
