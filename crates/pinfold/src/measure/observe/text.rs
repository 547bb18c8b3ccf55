//! Tables of observations.

use pinfold_host::FutexKind;
use pinfold_model::{Unit, escape};
use pinfold_probe::counters::{Counters, Outcome, Quantity, RoleCounters, Source};
use pinfold_probe::histogram::PERCENTILES;
use pinfold_probe::locks::{CallSites, FramePointers, Locks, kind_name};
use pinfold_probe::sched_latency::{
    Level, RanInstead, RoleLatency, SchedLatency, Waits, of_machine,
};
use pinfold_probe::symbols;
use pinfold_report::format::{self, MISSING};

use crate::screen;

/// Maximum number of names in a list of wakers or of tasks that ran.
const NAMES: usize = 3;
/// Maximum number of rows of futex words and of call sites.
const ROWS: usize = 12;

pub(super) fn table(head: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut table = screen::rows();
    table.set_header(head.iter().copied());
    for row in rows {
        table.add_row(row);
    }
    screen::draw_table(table, 1..head.len())
}

pub(super) fn lines(text: &mut String, lines: &[String], before: &str) {
    for line in lines {
        text.push_str(&format!("{before}{line}\n"));
    }
}

pub(super) fn time(ns: u64) -> String {
    format::duration(ns as f64)
}

/// The result of `sched` as a table.
pub fn sched(found: &SchedLatency) -> String {
    let mut text = match &found.level {
        Level::Tracepoints => match found.unseen() {
            0 => "all waits were recorded\n".to_owned(),
            1 => "all waits were recorded except one, whose start or end was missed\n".to_owned(),
            count => format!(
                "all waits were recorded except {}, whose start or end was missed\n",
                format::count(count)
            ),
        },
        Level::Schedstat { why } => format!("only sums are available, because {why}\n"),
    };
    let head = match found.level {
        Level::Tracepoints => "waits",
        Level::Schedstat { .. } => "slices",
    };
    let head = ["role", head, "share", "p50", "p99", "p99.9", "max", "preempted", "moved"];
    let rows = found.roles.iter().map(|role| sched_row(role, found.duration_ns)).collect();
    text.push_str(&format!("{}\n", table(&head, rows)));
    text.push_str(&missing_percentiles(found));
    for role in &found.roles {
        if let Some(waits) = &role.waits {
            text.push_str(&of_waits(role, waits));
        }
    }
    for (group, stopped) in &found.quotas {
        text.push_str(&format!(
            "quota: {} was stopped in {} of its periods, for {} summed over its CPUs: these waits \
             are not because of other tasks\n",
            escape::escape_text(group),
            format::count(stopped.periods),
            time(stopped.ns)
        ));
    }
    lines(&mut text, &found.lost, "not included: ");
    text
}

fn sched_row(role: &RoleLatency, duration_ns: u64) -> Vec<String> {
    let of =
        |number: fn(&Waits) -> u64| missing(role.waits.as_ref().map(|w| format::count(number(w))));
    vec![
        role.role.to_string(),
        format::count(role.count),
        missing(role.share(duration_ns).map(format::percent)),
        missing(percentile_text(0, role)),
        missing(percentile_text(2, role)),
        missing(percentile_text(3, role)),
        missing(role.waits.as_ref().and_then(|waits| waits.histogram.max_ns()).map(time)),
        of(|waits| waits.preempted),
        missing(role.migrations.map(format::count)),
    ]
}

fn percentile_text(index: usize, role: &RoleLatency) -> Option<String> {
    let waits = role.waits.as_ref()?;
    waits.histogram.percentile(PERCENTILES[index]).map(|bounds| time(bounds.at_most_ns))
}

/// Why a percentile has no value although there were waits.
fn missing_percentiles(found: &SchedLatency) -> String {
    let few = found.roles.iter().filter_map(|role| role.waits.as_ref()).any(|waits| {
        let values = PERCENTILES.map(|one| waits.histogram.percentile(one).is_some());
        values.contains(&true) && values.contains(&false)
    });
    if few {
        "p99 needs 1,000 waits, p99.9 needs 10,000: ten beyond it\n".to_owned()
    } else {
        String::new()
    }
}

fn missing(text: Option<String>) -> String {
    text.unwrap_or_else(|| MISSING.to_owned())
}

fn of_waits(role: &RoleLatency, waits: &Waits) -> String {
    let mut text = String::new();
    if let Some(worst) = &waits.worst {
        text.push_str(&format!("{}: longest {worst}\n", role.role));
    }
    for (tid, ns) in &waits.open {
        text.push_str(&format!(
            "{}: thread {tid} was still waiting at the end, for {} so far\n",
            role.role,
            time(*ns)
        ));
    }
    let instead = waits.instead.iter().take(NAMES);
    let instead: Vec<String> = instead.map(running).collect();
    if !instead.is_empty() {
        text.push_str(&format!("{}: running instead: {}\n", role.role, instead.join(", ")));
    }
    let wakers = waits.wakers.iter().take(NAMES);
    let wakers: Vec<String> =
        wakers.map(|(name, count)| format!("{name} {}×", format::count(*count))).collect();
    if !wakers.is_empty() {
        text.push_str(&format!("{}: woken by {}\n", role.role, wakers.join(", ")));
    }
    text
}

fn running(one: &RanInstead) -> String {
    let machine = of_machine(one.machine.as_deref());
    format!("{machine}{} ({}) {}", one.name, one.tid, time(one.ns))
}

