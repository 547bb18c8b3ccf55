//! Observes commands while they run: the gaps of their tasks, their migrations, and the frequency of
//! their CPUs. Several commands are observed by one thread and one set of BPF programs.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};

use pinfold_host::{
    Clock as _, Counter, CounterEvent, Host as _, LiveHost, SystemClock, paths, process,
};
use pinfold_model::text::count_noun;
use pinfold_model::{CpuSet, Role, TaskId, escape};
use pinfold_probe::gaps::{self, Cause, Gap, GapReport, GapWatch, Subject, SubjectName};

use crate::Failure;

/// Shorter gaps are not counted (ns): each tick of the kernel is one.
const OVER_NS: u64 = 100_000;
/// Number of causes that are named.
const NAMED: usize = 3;
/// Interval of reading frequencies (ns).
const FREQUENCY_NS: u64 = 1_000_000_000;
/// A CPU is quiet if less than this part (1/n) of the time is in gaps, and if its frequency changes
/// by less than this part.
const MOST_TIME: u64 = 100;
const MOST_CHANGE: u64 = 10;

/// A command that is observed.
#[derive(Clone, Debug)]
pub(crate) struct ObservedCommand {
    /// Its name, if there are several.
    pub(crate) name: String,
    /// The command; all that it starts belongs to it.
    pub(crate) task: TaskId,
    /// Its CPUs.
    pub(crate) cpus: CpuSet,
}

/// What was observed of a command; `None` where this host or this user cannot observe it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Observed {
    pub(super) gaps: Option<GapNoise>,
    pub(super) migrations: Option<u64>,
    /// The lowest and the highest frequency (kHz).
    pub(super) khz: Option<(u64, u64)>,
    /// Why gaps are not observed, if the kernel refuses.
    pub(super) no_gaps: Option<String>,
}

/// An observation in progress.
pub(crate) struct Observer {
    ends: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Observed>>,
    migrations: Vec<Option<Counter>>,
}

impl Observer {
    /// Starts to observe commands. Its thread runs on the CPUs of the calling one, which has left
    /// those of the commands.
    ///
    /// # Errors
    /// [`Failure`] if the host cannot be read.
    pub(crate) fn start(commands: Vec<ObservedCommand>) -> Result<Self, Failure> {
        let host = LiveHost::new()?;
        // Without the right there is no count.
        let migrations = commands.iter().map(|command| {
            Counter::open_with_children(command.task.tid, CounterEvent::MIGRATIONS).ok()
        });
        let migrations = migrations.collect();
        let ends = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&ends);
        let (starting, started) = mpsc::channel::<()>();
        let thread = thread::spawn(move || observe(&host, &commands, &ended, starting));
        // Until the other end is closed.
        for () in started {}
        Ok(Self { ends, thread, migrations })
    }

    /// Ends it, and returns what was observed of each command.
    pub(crate) fn stop(self) -> Vec<Observed> {
        self.ends.store(true, Ordering::Relaxed);
        let mut observed = self.thread.join().unwrap_or_default();
        observed.resize(self.migrations.len(), Observed::default());
        for (one, counter) in observed.iter_mut().zip(self.migrations) {
            let reading = counter.and_then(|counter| counter.read().ok());
            one.migrations = reading.map(|reading| reading.value);
        }
        observed
    }
}

fn observe(
    host: &LiveHost,
    commands: &[ObservedCommand],
    ends: &AtomicBool,
    starting: mpsc::Sender<()>,
) -> Vec<Observed> {
    let mut observed = vec![Observed::default(); commands.len()];
    let subjects: Vec<Subject> = commands.iter().map(subject).collect();
    let mut watch = None;
    if process::is_root() {
        match gaps::start(host, &SystemClock, &subjects, OVER_NS) {
            Ok(started) => watch = Some(started),
            Err(error) => refuse_gaps(&mut observed, &error),
        }
    }
    drop(starting);
    let mut next_ns = SystemClock.now_ns().saturating_add(FREQUENCY_NS);
    while !ends.load(Ordering::Relaxed) {
        SystemClock.sleep_ns(GapWatch::POLL_NS);
        if let Some(watch) = &mut watch {
            watch.poll(host, &SystemClock);
        }
        if SystemClock.now_ns() >= next_ns {
            next_ns = next_ns.saturating_add(FREQUENCY_NS);
            for (one, command) in observed.iter_mut().zip(commands) {
                one.add_frequencies(host, command);
            }
        }
    }
    if let Some(watch) = watch {
        match watch.stop(host, &SystemClock, BTreeMap::new()) {
            Ok(report) => {
                for (one, command) in observed.iter_mut().zip(commands) {
                    one.gaps = Some(GapNoise::from_report(&report, &command.name));
                }
            }
            Err(error) => refuse_gaps(&mut observed, &error),
        }
    }
    observed
}

