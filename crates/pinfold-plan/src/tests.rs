//! Tests of the crate as a whole: strategies against their sources, properties on random machines,
//! and output for users and for other programs.

mod auto;
mod explain;
mod golden;
#[cfg(debug_assertions)] // without them nothing is counted
mod growth;
mod guest_cells;
mod node_shared;
mod odd_hosts;
mod pins;
mod platforms;
mod policies;
mod properties;
mod refusals;
mod replan;
mod requests;
mod schema;
mod several;
mod validate;

/// Compares with a file in `golden/`.
#[track_caller]
fn golden(name: &str, found: &str) {
    pinfold_samples::golden(env!("CARGO_MANIFEST_DIR"), name, found);
}
