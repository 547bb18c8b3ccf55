//! The control interface of a virtual machine: QMP commands, independent of the transport.
//!
//! The transport (a socket, or `virsh`) implements [`Monitor::execute`]. The typed queries here are
//! built on it; their replies are parsed by separate functions. A reply of `query-cpus-fast` (QEMU
//! 7.2):
//!
//! ```json
//! [{"cpu-index": 0, "thread-id": 16737, "qom-path": "/machine/unattached/device[0]",
//!   "target": "x86_64", "props": {"socket-id": 0, "core-id": 0, "thread-id": 0}}]
//! ```
//! The outer `thread-id` is the host's thread, `props.thread-id` the guest's SMT position. QMP
//! reference: <https://www.qemu.org/docs/master/interop/qemu-qmp-ref.html>.

use std::fmt;

use pinfold_model::{Tid, shown};
use serde_json::Value;

use crate::{QmpError, VmError};

/// Position of a vCPU in the guest's topology. `None` for levels that the board does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GuestPlace {
    /// NUMA node number.
    pub node: Option<u32>,
    /// Socket number.
    pub socket: Option<u32>,
    /// Die number.
    pub die: Option<u32>,
    /// Cluster number.
    pub cluster: Option<u32>,
    /// Core number.
    pub core: Option<u32>,
    /// Thread number within the core.
    pub thread: Option<u32>,
}

/// One vCPU as QEMU reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VcpuInfo {
    /// QEMU's `cpu-index`.
    pub index: u32,
    /// The host thread that runs it.
    pub thread: Tid,
    /// Path of its object in QEMU, the key for `query-stats`.
    pub qom_path: String,
    /// Its position in the guest's topology.
    pub place: GuestPlace,
}

/// One `-object iothread` as QEMU reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IothreadInfo {
    /// ID of the object.
    pub id: String,
    /// The host thread that runs it.
    pub thread: Tid,
}

/// Threads that QEMU reports by number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmInfo {
    /// The vCPUs, by ascending index.
    pub cpus: Vec<VcpuInfo>,
    /// The iothreads in QEMU's order.
    pub iothreads: Vec<IothreadInfo>,
}

/// Run state of the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunState {
    /// True if the guest's vCPUs run.
    pub running: bool,
    /// QEMU's name of the state: `prelaunch`, `running`, `paused`, …
    pub name: String,
}

/// QEMU's version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QemuVersion {
    /// Major, minor and micro number.
    pub number: (u32, u32, u32),
    /// The distribution's package version, often empty.
    pub package: String,
}

impl fmt::Display for QemuVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor, micro) = self.number;
        write!(f, "{major}.{minor}.{micro}")?;
        if self.package.is_empty() { Ok(()) } else { write!(f, " ({})", self.package) }
    }
}

/// A virtual machine's control interface.
pub trait Monitor {
    /// Runs one QMP command and returns QEMU's reply.
    ///
    /// # Errors
    /// [`QmpError::Refused`] with QEMU's message, or an error of the transport.
    fn execute(&mut self, command: &str, arguments: Option<Value>) -> Result<Value, VmError>;

    /// Runs several commands without arguments, in order, and returns QEMU's replies. A transport
    /// that supports it sends all commands, calls `meanwhile`, and then reads the replies: most of
    /// a command's time is spent waking QEMU's main loop.
    ///
    /// # Errors
    /// As [`Monitor::execute`], for the first command that fails.
    fn execute_all(
        &mut self,
        commands: &[&str],
        meanwhile: &mut dyn FnMut(),
    ) -> Result<Vec<Value>, VmError> {
        meanwhile();
        commands.iter().map(|command| self.execute(command, None)).collect()
    }

    /// The process at the other end, if the transport knows it. This is a hint only, because QEMU
    /// may have received its socket from another process.
    fn peer(&self) -> Option<Tid> {
        None
    }

    /// The user ID under which that process created its socket, if the transport knows it. A
    /// transport that does not is a program of the caller's (`virsh`).
    fn peer_user(&self) -> Option<u32> {
        None
    }

    /// vCPUs and iothreads, queried together; `meanwhile` is called once before the replies are
    /// read.
    ///
    /// # Errors
    /// As [`Monitor::execute_all`]; [`QmpError::Answer`] if a reply is not understood.
    fn vm(&mut self, meanwhile: &mut dyn FnMut()) -> Result<VmInfo, VmError> {
        let replies = self.execute_all(&[QUERY_CPUS, QUERY_IOTHREADS], meanwhile)?;
        let [cpus, iothreads] = replies.as_slice() else {
            return Err(wrong(QUERY_CPUS, "not every command was answered").into());
        };
        Ok(VmInfo { cpus: cpus_from(cpus)?, iothreads: iothreads_from(iothreads)? })
    }

