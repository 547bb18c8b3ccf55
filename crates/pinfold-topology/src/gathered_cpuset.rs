//! The cpuset of the process that ran `hwloc-gather-topology`: hwloc applies it when it reads the
//! tarball, so the machine has only these CPUs for it.
//!
//! The tarball has the name of its group, the mount table and the files of the cpuset hierarchy,
//! below the tarball's own folder.

use std::collections::BTreeMap;

use pinfold_host::paths;
use pinfold_model::CpuSet;

/// The CPUs of a group: of the old `cpuset` file system, of a v1 hierarchy, of v2.
const CPUSET: &str = "cpus";
const V1: &str = "cpuset.cpus";
const V2: &str = "cpuset.cpus.effective";

/// The files of an archive that describe cpusets, by path on the gathered machine.
#[derive(Debug, Default)]
pub(crate) struct GatheredCpuset {
    files: BTreeMap<String, String>,
}

impl GatheredCpuset {
    /// The path on the gathered machine of a file that describes a cpuset.
    pub(crate) fn path_of(entry: &str) -> Option<String> {
        let mut names = entry.split('/').filter(|name| !name.is_empty() && *name != ".");
        let _folder_of_the_archive = names.next()?;
        let names: Vec<&str> = names.collect();
        let file = *names.last()?;
        let path = format!("/{}", names.join("/"));
        let is_read = path == paths::own_cpuset()
            || path == paths::mounts()
            || [CPUSET, V1, V2].contains(&file);
        // A PMU of the devices has a file of this name too.
        let is_elsewhere = names.contains(&"..") || path.starts_with(&paths::devices());
        (is_read && !is_elsewhere).then_some(path)
    }

    /// Keeps a file.
    pub(crate) fn insert(&mut self, path: String, content: &[u8]) {
        self.files.insert(path, String::from_utf8_lossy(content).into_owned());
    }

    /// The CPUs of the cpuset; `None` if the archive does not have it.
    ///
    /// # Errors
    /// The file whose text is no list of CPUs.
    pub(crate) fn cpus(&self) -> Result<Option<CpuSet>, String> {
        let own =
            self.files.get(&paths::own_cpuset()).map(|text| text.trim().trim_end_matches('/'));
        let (Some(own), Some(mounts)) = (own, self.files.get(&paths::mounts())) else {
            return Ok(None);
        };
        for line in mounts.lines() {
            let fields: Vec<&str> = line.split(' ').collect();
            let [_, mount, kind, options, ..] = fields.as_slice() else { continue };
            let file = match *kind {
                "cpuset" => CPUSET,
                "cgroup" if options.split(',').any(|option| option == "cpuset") => V1,
                "cgroup2" => V2,
                _ => continue,
            };
            let path = format!("{}{own}/{file}", mount.trim_end_matches('/'));
            if let Some(text) = self.files.get(&path) {
                let cpus = CpuSet::parse_list(text).map_err(|error| format!("{path}: {error}"))?;
                return Ok(Some(cpus).filter(|cpus| !cpus.is_empty()));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_group_is_found_in_each_kind_of_hierarchy() {
        let here = Some("0-1,4");
        check("none /dev/cpuset cpuset rw 0 0\n", "m/dev/cpuset/jobs/7/cpus", here);
        let v1 = "cgroup /cg cgroup rw,memory 0 0\ncgroup /cg/set cgroup rw,cpuset 0 0\n";
        check(v1, "m/cg/set/jobs/7/cpuset.cpus", here);
        let v2 = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n";
        check(v2, "m/sys/fs/cgroup/jobs/7/cpuset.cpus.effective", here);
        check("none /proc proc rw 0 0\n", "m/dev/cpuset/jobs/7/cpus", None);
        assert_eq!(GatheredCpuset::path_of("m/../etc/cpus"), None);
        assert_eq!(GatheredCpuset::path_of("m/etc/shadow"), None);
        assert_eq!(GatheredCpuset::path_of("m/sys/devices/cpu_core/cpus"), None);
    }

    fn check(mount: &str, file: &str, expected: Option<&str>) {
        let mut gathered = GatheredCpuset::default();
        for (path, text) in [
            ("m/proc/self/cpuset", "/jobs/7\n"),
            ("m/proc/mounts", mount),
            ("./m/dev/cpuset/cpus", "0-7\n"),
            (file, "0-1,4\n"),
        ] {
            gathered.insert(GatheredCpuset::path_of(path).unwrap(), text.as_bytes());
        }
        let found = gathered.cpus().unwrap().map(|cpus| cpus.to_string());
        assert_eq!(found.as_deref(), expected, "{mount}");
    }

    #[test]
    fn a_damaged_list_is_an_error() {
        let mut gathered = GatheredCpuset::default();
        gathered.insert(paths::own_cpuset(), b"/\n");
        gathered.insert(paths::mounts(), b"none /dev/cpuset cpuset rw 0 0\n");
        gathered.insert("/dev/cpuset/cpus".to_owned(), b"many\n");
        assert!(gathered.cpus().unwrap_err().starts_with("/dev/cpuset/cpus: "));
    }
}
