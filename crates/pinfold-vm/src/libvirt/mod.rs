//! libvirt domains: finding them, querying their QEMU, and changing their pins.
//!
//! Everything uses libvirt's own client as a child process, never through a shell: linking the C
//! library would tie Pinfold to one version of it. After a domain has been found it is identified
//! by its UUID. Each argument is written as `--option=value`, so that no name can be parsed as an
//! option.
//!
//! libvirt restores its own masks at every hotplug and reconnect (`qemuProcessSetupPid`), so a pin
//! that it manages must be changed through it. It has pins for vCPUs, iothreads and "the emulator",
//! which is every other thread of the process; vhost threads follow the emulator.
//!
//! Querying QEMU through libvirt (`qemu-monitor-command`) marks the domain as tainted
//! (`custom-monitor`) in libvirt's log; only queries are sent that way.

mod backend;
mod error;
mod hook;
mod pins;
mod silent;

use std::io::ErrorKind;

use pinfold_host::{Host, HostError, process};
use pinfold_model::Tid;
use serde_json::{Value, json};

pub use self::backend::{Caller, LibvirtBackend, memory_value};
pub use self::error::LibvirtError;
pub use self::hook::HookDomain;
pub use self::pins::{NUMATUNE, PinTarget, Pins};
use crate::hypervisor::Monitor as _;
use crate::qemu::{QmpError, QmpTransport};
use crate::{VmError, threads};

/// libvirt's client for one connection.
#[derive(Clone, Debug)]
pub struct Libvirt {
    virsh: String,
    uri: Option<String>,
    timeout_ns: u64,
}

/// A running domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    /// Name of the domain.
    pub name: String,
    /// UUID, which identifies the domain in all later calls.
    pub uuid: String,
    /// The QEMU process.
    pub pid: Tid,
}

impl Libvirt {
    /// Creates a client. `uri` is the connection URI (`qemu:///session`, …), `None` for libvirt's
    /// default; `timeout_ns` is the time limit of one call.
    ///
    /// # Errors
    /// [`LibvirtError::NoVirsh`] if `virsh` is not installed.
    pub fn new(uri: Option<&str>, timeout_ns: u64) -> Result<Self, VmError> {
        let virsh = process::find_program("virsh").ok_or(LibvirtError::NoVirsh)?;
        Ok(Self { virsh, uri: uri.map(str::to_owned), timeout_ns })
    }

    /// Finds a running domain by ID, UUID or name (in this order, as libvirt does).
    ///
    /// # Errors
    /// [`LibvirtError::NoDomain`], [`LibvirtError::NotRunning`], [`LibvirtError::Foreign`] if it
    /// runs on another machine, or an error of libvirt or the host.
    pub fn find(&self, host: &dyn Host, wanted: &str) -> Result<Domain, VmError> {
        if wanted.is_empty() || wanted.contains(['\0', '\n']) {
            return Err(fail_unknown(wanted).into());
        }
        // domuuid accepts IDs and names, but no UUID.
        let uuid = if is_uuid(wanted) {
            wanted.to_owned()
        } else {
            known_option(wanted, self.virsh("domuuid", &[("domain", wanted)]))?.trim().to_owned()
        };
        if !is_uuid(&uuid) {
            let why = format!("{uuid:?} is not a UUID");
            let command = "domuuid".to_owned();
            return Err(LibvirtError::Output { command, why }.into());
        }
        let domain = [("domain", uuid.as_str())];
        let name =
            known_option(wanted, self.virsh("domname", &domain))?.trim_end_matches('\n').to_owned();
        if self.virsh("domid", &domain)?.trim().parse::<u32>().is_err() {
            let state = self.virsh("domstate", &domain)?.trim().to_owned();
            return Err(LibvirtError::NotRunning { name, state }.into());
        }
        let pid = self.pid_of(host, &name, &uuid)?;
        Ok(Domain { name, uuid, pid })
    }

    /// The names of all defined and running domains.
    ///
    /// # Errors
    /// An error of libvirt or the host.
    pub fn names(&self) -> Result<Vec<String>, VmError> {
        let names = self.virsh("list", &[("all", ""), ("name", "")])?;
        Ok(names.lines().filter(|name| !name.is_empty()).map(str::to_owned).collect())
    }

    /// The domain's monitor, for [`threads::discover`].
    pub fn monitor(&self, domain: &Domain) -> DomainMonitor {
        DomainMonitor { libvirt: self.clone(), uuid: domain.uuid.clone() }
    }

