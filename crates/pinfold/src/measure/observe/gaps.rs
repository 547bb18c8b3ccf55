//! Text and JSON of the gaps of threads.

use pinfold_model::{CpuSet, PuId, text};
use pinfold_probe::gaps::{Cause, Gap, GapReport};
use pinfold_report::format;
use serde_json::{Value, json};

use super::text::{lines, table, time};

/// Causes in the table, and single gaps below it.
const CAUSES: usize = 12;
const SINGLE: usize = 5;
/// Longest cause in the table, so that it fits into 80 columns.
const WIDEST: usize = 41;
/// Commands against causes, and the share of time (1/n) from which on a cause has one.
const REMEDIES: usize = 4;
const NOTABLE: u64 = 50;
/// Parts of a single gap.
const PARTS: usize = 6;

/// All gaps of one cause.
struct Group<'a> {
    cause: Option<&'a Cause>,
    count: u64,
    sum_ns: u64,
    longest: &'a Gap,
}

/// By cause, the one with the most time first.
fn groups(report: &GapReport) -> Vec<Group<'_>> {
    let mut order: Vec<&Gap> = report.gaps.iter().collect();
    order.sort_by(|one, other| one.cause().cmp(&other.cause()));
    let mut groups: Vec<Group<'_>> = Vec::new();
    for gap in order {
        match groups.last_mut().filter(|group| group.cause == gap.cause()) {
            Some(group) => {
                group.count += 1;
                group.sum_ns = group.sum_ns.saturating_add(gap.length_ns);
                if gap.length_ns > group.longest.length_ns {
                    group.longest = gap;
                }
            }
            None => groups.push(Group {
                cause: gap.cause(),
                count: 1,
                sum_ns: gap.length_ns,
                longest: gap,
            }),
        }
    }
    groups.sort_by_key(|group| std::cmp::Reverse(group.sum_ns));
    groups
}

/// The gaps by cause, the longest ones with their parts, and what keeps each cause away.
pub fn text(report: &GapReport) -> String {
    let summary = &report.summary;
    let groups = groups(report);
    let all = report.gaps.iter().fold(0_u64, |sum, gap| sum.saturating_add(gap.length_ns));
    let mut text = format!(
        "{} of at least {} in {}, {} together\n",
        text::count_noun(report.gaps.len(), "gap"),
        time(summary.over_ns),
        time(summary.duration_ns),
        time(all),
    );
    if !groups.is_empty() {
        let rows = groups.iter().take(CAUSES).map(|group| {
            vec![
                cause_text(group.cause),
                format::count(group.count),
                time(group.sum_ns),
                percent(group.sum_ns, all),
                time(group.longest.length_ns),
            ]
        });
        let head = ["cause", "gaps", "time", "share", "longest"];
        text.push_str(&format!("\n{}\n", table(&head, rows.collect())));
        if groups.len() > CAUSES {
            let rest = text::count_noun(groups.len() - CAUSES, "more cause");
            text.push_str(&format!("{rest}: `--json` shows all\n"));
        }
    }
    let mut order: Vec<&Gap> = report.gaps.iter().collect();
    order.sort_by_key(|gap| std::cmp::Reverse(gap.length_ns));
    order.iter().take(SINGLE).for_each(|gap| text.push_str(&single(gap)));
    text.push_str(&remedies(report, &groups));
    let (count, sum) = summary.threads.iter().fold((0_u64, 0_u64), |(count, sum), thread| {
        (count.saturating_add(thread.shorter), sum.saturating_add(thread.shorter_ns))
    });
    let threads = text::count_noun(summary.threads.len(), "thread");
    text.push_str(&format!(
        "\n{} shorter gaps of {threads}, {} in total\n",
        format::count(count),
        time(sum)
    ));
    if summary.run_ns > 0 {
        let share = summary.run_ns as f64 / (summary.duration_ns as f64).max(1.0);
        let each = summary.run_ns as f64 / (summary.calls as f64).max(1.0);
        text.push_str(&format!(
            "observing took {} of one CPU: {} events of {}\n",
            format::percent(share),
            format::count(summary.calls),
            format::duration(each)
        ));
    }
    lines(&mut text, &summary.lost, "not included: ");
    text
}

