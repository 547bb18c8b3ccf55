//! Properties of a domain file other than placement, for the rules about them.
//!
//! Rules read the XML elements directly: libvirt defines the format
//! (<https://libvirt.org/formatdomain.html>), and a data model here would only repeat it.

use pinfold_model::{Severity, Vendor};
use roxmltree::Node;

use super::Diagnostic;
use super::lookup::{LintContext, is_real_time};
use super::text::Fault;
use pinfold_plan::domain_file::{Windows, place};

/// A domain file with properties for the rules.
pub(super) struct File<'d> {
    pub root: Node<'d, 'd>,
    pub view: &'d LintContext<'d, 'd>,
    pub windows: Windows,
    pub x86: bool,
    /// True if host devices are passed through (VFIO).
    pub vfio: bool,
    /// True if its vCPUs have a real-time policy.
    pub real_time: bool,
}

impl<'d> File<'d> {
    /// The properties of a file with this root element.
    pub fn new(view: &'d LintContext<'d, 'd>, root: Node<'d, 'd>) -> Self {
        let mut file = File {
            root,
            view,
            windows: Windows::from_root(root),
            x86: false,
            vfio: false,
            real_time: view.vcpus().any(|(_, pin)| is_real_time(pin.policy)),
        };
        file.x86 = is_x86(&file);
        file.vfio = passes_devices_through(&file);
        file
    }

    /// The element at a path of tags below `<domain>`.
    pub fn find(&self, path: &[&str]) -> Option<Node<'d, 'd>> {
        path.iter()
            .try_fold(self.root, |node, tag| node.children().find(|child| child.has_tag_name(*tag)))
    }

    /// The elements of one tag in the parent at a path.
    pub fn all(&self, path: &[&str], tag: &'static str) -> Vec<Node<'d, 'd>> {
        let parent = self.find(path);
        let children = parent.into_iter().flat_map(|parent| parent.children());
        children.filter(|child| child.has_tag_name(tag)).collect()
    }

    /// The `<timer>` with this name.
    pub fn timer(&self, name: &str) -> Option<Node<'d, 'd>> {
        self.all(&["clock"], "timer")
            .into_iter()
            .find(|timer| timer.attribute("name") == Some(name))
    }

    /// True if every vCPU has its own CPU.
    pub fn is_pinned(&self) -> bool {
        let vcpus = self.view.layout.vcpus as usize;
        vcpus > 0 && self.view.tight.len() == vcpus
    }

    /// The guest as the subject of a sentence about requirements of Windows.
    pub fn guest(&self) -> &'static str {
        match self.windows {
            Windows::Yes => "a Windows guest",
            Windows::Likely => "the guest, whose clock runs in local time as that of Windows,",
            Windows::No => "the guest",
        }
    }

    /// A diagnostic at these elements.
    pub fn diagnostic(
        &self,
        severity: Severity,
        fault: &dyn Fault,
        nodes: &[Node<'_, '_>],
    ) -> Diagnostic {
        let mut diagnostic = self.view.diagnostic(severity, fault);
        diagnostic.places = nodes.iter().map(|node| place(*node)).collect();
        diagnostic
    }
}

fn is_x86(file: &File<'_>) -> bool {
    let arch = file.find(&["os", "type"]).and_then(|kind| kind.attribute("arch"));
    match arch {
        Some(arch) => ["x86_64", "i686"].contains(&arch),
        // libvirt uses the host's architecture.
        None => Vendor::from_topology(file.view.lookup.topology) != Vendor::Unknown,
    }
}

fn passes_devices_through(file: &File<'_>) -> bool {
    file.find(&["devices"]).is_some_and(|devices| devices.children().any(|node| is_vfio(&node)))
}

fn is_vfio(node: &Node<'_, '_>) -> bool {
    let kind = node.attribute("type");
    match node.tag_name().name() {
        "hostdev" => {
            let driver = node.children().find(|child| child.has_tag_name("driver"));
            let xen = driver.and_then(|driver| driver.attribute("name")) == Some("xen");
            // Of mediated devices, only those on the PCI bus do arbitrary DMA.
            let mediated = kind == Some("mdev") && node.attribute("model") == Some("vfio-pci");
            // libvirt detaches such a function from the host but gives it to no guest.
            let unassigned = node.children().any(|child| {
                child.has_tag_name("address") && child.attribute("type") == Some("unassigned")
            });
            node.attribute("mode") == Some("subsystem")
                && !unassigned
                && !xen
                && (kind == Some("pci") || mediated)
        }
        "interface" => kind == Some("hostdev"),
        _ => false,
    }
}
