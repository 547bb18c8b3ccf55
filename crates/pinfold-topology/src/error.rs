//! Errors of topology discovery, with hints for the user.

use pinfold_host::HostError;

/// Why no topology is available.
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// A file of the host or of the user could not be read.
    #[error(transparent)]
    Host(#[from] HostError),
    /// hwloc failed on the running host.
    #[error("hwloc cannot read this machine: {why}")]
    Hwloc {
        /// hwloc's error message.
        why: String,
    },
    /// Environment variables make hwloc describe another machine.
    #[error("hwloc cannot read this machine: environment variables redirect it")]
    Redirected,
    /// A captured host without hwloc's tree.
    #[error("{name}: the capture contains no hwloc XML ({path})")]
    NoTree {
        /// Name of the capture.
        name: String,
        /// The missing entry.
        path: String,
    },
    /// A text that only describes a topology, without kernel files.
    #[error("{name} contains a topology but no kernel files")]
    NoKernelFiles {
        /// The text as given.
        name: String,
    },
    /// There is no such file, and the text is not a synthetic description.
    #[error("{path}: file not found")]
    NotFound {
        /// The path as given.
        path: String,
    },
    /// The file is neither a capture nor hwloc XML.
    #[error("{path}: neither a capture, an hwloc XML file nor an archive of a machine's /sys")]
    UnknownFile {
        /// The path as given.
        path: String,
    },
    /// A capture that cannot be parsed.
    #[error("{path}: {why}")]
    Capture {
        /// The path as given.
        path: String,
        /// What is wrong with it, and where.
        why: String,
    },
    /// A folder or tarball without another machine's `/sys` and `/proc`.
    #[error("{path}: not the /sys and /proc of a machine: {why}")]
    Tree {
        /// The path as given.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// An XML file that hwloc cannot read, or that failed the checks before hwloc.
    #[error("{name}: not a usable hwloc XML: {why}")]
    Xml {
        /// Name of the file.
        name: String,
        /// What is wrong with it, and where.
        why: String,
    },
    /// The XML of `virsh capabilities` without a usable host.
    #[error("{path}: not a usable output of virsh capabilities: {why}")]
    Capabilities {
        /// The path as given.
        path: String,
        /// What is wrong with it, and where.
        why: String,
    },
    /// A text that is not a synthetic description.
    #[error("{text:?} is not a synthetic description: {why}")]
    Synthetic {
        /// The text as given.
        text: String,
        /// What is wrong with it.
        why: String,
    },
    /// A machine without a single usable CPU.
    #[error("{name}: the topology has no online CPU")]
    NoPu {
        /// Name of the source.
        name: String,
    },
}

impl TopologyError {
    /// A hint for the user.
    pub fn hint(&self) -> Option<String> {
        let text = match self {
            TopologyError::Host(_) | TopologyError::NoPu { .. } => return None,
            TopologyError::Hwloc { .. } => {
                "run lstopo: if it fails too, the hwloc library or sysfs is at fault"
            }
            TopologyError::Redirected => {
                "unset HWLOC_XMLFILE, HWLOC_SYNTHETIC, HWLOC_FSROOT and HWLOC_COMPONENTS, \
                 or name the other machine with --input"
            }
            TopologyError::NoTree { .. } | TopologyError::Capture { .. } => {
                "make a new capture on that machine with pinfold topo --capture > FILE"
            }
            TopologyError::NoKernelFiles { .. } => {
                "this needs a capture: pinfold topo --capture > FILE on that machine"
            }
            TopologyError::NotFound { .. } => {
                "give an existing file, or a description such as \"package:2 core:4 pu:2\""
            }
            TopologyError::UnknownFile { .. } => {
                "a capture comes from pinfold topo --capture > FILE, an XML file from lstopo FILE.xml \
                 or virsh capabilities; the name of a description ends in .synthetic"
            }
            TopologyError::Tree { .. } => {
                "hwloc-gather-topology NAME makes such a tarball (.tar.bz2, .tar.gz and .tar are \
                 read); or make a capture there with pinfold topo --capture > FILE"
            }
            TopologyError::Capabilities { .. } => {
                "create the file again with virsh capabilities > FILE.xml, or lstopo FILE.xml"
            }
            TopologyError::Xml { .. } => "create the file again with lstopo FILE.xml",
            TopologyError::Synthetic { .. } => {
                "write levels from the outside in, each with its count below the one before, \
                 and end with pu: \"package:2 l3:1(size=16MB) core:4 pu:2\""
            }
        };
        Some(text.to_owned())
    }
}