fn subject(command: &ObservedCommand) -> Subject {
    let name = SubjectName { name: command.name.clone(), selector: String::new() };
    Subject { name, threads: vec![(command.task, Role::Task)] }
}

fn refuse_gaps(observed: &mut [Observed], error: &dyn std::error::Error) {
    observed.iter_mut().for_each(|one| one.no_gaps = Some(error.to_string()));
}

impl Observed {
    /// CPUs without a driver have no file. Those of a command that has ended may be idle.
    fn add_frequencies(&mut self, host: &LiveHost, command: &ObservedCommand) {
        if !process::task_alive(host, command.task).unwrap_or(true) {
            return;
        }
        for cpu in command.cpus.iter() {
            let text = host.read_text(&paths::cpufreq_file(cpu, "scaling_cur_freq"));
            let Some(khz) = text.ok().and_then(|text| text.trim().parse().ok()) else { continue };
            let (low, high) = self.khz.unwrap_or((khz, khz));
            self.khz = Some((khz.min(low), khz.max(high)));
        }
    }

    /// Why the CPUs were not quiet; `cpu_ns` is the time of all of them, `most_moves` the bound of
    /// migrations.
    pub(super) fn reasons(&self, cpu_ns: u64, most_moves: u64) -> Vec<String> {
        let mut reasons = Vec::new();
        // A short run is not judged by a single gap.
        let most_ns = cpu_ns.max(FREQUENCY_NS) / MOST_TIME;
        if let Some(gaps) = self.gaps.as_ref().filter(|gaps| gaps.disturbed_ns > most_ns) {
            let share = gaps.disturbed_ns as f64 * 100.0 / cpu_ns.max(1) as f64;
            let most = gaps.causes.first().map_or("", |cause| cause.name.as_str());
            reasons.push(format!("gaps took {share:.1} % of the time, most by {most}"));
        }
        if let Some(moves) = self.migrations.filter(|moves| *moves > most_moves) {
            reasons.push(count_noun(moves, "migration"));
        }
        if let Some((low, high)) = self.khz
            && high.saturating_sub(low) > low / MOST_CHANGE
        {
            reasons.push(format!("a frequency of {} MHz", range(low, high)));
        }
        reasons
    }
}

/// `2400`, `2400 to 3100` (MHz).
fn range(low_khz: u64, high_khz: u64) -> String {
    let (low, high) = (low_khz / 1000, high_khz / 1000);
    if low == high { low.to_string() } else { format!("{low} to {high}") }
}

impl fmt::Display for Observed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(gaps) = &self.gaps {
            write!(f, "; {gaps}")?;
        }
        if let Some(moves) = self.migrations {
            write!(f, "; {}", count_noun(moves, "migration"))?;
        }
        match self.khz {
            Some((low, high)) => write!(f, "; {} MHz", range(low, high)),
            None => Ok(()),
        }
    }
}

/// Gaps of a command that it did not cause itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct GapNoise {
    count: usize,
    sum_ns: u64,
    /// Time of its CPUs in which a task was in such a gap.
    disturbed_ns: u64,
    longest_ns: u64,
    /// The one with the most time first.
    causes: Vec<CauseSum>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct CauseSum {
    name: String,
    count: usize,
    ns: u64,
}

