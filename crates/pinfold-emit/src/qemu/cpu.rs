//! QEMU's options for the guest's cores: `-smp`, and additions to the user's `-cpu`.
//!
//! ```text
//! -cpu host,topoext=on,host-cache-info=on -smp 16,sockets=1,dies=2,cores=4,threads=2
//! ```
//! The CPU model is the user's. Only `-cpu host` (KVM) can show the host's cache data; every other
//! model, and TCG, has caches of its own.
//!
//! An AMD guest sees threads of a core only with the feature `topoext`. KVM supports it, TCG does
//! not. Under KVM a guest is AMD if the host is, under TCG if its CPU model is. If threads cannot
//! be shown, they are written as cores: QEMU would start with a warning, and the guest would treat
//! them as cores anyway.

use pinfold_model::{Accelerator, GuestTopology, Topology, Vendor, VnodePlan};

use super::Command;
use crate::board::Board;
use pinfold_plan::guest_cache::{Caches, caches};

/// Options for the guest's cores, with comments.
#[derive(Default)]
pub(super) struct Cpu {
    /// Options with their values.
    pub words: Vec<(&'static str, String)>,
    /// Comments.
    pub notes: Vec<String>,
}

/// The options for the cores of `vnode`.
pub(super) fn cpu(vnode: &VnodePlan, topology: &Topology, command: &Command<'_>) -> Cpu {
    let mut cpu = Cpu::default();
    let asked = command.values("cpu").last().map(|value| (*value).to_owned());
    let Some(guest) = &vnode.guest else {
        cpu.words.extend(asked.map(|value| ("-cpu", value)));
        return cpu;
    };
    let guest_cpu = GuestCpu::new(topology, command);
    let mut threads = guest.threads;
    let value = guest_cpu.value(guest, asked, &mut cpu.notes);
    if threads > 1 && !guest_cpu.shows_threads(value.as_deref(), &mut cpu.notes) {
        threads = 1;
    }
    let caches = caches(vnode, topology);
    if let Some(mut value) = value {
        let says = value.contains("host-cache-info");
        if guest_cpu.is_host(&value) && guest_cpu.board.x86 && caches.as_host && !says {
            value.push_str(",host-cache-info=on");
        }
        cpu.words.push(("-cpu", value));
    }
    let guest =
        GuestTopology { cores: guest.cores * (guest.threads / threads), threads, ..guest.clone() };
    smp(&mut cpu, &guest, caches, guest_cpu.board, command);
    cpu
}

/// `-smp`, with dies if the board supports them, and the command's clusters if they divide it.
fn smp(cpu: &mut Cpu, guest: &GuestTopology, caches: Caches, board: Board, command: &Command<'_>) {
    let (all, vcpus) = (guest.vcpus(), command.vcpus);
    let later = usize::try_from(all) != Ok(vcpus);
    let mut shape = if later { format!("{vcpus},maxcpus={all}") } else { all.to_string() };
    shape.push_str(&format!(",sockets={}", guest.sockets));
    let dies = if board.dies { caches.dies } else { 1 };
    if dies > 1 {
        shape.push_str(&format!(",dies={dies}"));
    }
    let mut cores = guest.cores / dies;
    let clusters = command.line.smp("clusters").unwrap_or(1).max(1);
    if clusters > 1 && cores.is_multiple_of(clusters) {
        cores /= clusters;
        shape.push_str(&format!(",clusters={clusters}"));
    } else if clusters > 1 {
        cpu.notes
            .push(format!("clusters={clusters} does not divide {cores} cores and was removed."));
    }
    shape.push_str(&format!(",cores={cores},threads={}", guest.threads));
    cpu.words.push(("-smp", shape));
    if caches.dies > 1 && !board.dies {
        cpu.notes.push(format!(
            "The vCPUs use {} L3 caches on each socket; this machine type has no dies to express \
             that.",
            caches.dies
        ));
    }
}

/// Known properties of the guest's CPUs.
struct GuestCpu {
    board: Board,
    host: Vendor,
    /// `None` if the command leaves it to QEMU.
    accelerator: Option<Accelerator>,
    /// True if the command is a script or empty, and may have options that are not visible here.
    unseen: bool,
}

impl GuestCpu {
    fn new(topology: &Topology, command: &Command<'_>) -> Self {
        let host = Vendor::from_topology(topology);
        let line = command.line;
        // A program name without an architecture means the host's.
        let of_host = if host == Vendor::Unknown { "" } else { "x86_64" };
        let board = match line.architecture() {
            Some(architecture) => Board::new(architecture, line.board()),
            None if of_host.is_empty() => Board { x86: false, dies: false, threads: true },
            None => Board::new(of_host, line.board()),
        };
        let is_kvm = matches!(line.program.rsplit('/').next(), Some("kvm" | "qemu-kvm"));
        let accelerator = line.accelerator().or(Some(Accelerator::Kvm).filter(|_| is_kvm));
        let unseen = !is_kvm && line.architecture().is_none();
        Self { board, host, accelerator, unseen }
    }

