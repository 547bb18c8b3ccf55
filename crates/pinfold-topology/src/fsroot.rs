//! `/sys` and `/proc` of another machine as input: a folder, or a tarball of
//! `hwloc-gather-topology`.
//!
//! Only the files that Pinfold reads are loaded into memory, up to a limit. Nothing of the archive
//! is written to disk, and links are only resolved inside the tree, whatever they point to.

use std::io::Read;

use pinfold_host::{Host, HostError, SnapshotHost, files, paths};

use crate::gathered_cpuset::GatheredCpuset;

/// Maximum size of a file; larger than any of these files on any machine.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// Maximum unpacked size of an archive.
const MAX_ARCHIVE_BYTES: u64 = 1 << 30;

/// Maximum number of files and links; 8192 CPUs have fewer.
const MAX_ENTRIES: usize = 1 << 20;

/// Compression of an archive, detected by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ArchiveCompression {
    Bzip2,
    Gzip,
    Plain,
}

/// The compression of an archive; `None` if the bytes are not an archive.
pub(crate) fn packing(bytes: &[u8]) -> Option<ArchiveCompression> {
    match bytes {
        [b'B', b'Z', b'h', ..] => Some(ArchiveCompression::Bzip2),
        [0x1f, 0x8b, ..] => Some(ArchiveCompression::Gzip),
        _ if bytes.get(257..262) == Some(b"ustar") => Some(ArchiveCompression::Plain),
        _ => None,
    }
}

/// Loads the tree of an archive; the error describes what is wrong with it.
pub(crate) fn read_archive(
    bytes: &[u8],
    packing: ArchiveCompression,
) -> Result<SnapshotHost, String> {
    let unpacked: Box<dyn Read + '_> = match packing {
        ArchiveCompression::Bzip2 => Box::new(bzip2::read::MultiBzDecoder::new(bytes)),
        ArchiveCompression::Gzip => Box::new(flate2::read::MultiGzDecoder::new(bytes)),
        ArchiveCompression::Plain => Box::new(bytes),
    };
    let mut archive = tar::Archive::new(unpacked.take(MAX_ARCHIVE_BYTES));
    let mut tree = SnapshotHost::new();
    let mut gathered = GatheredCpuset::default();
    for (count, entry) in archive.entries().map_err(fail)?.enumerate() {
        let mut entry = entry.map_err(fail)?;
        let path = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        if let Some(path) = GatheredCpuset::path_of(&path)
            && entry.header().entry_type().is_file()
        {
            let mut content = Vec::new();
            entry.by_ref().take(MAX_FILE_BYTES).read_to_end(&mut content).map_err(fail)?;
            gathered.insert(path, &content);
            continue;
        }
        let Some(path) = strip_root(&path) else { continue };
        if !SnapshotHost::holds(&path) {
            return Err("it contains a path longer than any kernel path".to_owned());
        }
        if count > MAX_ENTRIES {
            return Err("it contains more files than any machine has".to_owned());
        }
        let kind = entry.header().entry_type();
        if kind.is_file() {
            let mut content = Vec::new();
            entry.by_ref().take(MAX_FILE_BYTES).read_to_end(&mut content).map_err(fail)?;
            tree.insert_file(&path, content);
        } else if kind.is_symlink() {
            let target = entry.link_name_bytes().unwrap_or_default();
            tree.insert_link(&path, &String::from_utf8_lossy(&target));
        } else if kind.is_dir() {
            tree.insert_dir(&path);
        }
    }
    if let Some(cpus) = gathered.cpus()? {
        tree.insert_file(&paths::captured_cpuset(), format!("{cpus}\n"));
    }
    Ok(tree)
}

fn fail(error: std::io::Error) -> String {
    format!("cannot read the archive: {error}")
}

/// The path from `sys` or `proc` on, if Pinfold reads it. The archive's top-level folder comes
/// before it.
fn strip_root(path: &str) -> Option<String> {
    let names: Vec<&str> =
        path.split('/').filter(|name| !name.is_empty() && *name != ".").collect();
    let from = names.iter().position(|name| *name == "sys" || *name == "proc")?;
    let path = format!("/{}", names[from..].join("/"));
    let is_read = !names.contains(&"..")
        && (paths::is_numa_node_of_pci(&path)
            || paths::captured_paths().iter().any(|place| {
                path.strip_prefix(*place)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            }));
    is_read.then_some(path)
}

