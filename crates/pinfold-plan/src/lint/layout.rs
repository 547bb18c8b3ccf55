//! A placement with its places, from a plan, from a domain file, or as a running machine is found.

use std::sync::Arc;

use pinfold_model::{CpuSet, NodeId, Plan, Policy, Role, Tid, VnodePlan};

use crate::definition;
use crate::domain_file::{Board, Domain, DomainError, Memnode, Place, Placed, Target};

/// In which language a placement is written, and so in which its correction is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Language {
    /// A Pinfold plan (JSON).
    Plan,
    /// A libvirt domain file.
    Libvirt,
    /// A machine that runs, found by the words of this command line option: `--qmp SOCKET`.
    Running(String),
}

/// Where the threads of a role may run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// The role.
    pub role: Role,
    /// The CPUs; `None` if nothing binds it.
    pub pus: Option<CpuSet>,
    /// The scheduling policy, if one is given.
    pub policy: Option<Policy>,
    /// Where that is written.
    pub place: Place,
}

/// What the guest is shown of cores and sockets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestShape {
    /// Number of sockets.
    pub sockets: u32,
    /// Most threads of one core.
    pub threads: u32,
    /// The vCPUs of each core, by index.
    pub cores: Vec<Vec<u32>>,
    /// Where that is written.
    pub place: Place,
}

/// Where memory is bound: the guest's whole, or that of one of its NUMA cells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryOf {
    /// The guest's cell with its vCPUs; `None` for the whole guest.
    pub cell: Option<(u32, CpuSet)>,
    /// The host's nodes; `None` if libvirt asks numad.
    pub nodes: Option<Vec<NodeId>>,
    /// Whether its pages go to the nodes in turns.
    pub interleaved: bool,
    /// Where that is written.
    pub place: Place,
}

/// Where the memory of a machine that runs is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pages {
    /// What its process holds.
    Found {
        /// The process.
        process: Tid,
        /// KiB by node, ascending; nodes without any are left out.
        kib: Vec<(NodeId, u64)>,
    },
    /// Unknown, and why.
    Unseen(String),
}

/// One virtual machine (or group of processes) as somebody placed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Its name.
    pub name: String,
    /// The file, or what was asked for.
    pub source: String,
    /// The language of its text.
    pub language: Language,
    /// The domain file itself, if it is one: what it says beside placement is reviewed too.
    pub text: Option<String>,
    /// Number of vCPUs.
    pub vcpus: u32,
    /// vCPUs in ascending order, then the others.
    pub pins: Vec<Pin>,
    /// Pins of threads that the machine does not have.
    pub strays: Vec<Pin>,
    /// What the guest is shown; `None` if that is not known.
    pub guest: Option<GuestShape>,
    /// Number of vCPUs that the written topology has, where it is not the machine's.
    pub wrong_product: Option<(u64, Place)>,
    /// The vCPUs of each NUMA cell of the guest; an empty set where only their number is known.
    pub cells: Vec<CpuSet>,
    /// Where its memory is bound; empty if it is not.
    pub memory: Vec<MemoryOf>,
    /// The size of its memory in bytes, if that is known.
    pub bytes: Option<Placed<u64>>,
    /// Where its memory is, if it runs.
    pub pages: Option<Pages>,
    /// The CPUs for the host's own tasks, if the layout says.
    pub housekeeping: Option<CpuSet>,
    /// The CPUs that other tasks are kept off, if the layout says.
    pub exclusive: CpuSet,
    /// The strategy whose definition is the reason for some of its costs.
    pub defined_by: Option<String>,
    /// The whole plan that it is of, if it is of one.
    pub plan: Option<Arc<Plan>>,
}

impl Layout {
    /// The layouts of a plan, one for each vnode; `source` names the file.
    #[must_use]
    pub fn of_plan(plan: &Plan, source: &str) -> Vec<Self> {
        let plan = &Arc::new(plan.clone());
        plan.vnodes
            .iter()
            .zip(0_usize..)
            .map(|(vnode, index)| of_vnode((plan, vnode), index, source))
            .collect()
    }

    /// The layout of the text of a domain file; `source` names it.
    ///
    /// # Errors
    /// [`DomainError`] as from [`Domain::read`].
    pub fn of_text(xml: &str, source: &str) -> Result<Self, DomainError> {
        let domain = Domain::read(xml)?;
        Ok(Self { text: Some(xml.to_owned()), ..Self::of_domain(&domain, source) })
    }

    /// The placement alone that a domain file holds; `source` names it.
    #[must_use]
    pub fn of_domain(domain: &Domain, source: &str) -> Self {
        let pin = |target: Target| {
            let (pus, place) = match domain.pin(target) {
                Some((pus, place)) => (Some(pus.clone()), place.clone()),
                None => (None, Place::default()),
            };
            Pin { role: role(target), pus, policy: domain.policy(target), place }
        };
        let count = domain.vcpus.value;
        let mut targets: Vec<Target> = (0..count).map(Target::Vcpu).collect();
        targets.push(Target::Emulator);
        targets.extend(domain.iothreads.iter().map(|number| Target::Iothread(*number)));
        let strays = domain.pins.iter().filter(|pin| !targets.contains(&pin.value.0));
        let strays = strays.map(|pin| Pin {
            role: role(pin.value.0),
            pus: Some(pin.value.1.clone()),
            policy: None,
            place: pin.place.clone(),
        });
        let product = domain.shape.as_ref().and_then(|shape| {
            let product = shape.value.vcpus().unwrap_or(u32::MAX);
            (product != count).then(|| (u64::from(product), shape.place.clone()))
        });
        Self {
            name: domain.name.clone(),
            source: source.to_owned(),
            language: Language::Libvirt,
            text: None,
            vcpus: count,
            strays: strays.collect(),
            pins: targets.into_iter().map(pin).collect(),
            guest: guest_of_domain(domain),
            wrong_product: product,
            cells: domain.cells.iter().map(|cell| cell.value.vcpus.clone()).collect(),
            memory: memory_of_domain(domain),
            bytes: domain
                .memory_bytes
                .map(|value| Placed { value, place: domain.memory_place.clone() }),
            pages: None,
            housekeeping: None,
            exclusive: CpuSet::new(),
            defined_by: defined_by(domain),
            plan: None,
        }
    }