    /// The vCPUs, by ascending index (`query-cpus-fast`).
    ///
    /// # Errors
    /// As [`Monitor::execute`]; [`QmpError::Answer`] if the reply is not understood.
    fn cpus(&mut self) -> Result<Vec<VcpuInfo>, VmError> {
        Ok(cpus_from(&self.execute(QUERY_CPUS, None)?)?)
    }

    /// The iothreads in QEMU's order (`query-iothreads`); the main loop is not included.
    ///
    /// # Errors
    /// As [`Monitor::execute`]; [`QmpError::Answer`] if the reply is not understood.
    fn iothreads(&mut self) -> Result<Vec<IothreadInfo>, VmError> {
        Ok(iothreads_from(&self.execute(QUERY_IOTHREADS, None)?)?)
    }

    /// Whether the guest runs (`query-status`).
    ///
    /// # Errors
    /// As [`Monitor::execute`]; [`QmpError::Answer`] if the reply is not understood.
    fn status(&mut self) -> Result<RunState, VmError> {
        let reply = Reply { command: "query-status", value: &self.execute("query-status", None)? };
        Ok(RunState { running: reply.flag("running")?, name: reply.text("status")? })
    }

    /// QEMU's version (`query-version`).
    ///
    /// # Errors
    /// As [`Monitor::execute`]; [`QmpError::Answer`] if the reply is not understood.
    fn version(&mut self) -> Result<QemuVersion, VmError> {
        Ok(version_from("query-version", &self.execute("query-version", None)?)?)
    }

    /// True if KVM runs the guest (`query-kvm`).
    ///
    /// # Errors
    /// As [`Monitor::execute`]; [`QmpError::Answer`] if the reply is not understood.
    fn kvm_enabled(&mut self) -> Result<bool, VmError> {
        let reply = &self.execute("query-kvm", None)?;
        Ok(Reply { command: "query-kvm", value: reply }.flag("enabled")?)
    }

    /// Starts or resumes the guest (`cont`).
    ///
    /// # Errors
    /// As [`Monitor::execute`].
    fn cont(&mut self) -> Result<(), VmError> {
        self.execute("cont", None).map(drop)
    }

    /// Stops the guest (`stop`).
    ///
    /// # Errors
    /// As [`Monitor::execute`].
    fn stop(&mut self) -> Result<(), VmError> {
        self.execute("stop", None).map(drop)
    }
}

/// Maximum length of a name, path or version; valid ones are shorter.
const MAX_TEXT: usize = 4096;
const QUERY_CPUS: &str = "query-cpus-fast";
const QUERY_IOTHREADS: &str = "query-iothreads";

/// Parses a reply of `query-cpus-fast`.
fn cpus_from(reply: &Value) -> Result<Vec<VcpuInfo>, QmpError> {
    let mut cpus = Vec::new();
    for value in list(QUERY_CPUS, reply)? {
        let cpu = Reply { command: QUERY_CPUS, value };
        let place = |key: &str| -> Option<u32> {
            value.get("props")?.get(key)?.as_u64().and_then(|number| number.try_into().ok())
        };
        cpus.push(VcpuInfo {
            index: cpu.number("cpu-index")?,
            thread: cpu.thread()?,
            qom_path: cpu.text("qom-path")?,
            place: GuestPlace {
                node: place("node-id"),
                socket: place("socket-id"),
                die: place("die-id"),
                cluster: place("cluster-id"),
                core: place("core-id"),
                thread: place("thread-id"),
            },
        });
    }
    cpus.sort_by_key(|cpu| cpu.index);
    match cpus.windows(2).find(|pair| pair[0].index == pair[1].index) {
        Some(pair) => Err(wrong(QUERY_CPUS, format!("two vCPUs have the index {}", pair[0].index))),
        None => Ok(cpus),
    }
}

/// Parses a reply of `query-iothreads`.
fn iothreads_from(reply: &Value) -> Result<Vec<IothreadInfo>, QmpError> {
    list(QUERY_IOTHREADS, reply)?
        .iter()
        .map(|value| {
            let iothread = Reply { command: QUERY_IOTHREADS, value };
            Ok(IothreadInfo { id: iothread.text("id")?, thread: iothread.thread()? })
        })
        .collect()
}

