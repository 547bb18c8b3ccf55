//! The fuzzing engine (libFuzzer) for one target, which `PINFOLD_FUZZ_TARGET` names.
//!
//! Built and started by `cargo xtask fuzz`.
#![no_main]

use std::sync::OnceLock;

use pinfold_fuzz::{Target, target};

static TARGET: OnceLock<Option<&'static Target>> = OnceLock::new();

fn chosen() -> Option<&'static Target> {
    *TARGET.get_or_init(|| target(&std::env::var("PINFOLD_FUZZ_TARGET").ok()?))
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    match chosen() {
        Some(target) => (target.run)(bytes),
        None => std::process::abort(),
    }
});
