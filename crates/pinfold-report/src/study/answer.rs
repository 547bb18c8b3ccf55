//! The answer of a study in a sentence and a few key figures, and the costs of the compared cells.

use pinfold_model::Unit;

use super::model::{Agreement, MeasuredFigure, Picture, Scale, StudyPage};
use crate::charts::forest;
use crate::format;
use crate::headline::{Figure, change, change_between};
use crate::page::{Comparison, Verdict};

/// Maximum number of losses in the table of costs.
const MOST_COSTS: usize = 10;

/// A loss against the baseline.
pub(super) struct Cost {
    pub(super) cell: String,
    pub(super) figure: String,
    pub(super) change: String,
    pub(super) interval: String,
    pub(super) p: String,
}

/// Number of claims of the source with which the results agree, from which they differ, which are
/// not settled, and which were not measured.
fn claims(page: &StudyPage) -> [usize; 4] {
    let mut counts = [0; 4];
    for claim in page.claims_of(false) {
        let place = match claim.agree {
            Agreement::Agrees => 0,
            Agreement::Differs => 1,
            Agreement::NotSettled(_) if claim.is_measured => 2,
            Agreement::NotSettled(_) => 3,
        };
        counts[place] += 1;
    }
    counts
}

fn comparisons(page: &StudyPage) -> impl Iterator<Item = (&MeasuredFigure, &Comparison)> {
    page.measured.iter().filter_map(|one| Some((one, one.comparison.as_ref()?)))
}

/// Number of comparisons that are better, the same, worse, unknown.
fn verdicts(page: &StudyPage) -> [usize; 4] {
    [
        count(page, |it| matches!(it, Verdict::Better)),
        count(page, |it| matches!(it, Verdict::Same)),
        count(page, |it| matches!(it, Verdict::Worse)),
        count(page, |it| matches!(it, Verdict::Unknown(_))),
    ]
}

fn count(page: &StudyPage, is: fn(&Verdict) -> bool) -> usize {
    comparisons(page).filter(|(_, comparison)| is(&comparison.verdict)).count()
}

/// The reason of the first comparison without a verdict, such as too few blocks.
fn why_unsettled(page: &StudyPage) -> Option<&str> {
    comparisons(page).find_map(|(_, comparison)| match &comparison.verdict {
        Verdict::Unknown(why) => Some(why.as_str()),
        Verdict::Better | Verdict::Same | Verdict::Worse => None,
    })
}

/// True if a chart shows ratios to the baseline.
fn has_ratios(page: &StudyPage) -> bool {
    page.pictures.iter().any(|picture| !picture.panels.is_empty() && !shows_values(picture))
}

fn shows_values(picture: &Picture) -> bool {
    matches!(picture.scale, Scale::Of(_))
}

/// The answer: the result for the claims of the source, else for the comparisons.
pub(super) fn sentence(page: &StudyPage) -> String {
    let [yes, no, open, absent] = claims(page);
    let comparisons = comparisons(page).count();
    match (yes + no + open + absent, comparisons) {
        (0, 0) if page.measured.is_empty() => "nothing was measured".to_owned(),
        (0, 0) if has_ratios(page) => {
            "measured once: comparisons with the baseline need several blocks".to_owned()
        }
        (0, 0) => "measured, without a baseline to compare with".to_owned(),
        (0, all) => match verdicts(page) {
            [0, same, 0, _] if same == all => {
                format!("none of {all} comparisons with the baseline shows a difference")
            }
            [0, same, 0, unknown] => format!(
                "of {all} comparisons with the baseline {same} show no difference, {unknown} are not \
                 settled{}",
                why_unsettled(page).map(|why| format!(" ({why})")).unwrap_or_default()
            ),
            [better, _, worse, _] => {
                format!("of {all} comparisons with the baseline {better} are better, {worse} worse")
            }
        },
        (1, _) => match (yes, no) {
            (1, _) => "the results agree with the source's statement",
            (_, 1) => "the results differ from the source's statement",
            (_, _) => "this run does not settle the source's statement",
        }
        .to_owned(),
        (all, _) if yes == all => {
            format!("the results agree with all {all} statements of the source")
        }
        (all, _) => {
            let differ = if no == 1 { "differs" } else { "differ" };
            let rest = [(no, differ), (open, "not settled"), (absent, "not measured here")];
            let rest = rest.into_iter().filter(|(count, _)| *count > 0);
            let rest: Vec<String> = rest.map(|(count, what)| format!("{count} {what}")).collect();
            let rest = rest.join(", ");
            format!("the results agree with {yes} of {all} statements of the source; {rest}")
        }
    }
}

