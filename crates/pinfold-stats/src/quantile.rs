//! Quantiles of samples by linear interpolation.
//!
//! Type 7 of Hyndman and Fan 1996, the default of R, NumPy and Julia: with the
//! samples sorted as `x[0] … x[n-1]`, the quantile `p` lies at `h = (n-1)·p`, between
//! `x[⌊h⌋]` and its right neighbour. The 0 and 1 quantiles are minimum and maximum.

/// The quantile `p` (0 to 1) of samples in any order; `None` if there are none.
///
/// # Panics
/// If `p` is outside 0 to 1.
pub fn quantile(samples: &[f64], p: f64) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    quantile_sorted(&sorted, p)
}

/// The quantile `p` of samples in ascending order; `None` if there are none.
///
/// # Panics
/// If `p` is outside 0 to 1.
#[must_use]
pub fn quantile_sorted(sorted: &[f64], p: f64) -> Option<f64> {
    assert!((0.0..=1.0).contains(&p), "a quantile lies between 0 and 1, not at {p}");
    let last = sorted.len().checked_sub(1)?;
    let place = last as f64 * p;
    let whole = place.floor();
    #[expect(clippy::cast_possible_truncation, reason = "between 0 and the last index")]
    let index = whole as usize;
    let left = sorted.get(index)?;
    let right = sorted.get(index + 1).unwrap_or(left);
    Some(left + (place - whole) * (right - left))
}

/// The median of samples in any order; `None` if there are none.
#[must_use]
pub fn median(samples: &[f64]) -> Option<f64> {
    quantile(samples, 0.5)
}
