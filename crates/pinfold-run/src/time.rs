//! Durations and dates as text.

use jiff::{SignedDuration, Timestamp};

use crate::{Exit, Failure};

/// Parses `330s`, `10m`, `1ms`, `1m 30s` to nanoseconds.
///
/// # Errors
/// Names the option and the text; zero and negative times are rejected.
pub fn parse_ns(option: &str, text: &str) -> Result<u64, Failure> {
    fn wrong(why: &str, option: &str, text: &str) -> Failure {
        Failure::new(Exit::Input, format!("{option} {text:?}: {why}"))
            .with_hint("write a time with its unit, such as 1ms, 330s or 10m")
    }
    let duration: SignedDuration =
        text.trim().parse().map_err(|_| wrong("is not a time", option, text))?;
    let nanoseconds =
        u64::try_from(duration.as_nanos()).map_err(|_| wrong("is out of range", option, text))?;
    if nanoseconds == 0 {
        return Err(wrong("must be more than zero", option, text));
    }
    Ok(nanoseconds)
}

/// Seconds since 1970 as `2026-11-21 04:05:06 UTC`.
pub fn date(unix_seconds: u64) -> String {
    i64::try_from(unix_seconds)
        .ok()
        .and_then(|seconds| Timestamp::from_second(seconds).ok())
        .map_or_else(
            || "unknown date".to_owned(),
            |time| time.strftime("%Y-%m-%d %H:%M:%S UTC").to_string(),
        )
}

/// Nanoseconds as `1 min 40 s`.
pub fn wait(nanoseconds: u64) -> String {
    let seconds = nanoseconds.div_ceil(1_000_000_000);
    match (seconds / 60, seconds % 60) {
        (0, seconds) => format!("{seconds} s"),
        (minutes, 0) => format!("{minutes} min"),
        (minutes, seconds) => format!("{minutes} min {seconds} s"),
    }
}

/// Seconds as `1 min 40 s`.
pub fn seconds(seconds: f64) -> String {
    let time = std::time::Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default();
    wait(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_with_their_unit() {
        check("1ms", Some(1_000_000));
        check("330s", Some(330_000_000_000));
        check("1m 30s", Some(90_000_000_000));
        check("10m", Some(600_000_000_000));
        check("10", None);
        check("0s", None);
        check("-1s", None);
        check("NaN", None);
        check("", None);
    }

    fn check(text: &str, expected: Option<u64>) {
        assert_eq!(parse_ns("--max-gap", text).ok(), expected, "{text}");
    }

    #[test]
    fn dates_and_waits() {
        assert_eq!(date(0), "1970-01-01 00:00:00 UTC");
        assert_eq!(wait(100_000_000_000), "1 min 40 s");
        assert_eq!(wait(1), "1 s");
        assert_eq!(wait(120_000_000_000), "2 min");
    }
}
