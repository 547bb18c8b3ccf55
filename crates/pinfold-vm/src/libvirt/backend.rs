//! libvirt as a settings backend: pins and memory nodes of its domains.
//!
//! A pin of a running domain is changed by `virsh vcpupin … --live`, which cannot remove it. To
//! undo it, it is set to `cpuset` of `<vcpu>`, or to all CPUs (`r`), which has the same effect. A
//! pin of a definition is changed by `--config`. It is removed by redefining the domain without
//! that one element; all else stays as libvirt wrote it.

use pinfold_host::process::{Spawn, Stdio};
use pinfold_host::{HostError, SettingBackend, SystemClock, files};
use pinfold_model::{CpuSet, Lifetime, Setting, SettingManager};

use super::pins::{self, NUMATUNE, PinTarget, Pins};
use super::{Domain, Libvirt, LibvirtError, silent};
use crate::VmError;

/// The program that uses the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// A command.
    Command,
    /// A hook for which libvirt waits while it holds the domain's lock, so libvirt cannot answer.
    Hook,
    /// The same, at the end of the domain: its running instance has no settings any more.
    EndHook,
}

/// The libvirt backend of the host's settings interface.
#[derive(Clone, Debug)]
pub struct LibvirtBackend {
    timeout_ns: u64,
    caller: Caller,
}

impl LibvirtBackend {
    /// Creates the backend; `timeout_ns` is the time limit of one call.
    pub fn new(timeout_ns: u64) -> Self {
        Self { timeout_ns, caller: Caller::Command }
    }

    /// Creates the backend of a hook, which never calls libvirt.
    #[must_use]
    pub fn called_by(self, caller: Caller) -> Self {
        Self { caller, ..self }
    }

    /// # Errors
    /// [`HostError::Kept`] if libvirt waits for this process.
    fn require_call(&self, setting: &Setting) -> Result<(), HostError> {
        let is_gone = self.caller == Caller::EndHook && setting.lifetime == Lifetime::Running;
        if self.caller == Caller::Command {
            return Ok(());
        }
        let why = "libvirt waits for this hook and cannot be called".to_owned();
        Err(fail_kept(setting, why, is_gone, None))
    }

    fn client(&self, setting: &Setting) -> Result<Libvirt, VmError> {
        let uri = match &setting.keeper {
            SettingManager::Libvirt { uri } => Some(uri.as_str()),
            SettingManager::Systemd | SettingManager::LibvirtStatus { .. } => None,
        };
        if let Some(uri) = uri.filter(|uri| !is_local(uri)) {
            let why = format!("{uri:?} is not a local URI of libvirt's QEMU driver");
            return Err(LibvirtError::Output { command: "connect".to_owned(), why }.into());
        }
        Libvirt::new(uri, self.timeout_ns)
    }
}

/// True for a connection to a daemon of this machine. Others can start a program: a journal must
/// not choose one (<https://libvirt.org/uri.html>).
fn is_local(uri: &str) -> bool {
    let rest = ["qemu:///", "qemu+unix:///"].iter().find_map(|scheme| uri.strip_prefix(scheme));
    let (path, query) = rest.map_or(("", None), |rest| {
        rest.split_once('?').map_or((rest, None), |(path, query)| (path, Some(query)))
    });
    ["system", "session", "embed"].contains(&path)
        && query
            .is_none_or(|query: &str| query.starts_with("socket=/") && !query.contains(['&', ';']))
}

impl SettingBackend for LibvirtBackend {
    fn is(&self, keeper: &SettingManager) -> bool {
        matches!(keeper, SettingManager::Libvirt { .. } | SettingManager::LibvirtStatus { .. })
    }

    fn get(&self, setting: &Setting) -> Result<Option<String>, HostError> {
        if let SettingManager::LibvirtStatus { file } = &setting.keeper {
            return status_pin(file, setting);
        }
        self.require_call(setting)?;
        let xml = self.client(setting).and_then(|libvirt| libvirt.xml_of(setting));
        let pins = xml.and_then(|xml| Ok(Pins::from_xml(&xml)?)).map_err(|e| fault(setting, e))?;
        if setting.lifetime == Lifetime::Running && !pins.running {
            return Err(fail_kept(setting, "the domain is not running".to_owned(), true, None));
        }
        Ok(match PinTarget::from_key(&setting.key) {
            Some(target) => pins.own.get(&target).map(CpuSet::to_string),
            None => pins.memory.map(|(mode, nodes)| memory_value(&mode, &nodes)),
        })
    }

