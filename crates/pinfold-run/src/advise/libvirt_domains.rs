//! The page sizes of the machine for which libvirt asks. It passes only vCPUs and memory to numad;
//! the definitions of its domains have the rest.
//!
//! ```text
//! /etc/libvirt/qemu/web.xml    numad -w 4:8192
//!   <memory unit='GiB'>8</memory>
//!   <memoryBacking><hugepages><page size='2' unit='MiB'/></hugepages></memoryBacking>
//!   <vcpu placement='auto'>4</vcpu>
//! ```
//! A transient domain (`virsh create`) has no definition.

use std::collections::BTreeMap;

use pinfold_claims::owners::libvirt::LARGEST_FILE;
use pinfold_host::{Host, paths};
use pinfold_plan::domain_file::Domain;
use pinfold_plan::node_advice::NodeDemand;

/// Definitions of the system's libvirt, and of a user's below the folder of settings.
const OF_SYSTEM: &str = "/etc/libvirt/qemu";
const OF_USER: &str = "libvirt/qemu";
const MIB: u64 = 1 << 20;
const KIB: u64 = 1 << 10;

/// The folder with the definitions of the libvirt that runs as this user.
pub(super) fn definitions(uid: u32, env: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    if uid == 0 {
        return Some(OF_SYSTEM.to_owned());
    }
    let settings = env("XDG_CONFIG_HOME").filter(|path| path.starts_with('/'));
    let settings = settings.or_else(|| env("HOME").map(|home| format!("{home}/.config")));
    settings.map(|settings| format!("{settings}/{OF_USER}"))
}

/// The domains for which libvirt can ask.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct AskingDomains {
    /// Their names by the size of their pages (`None` for ordinary memory).
    pub by_page_size: BTreeMap<Option<u64>, Vec<String>>,
    /// A sentence for each definition that was not read.
    pub unread: Vec<String>,
}

/// The domains for which libvirt can ask with this demand. A definition that is no regular file, or
/// is larger than any of libvirt's, is not read: libvirt waits for the answer.
pub(super) fn asking(host: &dyn Host, folder: &str, demand: NodeDemand) -> AskingDomains {
    let mut found = AskingDomains::default();
    for name in host.list(folder).unwrap_or_default() {
        if !name.ends_with(".xml") {
            continue;
        }
        let path = format!("{folder}/{name}");
        let bytes = match host.read_at_most(&path, LARGEST_FILE) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => {
                let limit = LARGEST_FILE >> 20;
                found.unread.push(format!("{path} is larger than {limit} MiB"));
                continue;
            }
            Err(error) => {
                found.unread.push(error.to_string());
                continue;
            }
        };
        let Ok(text) = String::from_utf8(bytes) else { continue };
        // Most hosts have none of these, and parsing takes most of the time.
        if !text.contains("placement='auto'") && !text.contains("placement=\"auto\"") {
            continue;
        }
        let Ok(domain) = Domain::read(&text) else { continue };
        if can_ask(&domain, demand) {
            let size = page_size(host, &domain);
            found.by_page_size.entry(size).or_default().push(domain.name);
        }
    }
    found
}

fn can_ask(domain: &Domain, demand: NodeDemand) -> bool {
    let asks = domain.is_placed_by_numad
        || domain.memory.as_ref().is_some_and(|memory| memory.value.nodes.is_none());
    let mib = domain.memory_bytes.map(|bytes| bytes.div_ceil(MIB));
    asks && domain.enabled_vcpus.len() == demand.vcpus as usize
        && (demand.memory_bytes == 0 || mib == Some(demand.memory_bytes / MIB))
}

fn page_size(host: &dyn Host, domain: &Domain) -> Option<u64> {
    if !domain.is_in_huge_pages {
        return None;
    }
    domain.page_bytes.or_else(|| default_size(host))
}

