//! A study on many nodes: parts of blocks, the documents that travel, and the one who collects.
//!
//! ```text
//! design ─► [`Parts`] ─► [`Collector`]: which parts are to be submitted ─► a cluster's tasks
//!                           │                                                  │ [`work`] on a node
//!                           └── store ◄── checked, merged once ◄── result ◄────┘
//! ```
//!
//! A *part* is what must stay on one node: of one block, the cells that are compared with one
//! another, that share a start or belong together. So a block's ratios never compare two nodes,
//! and the node is a blocking factor of the design. A node delivers a part whole or not at all;
//! a part that failed on one node is run whole on another.
//!
//! Nothing here starts a process or reads a folder: [`slurm`] makes the texts that Slurm is given
//! and reads its answers, the caller carries them.

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
