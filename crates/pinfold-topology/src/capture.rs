//! A machine as a text that may be published.
//!
//! A capture contains exactly what [`crate::discover`] reads: the kernel's files, through a
//! recording host, and hwloc's XML as an additional entry. It is scrubbed: no serial numbers,
//! UUIDs, addresses, host or group names, and only the boot parameters that affect CPUs and memory.
//! The CPUs of this process's cpuset are stored in a special file and its mask as one line of
//! `/proc/self/status`, so that the capture has the same allowed CPUs without the names of the
//! groups.

use pinfold_host::mountinfo::{self, Mount};
use pinfold_host::{Host, RecordingHost, SnapshotHost, paths};
use pinfold_model::filter_boot_parameters;

use crate::capabilities::ask_for_capture;
use crate::error::TopologyError;
use crate::facts::Facts;
use crate::input::live_error;
use crate::reader::cpuinfo_field;
use crate::{hwloc, hypervisor, xml};

/// Lines of `/proc/cpuinfo` that a capture keeps, of the first processor. On some boards other
/// lines contain the serial number.
const KEPT_CPUINFO: [&str; 12] = [
    "processor",
    "vendor_id",
    "cpu family",
    "model",
    "model name",
    "stepping",
    "flags",
    "cpu",
    "CPU implementer",
    "CPU architecture",
    "CPU variant",
    "CPU part",
];

/// Captures a machine: a text archive (first line `pinfold-capture 1`) for which
/// [`crate::read_input`] returns the same topology.
///
/// ```
/// use pinfold_host::LiveHost;
///
/// let text = pinfold_topology::capture(&LiveHost::new()?)?;
/// assert!(text.starts_with("pinfold-capture 1\n"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`TopologyError`] if hwloc fails on the running host, or if `host` is a capture without hwloc's
/// tree.
pub fn capture(host: &dyn Host) -> Result<String, TopologyError> {
    let xml = hwloc_xml(host)?;
    let recording = RecordingHost::new(host);
    let facts = Facts::read(&recording);
    let answers: String =
        ask_for_capture(&recording).into_iter().map(|name| format!("{name}\n")).collect();
    let parameters = host.read_text(&paths::kernel_cmdline());
    let mut tree = recording.into_tree();
    remove_groups(&mut tree);
    if let Some(mask) = &facts.mask {
        tree.insert_file(&paths::own_status(), format!("Cpus_allowed_list:\t{mask}\n"));
    }
    if let Some(cpuset) = &facts.cpuset {
        tree.insert_file(&paths::captured_cpuset(), format!("{cpuset}\n"));
    }
    reduce(&mut tree, &paths::cpuinfo(), reduced_cpuinfo);
    reduce(&mut tree, &paths::dmi_file("sys_vendor"), |vendor| {
        // Only the name of a hypervisor is used, and it identifies no machine.
        hypervisor::of_vendor(vendor.trim()).map(|_| vendor.to_owned())
    });
    if let Ok(parameters) = parameters {
        tree.insert_file(&paths::kernel_cmdline(), reduced_parameters(&parameters));
    }
    for node in facts.free_bytes.keys() {
        reduce(&mut tree, &paths::node_file(*node, "meminfo"), |text| Some(reduced_meminfo(text)));
    }
    reduce(&mut tree, &paths::swaps(), |text| Some(reduced_swaps(text)));
    // Read during the capture, but not needed.
    tree.remove(&paths::filesystems());
    tree.insert_file(&paths::captured_answers(), answers);
    tree.insert_file(&paths::captured_hwloc_xml(), xml);
    Ok(tree.to_text())
}

fn hwloc_xml(host: &dyn Host) -> Result<String, TopologyError> {
    let path = paths::captured_hwloc_xml();
    let text = if host.is_live() {
        hwloc::live_xml().map_err(live_error)?
    } else {
        host.read_text(&path).map_err(|_| TopologyError::NoTree {
            name: "the captured machine".to_owned(),
            path: path.clone(),
        })?
    };
    xml::scrub(&text).map_err(|why| TopologyError::Xml { name: path, why })
}

/// Removes this process's groups and everything below a cgroup mount. `/proc/self` is a link to its
/// PID; files that were read through the link are below its target.
fn remove_groups(tree: &mut SnapshotHost) {
    let mounts = tree
        .read_text(&paths::own_mountinfo())
        .ok()
        .and_then(|text| mountinfo::parse(&text).ok())
        .unwrap_or_default();
    for mount in mounts.iter().filter(is_cgroup) {
        let mut path = mount.path.as_str();
        tree.remove(path);
        // Remove parent directories that become empty.
        while let Some((above, _)) = path.rsplit_once('/').filter(|(above, _)| !above.is_empty()) {
            if tree.list(above).is_ok_and(|names| names.is_empty()) {
                tree.remove(above);
            }
            path = above;
        }
    }
    let own = paths::own_dir();
    if let Ok(number) = tree.link(&own) {
        tree.remove(&format!("{}/{number}", paths::proc_dir()));
    }
    tree.remove(&own);
}

fn is_cgroup(mount: &&Mount) -> bool {
    mount.kind == "cgroup" || mount.kind == "cgroup2"
}

/// Replaces a file by what `keep` returns; removes it if that is nothing.
fn reduce(tree: &mut SnapshotHost, path: &str, keep: impl Fn(&str) -> Option<String>) {
    let Ok(text) = tree.read_text(path) else { return };
    match keep(&text) {
        Some(text) => tree.insert_file(path, text),
        None => {
            tree.remove(path);
        }
    }
}

fn reduced_cpuinfo(text: &str) -> Option<String> {
    let lines: String = KEPT_CPUINFO
        .iter()
        .filter_map(|key| Some(format!("{key}\t: {}\n", cpuinfo_field(text, key)?)))
        .collect();
    Some(lines).filter(|lines| !lines.is_empty())
}

/// The lines of a node's `meminfo` that a topology contains.
fn reduced_meminfo(text: &str) -> String {
    const KEPT: [&str; 4] = ["MemTotal:", "MemFree:", "Active(file):", "Inactive(file):"];
    text.lines()
        .filter(|line: &&str| KEPT.iter().any(|key| line.contains(&format!(" {key}"))))
        .map(|line| format!("{line}\n"))
        .collect()
}

/// Swap areas without their names, which may contain a UUID.
fn reduced_swaps(text: &str) -> String {
    let mut lines = text.lines();
    let head = lines.next().into_iter().map(str::to_owned);
    let areas = lines.map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().skip(1).collect();
        format!("swap {}", fields.join(" "))
    });
    head.chain(areas).map(|line| line + "\n").collect()
}

/// Content of `/proc/cmdline` in a capture.
fn reduced_parameters(text: &str) -> String {
    filter_boot_parameters(text) + "\n"
}

#[cfg(test)]
mod tests;
