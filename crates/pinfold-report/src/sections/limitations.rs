//! Limitations of the page, failed starts, and findings.

use pinfold_model::{Accelerator, Finding, IsolationScope, Severity};

use crate::charts::forest;
use crate::headline::aa_comparison;
use crate::page::{CandidateKind, Comparison, Page, ReachedStage, Verdict};
use crate::{CandidateId, format};

/// A finding as text.
pub(crate) struct FindingText {
    pub(crate) class: &'static str,
    pub(crate) sign: &'static str,
    pub(crate) word: String,
    pub(crate) subject: String,
    pub(crate) text: String,
    pub(crate) hint: Option<String>,
}

/// A failed start as text.
pub(crate) struct Failed {
    pub(crate) who: String,
    pub(crate) block: u32,
    pub(crate) why: String,
}

/// A finding with its symbol; the caller sorts them.
pub(crate) fn finding_text(finding: &Finding) -> FindingText {
    let (class, sign) = match finding.severity {
        Severity::Note => ("f-note", "i"),
        Severity::Warning => ("f-warning", "!"),
        Severity::Problem => ("f-problem", "×"),
    };
    FindingText {
        class,
        sign,
        word: finding.severity.to_string(),
        subject: finding.subject.clone(),
        text: finding.text.clone(),
        hint: finding.hint.clone(),
    }
}

/// All findings of host, run and winner, the most severe first.
pub(crate) fn findings(page: &Page) -> Vec<FindingText> {
    let mut findings: Vec<&Finding> = page.findings.iter().chain(&page.topology.findings).collect();
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    let mut seen: Vec<&Finding> = Vec::new();
    for finding in findings {
        if !seen.contains(&finding) {
            seen.push(finding);
        }
    }
    seen.into_iter().map(finding_text).collect()
}

/// Starts without a result.
pub(crate) fn failed_starts(page: &Page) -> Vec<Failed> {
    page.failed_starts
        .iter()
        .map(|start| Failed {
            who: page.name(start.candidate),
            block: start.block,
            why: if start.recovered {
                format!("{} (the second attempt succeeded)", start.why)
            } else {
                start.why.clone()
            },
        })
        .collect()
}

/// The limitations of the page, as sentences.
pub(crate) fn limits(page: &Page) -> Vec<String> {
    let mut limits = vec![of_accelerator(page)];
    if let Some(hypervisor) = &page.provenance.origin.hypervisor {
        limits.push(format!(
            "The host is itself a virtual machine ({hypervisor}). Its neighbours’ work is part of \
             these numbers and cannot be separated from inside."
        ));
    }
    limits.push(
        "“Best” means best of the candidates listed, on this machine, with these loads. A worst \
         case is the longest that was seen, not a bound."
            .to_owned(),
    );
    limits.push(of_noise(page));
    limits.extend(noise_by_metric(page));
    limits.extend(of_race(page));
    limits.extend(of_screening(page));
    limits.extend(of_isolation(page));
    limits
}

fn of_accelerator(page: &Page) -> String {
    match page.provenance.origin.accelerator {
        accelerator @ (Accelerator::TcgMulti | Accelerator::TcgSingle) => format!(
            "The guest ran under {accelerator}: the numbers are those of that emulator on this \
             host and do not carry over to KVM or bare metal."
        ),
        Accelerator::Kvm => "The guest ran under KVM on this host. The numbers do not carry over \
                             to another CPU, another kernel or an emulated guest."
            .to_owned(),
        Accelerator::Native => {
            "The numbers were taken on the host itself, not in a guest.".to_owned()
        }
    }
}

fn of_noise(page: &Page) -> String {
    match aa_comparison(page) {
        None => "No A/A pair was measured, so the noise floor of this run is not known.".to_owned(),
        Some(comparison) => {
            let interval = forest::interval(comparison);
            let within = within_noise(page, comparison);
            match comparison.verdict {
                Verdict::Better | Verdict::Worse => format!(
                    "The A/A pair, the same placement under two names, differs: {interval}. \
                     Something changed during the run; do not rely on small differences on this \
                     page.{within}"
                ),
                Verdict::Same | Verdict::Unknown(_) => format!(
                    "The A/A pair, the same placement under two names, came out at {interval}: \
                     a difference within that range may be noise.{within}"
                ),
            }
        }
    }
}

