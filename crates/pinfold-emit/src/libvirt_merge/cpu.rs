//! `<cpu>` of a merged file: the topology, features for threads and caches, the cells.
//!
//! The CPU model is the file's. A missing element is written with its topology only, which libvirt
//! treats as its default model with that topology. Levels that a board lacks are not written: dies
//! exist only on x86, threads not on s390x, and libvirt starts no riscv64 machine with a `<cpu>`
//! ("this function is not supported by the connection driver", 9.0).

use pinfold_model::{GuestTopology, PuId, Topology, Vendor, VnodePlan};
use roxmltree::Node;

use super::super::libvirt::{PASSTHROUGH, TOPOEXT, cell_lines};
use super::{Cells, Merge, block, child};
use pinfold_plan::domain_file::{Shape, TopologyLevels};
use pinfold_plan::guest_cache::{Caches, caches};

impl<'a, 'x> Merge<'a, 'x> {
    pub(super) fn cpu(
        &mut self,
        vnode: &VnodePlan,
        topology: &Topology,
        cells: &Cells,
        leaves_reserve: bool,
    ) {
        let Some(guest) = &vnode.guest else {
            return;
        };
        let (vendor, caches) = (Vendor::from_topology(topology), caches(vnode, topology));
        let mut shape = self.plan_shape(guest, vendor, caches);
        if leaves_reserve {
            // The topology holds the vCPUs that can be added later too.
            shape = self.with_reserve(shape);
        }
        let line = self.topology_line(shape);
        let Some(node) = child(self.root, "cpu") else {
            self.new_cpu(line, cells);
            return;
        };
        let kvm = self.domain.kind == "kvm";
        let needs_topoext = shape.threads > 1 && vendor == Vendor::Amd && kvm;
        let shows_host = caches.as_host && vendor != Vendor::Unknown && kvm;
        let flags = self.flags(node, caches, shows_host, needs_topoext);
        let mut extra = flags;
        // Existing cells are replaced in their element; new ones are written with the topology.
        if !cells.is_empty() {
            match child(node, "numa") {
                Some(numa) => {
                    let new = cell_lines(&cells.cells, &cells.sizes);
                    self.edits.exchange(numa, |child| child.has_tag_name("cell"), &new);
                }
                None => extra.extend(numa_block(cells)),
            }
        }
        let same = self.domain.shape.as_ref().is_some_and(|known| known.value == shape);
        let mut lines = match (child(node, "topology"), same) {
            (None, _) => vec![line],
            (Some(_), true) if extra.is_empty() => return,
            (Some(old), true) => vec![super::source(old).to_owned()],
            (Some(old), false) => {
                vec![self.exchange(old, "the guest's topology follows the pins"), line]
            }
        };
        lines.extend(extra);
        self.edits.exchange(node, |child| child.has_tag_name("topology"), &lines);
    }

    /// The plan's guest topology, limited to the levels of the board; the file's clusters stay if
    /// they divide it.
    fn plan_shape(&mut self, guest: &GuestTopology, vendor: Vendor, caches: Caches) -> Shape {
        let board = self.domain.board;
        let (mut cores, mut threads) = (guest.cores, guest.threads);
        if board == TopologyLevels::WithoutThreads && threads > 1 {
            self.notes.push(
                "the machine type of the file shows no threads: the guest treats each vCPU as a \
                 core"
                    .to_owned(),
            );
            (cores, threads) = (cores * threads, 1);
        }
        // A file without an architecture is for the host's.
        let kind = child(self.root, "os").and_then(|os| child(os, "type"));
        let is_x86 = board == TopologyLevels::X86
            && (vendor != Vendor::Unknown || kind.is_some_and(|kind| kind.has_attribute("arch")));
        let dies = if is_x86 { caches.dies } else { 1 };
        let shape =
            Shape { sockets: guest.sockets, dies, clusters: 1, cores: cores / dies, threads };
        let shape = self.limit(shape);
        let cores = shape.cores;
        let wished = self.domain.shape.as_ref().map_or(1, |known| known.value.clusters);
        let clusters = if cores.is_multiple_of(wished.max(1)) { wished.max(1) } else { 1 };
        if clusters != wished {
            self.notes.push(format!(
                "clusters='{wished}' of the file does not divide {cores} cores, and was removed"
            ));
        }
        Shape { clusters, cores: cores / clusters, ..shape }
    }

    /// A topology with no more sockets than the guest's system uses: the others become dies of one
    /// socket, or its cores where the board has no dies.
    fn limit(&mut self, shape: Shape) -> Shape {
        let sockets = shape.sockets;
        let Some(most) = self.domain.most_sockets.filter(|most| sockets > *most) else {
            return shape;
        };
        self.notes.push(format!(
            "Windows' desktop editions use {most} sockets at most: the guest is shown one socket \
             instead of {sockets}"
        ));
        match self.domain.board {
            TopologyLevels::X86 => Shape { sockets: 1, dies: shape.dies * sockets, ..shape },
            TopologyLevels::WithoutThreads | TopologyLevels::WithoutCpu | TopologyLevels::Other => {
                Shape { sockets: 1, cores: shape.cores * sockets, ..shape }
            }
        }
    }

