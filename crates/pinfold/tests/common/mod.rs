//! What several tests of the program share.

use pinfold_host::{Clock as _, SystemClock};

/// Asks every 20 ms until the answer is yes. False if that does not happen within a minute.
pub fn until(mut so: impl FnMut() -> bool) -> bool {
    let end = SystemClock.now_ns() + 60_000_000_000;
    while SystemClock.now_ns() < end {
        if so() {
            return true;
        }
        SystemClock.sleep_ns(20_000_000);
    }
    false
}
