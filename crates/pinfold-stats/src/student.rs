//! Student's t distribution.

/// Probability of a value of at least `t` under Student's distribution with this number of degrees
/// of freedom (Abramowitz and Stegun 1964, 26.7.3 and 26.7.4: finite sums, accurate to about 12
/// decimals). 1 with zero degrees of freedom.
pub fn student_tail(t: f64, freedom: u32) -> f64 {
    if freedom == 0 || t.is_nan() {
        return 1.0;
    }
    let angle = (t.abs() / f64::from(freedom).sqrt()).atan();
    let (sine, cosine) = angle.sin_cos();
    let is_odd = freedom % 2 == 1;
    // Terms cos^k · (2·4…)/(1·3…) for odd, (1·3…)/(2·4…) for even degrees, up to k = freedom − 2.
    let (mut term, mut power) = if is_odd { (cosine, 1) } else { (1.0, 0) };
    let mut sum = 0.0;
    while power + 2 <= freedom {
        sum += term;
        power += 2;
        term *= cosine * cosine * f64::from(power - 1) / f64::from(power);
    }
    let within =
        if is_odd { (angle + sine * sum) * std::f64::consts::FRAC_2_PI } else { sine * sum };
    let tail = ((1.0 - within) / 2.0).max(0.0);
    if t >= 0.0 { tail } else { 1.0 - tail }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_tables() {
        // t, degrees of freedom, probability: from standard tables of critical values.
        let table = [
            (12.706_2, 1, 0.025),
            (6.964_6, 2, 0.01),
            (3.182_4, 3, 0.025),
            (4.604_1, 4, 0.005),
            (5.893_4, 5, 0.001),
            (2.570_6, 5, 0.025),
            (2.763_8, 10, 0.01),
            (3.929_6, 12, 0.001),
            (2.042_3, 30, 0.025),
            (3.385_2, 30, 0.001),
            (1.984_2, 99, 0.025),
        ];
        for (t, freedom, chance) in table {
            let found = student_tail(t, freedom);
            assert!((found / chance - 1.0).abs() < 2e-4, "t {t}, {freedom}: {found} for {chance}");
            assert!((student_tail(-t, freedom) - (1.0 - chance)).abs() < 1e-5);
        }
        assert!((student_tail(0.0, 7) - 0.5).abs() < 1e-12);
        assert!((student_tail(f64::INFINITY, 7)).abs() < 1e-12);
        assert!((student_tail(3.0, 0) - 1.0).abs() < f64::EPSILON);
    }
}
