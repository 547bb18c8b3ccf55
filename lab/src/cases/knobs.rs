//! The host's own knobs: interrupts, kernel work, memory, frequency, run time.
//!
//! A machine whose memory is on node 0 is planned for node 1. What each knob holds is read by
//! busybox before, during and after; what this kernel or machine lacks must be told.

use std::collections::BTreeMap;

use super::{Extent, kill};
use crate::error::{LabError, expect_none};
use crate::guest::Guest;

const PLAN: &str = "/tmp/plan.json";
const MONITOR: &str = "/tmp/knobs.qmp";
const GROUP: &str = "/sys/fs/cgroup/vm.scope";
/// Pages that QEMU has by itself are enough: it is bound to node 0 while it starts.
const PREPARE: &str = "mount -t cgroup2 none /sys/fs/cgroup; cd /sys/fs/cgroup; mkdir vm.scope
    echo '+cpuset +cpu' > cgroup.subtree_control";
const READY: &str = "until [ -S /tmp/knobs.qmp ] && [ -s /tmp/knobs.pid ]; do usleep 50000; done
    until [ $(ls /proc/$(cat /tmp/knobs.pid)/task | wc -l) -ge 3 ]; do usleep 50000; done
    for t in $(ls /proc/$(cat /tmp/knobs.pid)/task); do taskset -p ff $t; done";

/// A knob's file, its key and value, and what the file holds then.
struct Knob {
    file: &'static str,
    words: &'static str,
    holds: &'static str,
}

const fn knob(file: &'static str, words: &'static str, holds: &'static str) -> Knob {
    Knob { file, words, holds }
}

const KNOBS: [Knob; 8] = [
    knob("/proc/irq/default_smp_affinity", "new-irqs=6-7", "c0"),
    knob("/sys/devices/virtual/workqueue/cpumask", "workqueues=6-7", "c0"),
    knob("/proc/sys/kernel/numa_balancing", "numa-balancing=off", "0"),
    knob("/sys/kernel/mm/transparent_hugepage/enabled", "thp=never", "always madvise [never]"),
    knob("/sys/kernel/mm/ksm/run", "ksm=unmerge", "2"),
    knob(
        "/sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages",
        "huge-pages=1:2048:4",
        "4",
    ),
    knob("/sys/fs/cgroup/vm.scope/cpu.weight", "cpu-weight=300", "300"),
    knob("/sys/fs/cgroup/vm.scope/cpu.max", "cpu-quota=90000/100000", "90000 100000"),
];

pub(super) fn set(guest: &mut Guest, extent: Extent) -> Result<String, LabError> {
    prepare(guest)?;
    let device = device(guest)?;
    let mut apply = vec!["apply", "--qmp", MONITOR, "--plan", PLAN];
    let mut present = Vec::new();
    let mut lacking = Vec::new();
    for knob in &KNOBS {
        let there = guest.run(&["/bin/busybox", "test", "-e", knob.file])?.success();
        if there {
            present.push(knob)
        } else {
            lacking.push(knob.file)
        }
        apply.extend(["--knob", knob.words]);
    }
    let irq = format!("irq:{device}=6-7");
    apply.extend(["--knob", &irq, "--knob", "governor=performance", "--knob", "wake-up-us=0"]);
    let before = look(guest)?;
    let dry = guest.pinfold(&[&apply[..], &["--dry-run"]].concat())?;
    expect_none("a dry run changed the host", differences(&before, &look(guest)?))?;
    let mut untold: Vec<String> = Vec::new();
    for file in &lacking {
        if !dry.contains(&format!("this host has no {file}")) {
            untold.push((*file).to_owned());
        }
    }
    expect_none("a dry run does not tell what is lacking", untold)?;
    let told = guest.pinfold(&apply)?;
    expect_none("a knob is not as asked", not_so(guest, &present, &device)?)?;
    let pages = format!("{}; {}", pages(guest)?, page_tables(guest)?);
    let undone = guest.pinfold(&["undo", "--all"])?;
    expect_none(
        "undo left a trace",
        differences(&before, &expected_after(&before, &look(guest)?)),
    )?;
    if !undone.contains("pages of") {
        return Err(LabError::wrong("undo does not tell of the pages", undone));
    }
    // The group's nodes are given by name from here on.
    let before = look(guest)?;
    let killed = kills(guest, &apply, &before, extent)?;
    let lacks = if lacking.is_empty() {
        String::new()
    } else {
        format!("; lacking and told: {}", lacking.join(", "))
    };
    if !told.contains("cpufreq") {
        return Err(LabError::wrong("a guest without cpufreq was not told of", told));
    }
    Ok(format!(
        "{} knobs, interrupts of {device}, wake-up latency, memory nodes; {pages}; {killed}{lacks}; no cpufreq here",
        present.len()
    ))
}

fn prepare(guest: &mut Guest) -> Result<(), LabError> {
    guest.shell(PREPARE)?;
    let machine = guest.machine();
    guest.background(&format!(
        "echo $$ > {GROUP}/cgroup.procs; exec taskset f {machine} -accel tcg,thread=multi -smp 2 \
         -name vm,debug-threads=on -qmp unix:{MONITOR},server=on,wait=off -pidfile /tmp/knobs.pid"
    ))?;
    guest.shell(READY)?;
    let words = "name=vm,vcpus=2,memory=16MiB";
    let plan = guest
        .run(&["/usr/bin/pinfold", "plan", "--vm", words, "-s", "numa-exclusive", "--json"])?
        .stdout_text();
    if !plan.contains("\"nodes\": \"1\"") {
        return Err(LabError::wrong("the plan is not for node 1", plan));
    }
    guest.shell(&format!("cat > {PLAN} <<'END'\n{plan}\nEND"))?;
    Ok(())
}

