//! Text and JSON of the gaps of threads.

use std::collections::BTreeMap;

use pinfold_model::{CpuSet, PuId, text};
use pinfold_probe::gaps::{Cause, CauseTime, Gap, GapReport, Place, Remedy, by_cause};
use pinfold_report::format;
use serde_json::{Value, json};

use super::text::{lines, time};
use crate::screen;

/// Causes in the table, and single gaps below it.
const CAUSES: usize = 12;
const SINGLE: usize = 5;
/// The share of time (1/n) below which causes are one row.
const SMALL: u64 = 500;
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

/// Decides which commands of `pinfold apply` are proposed.
pub trait Planner {
    /// True if the planner accepts this command, and its plan does what the command asks for.
    fn accepts(&self, command: &str) -> bool;
}

/// The gaps by cause, the longest ones with their parts, and what keeps each cause away.
pub fn text(report: &GapReport, planner: &dyn Planner) -> String {
    let summary = &report.summary;
    let causes = by_cause(report.gaps.iter());
    let all = report.gaps.iter().fold(0_u64, |sum, gap| sum.saturating_add(gap.length_ns));
    let mut text = format!(
        "{} of at least {} in {}, {} together\n",
        text::count_noun(report.gaps.len(), "gap"),
        time(summary.over_ns),
        time(summary.duration_ns),
        time(all),
    );
    if !report.gaps.is_empty() {
        text.push_str(&format!("\n{}\n", cause_table(report, &causes, all)));
    }
    text.push_str(&by_thread(report));
    let mut order: Vec<&Gap> = report.gaps.iter().collect();
    order.sort_by_key(|gap| std::cmp::Reverse(gap.length_ns));
    order.iter().take(SINGLE).for_each(|gap| text.push_str(&single(gap)));
    text.push_str(&Advice::new(report, planner).text(&causes));
    let (count, sum) = summary.threads.iter().fold((0_u64, 0_u64), |(count, sum), thread| {
        (count.saturating_add(thread.shorter), sum.saturating_add(thread.shorter_ns))
    });
    let threads = text::count_noun(summary.threads.len(), "thread");
    let gaps = if count == 1 { "gap" } else { "gaps" };
    text.push_str(&format!(
        "\n{} shorter {gaps} of {threads}, {} in total\n",
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

/// A row for each cause with the time of its parts in all gaps, with the machine if several are
/// observed; then what is left.
fn cause_table(report: &GapReport, causes: &[CauseTime<'_>], all_ns: u64) -> String {
    let is_several = !report.summary.subjects.is_empty();
    let widest = if is_several { WIDEST - SUBJECT } else { WIDEST };
    let (shown, small): (Vec<_>, Vec<_>) = causes
        .iter()
        .enumerate()
        .partition(|(at, one)| *at < CAUSES && (*at == 0 || one.ns >= all_ns / SMALL));
    let mut rows: Vec<Vec<String>> = Vec::new();
    for (_, one) in shown {
        let cells = [
            clip(&one.name, widest),
            format::count(one.gaps),
            time(one.ns),
            percent(one.ns, all_ns),
            time(one.longest_ns),
        ];
        let subject = is_several.then(|| clip(&format::clean(one.subject), SUBJECT - 3));
        rows.push(subject.into_iter().chain(cells).collect());
    }
    let small_ns = small.iter().fold(0_u64, |sum, (_, one)| sum.saturating_add(one.ns));
    let unexplained_ns =
        report.gaps.iter().fold(0_u64, |sum, gap| sum.saturating_add(gap.unexplained_ns()));
    let small = text::count_noun(small.len(), "other cause");
    for (name, ns) in [(small.as_str(), small_ns), ("not explained", unexplained_ns)] {
        if ns > 0 {
            let cells = [name, "", &time(ns), &percent(ns, all_ns), ""].map(str::to_owned);
            rows.push(is_several.then(String::new).into_iter().chain(cells).collect());
        }
    }
    let head = ["in", "cause", "gaps", "time", "share", "longest"];
    let first = usize::from(!is_several);
    draw(head.get(first..).unwrap_or_default(), rows, 2 - first)
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
            clip(&main_cause(gaps), WIDEST_THREAD),
            format::count(u64::try_from(gaps.len()).unwrap_or(u64::MAX)),
            time(sum_ns(gaps)),
            time(longest.length_ns),
        ])
    });
    let head = ["thread", "main cause", "gaps", "time", "longest"];
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

/// What took most of the time of these gaps of one thread.
fn main_cause(gaps: &[&Gap]) -> String {
    let unexplained_ns =
        gaps.iter().fold(0_u64, |sum, gap| sum.saturating_add(gap.unexplained_ns()));
    let causes = by_cause(gaps.iter().copied());
    match causes.first().filter(|one| one.ns >= unexplained_ns) {
        Some(one) => one.name.to_string(),
        None => "not explained".to_owned(),
    }
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

/// What keeps causes away.
struct Advice<'a> {
    report: &'a GapReport,
    planner: &'a dyn Planner,
    /// The CPUs on which the threads of each machine, process or group had gaps.
    cpus: BTreeMap<&'a str, CpuSet>,
}

impl<'a> Advice<'a> {
    fn new(report: &'a GapReport, planner: &'a dyn Planner) -> Self {
        let mut cpus: BTreeMap<&str, CpuSet> = BTreeMap::new();
        for gap in &report.gaps {
            let here: CpuSet = [PuId(gap.cpu)].into_iter().collect();
            cpus.entry(&gap.subject).or_default().add(&here);
        }
        Self { report, planner, cpus }
    }

    /// The commands against the largest causes, and which of these nothing keeps away.
    fn text(&self, causes: &[CauseTime<'_>]) -> String {
        let mut known: Vec<(Remedy, String)> = Vec::new();
        let gaps = self.report.gaps.iter();
        let all = gaps.fold(0_u64, |sum, gap| sum.saturating_add(gap.length_ns));
        let notable = causes.iter().filter(|one| one.ns > 0 && one.ns >= all / NOTABLE);
        for one in notable.take(REMEDIES) {
            let remedy = self.remedy_of(one);
            if known.iter().all(|(own, _)| *own != remedy) {
                known.push((remedy, one.name.to_string()));
            }
        }
        let text = known.iter().map(|(remedy, cause)| match remedy {
            Remedy::Command(command) => format!("\nagainst {cause}:\n  {command}\n"),
            Remedy::Boot(parameters) => format!(
                "\nagainst {cause}: kernel parameters, from the next boot on\n  {parameters}\n"
            ),
            Remedy::Nothing(why) => format!("\nagainst {cause}: nothing; {why}\n"),
        });
        text.collect()
    }

    /// Against many tasks of one name, only what keeps all tasks away: each may end soon.
    fn remedy_of(&self, one: &CauseTime<'_>) -> Remedy {
        let remedy = self.remedy(one.longest, one.cause);
        let is_for_one =
            matches!(&remedy, Remedy::Command(command) if one.is_many && !is_apply(command));
        if is_for_one {
            return Remedy::Nothing("give what starts these tasks other CPUs, or its cgroup");
        }
        remedy
    }

    /// The best remedy of those that the planner does not refuse.
    fn remedy(&self, gap: &Gap, cause: &Cause) -> Remedy {
        let here: CpuSet = [PuId(gap.cpu)].into_iter().collect();
        let used = self.cpus.get(gap.subject.as_str()).unwrap_or(&here);
        let remedies = cause.remedies(&Place {
            selector: self.report.summary.selector_of(&gap.subject),
            tid: gap.tid,
            cpu: gap.cpu,
            elsewhere: &cpus_without(self.report, &here),
            quiet: &cpus_without(self.report, used),
        });
        let accepted = remedies.into_iter().find(|remedy| match remedy {
            Remedy::Command(command) if is_apply(command) => self.planner.accepts(command),
            Remedy::Command(_) | Remedy::Boot(_) | Remedy::Nothing(_) => true,
        });
        accepted.unwrap_or(Remedy::Nothing("the planner refuses this machine on this host"))
    }
}

/// True for a command of `pinfold apply`; global options may be in between.
fn is_apply(command: &str) -> bool {
    command.starts_with("pinfold ") && command.split(' ').any(|word| word == "apply")
}

/// The CPUs of the host without these.
fn cpus_without(report: &GapReport, these: &CpuSet) -> String {
    let cpus = CpuSet::parse_list(&report.summary.cpus).unwrap_or_default();
    cpus.iter().filter(|cpu| !these.contains(*cpu)).collect::<CpuSet>().to_string()
}

/// The report as JSON.
pub fn json(report: &GapReport, planner: &dyn Planner) -> Value {
    let advice = Advice::new(report, planner);
    let gaps = report.gaps.iter().map(|gap| {
        let mut value = json!(gap);
        value["cause"] = json!(gap.cause().map(Cause::word));
        value["unexplained_ns"] = json!(gap.unexplained_ns());
        let remedy = gap.cause().map(|cause| advice.remedy(gap, cause));
        value["remedy"] = json!(remedy.as_ref().and_then(Remedy::text));
        value
    });
    let causes = by_cause(report.gaps.iter()).into_iter().map(|one| {
        let mut value = json!({
            "name": one.name, "cause": one.cause.word(), "gaps": one.gaps, "time_ns": one.ns,
            "longest_ns": one.longest_ns,
            "remedy": advice.remedy_of(&one).text(),
        });
        if !one.subject.is_empty() {
            value["subject"] = json!(one.subject);
        }
        value
    });
    json!({
        "summary": report.summary, "causes": causes.collect::<Vec<_>>(),
        "gaps": gaps.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use pinfold_probe::gaps::{Part, Summary};

    use super::*;
    use crate::cli::Cli;

    /// A planner with one answer.
    struct Always(bool);

    impl Planner for Always {
        fn accepts(&self, command: &str) -> bool {
            assert!(command.starts_with("pinfold apply "), "{command}");
            self.0
        }
    }

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
            hog(Some("db")),
        ];
        for selector in ["--pid 5", "--libvirt web", "--qmp /run/web.qmp"] {
            let place = Place { selector, tid: 7, cpu: 1, elsewhere: "0", quiet: "" };
            for remedy in causes.iter().flat_map(|cause| cause.remedies(&place)) {
                let Remedy::Command(command) = remedy else { continue };
                let words: Vec<&str> = command.split(' ').collect();
                let is_own = words[0] == "pinfold";
                assert_eq!(is_apply(&command), is_own && words[1] == "apply", "{command}");
                if is_own && let Err(error) = Cli::try_parse_from(words) {
                    panic!("{command}: {error}");
                }
            }
        }
    }

    fn hog(machine: Option<&str>) -> Cause {
        let (name, policy) = ("hog".to_owned(), "fifo:50".to_owned());
        let machine = machine.map(str::to_owned);
        Cause::Thread { name, tid: 20, policy, cgroup: None, machine, is_own: false }
    }

    /// A vCPU on both CPUs of a host, with gaps to which several tasks contribute.
    fn overload_report() -> GapReport {
        let gaps = [0, 1].map(|cpu| Gap {
            subject: String::new(),
            tid: 7,
            role: "vcpu(0)".to_owned(),
            at_ns: 0,
            length_ns: 10_000_000,
            cpu,
            moves: 0,
            is_open: false,
            is_at_least: false,
            parts: vec![
                Part { cause: hog(None), ns: 4_000_000 },
                Part { cause: hog(Some("db")), ns: 3_500_000 },
                Part { cause: Cause::Stopped, ns: 1_000 },
            ],
        });
        let summary = Summary {
            selector: "--pid 5".to_owned(),
            cpus: "0-1".to_owned(),
            duration_ns: 20_000_000,
            ..Summary::default()
        };
        GapReport { summary, gaps: gaps.to_vec() }
    }

    #[test]
    fn culprits_of_gaps_without_a_main_cause_have_rows_and_remedies() {
        let report = overload_report();
        let shown = text(&report, &Always(false));
        let row = shown.lines().find(|line| line.contains("hog (20, fifo:50)")).unwrap();
        let cells: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(cells[3..], ["2", "8.00", "ms", "40.0", "%", "4.00", "ms"], "{shown}");
        for part in [
            "machine db ",
            "1 other cause ",
            "not explained ",
            "against hog (20, fifo:50):\n  chrt --other --pid 0 20\n",
            "against machine db:\n  pinfold plan --check --all\n",
        ] {
            assert!(shown.contains(part), "{part:?} in {shown}");
        }
        assert!(!shown.contains("no single cause"), "{shown}");
        let accepted = text(&report, &Always(true));
        assert!(accepted.contains("  pinfold apply --pid 5 --isolate host\n"), "{accepted}");
        let causes = json(&report, &Always(false))["causes"].clone();
        assert_eq!(causes[0]["time_ns"], 8_000_000, "{causes}");
        assert_eq!(causes[0]["remedy"], "chrt --other --pid 0 20", "{causes}");
    }
}
