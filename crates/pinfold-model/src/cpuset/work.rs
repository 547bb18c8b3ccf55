//! The work of set operations, counted in builds with debug assertions.
//!
//! Times vary with the load of a machine, counts do not: tests compare the work for different
//! numbers of machines. A release build counts nothing.

use std::cell::Cell;

thread_local! {
    static DONE: Cell<u64> = const { Cell::new(0) };
}

/// Counts one operation.
pub(super) fn count() {
    if cfg!(debug_assertions) {
        DONE.with(|done| done.set(done.get() + 1));
    }
}

/// The operations on CPU sets that this thread has done so far: comparisons, changes, and CPUs
/// that iterators returned. Stays zero in builds without debug assertions.
#[must_use]
pub fn set_operations() -> u64 {
    DONE.with(Cell::get)
}
