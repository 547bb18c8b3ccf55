//! Tests of the systemd client with a fake `systemctl` that records its arguments.

use std::os::unix::fs::PermissionsExt as _;

use super::*;

fn setting(unit: &str) -> Setting {
    Setting {
        keeper: SettingManager::Systemd,
        object: unit.to_owned(),
        key: "AllowedCPUs".to_owned(),
        lifetime: Lifetime::Running,
    }
}

/// A fake `systemctl` that records its arguments, one call per line, and runs `answer`.
fn recording(answer: &str) -> (tempfile::TempDir, Systemd) {
    let folder = tempfile::tempdir().unwrap();
    let script = format!("#!/bin/sh\necho \"$@\" >> {}\n{answer}\n", path_in("calls", &folder));
    files::write_atomic(&path_in("text", &folder), script.as_bytes()).unwrap();
    std::fs::set_permissions(path_in("text", &folder), std::fs::Permissions::from_mode(0o755))
        .unwrap();
    // Copied by another process: a file that this process has open for writing may at that moment
    // be inherited by a child of another test, and could not be executed then (ETXTBSY).
    let words = ["-p".to_owned(), path_in("text", &folder), path_in("systemctl", &folder)];
    assert!(crate::process::capture("cp", words, 60_000_000_000).unwrap().status.success());
    let keeper = Systemd::new(60_000_000_000).with_program(&path_in("systemctl", &folder));
    (folder, keeper)
}

fn path_in(name: &str, folder: &tempfile::TempDir) -> String {
    folder.path().join(name).to_str().unwrap().to_owned()
}

fn calls(folder: &tempfile::TempDir) -> String {
    files::read_text(folder.path().join("calls").to_str().unwrap()).unwrap()
}

#[test]
fn reads_a_units_list() {
    check("echo LoadState=loaded; echo 'AllowedCPUs=0-1 4'", Ok(Some("0-1,4")));
    check("echo LoadState=loaded; echo AllowedCPUs=", Ok(None));
    check("echo LoadState=loaded", Err("no such property"));
    check("echo LoadState=not-found", Err("knows no such unit"));
    check("echo LoadState=loaded; echo AllowedCPUs=x", Err("not a list of CPUs"));
    check("echo 'Failed to connect to bus' >&2; exit 1", Err("Failed to connect to bus"));
}

fn check(answer: &str, expected: Result<Option<&str>, &str>) {
    let (_folder, keeper) = recording(answer);
    match (keeper.get(&setting("system.slice")), expected) {
        (Ok(found), Ok(expected)) => assert_eq!(found.as_deref(), expected, "{answer}"),
        (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
        (found, expected) => panic!("{answer}: {found:?} instead of {expected:?}"),
    }
}

#[test]
fn a_unit_that_is_not_there_is_gone() {
    let (_folder, keeper) = recording("echo LoadState=not-found");
    assert!(keeper.get(&setting("a.slice")).unwrap_err().is_gone());
    let (_folder, keeper) = recording("exit 1");
    assert!(!keeper.get(&setting("a.slice")).unwrap_err().is_gone());
}

#[test]
fn sets_and_clears_a_property() {
    let (folder, keeper) = recording("");
    keeper.set(&setting("system.slice"), Some("0-1")).unwrap();
    keeper.set(&setting("system.slice"), None).unwrap();
    assert_eq!(
        calls(&folder),
        "set-property --runtime -- system.slice AllowedCPUs=0-1\n\
         set-property --runtime -- system.slice AllowedCPUs=\n"
    );
}

#[test]
fn no_hostile_name_is_passed_on() {
    let (folder, keeper) = recording("");
    for name in ["--force.slice", "../a.slice", "a b.slice", "a\n.slice", "$(x).slice", "a", ""] {
        keeper.set(&setting(name), Some("0")).unwrap_err();
    }
    assert!(!files::exists(folder.path().join("calls").to_str().unwrap()));
    assert!(Systemd::is_unit("machine-qemu\\x2d1\\x2dvm.scope"));
}

#[test]
fn files_of_a_unit_are_put_back_in_both_folders() {
    let (folder, keeper) = recording("");
    let root = folder.path().join("root").to_str().unwrap().to_owned();
    let keeper = keeper.with_root(&root);
    let slice = setting("a.slice");
    let paths = [
        "/run/systemd/system.control/a.slice.d/50-AllowedCPUs.conf",
        "/run/systemd/transient/a.slice.d/50-AllowedCPUs.conf",
    ]
    .map(|path| format!("{root}{path}"));
    put(&paths[0], "[Slice]\nAllowedCPUs=0-3\n");
    let before = keeper.files(&slice).unwrap();
    assert_eq!(before.iter().map(|file| file.path.clone()).collect::<Vec<_>>(), paths);
    assert_eq!(before[1].content, None);
    assert!(!keeper.put_files(&slice, &before).unwrap(), "nothing differs");
    put(&paths[0], "[Slice]\nAllowedCPUs=0\n");
    put(&paths[1], "[Slice]\nAllowedCPUs=\n");
    // Other files that a journal names are not changed.
    let other = SettingsFile { path: format!("{root}/etc/shadow"), content: Some(b"x".to_vec()) };
    let named: Vec<SettingsFile> = before.iter().cloned().chain([other.clone()]).collect();
    assert!(keeper.put_files(&slice, &named).unwrap());
    assert_eq!(keeper.files(&slice).unwrap(), before);
    assert!(!files::exists(&other.path));
    assert_eq!(calls(&folder), "daemon-reload\n");
    keeper.put_files(&setting("../a.slice"), &before).unwrap_err();
}

fn put(path: &str, text: &str) {
    files::make_dirs(path.rsplit_once('/').unwrap().0).unwrap();
    files::write_atomic(path, text.as_bytes()).unwrap();
}
