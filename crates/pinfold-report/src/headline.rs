//! The answer in one sentence, and the key figures.
//!
//! The sentence never claims more than the verdict: for a placement that ranks first without a
//! significant difference, it says only that it ranks first.

use pinfold_model::text::count_noun;
use pinfold_model::{Accelerator, LoadState, Metric, Unit};

use crate::charts::forest;
use crate::format;
use crate::page::{
    Candidate, CandidateId, CandidateKind, Comparison, Conclusion, Page, PinsAlone, RankingRow,
    ReachedStage, Verdict,
};

/// The answer: `subject` and `claim` are set in large print, `evidence` in small. Together they are
/// one sentence without a full stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Headline {
    /// Name of the placement in the sentence, if any.
    pub(crate) subject: Option<String>,
    pub(crate) claim: String,
    pub(crate) evidence: String,
}

/// One key figure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Figure {
    pub(crate) value: String,
    pub(crate) label: String,
    pub(crate) note: String,
}

impl Headline {
    pub(crate) fn sentence(&self) -> String {
        let subject = self.subject.as_ref().map(|name| format!("{name} ")).unwrap_or_default();
        format!("{subject}{} – {}", self.claim, self.evidence)
    }
}

/// The metric as the subject of a sentence.
pub(crate) fn noun(metric: Metric) -> &'static str {
    match metric {
        Metric::SpinGap => "worst spin-gap",
        Metric::Wakeup => "wake-up lateness",
        Metric::ComputeRate => "compute rate",
        Metric::IoAhci => "read latency on AHCI",
        Metric::IoVirtio => "read latency on virtio",
        Metric::RunDelay => "longest wait for a CPU",
    }
}

/// `12.4× shorter`, `5.10 % higher`, `the same`.
pub(crate) fn change(unit: Unit, comparison: &Comparison) -> String {
    let (amount, direction) = change_parts(unit, comparison.ratio, unit_of(comparison));
    format!("{amount} {direction}").trim().to_owned()
}

/// `9.09× to 15.2× shorter`, `1.20 % longer to 3.10 % shorter`.
pub(crate) fn change_between(unit: Unit, comparison: &Comparison) -> String {
    let (first, last) = if comparison.ratio < 1.0 {
        (comparison.high, comparison.low)
    } else {
        (comparison.low, comparison.high)
    };
    let shown = unit_of(comparison);
    let (first, last) = (change_parts(unit, first, shown), change_parts(unit, last, shown));
    if first == last {
        return format!("{} {}", last.0, last.1).trim().to_owned();
    }
    let first_words = if first.1 == last.1 { first.0 } else { format!("{} {}", first.0, first.1) };
    format!("{} to {} {}", first_words.trim(), last.0, last.1).trim().to_owned()
}

/// How the changes of one comparison are written: all in the same unit, so that they can be
/// compared.
#[derive(Clone, Copy)]
enum ChangeUnit {
    Factor,
    Percent,
}

/// Factors, if the change or an end of its interval is at least twofold.
fn unit_of(comparison: &Comparison) -> ChangeUnit {
    let ratios = [comparison.low, comparison.ratio, comparison.high];
    if ratios.iter().any(|ratio| ratio.max(1.0 / ratio) >= 2.0) {
        ChangeUnit::Factor
    } else {
        ChangeUnit::Percent
    }
}

fn change_parts(unit: Unit, ratio: f64, shown: ChangeUnit) -> (String, &'static str) {
    if !ratio.is_finite() || ratio <= 0.0 {
        return (format::MISSING.to_owned(), "");
    }
    let direction = match (unit == Unit::Nanoseconds, ratio > 1.0) {
        (false, true) => "higher",
        (false, false) => "lower",
        (true, true) => "longer",
        (true, false) => "shorter",
    };
    let factor = ratio.max(1.0 / ratio);
    match shown {
        _ if factor < 1.0005 => ("the same".to_owned(), ""),
        ChangeUnit::Factor => (format::ratio(factor), direction),
        ChangeUnit::Percent => (format::percent((ratio - 1.0).abs()), direction),
    }
}

