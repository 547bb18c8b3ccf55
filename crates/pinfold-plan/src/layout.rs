//! A placement with the positions of its values: from a plan, from a domain file, or of a running
//! machine.

use std::sync::Arc;

use pinfold_model::{CpuSet, NodeId, Plan, Policy, PuId, Role, Tid, VnodePlan};

use crate::domain_file::{Domain, DomainError, Located, Memnode, Place, Target, TopologyLevels};
use crate::strategies::definition;

/// The language in which a placement and its corrections are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceFormat {
    /// A Pinfold plan (JSON).
    Plan,
    /// A libvirt domain file.
    Libvirt,
    /// A running machine, identified by a command line option: `--qmp SOCKET`.
    Running(String),
}

/// The CPUs of the threads of a role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// The threads' role.
    pub role: Role,
    /// The CPUs; `None` if there is no restriction.
    pub pus: Option<CpuSet>,
    /// The scheduling policy, if given.
    pub policy: Option<Policy>,
    /// Position of the pin.
    pub place: Place,
}

/// Cores and sockets in the guest topology.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestShape {
    /// Number of sockets.
    pub sockets: u32,
    /// Largest number of threads per core.
    pub threads: u32,
    /// The vCPU indexes of each core.
    pub cores: Vec<Vec<u32>>,
    /// Position of the topology.
    pub place: Place,
}

/// Binding of memory: of the whole guest, or of one of its NUMA cells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryBinding {
    /// ID and vCPUs of the guest's cell; `None` for the whole guest.
    pub cell: Option<(u32, CpuSet)>,
    /// The host nodes; `None` if libvirt queries numad.
    pub nodes: Option<Vec<NodeId>>,
    /// True if its pages are interleaved over the nodes.
    pub interleaved: bool,
    /// True if the kernel takes other nodes where these are full.
    pub preferred: bool,
    /// Position of the binding.
    pub place: Place,
}

/// Location of a running machine's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemoryLocation {
    /// The memory of its process.
    Found {
        /// The process ID.
        process: Tid,
        /// KiB by node, ascending, without empty nodes.
        kib: Vec<(NodeId, u64)>,
    },
    /// Unknown, with the reason.
    Unseen(String),
}

/// One virtual machine (or process group) in its present placement.
///
/// ```
/// use pinfold_plan::layout::Layout;
///
/// let xml = "<domain type='kvm'><name>vm</name><vcpu>1</vcpu>\
///            <cputune><vcpupin vcpu='0' cpuset='2'/></cputune></domain>";
/// let layout = Layout::of_text(xml, "vm.xml")?;
/// assert_eq!(layout.name, "vm");
/// assert_eq!(layout.pins.iter().filter(|pin| pin.role.is_vcpu()).count(), 1);
/// # Ok::<(), pinfold_plan::domain_file::DomainError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Name of the machine.
    pub name: String,
    /// Path of the file, or the option that identifies the machine.
    pub source: String,
    /// Language of the placement.
    pub language: SourceFormat,
    /// Text of the domain file, if it is one: the rest of it is checked too.
    pub text: Option<String>,
    /// Number of vCPUs that exist.
    pub vcpus: u32,
    /// vCPUs that can be added while the machine runs; they have no threads yet.
    pub reserve: CpuSet,
    /// True if numad chooses the nodes of its threads when it starts.
    pub is_placed_by_numad: bool,
    /// vCPUs in ascending order, then the other roles.
    pub pins: Vec<Pin>,
    /// Pins of threads that the machine lacks.
    pub strays: Vec<Pin>,
    /// The guest topology; `None` if unknown.
    pub guest: Option<GuestShape>,
    /// Number of vCPUs of the written topology, if it differs from the machine's, with its
    /// position.
    pub wrong_product: Option<(u64, Place)>,
    /// The vCPUs of each NUMA cell of the guest; an empty set if only their number is known.
    pub cells: Vec<CpuSet>,
    /// Bindings of its memory; empty if it is not bound.
    pub memory: Vec<MemoryBinding>,
    /// Size of its memory in bytes, if known.
    pub bytes: Option<Located<u64>>,
    /// Location of its memory, if it is running.
    pub pages: Option<MemoryLocation>,
    /// The CPUs for the host's own tasks, if the layout specifies them.
    pub housekeeping: Option<CpuSet>,
    /// The CPUs from which other tasks are excluded, if the layout specifies them.
    pub exclusive: CpuSet,
    /// The strategy whose definition explains some of its costs.
    pub defined_by: Option<String>,
    /// The complete plan, if the layout is a part of one.
    pub plan: Option<Arc<Plan>>,
}

