//! The table of hypervisors, and which of them a program or a command line belongs to.

use pinfold_host::{Host, HostError, paths, proc_stat};
use pinfold_model::{MachineSpec, Tid};

use crate::detect_only::{DetectOnlyHypervisor, NAMED};
use crate::hypervisor::{Hypervisor, MachineCommand};
use crate::qemu::Qemu;

/// The hypervisors that Pinfold can start and connect to; those that it finds by names are in their
/// own table. The first one is assumed for a command line that names none of them, which may be a
/// script that starts it.
pub const HYPERVISORS: [&dyn Hypervisor; 1] = [&Qemu];

/// Their names in a sentence: `QEMU`.
pub fn names() -> String {
    HYPERVISORS.map(|hypervisor| hypervisor.display_strings().name).join(" or ")
}

/// The names of all whose running machines are found, in a sentence: `QEMU, crosvm or Firecracker`.
#[must_use]
pub fn names_of_running() -> String {
    let mut names: Vec<&str> = all().map(|hypervisor| hypervisor.display_strings().name).collect();
    let last = names.pop().unwrap_or_default();
    format!("{} or {last}", names.join(", "))
}

/// All hypervisors whose running machines are found.
fn all() -> impl Iterator<Item = &'static dyn Hypervisor> {
    HYPERVISORS
        .into_iter()
        .chain(NAMED.iter().map(|named: &DetectOnlyHypervisor| named as &dyn Hypervisor))
}

/// The options of `pinfold` that take their control sockets: `--qmp`.
pub fn options() -> String {
    HYPERVISORS.map(|hypervisor| hypervisor.display_strings().option).join(", ")
}

/// True if an argument suggests that a command line is meant for one of them.
#[must_use]
pub fn is_mentioned_in(argument: &str) -> bool {
    HYPERVISORS.iter().any(|hypervisor| hypervisor.is_mentioned_in(argument))
}

/// The hypervisor whose program has this file name.
pub fn find_by_program(name: &str) -> Option<&'static dyn Hypervisor> {
    all().find(|hypervisor| hypervisor.is_program(name))
}

/// Parses a command line as that of the hypervisor that it starts; of the first one in the table if
/// its program belongs to none.
#[must_use]
pub fn parse(words: &[String]) -> Box<dyn MachineCommand> {
    let [first, others @ ..] = HYPERVISORS;
    let command = first.parse(words);
    if starts_own_program(&*command) {
        return command;
    }
    let mut others = others.into_iter().map(|other: &dyn Hypervisor| other.parse(words));
    others.find(|other| starts_own_program(&**other)).unwrap_or(command)
}

fn starts_own_program(command: &dyn MachineCommand) -> bool {
    let name = command.program().rsplit('/').next().unwrap_or_default();
    command.hypervisor().is_program(name)
}

/// A running machine, as its command line describes it.
#[derive(Clone, Debug)]
pub struct VmProcess {
    /// The process.
    pub pid: Tid,
    /// Its hypervisor.
    pub hypervisor: &'static dyn Hypervisor,
    /// What its command line says.
    pub spec: MachineSpec,
    /// Absolute path of its control socket, if its command line names one.
    pub socket: Option<String>,
}

impl VmProcess {
    /// Its name, if it has one that is short and plain enough for journals and commands.
    pub fn plain_name(&self) -> Option<&str> {
        const LONGEST: usize = 64;
        let name = self.spec.name.as_deref()?;
        (name.len() <= LONGEST && starts(name) && name.chars().all(is_plain)).then_some(name)
    }

    /// That name, or one with its process ID.
    pub fn name_or_pid(&self) -> String {
        self.plain_name().map_or_else(|| format!("vm-{}", self.pid), str::to_owned)
    }
}

fn is_plain(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || "-_.".contains(letter)
}

fn starts(name: &str) -> bool {
    name.starts_with(|letter: char| letter.is_ascii_alphanumeric())
}

/// The machines that run on this host, by process ID: those whose executable file this process may
/// see, which are all of them for root.
///
/// # Errors
/// If `/proc` cannot be listed. A process that ends meanwhile is left out.
pub fn list_vm_processes(host: &dyn Host) -> Result<Vec<VmProcess>, HostError> {
    let pids = host.list("/proc")?.into_iter().filter_map(|name| name.parse().ok().map(Tid));
    let mut found: Vec<VmProcess> = pids.filter_map(|pid| machine_of(host, pid)).collect();
    found.sort_by_key(|machine| machine.pid);
    Ok(found)
}

