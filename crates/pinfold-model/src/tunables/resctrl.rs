//! Shares of a cache or of memory bandwidth that all threads of the machine use together, in a
//! group of resctrl (<https://docs.kernel.org/filesystems/resctrl.html>).
//!
//! libvirt divides a cache by size and chooses the ways itself; the tunable is a mask. The size of
//! a way is the cache's size divided by its number of ways, so the element is written if both are
//! known.

use super::{
    FormatAnswer, FormatRule, HOST_SETTING, ResourceShare, Scope, Setting, Tunable, Value, Values,
};
use crate::{Finding, Plan, Topology, Tuning, Vendor};

/// The shares of a plan.
pub fn shares(tuning: &Tuning) -> impl Iterator<Item = &ResourceShare> {
    let all = tuning.all(&TUNABLE).iter();
    all.filter_map(|value| if let Value::Share(share) = value { Some(share) } else { None })
}

/// The row of this tunable. Apply makes the group and moves the threads.
pub static TUNABLE: Tunable = Tunable {
    key: "share",
    field: "shares",
    name: "resctrl",
    meaning: "share of a cache or of memory bandwidth for the threads of the machine",
    values: Values::Share,
    doctor: "resctrl",
    example: "L3:0=f0",
    trial_refusal: |_| {
        Some("the threads change their group of resctrl, and a cache fills more slowly than that")
    },
    wrong,
    said: &[
        ("libvirt", FormatRule::By(libvirt)),
        (
            "virsh",
            FormatRule::Nothing(
                "<cachetune> and <memorytune> are in the domain file only (`--emit libvirt`)",
            ),
        ),
        ("cmdline", super::policy::NO_THREADS_YET),
        (
            "systemd",
            FormatRule::Nothing(
                "resctrl divides caches and bandwidth, and systemd has no unit for it",
            ),
        ),
        ("tuned", FormatRule::Nothing("no plugin for resctrl")),
        ("proxmox", FormatRule::Nothing("Proxmox does not use resctrl")),
        (
            "kubevirt",
            FormatRule::Nothing(
                "resctrl classes are the container runtime's (CRI-O, containerd: rdt)",
            ),
        ),
        ("nova", FormatRule::Nothing("Nova does not use resctrl")),
    ],
    ..HOST_SETTING
};

fn wrong(setting: &Setting, plan: &Plan, topology: &Topology) -> Vec<Finding> {
    let Value::Share(share) = &setting.value else { return Vec::new() };
    let is_twice = shares(&plan.tuning)
        .filter(|one| (one.resource.clone(), one.domain) == (share.resource.clone(), share.domain))
        .count()
        > 1;
    let twice = is_twice.then(|| {
        let text = format!("{}:{} is set twice", share.resource, share.domain);
        (text, "leave one of them out".to_owned())
    });
    let all = twice.into_iter().chain(lacking(share, topology));
    all.map(|(text, hint)| Finding::problem("share", text).with_hint(hint)).collect()
}

/// What the host lacks for a share, with a hint.
fn lacking(share: &ResourceShare, topology: &Topology) -> Option<(String, String)> {
    let ways = topology.l3.iter().map(|l3| l3.ways).max().filter(|ways| *ways > 0);
    let widest = 64 - share.amount.leading_zeros();
    let (is_l3, vendor) = (share.resource.starts_with("L3"), Vendor::from_topology(topology));
    if is_l3 && topology.l3.is_empty() {
        return Some(("this host has no level-3 cache".to_owned(), "leave it out".to_owned()));
    }
    if let Some(ways) = ways.filter(|ways| is_l3 && widest > *ways) {
        return Some((
            format!(
                "the mask {:x} needs {widest} cache ways, but the cache has {ways}",
                share.amount
            ),
            format!("the whole cache is {:x}", u64::MAX >> (64 - ways.min(64))),
        ));
    }
    if share.resource == "MB" && vendor == Vendor::Intel && share.amount > 100 {
        let text = format!("the plan requests {} percent of the bandwidth", share.amount);
        return Some((text, "1 to 100".to_owned()));
    }
    (share.resource == "SMBA" && vendor == Vendor::Intel)
        .then(|| ("SMBA is of AMD's processors".to_owned(), "MB is for ordinary memory".to_owned()))
}

