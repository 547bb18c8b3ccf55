//! The host's tunables in the syntax of the command line: `KEY=VALUE`.

use pinfold_model::{
    CpuQuota, CpuSet, Device, HugePagePool, IrqPlan, NodeId, Partition, Plan, PolicyRequest,
    ResourceShare, SamePageMerging, TransparentHugePages, closest,
};

use super::policies;
use crate::ConfigError;
use crate::fault::Fault;

/// The keys, each with its value syntax; for help and messages.
pub const KNOBS: [(&str, &str); 20] = [
    ("policy:ROLE", super::policies::FORMS),
    ("irq:DEVICE", "PUS|housekeeping"),
    ("new-irqs", "PUS|housekeeping"),
    ("workqueues", "PUS|housekeeping"),
    ("numa-balancing", "on|off"),
    ("thp", "always|madvise|never"),
    ("ksm", "stop|run|unmerge"),
    ("wake-up-us", "MICROSECONDS"),
    ("rt-throttle", "on|off"),
    ("governor", "NAME"),
    ("min-khz", "KHZ"),
    ("max-khz", "KHZ"),
    ("huge-pages", "NODE:SIZE_KIB:PAGES"),
    ("share", "RESOURCE:DOMAIN=AMOUNT"),
    ("cpu-weight", "1..10000"),
    ("cpu-quota", "QUOTA_US/PERIOD_US"),
    ("partition", "isolated|root"),
    ("smt", "on|off"),
    ("offline", "PUS"),
    ("required", "yes|no"),
];

/// Adds one tunable to a plan, such as `thp=never` or `workqueues=housekeeping`; `housekeeping`
/// stands for the plan's housekeeping CPUs.
///
/// # Errors
/// [`ConfigError`] names the invalid key or value, and the valid ones.
pub fn knob(plan: &mut Plan, words: &str) -> Result<(), ConfigError> {
    Ok(set(plan, words)?)
}

fn set(plan: &mut Plan, words: &str) -> Result<(), Fault> {
    let Some((key, value)) = words.split_once('=') else {
        return Err(Fault::new(0, format!("{words:?} is not written KEY=VALUE")).with_hint(keys()));
    };
    let (key, value) = (key.trim(), value.trim());
    if let Some(device) = key.strip_prefix("irq:") {
        let device = irq_device(device)?;
        let pus = pus(key, value, &plan.housekeeping)?;
        let reason = "asked for on the command line".to_owned();
        plan.irqs.retain(|irq| irq.device != device);
        plan.irqs.push(IrqPlan { device, pus, reason });
        return Ok(());
    }
    if let Some(role) = key.strip_prefix("policy:") {
        let wish = PolicyRequest { role: role.to_owned(), policy: policies::policy(value, 0)? };
        return plan
            .set_policy(None, &wish)
            .map_err(|why| Fault::new(0, why).with_hint(policies::roles()));
    }
    let tuning = &mut plan.tuning;
    match key {
        "new-irqs" => tuning.new_irqs = Some(pus(key, value, &plan.housekeeping)?),
        "workqueues" => tuning.workqueues = Some(pus(key, value, &plan.housekeeping)?),
        "numa-balancing" => {
            tuning.numa_balancing = Some(word(key, value, &[("on", true), ("off", false)])?);
        }
        "thp" => {
            let known = TransparentHugePages::ALL.map(|one| (one.word(), one));
            tuning.transparent_huge_pages = Some(word(key, value, &known)?);
        }
        "ksm" => {
            let known = SamePageMerging::ALL.map(|one| (one.word(), one));
            tuning.same_page_merging = Some(word(key, value, &known)?);
        }
        "wake-up-us" => tuning.wake_up_us = Some(number(key, value)?),
        "rt-throttle" => {
            tuning.real_time_throttle = Some(word(key, value, &[("on", true), ("off", false)])?);
        }
        "governor" => tuning.governor = Some(value.to_owned()),
        "min-khz" => tuning.min_khz = Some(number(key, value)?),
        "max-khz" => tuning.max_khz = Some(number(key, value)?),
        "huge-pages" => tuning.huge_pages.push(pool(key, value)?),
        "share" => tuning.shares.push(share(key, value)?),
        "cpu-weight" => tuning.cpu_weight = Some(number(key, value)?),
        "cpu-quota" => tuning.cpu_quota = Some(quota(key, value)?),
        "partition" => {
            let known = Partition::ALL.map(|one| (one.word(), one));
            tuning.partition = Some(word(key, value, &known)?);
        }
        "smt" => tuning.smt = Some(word(key, value, &[("on", true), ("off", false)])?),
        "offline" => tuning.offline = Some(list(key, value, "write OS indexes, such as 5,7")?),
        "required" => tuning.required = word(key, value, &[("yes", true), ("no", false)])?,
        _ => {
            let fault = Fault::new(0, format!("there is no knob {key:?}"));
            let nearest = closest(key, KNOBS.iter().map(|(name, _)| *name));
            let meant = nearest.map_or_else(String::new, |one| format!("did you mean {one}? "));
            return Err(fault.with_hint(format!("{meant}{}", keys())));
        }
    }
    Ok(())
}

