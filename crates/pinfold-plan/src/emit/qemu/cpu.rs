//! QEMU's options for the guest's cores: `-smp`, and what the user's own `-cpu` lacks.
//!
//! ```text
//! -cpu host,topoext=on,host-cache-info=on -smp 16,sockets=1,dies=2,cores=4,threads=2
//! ```
//! The model is the user's. Only `-cpu host` (KVM) can show the host's own cache data, and only on an
//! AMD host do threads need `topoext`; every other model, and all of TCG, describes caches of its own.

use pinfold_model::{Topology, VnodePlan};

use super::Command;
use crate::caches::{Vendor, caches};

/// What the guest's cores add to the command, and what is to be said of it.
pub(super) struct Cpu {
    /// Options with their values.
    pub words: Vec<(&'static str, String)>,
    /// Comments.
    pub notes: Vec<String>,
}

/// The options for the cores of `vnode`.
pub(super) fn cpu(vnode: &VnodePlan, topology: &Topology, command: &Command) -> Cpu {
    let mut cpu = Cpu { words: Vec::new(), notes: Vec::new() };
    let asked = command.cpu.last();
    let Some(guest) = &vnode.guest else {
        cpu.words.extend(asked.map(|value| ("-cpu", value.clone())));
        return cpu;
    };
    let (vendor, caches) = (Vendor::of(topology), caches(vnode, topology));
    let x86 = vendor != Vendor::Unknown;
    if let Some(value) = asked {
        let is_host = value.split(',').next() == Some("host");
        let mut value = value.clone();
        let says = |value: &str, key: &str| value.split(',').any(|word| word.contains(key));
        if is_host && vendor == Vendor::Amd && guest.threads > 1 && !says(&value, "topoext") {
            value.push_str(",topoext=on");
        }
        if is_host && x86 && caches.as_host && !says(&value, "host-cache-info") {
            value.push_str(",host-cache-info=on");
        }
        if !is_host {
            cpu.notes.push(format!(
                "The CPU model {value} describes caches of its own: their sizes are not this host's."
            ));
        }
        cpu.words.push(("-cpu", value));
    }
    let (count, sockets, threads) = (vnode.vcpus().count(), guest.sockets, guest.threads);
    let shape = match caches.dies {
        dies if x86 && dies > 1 => {
            format!("{count},sockets={sockets},dies={dies},cores={}", guest.cores / dies)
        }
        _ => format!("{count},sockets={sockets},cores={}", guest.cores),
    };
    cpu.words.push(("-smp", format!("{shape},threads={threads}")));
    if caches.dies > 1 && !x86 {
        cpu.notes.push(format!(
            "The vCPUs lie in {} L3 caches on each socket; on an x86 host say dies={} in -smp.",
            caches.dies, caches.dies
        ));
    }
    cpu
}
