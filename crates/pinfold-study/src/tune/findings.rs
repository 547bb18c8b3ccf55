//! Findings that limit the conclusions of a report.

use pinfold_model::text::{count_noun, select_verb};
use pinfold_model::{Accelerator, Command, Finding};
use pinfold_stats::{EXACT_BLOCKS, Verdict};

use super::config::Goal;
use super::report::{AaRow, TuneReport};
use super::summary::{Summaries, is_equal_time, time_ratio};
use crate::store::SessionRecord;

pub(super) fn findings(
    report: &TuneReport,
    confirmation: &Summaries,
    sessions: &[SessionRecord],
) -> Vec<Finding> {
    let mut findings = Vec::new();
    about_run(report, sessions, &mut findings);
    about_candidates(report, &mut findings);
    about_noise(report, &mut findings);
    about_winner(report, &mut findings);
    about_constraint(report, &mut findings);
    about_samples(report, confirmation, &mut findings);
    findings
}

fn about_run(report: &TuneReport, sessions: &[SessionRecord], findings: &mut Vec<Finding>) {
    if !report.finished {
        let text = format!(
            "{} of {} starts are done: the report covers only these",
            report.design.done, report.design.planned
        );
        let hint = format!("continue with `{}`", Command::new("tune --resume"));
        findings.push(Finding::warning("run", text).with_hint(hint));
    }
    for pair in sessions.windows(2) {
        let changes = crate::store::host_changes(&pair[0].origin, &pair[1].origin);
        if !changes.is_empty() {
            let text = format!("the host changed during the run: {}", changes.join(", "));
            findings.push(Finding::warning("host", text).with_hint("repeat the run on one host"));
        }
    }
    match report.origin.accelerator {
        Accelerator::TcgMulti | Accelerator::TcgSingle => findings.push(Finding::note(
            "accelerator",
            format!(
                "the guest ran under {}: the results do not carry over to KVM",
                report.origin.accelerator
            ),
        )),
        Accelerator::Kvm | Accelerator::Native => {}
    }
    if report.design.spent_s > report.config.budget_s * 1.05 {
        let text = format!(
            "the starts took {:.0} s, the budget was {:.0} s: they were slower than predicted",
            report.design.spent_s, report.config.budget_s
        );
        findings.push(Finding::note("budget", text));
    }
    let blocks = report.design.confirmation.len();
    if blocks > EXACT_BLOCKS {
        let text = format!(
            "with {blocks} blocks the p-values come from random draws, not from full enumeration: \
             accurate to about 0.001"
        );
        findings.push(Finding::note("statistics", text));
    }
}

fn about_candidates(report: &TuneReport, findings: &mut Vec<Finding>) {
    if report.design.screening.is_empty() {
        findings.push(Finding::note(
            "screening",
            "all candidates could be confirmed, so none was screened out",
        ));
    }
    about_race(report, findings);
    for (name, other) in &report.same_as {
        let text = format!("{name} is the same placement as {other} here and was not started");
        findings.push(Finding::note(name.as_str(), text));
    }
    for failure in &report.failures {
        let place = format!("{} block {}", failure.phase, failure.block + 1);
        let name = failure.name.as_str();
        findings.push(if failure.recovered {
            let text = format!("a start failed once in {place}: {}", failure.message);
            Finding::note(name, text)
        } else {
            let text = format!("a start failed twice in {place}: {}", failure.message);
            Finding::warning(name, text)
                .with_hint("its comparisons are unknown; repeat the run when the cause is fixed")
        });
    }
    for row in report.screening.iter().filter(|row| row.blocks == 0) {
        let text = "no start succeeded in the screening, so it was not confirmed";
        findings.push(Finding::problem(row.name.as_str(), text));
    }
}

fn about_race(report: &TuneReport, findings: &mut Vec<Finding>) {
    for one in &report.dropped {
        let text = format!(
            "was dropped after block {} of the {}: its {} was {:.2} times that of {} over {} \
             blocks, so it can no longer win ({}, p {:.2e}, {:.2e} needed)",
            one.block + 1,
            one.phase,
            report.config.metric().name(),
            one.ratio,
            one.leader,
            one.blocks,
            one.test.name(),
            one.p,
            one.level
        );
        findings.push(Finding::note(one.name.as_str(), text));
    }
    let left_out: Vec<&str> = report
        .screening
        .iter()
        .filter(|row| !row.kept && row.blocks > 0 && !was_dropped(report, &row.name))
        .map(|row| row.name.as_str())
        .collect();
    if !left_out.is_empty() && report.design.confirm.is_some() {
        let text = format!(
            "{} had the worse numbers after {} blocks and were dropped without a test, because at \
             most {} are confirmed",
            left_out.join(", "),
            report.design.screening.len(),
            report.config.keep
        );
        findings
            .push(Finding::note("race", text).with_hint("--full tries all of them in every block"));
    }
    if let Some(alpha) = report.config.race
        && report.finished
        && !report.design.screening.is_empty()
    {
        let text = format!(
            "{} starts instead of {} for the full matrix; the probability that a candidate better \
             than all others by more than {} % was dropped is at most {} %",
            report.design.done,
            report.design.full,
            report.config.margin * 100.0,
            alpha * 100.0
        );
        findings.push(Finding::note("race", text));
    }
}

fn was_dropped(report: &TuneReport, name: &str) -> bool {
    report.dropped.iter().any(|one| one.name == name)
}

