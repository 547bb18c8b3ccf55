//! Page tables of a machine on two NUMA nodes, under a real KVM: those of a machine that `pinfold
//! run` starts are on its memory node, those of a running machine whose pages are moved stay.
//!
//! The kernel's counts by node are read by busybox: of the host (`nodeN/meminfo`) and of the
//! machine's group (`memory.numa_stat`).

use serde_json::Value;

use super::nested;
use crate::error::{LabError, expect_none};
use crate::guest::Guest;

const GROUP: &str = "/sys/fs/cgroup/vm.scope";
const MONITOR: &str = "/tmp/vm.qmp";
/// All of it is touched before the guest runs.
const MEMORY: &str = "-smp 1 -m 128M -mem-prealloc -name vm,debug-threads=on";
/// A table of 4 KiB for each 2 MiB of the machine.
const TABLES_KIB: i64 = 256;
/// What a process allocates elsewhere, and noise: Pinfold's own limit for a warning.
const FEW_KIB: i64 = 64;
const GROUPS: &str = "mount -t cgroup2 none /sys/fs/cgroup; cd /sys/fs/cgroup; mkdir vm.scope
    echo '+cpuset +memory' > cgroup.subtree_control";
const READY: &str = "for i in $(seq 1200); do [ -s /tmp/vm.pid ] && [ -S /tmp/vm.qmp ] && break; \
    usleep 100000; done";
/// The kernel adds up the counts of a group every two seconds.
const SETTLED: &str = "sleep 5";

/// Page tables in KiB: of the first and of the second level, each on node 0 and 1.
#[derive(Clone, Copy, Debug)]
struct Tables {
    first: [i64; 2],
    second: [i64; 2],
}

pub(super) fn placed_and_left(guest: &mut Guest) -> Result<String, LabError> {
    nested::insert(guest)?;
    guest.shell(GROUPS)?;
    let started = start_machine(guest)?;
    let moved = move_machine(guest)?;
    Ok(format!("{started}; {moved}"))
}

/// A machine that `pinfold run` starts: Pinfold's figures are those of the kernel, all on node 1.
fn start_machine(guest: &mut Guest) -> Result<String, LabError> {
    let machine = format!("{} {} {MEMORY}", guest.machine(), nested::machine_arguments(guest));
    let before = of_host(guest)?;
    guest.background(&format!(
        "/usr/bin/pinfold run -s numa-exclusive -- {machine} -pidfile /tmp/vm.pid \
         > /tmp/run.txt 2>&1 || true; echo ended >> /tmp/run.txt"
    ))?;
    guest.shell(
        "for i in $(seq 1200); do grep -q -e 'growth of all' -e '^ended' /tmp/run.txt && break; \
         usleep 100000; done",
    )?;
    let text = guest.shell("cat /tmp/run.txt")?;
    let report = text.lines().find(|line| line.contains("growth of all page tables"));
    let report = report.ok_or_else(|| LabError::wrong("no report of page tables", &text))?;
    let after = of_host(guest)?;
    let bound = guest.shell("grep -c ' bind:1 ' /proc/$(cat /tmp/vm.pid)/numa_maps || true")?;
    guest.shell(
        "kill -INT $(pidof pinfold); for i in $(seq 600); do grep -q '^ended' /tmp/run.txt && break; \
         usleep 100000; done; rm -f /tmp/vm.pid",
    )?;
    let grown = |node: usize| {
        let (_, rest) = report.split_once(&format!("node {node} "))?;
        rest.split_ascii_whitespace().next()?.parse::<i64>().ok()
    };
    let (Some(other), Some(own)) = (grown(0), grown(1)) else {
        return Err(LabError::wrong("the report of page tables", report));
    };
    let second = [0, 1].map(|node| after.second[node] - before.second[node]);
    let mut wrong = Vec::new();
    need(bound.trim() != "0", "the machine has no memory policy".to_owned(), &mut wrong);
    need(own >= TABLES_KIB && other.abs() * 3 <= own, format!("reported: {report}"), &mut wrong);
    need(
        after.first[1] - before.first[1] >= TABLES_KIB,
        format!("{before:?}, then {after:?}"),
        &mut wrong,
    );
    need(second[1] > 0 && second[0] == 0, format!("second level: {second:?} KiB"), &mut wrong);
    need(!report.contains("other nodes"), format!("a warning: {report}"), &mut wrong);
    expect_none("page tables of a machine that was started", wrong)?;
    Ok(format!(
        "started under node 1's policy: page tables {own:+} KiB on node 1 and {other:+} KiB on node \
         0, second level {:+} and {:+} KiB",
        second[1], second[0]
    ))
}