/// A device as plans name it: a PCI address with its domain, `node N`, or all.
fn irq_device(text: &str) -> Result<String, Fault> {
    if matches!(text, IrqPlan::ALL | "*") {
        return Ok(IrqPlan::ALL.to_owned());
    }
    match super::device_of(text, 0) {
        Ok(Device::Pci(address)) => Ok(address),
        Ok(Device::Node(node)) => Ok(format!("node {node}")),
        Err(fault) => {
            let why = format!("irq: {}", fault.why);
            Err(Fault::new(0, why).with_hint(
                "write irq:0000:05:00.0, irq:node:1 for the devices of a node, or irq:all",
            ))
        }
    }
}

fn keys() -> String {
    // With blanks between the values, so that the list can be wrapped.
    let knob = |(key, values): &(&str, &str)| format!("{key}={}", values.replace('|', " | "));
    let all: Vec<String> = KNOBS.iter().map(knob).collect();
    format!("known are {}", all.join("; "))
}

fn wrong(key: &str, value: &str, wanted: &str) -> Fault {
    Fault::new(0, format!("{key}: {value:?} is not {wanted}"))
}

fn pus(key: &str, value: &str, housekeeping: &CpuSet) -> Result<CpuSet, Fault> {
    if value == "housekeeping" {
        return Ok(housekeeping.clone());
    }
    list(key, value, "write OS indexes, such as 0-3,8, or the word housekeeping")
}

fn list(key: &str, value: &str, hint: &'static str) -> Result<CpuSet, Fault> {
    match CpuSet::parse_list(value) {
        Ok(set) if set.is_empty() => Err(wrong(key, value, "at least one PU").with_hint(hint)),
        Ok(set) => Ok(set),
        Err(error) => Err(Fault::new(0, format!("{key}: {error}")).with_hint(hint)),
    }
}

fn word<T: Copy>(key: &str, value: &str, known: &[(&str, T)]) -> Result<T, Fault> {
    let names: Vec<&str> = known.iter().map(|(name, _)| *name).collect();
    let found = known.iter().find(|(name, _)| *name == value).map(|(_, value)| *value);
    found.ok_or_else(|| wrong(key, value, &format!("one of {}", names.join(", "))))
}

fn number<T: std::str::FromStr>(key: &str, value: &str) -> Result<T, Fault> {
    value.parse().map_err(|_| wrong(key, value, "a whole number that fits"))
}

fn pool(key: &str, value: &str) -> Result<HugePagePool, Fault> {
    let parts: Vec<&str> = value.split(':').collect();
    let [node, kib, pages] = parts.as_slice() else {
        return Err(wrong(key, value, "NODE:SIZE_KIB:PAGES, such as 0:2048:512"));
    };
    let kib: u64 = number(key, kib)?;
    let page_bytes =
        kib.checked_mul(1024).ok_or_else(|| wrong(key, value, "a page size that there is"))?;
    Ok(HugePagePool { node: NodeId(number(key, node)?), page_bytes, pages: number(key, pages)? })
}

fn share(key: &str, value: &str) -> Result<ResourceShare, Fault> {
    ResourceShare::parse(value).ok_or_else(|| {
        wrong(key, value, "RESOURCE:DOMAIN=AMOUNT, such as L3:0=ff0 or MB:0=50")
            .with_hint(format!("resources are {}", ResourceShare::RESOURCES.join(", ")))
    })
}

fn quota(key: &str, value: &str) -> Result<CpuQuota, Fault> {
    let (quota_us, period_us) = match value.split_once('/') {
        Some((quota, period)) => (number(key, quota)?, number(key, period)?),
        None => return Err(wrong(key, value, "QUOTA_US/PERIOD_US, such as 50000/100000")),
    };
    Ok(CpuQuota { quota_us, period_us })
}