    fn set(&self, setting: &Setting, value: Option<&str>) -> Result<(), HostError> {
        if matches!(setting.keeper, SettingManager::LibvirtStatus { .. }) {
            let why = "the status of a domain can only be read".to_owned();
            return Err(fail_kept(setting, why, false, None));
        }
        self.require_call(setting)?;
        let done = self.client(setting).and_then(|libvirt| match (value, setting.lifetime) {
            (Some(value), _) => libvirt.set(setting, value),
            (None, Lifetime::Running) => libvirt.reset_pin(setting),
            (None, Lifetime::Lasting) => libvirt.remove_setting(setting),
        });
        done.map_err(|error| fault(setting, error))
    }
}

/// The CPUs that libvirt has for a thread of a running domain, from the domain's status file. That
/// needs no answer of libvirt, which may wait for this process.
fn status_pin(file: &str, setting: &Setting) -> Result<Option<String>, HostError> {
    let text = files::read_text(file)?;
    if pins::identity(&text).map_err(|error: LibvirtError| fault(setting, error.into()))?.1
        != setting.object
    {
        return Err(fail_kept(setting, format!("{file} is of another domain"), true, None));
    }
    let pins = Pins::from_xml(&text).map_err(|error: LibvirtError| fault(setting, error.into()))?;
    let target = PinTarget::from_key(&setting.key);
    Ok(target.and_then(|target| pins.cpus_for(target)).map(CpuSet::to_string))
}

/// Formats the value of [`NUMATUNE`]: `strict 0-1`.
pub fn memory_value(mode: &str, nodes: &CpuSet) -> String {
    format!("{mode} {nodes}")
}

impl Libvirt {
    /// The setting of a domain with this key.
    ///
    /// # Errors
    /// If libvirt does not report the URI of its connection.
    pub fn setting(
        &self,
        domain: &Domain,
        key: &str,
        lifetime: Lifetime,
    ) -> Result<Setting, VmError> {
        let keeper = SettingManager::Libvirt { uri: self.connection()? };
        Ok(Setting { keeper, object: domain.uuid.clone(), key: key.to_owned(), lifetime })
    }

    /// URI of the connection, so that an undo from another environment finds the same libvirt.
    fn connection(&self) -> Result<String, VmError> {
        let given = self.uri.clone().or_else(|| {
            ["VIRSH_DEFAULT_CONNECT_URI", "LIBVIRT_DEFAULT_URI"]
                .iter()
                .find_map(|name| std::env::var(name).ok().filter(|uri| !uri.is_empty()))
        });
        match given {
            Some(uri) => Ok(uri),
            None => Ok(self.virsh("uri", &[])?.trim().to_owned()),
        }
    }

    /// The XML of a running domain.
    ///
    /// # Errors
    /// If libvirt fails.
    pub fn xml(&self, domain: &Domain) -> Result<String, VmError> {
        self.virsh("dumpxml", &[("domain", &domain.uuid)])
    }

    fn xml_of(&self, setting: &Setting) -> Result<String, VmError> {
        let mut options = vec![("domain", setting.object.as_str())];
        match setting.lifetime {
            Lifetime::Running => {}
            // Includes passwords, which redefining the domain would otherwise remove.
            Lifetime::Lasting => options.extend([("inactive", ""), ("security-info", "")]),
        }
        self.virsh("dumpxml", &options)
    }

    fn set(&self, setting: &Setting, value: &str) -> Result<(), VmError> {
        let (command, number) = setting.key.split_once(' ').unwrap_or((&setting.key, ""));
        let mut options = vec![("domain", setting.object.as_str())];
        match (command, value.split_once(' ')) {
            (NUMATUNE, Some((mode, nodes))) => {
                options.extend([("mode", mode), ("nodeset", nodes)]);
            }
            ("vcpupin", _) => options.extend([("vcpu", number), ("cpulist", value)]),
            ("iothreadpin", _) => options.extend([("iothread", number), ("cpulist", value)]),
            (_, _) => options.push(("cpulist", value)),
        }
        options.push(match setting.lifetime {
            Lifetime::Running => ("live", ""),
            Lifetime::Lasting => ("config", ""),
        });
        self.virsh(command, &options).map(drop)
    }

    /// The nearest equivalent to removing a pin from a running domain.
    fn reset_pin(&self, setting: &Setting) -> Result<(), VmError> {
        let pins = Pins::from_xml(&self.xml_of(setting)?)?;
        // "r" means all CPUs of the host in virsh.
        let list = pins.default.map_or("r".to_owned(), |default| default.to_string());
        self.set(setting, &list)
    }

    /// Removes a setting from a domain's definition.
    fn remove_setting(&self, setting: &Setting) -> Result<(), VmError> {
        let xml = self.xml_of(setting)?;
        let Some(without) = pins::remove_pin(&xml, &setting.key)? else { return Ok(()) };
        self.define(&without)
    }