fn about_noise(report: &TuneReport, findings: &mut Vec<Finding>) {
    let differing: Vec<&AaRow> = report
        .aa
        .iter()
        .filter(|row: &&AaRow| matches!(row.contrast.verdict, Verdict::Better | Verdict::Worse))
        .collect();
    let goal_metric = report.config.metric();
    for row in &differing {
        let Some(interval) = row.contrast.interval else {
            continue;
        };
        let text = format!(
            "the baseline differs from itself in {} ({}): ratio {:.3}, {:.3} to {:.3}",
            row.metric.name(),
            row.load,
            interval.ratio,
            interval.low,
            interval.high
        );
        let decides = row.metric == goal_metric && row.load == report.goal_load;
        findings.push(if decides {
            Finding::warning("A/A pair", text).with_hint(
                "something changed during the run; do not trust differences of this size; make the \
                 host quieter and repeat",
            )
        } else {
            Finding::note("A/A pair", text)
        });
    }
    if !differing.is_empty() {
        let expected = report.config.alpha * report.aa.len() as f64;
        let text = format!(
            "{} of {} comparisons of the baseline with itself {}; chance alone gives up to \
             {expected:.1}",
            differing.len(),
            report.aa.len(),
            select_verb(differing.len(), "differs", "differ")
        );
        findings.push(Finding::note("A/A pair", text));
    }
}

fn about_winner(report: &TuneReport, findings: &mut Vec<Finding>) {
    let Some(winner) = &report.winner else {
        if !report.ranking.is_empty() {
            let text = format!(
                "no winner: {} has no samples for \"{}\"",
                report.config.metric().name(),
                report.goal_load
            );
            findings.push(Finding::problem("goal", text));
        }
        return;
    };
    let name = winner.name.as_str();
    match &winner.against_baseline {
        None => findings.push(Finding::note(
            name,
            "no placement scored better than leaving the machine unpinned",
        )),
        Some(contrast) => match contrast.verdict {
            Verdict::Better => {}
            Verdict::Same => {
                let text = "it scored best but is the same as none within the margin";
                findings.push(Finding::note(name, text));
            }
            Verdict::Worse | Verdict::Unknown { .. } => {
                let text = format!(
                    "it scored best, but is not shown to be better than none ({})",
                    contrast.verdict
                );
                let hint = "use a larger budget or make the host quieter";
                findings.push(Finding::warning(name, text).with_hint(hint));
            }
        },
    }
    if winner.within_noise {
        let text = "its ratio to none is within the difference between two measurements of none";
        findings.push(Finding::warning(name, text));
    }
    match report.config.goal {
        Goal::Balanced if report.ranking.iter().all(|row| row.standing.rate_per_s.is_none()) => {
            let text = "no compute rate was measured: the goal balanced was judged by gaps alone";
            findings.push(Finding::problem("goal", text));
        }
        Goal::Latency | Goal::Throughput | Goal::Balanced => {}
    }
}

fn about_constraint(report: &TuneReport, findings: &mut Vec<Finding>) {
    let Some(limit) = report.config.max_gap_ns else {
        return;
    };
    let violating: Vec<&str> = report
        .ranking
        .iter()
        .filter(|row| row.standing.violates)
        .map(|row| row.name.as_str())
        .collect();
    if violating.is_empty() {
        return;
    }
    let limit_ms = limit as f64 / 1e6;
    findings.push(if violating.len() == report.ranking.len() {
        let text = format!("every placement had a gap above {limit_ms} ms in some block");
        Finding::problem("max gap", text).with_hint(
            "isolate the vCPUs (--isolate host), use a real-time policy, or raise the limit",
        )
    } else {
        let text = format!("{} had a gap above {limit_ms} ms in some block", violating.join(", "));
        Finding::note("max gap", text)
    });
}

fn about_samples(report: &TuneReport, confirmation: &Summaries, findings: &mut Vec<Finding>) {
    for row in &report.ranking {
        for cell in &row.cells {
            let dropped = if cell.metric.higher_is_better() { 0 } else { cell.dropped };
            if dropped > 0 {
                let text = format!(
                    "{} of {} ({}) {} lost: its tail may be longer",
                    count_noun(dropped, "sample"),
                    cell.metric.name(),
                    cell.load,
                    select_verb(dropped, "was", "were")
                );
                findings.push(Finding::warning(row.name.as_str(), text));
            }
        }
    }
    for (flag, count) in &confirmation.flags {
        let all = count_noun(confirmation.series, "series");
        let text = format!("{count} of {all} are flagged {flag:?}");
        findings.push(Finding::note("benchmarks", text));
    }
    unequal_times(report, confirmation, findings);
}

/// A longest wait grows with the observation time, so differing times are reported.
fn unequal_times(report: &TuneReport, confirmation: &Summaries, findings: &mut Vec<Finding>) {
    let Some(baseline) = report.ranking.iter().find(|row| row.is_baseline) else {
        return;
    };
    for row in report.ranking.iter().filter(|row| !row.is_baseline) {
        for &load in &report.config.load_states {
            let of = |candidate| confirmation.by_block(candidate, (load, report.config.gap_metric));
            let ratio = time_ratio(&of(row.candidate), &of(baseline.candidate));
            if let Some(ratio) = ratio.filter(|ratio| !is_equal_time(*ratio)) {
                let text = format!(
                    "gaps were observed {ratio:.2} times as long as under none ({load}). The \
                     longest gap may grow by that factor for this reason alone, so it gets a \
                     verdict only if its interval lies beyond the factor"
                );
                findings.push(Finding::warning(row.name.as_str(), text));
            }
        }
    }
}