/// A device with message-signalled interrupts: the port of the agent itself.
fn device(guest: &mut Guest) -> Result<String, LabError> {
    let text = guest.shell("ls -d /sys/bus/pci/devices/*/msi_irqs | head -n 1 | cut -d / -f 6")?;
    let device = text.trim().to_owned();
    if device.is_empty() {
        Err(LabError::wrong("no device has interrupts", text))
    } else {
        Ok(device)
    }
}

/// Every knob that may be changed, with its bytes.
fn look(guest: &mut Guest) -> Result<BTreeMap<String, String>, LabError> {
    let files: Vec<&str> = KNOBS.iter().map(|knob| knob.file).collect();
    let text = guest.quiet_shell(&format!(
        "grep -s -H '' {} {GROUP}/cpuset.mems {GROUP}/cpuset.mems.effective /proc/irq/*/smp_affinity_list \
         /sys/devices/system/cpu/cpu*/power/pm_qos_resume_latency_us || true
         for t in $(ls /proc/$(cat /tmp/knobs.pid)/task); do taskset -p $t; done",
        files.join(" ")
    ))?;
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    Ok(lines.map(|(file, value)| (file.to_owned(), value.to_owned())).collect())
}

fn differences(was: &BTreeMap<String, String>, is: &BTreeMap<String, String>) -> Vec<String> {
    let mut found: Vec<String> = was
        .iter()
        .filter(|(file, value)| is.get(*file) != Some(value))
        .map(|(file, value)| format!("{file} holds {:?}, not {value:?}", is.get(file)))
        .collect();
    found.extend(
        is.keys().filter(|file| !was.contains_key(*file)).map(|file| format!("{file} is new")),
    );
    found
}

/// Before Linux 7.0 a group with tasks keeps its nodes by name: all of them, as before.
fn expected_after(
    before: &BTreeMap<String, String>,
    after: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let mut after = after.clone();
    let mems = format!("{GROUP}/cpuset.mems");
    if after.get(&mems).is_some_and(|nodes| nodes == "0-1")
        && let Some(was) = before.get(&mems)
    {
        after.insert(mems, was.clone());
    }
    after
}

fn not_so(guest: &mut Guest, present: &[&Knob], device: &str) -> Result<Vec<String>, LabError> {
    let now = look(guest)?;
    let mut found: Vec<String> = present
        .iter()
        .filter(|knob| now.get(knob.file).is_none_or(|value| value != knob.holds))
        .map(|knob| format!("{}: {:?}, not {:?}", knob.file, now.get(knob.file), knob.holds))
        .collect();
    let irqs = guest.shell(&format!(
        "for i in $(ls /sys/bus/pci/devices/{device}/msi_irqs); do cat /proc/irq/$i/smp_affinity_list; done"
    ))?;
    if irqs.is_empty() || irqs.lines().any(|list| list != "6-7") {
        found.push(format!("interrupts of {device}: {irqs:?}"));
    }
    if now.get(&format!("{GROUP}/cpuset.mems")).is_none_or(|nodes| nodes != "1") {
        found.push(format!("the group's nodes: {:?}", now.get(&format!("{GROUP}/cpuset.mems"))));
    }
    Ok(found)
}

/// Where the machine's own (anonymous) pages are now; most must have been moved.
fn pages(guest: &mut Guest) -> Result<String, LabError> {
    let text = guest.shell(
        "grep anon= /proc/$(cat /tmp/knobs.pid)/numa_maps | tr ' ' '\\n' | grep '^N[01]=' | \
         awk -F= '{n[$1]+=$2} END {print n[\"N1\"]+0, n[\"N0\"]+0}'",
    )?;
    let mut numbers = text.split_whitespace().map(str::parse::<u64>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(here)), Some(Ok(there))) if here > 100 && there * 10 < here => {
            Ok(format!("{here} anonymous pages on the planned node, {there} on the other"))
        }
        _ => Err(LabError::wrong("pages on node 1 and 0", text)),
    }
}

/// Page tables of each node, which `numa_maps` does not show and no call moves; those of a
/// virtual machine's second level are apart since Linux 6.1.
fn page_tables(guest: &mut Guest) -> Result<String, LabError> {
    let text = guest.shell(
        "for n in 0 1; do awk -v n=$n '$3 == \"PageTables:\" {a=$4} $3 == \"SecPageTables:\" {b=$4} \
         END {printf \"%s node %d: %d+%d KiB\", (n ? \",\" : \"\"), n, a, b}' \
         /sys/devices/system/node/node$n/meminfo; done",
    )?;
    match text.contains("node 1: ") {
        true => Ok(format!("page tables (the machine's own + second level){text}")),
        false => Err(LabError::wrong("page tables of the nodes", text)),
    }
}

fn kills(
    guest: &mut Guest,
    apply: &[&str],
    before: &BTreeMap<String, String>,
    extent: Extent,
) -> Result<String, LabError> {
    let calls = kill::calls_of(guest, apply)?;
    guest.pinfold(&["undo", "--all"])?;
    let chosen = kill::choose(&calls, extent);
    let mut killed = 0;
    for call in &chosen {
        killed += usize::from(kill::kill_at(guest, apply, call)?);
        guest.pinfold(&["undo", "--all"])?;
        let what = format!("apply killed before {call}");
        expect_none(&what, differences(before, &look(guest)?))?;
    }
    kill::tell(killed, chosen.len(), &calls)
}