/// Parses a version object, in the greeting or in a reply of `query-version`.
pub(crate) fn version_from(command: &'static str, reply: &Value) -> Result<QemuVersion, QmpError> {
    let numbers = reply.get("qemu").ok_or_else(|| wrong(command, "it has no key qemu"))?;
    let numbers = Reply { command, value: numbers };
    Ok(QemuVersion {
        number: (numbers.number("major")?, numbers.number("minor")?, numbers.number("micro")?),
        package: Reply { command, value: reply }.text("package")?,
    })
}

/// One object of a reply, with the command for error messages.
struct Reply<'a> {
    command: &'static str,
    value: &'a Value,
}

impl Reply<'_> {
    fn field(&self, key: &str) -> Result<&Value, QmpError> {
        self.value.get(key).ok_or_else(|| wrong(self.command, format!("it has no key {key}")))
    }

    fn number(&self, key: &str) -> Result<u32, QmpError> {
        self.field(key)?
            .as_u64()
            .and_then(|number| number.try_into().ok())
            .ok_or_else(|| wrong(self.command, format!("{key} is not a small number")))
    }

    fn thread(&self) -> Result<Tid, QmpError> {
        match self.number("thread-id")? {
            0 => Err(wrong(self.command, "a thread-id is 0")),
            tid => Ok(Tid(tid)),
        }
    }

    fn text(&self, key: &str) -> Result<String, QmpError> {
        // A compromised QEMU may send any text.
        match self.field(key)?.as_str() {
            Some(text) if text.len() <= MAX_TEXT => Ok(shown::name(text).into_owned()),
            Some(_) => Err(wrong(self.command, format!("{key} is longer than {MAX_TEXT} bytes"))),
            None => Err(wrong(self.command, format!("{key} is not a text"))),
        }
    }

    fn flag(&self, key: &str) -> Result<bool, QmpError> {
        self.field(key)?
            .as_bool()
            .ok_or_else(|| wrong(self.command, format!("{key} is neither true nor false")))
    }
}

fn list<'a>(command: &'static str, reply: &'a Value) -> Result<&'a Vec<Value>, QmpError> {
    reply.as_array().ok_or_else(|| wrong(command, "it is not a list"))
}

fn wrong(command: &str, why: impl Into<String>) -> QmpError {
    QmpError::Answer { command: command.to_owned(), why: why.into() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reads_recorded_vcpus() {
        // QEMU 7.2.22, -M q35 -smp 2, in reverse order to see the sorting.
        let reply = json!([
            {"thread-id": 8729, "props": {"core-id": 1, "thread-id": 0, "socket-id": 0},
             "qom-path": "/machine/unattached/device[2]", "cpu-index": 1, "target": "x86_64"},
            {"thread-id": 8728, "props": {"core-id": 0, "thread-id": 0, "socket-id": 0},
             "qom-path": "/machine/unattached/device[0]", "cpu-index": 0, "target": "x86_64"}
        ]);
        let cpus = cpus_from(&reply).unwrap();
        let threads: Vec<_> =
            cpus.iter().map(|cpu| (cpu.index, cpu.thread, cpu.place.core)).collect();
        assert_eq!(threads, [(0, Tid(8728), Some(0)), (1, Tid(8729), Some(1))]);
        assert_eq!(cpus[0].place.die, None);
    }

    #[test]
    fn refuses_odd_replies() {
        let check = |reply: Value, expected: &str| {
            let error = cpus_from(&reply).unwrap_err().to_string();
            assert!(error.contains(expected), "{reply}: {error}");
        };
        let cpu = json!({"cpu-index": 0, "thread-id": 7, "qom-path": "/x"});
        check(json!({}), "it is not a list");
        check(json!([1]), "it has no key cpu-index");
        check(json!([{"cpu-index": 0, "qom-path": ""}]), "it has no key thread-id");
        check(json!([{"cpu-index": -1}]), "cpu-index is not a small number");
        check(json!([{"cpu-index": 0, "thread-id": 0}]), "a thread-id is 0");
        check(json!([{"cpu-index": 0, "thread-id": 5_000_000_000_u64}]), "not a small number");
        check(json!([cpu, cpu]), "two vCPUs have the index 0");
    }

    #[test]
    fn reads_versions_and_iothreads() {
        let version = json!({"qemu": {"micro": 22, "minor": 2, "major": 7}, "package": "Debian 1"});
        let version = version_from("query-version", &version).unwrap();
        assert_eq!(version.to_string(), "7.2.22 (Debian 1)");
        let reply = json!([{"poll-shrink": 0, "thread-id": 8725, "id": "io0"}]);
        let expected = IothreadInfo { id: "io0".to_owned(), thread: Tid(8725) };
        assert_eq!(iothreads_from(&reply).unwrap(), [expected]);
    }
}
