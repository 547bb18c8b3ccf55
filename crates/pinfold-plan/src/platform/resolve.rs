//! Resolves a platform on a host: the CPUs of each vnode, and the speed of each CPU.
//!
//! The strategy `vnodes` places the groups. This module adds what a plan does not contain:
//! frequencies become shares of each CPU's maximum, methods that set frequencies must agree within
//! a frequency domain, and real-time burners must not use the last CPU of the host's own tasks.

use pinfold_model::text::pus_text;
use pinfold_model::text::select_verb;
use pinfold_model::{
    CpuSet, Device, EmulatedVnode, EmulationPlan, Finding, IsolationScope, MemoryPlan, Method,
    NodeId, NumaNode, Plan, Platform, PlatformVnode, PuId, Request, Speed, SpeedRequest, Topology,
    VnodeRequest,
};

use super::error::{FrequencyError, PlatformError};
use crate::text::verb;

/// Resolves a platform on a host. The same platform gives the same result.
///
/// ```
/// let text = "[[vnode]]\nname = \"slow\"\ncores = 2\nspeed = \"40%\"\n";
/// let platform = pinfold_config::platforms::from_toml(text)?;
/// let topology = pinfold_samples::from_description("core:4 pu:2");
/// let resolved = pinfold_plan::resolve_platform(&platform, &topology)?;
/// assert_eq!(resolved.vnodes.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`PlatformError`] with the vnode that is not possible, and the reason.
pub fn resolve_platform(
    platform: &Platform,
    topology: &Topology,
) -> Result<EmulationPlan, PlatformError> {
    let groups = platform.vnodes.iter().map(|vnode| group(vnode, topology));
    // Scope `own`: other tasks are not moved, yet the plan names the host's CPUs.
    let isolation = IsolationScope::Own;
    let avoid = platform.avoid.clone();
    let request =
        Request { isolation, avoid, ..Request::from_vnodes(groups.collect::<Result<_, _>>()?) };
    let mut plan = crate::plan("vnodes", topology, &request)?;
    let last = last_housekeeping(&plan);
    let mut vnodes = Vec::with_capacity(platform.vnodes.len());
    for (asked, cpus) in platform.vnodes.iter().zip(cpus_of(&plan)) {
        let vnode = place(asked, &cpus, topology)?;
        vnodes.push(EmulatedVnode { on_last_housekeeping: !last.is_disjoint(&cpus), ..vnode });
    }
    agree_on_frequencies(&vnodes, topology)?;
    if !platform.share_housekeeping {
        keep_burners_off(&vnodes, &last)?;
    }
    report(&mut plan, &vnodes, topology)?;
    Ok(EmulationPlan { vnodes, plan, share_housekeeping: platform.share_housekeeping })
}

/// The speed of one CPU for a request.
///
/// # Errors
/// [`FrequencyError`] if it is a frequency above the CPU's maximum, or if that is unknown.
pub fn speed_on(
    pu: PuId,
    speed_request: SpeedRequest,
    topology: &Topology,
) -> Result<Speed, FrequencyError> {
    let hertz = match speed_request {
        SpeedRequest::Share(speed) => return Ok(speed),
        SpeedRequest::Frequency { hertz } => hertz,
    };
    let highest = topology.highest_khz.get(&pu).and_then(|khz| khz.checked_mul(1000));
    let highest = highest.filter(|highest| *highest > 0);
    let Some(highest) = highest else { return Err(FrequencyError::Unknown { pu, hertz }) };
    if hertz > highest {
        return Err(FrequencyError::TooFast { pu, hertz, highest });
    }
    let wide = u128::from(highest);
    let millionths = (u128::from(hertz) * 1_000_000 + wide / 2) / wide;
    u32::try_from(millionths).ok().and_then(Speed::from_millionths).ok_or(FrequencyError::TooSlow {
        pu,
        hertz,
        highest,
    })
}