    /// The file's topology, or one socket, for all vCPUs of the file; with threads only if each of
    /// its cores has all of its vCPUs or none.
    fn with_reserve(&self, planned: Shape) -> Shape {
        let all = self.domain.vcpus.value;
        let cores: Vec<Vec<bool>> = (0..all)
            .map(|vcpu| self.domain.enabled_vcpus.contains(PuId(vcpu)))
            .collect::<Vec<bool>>()
            .chunks(planned.threads.max(1) as usize)
            .map(<[bool]>::to_vec)
            .collect();
        let are_whole = all.is_multiple_of(planned.threads)
            && cores.iter().all(|core| core.iter().all(|there| *there == core[0]));
        let threads = if are_whole { planned.threads } else { 1 };
        let written = self.domain.shape.as_ref().map(|shape| shape.value);
        let one_socket = Shape { sockets: 1, dies: 1, clusters: 1, cores: all / threads, threads };
        written
            .filter(|shape| shape.vcpus() == Some(all) && shape.threads == threads)
            .unwrap_or(one_socket)
    }

    fn topology_line(&self, shape: Shape) -> String {
        let Shape { sockets, dies, clusters, cores, threads } = shape;
        let dies = match self.domain.board {
            TopologyLevels::X86 => format!(" dies='{dies}'"),
            TopologyLevels::WithoutThreads | TopologyLevels::WithoutCpu | TopologyLevels::Other => {
                String::new()
            }
        };
        let clusters = if clusters > 1 { format!(" clusters='{clusters}'") } else { String::new() };
        format!(
            "<topology sockets='{sockets}'{dies}{clusters} cores='{cores}' threads='{threads}'/>"
        )
    }

    fn new_cpu(&mut self, line: String, cells: &Cells) {
        if self.domain.board == TopologyLevels::WithoutCpu {
            self.notes.push(
                "libvirt starts no machine of this architecture that has a <cpu>: the guest is shown \
                 a socket for each vCPU"
                    .to_owned(),
            );
            return;
        }
        let mut lines = vec![line];
        lines.extend(numa_block(cells));
        self.after_vcpu(&block("cpu", &lines));
    }

    /// Elements that `<cpu>` needs in addition to its topology, if it passes the host's model
    /// through.
    fn flags(
        &mut self,
        node: Node<'a, 'x>,
        caches: Caches,
        shows_host: bool,
        needs_topoext: bool,
    ) -> Vec<String> {
        let mut lines = Vec::new();
        let passthrough = node.attribute("mode") == Some("host-passthrough");
        let cache = child(node, "cache");
        if shows_host && passthrough && cache.is_none() {
            lines.push(PASSTHROUGH.to_owned());
        }
        let shown = cache.is_some_and(|cache| cache.attribute("mode") == Some("passthrough"));
        if shown && !caches.as_host {
            self.notes.push(
                "<cache mode='passthrough'/> of the file stays, although these pins are not the \
                 host's cores and L3 caches: the guest is shown sharing that does not exist"
                    .to_owned(),
            );
        }
        if needs_topoext {
            lines.extend(self.topoext(node));
        }
        lines
    }

    /// The feature that makes QEMU show threads to a guest with an AMD CPU model. QEMU's newer EPYC
    /// models include it; `-cpu host` does not.
    fn topoext(&mut self, node: Node<'a, 'x>) -> Option<String> {
        let mut features = node.children().filter(|child| child.has_tag_name("feature"));
        let known = features.find(|feature| feature.attribute("name") == Some("topoext"));
        let model = child(node, "model").and_then(|model| model.text()).unwrap_or_default().trim();
        match (known, node.attribute("mode")) {
            (Some(old), _) if matches!(old.attribute("policy"), Some("disable" | "forbid")) => {
                self.swap(old, TOPOEXT.to_owned(), "the guest is shown threads");
                None
            }
            (Some(_), _) => None,
            (None, Some("host-passthrough" | "host-model" | "maximum")) => Some(TOPOEXT.to_owned()),
            // libvirt accepts no feature without a model.
            (None, _) if model.is_empty() => {
                self.notes.push(
                    "<cpu> names no model, and QEMU's default one shows the guest no threads on an AMD \
                     host: mode='host-passthrough' or a model of EPYC does"
                        .to_owned(),
                );
                None
            }
            (None, _) => AMD.iter().any(|of| model.starts_with(of)).then(|| TOPOEXT.to_owned()),
        }
    }
}

/// Name prefixes of QEMU's AMD CPU models; QEMU shows threads with all other models.
const AMD: &[&str] = &["EPYC", "Opteron", "Dhyana", "phenom", "athlon", "qemu"];

fn numa_block(cells: &Cells) -> Vec<String> {
    if cells.is_empty() {
        Vec::new()
    } else {
        block("numa", &cell_lines(&cells.cells, &cells.sizes))
    }
}