/// Composes the answer.
pub(crate) fn headline(page: &Page) -> Headline {
    // The name alone could be read as a word: `none`.
    let baseline = page.baseline().map_or_else(
        || "the baseline".to_owned(),
        |id| format!("the baseline ({})", page.name(id)),
    );
    let winner = page.answer.winner.filter(|id| Some(*id) != page.baseline());
    let row = winner.and_then(|id| page.deciding()?.row(id));
    match (winner, row.and_then(|row| Some((row, row.comparison.as_ref()?)))) {
        (Some(winner), Some((row, comparison))) => {
            describe_comparison(page, &page.name(winner), &baseline, row, comparison)
        }
        (Some(winner), None) => Headline {
            subject: Some(page.name(winner)),
            claim: format!("ranks first on this machine, but was not compared with {baseline}"),
            evidence: format!("{}; {}", page.answer.load, measurement_note(page)),
        },
        (None, _) => without_winner(page, &baseline),
    }
}

fn describe_comparison(
    page: &Page,
    winner: &str,
    baseline: &str,
    row: &RankingRow,
    comparison: &Comparison,
) -> Headline {
    let metric = page.answer.metric;
    let change = change(metric.unit(), comparison);
    let measured = measurement_note(page);
    let sure = format!(
        "{}median of the blocks’ ratios, 95 % interval {}, p = {} after Holm’s correction, {} VM \
         starts each; {}; {measured}",
        load_kept_away(page).map(|text| text + "; ").unwrap_or_default(),
        change_between(metric.unit(), comparison),
        comparison.p_holm.map_or_else(|| format::MISSING.to_owned(), format::probability),
        row.blocks,
        page.answer.load,
    );
    let (claim, evidence) = match &comparison.verdict {
        Verdict::Better => (
            format!(
                "is the best placement tried on this machine: its {} is {change} than under {baseline}",
                noun(metric)
            ),
            sure,
        ),
        Verdict::Same => (format!("ranks first, but does the same as {baseline}"), sure),
        Verdict::Worse => (format!("was chosen, but is worse than {baseline}"), sure),
        Verdict::Unknown(why) => (
            format!("ranks first, but this run does not show whether it beats {baseline}"),
            format!("{why}; {}; {measured}", page.answer.load),
        ),
    };
    Headline { subject: Some(winner.to_owned()), claim, evidence }
}

/// `the gain comes from excluding other load from CPU 1; pins alone: 1.15× shorter (compact)`; `None`
/// if the winner excludes no tasks.
fn load_kept_away(page: &Page) -> Option<String> {
    let plan = &page.candidate(page.answer.winner?)?.plan;
    if plan.exclusive.is_empty() {
        return None;
    }
    let pins = match page.answer.pins_alone {
        None => "pins alone were not measured".to_owned(),
        Some(pins) => {
            format!("pins alone: {} ({})", pins_change(page, &pins), page.name(pins.candidate))
        }
    };
    Some(format!("the gain comes from excluding other load from CPU {}; {pins}", plan.exclusive))
}

fn pins_change(page: &Page, pins: &PinsAlone) -> String {
    let (amount, direction) =
        change_parts(page.answer.metric.unit(), pins.ratio, ChangeUnit::Factor);
    format!("{amount} {direction}").trim().to_owned()
}

/// The gain of pins alone, if the winner also excludes tasks.
fn pinning_gain(page: &Page) -> Option<Figure> {
    load_kept_away(page)?;
    let pins = page.answer.pins_alone?;
    let unit = page.answer.metric.unit();
    let evidence = match pins.interval {
        None => format!("screening only, {}, no verdict", count_noun(pins.blocks, "block")),
        Some((low, high)) => {
            let [(low, from), (high, to)] =
                [low, high].map(|ratio| change_parts(unit, ratio, ChangeUnit::Factor));
            format!(
                "95 % interval {low} {from} to {high} {to}, {}",
                count_noun(pins.blocks, "block")
            )
        }
    };
    Some(Figure {
        value: pins_change(page, &pins),
        label: "pins alone, without isolation".to_owned(),
        note: format!("{}; {evidence}", page.name(pins.candidate)),
    })
}

