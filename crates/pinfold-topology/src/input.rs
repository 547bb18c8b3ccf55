//! Topologies of other machines: a capture, an hwloc XML file, the XML of `virsh capabilities`, a
//! folder or tarball with `/sys` and `/proc`, or a synthetic description.
//!
//! The kind is determined as follows. An existing path is a file, and its first words identify its
//! kind (a description in a file starts with a `#` comment, or the file is named `.synthetic`). A
//! text with a slash, or ending in `.xml`, is taken for a missing file. Anything else is a
//! description.

use pinfold_host::{Host, HostError, SnapshotHost, files, paths};
use pinfold_model::{CpuSet, Source, Topology};

use crate::build::{self, source_name};
use crate::error::TopologyError;
use crate::facts::Facts;
use crate::hwloc::{self, HwlocError, Tree};
use crate::{fsroot, synthetic, sysfs, virsh_capabilities, xml};

/// First words of a capture.
const CAPTURE_HEAD: &str = "pinfold-capture";

/// Ending of the names of files with a description.
const DESCRIPTION_ENDING: &str = ".synthetic";

/// The topology of this host, or of a captured one.
///
/// ```
/// use pinfold_host::LiveHost;
///
/// let topology = pinfold_topology::discover(&LiveHost::new()?)?;
/// assert!(!topology.pus.is_empty());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`TopologyError`] if hwloc fails, if the environment redirects it to another machine, or if a
/// captured host does not contain hwloc's tree.
pub fn discover(host: &dyn Host) -> Result<Topology, TopologyError> {
    if host.is_live() {
        // hwloc ends the process if the directory of the nodes is empty.
        if host.list(&paths::node_dir()).is_ok_and(|names| names.is_empty()) {
            let why = format!("{} is empty", paths::node_dir());
            return Err(TopologyError::Hwloc { why });
        }
        let tree = hwloc::live().map_err(live_error)?;
        return build::topology(Source::Live, &tree, &Facts::read(host));
    }
    let name = "the captured machine";
    // A host that is simulated, or was copied file by file, only has the kernel's files.
    match sysfs::tree(host) {
        Ok(tree) if !host.exists(&paths::captured_hwloc_xml()) => {
            build::topology(Source::Captured(name.to_owned()), &tree, &Facts::read(host))
        }
        Ok(_) | Err(_) => from_captured(host, name),
    }
}

/// The topology of a file (a capture or an hwloc XML), or of a synthetic description. On the live
/// host, paths are relative to the current directory; on any other host they refer to the host's
/// files.
///
/// ```
/// use pinfold_host::SnapshotHost;
///
/// let topology = pinfold_topology::read_input(&SnapshotHost::new(), "package:1 l3:2 core:4 pu:2")?;
/// assert_eq!((topology.l3.len(), topology.cores.len(), topology.pus.len()), (2, 8, 16));
/// # Ok::<(), pinfold_topology::TopologyError>(())
/// ```
///
/// # Errors
/// [`TopologyError`]: a missing file, an unknown kind of file, an XML that hwloc cannot use, a text
/// that is not a description. Each contains the text and what is wrong with it.
pub fn read_input(host: &dyn Host, text: &str) -> Result<Topology, TopologyError> {
    let text = text.trim();
    if host.is_live() && files::is_dir(text) {
        return from_tree(text, &fsroot::read_folder(host, text)?);
    }
    match user_file(host, text) {
        Ok(bytes) => match fsroot::packing(&bytes) {
            Some(packing) => {
                let tree = fsroot::read_archive(&bytes, packing)
                    .map_err(|why| TopologyError::Tree { path: text.to_owned(), why })?;
                from_tree(text, &tree)
            }
            None => from_file(text, &String::from_utf8_lossy(&bytes)),
        },
        Err(error) if error.is_gone() && !looks_like_a_file(text) => from_description(text, text),
        Err(error) if error.is_gone() => Err(TopologyError::NotFound { path: text.to_owned() }),
        Err(error) => Err(error.into()),
    }
}

/// The kernel files of a captured machine: from a capture, or from a folder or tarball with its
/// `/sys` and `/proc`.
///
/// # Errors
/// [`TopologyError`]: a missing file, or a text without kernel files.
pub fn read_capture(host: &dyn Host, path: &str) -> Result<SnapshotHost, TopologyError> {
    let path = path.trim();
    if host.is_live() && files::is_dir(path) {
        return Ok(fsroot::read_folder(host, path)?);
    }
    let bytes = match user_file(host, path) {
        Ok(bytes) => bytes,
        Err(error) if error.is_gone() && from_description(path, path).is_ok() => {
            return Err(TopologyError::NoKernelFiles { name: path.to_owned() });
        }
        Err(error) if error.is_gone() => {
            return Err(TopologyError::NotFound { path: path.to_owned() });
        }
        Err(error) => return Err(error.into()),
    };
    if let Some(packing) = fsroot::packing(&bytes) {
        return fsroot::read_archive(&bytes, packing)
            .map_err(|why| TopologyError::Tree { path: path.to_owned(), why });
    }
    let content = String::from_utf8_lossy(&bytes);
    let content = content.strip_prefix('\u{feff}').unwrap_or(&content);
    if !content.starts_with(CAPTURE_HEAD) {
        from_file(path, content)?;
        return Err(TopologyError::NoKernelFiles { name: path.to_owned() });
    }
    SnapshotHost::parse(content)
        .map_err(|error| TopologyError::Capture { path: path.to_owned(), why: error.to_string() })
}

