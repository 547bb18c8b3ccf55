//! Text and JSON of the gaps of threads.

use std::collections::BTreeMap;

use pinfold_model::{CpuSet, PuId, text};
use pinfold_probe::gaps::{Cause, Gap, GapReport, Place, Remedy};
use pinfold_report::format;
use serde_json::{Value, json};

use super::text::{lines, time};
use crate::screen;

/// Causes in the table, and single gaps below it.
const CAUSES: usize = 12;
const SINGLE: usize = 5;
/// Longest cause in the table, so that it fits into 80 columns.
const WIDEST: usize = 41;
/// Width of the column of machines, if several are observed.
const SUBJECT: usize = 16;
/// Threads in the table by thread, and the longest name and cause there.
const THREADS: usize = 8;
const WIDEST_THREAD: usize = 24;
/// Commands against causes, and the share of time (1/n) from which on a cause has one.
const REMEDIES: usize = 4;
const NOTABLE: u64 = 50;
/// Parts of a single gap.
const PARTS: usize = 6;

/// All gaps of one cause in one machine, process or group.
struct Group<'a> {
    subject: &'a str,
    cause: Option<&'a Cause>,
    count: u64,
    sum_ns: u64,
    longest: &'a Gap,
}

impl Group<'_> {
    fn has(&self, gap: &Gap) -> bool {
        self.subject == gap.subject && self.cause == gap.cause()
    }
}