    /// The process of a domain: that of its first vCPU, if its command line contains the domain's
    /// UUID. With a remote connection the number belongs to a process of another machine.
    fn pid_of(&self, host: &dyn Host, name: &str, uuid: &str) -> Result<Tid, VmError> {
        let mut monitor = DomainMonitor { libvirt: self.clone(), uuid: uuid.to_owned() };
        let thread = monitor.cpus()?.first().ok_or(VmError::NoVcpus)?.thread;
        let foreign = || LibvirtError::Foreign { name: name.to_owned(), tid: thread };
        let pid = match threads::leader_of(host, thread) {
            Err(VmError::NoProcess { .. }) => return Err(foreign().into()),
            pid => pid?,
        };
        match pinfold_qemu::parse(&threads::command_line(host, pid)?).uuid() {
            Some(found) if found.eq_ignore_ascii_case(uuid) => Ok(pid),
            _ => Err(foreign().into()),
        }
    }

    fn uri(&self) -> &str {
        self.uri.as_deref().unwrap_or("the default URI")
    }

    fn silent(&self) -> LibvirtError {
        LibvirtError::Silent { uri: self.uri().to_owned() }
    }

    fn words(&self, command: &str, options: &[(&str, &str)]) -> Vec<String> {
        let mut words = vec!["--quiet".to_owned()];
        words.extend(self.uri.as_ref().map(|uri| format!("--connect={uri}")));
        words.push(command.to_owned());
        words.extend(options.iter().map(|(option, value)| match *value {
            "" => format!("--{option}"),
            value => format!("--{option}={value}"),
        }));
        words
    }

    /// Runs one subcommand with `--option=value` arguments and returns its output.
    fn virsh(&self, command: &str, options: &[(&str, &str)]) -> Result<String, VmError> {
        if silent::is_silent(self.uri()) {
            return Err(self.silent().into());
        }
        let words = self.words(command, options);
        // virsh must not make its change after Pinfold was killed and its changes were undone.
        let call = process::Spawn::new(&self.virsh).args(&words).die_with_parent(true);
        let output = match call.capture(self.timeout_ns) {
            Err(HostError::Process { source, .. }) if source.kind() == ErrorKind::TimedOut => {
                silent::record(self.uri());
                return Err(self.silent().into());
            }
            output => output?,
        };
        if output.status.success() {
            return Ok(text(&output.stdout));
        }
        let message = text(&output.stderr);
        let message = message.lines().map(|line| line.trim_start_matches("error: "));
        let message = message.filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ");
        Err(LibvirtError::Virsh { command: command.to_owned(), message }.into())
    }
}

fn known_option(wanted: &str, answer: Result<String, VmError>) -> Result<String, VmError> {
    answer.map_err(|error| match error.downcast_driver() {
        Some(LibvirtError::Virsh { message, .. }) if message.contains("failed to get domain") => {
            fail_unknown(wanted).into()
        }
        Some(_) | None => error,
    })
}

fn fail_unknown(wanted: &str) -> LibvirtError {
    LibvirtError::NoDomain { name: wanted.to_owned() }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The monitor of a domain's QEMU, through libvirt.
#[derive(Clone, Debug)]
pub struct DomainMonitor {
    libvirt: Libvirt,
    uuid: String,
}

impl QmpTransport for DomainMonitor {
    fn execute(&mut self, command: &str, arguments: Option<Value>) -> Result<Value, VmError> {
        let mut request = json!({"execute": command});
        if let Some(arguments) = arguments {
            request["arguments"] = arguments;
        }
        let options = [("domain", self.uuid.as_str()), ("cmd", &request.to_string())];
        let reply = self.libvirt.virsh("qemu-monitor-command", &options)?;
        Ok(reply_of(command, &reply)?)
    }
}

/// QEMU's reply, extracted from `{"return": …, "id": "libvirt-412"}`.
fn reply_of(command: &str, reply: &str) -> Result<Value, QmpError> {
    fn text(error: &Value, key: &str) -> String {
        error.get(key).and_then(Value::as_str).unwrap_or("").to_owned()
    }

    let reply: Value =
        serde_json::from_str(reply).map_err(|error| fail(command, error.to_string()))?;
    if let Some(error) = reply.get("error") {
        return Err(QmpError::Refused {
            command: command.to_owned(),
            class: text(error, "class"),
            message: text(error, "desc"),
        });
    }
    let value = reply.get("return").cloned();
    value.ok_or_else(|| fail(command, "it has neither return nor error".to_owned()))
}

fn fail(command: &str, why: String) -> QmpError {
    QmpError::Answer { command: command.to_owned(), why }
}

/// True for `8-4-4-4-12` hexadecimal digits.
fn is_uuid(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
    lengths == [8, 4, 4, 4, 12]
        && parts.iter().all(|part| part.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests;
