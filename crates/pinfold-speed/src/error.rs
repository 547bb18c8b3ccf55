//! What can go wrong with emulated speed.

use std::ops::RangeInclusive;

use pinfold_host::{HostError, ProcError};
use pinfold_model::{Command, Method, NodeId, Speed};

/// Why a speed is not emulated.
#[derive(Debug, thiserror::Error)]
pub enum SpeedError {
    /// The host does not have what the method needs.
    #[error("vnode {vnode}: {method} cannot work on this host: {why}")]
    Unavailable {
        /// The vnode.
        vnode: String,
        /// The method.
        method: Method,
        /// What is missing.
        why: String,
        /// What can be done.
        hint: String,
    },
    /// The method cannot reach the speed.
    #[error("vnode {vnode}: {method} cannot emulate {speed}: {why}")]
    OutOfReach {
        /// The vnode.
        vnode: String,
        /// The method.
        method: Method,
        /// The speed.
        speed: Speed,
        /// The bound.
        why: String,
        /// What can be done.
        hint: String,
    },
    /// The length of a turn is none that the method can keep.
    #[error(
        "vnode {vnode}: {method} cannot work with a period of {}: {} to {} it can",
        in_time(*period_ns), in_time(*bounds_ns.start()), in_time(*bounds_ns.end())
    )]
    Period {
        /// The vnode.
        vnode: String,
        /// The method.
        method: Method,
        /// What was asked.
        period_ns: u64,
        /// The shortest and the longest.
        bounds_ns: RangeInclusive<u64>,
    },
    /// What was to become a vnode is not there, or cannot be one.
    #[error("vnode {vnode}: {what} {why}")]
    Unattached {
        /// The vnode.
        vnode: String,
        /// The group or process.
        what: String,
        /// What is wrong with it.
        why: String,
        /// What can be done.
        hint: String,
    },
    /// A row of a speed profile cannot be played.
    #[error("line {line} of a profile")]
    Row {
        /// Line of its file.
        line: usize,
        /// Why.
        source: Box<SpeedError>,
    },
    /// The host has nothing that binds memory.
    #[error(
        "vnode {vnode}: its memory cannot be bound to node {node}: there is no writable cgroup \
         hierarchy with cpuset"
    )]
    Unbound {
        /// The vnode.
        vnode: String,
        /// The node that was asked for.
        node: NodeId,
    },
    /// There is no such vnode.
    #[error("there is no vnode {name:?}; there are {known}")]
    NoVnode {
        /// What was asked for.
        name: String,
        /// Those that are there.
        known: String,
    },
    /// A group of a vnode is there already.
    #[error("{path} is there already")]
    Occupied {
        /// Its directory.
        path: String,
    },
    /// A program that was to be started outside failed.
    #[error("{what}: {why}")]
    HelperSpawner {
        /// What it was to do.
        what: &'static str,
        /// What happened.
        why: String,
    },
    /// The host refused something.
    #[error(transparent)]
    Host(#[from] HostError),
}

impl From<ProcError> for SpeedError {
    fn from(error: ProcError) -> Self {
        SpeedError::Host(error.at("a file of the kernel"))
    }
}

impl SpeedError {
    /// The same of a row of a profile.
    pub(crate) fn in_row(self, line: usize) -> Self {
        Self::Row { line, source: Box::new(self) }
    }

    /// What the user can do next.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            SpeedError::Unavailable { hint, .. }
            | SpeedError::OutOfReach { hint, .. }
            | SpeedError::Unattached { hint, .. } => Some(hint.clone()),
            SpeedError::Period { .. } => {
                Some("leave the period out to have the method's usual".to_owned())
            }
            SpeedError::Unbound { .. } => {
                Some("mount it, or leave memory-node out of the platform file".to_owned())
            }
            SpeedError::NoVnode { .. } => {
                Some(format!("`{}` lists them", Command::new("emulate status")))
            }
            SpeedError::Occupied { .. } => Some(format!(
                "a platform of another state directory has a vnode of this name: give this one \
                 another name, or end that platform with its own --state-dir (`emulate down`); \
                 after a crash of a platform of this directory: `{}`",
                Command::new("undo --left")
            )),
            SpeedError::HelperSpawner { .. } => None,
            SpeedError::Row { source, .. } => source.hint(),
            SpeedError::Host(error) => error.hint(),
        }
    }
}

/// `200 µs`, `100 ms`: the longest unit in which it is whole.
fn in_time(ns: u64) -> String {
    match ns {
        ns if ns >= 1_000_000 && ns.is_multiple_of(1_000_000) => format!("{} ms", ns / 1_000_000),
        ns if ns >= 1_000 && ns.is_multiple_of(1_000) => format!("{} µs", ns / 1_000),
        ns => format!("{ns} ns"),
    }
}
