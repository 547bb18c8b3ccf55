//! Numbers as they are shown.

/// A share in per cent, without the sign.
pub(crate) fn per_cent(share: f64) -> String {
    format!("{:.1}", share * 100.0)
}

/// A time in milliseconds or seconds.
pub(crate) fn milliseconds(ns: u64) -> String {
    if ns >= 1_000_000_000 {
        return format!("{:.1} s", ns as f64 / 1e9);
    }
    format!("{:.1} ms", ns as f64 / 1e6)
}