/// Without a winner: nothing was measured, nothing is better, the better ones violate a constraint,
/// or the data do not decide. Candidates that were only screened are not undecided: dropping them
/// was a choice.
fn without_winner(page: &Page, baseline: &str) -> Headline {
    let layouts = compared_layouts(page);
    let unknown = layouts.iter().find_map(|(_, comparison)| match &comparison.verdict {
        Verdict::Unknown(why) => Some(why.as_str()),
        Verdict::Better | Verdict::Same | Verdict::Worse => None,
    });
    let better = layouts.iter().find(|(_, comparison)| comparison.verdict == Verdict::Better);
    let (load, noun) = (page.answer.load, noun(page.answer.metric));
    let (claim, because) = match (better, unknown) {
        _ if layouts.is_empty() => {
            ("No placement was compared".to_owned(), format!("nothing to compare with {baseline}"))
        }
        (Some((candidate, comparison)), _) => (
            "No placement tried meets the goal".to_owned(),
            format!(
                "{} makes the {noun} {} than {baseline} does, but {}; {load}",
                candidate.name,
                change(page.answer.metric.unit(), comparison),
                match candidate.keeps_limit {
                    Some(false) => "breaks the limit",
                    Some(true) | None => "was not chosen",
                }
            ),
        ),
        (None, Some(why)) => (
            format!("This run does not show whether any placement beats {baseline}"),
            format!("{why}; {load}"),
        ),
        (None, None) => (
            format!("No placement tried is better than {baseline} on this machine"),
            format!("{noun}, {load}"),
        ),
    };
    let evidence = format!("{because}; {}", measurement_note(page));
    Headline { subject: None, claim, evidence }
}

/// The layouts of the deciding ranking with their comparisons; those that were only screened count
/// if there are no others.
fn compared_layouts(page: &Page) -> Vec<(&Candidate, &Comparison)> {
    let rows = page.deciding().into_iter().flat_map(|ranking| &ranking.rows);
    let all: Vec<(&Candidate, &Comparison)> = rows
        .filter_map(|row| Some((page.candidate(row.candidate)?, row.comparison.as_ref()?)))
        .filter(|(candidate, _)| candidate.kind == CandidateKind::Layout)
        .collect();
    let confirmed: Vec<_> =
        all.iter().copied().filter(|(it, _)| it.stage == ReachedStage::Confirmed).collect();
    if confirmed.is_empty() { all } else { confirmed }
}

fn measurement_note(page: &Page) -> String {
    format!("measured under {}", page.provenance.origin.accelerator)
}

/// The key figures: effect, value, cost, certainty, noise, accelerator; each only if it is known.
pub(crate) fn figures(page: &Page) -> Vec<Figure> {
    let Conclusion { winner, metric, load, .. } = page.answer;
    let unit = metric.unit();
    let mut figures = Vec::new();
    let row = |id: Option<CandidateId>| page.deciding()?.row(id?);
    if let Some((row_of_winner, comparison)) =
        row(winner).and_then(|row| Some((row, row.comparison.as_ref()?)))
    {
        figures.push(Figure {
            value: change(metric.unit(), comparison),
            label: noun(metric).to_owned(),
            note: format!(
                "median of the blocks’ ratios to the baseline; 95 % interval {}",
                change_between(metric.unit(), comparison)
            ),
        });
        let base = row(page.baseline());
        figures.push(Figure {
            value: format::maybe(row_of_winner.median, unit),
            label: format!("{}: median of the blocks", noun(metric)),
            note: format!(
                "baseline: {}; worst block {}, baseline: {}",
                format::maybe(base.and_then(|row| row.median), unit),
                format::maybe(row_of_winner.worst, unit),
                format::maybe(base.and_then(|row| row.worst), unit),
            ),
        });
        figures.push(Figure {
            value: format!("p {}", equals(comparison.p_holm)),
            label: format!("verdict: {}", forest::verdict_word(&comparison.verdict)),
            note: format!("exact sign-flip test, Holm; {} VM starts each", row_of_winner.blocks),
        });
    }
    figures.extend(pinning_gain(page));
    figures.extend(worst_cost(page));
    figures.extend(other_side(page, winner, load, metric));
    figures.extend(noise(page));
    figures.push(accelerator(page.provenance.origin.accelerator));
    figures
}

