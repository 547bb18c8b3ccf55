//! Meaning of the kernel's errors when it refuses a value of a host tunable.

use std::io::ErrorKind;

use pinfold_host::HostError;
use pinfold_model::Finding;

/// Errors of an interrupt that the kernel manages: `EPERM`, before Linux 6.12 `EIO`.
const MANAGED: [i32; 2] = [1, 5];

const NO: [ErrorKind; 6] = [
    ErrorKind::PermissionDenied,
    ErrorKind::ReadOnlyFilesystem,
    ErrorKind::ResourceBusy,
    ErrorKind::StorageFull,
    ErrorKind::Unsupported,
    ErrorKind::InvalidInput,
];

/// True if the kernel refused to move an interrupt because it manages it itself.
pub(crate) fn is_managed_irq(error: &HostError) -> bool {
    let HostError::File { path, source, .. } = error else { return false };
    path.ends_with("/smp_affinity_list")
        && source.raw_os_error().is_some_and(|errno| MANAGED.contains(&errno))
}

/// The refusal as a finding with a hint; `None` for an error that is no refusal.
pub(super) fn finding(error: &HostError) -> Option<Finding> {
    let HostError::File { source, .. } = error else { return None };
    let kind = source.kind();
    if is_managed_irq(error) {
        let text =
            format!("{error}: the kernel manages this interrupt itself and it cannot be moved");
        let hint = "boot with isolcpus=managed_irq,CPUS, or give the device fewer queues";
        return Some(Finding::warning("IRQ affinity", text).with_hint(hint));
    }
    if !NO.contains(&kind) {
        return None;
    }
    let hint = if kind == ErrorKind::StorageFull {
        "for an interrupt, these CPUs have no free vector: give it more CPUs, or the device fewer \
         queues; for huge pages, there is no contiguous memory"
    } else if kind == ErrorKind::ResourceBusy {
        "another program is using it: stop that program, then apply again"
    } else if kind == ErrorKind::PermissionDenied || kind == ErrorKind::ReadOnlyFilesystem {
        "run it as root on the host, outside a container"
    } else {
        "this kernel or driver does not accept the value: for governors see \
         scaling_available_governors; CPUs must be online"
    };
    Some(Finding::warning("kernel file", format!("{error}: {source}")).with_hint(hint))
}

/// The same for the memory nodes of the machine's group. Its pages are moved nevertheless, and
/// later allocations are near the thread that requests them.
pub(super) fn of_nodes(error: &HostError) -> Option<Finding> {
    let HostError::File { source, .. } = error else { return None };
    let kind = source.kind();
    if !NO.contains(&kind) {
        return None;
    }
    let hint = if kind == ErrorKind::PermissionDenied || kind == ErrorKind::ReadOnlyFilesystem {
        "run it as root on the host, outside a container, and check that the parent group has \
         these nodes; or bind the machine's memory in QEMU (host-nodes=, policy=bind)"
    } else {
        "the parent group does not have these nodes, or another cpuset has them exclusively; or \
         bind the machine's memory in QEMU (host-nodes=, policy=bind)"
    };
    Some(Finding::warning("memory", format!("{error}: {source}")).with_hint(hint))
}