/// By cause, the one with the most time first.
fn groups(report: &GapReport) -> Vec<Group<'_>> {
    let mut order: Vec<&Gap> = report.gaps.iter().collect();
    order.sort_by(|one, other| {
        one.subject.cmp(&other.subject).then_with(|| one.cause().cmp(&other.cause()))
    });
    let mut groups: Vec<Group<'_>> = Vec::new();
    for gap in order {
        match groups.last_mut().filter(|group| group.has(gap)) {
            Some(group) => {
                group.count += 1;
                group.sum_ns = group.sum_ns.saturating_add(gap.length_ns);
                if gap.length_ns > group.longest.length_ns {
                    group.longest = gap;
                }
            }
            None => groups.push(Group {
                subject: &gap.subject,
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
        text.push_str(&format!("\n{}\n", by_cause(report, &groups, all)));
        if groups.len() > CAUSES {
            let rest = text::count_noun(groups.len() - CAUSES, "more cause");
            text.push_str(&format!("{rest}: `--json` shows all\n"));
        }
    }
    text.push_str(&by_thread(report));
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

/// A row for each cause, with the machine if several are observed.
fn by_cause(report: &GapReport, groups: &[Group<'_>], all_ns: u64) -> String {
    let is_several = !report.summary.subjects.is_empty();
    let widest = if is_several { WIDEST - SUBJECT } else { WIDEST };
    let rows = groups.iter().take(CAUSES).map(|group| {
        let subject = is_several.then(|| clip(&format::clean(group.subject), SUBJECT - 3));
        let cells = [
            clip(&cause_text(group.cause), widest),
            format::count(group.count),
            time(group.sum_ns),
            percent(group.sum_ns, all_ns),
            time(group.longest.length_ns),
        ];
        subject.into_iter().chain(cells).collect()
    });
    let head = ["in", "cause", "gaps", "time", "share", "longest"];
    let first = usize::from(!is_several);
    draw(head.get(first..).unwrap_or_default(), rows.collect(), 2 - first)
}

/// A table whose columns from `numbers` on are numbers.
fn draw(head: &[&str], rows: Vec<Vec<String>>, numbers: usize) -> String {
    let mut table = screen::rows();
    table.set_header(head.iter().copied());
    for row in rows {
        table.add_row(row);
    }
    screen::draw_table(table, numbers..head.len())
}

fn sum_ns(gaps: &[&Gap]) -> u64 {
    gaps.iter().fold(0_u64, |sum, gap| sum.saturating_add(gap.length_ns))
}

/// A row for each thread, if several had gaps: those with the longest time first.
fn by_thread(report: &GapReport) -> String {
    let mut threads: BTreeMap<u32, Vec<&Gap>> = BTreeMap::new();
    for gap in &report.gaps {
        threads.entry(gap.tid).or_default().push(gap);
    }
    if threads.len() < 2 {
        return String::new();
    }
    let mut order: Vec<Vec<&Gap>> = threads.into_values().collect();
    order.sort_by_key(|gaps| std::cmp::Reverse(sum_ns(gaps)));
    let more = order.len().saturating_sub(THREADS);
    order.truncate(THREADS);
    let rows = order.iter().filter_map(|gaps| {
        let longest = gaps.iter().max_by_key(|gap| gap.length_ns)?;
        Some(vec![
            clip(&thread_name(longest), WIDEST_THREAD),
            clip(&cause_text(longest.cause()), WIDEST_THREAD),
            format::count(u64::try_from(gaps.len()).unwrap_or(u64::MAX)),
            time(sum_ns(gaps)),
            time(longest.length_ns),
        ])
    });
    let head = ["thread", "cause of its longest", "gaps", "time", "longest"];
    let mut text = format!("\n{}\n", draw(&head, rows.collect(), 2));
    if more > 0 {
        let rest = text::count_noun(more, "more thread");
        text.push_str(&format!("{rest}: `--json` shows all\n"));
    }
    text
}

/// `vcpu(0) (1234)`; if several are observed `web vcpu(0) (1234)`, `process 7 (1234)`.
fn thread_name(gap: &Gap) -> String {
    let name = match (gap.subject.as_str(), gap.role.as_str()) {
        ("", role) => role.to_owned(),
        (subject, "task") => subject.to_owned(),
        (subject, role) => format!("{subject} {role}"),
    };
    format!("{} ({})", format::clean(&name), gap.tid)
}

fn cause_text(cause: Option<&Cause>) -> String {
    cause.map_or_else(|| "no single cause".to_owned(), Cause::to_string)
}

fn clip(text: &str, widest: usize) -> String {
    if text.chars().count() > widest {
        text.chars().take(widest.saturating_sub(1)).chain(['…']).collect()
    } else {
        text.to_owned()
    }
}

fn single(gap: &Gap) -> String {
    let more = match (gap.is_open, gap.is_at_least) {
        (true, _) => " so far",
        (false, true) => " or more",
        (false, false) => "",
    };
    let mut text = format!(
        "\n{}{more} of {} on CPU {}, {} after the start\n",
        time(gap.length_ns),
        thread_name(gap),
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

/// What keeps the causes away: the commands, and which causes nothing keeps away.
fn remedies(report: &GapReport, groups: &[Group<'_>]) -> String {
    let mut known: Vec<(Remedy, String)> = Vec::new();
    let all = groups.iter().fold(0_u64, |sum, group| sum.saturating_add(group.sum_ns));
    let notable = groups.iter().filter(|group| group.sum_ns >= all / NOTABLE);
    for group in notable.take(REMEDIES) {
        let Some(cause) = group.cause else { continue };
        let remedy = remedy(report, group.longest, cause);
        if known.iter().all(|(own, _)| *own != remedy) {
            known.push((remedy, cause.to_string()));
        }
    }
    let text = known.iter().map(|(remedy, cause)| match remedy {
        Remedy::Command(command) => format!("\nagainst {cause}:\n  {command}\n"),
        Remedy::Boot(parameters) => {
            format!("\nagainst {cause}: kernel parameters, from the next boot on\n  {parameters}\n")
        }
        Remedy::Nothing(why) => format!("\nagainst {cause}: nothing; {why}\n"),
    });
    text.collect()
}

fn remedy(report: &GapReport, gap: &Gap, cause: &Cause) -> Remedy {
    cause.remedy(&Place {
        selector: report.summary.selector_of(&gap.subject),
        tid: gap.tid,
        cpu: gap.cpu,
        elsewhere: &other_cpus(report, gap),
    })
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
        let remedy = gap.cause().map(|cause| remedy(report, gap, cause));
        value["remedy"] = json!(remedy.as_ref().and_then(Remedy::text));
        value
    });
    json!({ "summary": report.summary, "gaps": gaps.collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::Cli;

    /// Each command of ours that is proposed is one that this program takes.
    #[test]
    fn proposed_commands_are_valid() {
        let causes = [
            Cause::Interrupt { number: 9, device: String::new() },
            Cause::KernelWork { function: None, worker: "kworker/1:0".to_owned() },
            Cause::IdleExit { state: None },
            Cause::Awaited { task: None, exit: None, is_own: true },
            Cause::Processor {
                name: "local timer".to_owned(),
                function: Some("watchdog_timer_fn".to_owned()),
            },
            Cause::Processor { name: "reschedule IPI".to_owned(), function: None },
            Cause::Softirq { name: "SCHED".to_owned(), function: None },
            Cause::Softirq { name: "NET_RX".to_owned(), function: None },
        ];
        for selector in ["--pid 5", "--libvirt web", "--qmp /run/web.qmp"] {
            let place = Place { selector, tid: 7, cpu: 1, elsewhere: "0" };
            for cause in &causes {
                let Remedy::Command(command) = cause.remedy(&place) else {
                    panic!("{cause}: no command")
                };
                let words: Vec<&str> = command.split(' ').collect();
                assert_eq!(words[..2], ["pinfold", "apply"], "{command}");
                if let Err(error) = Cli::try_parse_from(words) {
                    panic!("{command}: {error}");
                }
            }
        }
    }
}
