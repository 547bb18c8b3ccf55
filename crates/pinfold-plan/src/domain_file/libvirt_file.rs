//! The files that libvirt keeps about a domain: its definition, and the status of one that runs.
//!
//! ```xml
//! <domstatus state='running' reason='booted' pid='4242'>
//!   <monitor path='…/monitor.sock' type='unix'/>
//!   <domain type='kvm' id='1'>…</domain>
//! </domstatus>
//! ```

use pinfold_model::Tid;

use super::manager::Manager;
use super::read::{child, domain_element, error_at, parse};
use super::{Domain, DomainError};

/// A definition or a status file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibvirtFile {
    /// The domain.
    pub domain: Domain,
    /// Its UUID, if the file has it.
    pub uuid: Option<String>,
    /// Its process, in a status file.
    pub process: Option<Tid>,
    /// The program that wrote the definition, if it names one.
    pub manager: Option<Manager>,
}

impl LibvirtFile {
    /// Parses a file of `/etc/libvirt/qemu` or `/run/libvirt/qemu`. Lines are those of the file.
    ///
    /// # Errors
    /// As [`Domain::read`].
    pub fn read(xml: &str) -> Result<Self, DomainError> {
        let document = parse(xml)?;
        let root = document.root_element();
        let status = Some(root).filter(|root| root.has_tag_name("domstatus"));
        let element = match status {
            Some(status) => child(status, "domain")
                .ok_or_else(|| error_at(status, "<domstatus> has no <domain>"))?,
            None => root,
        };
        let process = status.and_then(|status| status.attribute("pid"));
        Ok(Self {
            domain: domain_element(element)?,
            uuid: child(element, "uuid")
                .and_then(|uuid| uuid.text())
                .map(|uuid| uuid.trim().to_owned()),
            process: process.and_then(|pid| pid.parse().ok()).map(Tid),
            manager: Manager::from_root(element).map(|(manager, _)| manager),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEB: &str = "<domain type='kvm'>\n<name>web</name>\n<vcpu>1</vcpu>\n<cputune>\n\
                       <vcpupin vcpu='0' cpuset='2'/>\n</cputune>\n</domain>\n";

    #[test]
    fn a_status_file_has_the_process_and_its_own_lines() {
        let defined = LibvirtFile::read(WEB).unwrap();
        assert_eq!((defined.process, defined.domain.pins[0].place.line), (None, Some(5)));
        let status = format!("<domstatus pid='42'>\n<taint flag='x'/>\n{WEB}</domstatus>\n");
        let running = LibvirtFile::read(&status).unwrap();
        assert_eq!((running.process, running.domain.pins[0].place.line), (Some(Tid(42)), Some(7)));
        assert_eq!(running.domain.name, "web");
        assert_eq!(running.manager, None);
    }

    #[test]
    fn a_status_without_a_domain_is_refused() {
        let error = LibvirtFile::read("<domstatus pid='42'/>").unwrap_err();
        assert!(error.to_string().contains("no <domain>"), "{error}");
        assert!(LibvirtFile::read("<network/>").is_err());
    }

    /// Nova is known by its element, not by text that any description may have.
    #[test]
    fn the_manager_is_known_by_its_element() {
        let namespace = "http://openstack.org/xmlns/libvirt/nova/1.1";
        let own = format!("<metadata><n:instance xmlns:n='{namespace}'/></metadata>");
        assert_eq!(manager_with(&own), Some(Manager::Nova));
        assert_eq!(manager_with(&format!("<description>{namespace}</description>")), None);
    }

    fn manager_with(text: &str) -> Option<Manager> {
        LibvirtFile::read(&WEB.replace("<vcpu>", &format!("{text}<vcpu>"))).unwrap().manager
    }
}
