//! The speed of a vnode's CPUs relative to full speed.

use std::fmt;

/// CPU speed μ of a vnode: emulated frequency divided by full frequency, 0 < μ ≤ 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Speed {
    millionths: u32,
}

impl Speed {
    /// Full speed, μ = 1.
    pub const FULL: Speed = Speed { millionths: 1_000_000 };

    /// A speed in millionths of full speed; `None` outside 1 to 1,000,000.
    pub fn from_millionths(millionths: u32) -> Option<Self> {
        (1..=1_000_000).contains(&millionths).then_some(Self { millionths })
    }

    /// Millionths of full speed, 1 to 1,000,000.
    #[must_use]
    pub fn millionths(self) -> u32 {
        self.millionths
    }
}

/// Percent of full speed with all its digits: `75%`, `12.5%`.
impl fmt::Display for Speed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.millionths / 10_000, self.millionths % 10_000);
        let digits = format!("{rest:04}");
        match digits.trim_end_matches('0') {
            "" => write!(f, "{whole}%"),
            digits => write!(f, "{whole}.{digits}%"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds() {
        check(1_000_000, "100%");
        check(750_000, "75%");
        check(125_000, "12.5%");
        check(333_333, "33.3333%");
        check(1, "0.0001%");
        assert_eq!(Speed::from_millionths(0), None);
        assert_eq!(Speed::from_millionths(1_000_001), None);
    }

    fn check(millionths: u32, text: &str) {
        assert_eq!(Speed::from_millionths(millionths).unwrap().to_string(), text);
    }
}
