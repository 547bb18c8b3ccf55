//! The table of exits: pure arithmetic on the sums of the kernel.

use std::collections::BTreeMap;

use pinfold_host::{Address, DurationStats, ExitSource, ThreadExits};
use pinfold_model::Finding;
use pinfold_model::text::{count_noun, select_verb};

use crate::cost::Cost;
use crate::level::Level;
use crate::names::{self, Architecture};

/// Name of the row of [`Kind::Preempted`].
pub(super) const PREEMPTED: &str = "DESCHEDULED: preempted";
/// Name of the row of [`Kind::Asleep`].
pub(super) const ASLEEP: &str = "DESCHEDULED: asleep";

/// The kind of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// Exits of one type.
    Exit,
    /// Intervals in the guest; at level B including the time in KVM.
    Guest,
    /// Intervals without a CPU because another thread had it (DESCHEDULED of Crăciun, first part).
    Preempted,
    /// Intervals without a CPU because the thread slept, like that of a halted vCPU (second part).
    Asleep,
}

/// Times of a row (ns).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Times {
    /// The shortest occurrence.
    pub shortest_ns: u64,
    /// The longest occurrence.
    pub longest_ns: u64,
    /// The mean over the occurrences.
    pub mean_ns: f64,
    /// The sum over the occurrences.
    pub sum_ns: u64,
    /// Standard deviation of the sample; `None` for a single one.
    pub deviation_ns: Option<f64>,
    /// Share of the observation, 0 to 1; for several vCPUs, share of their total time.
    pub share: f64,
}

/// One row.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Name of the row.
    pub name: String,
    /// Kind of the row.
    pub kind: Kind,
    /// Number of occurrences; never 0 in a table with times.
    pub count: u64,
    /// Occurrences per second of one vCPU's observation.
    pub per_second: f64,
    /// Times; `None` where only counts are known.
    pub times: Option<Times>,
}

/// The rows of one vCPU, or of all together.
#[derive(Clone, Debug, PartialEq)]
pub struct Vcpu {
    /// Index of the vCPU; `None` for all together.
    pub vcpu: Option<u32>,
    /// Exits by total time (by count where there are no times), then the other kinds.
    pub rows: Vec<Row>,
}

impl Vcpu {
    /// Sum of the counts of all exit rows. At level C these overlap, because an exit can be in
    /// several counters.
    pub fn exits(&self) -> u64 {
        self.rows.iter().filter(|row| row.kind == Kind::Exit).map(|row| row.count).sum()
    }
}

/// An address that was accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRow {
    /// The accessed address.
    pub address: Address,
    /// True for a write.
    pub is_write: bool,
    /// Number of accesses.
    pub count: u64,
}

/// The table of exits.
///
/// ```
/// use pinfold_exits::{ExitTable, Kind, Level, Row, Vcpu};
///
/// let row = |name: &str, kind, count| {
///     Row { name: name.to_owned(), kind, count, per_second: count as f64, times: None }
/// };
/// let rows = vec![row("HLT", Kind::Exit, 20), row("TIMEINGUEST", Kind::Guest, 20)];
/// let table = ExitTable {
///     level: Level::A,
///     duration_ns: 1_000_000_000,
///     total: Vcpu { vcpu: None, rows: rows.clone() },
///     vcpus: vec![Vcpu { vcpu: Some(0), rows }],
///     addresses: Vec::new(),
///     events: Some(40),
///     cost: None,
///     findings: Vec::new(),
/// };
/// assert_eq!(table.total.exits(), 20, "times in the guest are no exits");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ExitTable {
    /// The level of the data.
    pub level: Level,
    /// Duration of the observation (ns).
    pub duration_ns: u64,
    /// All vCPUs together.
    pub total: Vcpu,
    /// The rows of each vCPU.
    pub vcpus: Vec<Vcpu>,
    /// All accessed addresses, by descending count.
    pub addresses: Vec<AddressRow>,
    /// Number of events that the kernel processed; `None` where it processed none.
    pub events: Option<u64>,
    /// Overhead of the observation, if it was measured.
    pub cost: Option<Cost>,
    /// Findings that limit the table.
    pub findings: Vec<Finding>,
}

impl ExitTable {
    /// Share of the vCPUs' time that the observation took, if its cost was measured.
    pub fn cost_share(&self) -> Option<f64> {
        let time = self.duration_ns as f64 * self.vcpus.len() as f64;
        let cost = self.cost.as_ref()?.per_event_ns.median;
        (time > 0.0).then(|| cost * self.events.unwrap_or(0) as f64 / time)
    }
}

