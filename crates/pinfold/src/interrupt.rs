//! Ctrl-C and SIGTERM set a flag; whoever works looks at it between two steps.
//!
//! A second ctrl-C changes nothing: what is under way takes little time and must be
//! finished or undone.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::failure::{Exit, Failure};

static STOP: LazyLock<Arc<AtomicBool>> = LazyLock::new(|| Arc::new(AtomicBool::new(false)));
static REREAD: LazyLock<Arc<AtomicBool>> = LazyLock::new(|| Arc::new(AtomicBool::new(false)));

/// From here on ctrl-C and SIGTERM set the flag.
pub fn install() -> Result<(), Failure> {
    [SIGINT, SIGTERM].into_iter().try_for_each(|signal| catch(signal, &STOP))
}

/// From here on SIGHUP asks to read everything again.
pub fn install_reread() -> Result<(), Failure> {
    catch(SIGHUP, &REREAD)
}

fn catch(signal: i32, flag: &Arc<AtomicBool>) -> Result<(), Failure> {
    signal_hook::flag::register(signal, Arc::clone(flag))
        .map(|_| ())
        .map_err(|error| Failure::new(Exit::Host, format!("cannot catch signals: {error}")))
}

/// True once for each SIGHUP.
pub fn reread() -> bool {
    REREAD.swap(false, Ordering::Relaxed)
}

/// The flag.
pub fn flag() -> &'static AtomicBool {
    &STOP
}

/// True once the user asked to stop.
pub fn requested() -> bool {
    STOP.load(Ordering::Relaxed)
}
