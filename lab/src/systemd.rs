//! A host under test that systemd runs: its programs and the few units of a bare system.
//!
//! systemd 252 as PID 1 of an initramfs needs its two libraries, `systemctl`, and the targets that
//! units depend on by default; everything else of a distribution may lack.

/// Programs of this machine, each with its path in the guest.
pub(crate) const PROGRAMS: [&str; 3] =
    ["/lib/systemd/systemd", "/usr/bin/systemctl", "/usr/bin/systemd-run"];

/// Of Debian's systemd, for the kernel's command line.
pub(crate) const COMMAND_LINE: &str = "rdinit=/lib/systemd/systemd \
    systemd.unified_cgroup_hierarchy=1 systemd.unit=multi-user.target systemd.show_status=0";

/// The same after a script that mounts a disk.
pub(crate) const COMMAND_LINE_ON_DISK: &str = "rdinit=/lab/disk.sh \
    systemd.unified_cgroup_hierarchy=1 systemd.unit=multi-user.target systemd.show_status=0";
/// `/etc` of a bare system and a few journals need less.
pub(crate) const DISK_SIZE: &str = "32M";

/// Targets that are there and do nothing.
const TARGETS: [&str; 5] = ["sysinit", "basic", "shutdown", "local-fs", "multi-user"];

const UNITS: &str = "/etc/systemd/system";
const AGENT: &str = include_str!("systemd/lab.service");
const SCRIPT: &str = include_str!("systemd/agent.sh");
const DISK: &str = include_str!("systemd/disk.sh");
/// Pinfold's own, as it is installed.
const RECOVER: &str = include_str!("../../packaging/systemd/pinfold-recover.service");

/// The units and what they run, by path.
pub(crate) fn files() -> Vec<(String, Vec<u8>)> {
    let mut files = vec![
        ("/lab/agent.sh".to_owned(), SCRIPT.as_bytes().to_vec()),
        (format!("{UNITS}/lab.service"), AGENT.as_bytes().to_vec()),
        (format!("{UNITS}/pinfold-recover.service"), RECOVER.as_bytes().to_vec()),
    ];
    for target in TARGETS {
        let wants = if target == "multi-user" { "Wants=lab.service\n" } else { "" };
        let text = format!("[Unit]\nDescription={target}\nDefaultDependencies=no\n{wants}");
        files.push((format!("{UNITS}/{target}.target"), text.into_bytes()));
    }
    files
}

/// What mounts the disk before systemd begins.
pub(crate) fn disk_script() -> (String, Vec<u8>) {
    ("/lab/disk.sh".to_owned(), DISK.as_bytes().to_vec())
}
