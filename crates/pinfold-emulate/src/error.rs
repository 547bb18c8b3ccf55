//! Errors of speed emulation.

use std::ops::RangeInclusive;

use pinfold_host::{HostError, ProcError};
use pinfold_model::{Command, Method, NodeId, Speed};

/// Why a speed cannot be emulated.
#[derive(Debug, thiserror::Error)]
pub enum SpeedError {
    /// The host lacks something that the method needs.
    #[error("vnode {vnode}: {method} cannot work on this host: {why}")]
    Unavailable {
        /// Name of the vnode.
        vnode: String,
        /// The method.
        method: Method,
        /// What is missing.
        why: String,
        /// A hint for the user.
        hint: String,
    },
    /// The method cannot reach the speed.
    #[error("vnode {vnode}: {method} cannot emulate {speed}: {why}")]
    OutOfReach {
        /// Name of the vnode.
        vnode: String,
        /// The method.
        method: Method,
        /// The speed.
        speed: Speed,
        /// The limit.
        why: String,
        /// A hint for the user.
        hint: String,
    },
    /// The method does not support this period.
    #[error(
        "vnode {vnode}: {method} cannot work with a period of {}: use {} to {}",
        in_time(*period_ns), in_time(*bounds_ns.start()), in_time(*bounds_ns.end())
    )]
    Period {
        /// Name of the vnode.
        vnode: String,
        /// The method.
        method: Method,
        /// The requested period in nanoseconds.
        period_ns: u64,
        /// The shortest and the longest supported period in nanoseconds.
        bounds_ns: RangeInclusive<u64>,
    },
    /// The group or process that was to become a vnode does not exist, or cannot become one.
    #[error("vnode {vnode}: {what} {why}")]
    Unattached {
        /// Name of the vnode.
        vnode: String,
        /// The group or process.
        what: String,
        /// What is wrong with it.
        why: String,
        /// A hint for the user.
        hint: String,
    },
    /// A row of a speed profile cannot be applied.
    #[error("{file}: line {line}")]
    Row {
        /// Path of the profile's file.
        file: String,
        /// Line number in the profile's file.
        line: usize,
        /// The error.
        source: Box<SpeedError>,
    },
    /// The host has no writable cgroup hierarchy to bind memory.
    #[error(
        "vnode {vnode}: cannot bind its memory to node {node}: there is no writable cgroup \
         hierarchy with cpuset"
    )]
    Unbound {
        /// Name of the vnode.
        vnode: String,
        /// The requested node.
        node: NodeId,
    },
    /// The disk of a folder cannot be limited.
    #[error("vnode {vnode}: cannot limit the disk of {path}: {why}")]
    Disk {
        /// Name of the vnode.
        vnode: String,
        /// The folder.
        path: String,
        /// The reason.
        why: String,
        /// A hint for the user.
        hint: String,
    },
    /// The vnode does not exist.
    #[error("there is no vnode {name:?}; the vnodes are {known}")]
    NoVnode {
        /// The requested name.
        name: String,
        /// The names of the existing vnodes.
        known: String,
    },
    /// A group of the vnode already exists.
    #[error("{path} already exists")]
    Occupied {
        /// Its directory.
        path: String,
    },
    /// A helper program failed.
    #[error("{what}: {why}")]
    HelperSpawner {
        /// Its purpose.
        what: &'static str,
        /// The failure.
        why: String,
    },
    /// An operation on the host failed.
    #[error(transparent)]
    Host(#[from] HostError),
}

impl From<ProcError> for SpeedError {
    fn from(error: ProcError) -> Self {
        SpeedError::Host(error.at("a file of the kernel"))
    }
}

impl SpeedError {
    /// The same error with the line of a profile's row.
    pub(crate) fn in_row(self, file: &str, line: usize) -> Self {
        Self::Row { file: file.to_owned(), line, source: Box::new(self) }
    }

    /// A hint for the user.
    pub fn hint(&self) -> Option<String> {
        match self {
            SpeedError::Unavailable { hint, .. }
            | SpeedError::OutOfReach { hint, .. }
            | SpeedError::Disk { hint, .. }
            | SpeedError::Unattached { hint, .. } => Some(hint.clone()),
            SpeedError::Period { .. } => {
                Some("omit the period to use the default of the method".to_owned())
            }
            SpeedError::Unbound { .. } => {
                Some("mount it, or remove memory-node from the platform file".to_owned())
            }
            SpeedError::NoVnode { .. } => {
                Some(format!("`{}` lists them", Command::new("emulate status")))
            }
            SpeedError::Occupied { .. } => Some(format!(
                "after a crash of a platform of this directory: `{}`; else a platform of another \
                 state directory has a vnode of this name: give this one another name, or end that \
                 platform with its own --state-dir (`emulate down`)",
                Command::new("undo --left")
            )),
            SpeedError::HelperSpawner { .. } => None,
            SpeedError::Row { source, .. } => source.hint(),
            SpeedError::Host(error) => error.hint(),
        }
    }
}

/// A time in the longest unit in which it is an integer: `200 µs`, `100 ms`.
fn in_time(ns: u64) -> String {
    match ns {
        ns if ns >= 1_000_000 && ns.is_multiple_of(1_000_000) => format!("{} ms", ns / 1_000_000),
        ns if ns >= 1_000 && ns.is_multiple_of(1_000) => format!("{} µs", ns / 1_000),
        ns => format!("{ns} ns"),
    }
}