    /// Whether it was found running, not written.
    #[must_use]
    pub fn runs(&self) -> bool {
        matches!(self.language, Language::Running(_))
    }

    /// The pin of a role.
    #[must_use]
    pub fn pin(&self, role: &Role) -> Option<&Pin> {
        self.pins.iter().find(|pin| pin.role == *role)
    }
}

fn of_vnode((plan, vnode): (&Arc<Plan>, &VnodePlan), index: usize, source: &str) -> Layout {
    let place = |text: String| Place::said(format!("vnodes[{index}].{text}"));
    let pins = vnode.threads.iter().zip(0_usize..).map(|(thread, entry)| Pin {
        role: thread.role.clone(),
        pus: Some(thread.pus.clone()),
        policy: thread.policy,
        place: place(format!("threads[{entry}].pus: \"{}\"", thread.pus)),
    });
    let count = u32::try_from(vnode.vcpus().count()).unwrap_or(u32::MAX);
    let guest = vnode.guest.as_ref().map(|guest| {
        let (sockets, cores, threads) = (guest.sockets, guest.cores, guest.threads);
        GuestShape {
            sockets,
            threads,
            cores: groups(count, threads),
            place: place(format!("guest: {sockets}×{cores}×{threads}")),
        }
    });
    let memory = vnode.memory.iter().map(|memory| MemoryOf {
        cell: None,
        nodes: Some(memory.nodes.clone()),
        interleaved: false,
        place: place("memory.nodes".to_owned()),
    });
    let nodes = vnode.memory.as_ref().map_or(0, |memory| memory.nodes.len());
    let bytes = vnode.memory.as_ref().and_then(|memory| memory.bytes);
    Layout {
        name: vnode.name.clone(),
        source: source.to_owned(),
        language: Language::Plan,
        text: None,
        vcpus: count,
        pins: pins.collect(),
        strays: Vec::new(),
        guest,
        wrong_product: None,
        // What is emitted shows the guest one cell for each node.
        cells: vec![CpuSet::new(); nodes],
        memory: memory.collect(),
        bytes: bytes
            .map(|value| Placed { value, place: place(format!("memory.size_bytes: {value}")) }),
        pages: None,
        housekeeping: Some(plan.housekeeping.clone()),
        exclusive: plan.exclusive.clone(),
        defined_by: definition::of_plan(plan).map(str::to_owned),
        plan: Some(Arc::clone(plan)),
    }
}

/// The strategy that the file's mark names, if the threads are still pinned so.
fn defined_by(domain: &Domain) -> Option<String> {
    let targets = (0..domain.vcpus.value).map(Target::Vcpu).chain([Target::Emulator]);
    let pins: Vec<_> = targets.map(|of| domain.pin(of).map(|(pus, _)| pus)).collect();
    domain.mark.as_ref()?.holds(&pins).map(str::to_owned)
}

/// Without `<topology>` libvirt shows one socket of one core for each vCPU.
fn guest_of_domain(domain: &Domain) -> Option<GuestShape> {
    // Boards that cannot show what the pins are hide nothing.
    match (domain.board, &domain.shape) {
        (Board::WithoutCpu, None) | (Board::WithoutThreads, _) => return None,
        (_, _) => {}
    }
    let count = domain.vcpus.value;
    Some(match &domain.shape {
        Some(shape) => GuestShape {
            sockets: shape.value.sockets,
            threads: shape.value.threads,
            cores: groups(count, shape.value.threads),
            place: shape.place.clone(),
        },
        None => GuestShape {
            sockets: count,
            threads: 1,
            cores: groups(count, 1),
            place: Place::default(),
        },
    })
}

fn memory_of_domain(domain: &Domain) -> Vec<MemoryOf> {
    let mut memory: Vec<MemoryOf> = Vec::new();
    if let Some(bound) = &domain.memory {
        memory.push(MemoryOf {
            cell: None,
            nodes: bound.value.nodes.clone(),
            interleaved: bound.value.mode == "interleave",
            place: bound.place.clone(),
        });
    }
    for memnode in &domain.memnodes {
        let Memnode { cell: id, nodes, .. } = &memnode.value;
        let cell = domain.cells.iter().find(|cell| cell.value.id == *id);
        let vcpus = cell.map(|cell| cell.value.vcpus.clone()).unwrap_or_default();
        memory.push(MemoryOf {
            cell: Some((*id, vcpus)),
            nodes: Some(nodes.clone()),
            interleaved: false,
            place: memnode.place.clone(),
        });
    }
    memory
}

/// The vCPUs of each guest core: `threads` neighbours by index, as QEMU and libvirt number them.
fn groups(vcpus: u32, threads: u32) -> Vec<Vec<u32>> {
    let all: Vec<u32> = (0..vcpus).collect();
    all.chunks(threads.max(1) as usize).map(<[u32]>::to_vec).collect()
}

fn role(target: Target) -> Role {
    match target {
        Target::Vcpu(index) => Role::Vcpu(index),
        Target::Emulator => Role::Emulator,
        Target::Iothread(number) => Role::Iothread(format!("iothread{number}")),
    }
}
