//! A hypervisor that is no row of the table: everything generic works through the traits.

use pinfold_host::SnapshotHost;
use pinfold_qemu::QemuCommand;

use super::*;
use crate::{hypervisors, qemu, threads};

/// Its threads are called `vcpu0`, `_disk0` and `vmm`, its program `small-vmm`.
#[derive(Debug)]
struct Small;

static TEXTS: DisplayStrings = DisplayStrings {
    name: "Small",
    socket: "API socket",
    option: "--api",
    vcpu_query: "/vcpus",
    selectors: "its API socket (--api)",
    thread_names: "start a newer version",
    added_options: "--api …",
    install: "install small-vmm",
    ends_at_once: "it was asked for its version",
    script: "a script must pass its arguments on",
};

impl Hypervisor for Small {
    fn display_strings(&self) -> &'static DisplayStrings {
        &TEXTS
    }

    fn is_program(&self, name: &str) -> bool {
        name == "small-vmm"
    }

    fn is_mentioned_in(&self, argument: &str) -> bool {
        argument.contains("small-vmm")
    }

    fn role_of(&self, thread_name: &str) -> Role {
        let index = thread_name.strip_prefix("vcpu").and_then(|index| index.parse().ok());
        let disk = thread_name.strip_prefix('_').map(str::to_owned);
        index.map(Role::Vcpu).or(disk.map(Role::Iothread)).unwrap_or(Role::Emulator)
    }

    fn accelerator_of(&self, thread_name: &str) -> Option<Accelerator> {
        thread_name.starts_with("vcpu").then_some(Accelerator::Kvm)
    }

    fn parse(&self, command: &[String]) -> Box<dyn MachineCommand> {
        Box::new(SmallCommand(command.to_vec()))
    }

    fn agent_port(&self, _: &str) -> Vec<String> {
        Vec::new()
    }

    fn start_options(&self, socket: &str) -> Vec<String> {
        vec!["--api".to_owned(), socket.to_owned()]
    }

    fn connect(&self, _: &str, _: u64) -> Result<Box<dyn Monitor>, VmError> {
        Ok(Box::new(Api::default()))
    }
}

/// `small-vmm --cpus 2 --name a`
#[derive(Debug)]
struct SmallCommand(Vec<String>);

impl MachineCommand for SmallCommand {
    fn hypervisor(&self) -> &'static dyn Hypervisor {
        &Small
    }

    fn arguments(&self) -> &[String] {
        &self.0
    }

    fn program(&self) -> &str {
        self.0.first().map_or("", String::as_str)
    }

    fn spec(&self) -> MachineSpec {
        let after = |option: &str| {
            let at = self.0.iter().position(|word| word == option)?;
            self.0.get(at + 1).cloned()
        };
        let vcpus = after("--cpus").and_then(|count| count.parse().ok());
        MachineSpec {
            name: after("--name"),
            vcpus,
            max_vcpus: vcpus,
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
        self.0.clone()
    }

    fn discard_writes(&self) -> Vec<String> {
        Vec::new()
    }

    fn check_start(&self) -> Result<Start, VmError> {
        Ok(Start { socket_name: "api", leaves_stopped: false })
    }
}

/// The control interface of a machine with two vCPUs and one disk.
#[derive(Default)]
struct Api {
    is_stopped: bool,
}

impl Monitor for Api {
    fn hypervisor(&self) -> &'static dyn Hypervisor {
        &Small
    }

    fn peer(&self) -> Option<Tid> {
        Some(VMM)
    }

    fn query_vm(&mut self, meanwhile: &mut dyn FnMut()) -> Result<VmInfo, VmError> {
        meanwhile();
        let iothreads = vec![IothreadInfo { id: "disk0".to_owned(), thread: Tid(103) }];
        Ok(VmInfo { cpus: vec![vcpu(0), vcpu(1)], iothreads })
    }

    fn name(&mut self) -> Result<Option<String>, VmError> {
        Ok(None)
    }

    fn status(&mut self) -> Result<RunState, VmError> {
        let running = !self.is_stopped;
        Ok(RunState { running, name: if running { "Running" } else { "Paused" }.to_owned() })
    }

    fn version(&mut self) -> Result<Version, VmError> {
        Ok(Version { number: (1, 0, 0), package: String::new() })
    }

    fn kvm_enabled(&mut self) -> Result<bool, VmError> {
        Ok(true)
    }

    fn cont(&mut self) -> Result<(), VmError> {
        self.is_stopped = false;
        Ok(())
    }

    fn stop(&mut self) -> Result<(), VmError> {
        self.is_stopped = true;
        Ok(())
    }

    fn quit(&mut self) -> Result<(), VmError> {
        Ok(())
    }
}