fn need(is: bool, what: String, wrong: &mut Vec<String>) {
    if !is {
        wrong.push(what);
    }
}

/// A machine that was started on node 0 and is planned for node 1: its pages move, its tables stay,
/// and Pinfold reports both.
fn move_machine(guest: &mut Guest) -> Result<String, LabError> {
    let machine = format!("{} {} {MEMORY}", guest.machine(), nested::machine_arguments(guest));
    guest.background(&format!(
        "echo $$ > {GROUP}/cgroup.procs; exec taskset 3 {machine} \
         -qmp unix:{MONITOR},server=on,wait=off -pidfile /tmp/vm.pid"
    ))?;
    guest.shell(READY)?;
    guest.shell(SETTLED)?;
    let before = of_group(guest)?;
    let applied = guest.pinfold(&["apply", "--qmp", MONITOR, "-s", "numa-exclusive"])?;
    guest.shell(SETTLED)?;
    let after = of_group(guest)?;
    let pages = guest.shell(
        "grep anon= /proc/$(cat /tmp/vm.pid)/numa_maps | tr ' ' '\\n' | grep '^N[01]=' | \
         awk -F= '{n[$1]+=$2} END {print n[\"N0\"]+0, n[\"N1\"]+0}'",
    )?;
    let status = guest.pinfold(&["status"])?;
    let json = guest.pinfold(&["status", "--json"])?;
    guest.pinfold(&["undo", "--all"])?;
    let json: Value =
        serde_json::from_str(json.trim()).map_err(|_| LabError::wrong("status", &json))?;
    let numbers: Vec<i64> = pages.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let mut wrong = Vec::new();
    fn is_left(kib: [i64; 2]) -> bool {
        kib[0] >= TABLES_KIB && kib[1] <= FEW_KIB
    }
    need(is_left(before.first), format!("at the start: {before:?}"), &mut wrong);
    need(is_left(after.first), format!("after the move: {after:?}"), &mut wrong);
    need(after.second[0] > 0, format!("second level after the move: {after:?}"), &mut wrong);
    need(
        matches!(numbers.as_slice(), [left, here] if *here > 30_000 && left * 10 < *here),
        format!("anonymous pages on node 0 and 1: {pages}"),
        &mut wrong,
    );
    need(
        applied.contains("stay where they were allocated"),
        format!("apply: {applied}"),
        &mut wrong,
    );
    need(
        reported_kib(0, &json).is_some_and(|kib| (kib - after.first[0]).abs() <= FEW_KIB)
            && reported_kib(1, &json).is_some_and(|kib| kib <= FEW_KIB),
        format!(
            "status --json: {:?} and {:?} KiB, not {after:?}",
            reported_kib(0, &json),
            reported_kib(1, &json)
        ),
        &mut wrong,
    );
    need(
        status.contains("page tables of its group: node 0 ")
            && status.contains("on other nodes than the memory (node 1)"),
        format!("status: {status}"),
        &mut wrong,
    );
    expect_none("page tables of a machine that was moved", wrong)?;
    Ok(format!(
        "after a move of its pages to node 1, page tables {} KiB on node 0 (before: {}) and {} KiB \
         on node 1, second level {} and {} KiB, as `status` reports",
        after.first[0], before.first[0], after.first[1], after.second[0], after.second[1]
    ))
}

fn reported_kib(node: usize, json: &Value) -> Option<i64> {
    let path = format!("/in_force/0/page_tables/of_its_group/{node}/page_tables_kib");
    json.pointer(&path).and_then(Value::as_i64)
}

fn of_host(guest: &mut Guest) -> Result<Tables, LabError> {
    tables(
        guest,
        "cat /sys/devices/system/node/node[01]/meminfo | awk '$3 == \"PageTables:\" {a[$2] = $4} \
         $3 == \"SecPageTables:\" {b[$2] = $4} END {print a[0], a[1], b[0], b[1]}'",
    )
}

fn of_group(guest: &mut Guest) -> Result<Tables, LabError> {
    tables(
        guest,
        &format!(
            "sed 's/N[01]=//g' {GROUP}/memory.numa_stat | awk '$1 == \"pagetables\" \
             {{a = $2 / 1024 \" \" $3 / 1024}} $1 == \"sec_pagetables\" \
             {{b = $2 / 1024 \" \" $3 / 1024}} END {{print a, b}}'"
        ),
    )
}

fn tables(guest: &mut Guest, script: &str) -> Result<Tables, LabError> {
    let text = guest.shell(script)?;
    let numbers: Vec<i64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    match numbers.as_slice() {
        [a, b, c, d] => Ok(Tables { first: [*a, *b], second: [*c, *d] }),
        _ => Err(LabError::wrong("page tables by node", text)),
    }
}
