//! Whether this machine is itself a guest, and whose.
//!
//! On x86 the `hypervisor` flag decides: vendor names alone would call a bare-metal
//! machine of a cloud a guest. Other architectures have no such flag, there the firmware's
//! vendor decides if it is a hypervisor's own.

use pinfold_host::paths;

use crate::facts::{Reader, cpuinfo_field};

/// Vendors in the firmware's tables that are hypervisors' own, with the hypervisor's name.
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

/// Vendors that also make bare machines: alone they prove nothing.
const ALSO_BARE: [&str; 4] = ["Amazon EC2", "Google", "Microsoft Corporation", "Red Hat"];

/// Clock sources that hypervisors offer to their guests.
const CLOCKS: [(&str, &str); 3] =
    [("kvm-clock", "KVM"), ("hyperv_clocksource", "Hyper-V"), ("xen", "Xen")];

/// The name of the hypervisor; `None` on bare metal, or where nothing tells.
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

/// The hypervisor behind a vendor's name, if it is one's.
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
