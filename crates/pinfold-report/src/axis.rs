//! Logarithmic axes: rounded domains and ticks.

/// A logarithmic scale from values to pixels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LogAxis {
    low: f64,
    high: f64,
    start: f64,
    end: f64,
}

/// A tick of an axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Tick {
    pub(crate) value: f64,
    /// Powers of ten are labelled, and on a short axis every tick.
    pub(crate) labelled: bool,
}

impl LogAxis {
    /// An axis that shows all positive finite values, from pixel `start` to pixel `end`;
    /// `None` if there is no such value.
    pub(crate) fn over(values: impl Iterator<Item = f64>, pixels: (f64, f64)) -> Option<Self> {
        let mut ends: Option<(f64, f64)> = None;
        for value in values.filter(|value| value.is_finite() && *value > 0.0) {
            let (low, high) = ends.unwrap_or((value, value));
            ends = Some((low.min(value), high.max(value)));
        }
        let (low, high) = ends?;
        let (low, mut high) = (round_down(low), round_up(high));
        if high <= low {
            high = low * 2.0;
        }
        Some(Self { low, high, start: pixels.0, end: pixels.1 })
    }

    /// The pixel of a value; values outside of the domain, and those that are not positive, are at
    /// the ends.
    pub(crate) fn pixel(&self, value: f64) -> f64 {
        let value = if value.is_finite() { value.clamp(self.low, self.high) } else { self.low };
        let place = (value / self.low).log10() / (self.high / self.low).log10();
        self.start + place * (self.end - self.start)
    }

    /// True if the value is in the domain.
    pub(crate) fn holds(&self, value: f64) -> bool {
        value >= self.low && value <= self.high
    }

    /// Ticks at 1, 2 and 5 times the powers of ten; on axes of more than two
    /// decades only the powers of ten are labelled.
    pub(crate) fn ticks(&self) -> Vec<Tick> {
        let decades = (self.high / self.low).log10();
        let mut power = 10_f64.powf(self.low.log10().floor());
        let mut ticks = Vec::new();
        while power <= self.high * 1.001 && ticks.len() < 100 {
            for (digit, labelled) in [(1.0, true), (2.0, decades < 2.1), (5.0, decades < 2.1)] {
                let value = digit * power;
                if value >= self.low * 0.999 && value <= self.high * 1.001 {
                    ticks.push(Tick { value, labelled: labelled && decades < 9.0 });
                }
            }
            power *= 10.0;
        }
        ticks
    }
}

/// The largest of 1, 2, 5 times a power of ten that is at most the value.
fn round_down(value: f64) -> f64 {
    let power = 10_f64.powf(value.log10().floor());
    [5.0, 2.0, 1.0]
        .into_iter()
        .map(|digit| digit * power)
        .find(|round| *round <= value * 1.000_001)
        .unwrap_or(power)
}

/// The smallest of 1, 2, 5 times a power of ten that is at least the value.
fn round_up(value: f64) -> f64 {
    let power = 10_f64.powf(value.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|digit| digit * power)
        .find(|round| *round >= value * 0.999_999)
        .unwrap_or(power * 10.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domains_end_on_round_values() {
        check(&[1234.0, 87_000.0], 1000.0, 100_000.0);
        check(&[1000.0], 1000.0, 2000.0);
        check(&[3.0, 4.0], 2.0, 5.0);
        check(&[0.0, -1.0, f64::NAN, f64::INFINITY, 7.0], 5.0, 10.0);
        check(&[0.4, 0.9], 0.2, 1.0);
        assert_eq!(LogAxis::over([0.0, f64::NAN].into_iter(), (0.0, 1.0)), None);
    }

    fn check(values: &[f64], low: f64, high: f64) {
        let axis = LogAxis::over(values.iter().copied(), (0.0, 100.0)).unwrap();
        assert!(close(axis.low, low) && close(axis.high, high), "{axis:?}");
    }

    fn close(a: f64, b: f64) -> bool {
        (a / b - 1.0).abs() < 1e-9
    }

    #[test]
    fn pixels_and_ticks() {
        let axis = LogAxis::over([10.0, 1e5].into_iter(), (0.0, 400.0)).unwrap();
        assert_eq!(axis.pixel(1000.0).round(), 200.0);
        assert_eq!(axis.pixel(f64::NAN), 0.0);
        assert_eq!(axis.pixel(1e9), 400.0);
        let labelled = axis.ticks().iter().filter(|tick| tick.labelled).count();
        assert_eq!((axis.ticks().len(), labelled), (13, 5));
    }
}
