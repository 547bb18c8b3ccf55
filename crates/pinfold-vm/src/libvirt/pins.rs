//! Pins as libvirt keeps them: read from the domain's XML, changed by `virsh … --live`.
//!
//! ```xml
//! <vcpu placement='static' cpuset='0-3'>2</vcpu>
//! <cputune>
//!   <vcpupin vcpu='1' cpuset='1'/> <emulatorpin cpuset='0'/> <iothreadpin iothread='1' cpuset='0'/>
//! </cputune>
//! ```
//! A thread without a pin of its own follows `cpuset` of `<vcpu>`, else it may run anywhere.
//! libvirt cannot take a pin away again, only set it to all PUs (`r`), which has the same
//! effect and is what undoing a first pin comes to.

use std::collections::BTreeMap;
use std::fmt;

use pinfold_model::{CpuSet, Role};
use roxmltree::{Document, Node, ParsingOptions};

use super::{Domain, Libvirt};
use crate::{LibvirtError, VmError};

/// More nodes than any domain has; a bound for what a hostile file may cost.
const MAX_NODES: u32 = 200_000;

/// What libvirt can pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PinTarget {
    /// One vCPU.
    Vcpu(u32),
    /// Every thread that is neither vCPU nor iothread.
    Emulator,
    /// One iothread by libvirt's number; QEMU calls it `iothreadN`.
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
    /// What libvirt calls a role.
    ///
    /// # Errors
    /// [`LibvirtError::NoSuchPin`] for roles that libvirt does not tell apart from the emulator,
    /// and for iothreads that it did not make.
    pub fn of(role: &Role) -> Result<Self, LibvirtError> {
        match role {
            Role::Vcpu(index) => Some(PinTarget::Vcpu(*index)),
            Role::Emulator => Some(PinTarget::Emulator),
            Role::Iothread(id) => id
                .strip_prefix("iothread")
                .and_then(|number| number.parse().ok())
                .map(PinTarget::Iothread),
            Role::Vhost(_) | Role::Worker | Role::Task => None,
        }
        .ok_or_else(|| LibvirtError::NoSuchPin { role: role.to_string() })
    }
}

/// The pins of a domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pins {
    /// `cpuset` of `<vcpu>`: where threads without a pin of their own may run.
    pub default: Option<CpuSet>,
    /// Pins of single targets.
    pub own: BTreeMap<PinTarget, CpuSet>,
}

impl Pins {
    /// Reads the pins out of a domain's XML.
    ///
    /// # Errors
    /// [`LibvirtError::Output`] if it is not well formed, has a document type (refused: entities
    /// could grow without bound), or holds a list that is not one of PUs.
    pub fn from_xml(xml: &str) -> Result<Self, LibvirtError> {
        let options =
            ParsingOptions { allow_dtd: false, nodes_limit: MAX_NODES, ..Default::default() };
        let document = Document::parse_with_options(xml, options).map_err(wrong)?;
        let domain = document.root_element();
        let child = |name: &str| domain.children().find(|node| node.has_tag_name(name));
        let mut pins = Pins {
            default: child("vcpu")
                .and_then(|vcpu| vcpu.attribute("cpuset"))
                .map(list)
                .transpose()?,
            own: BTreeMap::new(),
        };
        for node in child("cputune").iter().flat_map(|tune| tune.children()) {
            let target = match node.tag_name().name() {
                "vcpupin" => PinTarget::Vcpu(number(node, "vcpu")?),
                "emulatorpin" => PinTarget::Emulator,
                "iothreadpin" => PinTarget::Iothread(number(node, "iothread")?),
                _ => continue,
            };
            pins.own.insert(target, list(attribute(node, "cpuset")?)?);
        }
        Ok(pins)
    }

    /// Where a target may run; `None` if nothing binds it.
    #[must_use]
    pub fn of(&self, target: PinTarget) -> Option<&CpuSet> {
        self.own.get(&target).or(self.default.as_ref())
    }
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

/// One pin to be moved, with what it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinChange {
    /// What is pinned.
    pub target: PinTarget,
    /// Where it may run now; `None` if nothing binds it.
    pub before: Option<CpuSet>,
    /// Where it shall run.
    pub after: CpuSet,
}

impl fmt::Display for PinChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pin {} to {} through libvirt", self.target, self.after)
    }
}

impl Libvirt {
    /// The pins of a running domain.
    ///
    /// # Errors
    /// That libvirt failed, or [`LibvirtError::Output`].
    pub fn pins(&self, domain: &Domain) -> Result<Pins, VmError> {
        Ok(Pins::from_xml(&self.virsh("dumpxml", &[("domain", &domain.uuid)])?)?)
    }

    /// The changes that give each role its PUs, with the values that they replace; roles that
    /// have them already give none. Nothing is changed yet.
    ///
    /// # Errors
    /// [`LibvirtError::NoSuchPin`], or as [`Libvirt::pins`].
    pub fn pin_changes(
        &self,
        domain: &Domain,
        wanted: &[(Role, CpuSet)],
    ) -> Result<Vec<PinChange>, VmError> {
        let pins = self.pins(domain)?;
        let mut changes = Vec::new();
        for (role, pus) in wanted {
            let target = PinTarget::of(role)?;
            let before = pins.of(target).cloned();
            if before.as_ref() != Some(pus) {
                changes.push(PinChange { target, before, after: pus.clone() });
            }
        }
        Ok(changes)
    }

    /// Makes one change and reads it back.
    ///
    /// # Errors
    /// [`LibvirtError::PinNotKept`] if libvirt then reports another list, or that libvirt failed.
    pub fn set_pin(&self, domain: &Domain, change: &PinChange) -> Result<(), VmError> {
        self.pin(domain, change.target, &change.after.to_string())?;
        let pins = self.pins(domain)?;
        match pins.own.get(&change.target) {
            Some(found) if *found == change.after => Ok(()),
            found => Err(LibvirtError::PinNotKept {
                role: change.target.to_string(),
                asked: change.after.to_string(),
                found: found.map_or("none".to_owned(), ToString::to_string),
            }
            .into()),
        }
    }

    /// Takes one change back.
    ///
    /// # Errors
    /// That libvirt failed.
    pub fn undo_pin(&self, domain: &Domain, change: &PinChange) -> Result<(), VmError> {
        // "r" is virsh's word for all PUs of the host.
        let list = change.before.as_ref().map_or("r".to_owned(), ToString::to_string);
        self.pin(domain, change.target, &list)
    }

    fn pin(&self, domain: &Domain, target: PinTarget, list: &str) -> Result<(), VmError> {
        let number;
        let (command, which) = match target {
            PinTarget::Vcpu(index) => {
                number = index.to_string();
                ("vcpupin", Some(("vcpu", number.as_str())))
            }
            PinTarget::Emulator => ("emulatorpin", None),
            PinTarget::Iothread(iothread) => {
                number = iothread.to_string();
                ("iothreadpin", Some(("iothread", number.as_str())))
            }
        };
        let mut options = vec![("domain", domain.uuid.as_str())];
        options.extend(which);
        options.extend([("cpulist", list), ("live", "")]);
        self.virsh(command, &options).map(drop)
    }
}
