//! Recorded process trees, and a monitor with recorded replies.

use pinfold_host::SnapshotHost;
use serde_json::{Value, json};

use super::*;
use crate::qemu::{Qemu, QmpTransport};

/// Replies like QEMU.
#[derive(Default)]
struct Recorded {
    kvm: bool,
    cpus: Vec<(u32, u32)>,
    iothreads: Vec<(&'static str, u32)>,
    peer: Option<Tid>,
    peer_user: Option<u32>,
}

impl QmpTransport for Recorded {
    fn execute(&mut self, command: &str, _: Option<Value>) -> Result<Value, VmError> {
        Ok(match command {
            "query-kvm" => json!({"enabled": self.kvm, "present": true}),
            "query-cpus-fast" => self.cpus.iter().map(|(index, tid): &(u32, u32)| json!({"cpu-index": index, "thread-id": tid, "qom-path": "/x"})).collect(),
            _ => {
                self.iothreads.iter().map(|(id, tid)| json!({"id": id, "thread-id": tid})).collect()
            }
        })
    }

    fn peer_process(&self) -> Option<Tid> {
        self.peer
    }

    fn peer_owner(&self) -> Option<u32> {
        self.peer_user
    }
}

const QEMU: Tid = Tid(100);

/// A host with a QEMU process 100 with these additional threads, and with these kernel threads.
fn host(threads: &[(u32, &str)], kernel: &[(u32, &str)]) -> SnapshotHost {
    let mut tree = SnapshotHost::new();
    let main = [(QEMU.0, "qemu-system-x86")];
    for (tid, name) in main.iter().chain(threads) {
        tree.insert_file(&format!("/proc/100/task/{tid}/stat"), stat(*tid, name, 0));
        let status = format!("Name:\t{name}\nTgid:\t100\nPPid:\t1\nUid:\t0\t0\t0\t0\n");
        tree.insert_file(&format!("/proc/{tid}/status"), status);
    }
    tree.insert_link("/proc/100/exe", "/usr/bin/qemu-system-x86_64 (deleted)");
    tree.insert_file("/proc/100/cmdline", "qemu-system-x86_64\0-smp\x003\0");
    tree.insert_dir("/proc/100/fd");
    let kernel_flag = 0x0020_0000;
    let children: Vec<String> = kernel.iter().map(|(tid, _)| tid.to_string()).collect();
    tree.insert_file("/proc/2/task/2/children", children.join(" "));
    for (tid, name) in [(2, "kthreadd")].iter().chain(kernel) {
        tree.insert_file(&format!("/proc/{tid}/stat"), stat(*tid, name, kernel_flag));
    }
    tree
}

fn stat(tid: u32, name: &str, flags: u32) -> String {
    format!(
        "{tid} ({name}) S 1 1 1 0 -1 {flags} 0 0 0 0 0 0 0 0 20 0 1 0 {} {} 0\n",
        tid + 1000,
        "0 ".repeat(16)
    )
}

/// `tid role` of each thread, in the given order.
fn roles(found: &DiscoveredVm) -> Vec<String> {
    found.threads.iter().map(|thread| format!("{} {}", thread.task.tid, thread.role)).collect()
}

#[test]
fn believes_the_monitor_before_names() {
    // Names are deliberately swapped, missing or truncated.
    let mut host = host(
        &[
            (101, "qemu-system-x86"),
            (102, "IO mon_iothread"),
            (103, "CPU 1/KVM"),
            (104, "CPU 0/KVM"),
            (105, "worker"),
            (106, "vhost-100"),
        ],
        &[],
    );
    let mut monitor = Recorded {
        kvm: false, // not queried: the descriptors show it
        cpus: vec![(0, 103), (1, 104)],
        iothreads: vec![("io-disk-with-long-name", 101)],
        ..Recorded::default()
    };
    host.insert_link("/proc/100/fd/9", "anon_inode:kvm-vm");
    let found = discover(&host, QEMU, Some(&mut monitor)).unwrap();
    let expected = [
        "103 vcpu(0)",
        "104 vcpu(1)",
        "100 emulator",
        "102 emulator",
        "101 iothread(io-disk-with-long-name)",
        "106 vhost(0)",
        "105 worker",
    ];
    assert_eq!(roles(&found), expected);
    assert_eq!((found.accelerator, found.vcpus), (Some(Accelerator::Kvm), 2));
    assert_eq!(found.findings, []);
    assert_eq!(found.threads[0].task, TaskId { tid: Tid(103), start_time: 1103 });
    found.require_own_threads().unwrap();
}

#[test]
fn finds_kernel_threads_outside_the_process() {
    fn monitor() -> Recorded {
        Recorded { kvm: true, cpus: vec![(0, 101)], iothreads: vec![], ..Recorded::default() }
    }

    let kernel =
        [(53, "rcu_preempt"), (150, "vhost-100"), (151, "vhost-999"), (152, "kvm-pit/100")];
    let mut host = host(&[(101, "CPU 0/KVM"), (102, "vhost-100")], &kernel);
    let inside = ["101 vcpu(0)", "100 emulator", "102 vhost(0)"];
    let found = discover(&host, QEMU, Some(&mut monitor())).unwrap();
    assert_eq!(roles(&found), inside, "no descriptor speaks of kernel threads");

    host.insert_link("/proc/100/fd/9", "/dev/vhost-net");
    let all = ["101 vcpu(0)", "100 emulator", "152 emulator", "102 vhost(0)", "150 vhost(1)"];
    let found = discover(&host, QEMU, Some(&mut monitor())).unwrap();
    assert_eq!(roles(&found), all);

    // Without CONFIG_PROC_CHILDREN, and with unreadable descriptors.
    assert!(host.remove("/proc/2/task/2/children"));
    assert!(host.remove("/proc/100/fd"));
    let found = discover(&host, QEMU, Some(&mut monitor())).unwrap();
    assert_eq!(roles(&found), all);
}

#[test]
fn finds_the_back_ends_of_its_devices() {
    let mut host = host(&[(101, "CPU 0/KVM")], &[]);
    for (pid, name, inode) in [(201, "virtiofsd", 41), (203, "virtiofsd", 42), (205, "ovs", 41)] {
        host.insert_file(&format!("/proc/{pid}/comm"), format!("{name}\n"));
        host.insert_link(&format!("/proc/{pid}/fd/5"), &format!("socket:[{inode}]"));
        for tid in [pid, pid + 1] {
            host.insert_file(&format!("/proc/{pid}/task/{tid}/stat"), stat(tid, name, 0));
        }
    }
    let line = "0: 00000003 00000000 00000000 0001 03 41 /run/fs.sock\n\
                0: 00000003 00000000 00000000 0001 03 42 /run/other.sock\n";
    host.insert_file("/proc/net/unix", line);
    let found = discover(&host, QEMU, None).unwrap();
    assert_eq!(roles(&found), ["101 vcpu(0)", "100 emulator"], "no such device");
    let command = "qemu-system-x86_64\0-chardev\0socket,id=c,path=/run/fs.sock\0-device\0vhost-user-fs-pci,chardev=c\0";
    host.insert_file("/proc/100/cmdline", command);
    let found = discover(&host, QEMU, None).unwrap();
    let with_its_own = ["101 vcpu(0)", "100 emulator", "201 worker", "202 worker"];
    assert_eq!(roles(&found), with_its_own);
}

#[test]
fn recognises_vcpus_in_one_thread() {
    let tree = host(&[(101, "ALL CPUs/TCG")], &[]);
    let mut monitor = Recorded {
        kvm: false,
        cpus: vec![(0, 101), (1, 101), (2, 101)],
        iothreads: vec![],
        ..Recorded::default()
    };
    for found in [discover(&tree, QEMU, Some(&mut monitor)), discover(&tree, QEMU, None)] {
        let found = found.unwrap();
        assert_eq!(roles(&found), ["101 vcpu(0)", "100 emulator"]);
        assert_eq!((found.accelerator, found.vcpus), (Some(Accelerator::TcgSingle), 3));
        let error = found.require_own_threads().unwrap_err();
        assert!(error.to_string().contains("all 3 vCPUs run in one thread"), "{error}");
        assert!(found.findings.iter().any(|finding| finding.subject == "vCPUs"));
    }

    check("ALL CPUs/TCG", Accelerator::TcgSingle);
    check("CPU 0/TCG", Accelerator::TcgMulti);
}

fn check(name: &str, expected: Accelerator) {
    let mut monitor =
        Recorded { kvm: false, cpus: vec![(0, 101)], iothreads: vec![], ..Recorded::default() };
    let found = discover(&host(&[(101, name)], &[]), QEMU, Some(&mut monitor)).unwrap();
    assert_eq!(found.accelerator, Some(expected), "{name}");
    found.require_own_threads().unwrap();
}

#[test]
fn goes_by_names_alone_and_says_so() {
    let threads = [(101, "CPU 0/KVM"), (102, "CPU 1/KVM"), (103, "IO disk"), (104, "call_rcu")];
    let found = discover(&host(&threads, &[]), Tid(103), None).unwrap();
    let expected =
        ["101 vcpu(0)", "102 vcpu(1)", "100 emulator", "104 emulator", "103 iothread(disk)"];
    assert_eq!(roles(&found), expected);
    assert_eq!((found.pid, found.accelerator), (QEMU, Some(Accelerator::Kvm)));
    assert!(found.findings[0].text.contains("only by their names"));
}

#[test]
fn finds_what_executes_a_guest_whose_threads_have_no_names() {
    let mut tree = host(&[(101, "qemu-system-x86")], &[]);
    // It holds no KVM virtual machine, although its command line requests KVM.
    tree.insert_file("/proc/100/cmdline", "qemu-system-x86_64\0-accel\0kvm\0-accel\0tcg\0");
    assert_eq!(read_accelerator(&tree), Some(Accelerator::TcgMulti));
    tree.insert_link("/proc/100/fd/9", "anon_inode:kvm-vm");
    assert_eq!(read_accelerator(&tree), Some(Accelerator::Kvm));
    assert!(accelerator_of(&tree, Tid(7)).unwrap_err().is_gone());
}

fn read_accelerator(tree: &SnapshotHost) -> Option<Accelerator> {
    accelerator_of(tree, QEMU).unwrap()
}

#[test]
fn refuses_what_is_no_virtual_machine() {
    fn check(error: VmError, expected: &str) {
        assert_eq!(error.to_string(), expected);
    }

    let mut tree = host(&[(101, "qemu-system-x86")], &[]);
    let gone = discover(&tree, Tid(7), None).unwrap_err();
    assert!(gone.is_gone());
    check(gone, "there is no process 7");
    check(
        discover(&tree, QEMU, None).unwrap_err(),
        "no thread of process 100 has the name of a vCPU: either the virtual machine has no vCPU, or \
         its threads are not named",
    );
    let mut foreign =
        Recorded { kvm: false, cpus: vec![(0, 555)], iothreads: vec![], ..Recorded::default() };
    check(
        discover(&tree, QEMU, Some(&mut foreign)).unwrap_err(),
        "QEMU's monitor reports thread 555, which does not belong to process 100",
    );
    let mut none = Recorded { kvm: false, cpus: vec![], iothreads: vec![], ..Recorded::default() };
    check(
        discover(&tree, QEMU, Some(&mut none)).unwrap_err(),
        "the virtual machine has no vCPU thread",
    );

    tree.insert_link("/proc/100/exe", "/usr/bin/bash");
    check(
        discover(&tree, QEMU, None).unwrap_err(),
        &format!("process 100 is not {}: it runs bash", hypervisors::names_of_running()),
    );
    assert!(tree.remove("/proc/100/exe"));
    tree.insert_file("/proc/100/cmdline", "/opt/my programs/python3\0-S\0");
    check(
        discover(&tree, QEMU, None).unwrap_err(),
        &format!("process 100 is not {}: it runs python3", hypervisors::names_of_running()),
    );
    tree.insert_file("/proc/100/cmdline", "");
    tree.insert_file("/proc/100/comm", "kworker/0:1\n");
    check(
        discover(&tree, QEMU, None).unwrap_err(),
        &format!("process 100 is not {}: it runs kworker/0:1", hypervisors::names_of_running()),
    );
}

/// Process 1 in addition to the QEMU of [`host`], with threads that a false reply can name.
fn host_with_init() -> SnapshotHost {
    let mut tree = host(&[(101, "CPU 0/KVM")], &[]);
    let stat = format!("1 (systemd) S 0 1 1 0 -1 0 {}1 {} 0\n", "0 ".repeat(12), "0 ".repeat(17));
    tree.insert_file("/proc/1/task/1/stat", stat);
    tree.insert_file("/proc/1/status", "Name:\tsystemd\nTgid:\t1\nPPid:\t0\nUid:\t0\t0\t0\t0\n");
    tree.insert_link("/proc/1/exe", "/usr/lib/systemd/systemd");
    tree
}

/// A monitor that reports this thread as its first vCPU, with the process and user at its socket.
fn monitor(vcpu: u32, peer: Option<u32>, peer_user: u32) -> Recorded {
    let peer = peer.map(Tid);
    Recorded { cpus: vec![(0, vcpu)], peer, peer_user: Some(peer_user), ..Recorded::default() }
}

#[test]
fn a_qemu_that_was_taken_over_cannot_pass_another_process_off_as_its_machine() {
    fn check(tree: &SnapshotHost, vcpu: u32, peer: Option<u32>, expected: &str) {
        let error = find(tree, &mut monitor(vcpu, peer, 0)).unwrap_err();
        assert_eq!(error.to_string(), expected, "vCPU {vcpu} told by {peer:?}");
    }

    let tree = host_with_init();
    check(&tree, 1, Some(QEMU.0), &not_its_own(1));
    check(&tree, 555, Some(QEMU.0), &not_its_own(555));
    // The socket was created by init, which is no machine, or by a process that has ended.
    for peer in [Some(1), Some(7), None] {
        check(&tree, 1, peer, "process 1 is not QEMU: it runs systemd");
        check(&tree, 555, peer, "there is no process 555");
    }
}

fn not_its_own(tid: u32) -> String {
    format!("QEMU's monitor reports thread {tid}, which does not belong to process 100")
}

#[test]
fn a_socket_that_another_process_made_leads_to_its_qemu() {
    let tree = host_with_init();
    for peer in [Some(QEMU.0), Some(1), Some(7), None] {
        let found = find(&tree, &mut monitor(101, peer, 0)).unwrap();
        assert_eq!(roles(&found), ["101 vcpu(0)", "100 emulator"], "{peer:?}");
    }
    let error = find(&tree, &mut monitor(101, Some(7), 4_000_000)).unwrap_err();
    let expected = "the monitor reports threads of process 100, which belongs to user 0, but its \
                    socket belongs to user 4000000";
    assert_eq!(error.to_string(), expected);
}

#[test]
fn finds_roles_by_name() {
    fn check(name: &str, alone: Role, rest: Role) {
        assert_eq!(role_by_name(&Qemu, name), alone, "{name}");
        assert_eq!(role_of_rest(&Qemu, name), rest, "{name} beside a monitor");
    }

    check("CPU 0/KVM", Role::Vcpu(0), Role::Emulator);
    check("IO io0", Role::Iothread("io0".to_owned()), Role::Emulator);
    check("worker", Role::Worker, Role::Worker);
    check("iou-wrk-123", Role::Worker, Role::Worker);
    check("vhost-123", Role::Vhost(0), Role::Vhost(0));
    check("vhost-net", Role::Emulator, Role::Emulator);
}
