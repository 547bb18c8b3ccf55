//! How quiet CPUs were while a command ran: interrupts on them, switches from the command to other
//! tasks, and with an `Observer` its gaps by cause, its migrations and the frequency.
//!
//! ```text
//! /proc/interrupts            CPU0       CPU1
//!              24:               0       4113  PCI-MSI 65537-edge  virtio1-req.0
//!             LOC:           12345      23456  Local timer interrupts
//! ```
//! <https://docs.kernel.org/filesystems/proc.html>

mod observer;
mod own_threads;

use std::collections::BTreeMap;
use std::fmt;

use pinfold_host::{Clock as _, Host, SystemClock, paths, process};
use pinfold_model::text::count_noun;
use pinfold_model::{CpuSet, PuId};

pub(crate) use self::observer::{Observed, ObservedCommand, Observer};
pub(crate) use self::own_threads::{leave_cores, shares_cpus};
use crate::Failure;

/// The interrupt of the kernel's own tick, which stays on CPUs that run a task.
const TICK: &str = "LOC";
/// A CPU is quiet if fewer other interrupts, and fewer switches to other tasks, disturb it per
/// second.
const MOST_INTERRUPTS: u64 = 100;
const MOST_SWITCHES: u64 = 10;
/// Number of interrupts that are named.
const NAMED: usize = 3;

/// Counters of the kernel at one time.
#[derive(Clone, Debug)]
pub struct Counters {
    cpus: CpuSet,
    interrupts: BTreeMap<String, u64>,
    switches: u64,
    at_ns: u64,
}

impl Counters {
    /// Reads the counters of these CPUs, and those of the children of this process that ended.
    ///
    /// # Errors
    /// [`Failure`] if `/proc/interrupts` cannot be read.
    pub fn read(host: &dyn Host, cpus: &CpuSet) -> Result<Self, Failure> {
        let bytes = host.read(&paths::interrupts())?;
        Ok(Self {
            cpus: cpus.clone(),
            interrupts: interrupts(&String::from_utf8_lossy(&bytes), cpus),
            switches: process::involuntary_switches_of_children(),
            at_ns: SystemClock.now_ns(),
        })
    }

    /// What happened since an earlier time.
    #[must_use]
    pub fn since(&self, before: &Self) -> Noise {
        let mut interrupts = self.interrupts.clone();
        for (name, count) in &mut interrupts {
            *count = count.saturating_sub(before.interrupts.get(name).copied().unwrap_or(0));
        }
        interrupts.retain(|_, count| *count > 0);
        Noise {
            cpus: self.cpus.clone(),
            interrupts,
            switches: self.switches.saturating_sub(before.switches),
            lasted_ns: self.at_ns.saturating_sub(before.at_ns),
            observed: Observed::default(),
        }
    }
}

/// What disturbed CPUs. Its text form is one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Noise {
    cpus: CpuSet,
    interrupts: BTreeMap<String, u64>,
    switches: u64,
    lasted_ns: u64,
    observed: Observed,
}

/// How much is observed while a command runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// The kernel's counters before and after.
    Counters,
    /// Gaps, migrations and frequencies too.
    Gaps,
}

impl Noise {
    /// With what was observed meanwhile.
    pub(crate) fn with(self, observed: Option<Observed>) -> Self {
        Self { observed: observed.unwrap_or_default(), ..self }
    }

    /// With this number of switches, for a command that is not a child of this process.
    pub(crate) fn with_switches(self, switches: u64) -> Self {
        Self { switches, ..self }
    }

    /// Why the CPUs were not quiet.
    #[must_use]
    pub fn why_not_quiet(&self) -> Option<String> {
        let others: u64 = self.others().map(|(_, count)| *count).sum();
        let mut reasons = Vec::new();
        if self.switches > self.most(MOST_SWITCHES) {
            reasons.push(format!("other tasks took the CPU {}", count_noun(self.switches, "time")));
        }
        if others > self.most(MOST_INTERRUPTS) {
            reasons.push(format!("{others} interrupts other than the local timer"));
        }
        let cpus = u64::try_from(self.cpus.len()).unwrap_or(u64::MAX);
        let cpu_ns = self.lasted_ns.saturating_mul(cpus);
        reasons.extend(self.observed.reasons(cpu_ns, self.most(MOST_SWITCHES)));
        (!reasons.is_empty()).then(|| reasons.join("; "))
    }

