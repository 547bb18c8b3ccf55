//! stress-ng: its stressors `cyclic` (timer wake-ups) and `switch` (context switches).
//!
//! Its "bogo-ops" are not a metric: they change between versions. The latencies are only in the log
//! of `cyclic` and in the metrics of `switch`, as lines of text:
//!
//! ```text
//! stress-ng: info:  [24879] cyclic:   mean: 66628.08 ns, mode: 50401 ns
//! stress-ng: info:  [24879] cyclic:   min: 21948 ns, max: 5627705 ns, std.dev. 129923.07
//! stress-ng: info:  [24879] cyclic:   99.90%:    1500316 ns
//! stress-ng: metrc: [24882] switch             45791.75 nanosecs per context switch (pipe method) …
//! ```

use pinfold_model::{Figure, Statistic};

use super::{Call, Found, check_sample_value, pu_of, reading, token, whole_seconds};
use crate::benchmarks::SchedPolicy;
use crate::settings::Settings;

const P999_SAMPLES: u64 = 10_000;

pub(super) fn call(settings: &Settings, ours: &[Figure]) -> Result<Call, String> {
    let is_switch = ours.iter().any(|figure| figure.probe == "context-switch");
    let seconds = whole_seconds(settings.duration_ns);
    if is_switch {
        let words = ["--switch", "1", "--metrics", "-t", &seconds].map(str::to_owned).to_vec();
        let pu = pu_of(ours, "context-switch")?;
        let call = Call::new(words, None).on(pu).under(settings.policy);
        return Ok(Call { labels: token(), ..call });
    }
    let SchedPolicy::Fifo(priority) = settings.policy else {
        return Err(
            "measures wake-ups under a real-time policy only: give --policy fifo:N".to_owned()
        );
    };
    // Our probe pins one thread to each CPU; a thread that migrates between them measures something
    // else.
    if settings.cpus.len() != 1 {
        return Err("has one thread: name one CPU with --cpus".to_owned());
    }
    let sleep_ns = (u64::from(settings.period_us.unwrap_or(1_000)) * 1_000).to_string();
    let priority = priority.to_string();
    let samples = (settings.duration_ns / 1_000_000).clamp(1, 10_000_000).to_string();
    let words = [
        "--cyclic",
        "1",
        "--cyclic-policy",
        "fifo",
        "--cyclic-prio",
        &priority,
        "--cyclic-sleep",
        &sleep_ns,
        "--cyclic-samples",
        &samples,
        "-t",
        &seconds,
    ];
    let words = words.map(str::to_owned).to_vec();
    Ok(Call::new(words, None).on(settings.cpus.clone()))
}

pub(super) fn parse(text: &str, ours: &[Figure]) -> Result<Found, String> {
    if ours.iter().any(|figure| figure.probe == "context-switch") {
        switch(text)
    } else {
        cyclic(text)
    }
}

fn cyclic(text: &str) -> Result<Found, String> {
    let lines =
        || text.lines().filter_map(|line| line.split_once(" cyclic: ").map(|(_, rest)| rest));
    let after = |key: &str| -> Option<&str> {
        let rest = lines().find_map(|line| line.split_once(key).map(|(_, rest)| rest))?;
        rest.split_whitespace().next()
    };
    let number = |key: &str| -> Result<f64, String> {
        let word = after(key).ok_or_else(|| format!("has no {key:?}"))?;
        let value = word.parse().map_err(|_| format!("reports {key} {word:?}"))?;
        check_sample_value(key, value)
    };
    let samples = lines()
        .find_map(|line| line.strip_suffix(" samples")?.rsplit(' ').next()?.parse::<u64>().ok())
        .ok_or("does not report how many samples there were")?;
    if samples == 0 {
        return Err("reports no sample".to_owned());
    }
    let mut readings = vec![
        reading(Statistic::Mean, number("mean:")?),
        reading(Statistic::Max, number("max:")?),
        reading(Statistic::Median, number("50.00%:")?),
    ];
    if samples >= P999_SAMPLES {
        readings.push(reading(Statistic::P999, number("99.90%:")?));
    }
    Ok(Found { readings, samples: Some(samples) })
}

fn switch(text: &str) -> Result<Found, String> {
    const KEY: &str = " nanosecs per context switch";
    let word = text
        .lines()
        .find_map(|line| line.split_once(KEY)?.0.rsplit(' ').next())
        .ok_or_else(|| format!("has no {KEY:?}"))?;
    let value: f64 = word.parse().map_err(|_| format!("reports{KEY} {word:?}"))?;
    let value = check_sample_value("a switch of", value)?;
    if value <= 0.0 {
        return Err("reports a switch of 0 ns".to_owned());
    }
    Ok(Found { readings: vec![reading(Statistic::Mean, value)], samples: None })
}
