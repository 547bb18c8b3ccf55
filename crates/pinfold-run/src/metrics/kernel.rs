//! What the kernel counts apart from times: steal of the host, migrations of threads, exits of KVM.
//!
//! ```text
//! /proc/stat                               cpu0 120 0 80 9000 4 0 2 17 0 0     steal is the eighth
//! /proc/4242/task/4250/sched               se.nr_migrations     :     233
//! /sys/kernel/debug/kvm/4242-11/io_exits   5120
//! ```
//! The files of KVM need root and debugfs; they are those of the machine, of all vCPUs.

use std::collections::BTreeMap;

use pinfold_host::{Host, paths, uptime};
use pinfold_model::{PuId, Tid};
use pinfold_top::VnodeSample;

/// Reasons that have a name; the rest is `other`.
const MOST: usize = 10;
const OTHER: &str = "other";

/// The whole host.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostUse {
    /// Time that the hypervisor below took from each CPU (ns).
    pub steal_ns: BTreeMap<PuId, u64>,
    /// The CPUs of the vnodes.
    pub speeds: Vec<VnodeSample>,
}

impl HostUse {
    /// The steal time now.
    pub fn read(host: &dyn Host, speeds: Vec<VnodeSample>) -> Self {
        Self { steal_ns: steal(host), speeds }
    }
}

/// The steal time of each online CPU; empty if it cannot be read.
pub fn steal(host: &dyn Host) -> BTreeMap<PuId, u64> {
    let text = host.read_text(&paths::kernel_stat()).unwrap_or_default();
    text.lines().filter_map(steal_line).collect()
}

fn steal_line(line: &str) -> Option<(PuId, u64)> {
    let (name, numbers) = line.split_once(' ')?;
    let cpu = PuId(name.strip_prefix("cpu")?.parse().ok()?);
    let ticks: u64 = numbers.split_ascii_whitespace().nth(7)?.parse().ok()?;
    Some((cpu, ticks.saturating_mul(uptime::TICK_NS)))
}

/// How often a thread was moved to another CPU, from its file `sched`.
pub fn migrations(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with("se.nr_migrations"))?;
    line.split_once(':')?.1.trim().parse().ok()
}

/// The folder of a machine, if it uses KVM.
fn folder_of(host: &dyn Host, pid: Tid) -> Option<String> {
    let root = paths::kvm_statistics();
    let begin = format!("{pid}-");
    let machines = host.list(&root).ok()?;
    let machine = machines.iter().find(|name| name.starts_with(&begin))?;
    Some(format!("{root}/{machine}"))
}

/// All exits of a machine, as KVM counts them; `None` without KVM or root.
pub fn exit_count(host: &dyn Host, pid: Tid) -> Option<u64> {
    number(host, &folder_of(host, pid)?, "exits")
}

/// The exits of a machine by reason, as KVM counts them; empty without KVM.
pub fn exits(host: &dyn Host, pid: Tid) -> BTreeMap<String, u64> {
    let Some(folder) = folder_of(host, pid) else { return BTreeMap::new() };
    let mut found: Vec<(String, u64)> = host
        .list(&folder)
        .unwrap_or_default()
        .into_iter()
        .filter_map(|name| Some((reason(&name)?, number(host, &folder, &name)?)))
        .collect();
    found.sort_by(|(one, count), (other, more)| more.cmp(count).then(one.cmp(other)));
    found.truncate(MOST);
    let named: u64 = found.iter().map(|(_, count)| *count).fold(0, u64::saturating_add);
    if let Some(all) = number(host, &folder, "exits") {
        found.push((OTHER.to_owned(), all.saturating_sub(named)));
    }
    found.into_iter().collect()
}

fn number(host: &dyn Host, folder: &str, name: &str) -> Option<u64> {
    host.read_text(&format!("{folder}/{name}")).ok()?.trim().parse().ok()
}

/// The reason that a counter is about, such as `io_exits` on x86 and `wfi_exit_stat` on Arm.
fn reason(counter: &str) -> Option<String> {
    let name = counter.strip_suffix("_exits").or_else(|| counter.strip_suffix("_exit_stat"))?;
    Some(name.replace('_', "-"))
}
