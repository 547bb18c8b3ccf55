//! Hypervisors that are known by the names of their program and threads: Cloud Hypervisor, crosvm
//! and Firecracker. Pinfold places and measures their running machines; it neither starts them nor
//! connects to their control interfaces.
//!
//! Each is a row of [`NAMED`]. Their vCPU threads set no affinity unless the command line has one.

use pinfold_model::{Accelerator, GuestTopology, MachineSpec, Role};

use crate::VmError;
use crate::display_strings::DisplayStrings;
use crate::error::DriverError;
use crate::hypervisor::{Hypervisor, MachineCommand, Monitor, Start};

/// Length to which the kernel cuts the name of a process, in bytes.
const LONGEST_NAME: usize = 15;

/// A hypervisor that is known by its names.
#[derive(Debug)]
pub struct DetectOnlyHypervisor {
    texts: DisplayStrings,
    /// File name of its program.
    program: &'static str,
    /// What precedes the number in the name of a vCPU thread.
    vcpu_prefix: &'static str,
    /// The option with the name of a machine, if it has one.
    name_option: Option<&'static str>,
}

/// The hypervisors that are known by their names.
pub static NAMED: [DetectOnlyHypervisor; 3] = [
    DetectOnlyHypervisor {
        texts: texts("Cloud Hypervisor", "install Cloud Hypervisor"),
        program: "cloud-hypervisor",
        vcpu_prefix: "vcpu",
        name_option: None,
    },
    DetectOnlyHypervisor {
        texts: texts("crosvm", "install crosvm"),
        program: "crosvm",
        vcpu_prefix: "crosvm_vcpu",
        name_option: Some("--name"),
    },
    DetectOnlyHypervisor {
        texts: texts("Firecracker", "install Firecracker"),
        program: "firecracker",
        vcpu_prefix: "fc_vcpu ",
        name_option: Some("--id"),
    },
];

const fn texts(name: &'static str, install: &'static str) -> DisplayStrings {
    DisplayStrings {
        name,
        socket: "API socket",
        option: "",
        vcpu_query: "",
        selectors: "",
        thread_names: "wait until the guest boots: its vCPU threads are created then",
        added_options: "",
        install,
        ends_at_once: "it exited by itself",
        script: "",
    }
}

/// The control interface of a hypervisor that is known by its names.
#[derive(Debug, thiserror::Error)]
#[error("pinfold cannot connect to the API socket of {0}")]
struct NoMonitor(&'static str);

impl DriverError for NoMonitor {
    fn hint(&self) -> Option<String> {
        Some("name the machine's process with --pid".to_owned())
    }
}

impl Hypervisor for DetectOnlyHypervisor {
    fn display_strings(&self) -> &'static DisplayStrings {
        let row = NAMED.iter().find(|row| row.program == self.program);
        &row.unwrap_or(&NAMED[0]).texts
    }

    fn is_program(&self, name: &str) -> bool {
        name == self.program || (name.len() == LONGEST_NAME && self.program.starts_with(name))
    }

    fn is_mentioned_in(&self, argument: &str) -> bool {
        argument.rsplit('/').next() == Some(self.program)
    }

    fn role_of(&self, thread_name: &str) -> Role {
        let index = thread_name.strip_prefix(self.vcpu_prefix);
        index.and_then(|index| index.parse().ok()).map_or(Role::Emulator, Role::Vcpu)
    }

    fn accelerator_of(&self, thread_name: &str) -> Option<Accelerator> {
        self.role_of(thread_name).is_vcpu().then_some(Accelerator::Kvm)
    }

    fn parse(&self, command: &[String]) -> Box<dyn MachineCommand> {
        let hypervisor = NAMED.iter().find(|row| row.program == self.program);
        Box::new(NamedCommand {
            hypervisor: hypervisor.unwrap_or(&NAMED[0]),
            given: command.to_vec(),
        })
    }

    fn agent_port(&self, _: &str) -> Vec<String> {
        Vec::new()
    }

    fn start_options(&self, _: &str) -> Vec<String> {
        Vec::new()
    }

    fn connect(&self, _: &str, _: u64) -> Result<Box<dyn Monitor>, VmError> {
        Err(NoMonitor(self.texts.name).into())
    }
}

