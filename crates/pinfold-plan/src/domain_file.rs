//! The placement-related part of a libvirt domain file, with the line of each element.
//!
//! ```xml
//! <vcpu placement='static' cpuset='0-7'>4</vcpu>
//! <cputune><vcpupin vcpu='0' cpuset='1'/> <vcpusched vcpus='0-3' scheduler='fifo' priority='1'/></cputune>
//! <numatune><memory mode='strict' nodeset='0'/> <memnode cellid='0' mode='strict' nodeset='0'/></numatune>
//! <cpu><topology sockets='1' dies='1' cores='2' threads='2'/> <numa><cell id='0' cpus='0-3'/></numa></cpu>
//! ```
//! The format is documented at <https://libvirt.org/formatdomain.html>. Errors that libvirt itself
//! would refuse (a pin without CPUs, a vCPU pinned twice, an invalid list) are refused here with
//! line and column. A document type is refused too, because entities could grow without limit.
//! Settings that libvirt accepts but that harm are found by `pinfold-lint`.

mod libvirt_file;
mod list;
mod manager;
mod read;
mod request;
mod start_request;
mod windows;

use pinfold_model::{CpuSet, NodeId, Policy, Role};
use thiserror::Error;

use crate::strategies::definition::StrategyRecord;

/// Why a text cannot be used as a domain file.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}, column {column}: {why}")]
pub struct DomainError {
    /// Line number, from 1.
    pub line: u32,
    /// Column number, from 1, in characters.
    pub column: u32,
    /// The fault.
    pub why: String,
    /// What the user can do, if it is not obvious.
    pub hint: Option<&'static str>,
}

/// Position of a value: the file, the line, and the element.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Place {
    /// Path of the file; empty if the owner of the place names it.
    pub file: String,
    /// Line number, from 1; `None` if the value is not written in a file.
    pub line: Option<u32>,
    /// Text of the element or field.
    pub text: String,
}

impl Place {
    /// A place without a line, described by a text.
    pub fn from_text(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }
}

/// A value with its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located<T> {
    /// The value.
    pub value: T,
    /// Position of the value.
    pub place: Place,
}

/// The threads to which a pin or a scheduler setting applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// One vCPU.
    Vcpu(u32),
    /// Every thread that is neither vCPU nor iothread.
    Emulator,
    /// One iothread by libvirt's number.
    Iothread(u32),
}

impl Target {
    /// The role of these threads in plans.
    #[must_use]
    pub fn role(self) -> Role {
        match self {
            Target::Vcpu(index) => Role::Vcpu(index),
            Target::Emulator => Role::Emulator,
            Target::Iothread(number) => Role::Iothread(format!("iothread{number}")),
        }
    }
}

/// The guest topology of `<topology>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Number of sockets.
    pub sockets: u32,
    /// Number of dies per socket.
    pub dies: u32,
    /// Number of clusters per die.
    pub clusters: u32,
    /// Number of cores per cluster.
    pub cores: u32,
    /// Number of threads per core.
    pub threads: u32,
}

impl Shape {
    /// Number of vCPUs of this topology; `None` beyond 2^32.
    pub fn vcpus(&self) -> Option<u32> {
        let parts = [self.dies, self.clusters, self.cores, self.threads];
        parts.iter().try_fold(self.sockets, |product, part| product.checked_mul(*part))
    }
}

/// `<cell>` of `<cpu><numa>`: a NUMA node of the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// ID of the cell.
    pub id: u32,
    /// Indexes of its vCPUs; empty for a memory-only cell.
    pub vcpus: CpuSet,
    /// Memory in bytes, if given.
    pub bytes: Option<u64>,
}

/// `<memory>` of `<numatune>`: the nodes of the guest's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// `strict`, `preferred`, `interleave` or `restrictive`.
    pub mode: String,
    /// The host's nodes; `None` under `placement='auto'`.
    pub nodes: Option<Vec<NodeId>>,
}

impl Binding {
    /// True if pages can come only from these nodes.
    pub fn is_strict(&self) -> bool {
        is_strict(&self.mode)
    }
}

/// `<memnode>` of `<numatune>`: the host nodes of one guest cell's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memnode {
    /// ID of the guest's cell.
    pub cell: u32,
    /// Mode as in [`Binding`].
    pub mode: String,
    /// The host's nodes.
    pub nodes: Vec<NodeId>,
}

impl Memnode {
    /// True if pages can come only from these nodes.
    pub fn is_strict(&self) -> bool {
        is_strict(&self.mode)
    }
}

/// `strict` is a policy of QEMU's memory (`MPOL_BIND`), `restrictive` the `cpuset.mems` of its
/// cgroups; both exclude other nodes.
fn is_strict(mode: &str) -> bool {
    [STRICT, RESTRICTIVE].contains(&mode)
}

