//! Tests with temporary folders only.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

use super::dirs::{User, choose, runtime_path};
use super::*;

fn folder() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().display().to_string();
    (folder, path)
}

fn mode(path: &str) -> u32 {
    std::fs::metadata(path).unwrap().mode() & 0o7777
}

fn why(error: &HostError) -> &str {
    let HostError::Untrusted { why, .. } = error else { panic!("{error}") };
    why
}

#[test]
fn files_are_written_whole() {
    let (_folder, base) = folder();
    let path = format!("{base}/report.html");
    write_atomic(&path, b"one").unwrap();
    write_atomic(&path, b"two, longer").unwrap();
    assert_eq!(read(&path).unwrap(), b"two, longer");
    assert_eq!(list(&base).unwrap(), ["report.html"]);
    let missing = write_atomic(&format!("{base}/none/x"), b"1").unwrap_err();
    assert_eq!(missing.errno(), Some(libc::ENOENT));
    assert_eq!(write_atomic(&format!("{base}/"), b"1").unwrap_err().errno(), Some(libc::EISDIR));
    std::fs::create_dir(format!("{base}/dir")).unwrap();
    assert!(write_atomic(&format!("{base}/dir"), b"1").is_err());
    assert_eq!(list(&base).unwrap(), ["dir", "report.html"], "no temporary file is left");
}

#[test]
fn a_pipe_or_a_device_is_not_replaced_by_a_file() {
    let (_folder, base) = folder();
    let [pipe, device] = ["pipe", "device"].map(|name| format!("{base}/{name}"));
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, Mode::RWXU).unwrap();
    std::os::unix::fs::symlink("/dev/null", &device).unwrap();
    for path in [&pipe, &device] {
        let error = write_atomic(path, b"1").unwrap_err().to_string();
        assert_eq!(error, format!("{path}: it is not a regular file; nothing was written"));
        assert!(!is_file(path), "{path}");
    }
    assert_eq!(list(&base).unwrap(), ["device", "pipe"]);
}

#[test]
fn text_in_another_encoding_is_refused_with_its_place_and_the_conversion() {
    let utf16 = "line 1, byte offset 0: this is UTF-16 text, not UTF-8";
    check(b"\xff\xfe<\0d\0", utf16, "UTF-16");
    check(b"\xfe\xff\0<\0d", utf16, "UTF-16");
    check(b"<\0d\0o\0", utf16, "UTF-16LE");
    check(b"\0<\0d\0o", utf16, "UTF-16BE");
    check(b"a\nb \xe4 c", "line 2, byte offset 4: 0xe4 is not UTF-8", "ISO-8859-1");
    check(b"\xe2\x82", "line 1, byte offset 0: 0xe2 0x82 is not UTF-8", "ISO-8859-1");
    assert_eq!(text("a", b"\xef\xbb\xbf<a/>".to_vec()).unwrap(), "<a/>");
}

fn check(bytes: &[u8], why: &str, from: &str) {
    let error = text("a b.xml", bytes.to_vec()).unwrap_err();
    assert_eq!(error.to_string(), format!("a b.xml: {why}"));
    let hint = format!("convert it: `iconv -f {from} -t UTF-8 'a b.xml' > NEW`");
    assert_eq!(error.hint(), Some(hint));
}

#[test]
fn a_file_of_the_state_is_read_up_to_a_limit() {
    let (_folder, base) = folder();
    let state = StateDir::open(&format!("{base}/state")).unwrap();
    state.replace("a", b"1234").unwrap();
    assert_eq!(state.read_at_most("a", 4).unwrap(), b"1234");
    assert!(state.read_at_most("a", 3).is_err());
    // Without blocks on the disk, and refused before it is read.
    let file = std::fs::OpenOptions::new().write(true).open(state.path_of("a")).unwrap();
    file.set_len(1 << 40).unwrap();
    let error = state.read("a").unwrap_err().to_string();
    assert!(error.contains("/a") && error.contains("is larger than 256 MiB"), "{error}");
}

#[test]
fn directories_are_made_and_removed() {
    let (_folder, base) = folder();
    let path = format!("{base}/a/b//c/");
    make_dirs(&path).unwrap();
    make_dirs(&path).unwrap();
    assert!(is_dir(&path) && exists(&path));
    std::fs::write(format!("{base}/file"), "").unwrap();
    assert_eq!(make_dirs(&format!("{base}/file")).unwrap_err().errno(), Some(libc::ENOTDIR));
    assert_eq!(make_dirs(&format!("{base}/file/x")).unwrap_err().errno(), Some(libc::ENOTDIR));
    symlink("/", format!("{base}/a/out")).unwrap();
    remove_tree(&format!("{base}/a")).unwrap();
    remove(&format!("{base}/file")).unwrap();
    assert_eq!(list(&base).unwrap(), [""; 0]);
    assert!(exists("/") && !exists(&path));
}