impl GapNoise {
    /// The gaps of one command; its name is empty if only one was observed.
    pub(super) fn from_report(report: &GapReport, name: &str) -> Self {
        let threads = report.summary.threads.iter().filter(|thread| thread.subject == name);
        let own: BTreeSet<u32> = threads.map(|thread| thread.tid).collect();
        let (mut noise, mut spans) = (Self::default(), Vec::new());
        let gaps = report.gaps.iter().filter(|gap| gap.subject == name);
        for gap in gaps.filter(|gap| own_ns(gap, &own) * 2 < gap.length_ns) {
            noise.count += 1;
            spans.push(Span {
                cpu: gap.cpu,
                begin: gap.at_ns,
                end: gap.at_ns.saturating_add(gap.length_ns),
            });
            noise.sum_ns = noise.sum_ns.saturating_add(gap.length_ns);
            noise.longest_ns = noise.longest_ns.max(gap.length_ns);
            let name = cause_name(gap);
            match noise.causes.iter_mut().find(|cause| cause.name == name) {
                Some(cause) => {
                    cause.count += 1;
                    cause.ns = cause.ns.saturating_add(gap.length_ns);
                }
                None => noise.causes.push(CauseSum { name, count: 1, ns: gap.length_ns }),
            }
        }
        noise.causes.sort_by_key(|cause| std::cmp::Reverse(cause.ns));
        noise.disturbed_ns = covered_ns(spans);
        noise
    }
}

/// Time of a gap on the CPU on which it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Span {
    cpu: u32,
    begin: u64,
    end: u64,
}

/// The time that spans cover; where several tasks of a CPU wait at once, it counts once.
fn covered_ns(mut spans: Vec<Span>) -> u64 {
    spans.sort_unstable();
    let mut covered = 0_u64;
    let mut last = Span { cpu: u32::MAX, begin: 0, end: 0 };
    for span in spans {
        let begin = if span.cpu == last.cpu { span.begin.max(last.end) } else { span.begin };
        covered = covered.saturating_add(span.end.saturating_sub(begin));
        last = Span {
            end: if span.cpu == last.cpu { span.end.max(last.end) } else { span.end },
            ..span
        };
    }
    covered
}

/// The time of a gap that the command caused itself: its tasks ran, or it waited for something.
fn own_ns(gap: &Gap, own: &BTreeSet<u32>) -> u64 {
    let parts = gap.parts.iter().filter(|part| match &part.cause {
        Cause::Thread { tid, is_own, .. } => *is_own || own.contains(tid),
        Cause::Blocked { .. } | Cause::Awaited { .. } | Cause::Stopped => true,
        Cause::Interrupt { .. }
        | Cause::Processor { .. }
        | Cause::Softirq { .. }
        | Cause::KernelWork { .. }
        | Cause::IdleExit { .. }
        | Cause::Quota { .. }
        | Cause::Queued
        | Cause::Exit { .. }
        | Cause::Unseen
        | Cause::Steal => false,
    });
    parts.fold(0, |sum, part| sum.saturating_add(part.ns))
}

/// Tasks by their name only: a compiler has many processes.
fn cause_name(gap: &Gap) -> String {
    match gap.cause() {
        Some(Cause::Thread { name, .. }) => escape::escape_text(name).into_owned(),
        Some(cause) => cause.to_string(),
        None if gap.parts.is_empty() => "an unknown cause".to_owned(),
        None => "several causes".to_owned(),
    }
}

fn ms(ns: u64) -> String {
    format!("{:.1} ms", ns as f64 / 1e6)
}

