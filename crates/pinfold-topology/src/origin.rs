//! Origin of numbers that are measured on a host.

use pinfold_host::{Host, HostError, paths};
use pinfold_model::{Accelerator, Origin, Topology};

/// The origin of numbers that are measured on `host` itself, not in a guest, with this seed.
///
/// # Errors
/// [`HostError`] if the kernel's release or command line cannot be read.
pub fn origin(host: &dyn Host, topology: &Topology, seed: u64) -> Result<Origin, HostError> {
    Ok(Origin {
        fingerprint: topology.fingerprint.clone(),
        kernel: read(host, paths::kernel_release())?,
        cmdline: read(host, paths::kernel_cmdline())?,
        cpu_model: topology.model.clone().unwrap_or_else(|| "unknown".to_owned()),
        hypervisor: topology.hypervisor.clone(),
        qemu: None,
        accelerator: Accelerator::Native,
        guest_kernel: None,
        pinfold: env!("CARGO_PKG_VERSION").to_owned(),
        seed,
    })
}

fn read(host: &dyn Host, path: String) -> Result<String, HostError> {
    host.read_text(&path).map(|text| text.trim().to_owned())
}