/// The command line of a running machine.
#[derive(Debug)]
struct NamedCommand {
    hypervisor: &'static DetectOnlyHypervisor,
    given: Vec<String>,
}

impl NamedCommand {
    /// The value of an option: `--option VALUE` or `--option=VALUE`.
    fn option(&self, name: &str) -> Option<&str> {
        let mut arguments = self.given.iter().skip(1).take_while(|argument| *argument != "--");
        while let Some(argument) = arguments.next() {
            match argument.strip_prefix(name) {
                Some("") => return arguments.next().map(String::as_str),
                Some(rest) if rest.starts_with('=') => return rest.get(1..),
                Some(_) | None => {}
            }
        }
        None
    }
}

impl MachineCommand for NamedCommand {
    fn hypervisor(&self) -> &'static dyn Hypervisor {
        self.hypervisor
    }

    fn arguments(&self) -> &[String] {
        &self.given
    }

    fn program(&self) -> &str {
        self.given.first().map_or("", String::as_str)
    }

    fn spec(&self) -> MachineSpec {
        let name = self.hypervisor.name_option.and_then(|option| self.option(option));
        MachineSpec {
            name: name.map(str::to_owned),
            vcpus: None,
            max_vcpus: None,
            iothreads: Vec::new(),
            memory_bytes: None,
            memory_nodes: Vec::new(),
            has_cells: false,
            cells: Vec::new(),
            unread: None,
            accelerator: Some(Accelerator::Kvm),
            without_kvm: Accelerator::Kvm,
        }
    }

    fn check(&self) -> Result<(), VmError> {
        Ok(())
    }

    fn with_topology(&self, _: &GuestTopology) -> Vec<String> {
        self.given.clone()
    }

    fn discard_writes(&self) -> Vec<String> {
        Vec::new()
    }

    fn check_start(&self) -> Result<Start, VmError> {
        Err(NoMonitor(self.hypervisor.texts.name).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hypervisors::{find_by_program, names_of_running};

    #[test]
    fn programs_and_threads_are_known_by_their_names() {
        for (program, vcpu, others) in [
            ("cloud-hypervisor", "vcpu11", ["vmm", "_disk0_q0", "vcpu", "vcpux"]),
            ("cloud-hyperviso", "vcpu11", ["vmm", "_net1_qp0", "", "vcpu-1"]),
            ("crosvm", "crosvm_vcpu11", ["crosvm", "vcpu11", "crosvm_vcpu", "virtio_blk"]),
            ("firecracker", "fc_vcpu 11", ["fc_api", "firecracker", "fc_vcpu", "fc_vcpu  1"]),
        ] {
            let hypervisor = find_by_program(program).expect(program);
            assert_eq!(hypervisor.role_of(vcpu), Role::Vcpu(11), "{program}");
            assert_eq!(hypervisor.accelerator_of(vcpu), Some(Accelerator::Kvm));
            for name in others {
                assert_eq!(hypervisor.role_of(name), Role::Emulator, "{program}: {name}");
            }
            assert!(hypervisor.connect("/run/a", 1).is_err());
        }
        assert!(find_by_program("cloud-hyper").is_none());
        assert_eq!(names_of_running(), "QEMU, Cloud Hypervisor, crosvm or Firecracker");
    }

    #[test]
    fn the_name_of_a_machine_is_in_its_arguments() {
        for (line, name) in [
            ("firecracker --api-sock /run/a --id web-1", Some("web-1")),
            ("crosvm run --name=web", Some("web")),
            ("crosvm run --name", None),
            ("firecracker -- --id no", None),
            ("cloud-hypervisor --id no", None),
        ] {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let command = find_by_program(&words[0]).expect("known").parse(&words);
            assert_eq!(command.spec().name.as_deref(), name, "{line}");
            assert!(command.check_start().is_err());
        }
    }
}
