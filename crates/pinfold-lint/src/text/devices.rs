//! Emulated devices, and threads that serve the disks.

use pinfold_model::text::count_noun;

use super::{Fault, FaultText};

pub(crate) enum DeviceFault {
    /// Emulated disks, with the targets that replace them; those with an address lose it.
    Disks { count: usize, windows: bool, targets: Vec<String>, addressed: bool },
    /// USB controllers that poll, next to an xHCI one or not.
    Usb { has_xhci: bool },
    /// Emulated network cards.
    Cards { count: usize, windows: bool },
    /// A balloon next to a device of the host, written or added by libvirt.
    Balloon { written: bool },
    /// A number of iothreads without a disk.
    IothreadIdle { count: usize },
    /// A number of disks of the main loop, with the number of iothreads to have, and a pin for one.
    WithoutIothread { count: usize, iothreads: usize, pin: Option<String> },
}

impl Fault for DeviceFault {
    fn words(&self) -> FaultText {
        match self {
            DeviceFault::Disks { count, windows, targets, addressed } => {
                disks(*count, *windows, targets, *addressed)
            }
            DeviceFault::Usb { has_xhci } => usb(*has_xhci),
            DeviceFault::Cards { count, windows } => FaultText::new(
                "network-emulated",
                format!("{} of an emulated model", count_noun(*count, "network card")),
                "registers and rings are emulated in QEMU's main loop, several exits for a packet; virtio \
                 with vhost moves packets in the kernel",
            )
            .with_replacement([
                if *windows {
                    "with the NetKVM driver (virtio-win) in Windows:"
                } else {
                    "with the virtio_net driver in the guest:"
                },
                "<model type='virtio'/>",
            ]),
            DeviceFault::Balloon { written } => FaultText::new(
                "balloon-useless",
                if *written {
                    "a memory balloon together with a passed-through device"
                } else {
                    "a memory balloon, which libvirt adds by default, together with a \
                     passed-through device"
                },
                "all memory of the guest is pinned for the device's DMA, so QEMU ignores the \
                 balloon, which then only wakes the guest for statistics",
            )
            .with_replacement(["<memballoon model='none'/>"]),
            DeviceFault::IothreadIdle { count } => FaultText::new(
                "iothread-idle",
                format!("{}, and no disk uses one", count_noun(*count, "iothread")),
                "an iothread serves the virtio disks and controllers that name it; QEMU's main \
                 loop serves the others",
            )
            .with_replacement([
                "within each virtio <disk>, with its own name and type:",
                "<driver name='qemu' type='raw' iothread='1'/>",
            ]),
            DeviceFault::WithoutIothread { count, iothreads, pin } => {
                without_iothread(*count, *iothreads, pin.as_deref())
            }
        }
    }
}

fn disks(count: usize, windows: bool, targets: &[String], addressed: bool) -> FaultText {
    let mut lines = vec![
        if windows {
            "install the viostor driver (virtio-win) in Windows first, with a small second virtio disk, \
             else it does not boot; then:"
        } else {
            "give it a virtio bus (the guest needs the virtio_blk driver in its initramfs):"
        }
        .to_owned(),
    ];
    lines.extend_from_slice(targets);
    // A drive address is not valid on the virtio bus: libvirt assigns a new one to the disk.
    if addressed {
        lines.push("and remove its <address type='drive' …/>".to_owned());
    }
    FaultText::new(
        "disk-emulated",
        format!("{} on an emulated IDE or SATA (AHCI) controller", count_noun(count, "disk")),
        "each request causes several VM exits and is served by QEMU's main loop, with one queue \
         for all; virtio needs one exit and can use an iothread",
    )
    .with_replacement(lines)
}

fn usb(has_xhci: bool) -> FaultText {
    let words = FaultText::new(
        "usb-not-xhci",
        "USB goes through an emulated UHCI, OHCI or EHCI controller",
        "QEMU's main loop polls the controller's frame list up to a thousand times a second while \
         the guest uses it; xHCI is event-driven",
    );
    if has_xhci {
        words.with_replacement(["remove them: the file also has an xHCI controller"])
    } else {
        words.with_replacement([
            "in place of all of them (Windows from 8 on, Linux and the BSDs have the driver):",
            "<controller type='usb' index='0' model='qemu-xhci'/>",
        ])
    }
}

fn without_iothread(count: usize, iothreads: usize, pin: Option<&str>) -> FaultText {
    let mut lines = vec![format!("<iothreads>{iothreads}</iothreads>")];
    if let Some(pin) = pin {
        lines.push("within <cputune>, off the vCPUs' CPUs:".to_owned());
        lines.push(pin.to_owned());
    }
    lines.push("within the <disk>, or the virtio-scsi <controller>:".to_owned());
    lines.push("<driver iothread='1'/>".to_owned());
    FaultText::new(
        "disk-without-iothread",
        format!("{} of QEMU's main loop", count_noun(count, "disk or controller")),
        "its requests wait for the other work of the main loop: timers, the monitor, the display, \
         other devices",
    )
    .with_replacement(lines)
}
