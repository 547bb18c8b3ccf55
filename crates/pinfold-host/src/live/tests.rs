//! Reads the running host; writes only in folders of the test.

use std::os::unix::fs::symlink;

use super::*;
use crate::process::{Spawn, own_pid};
use crate::{ThreadSet, paths, proc_stat, proc_status};

fn assert_shared<T: Send + Sync>(_: &T) {}

#[test]
fn reads_kernel_files_whose_size_is_stated_to_be_nothing() {
    let host = LiveHost::new().unwrap();
    assert_shared(&host);
    assert!(host.is_live());
    let stat = proc_stat::parse(&host.read_text(&paths::process_stat(own_pid())).unwrap()).unwrap();
    assert_eq!(stat.tid, own_pid());
    let status = proc_status::parse(&host.read_text(&paths::own_status()).unwrap()).unwrap();
    assert_eq!(status.tgid, own_pid());
    assert!(
        !CpuSet::parse_list(&host.read_text(&paths::cpu_online()).unwrap()).unwrap().is_empty()
    );
    // Longer than one buffer: about twenty lines per mapping.
    assert!(host.read("/proc/self/smaps").unwrap().len() > 8192);
    assert!(host.list(&paths::proc_dir()).unwrap().contains(&own_pid().to_string()));
    assert_eq!(host.link("/proc/self").unwrap(), own_pid().to_string());
    assert_eq!(host.affinity(own_pid()).unwrap(), host.affinity(Tid(0)).unwrap());
}

#[test]
fn what_is_no_regular_file_is_refused_with_its_kind() {
    let folder = tempfile::tempdir().unwrap();
    let path = format!("{}/state", folder.path().display());
    assert!(Spawn::new("mkfifo").args([&path]).start().unwrap().wait().unwrap().success());
    let error = LiveHost::new().unwrap().read_at_most(&path, 10).unwrap_err();
    assert_eq!(error.to_string(), format!("{path}: is a pipe, not a regular file"));
}

#[test]
fn new_threads_show_in_the_link_count() {
    let host = LiveHost::new().unwrap();
    let threads = host.list(&paths::task_dir(own_pid())).unwrap().len();
    assert!(threads >= 1);
    // Threads of other tests start and exit meanwhile, so the two reads may need several attempts
    // to agree.
    let agrees = (0..100).any(|_| {
        let before = host.link_count(&paths::task_dir(own_pid())).unwrap();
        let listed = host.list(&paths::task_dir(own_pid())).unwrap().len();
        before == 2 + u64::try_from(listed).unwrap()
    });
    assert!(agrees);
}

#[test]
fn files_of_one_name_are_read_without_those_that_are_gone_and_over_no_link() {
    let host = LiveHost::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let base = folder.path().display().to_string();
    // The last file is longer than one buffer.
    let names = ["a", "b", "gone", "long"].map(str::to_owned);
    for (name, text) in [("a", "1"), ("b", "22"), ("long", &"x".repeat(10_000))] {
        std::fs::create_dir(format!("{base}/{name}")).unwrap();
        std::fs::write(format!("{base}/{name}/file"), text).unwrap();
    }
    let expected = [("a", 1), ("b", 2), ("long", 10_000)].map(|(name, n)| (name.to_owned(), n));
    assert_eq!(read(&host, &base, &names).unwrap(), expected);
    assert_eq!(read(&host, &format!("{base}/nowhere"), &names).unwrap(), []);
    symlink("a", format!("{base}/link")).unwrap();
    let refused = read(&host, &base, &["link".to_owned()]).unwrap_err();
    assert_eq!(refused.errno(), Some(libc::ELOOP));
    assert_eq!(refused.to_string(), format!("cannot read {base}/link/file"));
    let outside = read(&host, &format!("{base}/a"), &["../b".to_owned()]).unwrap_err();
    assert_eq!(outside.errno(), Some(libc::EXDEV));
}

fn read(
    host: &LiveHost,
    directory: &str,
    names: &[String],
) -> Result<Vec<(String, usize)>, HostError> {
    let mut lengths = Vec::new();
    let answer = host.read_each(directory, names, "file", &mut |name, bytes| {
        lengths.push((name.to_owned(), bytes.len()));
        Ok(())
    });
    answer.map(|()| lengths)
}

