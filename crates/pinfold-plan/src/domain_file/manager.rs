//! The program that writes a domain file, by its elements in `<metadata>`.
//!
//! Such a program writes the file anew at each start of the machine, so that changes of it are
//! lost.

use roxmltree::Node;

/// A program that writes domain files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manager {
    /// OpenStack Nova.
    Nova,
    /// KubeVirt.
    KubeVirt,
    /// oVirt.
    Ovirt,
    /// Proxmox VE.
    Proxmox,
}

impl Manager {
    /// Each with a part of the namespaces of its elements.
    const NAMESPACES: [(Self, &str); 4] = [
        (Self::Nova, "openstack.org/xmlns/libvirt/nova"),
        (Self::KubeVirt, "kubevirt.io"),
        (Self::Ovirt, "ovirt.org/vm"),
        (Self::Proxmox, "proxmox.com"),
    ];

    /// The program that wrote a file with this root element, if the file names one, and the element
    /// that does.
    pub fn from_root<'a, 'input>(root: Node<'a, 'input>) -> Option<(Self, Node<'a, 'input>)> {
        let metadata = root.children().filter(|child| super::is_libvirt_element(child, "metadata"));
        let mut elements = metadata.flat_map(|metadata| metadata.children());
        elements.find_map(|element| {
            let namespace = element.tag_name().namespace()?;
            let known = Self::NAMESPACES.iter().find(|(_, part)| namespace.contains(part));
            known.map(|(manager, _)| (*manager, element))
        })
    }

    /// Its name in messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Nova => "OpenStack Nova",
            Self::KubeVirt => "KubeVirt",
            Self::Ovirt => "oVirt",
            Self::Proxmox => "Proxmox VE",
        }
    }

    /// What to change instead of the file.
    #[must_use]
    pub fn with_replacement(self) -> &'static str {
        match self {
            Self::Nova => {
                "set the extra specs of the flavor and the CPU sets in nova.conf, which \
                 `pinfold plan --emit nova` writes"
            }
            Self::KubeVirt => {
                "change the VirtualMachine; `pinfold plan --emit kubevirt` writes the part"
            }
            Self::Ovirt => {
                "set the CPU pinning of the machine in the engine (Edit, Resource Allocation), as \
                 VCPU#CPU pairs"
            }
            Self::Proxmox => {
                "set the options of the machine with qm, as the script of \
                 `pinfold plan --emit proxmox` does"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain_file::parse;

    #[test]
    fn the_writer_is_known_by_its_metadata() {
        let nova = "http://openstack.org/xmlns/libvirt/nova/1.1";
        check(&format!("<nova:instance xmlns:nova='{nova}'/>"), Some(Manager::Nova));
        check("<kubevirt xmlns='http://kubevirt.io'><uid/></kubevirt>", Some(Manager::KubeVirt));
        check("<o:vm xmlns:o='http://ovirt.org/vm/1.0'/>", Some(Manager::Ovirt));
        check("<o:qos xmlns:o='http://ovirt.org/vm/tune/1.0'/>", Some(Manager::Ovirt));
        check("<p:vm xmlns:p='https://pve.proxmox.com/xmlns'/>", Some(Manager::Proxmox));
        check("<l:libosinfo xmlns:l='http://libosinfo.org/xmlns/libvirt/domain/1.0'/>", None);
    }

    fn check(metadata: &str, expected: Option<Manager>) {
        let xml = format!("<domain><metadata>\n{metadata}</metadata></domain>");
        let document = parse(&xml).expect("a file");
        let found = Manager::from_root(document.root_element());
        assert_eq!(found.map(|(manager, _)| manager), expected, "{xml}");
    }
}
