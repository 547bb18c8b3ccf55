//! The names of packages: Debian and Ubuntu, Fedora, Arch, openSUSE.
//!
//! An empty name: part of another package there, or not packaged. Only Debian's are tested.

use std::fs;

/// A package by its names in the order of [`Family`].
pub type Package = [&'static str; 4];

/// Distributions with the same names and the same package manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    Debian,
    Fedora,
    Arch,
    Suse,
}

impl Family {
    /// Of this machine, by os-release(5); Debian if nothing else is known.
    pub fn here() -> Family {
        let text = fs::read_to_string("/etc/os-release").unwrap_or_default();
        Family::parse(&text)
    }

    /// `ID`, then the words of `ID_LIKE`.
    fn parse(os_release: &str) -> Family {
        let value = |key: &str| os_release.lines().find_map(|line| line.strip_prefix(key));
        let words = [value("ID="), value("ID_LIKE=")].into_iter().flatten();
        let words = words.flat_map(|value| value.trim_matches('"').split(' '));
        let known = words.filter_map(|word| match word {
            "debian" | "ubuntu" => Some(Family::Debian),
            "fedora" | "rhel" | "centos" => Some(Family::Fedora),
            "arch" => Some(Family::Arch),
            "suse" | "opensuse" => Some(Family::Suse),
            _ => None,
        });
        known.into_iter().next().unwrap_or(Family::Debian)
    }

    /// The command that installs packages, without their names.
    pub fn install(self) -> &'static str {
        match self {
            Family::Debian => "apt-get install -y --no-install-recommends",
            Family::Fedora => "dnf install",
            Family::Arch => "pacman -S --needed",
            Family::Suse => "zypper install",
        }
    }

    /// The command that succeeds if a package is installed.
    pub fn query(self) -> [&'static str; 2] {
        match self {
            Family::Debian => ["dpkg-query", "--show"],
            Family::Fedora | Family::Suse => ["rpm", "-q"],
            Family::Arch => ["pacman", "-Q"],
        }
    }

    /// The name of a package.
    pub fn name(self, package: &Package) -> &'static str {
        package[self as usize]
    }
}

