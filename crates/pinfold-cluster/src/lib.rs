//! A study on several nodes: parts of blocks, the documents that are transferred, the collector,
//! and the batch systems.
//!
//! Stability: none; a part of the program, which may change in each release.
//!
//! ```text
//! design ─► [`Parts`] ─► [`Collector`]: which parts are to be submitted ─► a cluster's tasks
//!                           │                                                  │ [`node`] on a node
//!                           └── store ◄── checked, merged once ◄── result ◄────┘
//! ```
//!
//! A *part* is what must stay on one node: of one block, the cells that are compared with one
//! another, share a start or belong together. So the ratios of a block never compare two nodes, and
//! the node is a blocking factor of the design. A node returns a part completely or not at all; a
//! part that failed on one node is run completely on another.
//!
//! A batch system implements [`scheduler::Scheduler`] in a folder of its own, such as [`slurm`],
//! with a row in `KINDS`; [`run`], [`resume`], the collector and the shared folder know none.

mod arrays;
mod child_input;
mod collect;
mod collector;
mod documents;
pub mod node;
mod parts;
mod queue_limit;
mod run;
pub mod scheduler;
mod schedulers;
mod shared_folder;
pub mod slurm;
mod wait_limit;
mod worker;

pub use arrays::{Batch, arrays};
pub use collect::Outcome;
pub use collector::{
    Accepted, Collector, EndedTask, Failed, Limits, Lost, PartAttempt, SchedulerStates,
};
pub use documents::{
    JobDocument, NodeProperties, Options, ResultContent, ResultError, ResultIdentity, TaskResult,
    read_options, read_result, result_text, seal, study_digest,
};
pub use parts::{Part, Parts};
pub use run::{NewRun, Submission, options_of, resume, run};
pub use worker::{JobStudy, PartResult, create_on_cluster, differences, scout, work};

#[cfg(test)]
mod tests;