impl Layout {
    /// The layouts of a plan, one for each vnode; `source` is the path of the file.
    #[must_use]
    pub fn of_plan(plan: &Plan, source: &str) -> Vec<Self> {
        let plan = &Arc::new(plan.clone());
        plan.vnodes
            .iter()
            .zip(0_usize..)
            .map(|(vnode, index)| of_vnode(plan, vnode, index, source))
            .collect()
    }

    /// The layout of a domain file's text; `source` is its path.
    ///
    /// # Errors
    /// [`DomainError`] as from [`Domain::read`].
    pub fn of_text(xml: &str, source: &str) -> Result<Self, DomainError> {
        let domain = Domain::read(xml)?;
        Ok(Self { text: Some(xml.to_owned()), ..Self::of_domain(&domain, source) })
    }

    /// Only the placement of a domain file; `source` is its path.
    pub fn of_domain(domain: &Domain, source: &str) -> Self {
        let pin = |target: Target| {
            let (pus, place) = match domain.pin(target) {
                Some((pus, place)) => (Some(pus.clone()), place.clone()),
                None => (None, Place::default()),
            };
            Pin { role: target.role(), pus, policy: domain.policy(target), place }
        };
        let enabled_vcpus = domain.enabled_vcpus.iter().map(|vcpu| Target::Vcpu(vcpu.0));
        let mut targets: Vec<Target> = enabled_vcpus.collect();
        targets.push(Target::Emulator);
        targets.extend(domain.iothreads.iter().map(|number| Target::Iothread(*number)));
        let reserve = CpuSet::first_n(domain.vcpus.value).difference(&domain.enabled_vcpus);
        let strays = domain.pins.iter().filter(|pin| {
            !targets.contains(&pin.value.0)
                && !matches!(pin.value.0, Target::Vcpu(index) if reserve.contains(PuId(index)))
        });
        let strays = strays.map(|pin| Pin {
            role: pin.value.0.role(),
            pus: Some(pin.value.1.clone()),
            policy: None,
            place: pin.place.clone(),
        });
        let product = domain.shape.as_ref().and_then(|shape| {
            let product = shape.value.vcpus().unwrap_or(u32::MAX);
            let is_wrong = product != domain.vcpus.value;
            is_wrong.then(|| (u64::from(product), shape.place.clone()))
        });
        Self {
            name: domain.name.clone(),
            source: source.to_owned(),
            language: SourceFormat::Libvirt,
            text: None,
            vcpus: u32::try_from(domain.enabled_vcpus.len()).unwrap_or(u32::MAX),
            strays: strays.collect(),
            reserve,
            is_placed_by_numad: domain.is_placed_by_numad,
            pins: targets.into_iter().map(pin).collect(),
            guest: guest_of_domain(domain),
            wrong_product: product,
            cells: domain
                .cells
                .iter()
                .map(|cell| cell.value.vcpus.intersection(&domain.enabled_vcpus))
                .collect(),
            memory: memory_of_domain(domain),
            bytes: domain
                .memory_bytes
                .map(|value| Located { value, place: domain.memory_place.clone() }),
            pages: None,
            housekeeping: None,
            exclusive: CpuSet::new(),
            defined_by: defined_by(domain),
            plan: None,
        }
    }

    /// True for a running machine, false for a file.
    pub fn is_running(&self) -> bool {
        matches!(self.language, SourceFormat::Running(_))
    }

    /// The pin of a role.
    #[must_use]
    pub fn pin(&self, role: &Role) -> Option<&Pin> {
        self.pins.iter().find(|pin| pin.role == *role)
    }
}

