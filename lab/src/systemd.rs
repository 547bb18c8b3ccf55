//! A host under test with systemd as init: its programs and the few units of a minimal system.
//!
//! systemd 252 as PID 1 of an initramfs needs its two libraries, `systemctl`, and the targets that
//! units depend on by default; all other parts of a distribution may be missing.

/// Programs of this machine, each with its path in the guest.
pub(crate) const PROGRAMS: [&str; 3] =
    ["/lib/systemd/systemd", "/usr/bin/systemctl", "/usr/bin/systemd-run"];

/// For Debian's systemd, in the kernel command line.
pub(crate) const COMMAND_LINE: &str = "rdinit=/lib/systemd/systemd \
    systemd.unified_cgroup_hierarchy=1 systemd.unit=multi-user.target systemd.show_status=0";

/// As `COMMAND_LINE`, after a script that mounts a disk.
pub(crate) const COMMAND_LINE_ON_DISK: &str = "rdinit=/lab/disk.sh \
    systemd.unified_cgroup_hierarchy=1 systemd.unit=multi-user.target systemd.show_status=0";
/// Enough for `/etc` of a minimal system and a few journals.
pub(crate) const DISK_SIZE: &str = "32M";

/// Targets that exist and do nothing.
const TARGETS: [&str; 5] = ["sysinit", "basic", "shutdown", "local-fs", "multi-user"];

const UNITS: &str = "/etc/systemd/system";
const AGENT: &str = include_str!("systemd/lab.service");
const SCRIPT: &str = include_str!("systemd/agent.sh");
const DISK: &str = include_str!("systemd/disk.sh");
/// Pinfold's own unit, as it is installed.
const RECOVER: &str = include_str!("../../packaging/systemd/pinfold-recover.service");

/// The path of Pinfold's own unit.
pub(crate) fn recover_unit() -> String {
    format!("{UNITS}/pinfold-recover.service")
}

/// The units and the files that they run, by path.
pub(crate) fn files() -> Vec<(String, Vec<u8>)> {
    let mut files = vec![
        ("/lab/agent.sh".to_owned(), SCRIPT.as_bytes().to_vec()),
        (format!("{UNITS}/lab.service"), AGENT.as_bytes().to_vec()),
        (recover_unit(), RECOVER.as_bytes().to_vec()),
    ];
    for target in TARGETS {
        let wants = if target == "multi-user" { "Wants=lab.service\n" } else { "" };
        let text = format!("[Unit]\nDescription={target}\nDefaultDependencies=no\n{wants}");
        files.push((format!("{UNITS}/{target}.target"), text.into_bytes()));
    }
    files
}

/// The script that mounts the disk before systemd starts.
pub(crate) fn disk_script() -> (String, Vec<u8>) {
    ("/lab/disk.sh".to_owned(), DISK.as_bytes().to_vec())
}