/// The planner's request for a vnode. A frequency is converted to a share of the fastest CPU's,
/// because the vnode's CPUs are not known yet.
fn group(vnode: &PlatformVnode, topology: &Topology) -> Result<VnodeRequest, PlatformError> {
    let cores = vnode.cores;
    if vnode.speeds.len() != 1 && u32::try_from(vnode.speeds.len()) != Ok(cores) {
        let (vnode, given) = (vnode.name.clone(), vnode.speeds.len());
        return Err(PlatformError::Speeds { vnode, given, cores });
    }
    let usable = topology.allowed.intersection(&topology.online());
    // The first of the fastest CPUs.
    let pu = usable
        .iter()
        .min_by_key(|pu| {
            (std::cmp::Reverse(topology.highest_khz.get(pu).copied().unwrap_or(0)), *pu)
        })
        .unwrap_or(PuId(0));
    let speeds = vnode.speeds.iter().map(|speed_request| speed_on(pu, *speed_request, topology));
    let speeds: Vec<Speed> =
        speeds.collect::<Result<_, _>>().map_err(|why| platform_error(vnode, why))?;
    let fastest = speeds.into_iter().max().unwrap_or(Speed::FULL);
    let mut request = VnodeRequest::processes(&vnode.name, cores, fastest);
    if let Some(id) = vnode.memory_node {
        request.devices.push(Device::Node(node(&vnode.name, id, topology)?.id));
    }
    Ok(request)
}

fn platform_error(vnode: &PlatformVnode, why: FrequencyError) -> PlatformError {
    PlatformError::Frequency { vnode: vnode.name.clone(), why }
}

fn cpus_of(plan: &Plan) -> Vec<CpuSet> {
    plan.vnodes.iter().map(pinfold_model::VnodePlan::pus).collect()
}

/// The host's CPUs if vnodes use all of them, else empty.
fn last_housekeeping(plan: &Plan) -> CpuSet {
    if plan.housekeeping.is_subset(&plan.pus()) { plan.housekeeping.clone() } else { CpuSet::new() }
}

fn place(
    asked: &PlatformVnode,
    cpus: &CpuSet,
    topology: &Topology,
) -> Result<EmulatedVnode, PlatformError> {
    Ok(EmulatedVnode {
        name: asked.name.clone(),
        pus: cpus
            .iter()
            .enumerate()
            .map(|(place, pu)| -> Result<_, PlatformError> {
                let speed_request = asked.speeds.get(place).or(asked.speeds.first());
                let speed_request =
                    speed_request.copied().unwrap_or(SpeedRequest::Share(Speed::FULL));
                Ok((
                    pu,
                    speed_on(pu, speed_request, topology)
                        .map_err(|why| platform_error(asked, why))?,
                ))
            })
            .collect::<Result<_, _>>()?,
        memory_node: asked.memory_node,
        on_last_housekeeping: false,
        method: asked.method,
        variant: asked.variant,
        period_ns: asked.period_ns,
        calibrate: asked.calibrate,
        attach: asked.attach.clone(),
        profile: asked.profile.clone(),
        disk: asked.disk.clone(),
    })
}

/// CPUs that change their frequency together must have one method that sets it, and one speed.
fn agree_on_frequencies(
    vnodes: &[EmulatedVnode],
    topology: &Topology,
) -> Result<(), PlatformError> {
    for domain in &topology.frequency_domains {
        let all: Vec<_> = vnodes.iter().flat_map(|vnode| on_domain(vnode, domain)).collect();
        let by = all.iter().find_map(|(vnode, speed)| Some((*vnode, *speed, sets(vnode)?)));
        let Some((by, first, method)) = by else { continue };
        for (other, speed) in all {
            let domain = domain.clone();
            if sets(other).is_none() {
                let (by, slowed) = (by.name.clone(), other.name.clone());
                return Err(PlatformError::SlowedTwice { domain, by, method, slowed });
            }
            if speed != first {
                let (first, second) = ((by.name.clone(), first), (other.name.clone(), speed));
                return Err(PlatformError::TwoFrequencies { domain, first, second });
            }
        }
    }
    Ok(())
}

fn sets(vnode: &EmulatedVnode) -> Option<Method> {
    vnode.method.filter(|method| method.sets_frequency())
}

