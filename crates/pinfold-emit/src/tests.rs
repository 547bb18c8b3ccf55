//! Tests of the formats: golden files, the tools that read them, and random plans.

mod caches;
mod cmdline;
mod emit;
mod into;
mod libvirt;
mod properties;
mod qemu;
mod qemu_live;
mod tunables;

/// Compares with a file in `golden/`.
#[track_caller]
fn golden(name: &str, found: &str) {
    pinfold_samples::golden(env!("CARGO_MANIFEST_DIR"), name, found);
}
