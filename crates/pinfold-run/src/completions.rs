//! What an argument may be on this host: strategies, CPUs, domains, vnodes and others, for the
//! completion of a command line.
//!
//! The functions create nothing and wait at most two seconds for libvirt. Completion has no place
//! for errors: what cannot be found out yields no candidates.

use pinfold_apply::Journals;
use pinfold_host::files::{self, StateDir};
use pinfold_host::{LiveHost, SystemClock};
use pinfold_model::{CpuSet, Topology};
use pinfold_probe::registry::PROBES;
use pinfold_vm::libvirt::Libvirt;
use serde_json::Value;

use crate::emulate::ipc::{self, SupervisorRequest};
use crate::measure::Instrument;
use crate::{Failure, host, inputs};

/// Timeout for libvirt (ns): people wait for a completion.
const LIBVIRT_NS: u64 = 2_000_000_000;
/// Folder of the installed studies, relative to the prefix of the installation.
const STUDIES: &str = "share/pinfold/studies";

/// A value, and its description for shells that show one.
pub type Candidate = (String, String);

/// The strategies with their summaries.
#[must_use]
pub fn strategies() -> Vec<Candidate> {
    let all = pinfold_plan::strategies().iter();
    all.map(|one| (one.name.to_owned(), one.summary.to_owned())).collect()
}

/// The online CPUs: `2`, `core 1, L3 0, node 0`.
#[must_use]
pub fn cpus() -> Vec<Candidate> {
    let describe = |topology: &Topology| {
        topology
            .pus
            .iter()
            .map(|pu| {
                let places = [
                    name_with_number("core", Some(pu.core.0)),
                    name_with_number("L3", pu.l3.map(|id| id.0)),
                    name_with_number("node", pu.node.map(|id| id.0)),
                ];
                (pu.os.0.to_string(), places.into_iter().flatten().collect::<Vec<_>>().join(", "))
            })
            .collect()
    };
    topology().map(|topology| describe(&topology)).unwrap_or_default()
}

fn name_with_number(what: &str, index: Option<u32>) -> Option<String> {
    index.map(|index| format!("{what} {index}"))
}

/// The NUMA nodes with their CPUs.
#[must_use]
pub fn nodes() -> Vec<Candidate> {
    let described = |pus: &CpuSet| format!("CPU {pus}");
    let all = topology().map(|topology| topology.nodes).unwrap_or_default();
    all.iter().map(|node| (node.id.0.to_string(), described(&node.pus))).collect()
}

/// The domains of libvirt's default connection.
#[must_use]
pub fn domains() -> Vec<Candidate> {
    let names = Libvirt::new(None, LIBVIRT_NS).and_then(|libvirt| libvirt.names());
    let names = names.unwrap_or_default().into_iter();
    names.map(|name| (name, "domain".to_owned())).collect()
}

/// The vnodes of the active platform, with their method and CPUs.
#[must_use]
pub fn vnodes(state: Option<&str>) -> Vec<Candidate> {
    let status = existing(state)
        .and_then(|state| ipc::ask(&state, &SupervisorRequest::Status).ok().flatten());
    let status = status.and_then(|answer| answer.status().ok()).unwrap_or_default();
    let all = status.get("vnodes").and_then(Value::as_array).cloned().unwrap_or_default();
    all.iter().filter_map(|vnode| Some((text(vnode, "vnode")?, text(vnode, "method")?))).collect()
}

fn text(vnode: &Value, key: &str) -> Option<String> {
    vnode.get(key)?.as_str().map(str::to_owned)
}

/// IDs of the journals that have not ended, with the name of the machine.
#[must_use]
pub fn placements(state: Option<&str>) -> Vec<Candidate> {
    let clock = SystemClock;
    let all = existing(state)
        .and_then(|state: StateDir| Journals::open(&state, &clock).ok()?.list().ok())
        .unwrap_or_default();
    let active = all.into_iter().filter_map(|summary| match summary.record {
        Ok(Some(record)) if !record.has_ended() => Some((summary.id, record.header.vm_name)),
        Ok(_) | Err(_) => None,
    });
    active.collect()
}

/// The probes of `measure`.
#[must_use]
pub fn probes() -> Vec<Candidate> {
    let probes = PROBES.iter().map(|probe| (probe.name, probe.what));
    let all = probes.chain(Instrument::ALL.iter().map(|one| (one.name(), one.what())));
    all.map(|(name, what)| (name.to_owned(), what.to_owned())).collect()
}

/// The methods of slowing CPUs.
#[must_use]
pub fn methods() -> Vec<Candidate> {
    let all = pinfold_emulate::METHODS.iter();
    all.map(|one| (one.method.name().to_owned(), one.summary.to_owned())).collect()
}

/// The studies that are installed with this program.
#[must_use]
pub fn studies() -> Vec<Candidate> {
    let program = std::env::current_exe().ok();
    let folder = program.and_then(|path| Some(path.parent()?.parent()?.join(STUDIES)));
    let folder = folder.map(|path| path.to_string_lossy().into_owned()).unwrap_or_default();
    let names = files::list(&folder).unwrap_or_default().into_iter();
    let studies = names.filter(|name| name.ends_with(".toml"));
    studies.map(|name| (format!("{folder}/{name}"), "included study".to_owned())).collect()
}

fn topology() -> Result<Topology, Failure> {
    inputs::topology(&LiveHost::new()?, None)
}

/// The state directory, if it is there already.
fn existing(path: Option<&str>) -> Option<StateDir> {
    let path = path.map(str::to_owned).or_else(|| files::default_state_dir().ok())?;
    files::is_dir(&path).then(|| host::state(Some(&path)).ok()).flatten()
}