/// Counters: a row for each quantity that was counted for any role, a column for each role.
pub fn counters(found: &Counters) -> String {
    let mut head = vec!["quantity".to_owned()];
    head.extend(found.roles.iter().map(|role| role.role.to_string()));
    let head: Vec<&str> = head.iter().map(String::as_str).collect();
    let rows: Vec<Vec<String>> = Quantity::ALL
        .into_iter()
        .filter(|quantity| found.roles.iter().any(|role| value(role, *quantity).is_some()))
        .map(|quantity| {
            let cells = found
                .roles
                .iter()
                .map(|role| value(role, quantity).unwrap_or_else(|| MISSING.to_owned()));
            [quantity.name().to_owned()].into_iter().chain(cells).collect()
        })
        .collect();
    let mut text = format!("{}\n", table(&head, rows));
    let mut absent: Vec<(String, Vec<&str>)> = Vec::new();
    for (quantity, why, _) in found.absent() {
        match absent.iter_mut().find(|(known, _)| *known == why) {
            Some((_, names)) => names.push(quantity.name()),
            None => absent.push((why, vec![quantity.name()])),
        }
    }
    for (why, names) in absent {
        text.push_str(&format!("not available here, because {why}: {}\n", names.join(", ")));
    }
    for (quantity, source, why) in stand_ins(found) {
        let name = quantity.name();
        text.push_str(&format!("{name}: from {}, because perf: {why}\n", source.name()));
    }
    if found.threads_kept_changing {
        text.push_str("threads were created while the counters were opened: some may be missing\n");
    }
    text
}

/// Quantities that were not counted by perf events, once for each quantity and reason.
fn stand_ins(found: &Counters) -> Vec<(Quantity, Source, String)> {
    let mut all: Vec<(Quantity, Source, String)> = Vec::new();
    for (quantity, outcome) in found.roles.iter().flat_map(|role| &role.outcomes) {
        let Outcome::Counted(counted) = outcome else { continue };
        let Some(why) = &counted.instead_of else { continue };
        let one = (*quantity, counted.source, why.clone());
        if !all.contains(&one) {
            all.push(one);
        }
    }
    all
}

fn value(role: &RoleCounters, quantity: Quantity) -> Option<String> {
    let (_, outcome) = role.outcomes.iter().find(|(own, _)| *own == quantity)?;
    let Outcome::Counted(counted) = outcome else { return None };
    let number = match quantity.unit() {
        Unit::Nanoseconds => time(counted.value),
        Unit::PerSecond
        | Unit::PerSecondPerMhz
        | Unit::BytesPerSecond
        | Unit::Bytes
        | Unit::Count
        | Unit::Share => format::count(counted.value),
    };
    Some(if counted.running_share < 1.0 {
        let share = format::percent(counted.running_share);
        format!("{number} (scaled: the counter ran {share} of the time)")
    } else {
        number
    })
}

/// The result of `locks` as a table.
pub fn locks(found: &Locks) -> String {
    let kinds = [FutexKind::Lock, FutexKind::Wait];
    let head = ["role", "threads", "kind", "calls", "time", "share", "longest", "too late"];
    let rows = found.roles.iter().flat_map(|role| {
        kinds.into_iter().map(|kind| {
            let spent = role.spent.get(&kind).copied().unwrap_or_default();
            let any = spent.count + spent.open > 0;
            let share = role.share(kind, found.duration_ns).map(format::percent);
            vec![
                role.role.to_string(),
                role.threads.to_string(),
                kind_name(kind).to_owned(),
                format::count(spent.count),
                time(spent.sum_ns),
                share.unwrap_or_else(|| MISSING.to_owned()),
                if any { time(spent.max_ns) } else { MISSING.to_owned() },
                format::count(spent.again),
            ]
        })
    });
    let mut text = format!("{}\n", table(&head, rows.collect()));
    let words = found.words.iter().take(ROWS).map(|word| {
        vec![
            word.name.clone().unwrap_or_else(|| format!("{:#x}", word.address)),
            kind_name(word.kind).to_owned(),
            format::count(word.spent.count),
            time(word.spent.sum_ns),
            time(word.spent.max_ns),
            word.roles.len().to_string(),
        ]
    });
    let words: Vec<Vec<String>> = words.collect();
    if !words.is_empty() {
        let head = ["word", "kind", "calls", "time", "longest", "roles"];
        text.push_str(&format!("\n{}\n", table(&head, words)));
    }
    if let Some(sites) = &found.sites {
        text.push_str(&format!("\n{}", call_sites(sites)));
    }
    lines(&mut text, &found.lost, "not included: ");
    text
}

fn call_sites(found: &CallSites) -> String {
    let mut text = match found.frame_pointers {
        None => "no wait was recorded, so there are no call sites\n".to_owned(),
        Some(FramePointers::Kept) => "call sites, by frame pointers\n".to_owned(),
        Some(FramePointers::Omitted) => "call sites; the code has no frame pointers, so only the \
            innermost function of each is reliable\n"
            .to_owned(),
    };
    for site in found.sites.iter().take(ROWS) {
        let spent =
            format!("{} in {} calls", time(site.spent.sum_ns), format::count(site.spent.count));
        let frames = site.frames.join(" < ");
        text.push_str(&format!("{}: {spent}: {frames}\n", kind_name(site.kind)));
    }
    for (file, table) in &found.tables {
        match table {
            symbols::Table::Whole => {}
            symbols::Table::DynamicOnly => {
                text.push_str(&format!("{file} is stripped: only exported functions have names\n"))
            }
            symbols::Table::Absent(why) => {
                text.push_str(&format!("{file} has no names: {why}\n"));
            }
        }
    }
    if found.missing > 0 {
        text.push_str(&format!("{} waits without a stack\n", format::count(found.missing)));
    }
    text
}