/// The machines whose executable files this process may not see, by process ID: without root, those
/// of other users. Their programs are known by name only, which any process can choose: this is for
/// messages.
///
/// # Errors
/// As [`list_vm_processes`].
pub fn list_hidden_machines(host: &dyn Host) -> Result<Vec<VmProcess>, HostError> {
    let pids = host.list("/proc")?.into_iter().filter_map(|name| name.parse().ok().map(Tid));
    let mut found: Vec<VmProcess> = pids.filter_map(|pid| hidden_machine_of(host, pid)).collect();
    found.sort_by_key(|machine| machine.pid);
    Ok(found)
}

fn hidden_machine_of(host: &dyn Host, pid: Tid) -> Option<VmProcess> {
    host.link(&paths::process_file(pid, "exe")).err().filter(HostError::is_permission)?;
    let stat = proc_stat::read(host, pid).ok()??;
    let hypervisor = find_by_program(&stat.comm)?;
    let is_program = !stat.is_kernel_thread() && !stat.has_ended();
    is_program.then(|| described_by_command_line(host, pid, hypervisor))?
}

/// The machine of a process, if it is one of these hypervisors.
///
/// The program is that of the executable file: any process can put another name into its arguments.
pub fn machine_of(host: &dyn Host, pid: Tid) -> Option<VmProcess> {
    let program = host.link(&paths::process_file(pid, "exe")).ok()?;
    // The file of a program that was upgraded meanwhile.
    let program = program.trim_end_matches(" (deleted)");
    described_by_command_line(host, pid, find_by_program(program.rsplit('/').next()?)?)
}

fn described_by_command_line(
    host: &dyn Host,
    pid: Tid,
    hypervisor: &'static dyn Hypervisor,
) -> Option<VmProcess> {
    let text = host.read_text(&paths::process_cmdline(pid)).ok()?;
    let words: Vec<String> = text.split_terminator('\0').map(str::to_owned).collect();
    let command = hypervisor.parse(&words);
    let socket = command.control_socket().and_then(|path| {
        if path.starts_with('/') {
            Some(path)
        } else {
            let folder = host.link(&paths::process_file(pid, "cwd")).ok()?;
            Some(format!("{}/{path}", folder.trim_end_matches('/')))
        }
    });
    Some(VmProcess { pid, hypervisor, spec: command.spec(), socket })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_names_the_socket_of_its_agent() {
        let channel = "-device virtio-serial -device \
                       virtserialport,chardev=qga,name=org.qemu.guest_agent.0";
        for (chardev, expected) in [
            ("-chardev socket,id=qga,path=/run/qga,server=on,wait=off", Some("/run/qga")),
            ("-chardev backend=socket,path=/run/qga,id=qga", Some("/run/qga")),
            ("-chardev pty,path=/dev/pts/x,id=qga", None),
            ("-chardev socket,id=other,path=/run/qga", None),
            ("", None),
        ] {
            let line = format!("qemu-system-x86_64 {chardev} {channel}");
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            assert_eq!(parse(&words).agent_socket().as_deref(), expected, "{line}");
        }
    }

    #[test]
    fn a_command_line_names_the_machine_and_its_control_socket() {
        let qemu = "qemu-system-x86_64 -smp 2";
        check(qemu, None, None);
        let socket = "-qmp unix:/run/a,,b.sock,server=on,wait=off";
        check(&format!("{qemu} {socket} -name reader"), Some("/run/a,b.sock"), Some("reader"));
        check(
            &format!("{qemu} -qmp tcp:localhost:4444 -name guest=x,debug-threads=on"),
            None,
            Some("x"),
        );
        check(&format!("{qemu} -qmp unix:q -name ../x"), Some("q"), None);
    }

    fn check(line: &str, socket: Option<&str>, name: Option<&str>) {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let command = parse(&words);
        assert_eq!(command.control_socket().as_deref(), socket, "{line}");
        let machine = VmProcess {
            pid: Tid(1),
            hypervisor: command.hypervisor(),
            spec: command.spec(),
            socket: None,
        };
        assert_eq!(machine.plain_name(), name, "{line}");
    }
}
