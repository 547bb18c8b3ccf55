//! Installs Debian packages if it may, else prints the command and continues.

use std::process::{Command, Stdio};

/// Packages for building.
const BUILD: &[&str] = &["gcc", "libc6-dev", "pkg-config", "libhwloc-dev", "libudev-dev"];
/// Packages for a guest: the emulator, its firmware, and the tools to unpack a kernel package.
const GUEST: &[&str] = &["qemu-system-x86", "seabios", "xz-utils"];
/// Additional packages for the static binary: a compiler for musl, and what fetches and unpacks
/// hwloc's source.
const STATIC: &[&str] = &["musl-tools", "make", "curl", "bzip2", "binutils"];
/// Additional packages for a host under test: a shell with its tools, and the tool that kills at a
/// system call.
const LAB: &[&str] = &["busybox-static", "strace"];
/// Additional package for fuzzing: the engine is C++.
const FUZZ: &[&str] = &["g++"];
/// Additional packages for the tests: independent tools for comparison (hwloc, libxml2-utils),
/// libvirt, systemd's parser of units, a browser.
const TEST: &[&str] = &[
    "hwloc",
    "libvirt-clients",
    "libvirt-daemon",
    "libvirt-daemon-driver-qemu",
    "libxml2-utils",
    "systemd", // systemd-analyze reads the units that are emitted; nothing is started
    "chromium",
    "cpulimit", // a competitor in the benchmark emulate
    // The reference tools of `pinfold measure --against`.
    "rt-tests",
    "fio",
    "likwid",
    "linux-perf",
    "stress-ng",
];

/// The cluster of the tests, which start its daemons themselves, as their own processes.
const SLURM: &[&str] = &["slurmctld", "slurmd", "slurm-client", "munge"];
/// apt starts services of these packages, which are not wanted.
const SERVICES: &[&str] = &["munge", "slurmctld", "slurmd"];

/// Packages to cross-build `pinload` for the tests and Pinfold for the lab, and to run the result.
const CROSS: &[&str] = &[
    "gcc-aarch64-linux-gnu",
    "libc6-dev-arm64-cross",
    "gcc-riscv64-linux-gnu",
    "libc6-dev-riscv64-cross",
    "qemu-user",
];
/// Packages to run guests of other instruction sets.
const FOREIGN: &[&str] = &["qemu-system-misc", "qemu-system-arm"];
/// Packages to compile BPF programs; only needed to change one.
const BPF: &[&str] = &["clang-14", "llvm-14"];

/// What the packages are for.
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
    /// Building the static binary.
    Static,
    /// Running the tests, which include a part of the lab.
    Test,
}

/// Installs the packages that are missing for `purpose`, and prints what it does. Never fails:
/// packages that cannot be installed are printed, and the work continues without them.
pub fn ensure(purpose: &Purpose) {
    let mut wanted: Vec<&str> = BUILD.iter().chain(GUEST).copied().collect();
    match purpose {
        Purpose::Demo => {}
        Purpose::Bpf => wanted.extend(BPF),
        Purpose::Fuzz => wanted.extend(FUZZ),
        Purpose::Static => wanted.extend(STATIC),
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

/// Stops a service that came with a package, now and at the next boot. Without systemd, or if a
/// policy prevented its start, there is nothing to stop.
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
