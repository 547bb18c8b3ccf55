//! Emulated devices that could be paravirtual ones, and threads that serve the disks.
//!
//! Changing the model of a disk or network card first needs a driver in the guest, so these are
//! notes, and no command writes them.
//!
//! Sources: QEMU's `docs/system/devices/usb.rst` and `docs/system/devices/virtio/`, libvirt's
//! formatdomain ("IOThreads Allocation", "Memory balloon device"), the kernel's
//! `Documentation/driver-api/vfio.rst`.

use pinfold_model::text::counted;
use pinfold_model::{Role, Severity};
use roxmltree::Node;

use super::Diagnostic;
use super::properties::{File, Windows};

const DEVICES: &[&str] = &["devices"];

pub(super) fn check(file: &File<'_>, flaws: &mut Vec<Diagnostic>) {
    if file.x86 {
        disks(file, flaws);
        usb(file, flaws);
        cards(file, flaws);
    }
    balloon(file, flaws);
    if file.is_pinned() {
        iothreads(file, flaws);
    }
}

fn is_disk(node: &Node<'_, '_>) -> bool {
    matches!(node.attribute("device"), None | Some("disk"))
}

fn bus<'d>(disk: &Node<'d, 'd>) -> Option<&'d str> {
    disk.children().find(|child| child.has_tag_name("target"))?.attribute("bus")
}

fn target<'d>(disks: &[Node<'d, 'd>]) -> Vec<Node<'d, 'd>> {
    let of = |disk: &Node<'d, 'd>| disk.children().find(|child| child.has_tag_name("target"));
    disks.iter().filter_map(of).collect()
}