/// The key figures: comparisons, worst cost, noise floor, trials, accelerator; each only if it is
/// known.
pub(super) fn figures(page: &StudyPage) -> Vec<Figure> {
    [
        of_comparisons(page),
        worst_cost(page),
        Some(noise(page)),
        Some(trials(page)),
        accelerator(page),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn of_comparisons(page: &StudyPage) -> Option<Figure> {
    let all = comparisons(page).count();
    let baseline = page.baseline.as_ref().filter(|_| all > 0)?;
    let [better, same, worse, unknown] = verdicts(page);
    Some(Figure {
        value: format!("{better} better, {worse} worse"),
        label: format!("{all} comparisons with the baseline ({baseline})"),
        note: format!("{same} the same, {unknown} unknown; exact sign-flip test, Holm"),
    })
}

/// Comparisons that are significantly worse, the largest loss first.
fn losses(page: &StudyPage) -> Vec<(&MeasuredFigure, &Comparison)> {
    let mut losses: Vec<_> =
        comparisons(page).filter(|(_, it)| it.verdict == Verdict::Worse).collect();
    losses.sort_by(|a, b| f64::total_cmp(&b.1.ratio.ln().abs(), &a.1.ratio.ln().abs()));
    losses
}

fn worst_cost(page: &StudyPage) -> Option<Figure> {
    let label = "worst cost".to_owned();
    comparisons(page).next()?;
    let Some((one, comparison)) = losses(page).into_iter().next() else {
        return Some(Figure { value: "none shown".to_owned(), label, note: costs_words(page) });
    };
    Some(Figure {
        value: change(one.unit, comparison),
        label: format!("{label}: {}", one.figure),
        note: format!(
            "▼ worse; {}; median of the blocks’ ratios to the baseline, 95 % interval {}",
            one.cell,
            change_between(one.unit, comparison)
        ),
    })
}

/// The largest losses.
pub(super) fn costs(page: &StudyPage) -> Vec<Cost> {
    losses(page)
        .into_iter()
        .take(MOST_COSTS)
        .map(|(one, comparison)| Cost {
            cell: one.cell.clone(),
            figure: one.figure.clone(),
            change: change(one.unit, comparison),
            interval: change_between(one.unit, comparison),
            p: comparison.p_holm.map_or_else(|| format::MISSING.to_owned(), format::probability),
        })
        .collect()
}

/// A sentence on the number of comparisons by verdict.
pub(super) fn costs_words(page: &StudyPage) -> String {
    let [better, same, worse, unknown] = verdicts(page);
    let all = better + same + worse + unknown;
    if all == 0 {
        return "Nothing was compared with a baseline, so there is no cost to show.".to_owned();
    }
    let more = match worse.saturating_sub(MOST_COSTS) {
        0 => String::new(),
        _ => format!(" The table shows the {MOST_COSTS} largest losses."),
    };
    let sides = if losses(page).iter().any(|(one, _)| one.unit.higher_is_better().is_none()) {
        " For counts and shares, less is better."
    } else {
        ""
    };
    format!(
        "Of {all} comparisons with the baseline (cell and figure): {better} better, {same} same, \
         {worse} worse, {unknown} unknown.{sides}{more}"
    )
}

/// The noise floor, or why it is not known.
pub(super) fn noise(page: &StudyPage) -> Figure {
    let label = "noise floor (A/A pairs)".to_owned();
    let ratios = page.pairs.iter().map(|pair| pair.comparison.ratio);
    let ends = ratios.clone().reduce(f64::min).zip(ratios.reduce(f64::max));
    let Some((low, high)) = ends else {
        return Figure { value: "none".to_owned(), label, note: page.no_pairs.clone() };
    };
    let wrong = page
        .pairs
        .iter()
        .filter(|pair: &&super::AaPair| {
            matches!(pair.comparison.verdict, Verdict::Better | Verdict::Worse)
        })
        .count();
    Figure {
        value: format!("{} to {}", format::ratio(low), format::ratio(high)),
        label,
        note: format!(
            "the baseline against itself: median ratios of {} pairs; {wrong} with a verdict that \
             cannot be true",
            page.pairs.len()
        ),
    }
}

fn trials(page: &StudyPage) -> Figure {
    let (measured, failed) = page.trials;
    let cells = match page.skipped_cells {
        1 => "1 cell".to_owned(),
        many => format!("{many} cells"),
    };
    Figure {
        value: format::count(measured),
        label: "trials measured".to_owned(),
        note: format!("{} failed; {cells} skipped", format::count(failed)),
    }
}

fn accelerator(page: &StudyPage) -> Option<Figure> {
    let note = if page.executed_by.iter().any(|name| name.contains("TCG")) {
        "TCG: results do not carry over to KVM or to a real machine"
    } else {
        "what executed the workloads"
    };
    (!page.executed_by.is_empty()).then(|| Figure {
        value: page.executed_by.join(", "),
        label: "accelerator".to_owned(),
        note: note.to_owned(),
    })
}

/// `0.998× (0.981× to 1.02×)`; the header of the column says what it is a ratio of.
pub(super) fn interval(comparison: &Comparison) -> String {
    forest::interval(comparison)
}

/// A value with its interval.
pub(super) fn with_interval(unit: Unit, value: f64, interval: Option<(f64, f64)>) -> String {
    let range = interval.map(|(low, high)| format!(" [{}, {}]", show(unit, low), show(unit, high)));
    format!("{}{}", show(unit, value), range.unwrap_or_default())
}

fn show(unit: Unit, number: f64) -> String {
    format::value(number, unit)
}
