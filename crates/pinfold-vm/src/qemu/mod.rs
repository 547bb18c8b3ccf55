//! QEMU: its command line, its control protocol (QMP), the names of its threads.
//!
//! The user's command line is kept and three options are appended when Pinfold starts it: `-S` (no
//! vCPU runs until `cont`), `-qmp` with a separate socket (the user's socket stays free), and
//! `-name debug-threads=on` (QEMU merges `-name` options, so the user's name stays; the names
//! identify threads that QMP does not report).
//!
//! QEMU documents thread names as "for debugging and not a stable API", sets them only under `-name
//! debug-threads=on`, and cannot set names longer than 15 bytes at all (an iothread with an ID of
//! more than 12 characters stays nameless).

mod error;
mod qmp;
mod queries;

use std::any::Any;

use pinfold_host::SystemClock;
use pinfold_model::{Accelerator, GuestTopology, MachineSpec, Role};
use pinfold_qemu::QemuCommand;

pub use self::error::{CommandError, QmpError};
pub use self::qmp::{Event, Qmp};
pub use self::queries::QmpTransport;
use crate::display_strings::DisplayStrings;
use crate::hypervisor::{Hypervisor, MachineCommand, Monitor, Start};
use crate::{VmError, guest};

/// QEMU as a hypervisor.
#[derive(Clone, Copy, Debug)]
pub struct Qemu;

static TEXTS: DisplayStrings = DisplayStrings {
    name: "QEMU",
    socket: "QMP socket",
    option: "--qmp",
    vcpu_query: queries::QUERY_CPUS,
    selectors: "its QMP socket (--qmp) or libvirt domain (--libvirt)",
    thread_names: "start it with -name NAME,debug-threads=on",
    added_options: "-S -qmp … -name …",
    install: "install QEMU (Debian: apt-get install qemu-system-x86), or give the full path of the \
              program",
    ends_at_once: "QEMU exited by itself, as it does after -version, -help or -device help",
    script: "a start script must pass its arguments on to QEMU: end its QEMU line with \"$@\"",
};

impl Hypervisor for Qemu {
    fn display_strings(&self) -> &'static DisplayStrings {
        &TEXTS
    }

    fn is_program(&self, name: &str) -> bool {
        pinfold_qemu::is_qemu(name)
    }

    fn is_mentioned_in(&self, argument: &str) -> bool {
        argument.contains("qemu") || argument.contains("kvm")
    }

    fn role_of(&self, thread_name: &str) -> Role {
        pinfold_qemu::role_of(thread_name)
    }

    fn accelerator_of(&self, thread_name: &str) -> Option<Accelerator> {
        pinfold_qemu::accelerator_of(thread_name)
    }

    fn parse(&self, command: &[String]) -> Box<dyn MachineCommand> {
        Box::new(pinfold_qemu::parse(command))
    }

    fn agent_port(&self, socket: &str) -> Vec<String> {
        guest::agent_port(socket)
    }

    fn start_options(&self, socket: &str) -> Vec<String> {
        // A comma in a QEMU value is written twice.
        let socket = socket.replace(',', ",,");
        let qmp = format!("unix:{socket},server=on,wait=off");
        ["-S", "-qmp", &qmp, "-name", "debug-threads=on"].map(str::to_owned).into()
    }

    fn connect(&self, socket: &str, timeout_ns: u64) -> Result<Box<dyn Monitor>, VmError> {
        Ok(Box::new(Qmp::connect(socket, timeout_ns, SystemClock)?))
    }
}

impl MachineCommand for QemuCommand {
    fn hypervisor(&self) -> &'static dyn Hypervisor {
        &Qemu
    }

    fn arguments(&self) -> &[String] {
        &self.given
    }

    fn program(&self) -> &str {
        &self.program
    }

    fn spec(&self) -> MachineSpec {
        self.machine_spec()
    }

    fn check(&self) -> Result<(), VmError> {
        if self.is_shell_text() {
            return Err(CommandError::ShellText { program: self.program.clone() }.into());
        }
        match self.smp_error() {
            Some(why) => Err(CommandError::Refused { why }.into()),
            None => Ok(()),
        }
    }

    fn control_socket(&self) -> Option<String> {
        let values = self.all("qmp").filter_map(|option| option.words.get(1));
        let mut paths = values.filter_map(|value| value.strip_prefix("unix:"));
        // A comma in a value is written twice.
        const COMMA: &str = "\0";
        let path = paths.next()?.replace(",,", COMMA);
        Some(path.split(',').next()?.replace(COMMA, ","))
    }

    fn agent_socket(&self) -> Option<String> {
        const PORT: &str = "org.qemu.guest_agent.0";
        let port = self.all("device").find(|option| option.key("name") == Some(PORT))?;
        let chardev = port.key("chardev")?;
        let backend = self.all("chardev").find(|option| option.key("id") == Some(chardev))?;
        // Only a socket has a path that can be connected to.
        let kind = backend.key("backend").or(backend.key(""));
        backend.key("path").filter(|_| kind == Some("socket")).map(str::to_owned)
    }

    fn with_topology(&self, guest: &GuestTopology) -> Vec<String> {
        pinfold_qemu::set_smp(self, guest)
    }

    fn discard_writes(&self) -> Vec<String> {
        if self.has("snapshot") { Vec::new() } else { vec!["-snapshot".to_owned()] }
    }

    fn check_start(&self) -> Result<Start, VmError> {
        if self.program.is_empty() {
            return Err(VmError::NoCommand);
        }
        if self.has("daemonize") {
            return Err(CommandError::Daemonize.into());
        }
        if self.is_shell_text() {
            return Err(CommandError::ShellText { program: self.program.clone() }.into());
        }
        if pinfold_qemu::is_handed_over(self) {
            return Err(CommandError::HandedOver.into());
        }
        Ok(Start { socket_name: "qmp", leaves_stopped: self.has("S") })
    }
}

/// A command line as one of QEMU; without options if it is another hypervisor's.
#[must_use]
pub fn command_of(command: &dyn MachineCommand) -> QemuCommand {
    let command: &dyn Any = command;
    command.downcast_ref().cloned().unwrap_or_default()
}
