//! Studies on uncommon hosts: two NUMA nodes; CPUs isolated at boot with frequency control; guests
//! of a real KVM whose exits are counted.
//!
//! The results of a study on far memory are compared with the kernel's data on the pages of the
//! programs that it ran. Measured times are those of an emulator, and are only required to exist.

use std::collections::{BTreeMap, BTreeSet};

use pinfold_model::CpuSet;
use serde_json::Value;

use super::nested;
use crate::error::{LabError, expect_none};
use crate::guest::Guest;
use crate::guest_files::MODULES;

/// The program of a trial. It prints a line: the levels of its cell, its own CPUs and pages on
/// either node, and those of its neighbour, as soon as that has filled most of its memory.
const LOOK: &str = r#"
pages() { awk '/anon=/ && !/file=/ { for (i = 1; i <= NF; i++) if ($i ~ /^N[01]=/) n[substr($i, 2, 1)] += substr($i, 4) }
    END { printf "%d %d", n[0], n[1] }' /proc/$1/numa_maps; }
pus() { sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/$1/status; }
beside="none 0 0"
if [ $2 != none ]; then
    other=$(for p in /proc/[0-9]*; do case $(readlink $p/exe) in */pinload-*) echo ${p#/proc/} ;; esac; done)
    for i in $(seq 600); do
        set -- $1 $2 $(pages $other)
        [ $(($3 + $4)) -ge 10000 ] && break
        usleep 100000
    done
    beside="$(pus $other) $3 $4"
fi
echo "$1 $2 $(pus self) $(pages self) $beside" >> /tmp/looked.txt
echo looked 1
"#;
const FAR_MEMORY: &str = r#"
name = "far"
repetitions = 2

[baseline]
memory_node = "near"
neighbour = "none"

[[factor]]
name = "cores"
levels = [1]

[[factor]]
name = "memory_node"
levels = ["near", "far"]

[[factor]]
name = "neighbour"
levels = ["none", "same-node", "other-node"]

[[workload]]
name = "look"
command = ["/bin/busybox", "sh", "/tmp/look.sh", "{memory_node}", "{neighbour}"]
lasts = "1s"

[[workload.figure]]
name = "looked"
unit = "count"
regex = "looked (\\d+)"

[[workload]]
name = "loop64"
pinload = ["loop64", "--seconds", "0.2"]
lasts = "1s"

[[workload.figure]]
name = "pass"
unit = "ns"
json = "samples"
where = "labels.of == 'pass'"
"#;
/// Trials of each workload: six cells and the baseline's twin, in two blocks.
const TRIALS: u64 = 14;
/// Pages of the 64 MB that each trial of `loop64` uses.
const LOOP_PAGES: u64 = 16_384;

/// The memory of trials and neighbours is on the node of the study's levels.
pub(super) fn far_memory(guest: &mut Guest) -> Result<String, LabError> {
    write(guest, "/tmp/look.sh", LOOK)?;
    let before = from_other_nodes(guest)?;
    run(guest, "far", FAR_MEMORY, 2 * TRIALS)?;
    let after = from_other_nodes(guest)?;
    let text = guest.shell("cat /tmp/looked.txt")?;
    let mut wrong = Vec::new();
    let lines: Vec<&str> = text.lines().collect();
    if lines.len() as u64 != TRIALS {
        wrong.push(format!("{} looks, not {TRIALS}", lines.len()));
    }
    // All trials are measured on the same node.
    let mut homes = [0_u64; 2];
    for line in &lines {
        match is_placed(line) {
            Some((home, true)) => homes[home] += 1,
            Some((_, false)) | None => wrong.push(format!("not where it was asked for: {line}")),
        }
    }
    if !homes.contains(&0) {
        wrong.push(format!("trials were measured on both nodes: {homes:?}"));
    }
    // Three cells of six, in two blocks, have their memory on the node where none of them runs.
    let far = usize::from(homes[0] > 0);
    let moved = after[far].saturating_sub(before[far]);
    if moved < 6 * LOOP_PAGES {
        wrong.push(format!("only {moved} pages of node {far} were taken from the other one"));
    }
    expect_none("the study's memory", wrong)?;
    Ok(format!(
        "{TRIALS} trials and their neighbours have their pages on the node of their cell, by \
         numa_maps; {moved} pages of the other node's programs on the far one, by numastat"
    ))
}

/// Whether a line matches its cell, and the node of its CPU.
fn is_placed(line: &str) -> Option<(usize, bool)> {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let [memory, neighbour, pu, own0, own1, beside, beside0, beside1] = words.as_slice() else {
        return None;
    };
    // Four CPUs per node.
    fn node(pus: &str) -> Option<usize> {
        pus.parse::<usize>().ok().map(|pu| usize::from(pu > 3))
    }
    fn number(word: &str) -> Option<u64> {
        word.parse::<u64>().ok()
    }
    let home = node(pu)?;
    let own = [number(own0)?, number(own1)?];
    let other = [number(beside0)?, number(beside1)?];
    let wanted = if *memory == "far" { 1 - home } else { home };
    let is_own = own[wanted] > 0 && own[1 - wanted] == 0;
    let is_beside = match *neighbour {
        "none" => *beside == "none",
        place => {
            let there = if place == "same-node" { home } else { 1 - home };
            node(beside)? == there && pu != beside && other[there] >= 10_000
                // Its program, which was in memory before the trial.
                && other[1 - there] < 100
        }
    };
    Some((home, is_own && is_beside))
}

/// Pages of each node that were allocated to programs on another one.
fn from_other_nodes(guest: &mut Guest) -> Result<[u64; 2], LabError> {
    let text = guest.shell("cat /sys/devices/system/node/node[01]/numastat")?;
    let counts: Vec<u64> = text
        .lines()
        .filter_map(|line| line.strip_prefix("other_node ")?.trim().parse().ok())
        .collect();
    counts.try_into().map_err(|_| LabError::wrong("numastat", text))
}

/// The program of a trial: its cell, its own CPUs, and the governor of each CPU.
const WHERE: &str = r#"
governors=$(for c in 0 1 2 3; do cat /sys/devices/system/cpu/cpu$c/cpufreq/scaling_governor; done)
echo $1 $2 $(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status) $governors >> /tmp/where.txt
echo looked 1
"#;
const BOOTED: &str = r#"
name = "booted"
repetitions = 2

constraints = [
  "frequency == 'performance' -> host_cpufreq",
  "frequency == 'as-is' -> not host_cpufreq",
]

[baseline]
strategy = "none"

[[factor]]
name = "strategy"
levels = ["none", "compact", "isolcpus"]

[[factor]]
name = "frequency"
knob = "governor"
levels = ["as-is", "performance"]

[[factor]]
name = "n_threads"
levels = [1, 2]

[[workload]]
name = "where"
command = ["/bin/busybox", "sh", "/tmp/where.sh", "{strategy}", "{n_threads}"]
lasts = "1s"

[[workload.figure]]
name = "looked"
unit = "count"
regex = "looked (\\d+)"
"#;
/// Six cells and the baseline's twins, in two blocks.
const BOOTED_TRIALS: u64 = 16;
/// A process of the guest has the mask that `isolcpus=` leaves; a study gets all CPUs.
const ON_ALL: &str = "taskset -c 0-3 ";

/// Only the trials of `isolcpus` are on isolated CPUs; frequencies are fixed during trials, and
/// restored; the page reports the kernel command line.
pub(super) fn check_isolation(guest: &mut Guest) -> Result<String, LabError> {
    const GOVERNORS: &str = "cat /sys/devices/system/cpu/cpu[0-3]/cpufreq/scaling_governor";
    let schedutil = "for c in 0 1 2 3; do \
         echo schedutil > /sys/devices/system/cpu/cpu$c/cpufreq/scaling_governor; done";
    guest.shell(&format!("insmod {MODULES}/acpi_cpufreq.ko; {schedutil}"))?;
    write(guest, "/tmp/where.sh", WHERE)?;
    run_as(guest, ON_ALL, "booted", BOOTED, BOOTED_TRIALS)?;
    let text = guest.shell("cat /tmp/where.txt")?;
    let mut wrong = Vec::new();
    if text.lines().count() as u64 != BOOTED_TRIALS {
        wrong.push(format!("not {BOOTED_TRIALS} trials"));
    }
    wrong.extend(text.lines().filter(|line| !is_kept(line)).map(str::to_owned));
    let after = guest.shell(GOVERNORS)?;
    if after.split_ascii_whitespace().any(|governor| governor != "schedutil") {
        wrong.push(format!("governors that did not come back: {after}"));
    }
    expect_none("trials and what they show", wrong)?;
    guest.shell("cd /tmp; pinfold study report booted.sqlite; grep -q isolcpus=2-3 booted.html")?;
    Ok(format!(
        "{BOOTED_TRIALS} trials; those of isolcpus on CPUs 2-3 alone, each with its CPUs at \
         `performance`; the page names the boot parameter"
    ))
}

/// Whether a trial has the CPUs of its strategy, and all CPUs their frequency.
fn is_kept(line: &str) -> bool {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let [strategy, threads, pus, governors @ ..] = words.as_slice() else { return false };
    let Ok(pus) = CpuSet::parse_list(pus) else { return false };
    let [isolated, all] = ["2-3", "0-3"].map(CpuSet::parse_list);
    let has_room = match *strategy {
        "none" => all.is_ok_and(|all| pus == all),
        "isolcpus" => {
            isolated.is_ok_and(|isolated| pus.is_subset(&isolated))
                && threads.parse() == Ok(pus.len())
        }
        _ => threads.parse() == Ok(pus.len()),
    };
    has_room
        && governors.len() == 4
        && pus.iter().all(|pu| governors.get(pu.0 as usize) == Some(&"performance"))
}

const OVERHEAD: &str = r#"
name = "overhead"
repetitions = 2
share = ["workload"]
probes = ["exits"]
time-limit = "5min"

[baseline]
accelerator = "native"

[[factor]]
name = "accelerator"
levels = ["native", "kvm"]

[[factor]]
name = "n_vcpu"
levels = [1]

[[workload]]
name = "compute"
pinload = ["intmix", "--seconds", "0.2", "--cpus", "0"]
lasts = "2s"

[[workload]]
name = "os"
pinload = ["os-latency", "--seconds", "0.2", "--cpus", "0", "--operations", "null,page-fault-anonymous"]
lasts = "2s"
"#;

/// Rows of the table that are not exits.
const OTHERS: [&str; 3] = ["TIMEINGUEST", "DESCHEDULED: preempted", "DESCHEDULED: asleep"];

/// A study starts guests under KVM, observes their exits, and stores them with each trial.
pub(super) fn overhead(guest: &mut Guest) -> Result<String, LabError> {
    nested::insert(guest)?;
    // Two workloads in two environments and the baseline's twin, in two blocks.
    run(guest, "overhead", OVERHEAD, 12)?;
    guest.shell("cd /tmp; pinfold study export overhead.sqlite --out tables > /dev/null")?;
    let rows = guest.shell("grep ',exits,' /tmp/tables/samples.csv")?;
    let kvm = guest.shell("grep ',kvm,' /tmp/tables/trials.csv | cut -d, -f5")?;
    let mut wrong = Vec::new();
    let trials: BTreeSet<&str> = kvm.lines().collect();
    if trials.len() != 4 {
        wrong.push(format!("not four trials under KVM: {kvm}"));
    }
    let mut types = BTreeSet::new();
    for trial in &trials {
        let rows = rows.lines().filter_map(|row| exit_row(row, trial));
        let counts: BTreeMap<&str, f64> =
            rows.filter(|row| row.0 == "count").map(|(_, kind, count)| (kind, count)).collect();
        let of_exits = counts.iter().filter(|(kind, _)| !OTHERS.contains(kind));
        let exits: f64 = of_exits.map(|(_, count)| count).sum();
        // Each exit ends an interval in the guest, and starts one outside of it.
        let inside = counts.get(OTHERS[0]).copied().unwrap_or(0.0);
        if exits < 50.0 || (exits - inside).abs() > 1.0 {
            wrong.push(format!("trial {trial}: {exits} exits, {inside} stretches in the guest"));
        }
        types.extend(counts.into_keys());
    }
    if !rows.lines().all(|row| trials.iter().any(|trial| exit_row(row, trial).is_some())) {
        wrong.push("there are exits of other trials, or rows of another kind".to_owned());
    }
    if !wrong.is_empty() {
        wrong.push(rows.clone());
    }
    expect_none("exits in a study", wrong)?;
    let names: Vec<&str> = types.into_iter().collect();
    Ok(format!(
        "2 boots under KVM, 4 trials; as many exits as stretches in the guest in each; types {}",
        names.join(", ")
    ))
}

/// Statistic, type and value in a row of a trial's exits; `None` for other rows. Example:
/// `2,exits,level=A statistic=count type=msr,count,count,,0,288,0,0,""`.
fn exit_row<'r>(row: &'r str, trial: &str) -> Option<(&'r str, &'r str, f64)> {
    let mut fields = row.strip_prefix(trial)?.strip_prefix(",exits,level=A statistic=")?.split(',');
    let (statistic, kind) = fields.next()?.split_once(" type=")?;
    Some((statistic, kind, fields.nth(4)?.parse().ok()?))
}

/// Runs a study; all of its trials must succeed, and no cell may be skipped.
pub(super) fn run(guest: &mut Guest, name: &str, study: &str, trials: u64) -> Result<(), LabError> {
    run_as(guest, "", name, study, trials)
}

/// As [`run`], with a prefix of the command.
fn run_as(
    guest: &mut Guest,
    before: &str,
    name: &str,
    study: &str,
    trials: u64,
) -> Result<(), LabError> {
    write(guest, &format!("/tmp/{name}.toml"), study)?;
    guest
        .shell(&format!("cd /tmp; {before}pinfold study run {name}.toml --store {name}.sqlite"))?;
    let text =
        guest.shell(&format!("pinfold study status /tmp/{name}.sqlite --json 2> /dev/null"))?;
    let wrong = || LabError::wrong("pinfold study status", text.clone());
    let json: Value = serde_json::from_str(text.trim()).map_err(|_| wrong())?;
    let all = has_count("done", trials, &json) && has_count("total", trials, &json);
    if all && has_count("failed", 0, &json) && has_count("skipped_cells", 0, &json) {
        Ok(())
    } else {
        Err(wrong())
    }
}

fn has_count(key: &str, count: u64, json: &Value) -> bool {
    json[key].as_u64() == Some(count)
}

pub(super) fn write(guest: &mut Guest, path: &str, text: &str) -> Result<(), LabError> {
    guest.quiet_shell(&format!("cat > {path} << 'END'\n{text}END")).map(drop)
}

#[cfg(test)]
mod tests {
    use super::{exit_row, is_kept, is_placed};

    #[test]
    fn a_row_is_read() {
        let row = "2,exits,level=A statistic=count type=npf (MMIO),count,count,,0,288,0,0,\"\"";
        assert_eq!(exit_row(row, "2"), Some(("count", "npf (MMIO)", 288.0)));
        assert_eq!(exit_row(row, "12"), None);
        assert_eq!(exit_row("2,exits,\"\",count,count,,,,0,0,absent: why", "2"), None);
    }

    #[test]
    fn a_trial_is_held_against_its_strategy() {
        check_kept("isolcpus 1 2 schedutil schedutil performance performance", true);
        check_kept("isolcpus 1 2 schedutil schedutil schedutil performance", false);
        check_kept("isolcpus 1 1 performance performance performance performance", false);
        check_kept("isolcpus 2 2 performance performance performance performance", false);
        check_kept("isolcpus 2 2-3 performance performance performance performance", true);
        check_kept("none 2 0-3 performance performance performance performance", true);
        check_kept("none 2 0-1 performance performance performance performance", false);
        check_kept("compact 2 0,2 performance schedutil performance performance", true);
        check_kept("compact 2 0,2 performance", false);
        check_kept("compact", false);
    }

    fn check_kept(line: &str, expected: bool) {
        assert_eq!(is_kept(line), expected, "{line}");
    }

    #[test]
    fn a_look_is_held_against_its_cell() {
        check_placed("near none 0 31 0 none 0 0", Some((0, true)));
        check_placed("near none 0 30 1 none 0 0", Some((0, false)));
        check_placed("far none 0 0 31 none 0 0", Some((0, true)));
        check_placed("far none 5 0 31 none 0 0", Some((1, false)));
        check_placed("far same-node 0 0 31 2 65536 0", Some((0, true)));
        check_placed("far same-node 0 0 31 2 9999 0", Some((0, false)));
        check_placed("far same-node 0 0 31 0 65536 0", Some((0, false)));
        check_placed("near other-node 0 31 0 4 12 65536", Some((0, true)));
        check_placed("near other-node 0 31 0 4 65536 0", Some((0, false)));
        check_placed("near other-node 0 31 0 2 0 65536", Some((0, false)));
        check_placed("near none 0-3 31 0 none 0 0", None);
        check_placed("near", None);
    }

    fn check_placed(line: &str, expected: Option<(usize, bool)>) {
        assert_eq!(is_placed(line), expected, "{line}");
    }
}