/// `Hugepagesize:       2048 kB` of `/proc/meminfo`.
fn default_size(host: &dyn Host) -> Option<u64> {
    let text = host.read_text(&paths::meminfo()).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix("Hugepagesize:"))?;
    let kib: u64 = value.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(KIB)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinfold_host::process::Spawn;
    use pinfold_host::{LiveHost, SnapshotHost, files};

    const FOLDER: &str = "/etc/libvirt/qemu";

    fn xml(name: &str, vcpu: &str, pages: &str) -> String {
        format!(
            "<domain type='kvm'><name>{name}</name><memory unit='KiB'>2097000</memory>{vcpu}
             <memoryBacking>{pages}</memoryBacking><os><type>hvm</type></os></domain>"
        )
    }

    fn demand(vcpus: u32, mib: u64) -> NodeDemand {
        NodeDemand { vcpus, memory_bytes: mib * MIB, page_bytes: None }
    }

    fn host() -> SnapshotHost {
        let auto = "<vcpu placement='auto' current='4'>8</vcpu>";
        let large = "<hugepages><page size='1' unit='GiB'/></hugepages>";
        let tuned = "<vcpu>2</vcpu><numatune><memory mode='strict' placement='auto'/></numatune>";
        SnapshotHost::from_files([
            ("/proc/meminfo", "MemTotal: 9 kB\nHugepagesize:       2048 kB\n".to_owned()),
            ("/etc/libvirt/qemu/plain.xml", xml("plain", auto, "")),
            ("/etc/libvirt/qemu/usual.xml", xml("usual", tuned, "<hugepages/>")),
            ("/etc/libvirt/qemu/large.xml", xml("large", auto, large)),
            ("/etc/libvirt/qemu/pinned.xml", xml("pinned", "<vcpu>4</vcpu>", large)),
            ("/etc/libvirt/qemu/broken.xml", "<domain placement='auto'>".to_owned()),
            ("/etc/libvirt/qemu/notes.txt", xml("notes", auto, "<hugepages/>")),
        ])
    }

    fn check(demand: NodeDemand, expected: &[(Option<u64>, &[&str])]) {
        let found = asking(&host(), FOLDER, demand).by_page_size;
        let expected = expected.iter().map(|(size, names)| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            (*size, names)
        });
        assert_eq!(found, expected.collect());
    }

    #[test]
    fn domains_are_found_by_their_vcpus_and_memory() {
        check(demand(4, 2048), &[(None, &["plain"]), (Some(1 << 30), &["large"])]);
        check(demand(4, 0), &[(None, &["plain"]), (Some(1 << 30), &["large"])]);
        check(demand(2, 2048), &[(Some(2 << 20), &["usual"])]);
        check(demand(2, 2047), &[]);
        check(demand(8, 2048), &[]);
        assert_eq!(asking(&host(), "/nowhere", demand(4, 2048)), AskingDomains::default());
    }

    /// libvirt waits for the answer, so neither a pipe nor a file of any size may delay it.
    #[test]
    fn definitions_that_are_no_files_or_too_large_are_named_and_the_others_are_read() {
        let temporary = tempfile::tempdir().unwrap();
        let folder = temporary.path().display().to_string();
        let text = xml("web", "<vcpu placement='auto'>4</vcpu>", "");
        files::write_atomic(&format!("{folder}/web.xml"), text.as_bytes()).unwrap();
        let others = "mkfifo \"$0/pipe.xml\" && truncate -s 31M \"$0/large.xml\"";
        assert!(
            Spawn::new("sh")
                .args(["-c", others, &folder])
                .start()
                .unwrap()
                .wait()
                .unwrap()
                .success()
        );
        let found = asking(&LiveHost::new().unwrap(), &folder, demand(4, 2048));
        assert_eq!(found.by_page_size, BTreeMap::from([(None, vec!["web".to_owned()])]));
        let [large, pipe] = found.unread.as_slice() else { panic!("{found:?}") };
        assert!(large.ends_with("/large.xml is larger than 4 MiB"), "{large}");
        assert!(pipe.ends_with("/pipe.xml: is a pipe, not a regular file"), "{pipe}");
    }

    #[test]
    fn users_have_their_own_definitions() {
        assert_eq!(definitions(0, &home_a).unwrap(), FOLDER);
        assert_eq!(definitions(7, &home_a).unwrap(), "/home/a/.config/libvirt/qemu");
        assert_eq!(
            definitions(7, &|key: &str| Some(format!("/{key}"))).unwrap(),
            "/XDG_CONFIG_HOME/libvirt/qemu"
        );
        assert_eq!(definitions(7, &|_| None), None);
    }

    fn home_a(key: &str) -> Option<String> {
        (key == "HOME").then(|| "/home/a".to_owned())
    }
}
