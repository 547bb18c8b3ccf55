//! What a guest is shown of the host: its topology, caches and NUMA cells.

pub mod cache;
pub mod numa;
pub(crate) mod topology;
