//! Which virtual machine a command means, and how its threads are found again later.

use pinfold_apply::Roles;
use pinfold_host::{Host, LiveHost, SystemClock};
use pinfold_model::{Finding, Role, TaskId, Tid};
use pinfold_vm::libvirt::{DomainMonitor, Libvirt};
use pinfold_vm::{Found, Monitor, Qmp, VmError, threads};

use crate::cli::VmArgs;
use crate::failure::{Exit, Failure};

const QMP_TIMEOUT_NS: u64 = 5_000_000_000;
const VIRSH_TIMEOUT_NS: u64 = 20_000_000_000;

/// Who tells the roles of a machine's threads.
pub enum Teller {
    /// QEMU itself.
    Qmp(Box<Qmp>),
    /// libvirt.
    Libvirt(Box<DomainMonitor>),
    /// Nobody: thread names.
    Names,
}

/// A machine that was found.
pub struct Vm {
    /// Its name.
    pub name: String,
    /// The words of the command line that name it: `--qmp SOCKET`.
    pub asked: String,
    /// Its threads.
    pub found: Found,
    /// Who told them.
    pub teller: Teller,
    /// What one should know about it.
    pub findings: Vec<Finding>,
}

/// A failure of the VM crate.
pub fn vm_failure(error: &VmError) -> Failure {
    let exit = match error {
        VmError::Host(_) => Exit::Host,
        VmError::NoCommand | VmError::Daemonize => Exit::Input,
        VmError::Qmp(_)
        | VmError::Libvirt(_)
        | VmError::NoProcess { .. }
        | VmError::NotQemu { .. }
        | VmError::ForeignThread { .. }
        | VmError::NoVcpus
        | VmError::Nameless { .. }
        | VmError::OneThread { .. }
        | VmError::StartFailed { .. }
        | VmError::StartTimeout { .. } => Exit::Vm,
    };
    Failure::from_error(exit, error, error.hint())
}

impl Vm {
    /// Finds the machine that the command line names.
    pub fn find(host: &LiveHost, arguments: &VmArgs) -> Result<Self, Failure> {
        match (&arguments.qmp, &arguments.libvirt, arguments.pid) {
            (Some(socket), _, _) => Self::by_qmp(host, socket),
            (None, Some(domain), _) => Self::by_libvirt(host, domain),
            (None, None, Some(pid)) => Self::by_pid(host, Tid(pid)),
            (None, None, None) => Err(Failure::new(Exit::Input, "no virtual machine was named")
                .with_hint("name one with --qmp, --libvirt or --pid")),
        }
    }

    fn by_qmp(host: &LiveHost, socket: &str) -> Result<Self, Failure> {
        let mut qmp =
            Qmp::connect(socket, QMP_TIMEOUT_NS, SystemClock).map_err(|e| vm_failure(&e))?;
        let found = threads::find(host, &mut qmp).map_err(|e| vm_failure(&e))?;
        let name = format!("vm-{}", found.pid);
        Ok(Self {
            name,
            asked: format!("--qmp {socket}"),
            findings: found.findings.clone(),
            found,
            teller: Teller::Qmp(Box::new(qmp)),
        })
    }

    fn by_libvirt(host: &LiveHost, wanted: &str) -> Result<Self, Failure> {
        let libvirt = Libvirt::new(None, VIRSH_TIMEOUT_NS).map_err(|e| vm_failure(&e))?;
        let domain = libvirt.find(host, wanted).map_err(|e| vm_failure(&e))?;
        let mut monitor = libvirt.monitor(&domain);
        let found =
            threads::discover(host, domain.pid, Some(&mut monitor)).map_err(|e| vm_failure(&e))?;
        let mut findings = found.findings.clone();
        let pins = libvirt.pins(&domain).map_err(|e| vm_failure(&e))?;
        if !pins.own.is_empty() || pins.default.is_some() {
            findings.push(
                Finding::warning(
                    "libvirt",
                    format!("domain {} has pins of its own, which libvirt sets again at its next change", domain.name),
                )
                .with_hint("put the plan into the domain: pinfold plan --emit libvirt, then virsh edit"),
            );
        }
        let teller = Teller::Libvirt(Box::new(monitor));
        let asked = format!("--libvirt {wanted}");
        Ok(Self { name: domain.name, asked, found, teller, findings })
    }

    fn by_pid(host: &LiveHost, pid: Tid) -> Result<Self, Failure> {
        let found = threads::discover(host, pid, None).map_err(|e| vm_failure(&e))?;
        Ok(Self {
            name: format!("vm-{pid}"),
            asked: format!("--pid {pid}"),
            findings: found.findings.clone(),
            found,
            teller: Teller::Names,
        })
    }
}

/// Asks the machine's teller again, for the watcher.
pub struct Asking<'a> {
    /// Whom to ask.
    pub monitor: Option<&'a mut dyn Monitor>,
}

impl Roles for Asking<'_> {
    fn roles(&mut self, host: &dyn Host, pid: Tid) -> Result<Vec<(TaskId, Role)>, String> {
        let monitor = self.monitor.as_mut().map(|monitor| &mut **monitor as &mut dyn Monitor);
        threads::discover(host, pid, monitor)
            .map(|found| found.tasks())
            .map_err(|error| error.to_string())
    }
}

impl Teller {
    /// The monitor behind it, if there is one.
    pub fn monitor(&mut self) -> Option<&mut dyn Monitor> {
        match self {
            Teller::Qmp(qmp) => Some(&mut **qmp),
            Teller::Libvirt(monitor) => Some(&mut **monitor),
            Teller::Names => None,
        }
    }
}
