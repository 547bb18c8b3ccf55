//! QEMU's control interface: QMP commands, independent of the transport.
//!
//! A transport (a socket, or `virsh`) implements [`QmpTransport`] and is then a [`Monitor`]. The
//! replies are parsed by separate functions. A reply of `query-cpus-fast` (QEMU 7.2):
//!
//! ```json
//! [{"cpu-index": 0, "thread-id": 16737, "qom-path": "/machine/unattached/device[0]",
//!   "target": "x86_64", "props": {"socket-id": 0, "core-id": 0, "thread-id": 0}}]
//! ```
//! The outer `thread-id` is the host's thread, `props.thread-id` the guest's SMT position. QMP
//! reference: <https://www.qemu.org/docs/master/interop/qemu-qmp-ref.html>.

use pinfold_model::{Tid, escape};
use serde_json::{Value, json};

use super::{Qemu, QmpError};
use crate::VmError;
use crate::hypervisor::{
    CpuInstanceProperties, Hypervisor, IothreadInfo, Monitor, RunState, VcpuInfo, Version, VmInfo,
};

/// Executes QMP commands.
pub trait QmpTransport: Send + 'static {
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
    /// As [`QmpTransport::execute`], for the first command that fails.
    fn execute_all(
        &mut self,
        commands: &[&str],
        meanwhile: &mut dyn FnMut(),
    ) -> Result<Vec<Value>, VmError> {
        meanwhile();
        commands.iter().map(|command| self.execute(command, None)).collect()
    }

    /// Sets the time limit of each later command, if the transport has one.
    fn set_command_timeout(&mut self, _timeout_ns: u64) {}

    /// The version that QEMU reported at the connection, if it did.
    fn greeted_version(&self) -> Option<&Version> {
        None
    }

    /// See [`Monitor::peer`].
    fn peer_process(&self) -> Option<Tid> {
        None
    }

    /// See [`Monitor::peer_user`].
    fn peer_owner(&self) -> Option<u32> {
        None
    }
}