/// Loads the tree of a folder that contains `sys` and `proc`.
///
/// # Errors
/// If the folder cannot be listed. Files that cannot be read are left out.
pub(crate) fn read_folder(live: &dyn Host, root: &str) -> Result<SnapshotHost, HostError> {
    files::list(root)?;
    let root = root.trim_end_matches('/');
    let mut tree = SnapshotHost::new();
    let mut todo: Vec<String> =
        paths::captured_paths().iter().map(|place| (*place).to_owned()).collect();
    let mut count = 0;
    while let Some(path) = todo.pop() {
        let real = format!("{root}{path}");
        if !SnapshotHost::holds(&path) {
            continue;
        }
        count += 1;
        if count > MAX_ENTRIES {
            break;
        }
        if let Ok(target) = live.link(&real) {
            // The NUMA node of a device is in the directory to which the link of its bus points.
            if let Some(device) =
                target.strip_prefix("../../../").filter(|_| !target.contains("/../../../.."))
            {
                let node = paths::numa_node_of_device(device);
                if paths::is_numa_node_of_pci(&node) {
                    todo.push(node);
                }
            }
            tree.insert_link(&path, &target);
        } else if files::is_dir(&real) {
            tree.insert_dir(&path);
            todo.extend(files::list(&real)?.into_iter().map(|name| format!("{path}/{name}")));
        } else if files::is_file(&real)
            && let Ok(content) = files::read(&real)
        {
            tree.insert_file(&path, content);
        }
    }
    Ok(tree)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const ONLINE: &str = "/sys/devices/system/cpu/online";

    fn archive() -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_ustar();
        let mut add = |path: &str, content: &[u8]| {
            header.set_size(content.len() as u64);
            header.set_mode(0o644);
            builder.append_data(&mut header, path, content).unwrap();
        };
        add("machine/sys/devices/system/cpu/online", b"0-3\n");
        add("machine/proc/cpuinfo", b"model name : X\n");
        add("machine/proc/self/cpuset", b"/half\n");
        add("machine/proc/mounts", b"none /dev/cpuset cpuset rw 0 0\n");
        add("machine/dev/cpuset/half/cpus", b"0-1\n");
        add("machine/proc/self/status", b"Cpus_allowed_list: 1\n");
        add("machine/etc/shadow", b"secret");
        let mut link = tar::Header::new_ustar();
        link.set_entry_type(tar::EntryType::Symlink);
        link.set_size(0);
        builder
            .append_link(&mut link, "machine/sys/devices/system/cpu/present", "/etc/passwd")
            .unwrap();
        builder.into_inner().unwrap()
    }

    #[test]
    fn archives_of_each_packing_hold_what_is_read_and_nothing_else() {
        let plain = archive();
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(&plain).unwrap();
        let mut bzip2 = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
        bzip2.write_all(&plain).unwrap();
        let packed = [plain, gzip.finish().unwrap(), bzip2.finish().unwrap()];
        let expected =
            [ArchiveCompression::Plain, ArchiveCompression::Gzip, ArchiveCompression::Bzip2];
        for (bytes, expected) in packed.iter().zip(expected) {
            assert_eq!(packing(bytes), Some(expected));
            let tree = read_archive(bytes, expected).unwrap();
            assert_eq!(tree.read_text(ONLINE).unwrap(), "0-3\n");
            // The link points to a path for which the tree has no file.
            assert!(tree.read_text("/sys/devices/system/cpu/present").is_err());
            assert_eq!(tree.read_text(&paths::captured_cpuset()).unwrap(), "0-1\n");
            assert_eq!(tree.len(), 4, "{}", tree.to_text());
            let half = read_archive(&bytes[..bytes.len() / 3], expected);
            assert!(half.is_err() || half.is_ok_and(|tree| tree.len() < 4));
        }
        assert_eq!(packing(b"<topology/>"), None);
    }

    #[test]
    fn a_folder_is_read_without_leaving_it() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().to_str().unwrap();
        let cpu = format!("{root}/sys/devices/system/cpu");
        files::make_dirs(&cpu).unwrap();
        files::write_atomic(&format!("{cpu}/online"), b"0\n").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", format!("{cpu}/present")).unwrap();
        std::os::unix::fs::symlink("/etc", format!("{root}/proc")).unwrap();
        let live = pinfold_host::LiveHost::new().unwrap();
        let tree = read_folder(&live, root).unwrap();
        assert_eq!(tree.read_text(ONLINE).unwrap(), "0\n");
        assert_eq!(tree.len(), 2, "{}", tree.to_text());
        assert!(read_folder(&live, &format!("{root}/none")).is_err());
    }
}