/// The A/A pair in each metric, in the deciding load state.
fn noise_by_metric(page: &Page) -> Option<String> {
    let of_load = page.rankings.iter().filter(|ranking| ranking.load == page.answer.load);
    let floors: Vec<String> = of_load
        .filter_map(|ranking| {
            let row = ranking.rows.iter().find(|row| is_repeat(page, row.candidate))?;
            let interval = forest::interval(row.comparison.as_ref()?);
            Some(format!("{} {interval}", ranking.metric.name()))
        })
        .collect();
    let metrics = floors.join(", ");
    (!floors.is_empty())
        .then(|| format!("Noise floor of each metric ({}): {metrics}.", page.answer.load))
}

fn is_repeat(page: &Page, id: CandidateId) -> bool {
    page.candidate(id).is_some_and(|candidate| candidate.kind == CandidateKind::Repeat)
}

/// The significant differences of the deciding ranking that are within the A/A pair's noise.
fn within_noise(page: &Page, noise: &Comparison) -> String {
    let rows = page.deciding().into_iter().flat_map(|ranking| &ranking.rows);
    let shown =
        rows.filter_map(|row| Some((row, row.comparison.as_ref().filter(|it| is_shown(it))?)));
    let within = shown.filter(|(row, it)| {
        let is_repeat =
            page.candidate(row.candidate).map(|one| one.kind) == Some(CandidateKind::Repeat);
        !is_repeat && (noise.low..=noise.high).contains(&it.ratio)
    });
    let names: Vec<String> = within
        .map(|(row, it)| format!("{} ({})", page.name(row.candidate), format::ratio(it.ratio)))
        .collect();
    if names.is_empty() {
        String::new()
    } else {
        format!(
            " The verdict on {} lies within it: repeat the run before you rely on it.",
            names.join(", ")
        )
    }
}

fn is_shown(it: &Comparison) -> bool {
    matches!(it.verdict, Verdict::Better | Verdict::Worse)
}

fn with_stage(page: &Page, stage: ReachedStage) -> Vec<&str> {
    let found = page.candidates.iter().filter(|candidate| candidate.stage == stage);
    found.map(|candidate| candidate.name.as_str()).collect()
}

fn of_race(page: &Page) -> Option<String> {
    let dropped = with_stage(page, ReachedStage::Dropped);
    (!dropped.is_empty()).then(|| {
        format!(
            "Dropped early, because they could no longer win: {}. The findings name the block, the \
             test and the probability of dropping the best one. They have no verdict against the \
             baseline.",
            dropped.join(", ")
        )
    })
}

fn of_screening(page: &Page) -> Option<String> {
    let screened = with_stage(page, ReachedStage::Screened);
    (!screened.is_empty()).then(|| {
        format!(
            "Dropped after {} blocks of the race, without a significance test: {}. They did worse \
             in a few blocks; dropping them saves time and is not a verdict.",
            page.asked.screening_blocks,
            screened.join(", ")
        )
    })
}

fn of_isolation(page: &Page) -> Option<String> {
    if has_isolation(page, IsolationScope::Host) {
        None
    } else if has_isolation(page, IsolationScope::Own) {
        Some(
            "Isolation was limited to tasks that Pinfold itself had started. Other tasks of the \
             host could run on any CPU."
                .to_owned(),
        )
    } else {
        Some("Other tasks of the host were not excluded from the VM’s CPUs.".to_owned())
    }
}

fn has_isolation(page: &Page, wanted: IsolationScope) -> bool {
    page.candidates.iter().any(|it| it.plan.isolation == wanted)
}

/// A sentence on the number of failed starts.
pub(crate) fn failed_words(page: &Page) -> String {
    let lost = page.failed_starts.iter().filter(|start| !start.recovered).count() as u64;
    let recovered = page.failed_starts.len() as u64 - lost;
    match (lost, recovered) {
        (0, 0) => "No failed starts.".to_owned(),
        (lost, 0) => format!("{} failed and gave no numbers.", starts(lost)),
        (0, some) => format!("{} failed once; the second attempt gave the numbers.", starts(some)),
        (lost, some) => format!(
            "{} failed and gave no numbers; {} failed once, and the second attempt gave the numbers.",
            starts(lost),
            starts(some)
        ),
    }
}

fn starts(count: u64) -> String {
    match count {
        1 => "1 start".to_owned(),
        many => format!("{} starts", format::count(many)),
    }
}
