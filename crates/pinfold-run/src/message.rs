//! Messages for the user while a task runs: findings, progress, what was restored.
//!
//! The program says once where they go, as with the `log` crate; without that they are dropped.

use std::sync::OnceLock;

static SINK: OnceLock<fn(&str)> = OnceLock::new();

/// Sets the function that prints the messages of this process. Only the first call has an effect.
pub fn set_sink(sink: fn(&str)) {
    SINK.get_or_init(|| sink);
}

/// Passes on a message: sentences without a full stop, several lines if need be.
pub fn say(text: &str) {
    if let Some(sink) = SINK.get() {
        sink(text);
    }
}
