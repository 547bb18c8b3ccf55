//! The guest topology and the CPUs of the vCPUs.

use pinfold_model::text::count_noun;
use pinfold_model::{CoreId, CpuSet};

use super::{Fault, FaultText};
use crate::descriptions::{cpus, describe_vcpus};

/// Where a vCPU is.
pub(crate) struct Spot<'a> {
    pub vcpu: u32,
    /// Its mask, if it has one.
    pub pus: Option<&'a CpuSet>,
    /// The core, if it stays on one.
    pub core: Option<CoreId>,
}

impl Spot<'_> {
    fn text(&self) -> String {
        let core = self.core.map_or("no one core".to_owned(), |core| format!("core {core}"));
        let pus = self.pus.map_or("any CPU".to_owned(), cpus);
        format!("vCPU {} is on {pus} ({core})", self.vcpu)
    }
}

pub(crate) enum GuestFault<'a> {
    /// The topology has another number of vCPUs than the machine.
    Count { product: u64, vcpus: u32 },
    /// Guest siblings that are no host siblings: the first ones, and the number of such cores.
    SiblingsLie { first: Vec<Spot<'a>>, cores: usize },
    /// Host siblings that the guest takes for cores: those of the first core, and the number of
    /// such cores.
    SiblingsHidden { vcpus: &'a [u32], core: CoreId, cores: usize },
    /// More sockets than there can be.
    Sockets { sockets: u32, limit: SocketLimit, written: bool },
}

/// What limits the guest's sockets.
pub(crate) enum SocketLimit {
    /// The number of packages in which its pinned vCPUs are.
    Vcpus(usize),
    /// The number of packages of the host.
    Host(usize),
    /// The number of sockets that Windows' desktop editions use.
    Windows(u32),
}

impl SocketLimit {
    fn text(&self) -> String {
        match self {
            Self::Vcpus(packages) => {
                format!("its vCPUs are in {} of the host", count_noun(*packages, "package"))
            }
            Self::Host(packages) => format!("the host has {}", count_noun(*packages, "package")),
            Self::Windows(most) => format!("Windows' desktop editions use {most} at most"),
        }
    }
}

impl Fault for GuestFault<'_> {
    fn words(&self) -> FaultText {
        match self {
            GuestFault::Count { product, vcpus } => FaultText::new(
                "topology-count",
                format!("the topology has {product} vCPUs, the machine {vcpus}"),
                "libvirt refuses to define or start it",
            ),
            GuestFault::SiblingsLie { first, cores } => {
                let rest = match cores {
                    1 => String::new(),
                    count => format!("; the same for {} more of the guest's cores", count - 1),
                };
                let example: Vec<String> = first.iter().map(Spot::text).collect();
                FaultText::new(
                    "guest-siblings-lie",
                    format!(
                        "the guest treats {} as threads of one core, but {}{rest}",
                        describe_vcpus(first.iter().map(|spot| spot.vcpu)),
                        example.join(", ")
                    ),
                    "the guest's scheduler balances over the cores that it sees: it puts two busy \
                     tasks on one real core while another is idle, and relies on shared caches \
                     that do not exist",
                )
            }
            GuestFault::SiblingsHidden { vcpus, core, cores } => {
                let rest = match cores {
                    1 => String::new(),
                    count => format!(", and {} likewise", count_noun(count - 1, "more core")),
                };
                let who = describe_vcpus(vcpus.iter().copied());
                FaultText::new(
                    "guest-siblings-hidden",
                    format!(
                        "{who} are on siblings of core {core}{rest}, but the guest treats each as \
                         a separate core",
                    ),
                    "the guest's scheduler cannot know which of its CPUs slow each other down: with half \
                     of them busy, two tasks share a core while another core is idle",
                )
            }
            GuestFault::Sockets { sockets, limit, written } => {
                let unwritten = if *written {
                    ""
                } else {
                    "without <topology> each vCPU is a separate socket: "
                };
                FaultText::new(
                    "guest-sockets-lie",
                    format!("the guest is shown {sockets} sockets, {}", limit.text()),
                    format!(
                        "{unwritten}the guest assumes that its CPUs share no L3 and does not keep \
                         related tasks together; Windows' desktop editions use at most two \
                         sockets and leave the other vCPUs idle"
                    ),
                )
            }
        }
    }
}
