//! Units of time in nanoseconds.

pub(crate) const US: u64 = 1_000;
pub(crate) const MS: u64 = 1_000_000;
pub(crate) const S: u64 = 1_000_000_000;

/// A time in microseconds: `5.1 µs`.
pub(crate) fn in_us(ns: u64) -> String {
    format!("{}.{} µs", ns / US, ns % US / 100)
}
