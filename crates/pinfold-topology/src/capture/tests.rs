//! Table tests of `capture`.

use pinfold_host::{Host, LiveHost, SnapshotHost, files, process};

use super::{capture, reduced_cpuinfo, reduced_parameters};

#[test]
fn only_boot_parameters_of_the_cpus_stay() {
    check(
        "root=UUID=1-2 isolcpus=domain,2-3 quiet nohz_full=2-3\n",
        "isolcpus=domain,2-3 nohz_full=2-3\n",
    );
    check("BOOT_IMAGE=/vmlinuz ip=10.0.0.1 hostname=x nosmt\n", "nosmt\n");
    check("nosmt -- isolcpus=1 token=secret", "nosmt\n");
    check("", "\n");
}

fn check(text: &str, kept: &str) {
    assert_eq!(reduced_parameters(text), kept, "{text}")
}

#[test]
fn serial_numbers_of_boards_go() {
    let text = "processor\t: 0\nmodel name\t: X\nflags\t\t: a b\nSerial\t\t: 1000dead\n";
    let kept = reduced_cpuinfo(text).unwrap();
    assert_eq!(kept, "processor\t: 0\nmodel name\t: X\nflags\t: a b\n");
    assert_eq!(reduced_cpuinfo(""), None);
}

#[test]
fn vendors_of_machines_go_and_those_of_hypervisors_stay() {
    fn check(vendor: &str, stays: bool) {
        let path = "/sys/devices/virtual/dmi/id/sys_vendor";
        let xml = "<topology version=\"2.0\"/>";
        let host = SnapshotHost::from_files([(path, vendor), ("/pinfold/hwloc.xml", xml)]);
        let captured = SnapshotHost::parse(&capture(&host).unwrap()).unwrap();
        assert_eq!(captured.read_text(path).is_ok(), stays, "{vendor}");
    }

    check("QEMU\n", true);
    check("Anna's own workshop\n", false);
}

#[test]
fn free_memory_of_a_node_stays() {
    let file = "/sys/devices/system/node/node0/meminfo";
    let text = "Node 0 MemTotal: 9 kB\nNode 0 MemFree: 3 kB\nNode 0 AnonPages: 5 kB\n";
    let host = SnapshotHost::from_files([
        (file, text),
        ("/sys/devices/system/node/has_memory", "0\n"),
        ("/pinfold/hwloc.xml", "<topology version=\"2.0\"/>"),
    ]);
    let captured = SnapshotHost::parse(&capture(&host).unwrap()).unwrap();
    assert_eq!(
        captured.read_text(file).unwrap().trim(),
        "Node 0 MemTotal: 9 kB\nNode 0 MemFree: 3 kB"
    );
}

#[test]
fn the_running_machine_is_not_named() {
    let host = LiveHost::new().unwrap();
    let text = capture(&host).unwrap();
    assert!(text.starts_with("pinfold-capture 1\n"));
    for path in ["/proc/sys/kernel/hostname", "/etc/machine-id", "/proc/sys/kernel/random/boot_id"]
    {
        let Ok(secret) = files::read_text(path) else { continue };
        let secret = secret.trim();
        // A short host name ("vm") may be part of any word.
        if secret.len() > 4 {
            assert!(!text.contains(secret), "{path} is in the capture");
        }
    }
    for part in ["HostName", "ProcessName", "LinuxCgroup", "/proc/self/cgroup", "mountinfo"] {
        assert!(!text.contains(part), "{part} is in the capture");
    }
    let tree = SnapshotHost::parse(&text).unwrap();
    assert_eq!(tree.list("/proc").unwrap(), ["cmdline", "cpuinfo", "self", "swaps", "sys"]);
    assert!(!text.contains(&format!("/proc/{}", process::own_pid())));
}
