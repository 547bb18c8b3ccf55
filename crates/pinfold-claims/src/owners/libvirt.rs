//! Domains of libvirt with their pins, running and defined, from its files: libvirtd is not asked.
//!
//! ```text
//! /etc/libvirt/qemu/web.xml    <domain type='kvm'>…</domain>
//! /run/libvirt/qemu/web.xml    <domstatus state='running' reason='booted' pid='4242'>
//!                                <domain type='kvm' id='1'>…</domain>
//!                              </domstatus>
//! ```
//! Format of a domain: <https://libvirt.org/formatdomain.html>. A vCPU that is pinned to one CPU has
//! it alone; emulator threads, iothreads and vCPUs with several CPUs share theirs.

use std::collections::BTreeSet;

use pinfold_host::proc_stat;
use pinfold_model::{CpuSet, Finding, Tid, escape};
use pinfold_plan::domain_file::{LibvirtFile, Manager, Target};
use pinfold_vm::{hypervisors, threads};

use super::nova;
use crate::claim::{Claim, Exclusivity, Kind, Owner, OwnerCategory, Source};
use crate::claim_set::Claims;
use crate::context::Context;
use crate::processes;

/// A domain.
pub const KIND: Kind =
    Kind { name: "libvirt", noun: "libvirt domain", sort: OwnerCategory::Machine };

/// What is read.
pub const READS: &str = "/run/libvirt/qemu/*.xml, /etc/libvirt/qemu/*.xml";

/// Largest domain file that is read, in bytes: clients of libvirt send at most 4 MiB
/// (`REMOTE_STRING_MAX`). Parsing a larger one delays each plan.
pub const LARGEST_FILE: usize = 4 << 20;

const RUNNING: &str = "/run/libvirt/qemu";
const DEFINED: &str = "/etc/libvirt/qemu";

/// A domain file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Name of the domain.
    pub name: String,
    /// Its UUID, which is on the command line of its process.
    pub uuid: Option<String>,
    /// The process, in the status file of a running domain.
    pub pid: Option<Tid>,
    /// The pins, with the line of each.
    pub pins: Vec<Pin>,
    /// The number of vCPUs that are bound to several CPUs.
    pub floating_vcpus: u32,
    /// True if OpenStack Nova manages the domain.
    pub is_of_nova: bool,
}

/// CPUs of threads of a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// The CPUs.
    pub cpus: CpuSet,
    /// Dedicated for one vCPU on one CPU.
    pub exclusivity: Exclusivity,
    /// The line of the element.
    pub line: Option<u32>,
}

/// Parses a definition or a status file.
///
/// # Errors
/// A sentence with line and column.
pub fn parse(text: &str) -> Result<File, String> {
    let LibvirtFile { domain, uuid, process, manager } =
        LibvirtFile::read(text).map_err(|error| error.to_string())?;
    let mut pins: Vec<Pin> = Vec::new();
    let mut pinned = CpuSet::new();
    let mut floating_vcpus = 0;
    for pin in &domain.pins {
        let (target, cpus) = &pin.value;
        let exclusivity = match target {
            Target::Vcpu(vcpu) => {
                pinned.insert(pinfold_model::PuId(*vcpu));
                if !domain.enabled_vcpus.contains(pinfold_model::PuId(*vcpu)) {
                    continue;
                }
                floating_vcpus += u32::from(cpus.len() > 1);
                if cpus.len() == 1 { Exclusivity::Dedicated } else { Exclusivity::Shared }
            }
            Target::Emulator | Target::Iothread(_) => Exclusivity::Shared,
        };
        pins.push(Pin { cpus: cpus.clone(), exclusivity, line: pin.place.line });
    }
    if let Some(default) = &domain.default
        && !domain.enabled_vcpus.is_subset(&pinned)
    {
        let cpus = default.value.clone();
        let without_pin = domain.enabled_vcpus.difference(&pinned).len();
        floating_vcpus += u32::try_from(without_pin).unwrap_or(u32::MAX);
        pins.push(Pin { cpus, exclusivity: Exclusivity::Shared, line: default.place.line });
    }
    Ok(File {
        name: domain.name,
        uuid,
        pid: process,
        pins: shared_by_two(pins),
        floating_vcpus,
        is_of_nova: manager == Some(Manager::Nova),
    })
}

/// CPUs of two vCPUs are shared.
fn shared_by_two(mut pins: Vec<Pin>) -> Vec<Pin> {
    let (mut once, mut twice) = (CpuSet::new(), CpuSet::new());
    for pin in pins.iter().filter(|pin| pin.exclusivity == Exclusivity::Dedicated) {
        twice.add(&once.intersection(&pin.cpus));
        once.add(&pin.cpus);
    }
    for pin in pins.iter_mut().filter(|pin| !pin.cpus.is_disjoint(&twice)) {
        pin.exclusivity = Exclusivity::Shared;
    }
    pins
}

