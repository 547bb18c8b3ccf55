//! The release of the kernel: `/proc/sys/kernel/osrelease`.

/// Parses the version of a release: `6.18.44-fc-v595` is (6, 18).
#[must_use]
pub fn version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.trim().split(|letter: char| !letter.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}
