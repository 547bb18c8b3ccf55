//! Tests of the text form and of path resolution.

use super::*;

fn machine() -> SnapshotHost {
    let mut tree = SnapshotHost::from_files([
        ("/proc/stat", "cpu 1 2\ncpu0 1 2\n"),
        ("/etc/hostname", "captured\n"),
        ("/sys/a/b/value", "7\n"),
    ]);
    tree.insert_link("/abs", "/etc/hostname");
    tree.insert_link("/sys/up", "../etc/hostname");
    tree.insert_link("/sys/dir", "a/b");
    tree.insert_link("/sys/out", "../../../../etc/hostname");
    tree.insert_link("/loop/one", "two");
    tree.insert_link("/loop/two", "/loop/one");
    tree.insert_link("/dangling", "/nowhere");
    tree.insert_dir("/empty");
    tree.insert_bare("/dev/kvm");
    tree
}

#[test]
fn reads_follow_links_inside_the_tree() {
    fn check(tree: &SnapshotHost, path: &str, expected: Result<&str, Errno>) {
        let got = tree.read(path).map(|bytes| String::from_utf8(bytes).unwrap());
        let got = got.map_err(|error| Errno::from_raw_os_error(error.errno().unwrap()));
        assert_eq!(got, expected.map(str::to_owned), "{path}");
    }

    let tree = machine();
    check(&tree, "/proc/stat", Ok("cpu 1 2\ncpu0 1 2\n"));
    check(&tree, "proc/stat", Ok("cpu 1 2\ncpu0 1 2\n"));
    check(&tree, "//proc/./stat", Ok("cpu 1 2\ncpu0 1 2\n"));
    check(&tree, "/proc/../../proc/stat", Ok("cpu 1 2\ncpu0 1 2\n"));
    check(&tree, "/abs", Ok("captured\n"));
    check(&tree, "/sys/up", Ok("captured\n"));
    check(&tree, "/sys/out", Ok("captured\n"));
    check(&tree, "/sys/dir/value", Ok("7\n"));
    check(&tree, "/sys/dir/../b/value", Ok("7\n"));
    check(&tree, "/loop/one", Err(Errno::LOOP));
    check(&tree, "/loop/one/more", Err(Errno::LOOP));
    check(&tree, "/dangling", Err(Errno::NOENT));
    check(&tree, "/nothing", Err(Errno::NOENT));
    check(&tree, "", Err(Errno::NOENT));
    check(&tree, "/proc/stat/more", Err(Errno::NOTDIR));
    check(&tree, "/proc/stat/", Err(Errno::NOTDIR));
    check(&tree, "/proc", Err(Errno::ISDIR));
    check(&tree, "/dev/kvm", Err(Errno::NODATA));
    check(&tree, "/dev/kvm/more", Err(Errno::NODATA));
}

#[test]
fn lists_links_and_counts() {
    let tree = machine();
    assert_eq!(tree.list("/sys").unwrap(), ["a", "dir", "out", "up"]);
    assert_eq!(tree.list("/sys/dir").unwrap(), ["value"]);
    assert_eq!(tree.list("/empty").unwrap(), [""; 0]);
    assert_eq!(tree.list("/proc/stat").unwrap_err().errno(), Some(libc::ENOTDIR));
    assert_eq!(tree.link("/sys/up").unwrap(), "../etc/hostname");
    assert_eq!(tree.link("/sys/a").unwrap_err().errno(), Some(libc::EINVAL));
    assert_eq!(tree.link_count("/sys").unwrap(), 3);
    assert_eq!(tree.link_count("/sys/a/b").unwrap(), 2);
    assert!(tree.exists("/dev/kvm") && tree.exists("/sys/dir/value") && tree.exists("/"));
    assert!(!tree.exists("/dangling") && !tree.exists("/loop/one"));
    assert_eq!(tree.affinity(Tid(1)).unwrap_err().errno(), Some(libc::ENOSYS));
    assert!(!tree.is_live());
}

