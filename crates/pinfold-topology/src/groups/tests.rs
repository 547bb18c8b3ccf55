//! Table tests of `groups`.

use pinfold_host::SnapshotHost;

use super::{Cpuset, Groups, effective_cpus};

/// The CPUs of this process's cpuset for these files: a list, `-` for none, `?` if hidden, or the
/// error.
fn own_cpuset(mounts: &str, own: &str, files: &[(&str, &str)]) -> String {
    let mut host = SnapshotHost::from_files(files.iter().copied());
    host.insert_file("/proc/self/mountinfo", mounts);
    host.insert_file("/proc/self/cgroup", own);
    match Groups::read(&host).and_then(|groups| effective_cpus(&host, &groups)) {
        Ok(Cpuset::Of(set)) => set.to_string(),
        Ok(Cpuset::None) => "-".to_owned(),
        Ok(Cpuset::Hidden) => "?".to_owned(),
        Err(error) => error.to_string(),
    }
}

const V1: &str = "34 31 0:31 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n\
                  41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
const V2: &str = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";
const CONTAINER: &str =
    "34 31 0:31 /docker/ab /sys/fs/cgroup/cpuset ro - cgroup cgroup rw,cpuset\n";

#[test]
fn version_1_next_to_an_empty_version_2() {
    let own = "3:cpuset:/vm\n0::/\n";
    let none = ("/sys/fs/cgroup/unified/cgroup.controllers", "\n");
    let effective = ("/sys/fs/cgroup/cpuset/vm/cpuset.effective_cpus", "0-1\n");
    let asked = ("/sys/fs/cgroup/cpuset/vm/cpuset.cpus", "0-3\n");
    assert_eq!(own_cpuset(V1, own, &[none, effective, asked]), "0-1");
    assert_eq!(own_cpuset(V1, own, &[none, asked]), "0-3");
    assert_eq!(own_cpuset(V1, own, &[none]), "?");
}

#[test]
fn version_2_asks_the_nearest_group_with_the_files() {
    let own = "0::/user.slice/session-1.scope\n";
    let has = ("/sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory\n");
    let slice = ("/sys/fs/cgroup/user.slice/cpuset.cpus.effective", "2-3\n");
    let root = ("/sys/fs/cgroup/cpuset.cpus.effective", "0-7\n");
    assert_eq!(own_cpuset(V2, own, &[has, slice, root]), "2-3");
    assert_eq!(own_cpuset(V2, own, &[has, root]), "0-7");
    assert_eq!(own_cpuset(V2, own, &[has]), "?");
    let lacks = ("/sys/fs/cgroup/cgroup.controllers", "cpu io memory\n");
    assert_eq!(own_cpuset(V2, own, &[lacks, root]), "-");
}

#[test]
fn containers_show_a_part() {
    let effective = ("/sys/fs/cgroup/cpuset/cpuset.effective_cpus", "4-5\n");
    let deeper = ("/sys/fs/cgroup/cpuset/in/cpuset.effective_cpus", "4\n");
    assert_eq!(own_cpuset(CONTAINER, "3:cpuset:/docker/ab\n", &[effective, deeper]), "4-5");
    assert_eq!(own_cpuset(CONTAINER, "3:cpuset:/docker/ab/in\n", &[effective, deeper]), "4");
    assert_eq!(own_cpuset(CONTAINER, "3:cpuset:/docker/abc\n", &[effective]), "?");
    assert_eq!(own_cpuset(CONTAINER, "3:cpuset:/../x\n", &[effective]), "?");
}

#[test]
fn no_cpuset_at_all_and_nonsense() {
    assert_eq!(own_cpuset("", "0::/\n", &[]), "-");
    let text = own_cpuset("broken", "0::/\n", &[]);
    assert!(text.contains("/proc/self/mountinfo"), "{text}");
    let bad = ("/sys/fs/cgroup/cpuset/cpuset.effective_cpus", "5-1\n");
    let text = own_cpuset(CONTAINER, "3:cpuset:/docker/ab\n", &[bad]);
    assert!(text.contains("backwards"), "{text}");
}