impl fmt::Display for GapNoise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of at least {}", count_noun(self.count, "gap"), ms(OVER_NS))?;
        if self.count == 0 {
            return Ok(());
        }
        write!(f, ", {} together, longest {}: ", ms(self.sum_ns), ms(self.longest_ns))?;
        let causes = self.causes.iter().take(NAMED);
        let causes: Vec<String> =
            causes.map(|cause| format!("{} by {}", cause.count, cause.name)).collect();
        f.write_str(&causes.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use pinfold_probe::gaps::{Part, Summary, ThreadGaps};

    use super::*;

    const MS: u64 = 1_000_000;

    fn thread(tid: u32) -> ThreadGaps {
        ThreadGaps {
            subject: String::new(),
            tid,
            role: "task".to_owned(),
            has_ended: false,
            shorter: 0,
            shorter_ns: 0,
            histogram: Vec::new(),
        }
    }

    fn gap(length_ms: u64, parts: &[(Cause, u64)]) -> Gap {
        let parts = parts.iter().map(|(cause, ms)| Part { cause: cause.clone(), ns: ms * MS });
        Gap {
            subject: String::new(),
            tid: 7,
            role: "task".to_owned(),
            at_ns: 0,
            length_ns: length_ms * MS,
            cpu: 1,
            moves: 0,
            is_open: false,
            is_at_least: false,
            parts: parts.collect(),
        }
    }

    fn at(ms: u64, gap: Gap) -> Gap {
        Gap { at_ns: ms * MS, ..gap }
    }

    fn task(tid: u32, is_own: bool) -> Cause {
        let (name, policy) = (format!("job{}", tid / 10), "other".to_owned());
        Cause::Thread { name, tid, policy, cgroup: None, machine: None, is_own }
    }

    fn disturbance() -> Observed {
        let irq = Cause::Interrupt { number: 24, device: "virtio1".to_owned() };
        let report = GapReport {
            summary: Summary { threads: vec![thread(7), thread(8)], ..Summary::default() },
            gaps: vec![
                gap(4, &[(task(90, false), 4)]),
                at(10, gap(3, &[(task(91, false), 2), (task(8, false), 1)])),
                at(20, gap(1, &[(irq, 1)])),
                at(30, gap(2, &[])),
                // Its own work.
                gap(9, &[(task(8, false), 8)]),
                gap(9, &[(task(60, true), 9)]),
                gap(9, &[(Cause::Blocked { waker: None }, 9)]),
            ],
        };
        let gaps = Some(GapNoise::from_report(&report, ""));
        Observed { gaps, migrations: Some(1), khz: Some((2_400_000, 3_100_000)), no_gaps: None }
    }

    #[test]
    fn gaps_that_the_command_did_not_cause_are_counted_by_cause() {
        let all = "; 5 gaps of at least 0.1 ms, 10.0 ms together, longest 4.0 ms: 2 by job9, 1 by an \
                   unknown cause, 1 by interrupt 24 (virtio1); 1 migration; 2400 to 3100 MHz";
        assert_eq!(disturbance().to_string(), all.replacen("5 gaps", "4 gaps", 1));
        let none = GapNoise::from_report(&GapReport::default(), "").to_string();
        assert_eq!(none, "0 gaps of at least 0.1 ms");
        assert_eq!(Observed::default().to_string(), "");
    }

    /// A thread of one command on the CPU of the other is no own work.
    #[test]
    fn each_of_several_commands_has_its_own_gaps() {
        let of =
            |subject: &str, tid: u32| ThreadGaps { subject: subject.to_owned(), ..thread(tid) };
        let server = Gap { subject: "server".to_owned(), ..gap(4, &[(task(8, false), 4)]) };
        let load = Gap { subject: "load".to_owned(), tid: 8, ..gap(2, &[(task(8, false), 2)]) };
        let threads = vec![of("server", 7), of("load", 8)];
        let report = GapReport {
            summary: Summary { threads, ..Summary::default() },
            gaps: vec![server, load],
        };
        let noise = GapNoise::from_report(&report, "server").to_string();
        assert_eq!(noise, "1 gap of at least 0.1 ms, 4.0 ms together, longest 4.0 ms: 1 by job0");
        let noise = GapNoise::from_report(&report, "load").to_string();
        assert_eq!(noise, "0 gaps of at least 0.1 ms");
    }

    #[test]
    fn tasks_that_wait_at_once_on_a_cpu_are_disturbed_once() {
        let span = |cpu, begin, end| Span { cpu, begin, end };
        let one = [span(0, 10, 30), span(0, 0, 20), span(0, 12, 14), span(0, 40, 41)];
        assert_eq!(covered_ns(one.to_vec()), 31);
        assert_eq!(covered_ns([&one[..], &[span(1, 0, 20)]].concat()), 51);
        assert_eq!(covered_ns(Vec::new()), 0);
    }

    #[test]
    fn much_time_in_gaps_many_migrations_and_other_frequencies_are_not_quiet() {
        let expected = [
            "gaps took 10.0 % of the time, most by job9",
            "1 migration",
            "a frequency of 2400 to 3100 MHz",
        ];
        assert_eq!(disturbance().reasons(100 * MS, 0), expected[1..], "a tenth of a second");
        let much = GapNoise { disturbed_ns: 100 * MS, ..disturbance().gaps.expect("gaps") };
        let much = Observed { gaps: Some(much), ..disturbance() };
        assert_eq!(much.reasons(1_000 * MS, 0), expected);
        assert_eq!(disturbance().reasons(1_000 * MS, 1), expected[2..]);
        let steady = Observed { khz: Some((3_000_000, 3_100_000)), ..disturbance() };
        assert_eq!(steady.reasons(1_000 * MS, 1), [""; 0]);
    }
}
