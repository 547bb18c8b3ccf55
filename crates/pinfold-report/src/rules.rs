//! Consistency rules for the numbers of a page, independent of the measured values. A violation is
//! a bug of the recorder, the store or the analysis, and the page reports it.

use crate::page::{BlockValues, Comparison, Curve, Page, Ranking, RankingRow, RoleRow, Verdict};

/// Relative tolerance for rounding of sums and medians.
pub(crate) const ROUNDING: f64 = 1e-9;

/// Every number of the page that is impossible or contradicts another: one sentence each.
pub fn contradictions(page: &Page) -> Vec<String> {
    let mut found = Vec::new();
    for table in &page.roles {
        for (row, why) in table.rows.iter().filter_map(|row| Some((row, of_role(row)?))) {
            let name = page.name(row.candidate);
            found.push(format!("{} of {name}, {}: {why}", row.stats.role, table.load));
        }
    }
    for distribution in &page.distributions {
        for (curve, why) in distribution.curves.iter().filter_map(|it| Some((it, of_curve(it)?))) {
            let (name, metric) = (page.name(curve.candidate), distribution.metric.name());
            found.push(format!("{metric} of {name}, {}: {why}", distribution.load));
        }
    }
    for ranking in &page.rankings {
        let blocks =
            page.blocks.iter().find(|it| it.metric == ranking.metric && it.load == ranking.load);
        for (row, why) in ranking.rows.iter().flat_map(|row| {
            let comparison = row.comparison.as_ref();
            let higher_is_better = ranking.metric.higher_is_better();
            let all = [
                of_blocks(ranking, row, blocks),
                comparison.and_then(|it| of_comparison(it, higher_is_better)),
            ];
            all.into_iter().flatten().map(move |why| (row, why))
        }) {
            let (name, metric) = (page.name(row.candidate), ranking.metric.name());
            found.push(format!("{metric} of {name}, {}: {why}", ranking.load));
        }
    }
    found
}

/// Threads cannot run and wait for longer than they were observed.
fn of_role(row: &RoleRow) -> Option<String> {
    let time = row.observed_ns?;
    let stats = &row.stats;
    let most = u128::from(time) * u128::from(stats.threads);
    let sum = u128::from(stats.run_ns) + u128::from(stats.run_delay_ns);
    (sum > most).then(|| {
        format!("{sum} ns of running and waiting in {} threads × {time} ns", stats.threads)
    })
}

/// Points ascend in both directions, up to the largest sample.
fn of_curve(curve: &Curve) -> Option<String> {
    let points = &curve.points;
    if points.iter().any(|point| !((0.0..=1.0).contains(&point.share)) || point.value < 0.0) {
        return Some("a share outside 0 to 1, or a value below 0".to_owned());
    }
    if !points.windows(2).all(|pair: &[crate::Quantile]| {
        pair[0].share <= pair[1].share && pair[0].value <= pair[1].value
    }) {
        return Some("a quantile below one of a smaller share".to_owned());
    }
    let last = points.last()?.value;
    let max = curve.max?;
    (last > max * (1.0 + ROUNDING))
        .then(|| format!("a quantile of {last} above the largest, {max}"))
}

/// Median and worst block must be those of the blocks in the chart.
fn of_blocks(ranking: &Ranking, row: &RankingRow, blocks: Option<&BlockValues>) -> Option<String> {
    let values = &blocks?.rows.iter().find(|it| it.candidate == row.candidate)?.values;
    if values.len() as u64 != u64::from(row.blocks) {
        return Some(format!("{} blocks in the ranking, {} marks", row.blocks, values.len()));
    }
    if let Some(value) = values.iter().find(|value| !(value.is_finite() && **value >= 0.0)) {
        return Some(format!("a block of {value}"));
    }
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(0.0, f64::max);
    let (median, worst) = (row.median?, row.worst?);
    let expected = if ranking.metric.higher_is_better() { least } else { most };
    if !(least <= median && median <= most) {
        return Some(format!("a median of {median} outside {least} to {most}"));
    }
    ((worst - expected).abs() > ROUNDING * expected)
        .then(|| format!("a worst block of {worst}, not {expected}"))
}

/// The ratio is in its interval, and the verdict agrees with the side of 1 that the interval is on.
pub(crate) fn of_comparison(comparison: &Comparison, higher_is_better: bool) -> Option<String> {
    let Comparison { ratio, low, high, p_holm, verdict } = comparison;
    if !(0.0 < *low && low <= ratio && ratio <= high && high.is_finite()) {
        return Some(format!("a ratio of {ratio} outside its interval {low} to {high}"));
    }
    if let Some(p) = p_holm.filter(|p| !(0.0..=1.0).contains(p)) {
        return Some(format!("a probability of {p}"));
    }
    let (below, above) = (*high < 1.0, *low > 1.0);
    let agrees = match (verdict, higher_is_better) {
        (Verdict::Better, false) | (Verdict::Worse, true) => below,
        (Verdict::Better, true) | (Verdict::Worse, false) => above,
        (Verdict::Same | Verdict::Unknown(_), _) => true,
    };
    (!agrees).then(|| format!("{verdict:?} with the interval {low} to {high}"))
}
