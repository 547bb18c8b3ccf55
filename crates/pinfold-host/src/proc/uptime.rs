//! `/proc/uptime`: time since boot, with suspensions, in the unit of a task's times.
//!
//! ```text
//! 40395.32 79120.11
//! ```

use crate::proc::ProcError;
use crate::{Host, HostError, paths};

/// A clock tick of `/proc` (ns): `USER_HZ` is 100 on every current Linux architecture.
pub const TICK_NS: u64 = 10_000_000;

/// Reads the time since boot in clock ticks.
///
/// # Errors
/// [`HostError`] if the file cannot be read, or is not in the kernel's format.
pub fn read_ticks(host: &dyn Host) -> Result<u64, HostError> {
    let path = paths::uptime();
    parse(&host.read_text(&path)?).map_err(|error| error.at(&path))
}

fn parse(text: &str) -> Result<u64, ProcError> {
    let fail = || ProcError::new("the time since boot", text);
    let first = text.split_ascii_whitespace().next().ok_or_else(fail)?;
    let (seconds, hundredths) = first.split_once('.').ok_or_else(fail)?;
    let seconds: u64 = seconds.parse().map_err(|_| fail())?;
    let hundredths: u64 = hundredths.parse().map_err(|_| fail())?;
    Ok(seconds.saturating_mul(100).saturating_add(hundredths))
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn seconds_and_hundredths_are_ticks() {
        assert_eq!(parse("40395.32 79120.11\n").unwrap(), 4_039_532);
        assert!(parse("40395\n").is_err() && parse("").is_err());
    }
}