fn vcpu(index: u32) -> VcpuInfo {
    VcpuInfo {
        index,
        thread: Tid(101 + index),
        place: CpuInstanceProperties { core: Some(index), ..CpuInstanceProperties::default() },
    }
}

const VMM: Tid = Tid(100);

fn host(program: &str) -> SnapshotHost {
    let mut tree = SnapshotHost::new();
    for (tid, name) in [(100, "vmm"), (101, "vcpu0"), (102, "vcpu1"), (103, "nameless")] {
        let stat =
            format!("{tid} ({name}) S 1 1 1 0 -1 0 {}1 {} 0\n", "0 ".repeat(12), "0 ".repeat(17));
        tree.insert_file(&format!("/proc/100/task/{tid}/stat"), stat);
    }
    tree.insert_file("/proc/100/status", "Name:\tvmm\nTgid:\t100\nPPid:\t1\nUid:\t0\t0\t0\t0\n");
    tree.insert_link("/proc/100/exe", program);
    tree.insert_file("/proc/100/cmdline", "small-vmm\0--cpus\x002\0");
    tree.insert_dir("/proc/100/fd");
    tree
}

#[test]
fn a_machine_is_found_stopped_and_continued_through_the_traits() {
    let host = host("/usr/bin/small-vmm");
    let mut monitor = Small.connect("/run/api", 1).unwrap();
    let found = threads::find(&host, &mut *monitor).unwrap();
    let roles: Vec<String> =
        found.tasks().iter().map(|(task, role)| format!("{} {role}", task.tid)).collect();
    assert_eq!(roles, ["101 vcpu(0)", "102 vcpu(1)", "100 emulator", "103 iothread(disk0)"]);
    assert_eq!((found.vcpus, found.max_vcpus), (2, 2));

    assert!(monitor.status().unwrap().running);
    monitor.stop().unwrap();
    let state = RunState { running: false, name: "Paused".to_owned() };
    assert_eq!(monitor.status().unwrap(), state);
    monitor.cont().unwrap();
    assert!(monitor.status().unwrap().running);
    assert_eq!(monitor.cpus().unwrap()[1].place.core, Some(1));
    assert_eq!(monitor.kvm_statistics().unwrap(), None);
}

#[test]
fn messages_name_the_hypervisor() {
    fn check(tree: &SnapshotHost, expected: &str) {
        let mut monitor = Small.connect("/run/api", 1).unwrap();
        let error = threads::discover(tree, VMM, Some(&mut *monitor)).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }

    let mut tree = host("/usr/bin/small-vmm");
    assert!(tree.remove("/proc/100/task/102/stat"));
    check(&tree, "Small's monitor reports thread 102, which does not belong to process 100");
    // It is no row of the table, so its processes are not found without a monitor.
    let error = threads::discover(&tree, VMM, None).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("process 100 is not {}: it runs small-vmm", hypervisors::names_of_running())
    );
}

#[test]
fn a_command_line_that_names_no_hypervisor_is_for_the_first_one() {
    fn check(line: &str) {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let command = hypervisors::parse(&words);
        assert_eq!(command.hypervisor().display_strings().name, "QEMU", "{line}");
        assert_eq!(command.arguments(), words);
    }

    check("sudo qemu-system-x86_64 -m 64");
    check("./start-vm --smp 2");
    check("");
    let command = Small.parse(&["small-vmm", "--name", "a"].map(str::to_owned));
    assert_eq!(command.spec().name.as_deref(), Some("a"));
    assert_eq!(qemu::command_of(&*command), QemuCommand::default());
    assert!(hypervisors::find_by_program("small-vmm").is_none());
}
