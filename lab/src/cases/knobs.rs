//! The tunables of the host: interrupts, kernel work, memory, frequency, run time.
//!
//! A machine whose memory is on node 0 is planned for node 1. The contents of each tunable, and
//! every task's group, mask and policy, are read by busybox before, during and after. Tunables that
//! this kernel or machine lacks must be reported, and so must interrupts that the kernel manages.

use std::collections::BTreeMap;

use super::hotplug::differences;
use super::{Extent, kill, shapes};
use crate::error::{LabError, expect_none};
use crate::guest::Guest;
use crate::snapshot::{Snapshot, host_knobs};

const PLAN: &str = "/tmp/plan.json";
const MONITOR: &str = "/tmp/knobs.qmp";
const ROOT: &str = "/sys/fs/cgroup";
const GROUP: &str = "/sys/fs/cgroup/vm.scope";
const UNDO: [&str; 2] = ["undo", "--all"];
/// QEMU's own pages suffice: it is bound to node 0 while it starts.
const PREPARE: &str = "mount -t cgroup2 none /sys/fs/cgroup; cd /sys/fs/cgroup; mkdir vm.scope
    echo '+cpuset +cpu' > cgroup.subtree_control";
const READY: &str = "until [ -S /tmp/knobs.qmp ] && [ -s /tmp/knobs.pid ]; do usleep 50000; done
    until [ $(ls /proc/$(cat /tmp/knobs.pid)/task | wc -l) -ge 3 ]; do usleep 50000; done
    for t in $(ls /proc/$(cat /tmp/knobs.pid)/task); do taskset -p ff $t; done";

/// The file of a tunable, its key and value, and the contents that the file must have.
struct Knob {
    file: &'static str,
    words: &'static str,
    holds: &'static str,
}

const fn knob(file: &'static str, words: &'static str, holds: &'static str) -> Knob {
    Knob { file, words, holds }
}

impl Knob {
    /// Its name in plans.
    fn name(&self) -> &'static str {
        self.words.split('=').next().unwrap_or(self.words)
    }
}