fn equals(p: Option<f64>) -> String {
    match p.map(format::probability) {
        None => format!("= {}", format::MISSING),
        Some(text) if text.starts_with('<') => text,
        Some(text) => format!("= {text}"),
    }
}

/// The largest significant loss of the winner against the baseline, or that there is none.
fn worst_cost(page: &Page) -> Option<Figure> {
    page.answer.winner?;
    let label = "worst cost".to_owned();
    let Some((metric, load, comparison)) = losses(page).into_iter().next() else {
        let note = losses_words(page);
        return Some(Figure { value: "none shown".to_owned(), label, note });
    };
    Some(Figure {
        value: change(metric.unit(), comparison),
        label: format!("{label}: {}", noun(metric)),
        note: format!(
            "▼ worse; {load}; 95 % interval {}",
            change_between(metric.unit(), comparison)
        ),
    })
}

/// Every comparison of the winner with the baseline.
fn of_winner(page: &Page) -> impl Iterator<Item = (Metric, LoadState, &Comparison)> {
    page.rankings.iter().filter_map(|ranking| {
        let comparison = ranking.row(page.answer.winner?)?.comparison.as_ref()?;
        Some((ranking.metric, ranking.load, comparison))
    })
}

/// The metrics and load states in which the winner is significantly worse than the baseline, the
/// largest loss first.
pub(crate) fn losses(page: &Page) -> Vec<(Metric, LoadState, &Comparison)> {
    let mut losses: Vec<_> =
        of_winner(page).filter(|(_, _, it)| it.verdict == Verdict::Worse).collect();
    losses.sort_by(|a, b| f64::total_cmp(&b.2.ratio.ln().abs(), &a.2.ratio.ln().abs()));
    losses
}

/// A sentence on the comparisons of the winner that are not losses.
pub(crate) fn losses_words(page: &Page) -> String {
    let all = of_winner(page).count();
    if all == 0 {
        return "No placement was chosen, so there is no cost to show.".to_owned();
    }
    format!(
        "Of {all} comparisons with the baseline (metric and load state): {} better, {} same, {} \
         worse, {} unknown.",
        count(page, |it| *it == Verdict::Better),
        count(page, |it| *it == Verdict::Same),
        count(page, |it| *it == Verdict::Worse),
        count(page, |it| matches!(it, Verdict::Unknown(_))),
    )
}

fn count(page: &Page, wanted: fn(&Verdict) -> bool) -> usize {
    of_winner(page).filter(|(_, _, it)| wanted(&it.verdict)).count()
}

/// The compute rate in the deciding load state, or stalls if the rate decided.
fn other_side(
    page: &Page,
    winner: Option<CandidateId>,
    load: LoadState,
    decided_by: Metric,
) -> Option<Figure> {
    let metric = match decided_by {
        Metric::ComputeRate => Metric::SpinGap,
        Metric::SpinGap | Metric::Wakeup | Metric::IoAhci | Metric::IoVirtio | Metric::RunDelay => {
            Metric::ComputeRate
        }
    };
    let comparison = page.ranking(metric, load)?.row(winner?)?.comparison.as_ref()?;
    let shown_already = losses(page).first().is_some_and(|it| (it.0, it.1) == (metric, load));
    (!shown_already).then(|| Figure {
        value: change(metric.unit(), comparison),
        label: noun(metric).to_owned(),
        note: format!(
            "{} {}; {load}; 95 % interval {}",
            forest::verdict_sign(&comparison.verdict),
            forest::verdict_word(&comparison.verdict),
            change_between(metric.unit(), comparison)
        ),
    })
}