/// The exits of a thread, and its vCPU.
pub(super) struct Watched {
    pub(super) vcpu: u32,
    pub(super) exits: ThreadExits,
    pub(super) has_ended: bool,
}

/// The data from which the names are derived.
#[derive(Clone, Copy)]
pub(super) struct Origin {
    pub(super) source: ExitSource,
    pub(super) architecture: Option<Architecture>,
}

pub(super) fn table(of: Origin, duration_ns: u64, threads: &[Watched]) -> ExitTable {
    let vcpus = threads
        .iter()
        .map(|thread| Vcpu { vcpu: Some(thread.vcpu), rows: rows(of, duration_ns, &thread.exits) });
    let vcpus: Vec<Vcpu> = vcpus.collect();
    let all =
        threads.iter().fold(ThreadExits::default(), |sum, thread| add_exits(sum, &thread.exits));
    let time = duration_ns.saturating_mul(threads.len() as u64);
    let total = Vcpu { vcpu: None, rows: rows(of, time, &all) };
    let mut addresses: Vec<AddressRow> = all
        .addresses
        .iter()
        .map(|((address, is_write), count)| AddressRow {
            address: *address,
            is_write: *is_write,
            count: *count,
        })
        .collect();
    addresses.sort_by_key(|row| (std::cmp::Reverse(row.count), row.address, row.is_write));
    ExitTable {
        level: of.source.into(),
        duration_ns,
        findings: findings(of, &all, &total, threads),
        total,
        vcpus,
        addresses,
        events: Some(all.events),
        cost: None,
    }
}

fn add_exits(mut sum: ThreadExits, one: &ThreadExits) -> ThreadExits {
    sum.guest = both(sum.guest, one.guest);
    sum.asleep = both(sum.asleep, one.asleep);
    sum.preempted = both(sum.preempted, one.preempted);
    for (key, stretches) in &one.exits {
        let entry = sum.exits.entry(*key).or_default();
        *entry = both(*entry, *stretches);
    }
    for (key, count) in &one.addresses {
        *sum.addresses.entry(*key).or_default() += count;
    }
    sum.events += one.events;
    sum.unpaired += one.unpaired;
    sum.no_room += one.no_room;
    sum.no_address += one.no_address;
    sum
}

fn both(a: DurationStats, b: DurationStats) -> DurationStats {
    match (a.count, b.count) {
        (0, _) => b,
        (_, 0) => a,
        (_, _) => DurationStats {
            count: a.count + b.count,
            sum_ns: a.sum_ns.saturating_add(b.sum_ns),
            shortest_ns: a.shortest_ns.min(b.shortest_ns),
            longest_ns: a.longest_ns.max(b.longest_ns),
            squares: a.squares.saturating_add(b.squares),
        },
    }
}

fn rows(of: Origin, time_ns: u64, thread: &ThreadExits) -> Vec<Row> {
    // Several reasons may have the same name (a signal and another): they are merged into one row.
    let mut named: BTreeMap<String, ThreadExits> = BTreeMap::new();
    for (key, stretches) in &thread.exits {
        let name = names::name(of.source, of.architecture, *key);
        let one = ThreadExits { guest: *stretches, ..ThreadExits::default() };
        let sum = named.remove(&name).unwrap_or_default();
        named.insert(name, add_exits(sum, &one));
    }
    let mut exits: Vec<Row> = named
        .into_iter()
        .filter_map(|(name, sum)| row(name, Kind::Exit, sum.guest, time_ns))
        .collect();
    exits.sort_by_key(|row| std::cmp::Reverse(row.times.map_or(row.count, |times| times.sum_ns)));
    let guest = match of.source {
        ExitSource::Hardware => "TIMEINGUEST",
        ExitSource::Userspace => "GUEST_AND_KVM",
    };
    let others = [
        (guest, Kind::Guest, thread.guest),
        (PREEMPTED, Kind::Preempted, thread.preempted),
        (ASLEEP, Kind::Asleep, thread.asleep),
    ];
    exits.extend(
        others.into_iter().filter_map(|(name, kind, sum)| row(name.to_owned(), kind, sum, time_ns)),
    );
    exits
}