/// For building.
pub const BUILD: &[Package] = &[
    ["gcc", "gcc", "gcc", "gcc"],
    ["libc6-dev", "glibc-devel", "", "glibc-devel"],
    ["pkg-config", "pkgconf-pkg-config", "pkgconf", "pkgconf-pkg-config"],
    ["libhwloc-dev", "hwloc-devel", "hwloc", "hwloc-devel"],
    ["libudev-dev", "systemd-devel", "systemd-libs", "systemd-devel"],
];
/// For a guest: the emulator, its firmware, and the tools to unpack a kernel package.
pub const GUEST: &[Package] = &[
    ["qemu-system-x86", "qemu-system-x86", "qemu-system-x86", "qemu-x86"],
    ["seabios", "seabios-bin", "seabios", "qemu-seabios"],
    ["xz-utils", "xz", "xz", "xz"],
];
/// For the static binary: a compiler for musl, and what fetches and unpacks hwloc's source.
pub const STATIC: &[Package] = &[
    ["musl-tools", "musl-gcc", "musl", "musl-devel"],
    ["make", "make", "make", "make"],
    ["curl", "curl", "curl", "curl"],
    ["bzip2", "bzip2", "bzip2", "bzip2"],
    ["binutils", "binutils", "binutils", "binutils"],
];
/// For packages of Pinfold: their tools, and a shell for the directories in which they are checked.
pub const DIST: &[Package] = &[
    ["dpkg", "dpkg", "dpkg", "dpkg"],
    ["rpm", "rpm", "rpm-tools", "rpm"],
    ["busybox-static", "busybox", "busybox", "busybox-static"],
];
/// For a host under test: a shell with its tools, and the tool that kills at a system call.
pub const LAB: &[Package] = &[
    ["busybox-static", "busybox", "busybox", "busybox-static"],
    ["libbpf-tools", "libbpf-tools", "libbpf-tools", ""],
    ["strace", "strace", "strace", "strace"],
];
/// For the benchmarks: programs that run in slow nodes.
pub const BENCH: &[Package] = &[
    ["bzip2", "bzip2", "bzip2", "bzip2"],
    ["openssl", "openssl", "openssl", "openssl"],
    ["sqlite3", "sqlite", "sqlite", "sqlite3"],
    ["sysbench", "sysbench", "sysbench", "sysbench"],
    ["xz-utils", "xz", "xz", "xz"],
    ["zstd", "zstd", "zstd", "zstd"],
];
/// For fuzzing: the engine is C++.
pub const FUZZ: &[Package] = &[["g++", "gcc-c++", "gcc", "gcc-c++"]];
/// For the tests: independent tools for comparison (hwloc, libxml2), libvirt, systemd's parser of
/// units, a browser, shells and man for the completions and man pages.
pub const TEST: &[Package] = &[
    ["hwloc", "hwloc", "hwloc", "hwloc"],
    ["libvirt-clients", "libvirt-client", "libvirt", "libvirt-client"],
    ["libvirt-daemon", "libvirt-daemon", "libvirt", "libvirt-daemon"],
    [
        "libvirt-daemon-driver-qemu",
        "libvirt-daemon-driver-qemu",
        "libvirt",
        "libvirt-daemon-driver-qemu",
    ],
    ["libxml2-utils", "libxml2", "libxml2", "libxml2-tools"],
    ["systemd", "systemd", "systemd", "systemd"], // systemd-analyze reads units; nothing is started
    ["chromium", "chromium", "chromium", "chromium"],
    ["zsh", "zsh", "zsh", "zsh"],
    ["fish", "fish", "fish", "fish"],
    ["man-db", "man-db", "man-db", "man"],
    ["rpm", "rpm", "rpm-tools", "rpm"],
    ["cpulimit", "cpulimit", "cpulimit", ""], // a competitor in the benchmark emulate
    // The reference tools of `pinfold measure --against`.
    ["rt-tests", "realtime-tests", "rt-tests", ""],
    ["fio", "fio", "fio", "fio"],
    ["likwid", "", "", ""],
    ["linux-perf", "perf", "perf", "perf"],
    ["stress-ng", "stress-ng", "stress-ng", "stress-ng"],
    // What scrapes the metrics, and checks the rules of alerts (promtool).
    ["prometheus", "", "prometheus", ""],
    // What is attached to vnodes: containers, and hosts of an emulated network on bridges.
    ["runc", "runc", "runc", "runc"],
    ["mininet", "", "mininet", ""],
    ["bridge-utils", "bridge-utils", "bridge-utils", "bridge-utils"],
    // The launchers of programs in vnodes.
    ["openmpi-bin", "openmpi", "openmpi", "openmpi"],
    ["mpich", "mpich", "mpich", "mpich"],
    ["parallel", "parallel", "parallel", "gnu_parallel"],
];
/// The cluster of the tests, which start its daemons themselves, as their own processes.
pub const SLURM: &[Package] = &[
    ["slurmctld", "slurm-slurmctld", "", "slurm"],
    ["slurmd", "slurm-slurmd", "", "slurm-node"],
    ["slurm-client", "slurm", "", "slurm"],
    ["munge", "munge", "munge", "munge"],
];
/// To cross-build `pinload` for the tests and Pinfold for the lab, and to run the result.
pub const CROSS: &[Package] = &[
    ["gcc-aarch64-linux-gnu", "gcc-aarch64-linux-gnu", "aarch64-linux-gnu-gcc", ""],
    ["libc6-dev-arm64-cross", "", "aarch64-linux-gnu-glibc", ""],
    ["gcc-riscv64-linux-gnu", "gcc-riscv64-linux-gnu", "riscv64-linux-gnu-gcc", ""],
    ["libc6-dev-riscv64-cross", "", "riscv64-linux-gnu-glibc", ""],
    ["qemu-user", "qemu-user", "qemu-user", "qemu-linux-user"],
];
/// To run guests of other instruction sets.
pub const FOREIGN: &[Package] = &[
    ["qemu-system-misc", "qemu-system-riscv", "qemu-system-riscv", "qemu-extra"],
    ["qemu-system-arm", "qemu-system-aarch64", "qemu-system-aarch64", "qemu-arm"],
];
/// To compile BPF programs; only needed to change one.
pub const BPF: &[Package] =
    &[["clang-14", "clang", "clang", "clang"], ["llvm-14", "llvm", "llvm", "llvm"]];

#[cfg(test)]
mod tests {
    use super::{Family, BUILD};

    #[test]
    fn distributions_are_known_by_os_release() {
        fn check(text: &str, family: Family) {
            assert_eq!(Family::parse(text), family, "{}", text);
        }

        check("PRETTY_NAME=\"x\"\nID=debian\n", Family::Debian);
        check("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n", Family::Debian);
        check("ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n", Family::Fedora);
        check("ID=manjaro\nID_LIKE=arch\n", Family::Arch);
        check("ID=\"opensuse-tumbleweed\"\nID_LIKE=\"opensuse suse\"\n", Family::Suse);
        check("", Family::Debian);
    }

    #[test]
    fn a_package_has_a_name_for_each_distribution() {
        assert_eq!(Family::Suse.name(&BUILD[3]), "hwloc-devel");
        assert_eq!(Family::Debian.name(&BUILD[3]), "libhwloc-dev");
    }
}