/// The mode of `<memory>` and `<memnode>` that is a policy of QEMU's memory (`MPOL_BIND`).
pub const STRICT: &str = "strict";
/// The mode that is the `cpuset.mems` of QEMU's cgroups.
pub const RESTRICTIVE: &str = "restrictive";

/// Topology levels of the guest's board, by the architecture in `<os><type arch=…>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopologyLevels {
    /// x86: sockets, dies, cores and threads. Also used if the file names no architecture.
    X86,
    /// s390x: no threads.
    WithoutThreads,
    /// riscv64: libvirt does not start a machine with a `<cpu>`.
    WithoutCpu,
    /// Other architectures: sockets, cores and threads.
    Other,
}

/// The placement-related content of a domain file.
///
/// ```
/// use pinfold_plan::domain_file::Domain;
///
/// let domain = Domain::read("<domain type='kvm'><name>vm</name><vcpu>2</vcpu></domain>")?;
/// assert_eq!(domain.enabled_vcpus.len(), 2);
/// assert!(Domain::read("<network/>").is_err());
/// # Ok::<(), pinfold_plan::domain_file::DomainError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    /// Name of the domain.
    pub name: String,
    /// `type` of `<domain>`: `kvm`, `qemu`, …
    pub kind: String,
    /// Topology levels of its board.
    pub board: TopologyLevels,
    /// Maximum number of vCPUs.
    pub vcpus: Located<u32>,
    /// The vCPUs that exist when it starts (`current='4'`, `<vcpu enabled='yes'>`); the others are
    /// a reserve for hotplug, without threads.
    pub enabled_vcpus: CpuSet,
    /// True for `<vcpu placement='auto'>` without a `cpuset`: numad chooses the nodes at the start.
    pub is_placed_by_numad: bool,
    /// `cpuset` of `<vcpu>`: the CPUs of threads without a pin of their own.
    pub default: Option<Located<CpuSet>>,
    /// IDs of its iothreads, ascending.
    pub iothreads: Vec<u32>,
    /// `<vcpupin>`, `<emulatorpin>`, `<iothreadpin>` in the file's order.
    pub pins: Vec<Located<(Target, CpuSet)>>,
    /// `<vcpusched>`, `<emulatorsched>`, `<iothreadsched>`, one entry per thread.
    pub schedulers: Vec<Located<(Target, Policy)>>,
    /// The number of sockets that the guest's system uses at most, if it is limited.
    pub most_sockets: Option<u32>,
    /// The guest topology of `<topology>`.
    pub shape: Option<Located<Shape>>,
    /// The guest's NUMA cells.
    pub cells: Vec<Located<Cell>>,
    /// `<memory>` of `<numatune>`, if present.
    pub memory: Option<Located<Binding>>,
    /// `<memnode>` elements.
    pub memnodes: Vec<Located<Memnode>>,
    /// `<memory>` of the domain in bytes, if given.
    pub memory_bytes: Option<u64>,
    /// Position of `<memory>`.
    pub memory_place: Place,
    /// True if its memory comes from huge pages, of whatever size.
    pub is_in_huge_pages: bool,
    /// Size of the huge pages of its memory in bytes, if given.
    pub page_bytes: Option<u64>,
    /// Strategy mark, if the file has one.
    pub(crate) mark: Option<StrategyRecord>,
}

impl Domain {
    /// True if some of its vCPUs are a reserve for hotplug.
    pub fn has_reserve(&self) -> bool {
        self.enabled_vcpus.len() < self.vcpus.value as usize
    }

    /// Parses a domain file, such as `virsh dumpxml` writes.
    ///
    /// # Errors
    /// [`DomainError`] with line and column: not well formed, a document type, another root
    /// than `<domain>`, a number or list that is none, half a pin, a thread pinned twice, a second
    /// `<cputune>`.
    pub fn read(xml: &str) -> Result<Self, DomainError> {
        read::domain(xml)
    }

    /// The pin of a target: its own, or the default of `<vcpu cpuset=…>`.
    pub fn pin(&self, target: Target) -> Option<(&CpuSet, &Place)> {
        let own = self.pins.iter().find(|pin| pin.value.0 == target);
        match own {
            Some(pin) => Some((&pin.value.1, &pin.place)),
            None => self.default.as_ref().map(|default| (&default.value, &default.place)),
        }
    }

    /// The scheduling policy of a target, if the file sets one.
    pub fn policy(&self, target: Target) -> Option<Policy> {
        self.schedulers.iter().find(|entry| entry.value.0 == target).map(|entry| entry.value.1)
    }
}

pub use libvirt_file::LibvirtFile;
pub use manager::Manager;
pub use read::{bytes, error_at, is_libvirt_element, page_bytes, parse, place, text_of};
pub use start_request::PlacementMetadata;
pub use windows::{Windows, most_sockets};
