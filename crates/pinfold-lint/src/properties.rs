//! Properties of a domain file other than placement, for the rules about them.
//!
//! Rules read the XML elements directly: libvirt defines the format
//! (<https://libvirt.org/formatdomain.html>), and a data model here would only repeat it.

use pinfold_model::{Severity, Vendor};
use roxmltree::Node;

use super::Diagnostic;
use super::lookup::{LintContext, is_real_time};
use super::text::Fault;
use pinfold_plan::domain_file::place;

/// Certainty that the guest runs Windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Windows {
    /// No sign of Windows.
    No,
    /// Its clock runs in local time, as Windows expects.
    Likely,
    /// The file names Windows, or has settings that only Windows uses.
    Yes,
}

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
    pub fn of(view: &'d LintContext<'d, 'd>, root: Node<'d, 'd>) -> Self {
        let mut file = File {
            root,
            view,
            windows: Windows::No,
            x86: false,
            vfio: false,
            real_time: view.vcpus().any(|(_, pin)| is_real_time(pin.policy)),
        };
        file.windows = windows(&file);
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

    /// A flaw at these elements.
    pub fn flaw(
        &self,
        severity: Severity,
        fault: &dyn Fault,
        nodes: &[Node<'_, '_>],
    ) -> Diagnostic {
        let mut flaw = self.view.flaw(severity, fault);
        flaw.places = nodes.iter().map(|node| place(*node)).collect();
        flaw
    }
}

fn windows(file: &File<'_>) -> Windows {
    let systems = file.root.descendants().filter(|node| {
        node.has_tag_name("os")
            && node.tag_name().namespace().is_some_and(|name| name.contains("libosinfo"))
    });
    let ids: Vec<&str> = systems.filter_map(|node| node.attribute("id")).collect();
    let hyperv = file.find(&["features", "hyperv"]);
    let enlightened = hyperv.is_some_and(|hyperv| {
        let on = |node: Node<'_, '_>| node.attribute("state") == Some("on");
        hyperv.attribute("mode") == Some("passthrough") || hyperv.children().any(on)
    });
    let clock = file.timer("hypervclock").map(|timer| timer.attribute("present") != Some("no"));
    let local = file.find(&["clock"]).and_then(|clock| clock.attribute("offset"));
    match (ids.first(), local == Some("localtime")) {
        (Some(id), _) if id.contains("microsoft.com/") => Windows::Yes,
        (Some(_), _) => Windows::No,
        (None, _) if enlightened || clock == Some(true) => Windows::Yes,
        // Both signs together: a Windows guest whose Hyper-V clock was disabled.
        (None, true) if clock == Some(false) => Windows::Yes,
        (None, true) => Windows::Likely,
        (None, false) => Windows::No,
    }
}

fn is_x86(file: &File<'_>) -> bool {
    let arch = file.find(&["os", "type"]).and_then(|kind| kind.attribute("arch"));
    match arch {
        Some(arch) => ["x86_64", "i686"].contains(&arch),
        // libvirt uses the host's architecture.
        None => Vendor::of(file.view.lookup.topology) != Vendor::Unknown,
    }
}

fn passes_devices_through(file: &File<'_>) -> bool {
    let is_vfio = |node: &Node<'_, '_>| {
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
    };
    file.find(&["devices"]).is_some_and(|devices| devices.children().any(|node| is_vfio(&node)))
}
