//! The machine of a figure, in one line. There is no date: only the machine matters.

use pinfold_host::{Host as _, HostError, LiveHost, mountinfo, paths};
use pinfold_model::text::count_noun;
use pinfold_model::{Accelerator, Topology};

use crate::arguments::Failure;

/// CPU, number of CPUs, hypervisor and kernel.
pub fn of_host(host: &LiveHost, topology: &Topology) -> Result<String, HostError> {
    let kernel = host.read_text(&paths::kernel_release())?;
    let model = topology.model.as_deref().unwrap_or("an unknown CPU");
    let below = topology
        .hypervisor
        .as_deref()
        .map_or_else(String::new, |name| format!(" (itself a virtual machine of {name})"));
    let pus = topology.pus.len();
    Ok(format!("{model}, {}{below}, Linux {}", count_noun(pus, "CPU"), kernel.trim()))
}

/// What executes the guest, as text.
pub fn of_accelerator(accelerator: Option<Accelerator>) -> &'static str {
    match accelerator {
        Some(Accelerator::Kvm) => "KVM",
        Some(Accelerator::TcgMulti) => "TCG, a thread per vCPU",
        Some(Accelerator::TcgSingle) => "TCG, one thread",
        Some(Accelerator::Native) => "no guest",
        None => "an unknown accelerator",
    }
}

/// Type of the file system of a path.
pub fn file_system(host: &LiveHost, path: &str) -> Result<String, Failure> {
    let text = host.read_text(&paths::own_mountinfo())?;
    let holds = |root: &str| {
        let root = root.trim_end_matches('/');
        path.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let mounts = mountinfo::parse(&text)?;
    let nearest = mounts.iter().filter(|mount| holds(&mount.path)).max_by_key(|m| m.path.len());
    Ok(nearest.map_or_else(|| "an unknown file system".to_owned(), |mount| mount.kind.clone()))
}
