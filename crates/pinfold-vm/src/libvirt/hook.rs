//! The data that libvirt passes to a hook about a domain: its XML on standard input, and a pid
//! file.
//!
//! A hook must never call libvirt ("a deadlock is likely to occur"), so no other data is available.
//! The pid file is in a directory that only libvirt can write; the process is accepted as the
//! domain's only if its command line contains the domain's UUID too.
//! <https://libvirt.org/hooks.html>

use pinfold_host::{Host, files};
use pinfold_model::{CpuSet, Lifetime, Role, Setting, SettingManager, TaskId, Tid};

use super::{LibvirtError, PinTarget, Pins, is_uuid, pins};
use crate::{VmError, threads};

/// A domain as described to a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookDomain {
    /// Name of the domain. Untrusted: it may contain any character but `/`.
    pub name: String,
    /// UUID of the domain.
    pub uuid: String,
    /// Pins in the domain's XML.
    pub pins: Pins,
}

impl HookDomain {
    /// Parses the XML that libvirt passes to a hook.
    ///
    /// # Errors
    /// [`LibvirtError::Output`] if it does not describe a domain.
    pub fn from_xml(xml: &str) -> Result<Self, LibvirtError> {
        let pins = Pins::from_xml(xml)?;
        let (name, uuid) = pins::identity(xml)?;
        if name.is_empty() || name.contains(['/', '\0', '\n']) {
            return Err(report("the domain has no valid name"));
        }
        if !is_uuid(&uuid) {
            return Err(report("the domain has no UUID"));
        }
        Ok(Self { name, uuid, pins })
    }

    /// The pins of some of its threads: where libvirt's own status in `run_dir` has them, and their
    /// present values.
    #[must_use]
    pub fn recorded_pins(
        &self,
        run_dir: &str,
        threads: &[(TaskId, Role)],
    ) -> Vec<(TaskId, Setting, Option<String>)> {
        let file = format!("{run_dir}/{}.xml", self.name);
        let pinned = threads.iter().filter_map(|(task, role)| {
            let target = PinTarget::from_role(role).ok()?;
            let setting = Setting {
                keeper: SettingManager::LibvirtStatus { file: file.clone() },
                object: self.uuid.clone(),
                key: target.key(),
                lifetime: Lifetime::Running,
            };
            Some((*task, setting, self.pins.cpus_for(target).map(CpuSet::to_string)))
        });
        pinned.collect()
    }

    /// The domain's process, from its pid file in `run_dir` (`/run/libvirt/qemu`).
    ///
    /// # Errors
    /// [`VmError::Host`] if there is no pid file, [`LibvirtError::Foreign`] if the process that it
    /// names does not belong to the domain.
    pub fn process(&self, host: &dyn Host, run_dir: &str) -> Result<Tid, VmError> {
        let path = format!("{run_dir}/{}.pid", self.name);
        let text = files::read_text(&path)?;
        let pid = text.trim().parse().ok().filter(|pid| *pid > 0);
        let pid = pid.map(Tid).ok_or_else(|| {
            let start: String = text.trim().chars().take(SHOWN_OF_PID).collect();
            LibvirtError::PidFile { path, text: start }
        })?;
        match pinfold_qemu::parse(&threads::command_line(host, pid)?).uuid() {
            Some(found) if found.eq_ignore_ascii_case(&self.uuid) => Ok(pid),
            Some(_) | None => {
                Err(LibvirtError::Foreign { name: self.name.clone(), tid: pid }.into())
            }
        }
    }
}

/// How much of a PID file with another content is shown, in characters.
const SHOWN_OF_PID: usize = 40;

fn report(why: &str) -> LibvirtError {
    LibvirtError::Output { command: "hook".to_owned(), why: why.to_owned() }
}
