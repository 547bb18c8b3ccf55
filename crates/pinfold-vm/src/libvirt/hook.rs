//! The data that libvirt passes to a hook about a domain: its XML on standard input, and a pid
//! file.
//!
//! A hook must never call libvirt ("a deadlock is likely to occur"), so no other data is available.
//! The pid file is in a directory that only libvirt can write; the process is accepted as the
//! domain's only if its command line contains the domain's UUID too.
//! <https://libvirt.org/hooks.html>

use std::io::ErrorKind;

use pinfold_host::{Host, HostError, files, proc_stat};
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
    /// [`LibvirtError::HookXml`] if it does not describe a domain.
    pub fn from_xml(xml: &str) -> Result<Self, LibvirtError> {
        let pins = Pins::from_xml(xml).map_err(of_hook)?;
        let (name, uuid) = pins::identity(xml).map_err(of_hook)?;
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
    /// [`LibvirtError::PidFile`] if the pid file cannot be read, or names a process that does not
    /// belong to the domain or does not exist; [`VmError::NoProcess`] if the process that it names
    /// has ended and its parent has not read its status.
    pub fn process(&self, host: &dyn Host, run_dir: &str) -> Result<Tid, VmError> {
        let path = format!("{run_dir}/{}.pid", self.name);
        let fail = |why: String| LibvirtError::PidFile { path: path.clone(), why };
        let text = files::read_text(&path).map_err(|error| fail(unreadable(&error)))?;
        let pid = text.trim().parse().ok().filter(|pid| (1..=MOST_PID).contains(pid));
        let pid = pid.map(Tid).ok_or_else(|| {
            let start: String = text.trim().chars().take(SHOWN_OF_PID).collect();
            fail(format!("has no process ID: {start:?}"))
        })?;
        let words = match threads::command_line(host, pid) {
            Ok(words) => words,
            Err(VmError::NoProcess { .. }) => {
                return Err(fail(format!(
                    "names process {pid}, but no process has this ID: the domain is no longer \
                     running, or the file is of an earlier run; if the domain runs, `pinfold apply` \
                     places it"
                ))
                .into());
            }
            Err(error) => return Err(error),
        };
        match pinfold_qemu::parse(&words).uuid() {
            Some(found) if found.eq_ignore_ascii_case(&self.uuid) => Ok(pid),
            None if words.is_empty() && is_zombie(host, pid)? => Err(VmError::NoProcess { pid }),
            Some(_) | None => {
                let domain = &self.name;
                Err(fail(format!(
                    "names process {pid}, which is not the QEMU of domain {domain:?}"
                ))
                .into())
            }
        }
    }
}

/// How much of a PID file with another content is shown, in characters.
const SHOWN_OF_PID: usize = 40;

/// The longest process ID of Linux (`PID_MAX_LIMIT`).
const MOST_PID: u32 = 1 << 22;

fn report(why: &str) -> LibvirtError {
    LibvirtError::HookXml { why: why.to_owned() }
}

/// The error of a parser for XML of `virsh`, for XML of standard input.
fn of_hook(error: LibvirtError) -> LibvirtError {
    if let LibvirtError::Output { why, .. } = error {
        return LibvirtError::HookXml { why };
    }
    error
}

/// What is wrong with a PID file that cannot be read.
fn unreadable(error: &HostError) -> String {
    if matches!(error, HostError::Encoding { .. }) {
        return "has no process ID: it is not text".to_owned();
    }
    // The rest of that text concerns files that the user names.
    if let HostError::Unexpected { why, .. } = error {
        let kind = why.split_once(": ").map(|(kind, _)| format!("{kind}, not a regular file"));
        return kind.unwrap_or_else(|| why.clone());
    }
    let HostError::File { source, .. } = error else { return format!("cannot be read: {error}") };
    if source.kind() == ErrorKind::NotFound {
        return "does not exist".to_owned();
    }
    if source.kind() == ErrorKind::IsADirectory {
        return "is a directory, not a regular file".to_owned();
    }
    format!("cannot be read: {source}")
}

/// True for a process that has ended and whose parent has not read its status.
fn is_zombie(host: &dyn Host, pid: Tid) -> Result<bool, HostError> {
    Ok(proc_stat::read(host, pid)?.is_none_or(|stat| stat.state == 'Z'))
}
