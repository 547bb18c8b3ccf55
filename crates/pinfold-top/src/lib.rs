//! How long the threads of virtual machines wait for a CPU now, and because of which task.
//!
//! [`Sampler`] reads all threads in one interval, by a BPF program ([`pinfold_host::WaitTracer`]) or
//! from `/proc`; [`Snapshot`] is what it found. A record is one snapshot in JSON per line
//! ([`Replay`] reads it).
//!
//! [`Screen`] shows snapshots on a [`LiveTerminal`].
//!
//! Stability: none; a part of the program, which may change in each release.

mod proc_reader;
mod quota;
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
pub use snapshot::{FORMAT, MachineSample, Method, Snapshot, ThreadSample, VnodeSample};
pub use terminal::LiveTerminal;