impl<T: QmpTransport> Monitor for T {
    fn hypervisor(&self) -> &'static dyn Hypervisor {
        &Qemu
    }

    fn peer(&self) -> Option<Tid> {
        self.peer_process()
    }

    fn peer_user(&self) -> Option<u32> {
        self.peer_owner()
    }

    fn query_vm(&mut self, meanwhile: &mut dyn FnMut()) -> Result<VmInfo, VmError> {
        let replies = self.execute_all(&[QUERY_CPUS, QUERY_IOTHREADS], meanwhile)?;
        let [cpus, iothreads] = replies.as_slice() else {
            return Err(wrong(QUERY_CPUS, "some commands got no reply").into());
        };
        Ok(VmInfo { cpus: cpus_from(cpus)?, iothreads: iothreads_from(iothreads)? })
    }

    fn cpus(&mut self) -> Result<Vec<VcpuInfo>, VmError> {
        Ok(cpus_from(&self.execute(QUERY_CPUS, None)?)?)
    }

    fn iothreads(&mut self) -> Result<Vec<IothreadInfo>, VmError> {
        Ok(iothreads_from(&self.execute(QUERY_IOTHREADS, None)?)?)
    }

    fn name(&mut self) -> Result<Option<String>, VmError> {
        let reply = self.execute("query-name", None)?;
        Ok(reply.get("name").and_then(Value::as_str).map(str::to_owned))
    }

    fn status(&mut self) -> Result<RunState, VmError> {
        let reply = Reply { command: "query-status", value: &self.execute("query-status", None)? };
        Ok(RunState { running: reply.flag("running")?, name: reply.text("status")? })
    }

    fn version(&mut self) -> Result<Version, VmError> {
        match self.greeted_version() {
            Some(version) => Ok(version.clone()),
            None => Ok(version_from("query-version", &self.execute("query-version", None)?)?),
        }
    }

    fn kvm_enabled(&mut self) -> Result<bool, VmError> {
        let reply = &self.execute("query-kvm", None)?;
        Ok(Reply { command: "query-kvm", value: reply }.flag("enabled")?)
    }

    fn kvm_statistics(&mut self) -> Result<Option<Value>, VmError> {
        let of_vcpus = json!({"target": "vcpu", "providers": [{"provider": "kvm"}]});
        self.execute("query-stats", Some(of_vcpus)).map(Some)
    }

    fn cont(&mut self) -> Result<(), VmError> {
        self.execute("cont", None).map(drop)
    }

    fn stop(&mut self) -> Result<(), VmError> {
        self.execute("stop", None).map(drop)
    }

    fn set_timeout(&mut self, timeout_ns: u64) {
        self.set_command_timeout(timeout_ns);
    }

    fn quit(&mut self) -> Result<(), VmError> {
        match self.execute("quit", None) {
            Ok(_) => Ok(()),
            Err(error) if matches!(error.downcast_driver(), Some(QmpError::Closed { .. })) => {
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

/// Maximum length of a name, path or version; valid ones are shorter.
const MAX_TEXT: usize = 4096;
pub(super) const QUERY_CPUS: &str = "query-cpus-fast";
const QUERY_IOTHREADS: &str = "query-iothreads";

/// Parses a reply of `query-cpus-fast`.
fn cpus_from(reply: &Value) -> Result<Vec<VcpuInfo>, QmpError> {
    let mut cpus = Vec::new();
    for value in list(QUERY_CPUS, reply)? {
        let cpu = Reply { command: QUERY_CPUS, value };
        let (index, thread) = (cpu.number("cpu-index")?, cpu.thread()?);
        // Not used, but a reply without it is not QEMU's.
        cpu.text("qom-path")?;
        cpus.push(VcpuInfo {
            index,
            thread,
            place: CpuInstanceProperties {
                node: place(value, "node-id"),
                socket: place(value, "socket-id"),
                die: place(value, "die-id"),
                cluster: place(value, "cluster-id"),
                core: place(value, "core-id"),
                thread: place(value, "thread-id"),
            },
        });
    }
    cpus.sort_by_key(|cpu| cpu.index);
    match cpus.windows(2).find(|pair| pair[0].index == pair[1].index) {
        Some(pair) => Err(wrong(QUERY_CPUS, format!("two vCPUs have the index {}", pair[0].index))),
        None => Ok(cpus),
    }
}

fn place(value: &Value, key: &str) -> Option<u32> {
    value.get("props")?.get(key)?.as_u64().and_then(|number| number.try_into().ok())
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
pub(super) fn version_from(command: &'static str, reply: &Value) -> Result<Version, QmpError> {
    let numbers = reply.get("qemu").ok_or_else(|| wrong(command, "it has no key qemu"))?;
    let numbers = Reply { command, value: numbers };
    Ok(Version {
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
            Some(text) if text.len() <= MAX_TEXT => Ok(escape::name(text).into_owned()),
            Some(_) => Err(wrong(self.command, format!("{key} is longer than {MAX_TEXT} bytes"))),
            None => Err(wrong(self.command, format!("{key} is not a string"))),
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
        let cpu = json!({"cpu-index": 0, "thread-id": 7, "qom-path": "/x"});
        check(json!({}), "it is not a list");
        check(json!([1]), "it has no key cpu-index");
        check(json!([{"cpu-index": 0, "qom-path": ""}]), "it has no key thread-id");
        check(json!([{"cpu-index": -1}]), "cpu-index is not a small number");
        check(json!([{"cpu-index": 0, "thread-id": 0}]), "a thread-id is 0");
        check(json!([{"cpu-index": 0, "thread-id": 5_000_000_000_u64}]), "not a small number");
        check(json!([cpu, cpu]), "two vCPUs have the index 0");
    }

    fn check(reply: Value, expected: &str) {
        let error = cpus_from(&reply).unwrap_err().to_string();
        assert!(error.contains(expected), "{reply}: {error}");
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