/// The A/A pair of the deciding ranking.
pub(crate) fn aa_comparison(page: &Page) -> Option<&Comparison> {
    page.deciding()?
        .rows
        .iter()
        .find(|row| {
            page.candidate(row.candidate).is_some_and(|it| it.kind == CandidateKind::Repeat)
        })?
        .comparison
        .as_ref()
}

fn noise(page: &Page) -> Option<Figure> {
    let comparison = aa_comparison(page)?;
    Some(Figure {
        value: format::ratio(comparison.ratio),
        label: "noise floor (A/A pair)".to_owned(),
        note: format!(
            "the baseline against itself, median of the blocks’ ratios; 95 % interval {} to {}",
            format::ratio(comparison.low),
            format::ratio(comparison.high)
        ),
    })
}

fn accelerator(accelerator: Accelerator) -> Figure {
    let (value, note) = match accelerator {
        Accelerator::Kvm => ("KVM", "hardware virtualisation"),
        Accelerator::TcgMulti => ("TCG", "thread=multi: results do not carry over to KVM"),
        Accelerator::TcgSingle => ("TCG", "thread=single: results do not carry over to KVM"),
        Accelerator::Native => ("native", "no guest"),
    };
    Figure { value: value.to_owned(), label: "accelerator".to_owned(), note: note.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn between(ratio: f64, low: f64, high: f64) -> Comparison {
        Comparison { ratio, low, high, p_holm: None, verdict: Verdict::Same }
    }

    #[test]
    fn changes_in_words() {
        fn check(metric: Metric, ratio: f64, text: &str) {
            assert_eq!(change(Metric::unit(metric), &between(ratio, ratio, ratio)), text);
        }

        check(Metric::SpinGap, 0.08, "12.5× shorter");
        check(Metric::SpinGap, 0.8, "20.0 % shorter");
        check(Metric::SpinGap, 1.23, "23.0 % longer");
        check(Metric::Wakeup, 3.0, "3.00× longer");
        check(Metric::ComputeRate, 1.051, "5.10 % higher");
        check(Metric::ComputeRate, 0.4, "2.50× lower");
        check(Metric::ComputeRate, 1.0, "the same");
        check(Metric::IoAhci, f64::NAN, "–");
        check(Metric::IoAhci, 0.0, "–");
    }

    #[test]
    fn a_change_and_its_interval_are_reported_in_one_unit() {
        check(0.08, 0.05, 0.1, "12.5× shorter", "10.0× to 20.0× shorter");
        check(0.9, 0.8, 1.1, "10.0 % shorter", "10.0 % longer to 20.0 % shorter");
        check(1.2, 1.1, 3.0, "1.20× longer", "1.10× to 3.00× longer");
        check(0.6, 0.25, 1.1, "1.67× shorter", "1.10× longer to 4.00× shorter");
        check(0.4, 0.2, 1.0, "2.50× shorter", "the same to 5.00× shorter");
        check(1.0, 1.0, 1.0, "the same", "the same");
        check(f64::NAN, f64::NAN, f64::NAN, "–", "–");
    }

    fn check(ratio: f64, low: f64, high: f64, change_text: &str, interval: &str) {
        let comparison = between(ratio, low, high);
        assert_eq!(change(Unit::Nanoseconds, &comparison), change_text);
        assert_eq!(change_between(Unit::Nanoseconds, &comparison), interval);
    }
}
