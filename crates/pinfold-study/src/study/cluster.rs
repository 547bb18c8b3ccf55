//! A study on several nodes: parts of blocks, the documents that are transferred, and the
//! collector.
//!
//! ```text
//! design ─► [`Parts`] ─► [`Collector`]: which parts are to be submitted ─► a cluster's tasks
//!                           │                                                  │ [`work`] on a node
//!                           └── store ◄── checked, merged once ◄── result ◄────┘
//! ```
//!
//! A *part* is what must stay on one node: of one block, the cells that are compared with one
//! another, share a start or belong together. So the ratios of a block never compare two nodes, and
//! the node is a blocking factor of the design. A node returns a part completely or not at all; a
//! part that failed on one node is run completely on another.
//!
//! This module starts no process and reads no folder: [`slurm`] composes the arguments and scripts
//! for Slurm and parses its output, and the caller runs the commands.

mod collector;
mod documents;
mod nodes;
mod parts;
mod queue_limit;
pub mod slurm;
mod worker;

pub use collector::{Accepted, Ask, Collector, Ended, Failed, Limits, Refusal};
pub use documents::{
    Answer, Given, Head, JobDocument, Options, ResultError, Scouted, read_options, read_result,
    result_text, sealed, study_digest,
};
pub use nodes::{NodeFigure, NodeRow, NodeTable, node_table};
pub use parts::{Part, Parts};
pub use worker::{Found, Scout, create_on_cluster, differences, scout, work};

#[cfg(test)]
mod tests;
