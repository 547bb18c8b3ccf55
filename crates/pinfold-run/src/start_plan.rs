//! The plan for a machine that has just started, by settings that were written before: around the
//! claims of others, and for the host as it is now.
//!
//! What the machine's owner has set wins: pins of the domain, its default CPUs, the nodes of its
//! memory. Settings that cannot be followed on this host give way, each with a warning.

use pinfold_config::domains::DomainSettings;
use pinfold_host::{Host, LiveHost, numa_maps, paths};
use pinfold_model::text::cpus_text;
use pinfold_model::{
    CpuSet, Finding, MachineSpec, NodeId, PinRequest, Plan, Request, Tid, Topology, VcpuCount,
    VmRequest, VnodeRequest, Work,
};
use pinfold_plan::domain_file::Domain;
use pinfold_vm::DiscoveredVm;

use crate::claims::Claims;
use crate::vcpus::Vcpus;
use crate::{Failure, inputs, machine_request};

const STRATEGY: &str = "auto";
const SUBJECT: &str = "placement";

/// A machine that has just started.
#[derive(Clone, Copy)]
pub struct Started<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its threads.
    pub found: &'a DiscoveredVm,
    /// What describes it.
    pub source: Source<'a>,
}

/// The description of a machine.
#[derive(Clone, Copy)]
pub enum Source<'a> {
    /// The XML of its domain.
    Domain(&'a str),
    /// Its command line.
    CommandLine(&'a MachineSpec),
}

/// The host at the start of a machine.
#[derive(Clone, Copy)]
pub struct HostNow<'a> {
    /// The host.
    pub host: &'a LiveHost,
    /// Its topology, with the memory that is free now.
    pub topology: &'a Topology,
    /// The claims of others.
    pub claims: &'a Claims,
}

/// Plans a machine, with findings about settings that were not followed.
///
/// # Errors
/// [`Failure`] if it cannot be placed at all.
pub fn plan(
    machine: &Started<'_>,
    settings: &DomainSettings,
    now: &HostNow<'_>,
) -> Result<(Plan, Vec<Finding>), Failure> {
    let mut findings = Vec::new();
    let mut request = request(machine, now, &mut findings)?;
    if let Some(avoid) = &settings.avoid {
        let all = now.topology.online().union(&now.topology.offline);
        let unknown = avoid.difference(&all);
        if !unknown.is_empty() {
            let text = format!("avoid: this host has no {}", cpus_text(&unknown));
            let hint = format!("its CPUs are {all}");
            findings.push(Finding::warning(SUBJECT, text).with_hint(hint));
        }
        request.avoid.add(&avoid.intersection(&now.topology.online()));
    }
    let vcpus = Vcpus::from_found(machine.found);
    vcpus.map_pins_to_indexes(&mut request)?;
    // The owner's pins win over what it should avoid.
    for pin in request.vnodes.iter().flat_map(|vnode| &vnode.pins) {
        request.avoid = request.avoid.difference(&pin.pus);
    }
    let has_memory = !memory_nodes(now, machine.found.pid, &request).is_empty();
    let settled = now.topology.clone().without_free_memory();
    // Memory that the machine has already decides its node, not what is free besides.
    let topology = if has_memory { &settled } else { now.topology };
    let mut last = None;
    for attempt in attempts(settings) {
        let mut asked = request.clone();
        asked.prefer = attempt.prefer.unwrap_or_default();
        asked.emulator = attempt.emulator.unwrap_or_default();
        asked.isolation = attempt.isolation.unwrap_or(asked.isolation);
        let strategy = attempt.strategy.as_deref().unwrap_or(STRATEGY);
        let tunables = attempt.tunables.unwrap_or_default();
        let made = inputs::plan_with_tunables(now.claims, &tunables, topology, |claims| {
            inputs::make_plan(Some(strategy), topology, &asked, claims)
        });
        match made {
            Ok(mut plan) => {
                vcpus.renumber_vcpus(&mut plan);
                return Ok((plan, findings));
            }
            Err(failure) => {
                let text = format!("{strategy}: {}", failure.message);
                findings.push(Finding::warning(SUBJECT, text));
                last = Some(failure);
            }
        }
    }
    Err(last.unwrap_or_else(|| Failure::new(crate::Exit::Input, "there is no placement")))
}

