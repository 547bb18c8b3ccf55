//! The text form of scheduling policies: `fifo:1`, `other:-5`, `deadline:500/1000/1000`,
//! `slice:500`.

use super::value::Invalid;
use crate::Policy;
use crate::policy::{DEFAULT_SLICES_NS, SLICES_NS};

impl Policy {
    /// Syntax of a policy.
    pub const FORMS: &str = "other|other:NICE|batch|batch:NICE|idle|fifo:PRIORITY|rr:PRIORITY|deadline:RUN/DEADLINE/PERIOD|slice:TIME|slice:TIME/NICE";

    /// Parses a policy; the times of a deadline and of a slice are in microseconds.
    ///
    /// # Errors
    /// [`Invalid`] with the policies that there are.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let (name, value) = match text.split_once(':') {
            Some((name, value)) => (name, Some(value)),
            None => (text, None),
        };
        let found = match (name, value) {
            ("other", nice) => nice_of(nice).map(|nice| Policy::Other { nice }),
            ("batch", nice) => nice_of(nice).map(|nice| Policy::Batch { nice }),
            ("idle", None) => Some(Policy::Idle),
            ("fifo", Some(value)) => priority(value).map(|priority| Policy::Fifo { priority }),
            ("rr", Some(value)) => priority(value).map(|priority| Policy::RoundRobin { priority }),
            ("deadline", Some(value)) => deadline(value),
            ("slice", Some(value)) => slice(value),
            _ => None,
        };
        found.ok_or_else(|| Invalid {
            why: format!("{text:?} is not a scheduling policy"),
            hint: Some(format!(
                "policies are {}; NICE is -20 to 19, PRIORITY 1 to 99, a deadline's times are in \
                 microseconds, none longer than the next; RUN is at least 2, PERIOD 100 to 4194304; \
                 the TIME of a slice is 100 to 100000 microseconds, and not one that kernels use by \
                 default ({})",
                Self::FORMS,
                DEFAULT_SLICES_NS.map(|ns| (ns / 1000).to_string()).join(", ")
            )),
        })
    }

    /// A policy in the syntax of the command line.
    #[must_use]
    pub fn argument(self) -> String {
        match self {
            Policy::Other { nice } => format!("other:{nice}"),
            Policy::Batch { nice } => format!("batch:{nice}"),
            Policy::Idle => "idle".to_owned(),
            Policy::Fifo { priority } => format!("fifo:{priority}"),
            Policy::RoundRobin { priority } => format!("rr:{priority}"),
            Policy::Deadline { runtime_ns, deadline_ns, period_ns } => {
                format!(
                    "deadline:{}/{}/{}",
                    runtime_ns / 1000,
                    deadline_ns / 1000,
                    period_ns / 1000
                )
            }
            Policy::Slice { nice: None, slice_ns } => format!("slice:{}", slice_ns / 1000),
            Policy::Slice { nice: Some(nice), slice_ns } => {
                format!("slice:{}/{nice}", slice_ns / 1000)
            }
            Policy::Unknown { number } => format!("policy {number}"),
        }
    }
}

fn nice_of(value: Option<&str>) -> Option<i8> {
    let nice = value.unwrap_or("0").parse().ok()?;
    (-20..=19).contains(&nice).then_some(nice)
}

fn slice(value: &str) -> Option<Policy> {
    let (time, nice) = match value.split_once('/') {
        Some((time, nice)) => (time, Some(nice_of(Some(nice))?)),
        None => (value, None),
    };
    let slice_ns = time.parse::<u64>().ok()?.checked_mul(1000)?;
    (SLICES_NS.contains(&slice_ns) && !DEFAULT_SLICES_NS.contains(&slice_ns))
        .then_some(Policy::Slice { nice, slice_ns })
}

fn priority(value: &str) -> Option<u8> {
    let priority = value.parse().ok()?;
    (1..=99).contains(&priority).then_some(priority)
}

fn deadline(value: &str) -> Option<Policy> {
    let times: Option<Vec<u64>> = value
        .split('/')
        .map(|part| part.parse::<u64>().ok().and_then(|us| us.checked_mul(1000)))
        .collect();
    // The kernel's limits, of which the period's are the defaults of
    // /proc/sys/kernel/sched_deadline_period_{min,max}_us.
    match times?.as_slice() {
        &[runtime_ns, deadline_ns, period_ns]
            if 1024 <= runtime_ns
                && runtime_ns <= deadline_ns
                && deadline_ns <= period_ns
                && (100_000..=4_194_304_000).contains(&period_ns) =>
        {
            Some(Policy::Deadline { runtime_ns, deadline_ns, period_ns })
        }
        _ => None,
    }
}
