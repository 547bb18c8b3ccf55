//! libvirt's pins, read from the domain's XML.
//!
//! ```xml
//! <vcpu placement='static' cpuset='0-3'>2</vcpu>
//! <cputune>
//!   <vcpupin vcpu='1' cpuset='1'/> <emulatorpin cpuset='0'/> <iothreadpin iothread='1' cpuset='0'/>
//! </cputune>
//! ```
//! A thread without its own pin follows `cpuset` of `<vcpu>`; without that it may run anywhere. So
//! a partial `<cputune>` is valid.

use std::collections::BTreeMap;
use std::fmt;

use pinfold_model::{CpuSet, MAX_PUS, Role};
use roxmltree::{Document, Node, ParsingOptions};

use super::LibvirtError;

/// Maximum number of XML nodes, more than any domain has; limits the cost of a malicious file.
const MAX_NODES: u32 = 200_000;

/// Threads that libvirt can pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PinTarget {
    /// One vCPU.
    Vcpu(u32),
    /// Every thread that is neither vCPU nor iothread.
    Emulator,
    /// One iothread by libvirt's number; QEMU's ID is `iothreadN`.
    Iothread(u32),
}

impl fmt::Display for PinTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PinTarget::Vcpu(index) => write!(f, "vcpu({index})"),
            PinTarget::Emulator => f.write_str("emulator"),
            PinTarget::Iothread(number) => write!(f, "iothread({number})"),
        }
    }
}

impl PinTarget {
    /// The target as a setting's key: virsh's subcommand and its argument.
    #[must_use]
    pub fn key(self) -> String {
        match self {
            PinTarget::Vcpu(index) => format!("vcpupin {index}"),
            PinTarget::Emulator => "emulatorpin".to_owned(),
            PinTarget::Iothread(number) => format!("iothreadpin {number}"),
        }
    }

    /// Parses a setting's key; `None` if it is no pin.
    pub fn from_key(key: &str) -> Option<Self> {
        match key.split_once(' ') {
            None if key == "emulatorpin" => Some(PinTarget::Emulator),
            Some(("vcpupin", index)) => index.parse().ok().map(PinTarget::Vcpu),
            Some(("iothreadpin", number)) => number.parse().ok().map(PinTarget::Iothread),
            Some(_) | None => None,
        }
    }

    /// The pin target of a role.
    ///
    /// # Errors
    /// [`LibvirtError::NoSuchPin`] for roles that libvirt treats as part of the emulator, and for
    /// iothreads that libvirt did not create.
    pub fn from_role(role: &Role) -> Result<Self, LibvirtError> {
        let number = role.iothread().and_then(|id| id.strip_prefix("iothread"));
        let iothread = number.and_then(|number| number.parse().ok()).map(PinTarget::Iothread);
        let emulator = (*role == Role::Emulator).then_some(PinTarget::Emulator);
        role.vcpu()
            .map(PinTarget::Vcpu)
            .or(iothread)
            .or(emulator)
            .ok_or_else(|| LibvirtError::NoSuchPin { role: role.to_string() })
    }
}

/// The pins of a domain, and other placement data of its XML.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pins {
    /// True if the XML describes a running domain (which has an ID).
    pub running: bool,
    /// `mode` and `nodeset` of `<numatune><memory>`, if nodes are named.
    pub memory: Option<(String, CpuSet)>,
    /// `cpuset` of `<vcpu>`: the CPUs of threads without their own pin.
    pub default: Option<CpuSet>,
    /// Pins by target.
    pub own: BTreeMap<PinTarget, CpuSet>,
}

impl Pins {
    /// Parses the pins of a domain's XML.
    ///
    /// # Errors
    /// [`LibvirtError::Output`] if it is not well formed, has a document type (refused, because
    /// entities could grow without limit), or contains an invalid list of CPUs.
    pub fn from_xml(xml: &str) -> Result<Self, LibvirtError> {
        let document = parse(xml)?;
        let domain = domain_of(&document);
        let child = |name: &str| domain.children().find(|node| node.has_tag_name(name));
        let memory = child("numatune").and_then(|tune| element(tune, "memory"));
        let nodes = memory.and_then(|memory| Some((memory, memory.attribute("nodeset")?)));
        let mut pins = Pins {
            running: domain.attribute("id").is_some(),
            memory: nodes.map(|(memory, text)| Ok((mode(memory), list(text)?))).transpose()?,
            default: child("vcpu")
                .and_then(|vcpu| vcpu.attribute("cpuset"))
                .map(list)
                .transpose()?,
            own: BTreeMap::new(),
        };
        for node in child("cputune").iter().flat_map(|tune| tune.children()) {
            let Some(target) = target(node)? else { continue };
            pins.own.insert(target, list(attribute(node, "cpuset")?)?);
        }
        Ok(pins)
    }