/// The settings as they are, then with ever fewer of them.
fn attempts(settings: &DomainSettings) -> Vec<DomainSettings> {
    let mut all = vec![settings.clone()];
    if settings.tunables.is_some() {
        all.push(DomainSettings { tunables: None, ..settings.clone() });
    }
    all.push(DomainSettings {
        isolation: settings.isolation,
        avoid: settings.avoid.clone(),
        ..DomainSettings::default()
    });
    all.dedup();
    all
}

/// The request for a machine as its owner describes it.
fn request(
    machine: &Started<'_>,
    now: &HostNow<'_>,
    findings: &mut Vec<Finding>,
) -> Result<Request, Failure> {
    let found = machine.found;
    let count = VcpuCount::Exactly(Vcpus::from_found(found).count());
    let mut avoid = CpuSet::new();
    let mut vnode = match machine.source {
        Source::CommandLine(spec) => machine_request::vnode(spec, count, now.topology),
        Source::Domain(xml) => match Domain::read(xml) {
            Ok(domain) => {
                avoid = disallowed_cpus(&domain, found, now);
                let pins = own_pins(&domain, found);
                VnodeRequest { pins, ..inputs::vnode_of_domain(&domain, now.topology) }
            }
            Err(error) => {
                let text = format!("{error}; only the threads of the domain are known");
                findings.push(Finding::warning(SUBJECT, text));
                VnodeRequest::vm(machine.name, VmRequest::from_vcpus(count))
            }
        },
    };
    machine.name.clone_into(&mut vnode.name);
    if let Work::Vm(asked) = &mut vnode.work {
        // The running threads are those to be placed.
        inputs::set_vcpus(asked, count);
        let iothreads = found.threads.iter().filter_map(|thread| thread.role.iothread());
        asked.iothreads = iothreads.map(str::to_owned).collect();
    }
    let mut request = Request::from_vnodes(vec![vnode]);
    request.avoid = avoid;
    let nodes = memory_nodes(now, found.pid, &request);
    for vnode in &mut request.vnodes {
        if let Work::Vm(asked) = &mut vnode.work
            && asked.nodes.is_empty()
            && asked.cells.is_empty()
        {
            asked.nodes.clone_from(&nodes);
        }
    }
    Ok(request)
}

/// The pins of the domain, of threads that exist.
fn own_pins(domain: &Domain, found: &DiscoveredVm) -> Vec<PinRequest> {
    let pins = domain.pins.iter().map(|pin| (pin.value.0.role(), pin.value.1.clone()));
    pins.filter(|(role, _)| found.threads.iter().any(|thread| thread.role == *role))
        .map(|(role, pus)| PinRequest { role: role.to_string(), pus })
        .collect()
}

/// The CPUs outside of those that the domain allows: by `cpuset` of `<vcpu>`, or by numad, whose
/// answer only the masks show.
fn disallowed_cpus(domain: &Domain, found: &DiscoveredVm, now: &HostNow<'_>) -> CpuSet {
    let online = now.topology.online();
    let allowed = match &domain.default {
        Some(default) => default.value.intersection(&online),
        None if domain.is_placed_by_numad => {
            let unpinned = found.threads.iter().find(|thread| thread.role.is_vcpu());
            let mask = unpinned.and_then(|thread| now.host.affinity(thread.task.tid).ok());
            mask.unwrap_or_default().intersection(&online)
        }
        None => CpuSet::new(),
    };
    if allowed.is_empty() { CpuSet::new() } else { online.difference(&allowed) }
}

/// The nodes of the memory that a machine has already, if that is at least half of it: preallocated
/// memory, and that of a restored or migrated machine.
fn memory_nodes(now: &HostNow<'_>, pid: Tid, request: &Request) -> Vec<NodeId> {
    let bytes = request.vnodes.first().and_then(|vnode| vnode.memory).map(|memory| memory.bytes);
    let Some(bytes) = bytes else { return Vec::new() };
    // Without the right to read it, the memory does not decide.
    let text = now.host.read_text(&paths::process_numa_maps(pid)).unwrap_or_default();
    let held = numa_maps::parse(&text).unwrap_or_default();
    let total_kib: u64 = held.values().sum();
    if total_kib < bytes / 2048 {
        return Vec::new();
    }
    // A few pages on another node, such as those of libraries, do not count.
    let nodes = held.iter().filter(|(_, kib)| **kib >= total_kib / 8).map(|(node, _)| *node);
    nodes
        .filter(|node| now.topology.nodes.iter().any(|one| one.id == *node && !one.pus.is_empty()))
        .collect()
}
