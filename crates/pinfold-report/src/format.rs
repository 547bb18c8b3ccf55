//! Number formats: three significant digits and a unit.
//!
//! Pure functions, one per kind of number. Values that are not finite are shown as `–`, so that
//! `NaN` or `inf` never appear on the page.

use pinfold_model::Unit;

/// Shown in place of a missing number.
pub const MISSING: &str = "–";

/// A time in nanoseconds: `870 ns`, `1.23 ms`, `12.0 s`.
pub fn duration(ns: f64) -> String {
    scale(ns, &[(1.0, "ns"), (1e3, "µs"), (1e6, "ms"), (1e9, "s")])
}

/// A rate per second: `950 /s`, `1.23 M/s`.
#[must_use]
pub fn rate(per_second: f64) -> String {
    scale(per_second, &[(1.0, "/s"), (1e3, "k/s"), (1e6, "M/s"), (1e9, "G/s")])
}

/// A value in the unit of its metric.
pub fn value(number: f64, unit: Unit) -> String {
    match unit {
        Unit::Nanoseconds => duration(number),
        Unit::PerSecond => rate(number),
        Unit::PerSecondPerMhz => format!("{} /s/MHz", significant(number)),
        Unit::BytesPerSecond => {
            scale(number, &[(1.0, "B/s"), (1e3, "kB/s"), (1e6, "MB/s"), (1e9, "GB/s")])
        }
        Unit::Bytes => scale(
            number,
            &[(1.0, "B"), (1024.0, "KiB"), (1_048_576.0, "MiB"), (1_073_741_824.0, "GiB")],
        ),
        Unit::Count => significant(number),
        Unit::Share => format!("{} %", significant(number * 100.0)),
    }
}

/// A value that may be missing, in the unit of its metric.
pub fn maybe(number: Option<f64>, unit: Unit) -> String {
    number.map_or_else(|| MISSING.to_owned(), |number| value(number, unit))
}

/// A factor: `12.4×`, `0.0807×`.
#[must_use]
pub fn ratio(factor: f64) -> String {
    if factor.is_finite() { format!("{}×", significant(factor)) } else { MISSING.to_owned() }
}

/// A share (0 to 1) in percent: `12.3 %`.
pub fn percent(share: f64) -> String {
    if share.is_finite() { format!("{} %", significant(share * 100.0)) } else { MISSING.to_owned() }
}

/// A probability: `0.031`, `< 0.001`, `1`.
pub fn probability(p: f64) -> String {
    if !p.is_finite() {
        MISSING.to_owned()
    } else if p < 0.001 {
        "< 0.001".to_owned()
    } else if p >= 0.9995 {
        "1".to_owned()
    } else {
        format!("{p:.3}")
    }
}

/// An integer in groups of three digits: `12 345`, with narrow no-break spaces.
pub fn count(number: u64) -> String {
    group_digits(&number.to_string(), '\u{202f}')
}

/// Digits in groups of three: `12,345`.
pub fn group_digits(digits: &str, separator: char) -> String {
    let mut text = String::new();
    for (index, digit) in digits.char_indices() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(separator);
        }
        text.push(digit);
    }
    text
}

/// A size in bytes: `512 KiB`, `32.0 MiB`, `252 GiB`.
pub fn bytes(size: u64) -> String {
    const KIB: f64 = 1024.0;
    let units = [(1.0, "B"), (KIB, "KiB"), (KIB * KIB, "MiB"), (KIB * KIB * KIB, "GiB")];
    let number = size as f64;
    let (scale, unit) =
        units.into_iter().rev().find(|(scale, _)| number >= *scale).unwrap_or(units[0]);
    format!("{} {unit}", trim_zeros(&significant(number / scale)))
}

/// A tick label: `10 µs`, `500 ns`, `2 ms`, without trailing zeros.
pub fn tick(number: f64, unit: Unit) -> String {
    let text = value(number, unit);
    match text.split_once(' ') {
        Some((digits, unit)) => format!("{} {unit}", trim_zeros(digits)),
        None => trim_zeros(&text).to_owned(),
    }
}

/// A number with three significant digits.
pub fn significant(number: f64) -> String {
    if !number.is_finite() {
        return MISSING.to_owned();
    }
    let rounded = round(number);
    match rounded.abs() {
        0.0 => "0".to_owned(),
        size if size >= 100.0 => format!("{rounded:.0}"),
        size if size >= 10.0 => format!("{rounded:.1}"),
        size if size >= 1.0 => format!("{rounded:.2}"),
        size if size >= 0.1 => format!("{rounded:.3}"),
        size if size >= 0.01 => format!("{rounded:.4}"),
        size if size >= 0.001 => format!("{rounded:.5}"),
        _ => format!("{rounded:.2e}"),
    }
}

/// Removes control characters, except line feeds and tabs, and characters that change the text
/// direction: a candidate's name must not break a page, move a terminal's cursor or display
/// misleading letters.
pub fn clean(text: &str) -> String {
    text.chars()
        .map(|letter: char| match letter {
            '\n' | '\t' => letter,
            // Direction marks, line and paragraph separators, and noncharacters.
            '\u{61c}'
            | '\u{200e}'
            | '\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2066}'..='\u{2069}'
            | '\u{fffe}'
            | '\u{ffff}' => '\u{fffd}',
            _ if letter.is_control() => '\u{fffd}',
            _ => letter,
        })
        .collect()
}

