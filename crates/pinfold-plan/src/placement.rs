//! What several strategies use to place threads.

pub(crate) mod builder;
pub mod cells;
pub(crate) mod deferred_isolation;
pub(crate) mod domains;
pub(crate) mod exclusive_cores;
pub(crate) mod linear;
pub(crate) mod pins;
pub(crate) mod rules;
pub(crate) mod vnode_builder;
