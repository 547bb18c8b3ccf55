//! Text forms of speeds and periods: `40%`, `0.4`, `2.1 GHz`; `200us`, `1 ms`.

use std::time::Duration;

use pinfold_model::{Method, Speed, SpeedRequest};

use crate::fault::Fault;
use crate::value::{Value, ValueKind, decimal};

const FORMS: &str = "write a share such as \"40%\" or 0.4, or a frequency such as \"2.1 GHz\" or \
    \"800 MHz\"";
/// Names of frequency units with their power of ten in hertz.
const FREQUENCIES: [(&str, usize); 4] = [("GHz", 9), ("MHz", 6), ("kHz", 3), ("Hz", 0)];
/// Names of time units with their power of ten in nanoseconds.
const TIMES: [(&str, usize); 4] = [("ns", 0), ("us", 3), ("ms", 6), ("s", 9)];

/// A speed above 0 and at most full speed.
pub(super) fn speed_request(value: &Value) -> Result<SpeedRequest, Fault> {
    let text = match &value.what {
        ValueKind::Text(text) | ValueKind::Fraction(text) => text.trim().to_owned(),
        ValueKind::Number(number) => number.to_string(),
        ValueKind::Truth(_) | ValueKind::List(_) | ValueKind::Table(_) | ValueKind::Date => {
            return Err(wrong(value, FORMS));
        }
    };
    if let Some((digits, shift)) = with_unit(&text, &FREQUENCIES) {
        return match decimal(digits, shift) {
            Some(0) => Err(wrong(value, zero())),
            Some(hertz) => Ok(SpeedRequest::Frequency { hertz }),
            None => Err(wrong(value, FORMS)),
        };
    }
    let (digits, shift) = match text.strip_suffix('%') {
        Some(digits) => (digits.trim_end(), 4),
        None => (text.as_str(), 6),
    };
    match decimal(digits, shift) {
        Some(0) => Err(wrong(value, zero())),
        Some(number) => u32::try_from(number)
            .ok()
            .and_then(Speed::from_millionths)
            .map(SpeedRequest::Share)
            .ok_or_else(|| wrong(value, &beyond(&text))),
        None if decimal(digits, 18).is_some() => Err(wrong(
            value,
            "write at most four digits after the point of a percentage, six of a fraction",
        )),
        None => Err(wrong(value, FORMS)),
    }
}

fn wrong(value: &Value, hint: &str) -> Fault {
    value.kind_fault("speed", "a speed above 0 and at most full speed").with_hint(hint)
}

fn zero() -> &'static str {
    "a CPU of speed 0 does nothing: use more than 0, or remove the vnode"
}

fn beyond(text: &str) -> String {
    let slower = "only slower CPUs can be emulated: use at most \"100%\" or 1";
    match text.parse::<u32>() {
        Ok(percent @ 2..=100) => format!("write \"{percent}%\" if you mean percent; {slower}"),
        Ok(_) | Err(_) => slower.to_owned(),
    }
}

/// A period in nanoseconds within the limits of its method. If the best method of the host is
/// taken, its limits are checked when that is known.
pub(super) fn period(value: &Value, method: Option<Method>) -> Result<u64, Fault> {
    let ValueKind::Text(text) = &value.what else { return Err(no_time(value)) };
    let (digits, shift) = with_unit(text.trim(), &TIMES).ok_or_else(|| no_time(value))?;
    let ns = decimal(digits, shift).ok_or_else(|| no_time(value))?;
    let Some(method) = method else { return Ok(ns) };
    let bounds = method.periods_ns();
    if bounds.contains(&ns) {
        return Ok(ns);
    }
    let [least, most] = [*bounds.start(), *bounds.end()].map(Duration::from_nanos);
    Err(value
        .kind_fault("period", &format!("within the bounds of {method}, {least:?} to {most:?}"))
        .with_hint("use one within them, or omit it to use the default of the method"))
}

fn no_time(value: &Value) -> Fault {
    value
        .kind_fault("period", "a time with its unit")
        .with_hint("for example: \"200us\" or \"1 ms\" (ns, us, ms, s)")
}

/// The number before a unit, and the unit's power of ten.
fn with_unit<'t>(text: &'t str, units: &[(&str, usize)]) -> Option<(&'t str, usize)> {
    units.iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?.trim_end(), *shift)))
}
