//! perf: `perf bench sched pipe`, a token between two processes.
//!
//! `--format=simple` prints only the seconds of the whole run. One operation is a round trip: two
//! switches.
//!
//! ```text
//! 1.126
//! ```

use pinfold_model::{Figure, Statistic};

use super::{Call, Found, check_sample_value, pu_of, reading, token};
use crate::settings::Settings;

/// Round trips per run.
const LOOPS: u32 = 20_000;

pub(super) fn call(settings: &Settings, ours: &[Figure]) -> Result<Call, String> {
    if ours.iter().all(|figure| figure.probe != "context-switch") {
        return Err("is read for context switches only".to_owned());
    }
    let pu = pu_of(ours, "context-switch")?;
    let loops = LOOPS.to_string();
    let argv = ["bench", "--format=simple", "sched", "pipe", "-l", &loops].map(str::to_owned);
    // It does not set the affinity of its two processes, which inherit mask and policy.
    let call = Call::new(argv.to_vec(), None).on(pu).under(settings.policy);
    Ok(Call { labels: token(), ..call })
}

pub(super) fn parse(text: &str) -> Result<Found, String> {
    let word = text.trim();
    let seconds: f64 = word.parse().map_err(|_| format!("is not a time: {word:?}"))?;
    let seconds = check_sample_value("a time of", seconds)?;
    if seconds <= 0.0 {
        return Err("reports a time of 0 s".to_owned());
    }
    let ns = seconds * 1e9 / (2.0 * f64::from(LOOPS));
    Ok(Found { readings: vec![reading(Statistic::Mean, ns)], samples: Some(u64::from(LOOPS)) })
}
