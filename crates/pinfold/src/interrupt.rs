//! Ctrl-C and SIGTERM set a flag; whoever works looks at it between two steps.
//!
//! A second ctrl-C changes nothing: what is under way takes little time and must be
//! finished or undone.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use signal_hook::consts::{SIGINT, SIGTERM};

use crate::failure::{Exit, Failure};

static STOP: LazyLock<Arc<AtomicBool>> = LazyLock::new(|| Arc::new(AtomicBool::new(false)));

/// From here on ctrl-C and SIGTERM set the flag.
pub fn install() -> Result<(), Failure> {
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&STOP))
            .map_err(|error| Failure::new(Exit::Host, format!("cannot catch signals: {error}")))?;
    }
    Ok(())
}

/// The flag.
pub fn flag() -> &'static AtomicBool {
    &STOP
}

/// True once the user asked to stop.
pub fn requested() -> bool {
    STOP.load(Ordering::Relaxed)
}
