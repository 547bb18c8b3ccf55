//! The guest's CPU and interrupt controllers.
//!
//! Sources: QEMU's `docs/system/i386/` and its options `topoext`, `host-cache-info` and
//! `-overcommit cpu-pm`, QEMU's change log of 4.0.1 and 4.1 (`kernel-irqchip`), the kernel's
//! `Documentation/virt/kvm/halt-polling.rst` and `guest-halt-polling.rst`,
//! `drivers/cpuidle/cpuidle-haltpoll.c` (`haltpoll_want`), `arch/x86/kernel/kvm.c`
//! (`kvm_spinlock_init`), libvirt's formatdomain.

use pinfold_model::{Role, Severity, Vendor};
use roxmltree::Node;

use super::properties::File;
use super::repair::Repair;
use super::text::processor::ProcessorFault;
use super::{Diagnostic, target};
use pinfold_emit::{PASSTHROUGH, TOPOEXT};
use pinfold_plan::domain_file::Windows;
use pinfold_plan::guest_cache::caches;

pub(super) fn check(file: &File<'_>, diagnostics: &mut Vec<Diagnostic>) {
    if !file.x86 {
        return;
    }
    topoext(file, diagnostics);
    cache(file, diagnostics);
    ioapic(file, diagnostics);
    poll_control(file, diagnostics);
    check_dedicated(file, diagnostics);
    cpu_pm(file, diagnostics);
}

/// QEMU shows threads to an AMD guest only with `topoext`, which `-cpu host` does not include.
fn topoext(file: &File<'_>, diagnostics: &mut Vec<Diagnostic>) {
    let Some(cpu) = file.find(&["cpu"]) else { return };
    let threads = file.view.layout.guest.as_ref().map_or(1, |guest| guest.threads);
    let amd = Vendor::from_topology(file.view.lookup.topology) == Vendor::Amd;
    let passthrough = matches!(cpu.attribute("mode"), Some("host-passthrough" | "maximum"));
    let feature = file
        .all(&["cpu"], "feature")
        .into_iter()
        .find(|feature| feature.attribute("name") == Some("topoext"));
    let taken =
        feature.is_some_and(|node| matches!(node.attribute("policy"), Some("disable" | "forbid")));
    if !amd || threads < 2 || !(taken || (passthrough && feature.is_none())) {
        return;
    }
    let shape = file.find(&["cpu", "topology"]);
    let nodes: Vec<_> = shape.into_iter().chain(feature).collect();
    let mut diagnostic = file.diagnostic(Severity::Warning, &ProcessorFault::Topoext, &nodes);
    diagnostic.repairs = vec![Repair::put_named(&["cpu"], "feature", "topoext", TOPOEXT)];
    diagnostics.push(diagnostic);
}

/// The host's cache data: valid for the guest but not shown, or shown but not valid.
fn cache(file: &File<'_>, diagnostics: &mut Vec<Diagnostic>) {
    let topology = file.view.lookup.topology;
    let Some(cpu) = file.find(&["cpu"]) else { return };
    let passthrough = cpu.attribute("mode") == Some("host-passthrough");
    if !file.is_pinned()
        || Vendor::from_topology(topology) == Vendor::Unknown
        || topology.l3.is_empty()
    {
        return;
    }
    let Some(vnode) = target::as_written(file.view) else { return };
    let is_true = caches(&vnode, topology).as_host;
    let element = file.find(&["cpu", "cache"]);
    let mode = element.and_then(|cache| cache.attribute("mode"));
    match (element, mode) {
        (Some(cache), Some("passthrough")) if !is_true => {
            let mut diagnostic =
                file.diagnostic(Severity::Warning, &ProcessorFault::CacheUntrue, &[cache]);
            diagnostic.repairs = vec![Repair::remove(&["cpu"], "cache")];
            diagnostics.push(diagnostic);
        }
        (None, _) if is_true && passthrough => {
            let mut diagnostic =
                file.diagnostic(Severity::Note, &ProcessorFault::CacheUnknown, &[cpu]);
            diagnostic.repairs = vec![Repair::set_element(&["cpu"], "cache", PASSTHROUGH)];
            diagnostics.push(diagnostic);
        }
        (Some(_) | None, _) => {}
    }
}

