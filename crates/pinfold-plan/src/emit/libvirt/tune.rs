//! Tunables as libvirt elements: `<shares>`, the quota of the domain, `<cachetune>`, `<memorytune>`
//! (<https://libvirt.org/formatdomain.html#cpu-tuning>).
//!
//! libvirt divides a cache by size and chooses the ways itself; the tunable is a mask. The size of
//! a way is the cache's size divided by its number of ways, so the element is written if both are
//! known.

use pinfold_model::{Plan, ResourceShare, Topology, VnodePlan};

use super::super::said::{Answers, FormatAnswer, Line, Scope};
use crate::guest_cache::Vendor;
use crate::tunables::Tunable;

/// Parent element of all its lines.
pub(in crate::emit) const CPUTUNE: &str = "cputune";

/// libvirt's answers for the plan's tunables.
pub(in crate::emit) fn answers(plan: (&Plan, &VnodePlan), topology: &Topology) -> Answers {
    let scope = Scope { topology: Some(topology), ..Scope::of_vnode(plan) };
    Answers::of(scope, words)
}

/// Changes of the tunables to `<cputune>` of a domain file.
pub(in crate::emit) struct Tuned {
    /// Names of the elements that are removed.
    pub names: Vec<&'static str>,
    /// The new elements.
    pub lines: Vec<String>,
    /// Differences from the plan, and tunables that libvirt cannot express.
    pub notes: Vec<String>,
}

/// The changes for a domain file.
pub(in crate::emit) fn tuned(plan: (&Plan, &VnodePlan), topology: &Topology) -> Tuned {
    let answers = answers(plan, topology);
    let names = exchanged(plan.0);
    let mut notes = Vec::new();
    let mut lines = Vec::new();
    for line in answers.lines(CPUTUNE) {
        match line {
            Line::Comment(note) => notes.push(note),
            Line::Text(line) => lines.push(line),
        }
    }
    // If libvirt cannot express the plan's shares, those of the file stay.
    let names: Vec<&str> = match lines
        .iter()
        .any(|line| line.starts_with("<cachetune") || line.starts_with("<memorytune"))
    {
        true => names,
        false => names.into_iter().filter(|name| !name.ends_with("tune")).collect(),
    };
    notes.extend(answers.missing("libvirt"));
    Tuned { names, lines, notes }
}

/// The elements of a domain file that are replaced by the plan's.
fn exchanged(plan: &Plan) -> Vec<&'static str> {
    let tuning = &plan.tuning;
    let mut names = Vec::new();
    if tuning.cpu_weight.is_some() {
        names.push("shares");
    }
    if tuning.cpu_quota.is_some() {
        names.extend(["global_period", "global_quota"]);
    }
    // The plan's shares apply to all vCPUs, and libvirt refuses two elements whose vCPUs overlap.
    if !tuning.shares.is_empty() {
        names.extend(["cachetune", "memorytune"]);
    }
    names
}

pub(in crate::emit) fn words(tunable: &Tunable<'_>, scope: &Scope<'_>) -> FormatAnswer {
    match tunable {
        Tunable::CpuWeight(weight) => {
            let line = format!("<shares>{weight}</shares>");
            let shares = (u64::from(*weight) * 1024 / 100).max(2);
            FormatAnswer::lines(CPUTUNE, vec![line])
                .but(format!("for cgroup v2; on a host with cgroup v1 write {shares}"))
        }
        Tunable::CpuQuota(quota) => FormatAnswer::lines(
            CPUTUNE,
            vec![
                format!("<global_period>{}</global_period>", quota.period_us),
                format!("<global_quota>{}</global_quota>", quota.quota_us),
            ],
        ),
        Tunable::Share(share) => shares(share, scope),
        Tunable::Policy { .. } => FormatAnswer::Elsewhere,
        Tunable::SamePageMerging(_) => FormatAnswer::nothing(
            "it is a setting of the host; <nosharepages/> in <memoryBacking> keeps this domain out of it",
        ),
        Tunable::HugePages(pool) => FormatAnswer::Nothing(format!(
            "it is a setting of the host: `virsh allocpages {} {} {}` makes the pool",
            pool.page_bytes >> 10,
            pool.pages,
            pool.node
        )),
        Tunable::Partition(_) => FormatAnswer::nothing(
            "libvirt makes the groups of its domains itself, none of them a cpuset partition",
        ),
        Tunable::Required => FormatAnswer::nothing("`pinfold apply` alone checks it"),
        Tunable::Irq(_)
        | Tunable::NewIrqs(_)
        | Tunable::Workqueues(_)
        | Tunable::NumaBalancing(_)
        | Tunable::TransparentHugePages(_)
        | Tunable::WakeUp(_)
        | Tunable::RealTimeThrottle(_)
        | Tunable::Governor(_)
        | Tunable::MinKhz(_)
        | Tunable::MaxKhz(_)
        | Tunable::Smt(_)
        | Tunable::Offline(_) => FormatAnswer::host(),
    }
}

/// All shares of a kind are one element, which is written with the first share.
fn shares(share: &ResourceShare, scope: &Scope<'_>) -> FormatAnswer {
    let line = |share: &ResourceShare| match share.is_cache() {
        true => cache(share, scope.topology),
        false => bandwidth(share, scope.topology),
    };
    if let Err(why) = line(share) {
        return FormatAnswer::Nothing(why);
    }
    let kin = scope.plan.tuning.shares.iter().filter(|one| one.is_cache() == share.is_cache());
    let lines: Vec<(&ResourceShare, String)> =
        kin.filter_map(|one| Some((one, line(one).ok()?))).collect();
    let note = match share.is_cache() {
        true => "libvirt chooses which ways, for the vCPUs' threads alone",
        false => "for the vCPUs' threads alone",
    };
    if lines.first().is_none_or(|(first, _)| *first != share) {
        return FormatAnswer::lines(CPUTUNE, Vec::new()).but(note);
    }
    let name = if share.is_cache() { "cachetune" } else { "memorytune" };
    let vcpus = match scope.vcpus() {
        0 | 1 => "0".to_owned(),
        several => format!("0-{}", several - 1),
    };
    let inner: String = lines.into_iter().map(|(_, line)| line).collect();
    FormatAnswer::lines(CPUTUNE, vec![format!("<{name} vcpus='{vcpus}'>{inner}</{name}>")])
        .but(note)
}

/// `<cache>` for a share of a level-3 cache.
fn cache(share: &ResourceShare, topology: Option<&Topology>) -> Result<String, String> {
    let kind = match share.resource.as_str() {
        "L3" => "both",
        "L3CODE" => "code",
        "L3DATA" => "data",
        other => return Err(format!("libvirt divides level-3 caches, {other} is none")),
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
    let amd = topology.is_some_and(|topology| Vendor::of(topology) == Vendor::Amd);
    match share.resource.as_str() {
        "MB" if !amd && share.amount <= 100 => {
            Ok(format!("<node id='{}' bandwidth='{}'/>", share.domain, share.amount))
        }
        "MB" => Err("libvirt takes percent, on AMD the kernel takes eighths of a GB/s".to_owned()),
        other => Err(format!("libvirt limits the bandwidth of ordinary memory, not {other}")),
    }
}