    /// Defines a domain from its XML, passed on standard input because it may contain passwords.
    fn define(&self, xml: &str) -> Result<(), VmError> {
        let mut words = self.words("define", &[("file", "/dev/stdin")]);
        words.push("--validate".to_owned());
        let spawn = Spawn::new(&self.virsh).args(&words).env("LC_ALL", "C").own_group();
        let spawn =
            spawn.die_with_parent(true).stdin(Stdio::Pipe).stdout(Stdio::Null).stderr(Stdio::Pipe);
        let mut child = spawn.start()?;
        let mut input = child.stdin().ok_or_else(|| fail("it has no input".to_owned()))?;
        let mut errors = child.stderr().ok_or_else(|| fail("it has no output".to_owned()))?;
        std::io::Write::write_all(&mut input, xml.as_bytes())
            .map_err(|error| fail(error.to_string()))?;
        drop(input);
        match child.wait_for(&SystemClock, self.timeout_ns)? {
            Some(status) if status.success() => Ok(()),
            Some(_) => {
                let mut message = String::new();
                std::io::Read::read_to_string(&mut errors, &mut message)
                    .map_err(|error| fail(error.to_string()))?;
                Err(fail(message.trim().replace('\n', "; ")))
            }
            None => {
                child.kill()?;
                silent::record(self.uri());
                Err(self.silent().into())
            }
        }
    }
}

fn fail(message: String) -> VmError {
    VmError::from(LibvirtError::Virsh { command: "define".to_owned(), message })
}

/// Converts a libvirt error to a host error. A domain that does not exist counts as gone; a daemon
/// that does not answer does not.
fn fault(setting: &Setting, error: VmError) -> HostError {
    if let VmError::Host(error) = error {
        return error;
    }
    let message = match error.downcast_driver() {
        Some(LibvirtError::Virsh { message, .. }) => message.as_str(),
        Some(_) | None => "",
    };
    let gone =
        says(message, &["failed to get domain", "domain is not running", "Domain not found"]);
    let away =
        says(message, &["failed to connect", "Cannot recv data", "End of file while reading"]);
    let hint = if away { Some("start libvirtd (or virtqemud)".to_owned()) } else { error.hint() };
    fail_kept(setting, error.to_string(), gone && !away, hint)
}

fn says(message: &str, words: &[&str]) -> bool {
    words.iter().any(|words| message.contains(words))
}

fn fail_kept(setting: &Setting, why: String, gone: bool, hint: Option<String>) -> HostError {
    HostError::Kept { setting: Box::new(setting.clone()), why, gone, hint }
}

#[cfg(test)]
mod tests {
    use pinfold_host::{HostError, SettingBackend as _};
    use pinfold_model::{Lifetime, Setting, SettingManager};

    use super::{Caller, LibvirtBackend, is_local};

    /// An hour of patience: a call would fail at another place.
    #[test]
    fn a_hook_never_calls_libvirt() {
        for (caller, lifetime, is_gone) in [
            (Caller::Hook, Lifetime::Running, false),
            (Caller::Hook, Lifetime::Lasting, false),
            (Caller::EndHook, Lifetime::Running, true),
            (Caller::EndHook, Lifetime::Lasting, false),
        ] {
            let keeper = SettingManager::Libvirt { uri: "qemu:///system".to_owned() };
            let (object, key) = ("web".to_owned(), "emulatorpin".to_owned());
            let setting = Setting { keeper, object, key, lifetime };
            let backend = LibvirtBackend::new(3_600_000_000_000).called_by(caller);
            let answers = [backend.get(&setting).map(drop), backend.set(&setting, Some("0"))];
            for answer in answers {
                let Err(HostError::Kept { why, gone, .. }) = answer else { panic!("{answer:?}") };
                assert!(why.contains("waits for this hook"), "{why}");
                assert_eq!(gone, is_gone, "{caller:?} {lifetime:?}");
            }
        }
    }

    #[test]
    fn only_local_connections_are_opened() {
        for uri in
            ["qemu:///system", "qemu:///session", "qemu:///session?socket=/run/x/libvirt-sock"]
        {
            assert!(is_local(uri), "{uri}");
        }
        for uri in [
            "qemu+ext:///session?command=/tmp/evil.sh",
            "qemu+ssh:///system?command=/tmp/evil.sh",
            "qemu+ssh://other/system",
            "qemu:///session?socket=/a&command=/tmp/evil.sh",
            "qemu:///session?command=/tmp/evil.sh",
            "qemu://other/system",
            "xen:///system",
            "",
        ] {
            assert!(!is_local(uri), "{uri}");
        }
    }
}