#[test]
fn errors_keep_path_value_and_number() {
    let host = LiveHost::new().unwrap();
    let missing = host.read("/proc/self/nothing").unwrap_err();
    assert_eq!((missing.errno(), missing.is_gone()), (Some(libc::ENOENT), true));
    assert_eq!(missing.to_string(), "cannot read /proc/self/nothing");
    let folder = tempfile::tempdir().unwrap();
    let path = format!("{}/new", folder.path().display());
    let uncreated = host.write(&path, b"0-3\n").unwrap_err();
    assert_eq!(uncreated.to_string(), format!("cannot write {path} (value \"0-3\")"));
    assert_eq!(uncreated.errno(), Some(libc::ENOENT));
    assert!(!host.exists(&path));
    assert_eq!(host.read("").unwrap_err().errno(), Some(libc::ENOENT));
    assert_eq!(host.remove_dir("/").unwrap_err().errno(), Some(libc::EINVAL));
    assert_eq!(host.make_dir(&format!("{path}/x")).unwrap_err().errno(), Some(libc::ENOENT));
}

#[test]
fn only_files_and_groups_of_the_kernel_are_changed() {
    let host = LiveHost::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let base = folder.path().display().to_string();
    std::fs::write(path_of(&base, "value"), "0123456789").unwrap();
    std::fs::create_dir(path_of(&base, "inner")).unwrap();
    symlink(path_of(&base, "value"), path_of(&base, "link")).unwrap();
    for path in [path_of(&base, "value"), path_of(&base, "link")] {
        let refused = host.write(&path, b"ab").unwrap_err();
        assert!(refused.to_string().contains("not a file of the kernel"), "{refused}");
    }
    // A path below /proc that leads to the same file.
    host.write(&format!("/proc/self/root{base}/value"), b"ab").unwrap_err();
    assert_eq!(host.read_text(&path_of(&base, "value")).unwrap(), "0123456789");
    for refused in
        [host.remove_dir(&path_of(&base, "inner")), host.make_dir(&path_of(&base, "new"))]
    {
        let refused = refused.unwrap_err();
        assert!(refused.to_string().contains("neither in a cgroup"), "{refused}");
    }
    assert!(host.exists(&path_of(&base, "inner")) && !host.exists(&path_of(&base, "new")));
    // The value is the one that it has.
    let score = "/proc/self/oom_score_adj";
    let value = host.read(score).unwrap();
    host.write(score, &value).unwrap();
}

fn path_of(base: &str, name: &str) -> String {
    format!("{base}/{name}")
}

#[test]
fn links_are_read_and_followed() {
    let host = LiveHost::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let base = folder.path().display().to_string();
    let inner = format!("{base}/inner");
    std::fs::create_dir(&inner).unwrap();
    assert_eq!(host.list(&base).unwrap(), ["inner"]);
    symlink("../inner", format!("{inner}/round")).unwrap();
    assert_eq!(host.link(&format!("{inner}/round")).unwrap(), "../inner");
    assert!(host.exists(&format!("{inner}/round/round/")));
}

#[test]
fn affinity_and_policy_of_an_own_thread() {
    std::thread::spawn(|| {
        let host = LiveHost::new().unwrap();
        let tid = crate::process::own_tid();
        let all = host.affinity(tid).unwrap();
        let one = CpuSet::single(all.first().unwrap());
        host.set_affinity(tid, &one).unwrap();
        assert_eq!(host.affinity(tid).unwrap(), one);
        host.set_policy(tid, Policy::Batch { nice: 2 }).unwrap();
        assert_eq!(host.policy(tid).unwrap(), Policy::Batch { nice: 2 });
        let refused = host.set_policy(tid, Policy::Fifo { priority: 0 }).unwrap_err();
        assert_eq!(refused.to_string(), format!("sched_setattr failed for thread {tid}"));
    })
    .join()
    .unwrap();
}

#[test]
fn a_thread_set_reports_new_and_ended_threads() {
    let host = LiveHost::new().unwrap();
    // A separate process, so that only the newest TID depends on other processes.
    let mut child = Spawn::new("sleep").args(["60"]).die_with_parent(true).start().unwrap();
    let pid = child.pid();
    // Other processes create tasks at any time, so two snapshots may need several attempts to
    // agree.
    let agrees = (0..1000).any(|_| {
        let first = ThreadSet::read(&host, pid);
        first.is_some() && first == ThreadSet::read(&host, pid)
    });
    assert!(agrees);
    let before = ThreadSet::read(&host, pid);
    std::thread::spawn(|| {}).join().unwrap();
    assert_ne!(before, ThreadSet::read(&host, pid), "a birth anywhere");
    child.kill().unwrap();
    assert_eq!(ThreadSet::read(&host, pid), None);
}