/// An I/O APIC in QEMU although no emulated IOMMU requires it.
fn ioapic(file: &File<'_>, diagnostics: &mut Vec<Diagnostic>) {
    /// More vCPUs need interrupt remapping, which needs the split controller.
    const MOST_XAPIC: u32 = 255;
    let element = file.find(&["features", "ioapic"]);
    let driver = element.and_then(|ioapic| ioapic.attribute("driver"));
    let kind = file.find(&["os", "type"]);
    let split_by_default = kind.and_then(|kind| kind.attribute("machine")) == Some("pc-q35-4.0");
    let needed = file.find(&["devices", "iommu"]).is_some()
        || file.view.layout.vcpus > MOST_XAPIC
        || file.find(&["launchSecurity"]).is_some();
    let (place, by_board) = match driver {
        Some("qemu") => (element, false),
        None if split_by_default => (kind, true),
        Some(_) | None => return,
    };
    if needed {
        return;
    }
    let nodes: Vec<_> = place.into_iter().collect();
    let mut diagnostic =
        file.diagnostic(Severity::Warning, &ProcessorFault::IoapicSplit { by_board }, &nodes);
    diagnostic.repairs =
        vec![Repair::set_element(&["features"], "ioapic", "<ioapic driver='kvm'/>")];
    diagnostics.push(diagnostic);
}

/// A switch of `<features><kvm>`, if it is enabled.
fn kvm_switch<'d>(file: &File<'d>, name: &str) -> Option<Node<'d, 'd>> {
    let found = file.find(&["features", "kvm", name])?;
    (found.attribute("state") == Some("on")).then_some(found)
}

/// Polling before a halt in the guest: only Linux has a driver for it (cpuidle-haltpoll), which
/// loads automatically only with the hint that the guest's CPUs are dedicated.
fn poll_control(file: &File<'_>, diagnostics: &mut Vec<Diagnostic>) {
    let Some(control) = kvm_switch(file, "poll-control") else { return };
    let windows = file.windows != Windows::No;
    if !windows && kvm_switch(file, "hint-dedicated").is_some() {
        return;
    }
    let fault = ProcessorFault::PollControl { windows, pinned: file.is_pinned() };
    diagnostics.push(file.diagnostic(Severity::Note, &fault, &[control]));
}

/// The hint that each vCPU has a dedicated CPU, although it has not.
fn check_dedicated(file: &File<'_>, diagnostics: &mut Vec<Diagnostic>) {
    let Some(hint) = kvm_switch(file, "hint-dedicated").filter(|_| !file.is_pinned()) else {
        return;
    };
    let mut diagnostic =
        file.diagnostic(Severity::Warning, &ProcessorFault::HintDedicated, &[hint]);
    diagnostic.repairs = vec![Repair::remove(&["features", "kvm"], "hint-dedicated")];
    diagnostics.push(diagnostic);
}

/// `-overcommit cpu-pm=on`: an idle vCPU occupies its CPU.
fn cpu_pm(file: &File<'_>, diagnostics: &mut Vec<Diagnostic>) {
    let arguments: Vec<Node<'_, '_>> = file.all(&["commandline"], "arg");
    let found = arguments.into_iter().find(|argument| {
        argument.attribute("value").is_some_and(|value| value.contains("cpu-pm=on"))
    });
    match found {
        Some(argument) if !file.is_pinned() => {
            diagnostics.push(file.diagnostic(
                Severity::Warning,
                &ProcessorFault::CpuPmShared,
                &[argument],
            ));
        }
        None if file.real_time && file.is_pinned() => {
            let vcpus = file.view.vcpus().map(|(_, pin)| pin);
            let mut diagnostic = file.diagnostic(Severity::Note, &ProcessorFault::CpuPmOff, &[]);
            diagnostic.places =
                super::lookup::places(vcpus.filter(|pin| pin.role == Role::Vcpu(0)));
            diagnostics.push(diagnostic);
        }
        Some(_) | None => {}
    }
}