    /// The CPUs of a target; `None` if it has no restriction.
    pub fn cpus_for(&self, target: PinTarget) -> Option<&CpuSet> {
        self.own.get(&target).or(self.default.as_ref())
    }
}

fn mode(memory: Node<'_, '_>) -> String {
    memory.attribute("mode").unwrap_or("strict").to_owned()
}

/// The XML without the element of a setting, otherwise unchanged byte for byte. The parent is
/// removed too if it contains nothing else. `None` if there is no such element.
///
/// # Errors
/// As [`Pins::from_xml`].
pub(super) fn remove_pin(xml: &str, key: &str) -> Result<Option<String>, LibvirtError> {
    let document = parse(xml)?;
    let domain = document.root_element();
    let parent = if key == NUMATUNE { "numatune" } else { "cputune" };
    let Some(parent) = element(domain, parent) else { return Ok(None) };
    let mut found = None;
    for node in parent.children().filter(Node::is_element) {
        let is_it = match PinTarget::from_key(key) {
            Some(wanted) => target(node)? == Some(wanted),
            None => node.has_tag_name("memory"),
        };
        if is_it {
            found = Some(node);
        }
    }
    let Some(found) = found else { return Ok(None) };
    let others = parent.children().any(|node| node.is_element() && node != found);
    let range = if others { found.range() } else { parent.range() };
    Ok(Some(format!("{}{}", &xml[..range.start], &xml[range.end..])))
}

/// Key of the setting for the nodes of a domain's memory.
pub const NUMATUNE: &str = "numatune";

/// Name and UUID of a domain; empty if missing in the XML.
pub(super) fn identity(xml: &str) -> Result<(String, String), LibvirtError> {
    let document = parse(xml)?;
    let domain = domain_of(&document);
    let text = |name: &str| {
        let text = element(domain, name).and_then(|node| node.text());
        text.unwrap_or_default().to_owned()
    };
    Ok((text("name"), text("uuid").trim().to_owned()))
}

fn parse(xml: &str) -> Result<Document<'_>, LibvirtError> {
    let options = ParsingOptions { allow_dtd: false, nodes_limit: MAX_NODES, ..Default::default() };
    Document::parse_with_options(xml, options).map_err(wrong)
}

/// The `<domain>`; in a file of the daemon's own it is inside of `<domstatus>`.
fn domain_of<'a, 'i>(document: &'a Document<'i>) -> Node<'a, 'i> {
    let root = document.root_element();
    if root.has_tag_name("domstatus") { element(root, "domain").unwrap_or(root) } else { root }
}

fn element<'a, 'i>(parent: Node<'a, 'i>, name: &str) -> Option<Node<'a, 'i>> {
    parent.children().find(|node| node.has_tag_name(name))
}

fn target(node: Node<'_, '_>) -> Result<Option<PinTarget>, LibvirtError> {
    Ok(match node.tag_name().name() {
        "vcpupin" => {
            let index = number(node, "vcpu")?;
            if index >= MAX_PUS {
                return Err(wrong(format!("vcpu=\"{index}\" is not the number of a vCPU")));
            }
            Some(PinTarget::Vcpu(index))
        }
        "emulatorpin" => Some(PinTarget::Emulator),
        "iothreadpin" => Some(PinTarget::Iothread(number(node, "iothread")?)),
        _ => None,
    })
}

fn attribute<'a>(node: Node<'a, '_>, name: &str) -> Result<&'a str, LibvirtError> {
    node.attribute(name).ok_or_else(|| wrong(format!("<{}> has no {name}", node.tag_name().name())))
}

fn number(node: Node<'_, '_>, name: &str) -> Result<u32, LibvirtError> {
    let text = attribute(node, name)?;
    text.parse().map_err(|_| wrong(format!("{name}={text:?} is not a number")))
}

fn list(text: &str) -> Result<CpuSet, LibvirtError> {
    CpuSet::parse_list(text).map_err(wrong)
}

fn wrong(why: impl fmt::Display) -> LibvirtError {
    LibvirtError::Output { command: "dumpxml".to_owned(), why: why.to_string() }
}