fn on_domain<'v>(
    vnode: &'v EmulatedVnode,
    domain: &CpuSet,
) -> impl Iterator<Item = (&'v EmulatedVnode, Speed)> {
    let inside = vnode.pus.iter().filter(|(pu, _)| domain.contains(*pu));
    inside.map(move |(_, speed)| (vnode, *speed))
}

fn keep_burners_off(vnodes: &[EmulatedVnode], last: &CpuSet) -> Result<(), PlatformError> {
    for vnode in vnodes.iter().filter(|vnode| vnode.on_last_housekeeping) {
        if let Some(method) = vnode.method.filter(|method| method.burns_in_real_time()) {
            let (vnode, pus) = (vnode.name.clone(), vnode.cpus().intersection(last));
            return Err(PlatformError::LastHousekeeping { vnode, method, pus });
        }
    }
    Ok(())
}

/// Adds the platform's settings to the plan, with findings about them.
fn report(
    plan: &mut Plan,
    vnodes: &[EmulatedVnode],
    topology: &Topology,
) -> Result<(), PlatformError> {
    // The nodes near which cores should be are those of memory, which has its own findings below.
    plan.findings.retain(|finding| finding.subject != "devices");
    // Explicitly named methods either slow by time or were checked above.
    if vnodes.iter().all(|vnode| vnode.method.is_some()) {
        plan.findings.retain(|finding| finding.subject != "frequency domains");
    }
    for (vnode, planned) in vnodes.iter().zip(&mut plan.vnodes) {
        planned.speed = vnode.pus.iter().map(|(_, speed)| *speed).max().unwrap_or(Speed::FULL);
        if let Some(id) = vnode.memory_node {
            plan.findings.extend(far_memory(vnode, node(&vnode.name, id, topology)?));
            planned.memory = Some(MemoryPlan {
                nodes: vec![id],
                bytes: None,
                page_bytes: None,
                is_preferred: false,
                reason: "the platform binds it to this node".to_owned(),
            });
        }
        if let Some(method) = vnode.method.filter(|method| method.sets_frequency()) {
            plan.findings.extend(slowed_host(vnode, method, &plan.housekeeping, topology));
        }
    }
    Ok(())
}

/// The requested node of a vnode's memory.
fn node<'t>(
    vnode: &str,
    id: NodeId,
    topology: &'t Topology,
) -> Result<&'t NumaNode, PlatformError> {
    let refused =
        |why: String| Err(PlatformError::MemoryNode { vnode: vnode.to_owned(), node: id, why });
    match topology.nodes.iter().find(|node| node.id == id) {
        Some(node) if node.memory_bytes > 0 => Ok(node),
        Some(_) => refused("it has no memory".to_owned()),
        None if topology.nodes.is_empty() => refused("this host reports no nodes".to_owned()),
        None => {
            let all: Vec<String> = topology.nodes.iter().map(|node| node.id.to_string()).collect();
            let nodes = select_verb(all.len(), "node", "nodes");
            refused(format!("this host has the {nodes} {}", all.join(", ")))
        }
    }
}

fn far_memory(vnode: &EmulatedVnode, node: &NumaNode) -> Option<Finding> {
    let cpus = vnode.cpus();
    node.pus.is_disjoint(&cpus).then(|| {
        Finding::note(
            "memory",
            format!(
                "the memory of {} is on node {}, remote from {}: this slows it in addition to the \
                 speed",
                vnode.name,
                node.id,
                pus_text(&cpus)
            ),
        )
    })
}

/// A finding about a frequency that also slows the host's own tasks.
fn slowed_host(
    vnode: &EmulatedVnode,
    method: Method,
    housekeeping: &CpuSet,
    topology: &Topology,
) -> Option<Finding> {
    let cpus = vnode.cpus();
    let domains = topology.frequency_domains.iter().filter(|domain| !domain.is_disjoint(&cpus));
    let together = domains.collect::<CpuSet>();
    let slowed = together.intersection(housekeeping);
    (!slowed.is_empty()).then(|| {
        let text = format!(
            "{} {} as slow as {} for the host's own tasks too: {method} also sets their frequency",
            pus_text(&slowed),
            verb(&slowed, "is", "are"),
            vnode.name
        );
        Finding::note("frequency domains", text)
            .with_hint("use a method that slows by time, such as stall")
    })
}