    /// Why gaps were not observed, if the kernel refused that.
    #[must_use]
    pub fn why_no_gaps(&self) -> Option<&str> {
        self.observed.no_gaps.as_deref()
    }

    /// The bound for the whole time on all CPUs, at least that of one second: a short run is not
    /// judged by a single event.
    fn most(&self, per_second: u64) -> u64 {
        let cpus = u64::try_from(self.cpus.len().max(1)).unwrap_or(u64::MAX);
        let ms = self.lasted_ns.max(1_000_000_000) / 1_000_000;
        ms.saturating_mul(per_second).saturating_mul(cpus) / 1_000
    }

    fn others(&self) -> impl Iterator<Item = (&String, &u64)> {
        self.interrupts.iter().filter(|(name, _)| !name.starts_with(TICK))
    }
}

impl fmt::Display for Noise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total: u64 = self.interrupts.values().sum();
        let seconds = self.lasted_ns / 1_000_000_000;
        let tenths = self.lasted_ns / 100_000_000 % 10;
        let total = count_noun(total, "interrupt");
        write!(f, "CPU {} for {seconds}.{tenths} s: {total}", self.cpus)?;
        let mut most: Vec<(&String, &u64)> = self.interrupts.iter().collect();
        most.sort_by_key(|(name, count)| (std::cmp::Reverse(**count), *name));
        let named: Vec<String> =
            most.iter().take(NAMED).map(|(name, count)| format!("{name} {count}")).collect();
        if !named.is_empty() {
            write!(f, " ({})", named.join(", "))?;
        }
        write!(f, "; other tasks took the CPU {}", count_noun(self.switches, "time"))?;
        write!(f, "{}", self.observed)
    }
}

/// The counts on these CPUs by interrupt, of `/proc/interrupts`.
fn interrupts(text: &str, cpus: &CpuSet) -> BTreeMap<String, u64> {
    let mut lines = text.lines();
    let header = lines.next().unwrap_or_default().split_whitespace();
    let columns: Vec<Option<PuId>> =
        header.map(|word| word.strip_prefix("CPU")?.parse().ok().map(PuId)).collect();
    let mut counts = BTreeMap::new();
    for line in lines {
        let Some((label, rest)) = line.split_once(':') else { continue };
        let label = label.trim();
        let words: Vec<&str> = rest.split_whitespace().collect();
        let numbers: Vec<u64> = words.iter().map_while(|word| word.parse().ok()).collect();
        // `ERR` and `MIS` have one number for all CPUs.
        if numbers.len() < columns.len() {
            continue;
        }
        let own = columns.iter().zip(&numbers);
        let own = own.filter(|(cpu, _)| cpu.is_some_and(|cpu| cpus.contains(cpu)));
        let device = words.last().filter(|_| words.len() > columns.len());
        let name = match device {
            Some(device) if label.bytes().all(|byte| byte.is_ascii_digit()) => {
                format!("{label} {device}")
            }
            Some(_) | None => label.to_owned(),
        };
        counts.insert(name, own.map(|(_, count)| count).sum());
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "           CPU0       CPU1       CPU3\n\
        24:          0       4113          7  PCI-MSI 65537-edge  virtio1-req.0\n\
        LOC:      12345      23456         1  Local timer interrupts\n\
        ERR:          9\n";

    fn counters(text: &str, at_ns: u64) -> Counters {
        let cpus = CpuSet::parse_list("1,3").expect("a list");
        let interrupts = interrupts(text, &cpus);
        Counters { cpus, interrupts, switches: 3, at_ns }
    }

    #[test]
    fn interrupts_are_counted_by_name_on_the_given_cpus() {
        let after = BEFORE.replace("4113", "5113").replace("23456", "23556");
        let noise = counters(&after, 2_500_000_000).since(&counters(BEFORE, 0));
        assert_eq!(
            noise.to_string(),
            "CPU 1,3 for 2.5 s: 1100 interrupts (24 virtio1-req.0 1000, LOC 100); other tasks took \
             the CPU 0 times"
        );
        let why = noise.why_not_quiet();
        assert_eq!(why.as_deref(), Some("1000 interrupts other than the local timer"));
        let quiet = counters(BEFORE, 9).since(&counters(BEFORE, 0));
        assert_eq!(quiet.why_not_quiet(), None);
    }
}
