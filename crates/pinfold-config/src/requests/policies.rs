//! Text form of scheduling policies: `fifo:1`, `other:-5`, `deadline:500/1000/1000`.

use pinfold_model::{Policy, PolicyRequest, ROLES};

use crate::fault::Fault;

/// Syntax of a policy.
pub(super) const FORMS: &str =
    "other|other:NICE|batch|batch:NICE|idle|fifo:PRIORITY|rr:PRIORITY|deadline:RUN/DEADLINE/PERIOD";

/// The roles that can have a policy: `roles are vcpu, vcpu(N), emulator, …`.
pub(super) fn roles() -> String {
    let mut forms: Vec<String> =
        ROLES.into_iter().flat_map(|kind| [kind.name.to_owned(), kind.form()]).collect();
    forms.dedup();
    format!("roles are {}", listed(&forms))
}

/// `a, b and c`.
pub(super) fn listed(words: &[String]) -> String {
    match words.split_last() {
        Some((last, before)) if !before.is_empty() => format!("{} and {last}", before.join(", ")),
        Some((last, _)) => last.clone(),
        None => String::new(),
    }
}

/// Parses `ROLE=POLICY`.
pub(super) fn wish(text: &str, at: usize) -> Result<PolicyRequest, Fault> {
    let Some((role, words)) = text.split_once('=') else {
        return Err(Fault::new(at, format!("policies: {text:?} is not written ROLE=POLICY"))
            .with_hint("such as vcpu=fifo:1 or emulator=other:-5"));
    };
    Ok(PolicyRequest { role: role.trim().to_owned(), policy: policy(words.trim(), at)? })
}

/// Parses a policy; the times of a deadline are in microseconds.
pub(super) fn policy(text: &str, at: usize) -> Result<Policy, Fault> {
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
        _ => None,
    };
    found.ok_or_else(|| {
        Fault::new(at, format!("{text:?} is no scheduling policy")).with_hint(format!(
            "there are {FORMS}; NICE is -20 to 19, PRIORITY 1 to 99, a deadline's times are in \
             microseconds, none longer than the next"
        ))
    })
}

fn nice_of(value: Option<&str>) -> Option<i8> {
    let nice = value.unwrap_or("0").parse().ok()?;
    (-20..=19).contains(&nice).then_some(nice)
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
    // The kernel accepts 1,024 ns to 2^63 ns.
    match times?.as_slice() {
        &[runtime_ns, deadline_ns, period_ns]
            if 1024 <= runtime_ns
                && runtime_ns <= deadline_ns
                && deadline_ns <= period_ns
                && i64::try_from(period_ns).is_ok() =>
        {
            Some(Policy::Deadline { runtime_ns, deadline_ns, period_ns })
        }
        _ => None,
    }
}