fn disks(file: &File<'_>, flaws: &mut Vec<Diagnostic>) {
    let slow: Vec<Node<'_, '_>> = file
        .all(DEVICES, "disk")
        .into_iter()
        .filter(|disk| is_disk(disk) && matches!(bus(disk), Some("ide" | "sata")))
        .collect();
    if slow.is_empty() {
        return;
    }
    let mut flaw = file.flaw(
        (Severity::Note, "disk-emulated"),
        (
            format!("{} on an emulated IDE or SATA (AHCI) controller", counted(slow.len(), "disk")),
            "each request leaves the guest several times and is served by QEMU's main loop, one queue \
             for all; virtio needs one exit and takes an iothread",
        ),
        &target(&slow),
    );
    let first = match file.windows {
        Windows::No => {
            "give it a virtio bus (the guest needs the virtio_blk driver in its initramfs):"
        }
        Windows::Likely | Windows::Yes => {
            "install the viostor driver (virtio-win) in Windows first, with a small second virtio disk, \
             else it does not boot; then:"
        }
    };
    flaw.instead = vec![first.to_owned()];
    flaw.instead.extend(virtio_targets(file, slow.len()));
    // A drive address is not valid on the virtio bus: libvirt assigns a new one to the disk.
    let addressed = |disk: &Node<'_, '_>| disk.children().any(|c| c.has_tag_name("address"));
    if slow.iter().any(addressed) {
        flaw.instead.push("and take out its <address type='drive' …/>".to_owned());
    }
    flaws.push(flaw);
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

fn usb(file: &File<'_>, flaws: &mut Vec<Diagnostic>) {
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
    let mut flaw = file.flaw(
        (Severity::Note, "usb-not-xhci"),
        (
            "USB goes through an emulated UHCI, OHCI or EHCI controller",
            "QEMU reads the controller's list of frames up to a thousand times a second as long as the \
             guest drives it, in the main loop; xHCI works by events",
        ),
        &old,
    );
    let models = file.all(DEVICES, "controller");
    let has_xhci = models.iter().any(|node| {
        node.attribute("type") == Some("usb")
            && node.attribute("model").is_some_and(|model| model.contains("xhci"))
    });
    flaw.instead = match has_xhci {
        true => vec!["take them out: the file has an xHCI controller too".to_owned()],
        false => vec![
            "in place of all of them (Windows from 8 on, Linux and the BSDs have the driver):"
                .to_owned(),
            "<controller type='usb' index='0' model='qemu-xhci'/>".to_owned(),
        ],
    };
    flaws.push(flaw);
}

fn cards(file: &File<'_>, flaws: &mut Vec<Diagnostic>) {
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
    let mut flaw = file.flaw(
        (Severity::Note, "network-emulated"),
        (
            format!("{} of an emulated model", counted(models.len(), "network card")),
            "registers and rings are emulated in QEMU's main loop, several exits for a packet; virtio \
             with vhost moves packets in the kernel",
        ),
        &models,
    );
    let first = match file.windows {
        Windows::No => "with the virtio_net driver in the guest:",
        Windows::Likely | Windows::Yes => "with the NetKVM driver (virtio-win) in Windows:",
    };
    flaw.instead = vec![first.to_owned(), "<model type='virtio'/>".to_owned()];
    flaws.push(flaw);
}

/// With VFIO all memory is pinned, and the balloon returns none of it.
fn balloon(file: &File<'_>, flaws: &mut Vec<Diagnostic>) {
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
    let what = match element {
        Some(_) => "a memory balloon, next to a device of the host",
        None => "a memory balloon, which libvirt adds by itself, next to a device of the host",
    };
    let nodes: Vec<_> = element.into_iter().collect();
    let mut flaw = file.flaw(
        (Severity::Note, "balloon-useless"),
        (
            what,
            "all memory of the guest is pinned for the device's DMA, so QEMU ignores the balloon; what \
             is left of it is a device that wakes the guest for statistics",
        ),
        &nodes,
    );
    flaw.instead = vec!["<memballoon model='none'/>".to_owned()];
    flaws.push(flaw);
}

/// True if an element names an iothread: as an attribute of its driver, or as a list in it.
fn has_iothread(node: &Node<'_, '_>) -> bool {
    node.children().filter(|child| child.has_tag_name("driver")).any(|driver| {
        driver.has_attribute("iothread")
            || driver.children().any(|child| child.has_tag_name("iothreads"))
    })
}

fn iothreads(file: &File<'_>, flaws: &mut Vec<Diagnostic>) {
    let pins = &file.view.layout.pins;
    let count = pins.iter().filter(|pin| matches!(pin.role, Role::Iothread(_))).count();
    let scsi = |node: &Node<'_, '_>| {
        node.attribute("type") == Some("scsi")
            && node.attribute("model").is_some_and(|model| model.starts_with("virtio"))
    };
    let mut served: Vec<Node<'_, '_>> = file.all(DEVICES, "disk");
    served.retain(|disk| is_disk(disk) && bus(disk) == Some("virtio"));
    served.extend(file.all(DEVICES, "controller").into_iter().filter(scsi));
    let without: Vec<Node<'_, '_>> =
        served.iter().copied().filter(|node| !has_iothread(node)).collect();
    if count > 0 && without.len() == served.len() {
        let mut flaw = file.flaw(
            (Severity::Note, "iothread-idle"),
            (
                format!("{}, and no disk uses one", counted(count, "iothread")),
                "an iothread serves the virtio disks and controllers that name it; what names none is \
                 served by QEMU's main loop",
            ),
            &without,
        );
        flaw.instead = vec![
            "within each virtio <disk>, with its own name and type:".to_owned(),
            "<driver name='qemu' type='raw' iothread='1'/>".to_owned(),
        ];
        flaws.push(flaw);
    } else if !without.is_empty() {
        let mut flaw = file.flaw(
            (Severity::Note, "disk-without-iothread"),
            (
                format!("{} of QEMU's main loop", counted(without.len(), "disk or controller")),
                "its requests wait for whatever else the main loop does: timers, the monitor, the \
                 display, other devices",
            ),
            &without,
        );
        flaw.instead = vec![format!("<iothreads>{}</iothreads>", count.max(1))];
        let place = super::cores::better_place(file.view, &file.view.held);
        if !place.is_empty() {
            let role = Role::Iothread("iothread1".to_owned());
            flaw.instead.push("within <cputune>, off the vCPUs' CPUs:".to_owned());
            flaw.instead.push(file.view.write_pin(&role, &place));
        }
        flaw.instead.push("within the <disk>, or the virtio-scsi <controller>:".to_owned());
        flaw.instead.push("<driver iothread='1'/>".to_owned());
        flaws.push(flaw);
    }
}