/// All shares of a kind are one element, which is written with the first share.
fn libvirt(setting: &Setting, scope: &Scope<'_>) -> FormatAnswer {
    let Value::Share(share) = &setting.value else { return FormatAnswer::host() };
    let line = |share: &ResourceShare| {
        if share.is_cache() {
            cache(share, scope.topology)
        } else {
            bandwidth(share, scope.topology)
        }
    };
    if let Err(why) = line(share) {
        return FormatAnswer::Nothing(why);
    }
    let kin = shares(&scope.plan.tuning).filter(|one| one.is_cache() == share.is_cache());
    let lines: Vec<(&ResourceShare, String)> =
        kin.filter_map(|one| Some((one, line(one).ok()?))).collect();
    let note = if share.is_cache() {
        "libvirt chooses which ways, for the vCPUs' threads alone"
    } else {
        "for the vCPUs' threads alone"
    };
    if lines.first().is_none_or(|(first, _)| *first != share) {
        return FormatAnswer::lines("cputune", Vec::new()).with_difference(note);
    }
    let name = if share.is_cache() { "cachetune" } else { "memorytune" };
    let vcpus = match scope.vcpus() {
        0 | 1 => "0".to_owned(),
        several => format!("0-{}", several - 1),
    };
    let inner: String = lines.into_iter().map(|(_, line)| line).collect();
    FormatAnswer::lines("cputune", vec![format!("<{name} vcpus='{vcpus}'>{inner}</{name}>")])
        .with_difference(note)
}

/// `<cache>` for a share of a level-3 cache.
fn cache(share: &ResourceShare, topology: Option<&Topology>) -> Result<String, String> {
    let kind = match share.resource.as_str() {
        "L3" => "both",
        "L3CODE" => "code",
        "L3DATA" => "data",
        other => return Err(format!("libvirt can divide only level-3 caches, not {other}")),
    };
    let ways = share.amount.count_ones();
    // The kernel's cache number is irrelevant if all caches are alike.
    let sizes = topology.map(|topology| topology.l3.iter().map(|l3| (l3.size_bytes, l3.ways)));
    let mut sizes: Vec<(u64, u32)> = sizes.into_iter().flatten().collect();
    sizes.dedup();
    match sizes.as_slice() {
        [(bytes, all)]
            if *bytes > 0 && *all >= ways && bytes.is_multiple_of(1024 * u64::from(*all)) =>
        {
            let kib = bytes / 1024 / u64::from(*all) * u64::from(ways);
            let id = share.domain;
            Ok(format!("<cache id='{id}' level='3' type='{kind}' size='{kib}' unit='KiB'/>"))
        }
        _ => Err(format!(
            "libvirt takes a size, and the size of a way is not known here: write {ways} times the \
             granularity that `virsh capabilities` shows into <cachetune>"
        )),
    }
}

/// `<node>` for a share of memory bandwidth.
fn bandwidth(share: &ResourceShare, topology: Option<&Topology>) -> Result<String, String> {
    let amd = topology.is_some_and(|topology| Vendor::from_topology(topology) == Vendor::Amd);
    match share.resource.as_str() {
        "MB" if !amd && share.amount <= 100 => {
            Ok(format!("<node id='{}' bandwidth='{}'/>", share.domain, share.amount))
        }
        "MB" => Err("libvirt takes percent, on AMD the kernel takes eighths of a GB/s".to_owned()),
        other => Err(format!("libvirt limits the bandwidth of ordinary memory, not {other}")),
    }
}
