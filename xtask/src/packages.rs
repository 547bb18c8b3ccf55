//! Installs Debian packages when it may, else prints the exact line and goes on.

use std::process::{Command, Stdio};

/// What building needs.
const BUILD: &[&str] = &["gcc", "libc6-dev", "pkg-config", "libhwloc-dev", "libudev-dev"];
/// What a guest needs: the emulator, its firmware, and the tools that unpack a kernel package.
const GUEST: &[&str] = &["qemu-system-x86", "seabios", "xz-utils"];
/// What a host under test has beside: a shell with its tools, and what kills at a system call.
const LAB: &[&str] = &["busybox-static", "strace"];
/// What fuzzing needs beside: the engine is C++.
const FUZZ: &[&str] = &["g++"];
/// What the tests use beside: oracles (hwloc, libxml2-utils), libvirt,
/// systemd's reader of units, a browser.
const TEST: &[&str] = &[
    "hwloc",
    "libvirt-clients",
    "libvirt-daemon",
    "libvirt-daemon-driver-qemu",
    "libxml2-utils",
    "systemd", // systemd-analyze reads the units that are emitted; nothing is started
    "chromium",
    "cpulimit", // a rival of the benchmark emulate
    // The anchors of `pinfold measure --against`.
    "rt-tests",
    "fio",
    "likwid",
    "linux-perf",
    "stress-ng",
];

/// The cluster of the tests. They start its daemons themselves, as processes of their own.
const SLURM: &[&str] = &["slurmctld", "slurmd", "slurm-client", "munge"];
/// Of these apt starts services, which nobody asked for.
const SERVICES: &[&str] = &["munge", "slurmctld", "slurmd"];

/// What the tests cross-build `pinload` with, and the lab Pinfold; and what runs the result.
const CROSS: &[&str] = &[
    "gcc-aarch64-linux-gnu",
    "libc6-dev-arm64-cross",
    "gcc-riscv64-linux-gnu",
    "libc6-dev-riscv64-cross",
    "qemu-user",
];
/// What runs guests of other instruction sets.
const FOREIGN: &[&str] = &["qemu-system-misc", "qemu-system-arm"];
/// What compiles BPF programs; only who changes one needs it.
const BPF: &[&str] = &["clang-14", "llvm-14"];

/// For what packages are wanted.
pub enum Purpose {
    /// Running the benchmarks.
    Bench,
    /// Compiling BPF programs.
    Bpf,
    /// Building and running the demo.
    Demo,
    /// Fuzzing the parsers.
    Fuzz,
    /// Running the lab.
    Lab,
    /// Running the tests, of which a part of the lab is one.
    Test,
}

/// Installs the packages that are missing for `purpose`; says what it does.
/// Never fails: what cannot be installed is printed, and the work goes on with what is there.
pub fn ensure(purpose: &Purpose) {
    let mut wanted: Vec<&str> = BUILD.iter().chain(GUEST).copied().collect();
    match purpose {
        Purpose::Demo => {}
        Purpose::Bpf => wanted.extend(BPF),
        Purpose::Fuzz => wanted.extend(FUZZ),
        Purpose::Lab => wanted.extend(LAB.iter().chain(CROSS).chain(FOREIGN)),
        Purpose::Test => {
            wanted.extend(LAB.iter().chain(TEST).chain(CROSS).chain(FOREIGN).chain(SLURM))
        }
        Purpose::Bench => wanted.extend(LAB.iter().chain(TEST)),
    }
    let missing: Vec<&str> = wanted.into_iter().filter(|name| !installed(name)).collect();
    if missing.is_empty() {
        return;
    }
    let line = format!("apt-get install -y --no-install-recommends {}", missing.join(" "));
    let prefix: &[&str] = if is_root() {
        &[]
    } else if sudo() {
        &["sudo", "-n"]
    } else {
        println!("Missing packages, and no right to install them. Run, then come back:");
        println!("  sudo {}", line);
        return;
    };
    println!("Installing: {}", missing.join(" "));
    let install = |arguments: &[&str]| {
        let mut words: Vec<&str> = prefix.to_vec();
        words.extend(["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-y"]);
        words.extend(arguments);
        Command::new(words[0]).args(&words[1..]).stdout(Stdio::null()).status()
    };
    let mut arguments = vec!["install", "--no-install-recommends"];
    arguments.extend(&missing);
    let ok = |status: std::io::Result<std::process::ExitStatus>| matches!(status, Ok(s) if s.success());
    if !(ok(install(&["update"])) && ok(install(&arguments))) {
        println!("apt-get could not install all of them; the line to run by hand is");
        println!("  {}", line);
    }
    for service in SERVICES.iter().filter(|service| missing.contains(service)) {
        stop(prefix, service);
    }
}

/// Ends a service that came with a package, now and at the next boot. Where there is no systemd,
/// or the machine's policy let nothing start, there is nothing to end.
fn stop(prefix: &[&str], service: &str) {
    let mut words: Vec<&str> = prefix.to_vec();
    words.extend(["systemctl", "--quiet", "disable", "--now", service]);
    let quiet = || Stdio::null();
    let ended = Command::new(words[0]).args(&words[1..]).stdout(quiet()).stderr(quiet()).status();
    if matches!(ended, Ok(status) if status.success()) {
        println!("The service {} is stopped and disabled: the tests start their own", service);
    }
}

fn installed(package: &str) -> bool {
    Command::new("dpkg-query")
        .args(["-W", "-f=${Status}", package])
        .output()
        .map(|output| output.stdout.ends_with(b"ok installed"))
        .unwrap_or(false)
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().map(|o| o.stdout == b"0\n").unwrap_or(false)
}

fn sudo() -> bool {
    Command::new("sudo")
        .args(["-n", "true"])
        .stderr(Stdio::null())
        .status()
        .map(|status| status.success())
        .unwrap_or(false)
}
