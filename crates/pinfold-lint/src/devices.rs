//! Emulated devices that could be paravirtual ones, and threads that serve the disks.
//!
//! Changing the model of a disk or network card first needs a driver in the guest, so these are
//! notes, and no command writes them.
//!
//! Sources: QEMU's `docs/system/devices/usb.rst` and `docs/system/devices/virtio/`, libvirt's
//! formatdomain ("IOThreads Allocation", "Memory balloon device"), the kernel's
//! `Documentation/driver-api/vfio.rst`.

use pinfold_model::Severity;
use roxmltree::Node;

use super::Diagnostic;
use super::properties::File;
use super::text::devices::DeviceFault;
use pinfold_plan::domain_file::Target;
use pinfold_plan::domain_file::Windows;

const DEVICES: &[&str] = &["devices"];

pub(super) fn check(file: &File<'_>, diagnostics: &mut Vec<Diagnostic>) {
    if file.x86 {
        disks(file, diagnostics);
        usb(file, diagnostics);
        cards(file, diagnostics);
    }
    balloon(file, diagnostics);
    if file.is_pinned() {
        iothreads(file, diagnostics);
    }
}

fn is_disk(node: &Node<'_, '_>) -> bool {
    matches!(node.attribute("device"), None | Some("disk"))
}

fn bus<'d>(disk: &Node<'d, 'd>) -> Option<&'d str> {
    disk.children().find(|child| child.has_tag_name("target"))?.attribute("bus")
}

fn target<'d>(disks: &[Node<'d, 'd>]) -> Vec<Node<'d, 'd>> {
    disks
        .iter()
        .filter_map(|disk| disk.children().find(|child| child.has_tag_name("target")))
        .collect()
}

fn disks(file: &File<'_>, diagnostics: &mut Vec<Diagnostic>) {
    let slow: Vec<Node<'_, '_>> = file
        .all(DEVICES, "disk")
        .into_iter()
        .filter(|disk| is_disk(disk) && matches!(bus(disk), Some("ide" | "sata")))
        .collect();
    if slow.is_empty() {
        return;
    }
    let fault = DeviceFault::Disks {
        count: slow.len(),
        windows: file.windows != Windows::No,
        targets: virtio_targets(file, slow.len()),
        addressed: slow.iter().any(|disk| disk.children().any(|c| c.has_tag_name("address"))),
    };
    diagnostics.push(file.diagnostic(Severity::Note, &fault, &target(&slow)));
}

/// A `<target>` with an unused name for each disk that moves to virtio.
fn virtio_targets(file: &File<'_>, count: usize) -> Vec<String> {
    let disks = file.all(DEVICES, "disk");
    let taken: Vec<&str> =
        target(&disks).iter().filter_map(|target| target.attribute("dev")).collect();
    let names = ('a'..='z').map(|letter| format!("vd{letter}"));
    let free = names.filter(|name| !taken.contains(&name.as_str()));
    free.take(count).map(|name| format!("<target dev='{name}' bus='virtio'/>")).collect()
}

fn usb(file: &File<'_>, diagnostics: &mut Vec<Diagnostic>) {
    let old: Vec<Node<'_, '_>> = file
        .all(DEVICES, "controller")
        .into_iter()
        .filter(|node| node.attribute("type") == Some("usb"))
        .filter(|node| {
            let model = node.attribute("model").unwrap_or_default();
            ["uhci", "ehci", "ohci"].iter().any(|kind| model.contains(kind))
        })
        .collect();
    if old.is_empty() {
        return;
    }
    let models = file.all(DEVICES, "controller");
    let has_xhci = models.iter().any(|node| {
        node.attribute("type") == Some("usb")
            && node.attribute("model").is_some_and(|model| model.contains("xhci"))
    });
    diagnostics.push(file.diagnostic(Severity::Note, &DeviceFault::Usb { has_xhci }, &old));
}

fn cards(file: &File<'_>, diagnostics: &mut Vec<Diagnostic>) {
    const EMULATED: [&str; 9] = [
        "e1000", "e1000e", "rtl8139", "ne2k_pci", "ne2k_isa", "pcnet", "i82551", "i82557b",
        "i82559er",
    ];
    let models: Vec<Node<'_, '_>> = file
        .all(DEVICES, "interface")
        .into_iter()
        .filter_map(|card| card.children().find(|child| child.has_tag_name("model")))
        .filter(|model| model.attribute("type").is_some_and(|name| EMULATED.contains(&name)))
        .collect();
    if models.is_empty() {
        return;
    }
    let windows = file.windows != Windows::No;
    let fault = DeviceFault::Cards { count: models.len(), windows };
    diagnostics.push(file.diagnostic(Severity::Note, &fault, &models));
}

/// With VFIO all memory is pinned, and the balloon returns none of it.
fn balloon(file: &File<'_>, diagnostics: &mut Vec<Diagnostic>) {
    let element = file.find(&["devices", "memballoon"]);
    let is_virtio = match element {
        Some(balloon) => {
            balloon.attribute("model").is_some_and(|model| model.starts_with("virtio"))
        }
        None => file.x86,
    };
    if !file.vfio || !is_virtio {
        return;
    }
    let nodes: Vec<_> = element.into_iter().collect();
    let fault = DeviceFault::Balloon { written: element.is_some() };
    diagnostics.push(file.diagnostic(Severity::Note, &fault, &nodes));
}

/// True if an element names an iothread: as an attribute of its driver, or as a list in it.
fn has_iothread(node: &Node<'_, '_>) -> bool {
    node.children().filter(|child| child.has_tag_name("driver")).any(|driver| {
        driver.has_attribute("iothread")
            || driver.children().any(|child| child.has_tag_name("iothreads"))
    })
}

fn iothreads(file: &File<'_>, diagnostics: &mut Vec<Diagnostic>) {
    let pins = &file.view.layout.pins;
    let count = pins.iter().filter(|pin| pin.role.iothread().is_some()).count();
    let mut served: Vec<Node<'_, '_>> = file.all(DEVICES, "disk");
    served.retain(|disk| is_disk(disk) && bus(disk) == Some("virtio"));
    served.extend(file.all(DEVICES, "controller").into_iter().filter(scsi));
    let without: Vec<Node<'_, '_>> =
        served.iter().copied().filter(|node| !has_iothread(node)).collect();
    if count > 0 && without.len() == served.len() {
        let fault = DeviceFault::IothreadIdle { count };
        diagnostics.push(file.diagnostic(Severity::Note, &fault, &without));
    } else if !without.is_empty() {
        let place = super::cores::better_place(file.view, &file.view.held);
        let role = Target::Iothread(1).role();
        let fault = DeviceFault::WithoutIothread {
            count: without.len(),
            iothreads: count.max(1),
            pin: (!place.is_empty()).then(|| file.view.write_pin(&role, &place)),
        };
        diagnostics.push(file.diagnostic(Severity::Note, &fault, &without));
    }
}

fn scsi(node: &Node<'_, '_>) -> bool {
    node.attribute("type") == Some("scsi")
        && node.attribute("model").is_some_and(|model| model.starts_with("virtio"))
}
