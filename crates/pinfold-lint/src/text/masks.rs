//! Single masks: missing CPUs, missing threads, vCPUs that share a CPU.

use pinfold_model::text::count_noun;
use pinfold_model::{CpuSet, Role};

use super::{Fault, FaultText};
use crate::descriptions::{cpus, describe, describe_all, describe_vcpus};
use pinfold_plan::layout::Pin;
use pinfold_plan::online;
use pinfold_plan::text::verb;

/// vCPUs that share a CPU.
const TURNS: &str = "they share it: a vCPU that holds a guest lock may not be running while \
                     another spins for the lock";

pub(crate) enum MaskFault<'a> {
    /// Pins to CPUs of which `gone` cannot be used and `left` can; `barred` ones exist on the host.
    AbsentPu { pins: &'a [&'a Pin], gone: &'a CpuSet, barred: bool, left: &'a CpuSet },
    /// Pins to offline CPUs, and to `left`.
    OfflinePu { pins: &'a [&'a Pin], offline: &'a CpuSet, left: &'a CpuSet },
    /// Pins of threads that a machine with this number of vCPUs does not have.
    PinOfNothing { pins: &'a [&'a Pin], vcpus: u32 },
    /// vCPUs that can be added later.
    Reserve { vcpus: &'a CpuSet },
    /// vCPUs without a pin, while others are held on CPUs.
    HalfPinned { floating: &'a [u32], held: &'a CpuSet },
    /// vCPUs that may only run on the same CPU.
    SharePu { vcpus: &'a [u32], pu: u32 },
    /// More vCPUs than CPUs in a mask.
    Crowded { vcpus: usize, mask: &'a CpuSet },
    /// A thread on excluded CPUs, and the number of such threads.
    Excluded { role: &'a Role, pus: &'a CpuSet, threads: usize },
    /// Threads on several isolated CPUs.
    OnIsolated { pins: &'a [&'a Pin], pus: CpuSet },
}

impl Fault for MaskFault<'_> {
    fn words(&self) -> FaultText {
        match self {
            MaskFault::AbsentPu { pins, gone, barred, left } => absent(pins, gone, *barred, left),
            MaskFault::OfflinePu { pins, offline, left } => waiting(pins, offline, left),
            MaskFault::PinOfNothing { pins, vcpus } => stray(pins, *vcpus),
            MaskFault::Reserve { vcpus } => FaultText::new(
                "vcpu-reserve",
                format!(
                    "{} {} when the machine starts, but can be added later",
                    describe_vcpus(vcpus.iter().map(|vcpu| vcpu.0)),
                    verb(vcpus, "does not exist", "do not exist")
                ),
                "a vCPU that is added has no pin unless the file has one for it: it floats",
            ),
            MaskFault::HalfPinned { floating, held } => FaultText::new(
                "half-pinned",
                format!(
                    "{} {} no pin, while others are pinned to {held}",
                    describe_vcpus(floating.iter().copied()),
                    if floating.len() == 1 { "has" } else { "have" },
                ),
                "a floating vCPU competes with the pinned ones on their CPUs",
            ),
            MaskFault::SharePu { vcpus, pu } => {
                let who = describe_vcpus(vcpus.iter().copied());
                FaultText::new("vcpus-share-pu", format!("{who} are all pinned to CPU {pu}"), TURNS)
            }
            MaskFault::Crowded { vcpus, mask } => FaultText::new(
                "vcpus-crowded",
                format!(
                    "{} may run on {} only ({mask}), although more CPUs are available",
                    count_noun(*vcpus, "vCPU"),
                    count_noun(mask.len(), "CPU")
                ),
                TURNS,
            ),
            MaskFault::Excluded { role, pus, threads } => {
                let more = match threads {
                    1 => String::new(),
                    several => format!(", and {} more likewise", count_noun(several - 1, "thread")),
                };
                let (role, pus) = (describe(role), cpus(pus));
                FaultText::new(
                    "cpu-excluded",
                    format!("{role} may run on {pus}, excluded by your options{more}"),
                    "these CPUs are meant for another task",
                )
            }
            MaskFault::OnIsolated { pins, pus } => FaultText::new(
                "mask-on-isolated",
                format!(
                    "{} may run on several isolated CPUs at once ({pus})",
                    describe_all(pins.iter().map(|pin| &pin.role)),
                ),
                "load is not balanced over isolated CPUs: a thread stays on the first one of its mask, and \
                 two with one mask share it while its neighbours idle",
            ),
        }
    }
}

fn absent(pins: &[&Pin], gone: &CpuSet, barred: bool, left: &CpuSet) -> FaultText {
    let why = if barred {
        verb(
            gone,
            "is not in the cpuset of this process's cgroup",
            "are not in the cpuset of this process's cgroup",
        )
    } else {
        verb(gone, "is not on this host", "are not on this host")
    };
    let cost = if left.is_empty() {
        "the machine does not start, or the pin is refused (EINVAL)".to_owned()
    } else {
        format!("{} on {left} only, not on all the listed CPUs", runs(pins))
    };
    let what = if left.is_empty() {
        format!("{} to {gone}: {} {why}", describe_bound(pins), cpus(gone))
    } else {
        format!("{} to {}, of which {} {why}", describe_bound(pins), left.union(gone), cpus(gone))
    };
    FaultText::new("absent-pu", what, cost)
}

fn waiting(pins: &[&Pin], offline: &CpuSet, left: &CpuSet) -> FaultText {
    let is = verb(offline, "is offline", "are offline");
    let cost = if left.is_empty() {
        "until then the machine does not start, or the pin is refused (EINVAL)".to_owned()
    } else {
        format!("until then {} on {left} only", runs(pins))
    };
    let what =
        format!("{} to {}, which {is}: usable once online", describe_bound(pins), cpus(offline));
    FaultText::new("offline-pu", what, cost)
        .with_replacement([format!("`{}`", online::command(offline))])
}

fn stray(pins: &[&Pin], vcpus: u32) -> FaultText {
    let counted = if pins.iter().all(|pin| pin.role.is_vcpu()) {
        format!("the machine has {vcpus} vCPUs, from 0")
    } else {
        let threads = if pins.len() == 1 { "thread" } else { "threads" };
        format!("the machine has no such {threads}")
    };
    let roles = describe_all(pins.iter().map(|pin| &pin.role));
    let is = if pins.len() == 1 { "is" } else { "are" };
    FaultText::new(
        "pin-of-nothing",
        format!("{roles} {is} pinned, but {counted}"),
        "libvirt silently drops such a pin of a vCPU and rejects one of an iothread; often the \
         count or the number is a typo, and another thread has no pin",
    )
}

/// Threads that one text binds: `vCPU 3 is pinned`, `the vCPUs 0-3 and the emulator are limited`.
fn describe_bound(pins: &[&Pin]) -> String {
    let roles = describe_all(pins.iter().map(|pin| &pin.role));
    if pins.len() == 1 { format!("{roles} is pinned") } else { format!("{roles} are limited") }
}

fn runs(pins: &[&Pin]) -> &'static str {
    if pins.len() == 1 { "it runs" } else { "they run" }
}
