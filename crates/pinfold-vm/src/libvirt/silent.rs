//! Daemons that hang: they accept connections and do not answer.
//!
//! An undo of a domain with many vCPUs asks libvirt for each of them. Only the first question waits
//! for its timeout; then the daemon is not asked again for some time.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use pinfold_host::{Clock as _, SystemClock};

/// Time for which a daemon that did not answer is not asked again (ns).
const PAUSE_NS: u64 = 30_000_000_000;

/// The URIs whose daemons did not answer, with the end of the pause.
static SILENT: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());

fn all() -> MutexGuard<'static, BTreeMap<String, u64>> {
    SILENT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Records that the daemon did not answer.
pub(super) fn record(uri: &str) {
    all().insert(uri.to_owned(), SystemClock.now_ns().saturating_add(PAUSE_NS));
}

/// True if the daemon did not answer shortly before.
pub(super) fn is_silent(uri: &str) -> bool {
    all().get(uri).is_some_and(|end| SystemClock.now_ns() < *end)
}