fn of_vnode(plan: &Arc<Plan>, vnode: &VnodePlan, index: usize, source: &str) -> Layout {
    let pins = vnode.threads.iter().zip(0_usize..).map(|(thread, entry)| Pin {
        role: thread.role.clone(),
        pus: Some(thread.pus.clone()),
        policy: thread.policy,
        place: place_in_plan(format!("threads[{entry}].pus: \"{}\"", thread.pus), index),
    });
    let count = u32::try_from(vnode.vcpus().count()).unwrap_or(u32::MAX);
    let guest = vnode.guest.as_ref().map(|guest| {
        let (sockets, cores, threads) = (guest.sockets, guest.cores, guest.threads);
        GuestShape {
            sockets,
            threads,
            cores: groups(count, threads),
            place: place_in_plan(format!("guest: {sockets}×{cores}×{threads}"), index),
        }
    });
    let memory = vnode.memory.iter().map(|memory| MemoryBinding {
        cell: None,
        nodes: Some(memory.nodes.clone()),
        interleaved: false,
        preferred: memory.is_preferred,
        place: place_in_plan("memory.nodes".to_owned(), index),
    });
    let nodes = vnode.memory.as_ref().map_or(0, |memory| memory.nodes.len());
    let bytes = vnode.memory.as_ref().and_then(|memory| memory.bytes);
    Layout {
        name: vnode.name.clone(),
        source: source.to_owned(),
        language: SourceFormat::Plan,
        text: None,
        vcpus: count,
        reserve: CpuSet::new(),
        is_placed_by_numad: false,
        pins: pins.collect(),
        strays: Vec::new(),
        guest,
        wrong_product: None,
        // The emitted file shows the guest one cell for each node.
        cells: vec![CpuSet::new(); nodes],
        memory: memory.collect(),
        bytes: bytes.map(|value| Located {
            value,
            place: place_in_plan(format!("memory.size_bytes: {value}"), index),
        }),
        pages: None,
        housekeeping: Some(plan.housekeeping.clone()),
        exclusive: plan.exclusive.clone(),
        defined_by: definition::of_plan(plan).map(str::to_owned),
        plan: Some(Arc::clone(plan)),
    }
}

fn place_in_plan(text: String, index: usize) -> Place {
    Place::from_text(format!("vnodes[{index}].{text}"))
}

/// The strategy of the file's mark, if the threads still have its pins.
fn defined_by(domain: &Domain) -> Option<String> {
    let vcpus = domain.enabled_vcpus.iter().map(|vcpu| Target::Vcpu(vcpu.0));
    let targets = vcpus.chain([Target::Emulator]);
    let pins: Vec<_> = targets.map(|of| domain.pin(of).map(|(pus, _)| pus)).collect();
    domain.mark.as_ref()?.holds(&pins).map(str::to_owned)
}

/// Without `<topology>` libvirt shows one socket with one core for each vCPU.
fn guest_of_domain(domain: &Domain) -> Option<GuestShape> {
    // Boards that cannot show the pins' topology hide nothing.
    match (domain.board, &domain.shape) {
        (TopologyLevels::WithoutCpu, None) | (TopologyLevels::WithoutThreads, _) => return None,
        (_, _) => {}
    }
    let threads = domain.shape.as_ref().map_or(1, |shape| shape.value.threads);
    let mut cores = groups(domain.vcpus.value, threads);
    for core in &mut cores {
        core.retain(|vcpu| domain.enabled_vcpus.contains(PuId(*vcpu)));
    }
    cores.retain(|core| !core.is_empty());
    Some(match &domain.shape {
        Some(shape) => {
            GuestShape { sockets: shape.value.sockets, threads, cores, place: shape.place.clone() }
        }
        None => GuestShape {
            sockets: u32::try_from(cores.len()).unwrap_or(u32::MAX),
            threads,
            cores,
            place: Place::default(),
        },
    })
}

fn memory_of_domain(domain: &Domain) -> Vec<MemoryBinding> {
    let mut memory: Vec<MemoryBinding> = Vec::new();
    if let Some(bound) = &domain.memory {
        memory.push(MemoryBinding {
            cell: None,
            nodes: bound.value.nodes.clone(),
            interleaved: bound.value.mode == "interleave",
            preferred: bound.value.mode == "preferred",
            place: bound.place.clone(),
        });
    }
    for memnode in &domain.memnodes {
        let Memnode { cell: id, nodes, mode, .. } = &memnode.value;
        let cell = domain.cells.iter().find(|cell| cell.value.id == *id);
        let vcpus = cell.map(|cell| cell.value.vcpus.intersection(&domain.enabled_vcpus));
        let vcpus = vcpus.unwrap_or_default();
        memory.push(MemoryBinding {
            cell: Some((*id, vcpus)),
            nodes: Some(nodes.clone()),
            interleaved: false,
            preferred: mode == "preferred",
            place: memnode.place.clone(),
        });
    }
    memory
}

/// The vCPUs of each guest core: `threads` consecutive indexes, as QEMU and libvirt number them.
fn groups(vcpus: u32, threads: u32) -> Vec<Vec<u32>> {
    let all: Vec<u32> = (0..vcpus).collect();
    all.chunks(threads.max(1) as usize).map(<[u32]>::to_vec).collect()
}