    /// The value of `-cpu`, with the feature for threads on an AMD host.
    fn value(
        &self,
        guest: &GuestTopology,
        asked: Option<String>,
        notes: &mut Vec<String>,
    ) -> Option<String> {
        let mut value = asked?;
        let needs = guest.threads > 1 && self.board.x86 && self.is_kvm(&value);
        if needs && self.host == Vendor::Amd && !value.contains("topoext") {
            value.push_str(",topoext=on");
        }
        if !self.is_host(&value) {
            notes.push(format!(
                "The CPU model {value} describes caches of its own: their sizes are not this host's."
            ));
        }
        Some(value)
    }

    /// True if the guest can be shown threads; otherwise adds a note with the reason.
    fn shows_threads(&self, value: Option<&str>, notes: &mut Vec<String>) -> bool {
        let as_cores = "they are written as cores.";
        if !self.board.threads {
            notes.push(format!(
                "This machine type cannot present SMT threads to its guest: {as_cores}"
            ));
            return false;
        }
        if !self.board.x86 {
            return true;
        }
        if self.unseen {
            let amd = self.host == Vendor::Amd && value.is_none();
            notes.extend(amd.then(|| {
                "An AMD guest sees threads of a core only with -cpu host,topoext=on.".to_owned()
            }));
            return true;
        }
        let kvm = value.is_some_and(|value| self.is_kvm(value))
            || self.accelerator == Some(Accelerator::Kvm);
        let amd = if kvm { self.host == Vendor::Amd } else { is_amd_model(value) };
        let has = kvm && value.is_some_and(|value| !without_topoext(value));
        if amd && !has {
            let model = value.unwrap_or("that QEMU takes by itself");
            let why = if kvm {
                "-cpu host has it, if it is not switched off"
            } else {
                "TCG has no such feature; an Intel model needs none"
            };
            notes.push(format!(
                "The CPU model {model} has no topoext, without which an AMD guest sees no threads ({why}): {as_cores}"
            ));
        }
        !amd || has
    }

    fn is_host(&self, value: &str) -> bool {
        value.split(',').next() == Some("host")
    }

    /// Only KVM supports the host's CPU model.
    fn is_kvm(&self, value: &str) -> bool {
        self.is_host(value) || self.accelerator == Some(Accelerator::Kvm)
    }
}

/// True if this model, or QEMU's default, is an AMD model; the default on x86 is `qemu64`.
fn is_amd_model(value: Option<&str>) -> bool {
    let model = value.and_then(|value| value.split(',').next()).unwrap_or("qemu64");
    let starts = ["EPYC", "Opteron", "Dhyana", "phenom", "athlon", "qemu64", "max"];
    starts.iter().any(|start| model.starts_with(start))
}

/// True if the value disables the feature explicitly.
fn without_topoext(value: &str) -> bool {
    value.split(',').any(|word| matches!(word, "-topoext" | "topoext=off" | "topoext=no"))
}