#[test]
fn state_is_private_and_survives() {
    let (_folder, base) = folder();
    let path = format!("{base}/deep/state/");
    let state = StateDir::open(&path).unwrap();
    assert_eq!(state.path(), format!("{base}/deep/state"));
    assert_eq!(mode(&path), 0o700);
    state.create_new("journal", b"head\n").unwrap();
    state.append("journal", b"one\n").unwrap();
    state.append("journal", b"two\n").unwrap();
    assert_eq!(state.read("journal").unwrap(), b"head\none\ntwo\n");
    assert_eq!(mode(&state.path_of("journal")), 0o600);
    assert_eq!(state.create_new("journal", b"").unwrap_err().errno(), Some(libc::EEXIST));
    state.replace("journal", b"new").unwrap();
    assert_eq!(state.read("journal").unwrap(), b"new");
    assert!(state.contains("journal") && !state.contains("other"));
    assert_eq!(StateDir::open(&path).unwrap().list().unwrap(), ["journal"]);
    assert_eq!(state.append("other", b"x").unwrap_err().errno(), Some(libc::ENOENT));
    state.remove("journal").unwrap();
    assert_eq!(state.read("journal").unwrap_err().errno(), Some(libc::ENOENT));
    assert_eq!(state.list().unwrap(), [""; 0]);
    assert_eq!(state.list().unwrap(), [""; 0], "a second look starts at the beginning");
}

#[test]
fn a_path_with_a_control_character_is_refused() {
    let (_folder, root) = folder();
    let path = format!("{root}/a\nb");
    for error in [
        StateDir::open(&path).unwrap_err(),
        StateDir::open_visible(&path).unwrap_err(),
        StateDir::open_existing(&path).unwrap_err(),
    ] {
        let text = crate::with_causes(&error);
        assert!(text.contains("a\\u000ab: the path has a control character; choose"), "{text}");
    }
    assert!(!std::fs::exists(&path).unwrap(), "nothing is created");
}

#[test]
fn directories_that_others_could_have_filled_are_refused() {
    let (_folder, base) = folder();
    let own = format!("{base}/own");
    StateDir::open(&own).unwrap();
    symlink("own", format!("{base}/link")).unwrap();
    assert!(why(&StateDir::open(&format!("{base}/link")).unwrap_err()).contains("link"));
    for bits in [0o770, 0o702, 0o777] {
        std::fs::set_permissions(&own, std::fs::Permissions::from_mode(bits)).unwrap();
        let refused = StateDir::open(&own).unwrap_err();
        assert!(why(&refused).contains("written by others"), "{bits:o}: {refused}");
    }
    std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o755)).unwrap();
    StateDir::open(&own).unwrap();
    std::fs::write(format!("{base}/file"), "").unwrap();
    assert!(StateDir::open(&format!("{base}/file")).is_err());
    if crate::process::is_root() {
        std::os::unix::fs::chown(&own, Some(65_534), None).unwrap();
        let refused = StateDir::open(&own).unwrap_err();
        assert_eq!(why(&refused), "belongs to user 65534 instead of user 0");
    } else {
        eprintln!("skipped: only root can make a directory that belongs to another user");
    }
}

#[test]
fn files_that_others_could_have_put_there_are_refused() {
    let (_folder, base) = folder();
    let state = StateDir::open(&format!("{base}/s")).unwrap();
    std::fs::write(format!("{base}/target"), "x").unwrap();
    symlink("../target", state.path_of("link")).unwrap();
    assert_eq!(why(&state.read("link").unwrap_err()), "is a link");
    assert_eq!(why(&state.append("link", b"1").unwrap_err()), "is a link");
    assert_eq!(why(&state.lock("link").unwrap_err()), "is a link");
    state.create_new("open", b"x").unwrap();
    let open = std::fs::Permissions::from_mode(0o622);
    std::fs::set_permissions(state.path_of("open"), open).unwrap();
    assert!(why(&state.read("open").unwrap_err()).contains("mode 622"));
    std::fs::create_dir(state.path_of("dir")).unwrap();
    assert_eq!(why(&state.read("dir").unwrap_err()), "is not a regular file");
    for name in ["", ".", "..", "a/b", "../target", "a\0b"] {
        assert!(why(&state.read(name).unwrap_err()).contains("name"), "{name:?}");
        assert!(state.remove(name).is_err() && state.replace(name, b"").is_err());
    }
}

