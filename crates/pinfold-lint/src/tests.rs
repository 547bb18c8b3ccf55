//! Tests of the checks: each rule, the text for a terminal, and repaired files.

mod domain;
mod lint;
mod memory;
mod rest_of_file;

/// Compares with a file in `golden/`.
#[track_caller]
fn golden(name: &str, found: &str) {
    pinfold_samples::golden(env!("CARGO_MANIFEST_DIR"), name, found);
}