const KNOBS: [Knob; 10] = [
    knob("/proc/sys/kernel/sched_rt_runtime_us", "rt-throttle=off", "-1"),
    knob("/proc/irq/default_smp_affinity", "new-irqs=6-7", "c0"),
    knob("/sys/devices/virtual/workqueue/cpumask", "workqueues=6-7", "c0"),
    knob("/proc/sys/kernel/numa_balancing", "numa-balancing=off", "0"),
    knob("/sys/kernel/debug/sched/llc_balancing/enabled", "llc-balancing=off", "0"),
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
    let (mut present, mut lacking) = (Vec::new(), Vec::new());
    for knob in &KNOBS {
        let there = guest.run(&["/bin/busybox", "test", "-e", knob.file])?.success();
        let list = if there { &mut present } else { &mut lacking };
        list.push(knob);
        apply.extend(["--knob", knob.words]);
    }
    let irq = format!("irq:{device}=6-7");
    apply.extend(["--knob", &irq, "--knob", "governor=performance", "--knob", "wake-up-us=0"]);
    let before = look(guest)?;
    let dry = guest.pinfold(&[&apply[..], &["--dry-run"]].concat())?;
    same(guest, &before, "a dry run changed the host")?;
    let unreported =
        lacking.iter().filter(|knob| !dry.contains(&format!("this host has no {}", knob.file)));
    let unreported = unreported.map(|knob| knob.file.to_owned()).collect();
    expect_none("a dry run does not report what is lacking", unreported)?;
    let reported = guest.pinfold(&apply)?;
    expect_none("a tunable is not as requested", not_so(guest, &present, &device)?)?;
    let pages = format!("{}; {}", pages(guest)?, page_tables(guest)?);
    let undone = guest.pinfold(&UNDO)?;
    let after = look(guest)?;
    expect_none("undo left a trace", differences(&after, &before, &shapes::near(&after)))?;
    if !undone.contains("pages of") {
        return Err(LabError::wrong("undo does not mention the pages", undone));
    }
    if !reported.contains("cpufreq") {
        return Err(LabError::wrong("a guest without cpufreq was not reported", reported));
    }
    let managed = check_managed(guest, &after)?;
    // From here on the group's nodes are explicit.
    let killed =
        kill::kill_at_calls(guest, &apply, extent, &|guest, what| same(guest, &after, what))?;
    fn names(knobs: &[&Knob]) -> String {
        knobs.iter().map(|knob| knob.name()).collect::<Vec<_>>().join(", ")
    }
    let lacks = match lacking.len() {
        0 => String::new(),
        _ => format!("; not available and reported: {}", names(&lacking)),
    };
    Ok(format!(
        "{}, interrupts of {device}, wake-up latency, memory nodes; {pages}; {managed}; {killed}; no cpufreq here{lacks}",
        names(&present)
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
pub(super) fn device(guest: &mut Guest) -> Result<String, LabError> {
    first(guest, "/sys/bus/pci/devices/*/virtio*/virtio-ports")
}

/// The PCI address of the first device that has a file.
fn first(guest: &mut Guest, pattern: &str) -> Result<String, LabError> {
    let text = guest.shell(&format!("ls -d {pattern} | head -n 1 | cut -d / -f 6"))?;
    let device = text.trim().to_owned();
    if device.is_empty() { Err(LabError::wrong(pattern, "no device has it")) } else { Ok(device) }
}

/// Every task, and every tunable that may be changed, byte for byte.
fn look(guest: &mut Guest) -> Result<Snapshot, LabError> {
    Snapshot::take_with(guest, ROOT, false, &host_knobs())
}

fn same(guest: &mut Guest, before: &Snapshot, what: &str) -> Result<(), LabError> {
    expect_none(what, differences(&look(guest)?, before, &BTreeMap::new()))
}

/// A disk with a queue for each CPU: the kernel manages the interrupts of its queues and rejects
/// changes, which is reported once with a hint, and nothing is left behind.
fn check_managed(guest: &mut Guest, before: &Snapshot) -> Result<String, LabError> {
    let disk = first(guest, "/sys/bus/pci/devices/*/virtio*/block")?;
    let knob = format!("irq:{disk}=6-7");
    let reported = guest.pinfold(&["apply", "--qmp", MONITOR, "--plan", PLAN, "--knob", &knob])?;
    let many = reported.matches("the kernel manages this interrupt itself").count();
    let mut wrong = Vec::new();
    if many == 0 || !reported.contains("isolcpus=managed_irq") {
        wrong.push(format!("it is not reported: {reported}"));
    }
    let names: Vec<&str> = reported.lines().filter(|line| line.contains("manages this")).collect();
    wrong.extend(
        names
            .iter()
            .zip(names.iter().skip(1))
            .filter(|(one, other)| one == other)
            .map(|(one, _)| format!("tried twice: {one}")),
    );
    let kept = look(guest)?;
    let queues = guest.shell(&format!("ls /sys/bus/pci/devices/{disk}/msi_irqs"))?;
    let irqs = queues.split_whitespace();
    fn list(irq: &str) -> String {
        format!("/proc/irq/{irq}/smp_affinity_list")
    }
    let moved =
        irqs.filter(|irq| kept.knob(&list(irq)) == "6-7" && before.knob(&list(irq)) != "6-7");
    if moved.count() + many != queues.split_whitespace().count() {
        wrong.push(format!("{many} are reported of {queues:?}"));
    }
    guest.pinfold(&UNDO)?;
    expect_none("managed interrupts", wrong)?;
    same(guest, before, "managed interrupts left a trace")?;
    Ok(format!(
        "{many} interrupts of a disk's queues are the kernel's, which is reported once each"
    ))
}

fn not_so(guest: &mut Guest, present: &[&Knob], device: &str) -> Result<Vec<String>, LabError> {
    let now = look(guest)?;
    let mut found: Vec<String> = present
        .iter()
        .filter(|knob| now.knob(knob.file) != knob.holds)
        .map(|knob| format!("{}: {:?}, not {:?}", knob.file, now.knob(knob.file), knob.holds))
        .collect();
    let irqs = guest.shell(&format!(
        "for i in $(ls /sys/bus/pci/devices/{device}/msi_irqs); do cat /proc/irq/$i/smp_affinity_list; done"
    ))?;
    if irqs.is_empty() || irqs.lines().any(|list| list != "6-7") {
        found.push(format!("interrupts of {device}: {irqs:?}"));
    }
    let nodes = now.knob(&format!("{GROUP}/cpuset.mems"));
    if nodes != "1" {
        found.push(format!("the group's nodes: {nodes:?}"));
    }
    Ok(found)
}

/// The node of the machine's own (anonymous) pages; most must have been moved.
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

/// Page tables of each node, which `numa_maps` does not show and no system call moves; those of the
/// second level of a virtual machine are counted separately since Linux 6.1.
fn page_tables(guest: &mut Guest) -> Result<String, LabError> {
    let text = guest.shell(
        "for n in 0 1; do awk -v n=$n '$3 == \"PageTables:\" {a=$4} $3 == \"SecPageTables:\" {b=$4} \
         END {printf \"%s node %d: %d+%d KiB\", (n ? \",\" : \"\"), n, a, b}' \
         /sys/devices/system/node/node$n/meminfo; done",
    )?;
    if text.contains("node 1: ") {
        Ok(format!("page tables (the machine's own + second level){text}"))
    } else {
        Err(LabError::wrong("page tables of the nodes", text))
    }
}