#[test]
fn text_round_trips() {
    let tree = machine();
    assert_eq!(SnapshotHost::parse(&tree.to_text()), Ok(tree.clone()));
    check("/a", b"");
    check("/a", b"\n");
    check("/a", b"\n\n");
    check("/a", b"no newline at the end");
    check("/a", b"two\nlines, none at the end");
    check("/a", b"ends in a backslash\\");
    check("/a", b"backslash before newline\\\nmore\n");
    check("/a", b"\ttab\tand\x00zero\x00");
    check("/a", b"\xff\xfe\x80 not UTF-8 \xc3\n");
    check("/a", "Grüße \u{85}\u{7f}\r\n".as_bytes());
    check("/a", b"file /b\nlink /c -> d\n");
    check("/with blank/and -> arrow", b"1\n");
    check("/tab\there\nnewline", b"1\n");
    check("/back\\slash", b"1\n");
}

fn check(path: &str, content: &[u8]) {
    let tree = SnapshotHost::from_files([(path, content)]);
    let text = tree.to_text();
    assert!(text.bytes().all(|byte| byte == b'\n' || byte == b'\t' || byte >= 0x20), "{text:?}");
    assert_eq!(SnapshotHost::parse(&text), Ok(tree), "{text:?}");
}

#[test]
fn text_is_what_a_reviewer_reads() {
    let mut tree = SnapshotHost::from_files([("/b", "x\n"), ("/a", "cut")]);
    tree.insert_link("/c", "a");
    tree.insert_dir("/d");
    tree.insert_bare("/e");
    assert_eq!(
        tree.to_text(),
        "pinfold-capture 1\nfile /a\n\tcut\\\nfile /b\n\tx\nlink /c -> a\ndir /d\nbare /e\n"
    );
}

#[test]
fn texts_that_are_refused_with_the_line() {
    fn check(text: &str, line: usize, why: &str) {
        match SnapshotHost::parse(text) {
            Err(TreeError::Line { line: got, why: said }) => {
                assert_eq!((got, said.contains(why)), (line, true), "{text:?}: {said}");
            }
            other => panic!("{text:?}: {other:?}"),
        }
    }

    check(&head("\tcontent"), 2, "outside a file");
    check(&head("file a"), 2, "absolute");
    check(&head("file /a/../b"), 2, "plain");
    check(&head("file /a//b"), 2, "plain");
    check(&head("file /"), 2, "plain");
    check(&head("file /a\nfile /a"), 3, "twice");
    check(&head("dir /a\ndir /a"), 3, "twice");
    check(&head("file /a\n\t1\nfile /a/b"), 4, "below");
    check(&head("link /a"), 2, "target");
    check(&head("pipe /a"), 2, "\"pipe\"");
    check(&head("nonsense"), 2, "entry");
    check(&head("file /a\n\t\\q"), 3, "backslash");
    check(&head("file /a\n\t\\x4"), 3, "backslash");
    check(&head("file /a\n\t\\x+4"), 3, "backslash");
    check(&head("file /a\n\t\\xü"), 3, "backslash");
    check(&head("file /a\\"), 2, "lone");
    check(&head("file /\\xff"), 2, "UTF-8");
    assert!(matches!(SnapshotHost::parse(""), Err(TreeError::Head { .. })));
    assert!(matches!(SnapshotHost::parse("pinfold-capture 2\n"), Err(TreeError::Head { .. })));
    assert!(TreeError::Head { found: String::new() }.hint().is_some());
}

fn head(rest: &str) -> String {
    format!("pinfold-capture 1\n{rest}")
}

#[test]
fn insertion_replaces_and_removal_takes_all_below() {
    let mut tree = machine();
    tree.insert_file("/proc/stat/inner", "1\n");
    assert_eq!(tree.read_text("/proc/stat/inner").unwrap(), "1\n");
    tree.insert_bare("/proc/stat");
    assert!(tree.exists("/proc/stat/inner"));
    assert!(tree.remove("/sys") && !tree.remove("/sys") && !tree.remove("/abs/x"));
    assert!(!tree.exists("/sys/a/b/value"));
    assert!(!tree.is_empty() && SnapshotHost::new().is_empty());
}