/// `None` for a type that did not occur, instead of a row of zeros.
fn row(name: String, kind: Kind, sum: DurationStats, time_ns: u64) -> Option<Row> {
    if sum.count == 0 {
        return None;
    }
    let time = time_ns as f64;
    let part = |of: f64| if time > 0.0 { of / time } else { 0.0 };
    let times = Times {
        shortest_ns: sum.shortest_ns,
        longest_ns: sum.longest_ns,
        mean_ns: sum.sum_ns as f64 / sum.count as f64,
        sum_ns: sum.sum_ns,
        deviation_ns: deviation(&sum),
        share: part(sum.sum_ns as f64),
    };
    let per_second = part(sum.count as f64 * 1e9);
    Some(Row { name, kind, count: sum.count, per_second, times: Some(times) })
}

/// √((n Σx² − (Σx)²) / (n (n − 1))), in integers if they do not overflow.
fn deviation(sum: &DurationStats) -> Option<f64> {
    let n = sum.count;
    if n < 2 {
        return None;
    }
    let total = u128::from(sum.sum_ns);
    let above = match (sum.squares.checked_mul(u128::from(n)), total.checked_mul(total)) {
        (Some(left), Some(right)) => left.saturating_sub(right) as f64,
        (None, _) | (_, None) => {
            (sum.squares as f64 * n as f64 - sum.sum_ns as f64 * sum.sum_ns as f64).max(0.0)
        }
    };
    Some((above / (n as f64 * (n - 1) as f64)).sqrt())
}

/// A finding on time that is in no row, if that is more than 1 %.
fn report_unfinished(total: &Vcpu) -> Option<Finding> {
    const WORTH_TELLING: f64 = 0.01;
    let shares = total.rows.iter().filter_map(|row| row.times).map(|times| times.share);
    let rest = 1.0 - shares.sum::<f64>();
    (total.exits() > 0 && rest > WORTH_TELLING).then(|| {
        let text = format!(
            "{:.0} % of the time is in no row: exits that were in progress when the observation \
             began or ended, such as the sleep of a halted vCPU",
            rest * 100.0
        );
        Finding::note("exits", text).with_hint("observe longer (--seconds)")
    })
}

/// A finding on events that the kernel did not pass to the programs, if there are any.
pub fn report_missed(events: u64) -> Option<Finding> {
    (events > 0).then(|| {
        let text = format!(
            "{} of the host occurred while another BPF program ran on their CPU and {} not counted",
            count_noun(events, "event"),
            select_verb(events, "is", "are")
        );
        Finding::note("exits", text)
    })
}

fn findings(of: Origin, all: &ThreadExits, total: &Vcpu, threads: &[Watched]) -> Vec<Finding> {
    let mut found = Vec::new();
    if total.exits() == 0 {
        let text = "no exits occurred during the observation";
        found.push(Finding::warning("exits", text).with_hint(
            "an idle or stopped guest causes none: give it work, or observe longer (--seconds)",
        ));
    }
    found.extend(
        report_unfinished(total).filter(|_| threads.iter().all(|thread| !thread.has_ended)),
    );
    if all.unpaired > 0 {
        let text = format!(
            "{} not counted: an exit without its entry, or the reverse",
            count_noun(all.unpaired, "event")
        );
        found.push(Finding::note("exits", text));
    }
    if all.no_room > 0 {
        let text =
            format!("{} lost: the BPF map of exit types was full", count_noun(all.no_room, "exit"));
        found.push(
            Finding::warning("exits", text)
                .with_hint("observe fewer vCPUs at once, or for a shorter time"),
        );
    }
    if all.no_address > 0 {
        let text = format!(
            "{} accesses are not in the table of addresses: the BPF map of addresses was full",
            all.no_address
        );
        found.push(Finding::note("exits", text));
    }
    let is_risc_v = of.architecture == Some(Architecture::RiscV);
    if is_risc_v
        && all.addresses.is_empty()
        && total.rows.iter().any(|row| row.name.ends_with("GUEST_PAGE_FAULT"))
    {
        let text = "accesses to devices are among the guest page faults and have no addresses: KVM \
                    of RISC-V makes no event for them";
        found.push(Finding::note("exits", text));
    }
    let ended: Vec<String> = threads
        .iter()
        .filter(|thread| thread.has_ended)
        .map(|thread| thread.vcpu.to_string())
        .collect();
    if !ended.is_empty() {
        let text = format!(
            "the {} of vCPU {} ended during the measurement: counts stop there, and shares and rates \
             are of the whole time",
            select_verb(ended.len(), "thread", "threads"),
            ended.join(", ")
        );
        found.push(Finding::warning("exits", text).with_hint(
            "the machine exited or its vCPU was unplugged: measure again while it runs",
        ));
    }
    found
}