#[test]
fn a_lock_is_held_once() {
    let (_folder, base) = folder();
    let state = StateDir::open(&base).unwrap();
    let first = state.lock("lock").unwrap();
    assert!(first.is_some());
    assert!(StateDir::open(&base).unwrap().lock("lock").unwrap().is_none());
    assert!(state.lock("other").unwrap().is_some());
    // A child does not inherit it: the descriptor is closed at exec.
    let child = crate::process::Spawn::new("sleep").args(["600"]).start().unwrap();
    drop(first);
    // Another test may be between fork and exec, with a copy of the descriptor.
    let free = (0..200).any(|_| {
        crate::Clock::sleep_ns(&crate::SystemClock, 5_000_000);
        state.lock("lock").unwrap().is_some()
    });
    assert!(free);
    drop(child);
}

#[test]
fn directories_by_user_and_environment() {
    fn check(uid: u32, vars: &[(&str, &str)], expected: Option<&str>) {
        fn env(vars: &[(&str, &str)], key: &str) -> Option<String> {
            vars.iter().find(|(name, _)| *name == key).map(|(_, value)| (*value).to_owned())
        }

        let user = User { uid, env: &|key| env(vars, key) };
        let chosen = choose("/var/lib/pinfold", "XDG_STATE_HOME", ".local/state", &user).ok();
        assert_eq!(chosen.as_deref(), expected, "{uid} {vars:?}");
    }

    check(0, &[("XDG_STATE_HOME", "/x")], Some("/var/lib/pinfold"));
    check(1000, &[("XDG_STATE_HOME", "/x/"), ("HOME", "/h")], Some("/x/pinfold"));
    check(1000, &[("XDG_STATE_HOME", "x"), ("HOME", "/h")], Some("/h/.local/state/pinfold"));
    check(1000, &[("XDG_STATE_HOME", ""), ("HOME", "/h")], Some("/h/.local/state/pinfold"));
    check(1000, &[], None);
    assert_eq!(runtime(0, &|_| None), "/run/pinfold");
    assert_eq!(runtime(7, &|_| Some("/run/user/7".to_owned())), "/run/user/7/pinfold");
    assert_eq!(runtime(7, &|_| None), "/tmp/pinfold-7");
}

fn runtime(uid: u32, env: &dyn Fn(&str) -> Option<String>) -> String {
    runtime_path(&User { uid, env })
}

#[test]
fn a_lock_on_a_file_that_was_removed_is_not_the_names() {
    let (_folder, base) = folder();
    let state = StateDir::open(&base).unwrap();
    let held = state.lock("x.lock").unwrap().unwrap();
    assert!(state.lock("x.lock").unwrap().is_none());
    // As opened by a process that comes while the holder removes the file.
    let opened = std::fs::File::open(state.path_of("x.lock")).unwrap().into();
    assert!(state.is_the_file_of("x.lock", &opened).unwrap());
    state.remove("x.lock").unwrap();
    assert!(!state.is_the_file_of("x.lock", &opened).unwrap(), "it is gone");
    let _other = state.lock("x.lock").unwrap().unwrap();
    assert!(!state.is_the_file_of("x.lock", &opened).unwrap(), "it is another one");
    drop(held);
    assert!(state.lock("x.lock").unwrap().is_none(), "the new file's lock is held");
}

#[test]
fn the_examples_are_the_files_of_the_repository_and_named_like_them() {
    for (name, content) in examples::EXAMPLES {
        let folders = ["fixtures/hosts", "docs/examples"];
        let files = folders.iter().flat_map(|folder| {
            let folder = format!("{}/../../{folder}", env!("CARGO_MANIFEST_DIR"));
            let names = list(&folder).unwrap().into_iter();
            names.map(move |file| format!("{folder}/{file}")).collect::<Vec<_>>()
        });
        let same = files.filter(|file| read(file).is_ok_and(|bytes| bytes == content));
        assert_eq!(
            same.map(|file| {
                let file = file.rsplit('/').next().unwrap_or_default().to_owned();
                file.split('.').next().unwrap_or_default().to_owned()
            })
            .collect::<Vec<_>>(),
            [name]
        );
        assert_eq!(read(&format!("example:{name}")).unwrap(), content);
    }
    let error = read("example:ryzen").unwrap_err().to_string();
    assert!(error.contains("no such example; the examples are e5-2670-dual, "), "{error}");
}