/// Rounds first, so that 999.9 µs becomes `1.00 ms` and not `1000 µs`.
fn scale(number: f64, units: &[(f64, &str)]) -> String {
    if !number.is_finite() {
        return MISSING.to_owned();
    }
    let rounded = round(number);
    let fitting = units.iter().rev().find(|(scale, _)| rounded.abs() >= *scale);
    match fitting.or(units.first()) {
        Some((scale, unit)) => format!("{} {unit}", significant(rounded / scale)),
        None => significant(rounded),
    }
}

/// Rounds to three significant digits.
fn round(number: f64) -> f64 {
    if number == 0.0 || !number.is_finite() {
        return 0.0;
    }
    let digits = 2.0 - number.abs().log10().floor();
    // Only positive powers are exact, so divide for large numbers.
    let rounded = if digits >= 0.0 {
        let scale = 10_f64.powf(digits);
        (number * scale).round() / scale
    } else {
        let scale = 10_f64.powf(-digits);
        (number / scale).round() * scale
    };
    if rounded.is_finite() { rounded } else { number }
}

fn trim_zeros(digits: &str) -> &str {
    if digits.contains('.') && !digits.contains('e') {
        digits.trim_end_matches('0').trim_end_matches('.')
    } else {
        digits
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations() {
        check(0.0, "0 ns");
        check(0.5, "0.500 ns");
        check(7.0, "7.00 ns");
        check(870.0, "870 ns");
        check(999.4, "999 ns");
        check(999.6, "1.00 µs");
        check(1_234.0, "1.23 µs");
        check(12_345.0, "12.3 µs");
        check(999_940.0, "1.00 ms");
        check(1_234_567.0, "1.23 ms");
        check(53_497_000.0, "53.5 ms");
        check(1_160_750_000.0, "1.16 s");
        check(4_000_000_000_000.0, "4000 s");
        check(-1_500.0, "-1.50 µs");
        check(f64::NAN, "–");
        check(f64::INFINITY, "–");
    }

    fn check(ns: f64, text: &str) {
        assert_eq!(duration(ns), text)
    }

    #[test]
    fn rates_ratios_shares_probabilities_and_counts() {
        fn check(text: String, expected: &str) {
            assert_eq!(text, expected)
        }

        check(rate(950.0), "950 /s");
        check(rate(1_234_567.0), "1.23 M/s");
        check(rate(f64::NEG_INFINITY), "–");
        check(ratio(12.4), "12.4×");
        check(ratio(0.0807), "0.0807×");
        check(ratio(1.0), "1.00×");
        check(ratio(123.456), "123×");
        check(ratio(f64::NAN), "–");
        check(percent(0.1234), "12.3 %");
        check(percent(f64::NAN), "–");
        check(probability(0.03125), "0.031");
        check(probability(0.0001), "< 0.001");
        check(probability(1.0), "1");
        check(probability(f64::NAN), "–");
        check(count(0), "0");
        check(count(999), "999");
        check(count(12_345), "12\u{202f}345");
        check(count(1_000_000), "1\u{202f}000\u{202f}000");
        check(maybe(None, Unit::Nanoseconds), "–");
        check(maybe(Some(3.0), Unit::Count), "3.00");
        check(value(2.5e11, Unit::BytesPerSecond), "250 GB/s");
        check(value(38.9, Unit::PerSecondPerMhz), "38.9 /s/MHz");
        check(value(65536.0, Unit::Bytes), "64.0 KiB");
        check(value(0.125, Unit::Share), "12.5 %");
    }

    #[test]
    fn sizes_and_ticks() {
        fn check(text: String, expected: &str) {
            assert_eq!(text, expected)
        }

        check(bytes(0), "0 B");
        check(bytes(512), "512 B");
        check(bytes(32 << 20), "32 MiB");
        check(bytes(1_572_864), "1.5 MiB");
        check(bytes(270_000_000_000), "251 GiB");
        check(tick(1e4, Unit::Nanoseconds), "10 µs");
        check(tick(5e2, Unit::Nanoseconds), "500 ns");
        check(tick(2e6, Unit::Nanoseconds), "2 ms");
        check(tick(1e6, Unit::PerSecond), "1 M/s");
        check(tick(20.0, Unit::Count), "20");
    }

    #[test]
    fn texts_lose_what_could_move_a_cursor() {
        fn check(text: &str, expected: &str) {
            assert_eq!(clean(text), expected)
        }

        check("plain → 1.2 µs\n\t", "plain → 1.2 µs\n\t");
        check("\u{1b}[2J\0", "\u{fffd}[2J\u{fffd}");
        check("a\u{202e}b", "a\u{fffd}b");
        check(
            "\u{61c}\u{200e}\u{200f}\u{2028}\u{2069}",
            "\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fffd}",
        );
    }

    proptest! {
        #[test]
        fn no_number_prints_nan_or_inf(bits in any::<u64>()) {
            let number = f64::from_bits(bits);
            for text in [duration(number), rate(number), ratio(number), percent(number),
                probability(number), significant(number), tick(number, Unit::Nanoseconds)] {
                prop_assert!(!text.contains("NaN") && !text.contains("inf"), "{}", text);
            }
        }
    }
}