/// Adds the claims of all domains.
pub fn read(context: &Context<'_>, claims: &mut Claims) {
    let mut running = BTreeSet::new();
    for name in context.names(RUNNING, ".xml", claims) {
        let path = format!("{RUNNING}/{name}");
        let Some(file) = parse_file(context, &path, claims) else { continue };
        // A file that a crash left: the number may be that of another process by now.
        match file.pid.map_or(NamedProcess::Domain, |pid| named_process(context, pid, &file)) {
            NamedProcess::Domain => {}
            NamedProcess::Ended => continue,
            NamedProcess::Other => {
                claims.report(stale_file(&path, &file));
                continue;
            }
        }
        running.insert(file.name.clone());
        match file.pid {
            Some(pid) if claims.has_process(pid) => {
                if file.is_of_nova {
                    claims.set_manager(pid, &nova::KIND);
                }
            }
            _ => add(context, &path, &file, claims),
        }
    }
    for name in context.names(DEFINED, ".xml", claims) {
        if name.strip_suffix(".xml").is_some_and(|name| running.contains(name)) {
            continue;
        }
        let path = format!("{DEFINED}/{name}");
        let Some(file) = parse_file(context, &path, claims) else { continue };
        if !running.contains(&file.name) {
            add(context, &path, &file, claims);
        }
    }
}

/// The process that a status file names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NamedProcess {
    /// That of the domain, as far as a capture shows it.
    Domain,
    /// None: it has ended.
    Ended,
    /// Another one, which got its number.
    Other,
}

/// The status file has no start time of the process, so its command line is compared, as the hook
/// of libvirt does.
fn named_process(context: &Context<'_>, pid: Tid, file: &File) -> NamedProcess {
    let arguments = processes::arguments(context.host, pid);
    if arguments.is_empty() {
        return match proc_stat::read(context.host, pid) {
            Ok(None) if context.host.is_live() => NamedProcess::Ended,
            Ok(Some(stat)) if stat.has_ended() => NamedProcess::Ended,
            Ok(Some(_)) => NamedProcess::Other,
            // A captured host need not have the process.
            Ok(None) | Err(_) => NamedProcess::Domain,
        };
    }
    let is_domain = match (&file.uuid, threads::uuid(context.host, pid)) {
        (Some(own), Some(found)) => own.eq_ignore_ascii_case(&found),
        (_, _) => hypervisors::parse(&arguments).spec().name.as_ref() == Some(&file.name),
    };
    if is_domain { NamedProcess::Domain } else { NamedProcess::Other }
}

fn stale_file(path: &str, file: &File) -> Finding {
    let pid = file.pid.map_or_else(String::new, |pid| format!(" {pid}"));
    let name = escape::name(&file.name);
    let text = format!(
        "{path}: stale, because process{pid} is not the QEMU of domain {name}; not counted"
    );
    Finding::warning("claims", text)
        .with_hint("remove the file if `virsh list` does not show the domain")
}

fn parse_file(context: &Context<'_>, path: &str, claims: &mut Claims) -> Option<File> {
    let text = context.text_at_most(path, LARGEST_FILE, claims)?;
    match parse(&text) {
        Ok(file) => Some(file),
        Err(why) => {
            context.refuse(claims, &Source::file(path, None), why);
            None
        }
    }
}

/// Adds the claims of one domain, together for pins of the same kind.
fn add(context: &Context<'_>, path: &str, file: &File, claims: &mut Claims) {
    let mut owner = Owner::new(&KIND, &file.name);
    owner.process = file.pid;
    owner.manager = file.is_of_nova.then_some(&nova::KIND);
    let is_running = path.starts_with(RUNNING);
    for exclusivity in [Exclusivity::Dedicated, Exclusivity::Shared] {
        let is_shared = exclusivity == Exclusivity::Shared;
        let (mut all, mut bound) = (CpuSet::new(), CpuSet::new());
        let mut first = None;
        for pin in file.pins.iter().filter(|pin| pin.exclusivity == exclusivity) {
            let source = Source::file(path, pin.line);
            let cpus = context.existing_cpus(claims, &owner, pin.cpus.clone(), &source);
            all.add(&cpus);
            if is_shared && cpus.len() == 1 {
                bound.add(&cpus);
            }
            first = first.or(pin.line);
        }
        let source = Source::file(path, first);
        let claim = Claim::new(&owner, all, exclusivity, &source);
        let floating_vcpus = if is_shared { file.floating_vcpus } else { 0 };
        claims.push(Claim { active: is_running, bound, floating_vcpus, ..claim });
    }
}

#[cfg(test)]
mod tests;
