//! All probes: what each measures, its reference tool, and the group of its rows.
//!
//! The descriptions come from the registry, so that none can be missing: a probe without an entry
//! here fails a test.

use pinfold_probe::counters;
use pinfold_probe::registry::PROBES;

use super::Measured;
use crate::arguments::{Arguments, Failure};
use crate::page::Table;

/// The reference tool of a probe, and its groups.
struct Entry {
    benchmark: &'static str,
    reference_tool: &'static str,
    groups: &'static [&'static str],
}

const NOT_PUBLISHED: &str = "none, because Buchert 2011 published no programs: it compares machines and guests, with the same work on both";
const OWN_WORK: &str = "none, because no other tool runs its work: it compares machines and guests, with the same work on both";

const fn entry(
    benchmark: &'static str,
    reference_tool: &'static str,
    groups: &'static [&'static str],
) -> Entry {
    Entry { benchmark, reference_tool, groups }
}

/// The probes of `pinfold measure`.
const MEASURED: &[Entry] = &[
    entry("spin-gap", "stalls of known length, timed by the kernel's trace; oslat", &["latency"]),
    entry("wakeup", "cyclictest", &["latency"]),
    entry("io", "fio", &["io"]),
    entry("compute", OWN_WORK, &[]),
    entry(
        "bandwidth",
        "likwid-bench; for parts of lines and memset none, with why",
        &["memory", "repeat"],
    ),
    entry("stream-variant", "plain loops by gcc -O3, likwid-bench", &["memory"]),
    entry(
        "chase",
        "plain chase as multichase's; for latency under load none, with why",
        &["memory", "area", "repeat"],
    ),
    entry("loop64", "none, because Kuehn and Baum published no program", &["memory"]),
    entry(
        "context-switch",
        "perf bench sched pipe; for more processes and for two CPUs none, with why",
        &["os"],
    ),
    entry("ipc-bandwidth", "none, with why in the rows", &["os"]),
    entry(
        "os-latency",
        "perf bench syscall basic; for all but one operation none, with why",
        &["os"],
    ),
    entry("intmix", OWN_WORK, &[]),
    entry(
        "parallel",
        "none, because no other tool runs these programs: their results are proven by checksums",
        &[],
    ),
    entry("micro-cpu", NOT_PUBLISHED, &[]),
    entry("micro-udp", NOT_PUBLISHED, &[]),
    entry("micro-sleep", NOT_PUBLISHED, &[]),
    entry("micro-memory", NOT_PUBLISHED, &[]),
    entry("micro-processes", NOT_PUBLISHED, &[]),
    entry("micro-threads", NOT_PUBLISHED, &[]),
];

/// The probes that observe a workload from outside, and what they measure.
const FROM_OUTSIDE: &[(Entry, &str)] = &[
    (
        entry("exits", "the micro-guest's known number of exits; perf kvm stat record", &["exits"]),
        "exits of a guest by type: count and time",
    ),
    (
        entry(counters::PROBE, "perf stat", &["counters", "observe"]),
        "migrations, switches, page faults, cycles, misses of each role's threads",
    ),
    (
        entry(
            "sched",
            "none, because perf sched writes every event to a buffer and knows no roles; its tests hold it against known waits",
            &["observe"],
        ),
        "how long runnable threads of each role waited, and which task ran instead",
    ),
    (
        entry(
            "locks",
            "none, because perf lock and perf trace report no time by lock address and call site; its tests compare it with a known number of calls",
            &[],
        ),
        "futex calls and time by lock and call site",
    ),
];

/// The table.
pub fn run(_: &Arguments) -> Result<Measured, Failure> {
    let registered = PROBES.iter().map(|probe| (of(probe.name), probe.name, probe.what));
    let outside = FROM_OUTSIDE.iter().map(|(entry, what)| (Some(entry), entry.benchmark, *what));
    let row = |(entry, name, what): (Option<&Entry>, &str, &str)| {
        let entry = entry.ok_or_else(|| format!("the benchmark {name} is not in the inventory"))?;
        let rows = match entry.groups {
            [] => "–".to_owned(),
            groups => groups.iter().map(|one| format!("“{one}”")).collect::<Vec<_>>().join(", "),
        };
        Ok(vec![name.to_owned(), what.to_owned(), entry.reference_tool.to_owned(), rows])
    };
    let rows = registered.chain(outside).map(row).collect::<Result<_, Failure>>()?;
    let head =
        ["benchmark", "what it measures", "reference tool", "rows"].map(str::to_owned).to_vec();
    Ok(Measured {
        conditions: "nothing is measured for this table".to_owned(),
        table: Table { head, rows },
        notes: Vec::new(),
    })
}

fn of(name: &str) -> Option<&'static Entry> {
    MEASURED.iter().find(|entry| entry.benchmark == name)
}

#[cfg(test)]
mod tests {
    use super::{Entry, FROM_OUTSIDE, MEASURED, PROBES, of};
    use crate::benchmarks::GROUPS;

    #[test]
    fn every_benchmark_has_its_entry() {
        for probe in PROBES {
            let entry = of(probe.name).unwrap_or_else(|| panic!("{} is missing", probe.name));
            let has_reference_tool = !entry.reference_tool.starts_with("none, ");
            assert!(
                has_reference_tool || probe.reference_tools.is_empty(),
                "{} has reference tools",
                probe.name
            );
        }
        let outside = FROM_OUTSIDE.iter().map(|(entry, _)| entry);
        let all: Vec<&Entry> = MEASURED.iter().chain(outside).collect();
        assert_eq!(
            MEASURED.len(),
            PROBES.len(),
            "no entry of a benchmark that is gone, none twice"
        );
        for entry in &all {
            for group in entry.groups {
                let is_known = GROUPS.iter().any(|(name, ..)| name == group);
                assert!(is_known, "{}: there is no group {group}", entry.benchmark);
            }
            let stands_alone = entry.reference_tool.starts_with("none, because ");
            assert!(stands_alone || !entry.groups.is_empty(), "{} has no row", entry.benchmark);
        }
        for (name, ..) in GROUPS.iter().filter(|(name, ..)| *name != "inventory") {
            assert!(
                all.iter().any(|entry| entry.groups.contains(name)),
                "{name} is of no benchmark"
            );
        }
    }
}
