//! A libvirt domain file, as far as placement cares, with the line of each element.
//!
//! ```xml
//! <vcpu placement='static' cpuset='0-7'>4</vcpu>
//! <cputune><vcpupin vcpu='0' cpuset='1'/> <vcpusched vcpus='0-3' scheduler='fifo' priority='1'/></cputune>
//! <numatune><memory mode='strict' nodeset='0'/> <memnode cellid='0' mode='strict' nodeset='0'/></numatune>
//! <cpu><topology sockets='1' dies='1' cores='2' threads='2'/> <numa><cell id='0' cpus='0-3'/></numa></cpu>
//! ```
//! The words are those of <https://libvirt.org/formatdomain.html>. What libvirt itself would
//! refuse (a pin without its PUs, a vCPU pinned twice, a list that is none) is refused here
//! with line and column; a document type is refused too, because entities could grow without
//! bound. What libvirt would take and a person would regret is for [`crate::lint`].

mod list;
mod read;
mod request;

use pinfold_model::{CpuSet, NodeId, Policy};
use thiserror::Error;

use crate::definition::Mark;

/// Why a text is not a domain file that can be worked with.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}, column {column}: {why}")]
pub struct DomainError {
    /// Line, from 1.
    pub line: u32,
    /// Column, from 1, in characters.
    pub column: u32,
    /// What is wrong.
    pub why: String,
    /// What the user can do next, where it is not plain.
    pub hint: Option<&'static str>,
}

/// Where something is written: the file, the line, and the element as it stands there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The file; empty where what holds the place says it.
    pub file: String,
    /// Line, from 1; `None` if nothing is written.
    pub line: Option<u32>,
    /// The element or field.
    pub text: String,
}

impl Place {
    /// A place without a line, in words.
    #[must_use]
    pub fn said(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }
}

/// A value with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed<T> {
    /// The value.
    pub value: T,
    /// Where it is written.
    pub place: Place,
}

/// What a pin or a scheduler of a domain file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// One vCPU.
    Vcpu(u32),
    /// Every thread that is neither vCPU nor iothread.
    Emulator,
    /// One iothread by libvirt's number.
    Iothread(u32),
}

/// `<topology>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Sockets.
    pub sockets: u32,
    /// Dies per socket.
    pub dies: u32,
    /// Clusters per die.
    pub clusters: u32,
    /// Cores per cluster.
    pub cores: u32,
    /// Threads per core.
    pub threads: u32,
}

impl Shape {
    /// Number of vCPUs of this shape; `None` beyond 2^32.
    #[must_use]
    pub fn vcpus(&self) -> Option<u32> {
        let parts = [self.dies, self.clusters, self.cores, self.threads];
        parts.iter().try_fold(self.sockets, |product, part| product.checked_mul(*part))
    }
}

/// `<cell>` of `<cpu><numa>`: a NUMA node of the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Its number.
    pub id: u32,
    /// Its vCPUs, as a set of their indexes; empty for one of memory alone.
    pub vcpus: CpuSet,
    /// Its memory in bytes, if given.
    pub bytes: Option<u64>,
}

/// `<memory>` of `<numatune>`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// `strict`, `preferred`, `interleave`, `restrictive`.
    pub mode: String,
    /// The host's nodes; `None` under `placement='auto'`.
    pub nodes: Option<Vec<NodeId>>,
}

impl Binding {
    /// True if pages come from the nodes or not at all.
    #[must_use]
    pub fn is_strict(&self) -> bool {
        is_strict(&self.mode)
    }
}

/// `<memnode>` of `<numatune>`: where the memory of one of the guest's cells comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Memnode {
    /// The guest's cell.
    pub cell: u32,
    /// As of [`Binding`].
    pub mode: String,
    /// The host's nodes.
    pub nodes: Vec<NodeId>,
}

impl Memnode {
    /// True if pages come from the nodes or not at all.
    #[must_use]
    pub fn is_strict(&self) -> bool {
        is_strict(&self.mode)
    }
}

/// `strict` is a policy of QEMU's memory (`MPOL_BIND`), `restrictive` the `cpuset.mems` of its
/// control groups: no page comes from elsewhere under either.
fn is_strict(mode: &str) -> bool {
    [STRICT, RESTRICTIVE].contains(&mode)
}

pub(crate) const STRICT: &str = "strict";
pub(crate) const RESTRICTIVE: &str = "restrictive";

/// What the guest's board can show, by the architecture of `<os><type arch=…>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Board {
    /// x86: sockets, dies, cores and threads. Also where the file names no architecture.
    X86,
    /// s390x: no threads.
    WithoutThreads,
    /// riscv64: libvirt starts no machine that has a `<cpu>`.
    WithoutCpu,
    /// Any other: sockets, cores and threads.
    Other,
}

/// A domain file, as far as placement cares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    /// Its name.
    pub name: String,
    /// `type` of `<domain>`: `kvm`, `qemu`, …
    pub kind: String,
    /// What its board can show.
    pub board: Board,
    /// Number of vCPUs (the most that it can have).
    pub vcpus: Placed<u32>,
    /// `cpuset` of `<vcpu>`: where threads without a pin of their own run.
    pub default: Option<Placed<CpuSet>>,
    /// Numbers of its iothreads, ascending.
    pub iothreads: Vec<u32>,
    /// `<vcpupin>`, `<emulatorpin>`, `<iothreadpin>` in the file's order.
    pub pins: Vec<Placed<(Target, CpuSet)>>,
    /// `<vcpusched>`, `<emulatorsched>`, `<iothreadsched>`, one entry per thread.
    pub schedulers: Vec<Placed<(Target, Policy)>>,
    /// `<topology>`.
    pub shape: Option<Placed<Shape>>,
    /// `<cell>`s of the guest.
    pub cells: Vec<Placed<Cell>>,
    /// `<memory>` of `<numatune>`.
    pub memory: Option<Placed<Binding>>,
    /// `<memnode>`s.
    pub memnodes: Vec<Placed<Memnode>>,
    /// `<memory>` of the domain in bytes, if given.
    pub memory_bytes: Option<u64>,
    /// Where that is written.
    pub memory_place: Place,
    /// Size of the huge pages of its memory in bytes, if given.
    pub page_bytes: Option<u64>,
    /// The strategy that the vCPUs are pinned by, where the file says so for what that costs.
    pub(crate) mark: Option<Mark>,
}

impl Domain {
    /// Reads a domain file, such as `virsh dumpxml` writes.
    ///
    /// # Errors
    /// [`DomainError`] with line and column: not well formed, a document type, another root
    /// than `<domain>`, a number or list that is none, half a pin, a thread pinned twice.
    pub fn read(xml: &str) -> Result<Self, DomainError> {
        read::domain(xml)
    }

    /// The pin of a target, its own or the default of `<vcpu cpuset=…>`.
    #[must_use]
    pub fn pin(&self, target: Target) -> Option<(&CpuSet, &Place)> {
        let own = self.pins.iter().find(|pin| pin.value.0 == target);
        match own {
            Some(pin) => Some((&pin.value.1, &pin.place)),
            None => self.default.as_ref().map(|default| (&default.value, &default.place)),
        }
    }

    /// The policy of a target, if the file gives one.
    #[must_use]
    pub fn policy(&self, target: Target) -> Option<Policy> {
        self.schedulers.iter().find(|entry| entry.value.0 == target).map(|entry| entry.value.1)
    }
}

pub(crate) use read::{bytes, error_at, is, page_bytes, parse, place, text_of};
pub(crate) use request::with_cpus;
