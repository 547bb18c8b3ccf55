//! Detects whether this machine is itself a guest, and under which hypervisor.
//!
//! On x86 the `hypervisor` flag decides, because by vendor names alone a bare-metal cloud machine
//! would count as a guest. Other architectures have no such flag; there the firmware's vendor
//! decides if it is a hypervisor.

use pinfold_host::paths;

use crate::reader::{Reader, cpuinfo_field};

/// Firmware vendors that are hypervisors, with the name of the hypervisor.
const VENDORS: [(&str, &str); 10] = [
    ("QEMU", "QEMU/KVM"),
    ("Amazon EC2", "Amazon EC2 (Nitro or Xen)"),
    ("Google", "Google Compute Engine (KVM)"),
    ("Microsoft Corporation", "Hyper-V"),
    ("VMware, Inc.", "VMware"),
    ("innotek GmbH", "VirtualBox"),
    ("Xen", "Xen"),
    ("Parallels", "Parallels"),
    ("OpenStack Foundation", "OpenStack (KVM)"),
    ("Red Hat", "KVM"),
];

/// Vendors that also make physical machines: the name alone proves nothing.
const ALSO_BARE: [&str; 4] = ["Amazon EC2", "Google", "Microsoft Corporation", "Red Hat"];

/// Clock sources that hypervisors provide to guests.
const CLOCKS: [(&str, &str); 3] =
    [("kvm-clock", "KVM"), ("hyperv_clocksource", "Hyper-V"), ("xen", "Xen")];

/// The name of the hypervisor; `None` on bare metal, or if no source shows one.
pub(crate) fn name(cpuinfo: &str, reader: &mut Reader<'_>) -> Option<String> {
    let flags = cpuinfo_field(cpuinfo, "flags");
    let flagged = flags.map(|flags| flags.split_ascii_whitespace().any(|f| f == "hypervisor"));
    let kind = reader.text(&paths::hypervisor_type()).filter(|kind| !kind.is_empty());
    let vendor = reader.text(&paths::dmi_file("sys_vendor"));
    let known = vendor.as_deref().and_then(of_vendor);
    match flagged {
        Some(false) => None,
        Some(true) => Some(
            known
                .map(str::to_owned)
                .or(kind)
                .or_else(|| of_clock(reader))
                .unwrap_or_else(|| "a hypervisor that does not name itself".to_owned()),
        ),
        None => {
            let certain =
                vendor.is_some_and(|vendor| !ALSO_BARE.iter().any(|bare| vendor.starts_with(bare)));
            known.filter(|_| certain).map(str::to_owned).or(kind)
        }
    }
}

/// The hypervisor for a vendor name, if there is one.
pub(crate) fn of_vendor(vendor: &str) -> Option<&'static str> {
    VENDORS.iter().find(|(prefix, _)| vendor.starts_with(prefix)).map(|(_, name)| *name)
}

fn of_clock(reader: &mut Reader<'_>) -> Option<String> {
    let clocks = reader.text(&paths::clock_sources())?;
    CLOCKS
        .iter()
        .find(|(prefix, _)| clocks.split_ascii_whitespace().any(|clock| clock.starts_with(prefix)))
        .map(|(_, name)| (*name).to_owned())
}
