//! How long the threads of virtual machines wait for a CPU now, and because of which task.
//!
//! [`Sampler`] reads the kernel's statistics of each thread through descriptors that stay open
//! ([`pinfold_host::OpenKernelFile`]); [`Snapshot`] is what it found in one interval. A record is one
//! snapshot in JSON per line ([`Replay`] reads it).
//!
//! The kernel adds the time that a thread waited when the wait ends (`schedstat`, field 2), so a
//! thread that waits without an end would show nothing. [`ThreadSample::waiting_ns`] shows it: the
//! thread is runnable, and its run time has not changed.
//!
//! [`Screen`] shows snapshots on a [`LiveTerminal`].
//!
//! Stability: none; a part of the program, which may change in each release.

mod record;
pub mod rows;
mod sampler;
mod screen;
mod snapshot;
mod terminal;
mod top_tasks;
mod units;

pub use record::{RecordError, Replay, to_line};
pub use sampler::{Machine, Sampler, Thread};
pub use screen::{Flow, Screen};
pub use snapshot::{FORMAT, MachineSample, Snapshot, ThreadSample, VnodeSample};
pub use terminal::LiveTerminal;
pub use units::per_cent;