fn cause_text(cause: Option<&Cause>) -> String {
    let text = cause.map_or_else(|| "no single cause".to_owned(), Cause::to_string);
    if text.chars().count() > WIDEST {
        text.chars().take(WIDEST - 1).chain(['…']).collect()
    } else {
        text
    }
}

fn single(gap: &Gap) -> String {
    let more = match (gap.is_open, gap.is_at_least) {
        (true, _) => " so far",
        (false, true) => " or more",
        (false, false) => "",
    };
    let mut text = format!(
        "\n{}{more} of {} ({}) on CPU {}, {} after the start\n",
        time(gap.length_ns),
        format::clean(&gap.role),
        gap.tid,
        gap.cpu,
        time(gap.at_ns)
    );
    // The first always, small ones together.
    let least_ns = gap.length_ns / 1000;
    let count = gap.parts.iter().take(PARTS).take_while(|part| part.ns >= least_ns).count().max(1);
    for one in gap.parts.iter().take(count) {
        text.push_str(&row(gap, one.ns, &one.cause.to_string()));
    }
    let others = gap.parts.iter().skip(count).fold(0_u64, |sum, one| sum.saturating_add(one.ns));
    if others > 0 {
        text.push_str(&row(gap, others, "other causes"));
    }
    if gap.unexplained_ns() > 0 {
        text.push_str(&row(gap, gap.unexplained_ns(), "not explained"));
    }
    text
}

fn row(gap: &Gap, ns: u64, what: &str) -> String {
    let (us, share) = (format::count(ns / 1000), percent(ns, gap.length_ns));
    format!("  {us:>9} µs {share:>7}  {what}\n")
}

fn percent(part_ns: u64, all_ns: u64) -> String {
    format!("{:.1} %", part_ns as f64 * 100.0 / (all_ns as f64).max(1.0))
}

/// What keeps the causes away: a line for each command, and which causes nothing keeps away.
fn remedies(report: &GapReport, groups: &[Group<'_>]) -> String {
    let mut known: Vec<(String, String)> = Vec::new();
    let mut nothing = Vec::new();
    let all = groups.iter().fold(0_u64, |sum, group| sum.saturating_add(group.sum_ns));
    let notable = groups.iter().filter(|group| group.sum_ns >= all / NOTABLE);
    for group in notable.take(REMEDIES) {
        let Some(cause) = group.cause else { continue };
        match cause.remedy(&report.summary.selector, &other_cpus(report, group.longest)) {
            Some(command) if known.iter().all(|(own, _)| *own != command) => {
                known.push((command, cause.to_string()));
            }
            Some(_) => {}
            None => nothing.push(cause.to_string()),
        }
    }
    let mut text = String::new();
    for (command, cause) in known {
        text.push_str(&format!("\nagainst {cause}:\n  {command}\n"));
    }
    for cause in nothing {
        text.push_str(&format!("\nagainst {cause}: no known remedy\n"));
    }
    text
}

/// The CPUs except that of a gap.
fn other_cpus(report: &GapReport, gap: &Gap) -> String {
    let cpus = CpuSet::parse_list(&report.summary.cpus).unwrap_or_default();
    let others: CpuSet = cpus.iter().filter(|cpu| *cpu != PuId(gap.cpu)).collect();
    others.to_string()
}

/// The report as JSON.
pub fn json(report: &GapReport) -> Value {
    let gaps = report.gaps.iter().map(|gap| {
        let mut value = json!(gap);
        value["cause"] = json!(gap.cause().map(Cause::word));
        value["unexplained_ns"] = json!(gap.unexplained_ns());
        value["remedy"] = json!(gap.cause().and_then(|cause| {
            cause.remedy(&report.summary.selector, &other_cpus(report, gap))
        }));
        value
    });
    json!({ "summary": report.summary, "gaps": gaps.collect::<Vec<_>>() })
}