/// The topology of another machine's `/sys` and `/proc`.
fn from_tree(path: &str, host: &SnapshotHost) -> Result<Topology, TopologyError> {
    let tree =
        sysfs::tree(host).map_err(|why| TopologyError::Tree { path: path.to_owned(), why })?;
    build::topology(Source::Captured(path.to_owned()), &tree, &Facts::read(host))
}

fn user_file(host: &dyn Host, path: &str) -> Result<Vec<u8>, HostError> {
    if host.is_live() { files::read(path) } else { host.read(path) }
}

/// True for a path, and for a word, because each level of a description has a colon.
fn looks_like_a_file(text: &str) -> bool {
    let is_word = !text.is_empty() && !text.contains(|it: char| it == ':' || it.is_whitespace());
    is_word || text.contains('/') || text.to_ascii_lowercase().ends_with(".xml")
}

fn from_file(path: &str, content: &str) -> Result<Topology, TopologyError> {
    let content = content.strip_prefix('\u{feff}').unwrap_or(content);
    if content.starts_with(CAPTURE_HEAD) {
        let tree = SnapshotHost::parse(content).map_err(|error| TopologyError::Capture {
            path: path.to_owned(),
            why: error.to_string(),
        })?;
        from_captured(&tree, path)
    } else if content.trim_start().starts_with('<') {
        let source = Source::Captured(path.to_owned());
        let tree = if virsh_capabilities::is_capabilities(content) {
            virsh_capabilities::tree(content)
                .map_err(|why| TopologyError::Capabilities { path: path.to_owned(), why })?
        } else {
            tree_of_xml(path, content)?
        };
        build::topology(source, &tree, &Facts::default())
    } else if content.starts_with('#') || path.ends_with(DESCRIPTION_ENDING) {
        from_description(path, &without_comments(content))
    } else {
        Err(TopologyError::UnknownFile { path: path.to_owned() })
    }
}

/// The description in a file in which lines that start with `#` are comments. A file without one is
/// only taken for a description by its name, because any text file would be one.
fn without_comments(content: &str) -> String {
    let lines = content.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    lines.collect::<Vec<_>>().join(" ").trim().to_owned()
}

fn from_captured(host: &dyn Host, name: &str) -> Result<Topology, TopologyError> {
    let path = paths::captured_hwloc_xml();
    let text = match host.read_text(&path) {
        Ok(text) => text,
        Err(error) if error.is_gone() => {
            return Err(TopologyError::NoTree { name: name.to_owned(), path });
        }
        Err(error) => return Err(error.into()),
    };
    let tree = tree_of_xml(name, &text)?;
    build::topology(Source::Captured(name.to_owned()), &tree, &Facts::read(host))
}

fn tree_of_xml(name: &str, text: &str) -> Result<Tree, TopologyError> {
    let text = xml::check_text(text).map_err(|why| fail(name, why))?;
    let mut tree = hwloc::from_xml(&text).map_err(|refusal| fail(name, why(&refusal)))?;
    // hwloc assigns the CPUs of the surrounding object to such a node.
    let bare = xml::nodes_without_pus(&text);
    for node in tree.nodes.iter_mut().filter(|node| bare.contains(&node.id)) {
        node.pus = CpuSet::new();
    }
    Ok(tree)
}

fn fail(name: &str, why: String) -> TopologyError {
    TopologyError::Xml { name: name.to_owned(), why }
}

/// The topology of a description; errors contain its `name`, a file's or the text itself.
fn from_description(name: &str, text: &str) -> Result<Topology, TopologyError> {
    fn fail(name: &str, why: String) -> TopologyError {
        TopologyError::Synthetic { text: name.to_owned(), why }
    }

    let count = synthetic::check_size(text).map_err(|why| fail(name, why))?;
    let tree = hwloc::from_synthetic(text).map_err(|refusal| match refusal {
        HwlocError::Rejected => fail(name, synthetic::fault(text)),
        HwlocError::Failed(_) | HwlocError::Redirected | HwlocError::OutOfRange(_) => {
            fail(name, why(&refusal))
        }
    })?;
    // hwloc merges CPUs that have the same index.
    if u64::try_from(tree.pus.len()) != Ok(count) {
        return Err(fail(name, format!("its indexes do not name {count} different PUs")));
    }
    build::topology(Source::Synthetic(text.to_owned()), &tree, &Facts::default())
}

fn why(refusal: &HwlocError) -> String {
    match refusal {
        HwlocError::Rejected => "hwloc does not accept it".to_owned(),
        HwlocError::Redirected => "the environment redirects hwloc".to_owned(),
        HwlocError::Failed(why) | HwlocError::OutOfRange(why) => why.clone(),
    }
}

/// Converts a refusal of hwloc on the running host.
pub(crate) fn live_error(refusal: HwlocError) -> TopologyError {
    match refusal {
        HwlocError::Redirected => TopologyError::Redirected,
        HwlocError::Rejected | HwlocError::Failed(_) | HwlocError::OutOfRange(_) => {
            TopologyError::Hwloc { why: why(&refusal) }
        }
    }
}

/// The name of a topology's source for messages.
#[must_use]
pub fn describe_source(topology: &Topology) -> String {
    source_name(&topology.source)
}

#[cfg(test)]
mod tests;
