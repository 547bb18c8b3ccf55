//! Cgroups by their path or by their unit of systemd, and what is in them. Only files are read.

use pinfold_host::mountinfo::{self, Mount};
use pinfold_host::{Host, HostError, cpu_hierarchy, paths};
use pinfold_model::{Tid, escape};

use crate::{Exit, Failure};

/// Most cgroups that are searched.
pub(crate) const MOST_GROUPS: usize = 100_000;

/// The version 2 hierarchy.
pub(crate) fn unified_mount(host: &dyn Host) -> Result<Option<Mount>, HostError> {
    Ok(mountinfo::v2_mount(&mounts(host)?).map(|found| found.mount))
}

/// The groups below a group, one level deep; it may end meanwhile.
fn groups_below(host: &dyn Host, directory: &str) -> Vec<String> {
    let names = host.list(directory).unwrap_or_default().into_iter();
    let below = names.map(|name| paths::cgroup_file(directory, &name));
    below.filter(|path| host.exists(&paths::cgroup_procs(path))).collect()
}

/// The numbers in a list of processes or threads.
fn numbers(text: &str) -> Vec<Tid> {
    text.lines().filter_map(|line| line.parse().ok().map(Tid)).collect()
}

/// The processes in a group and below it; a group may end meanwhile.
pub(crate) fn pids(host: &dyn Host, directory: &str) -> Vec<Tid> {
    let text = host.read_text(&paths::cgroup_procs(directory)).unwrap_or_default();
    let below = groups_below(host, directory);
    numbers(&text).into_iter().chain(below.iter().flat_map(|path| pids(host, path))).collect()
}

/// The directory with this name in a cgroup tree.
pub(crate) fn directory(host: &dyn Host, at: &str, name: &str, left: &mut usize) -> Option<String> {
    let below = groups_below(host, at);
    *left = left.checked_sub(below.len())?;
    let found = below.iter().find(|path| path.rsplit('/').next() == Some(name));
    found.cloned().or_else(|| below.iter().find_map(|path| directory(host, path, name, left)))
}

/// All mounts of this process.
pub(crate) fn mounts(host: &dyn Host) -> Result<Vec<Mount>, HostError> {
    let path = paths::own_mountinfo();
    mountinfo::parse(&host.read_text(&path)?).map_err(|error| error.at(&path))
}

/// Name of a unit: that of a service may be without its suffix.
pub(crate) fn unit_name(name: &str) -> String {
    if name.contains('.') { name.to_owned() } else { format!("{name}.service") }
}

/// The directory of the group with this path, in the file system or in a hierarchy, or of the unit
/// with this name.
pub(crate) fn find(host: &dyn Host, name: &str) -> Result<String, Failure> {
    let mut trees: Vec<String> =
        cpu_hierarchy(host)?.map(|found| found.mount.path).into_iter().collect();
    let all = mounts(host)?.into_iter().filter(|mount| mount.kind.starts_with("cgroup"));
    trees.extend(all.map(|mount| mount.path));
    let trees = trees.iter().map(|path| path.trim_end_matches('/'));
    let found = if name.starts_with('/') {
        let whole = name.trim_end_matches('/');
        let inside = trees.map(|tree| format!("{tree}{whole}"));
        std::iter::once(whole.to_owned())
            .chain(inside)
            .find(|directory| host.exists(&paths::cgroup_procs(directory)))
    } else {
        let (name, mut left) = (unit_name(name), MOST_GROUPS);
        trees.into_iter().find_map(|tree| directory(host, tree, &name, &mut left))
    };
    found.ok_or_else(|| {
        let text = format!("--group {}: there is no such cgroup or unit", escape::name(name));
        Failure::new(Exit::Input, text).with_hint(
            "give the path of a cgroup, such as /sys/fs/cgroup/system.slice/nginx.service, or the \
             name of a running unit; `systemd-cgls` lists both",
        )
    })
}

/// The threads in a group and below it; a group may end meanwhile.
pub(crate) fn tids(host: &dyn Host, directory: &str) -> Vec<Tid> {
    // Version 1 has no other list of threads; in version 2 it has another name.
    let lists = [paths::cgroup_threads(directory), paths::cgroup_tasks(directory)];
    let text = lists.iter().find_map(|path| host.read_text(path).ok()).unwrap_or_default();
    let below = groups_below(host, directory);
    numbers(&text).into_iter().chain(below.iter().flat_map(|path| tids(host, path))).collect()
}

#[cfg(test)]
mod tests {
    use pinfold_host::SnapshotHost;

    use super::*;

    fn host() -> SnapshotHost {
        let mut host = SnapshotHost::new();
        let mount = "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        host.insert_file("/proc/self/mountinfo", mount);
        host.insert_file("/sys/fs/cgroup/cgroup.controllers", "cpu\n");
        for (group, threads) in
            [("", "1\n"), ("/system.slice", ""), ("/system.slice/nginx.service", "7\n8\n9\n")]
        {
            host.insert_file(&format!("/sys/fs/cgroup{group}/cgroup.procs"), "");
            host.insert_file(&format!("/sys/fs/cgroup{group}/cgroup.threads"), threads);
        }
        host
    }

    #[test]
    fn groups_are_found_by_path_and_by_unit() {
        let host = host();
        let nginx = "/sys/fs/cgroup/system.slice/nginx.service";
        for name in [nginx, "/system.slice/nginx.service/", "nginx", "nginx.service"] {
            assert_eq!(find(&host, name).expect(name), nginx);
        }
        assert_eq!(tids(&host, "/sys/fs/cgroup/system.slice"), [7, 8, 9].map(Tid));
        let refused = find(&host, "/none").expect_err("there is none");
        assert!(refused.message.contains("--group /none"), "{}", refused.message);
        assert!(find(&host, "apache").is_err());
    }
}
