//! Properties of finished placements: findings, checks of plans and files.

pub(crate) mod host_match;
pub mod locality;
pub(crate) mod placement;
pub(crate) mod policies;
pub(crate) mod starvation;
pub(crate) mod validate;
