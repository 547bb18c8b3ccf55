//! Every parser of Pinfold as a target of coverage-guided fuzzing.
//!
//! A [`Target`] accepts any bytes and must return: no panic, no overflow, no endless loop. Parsed
//! input is also written, if the format has a writer, and must parse to the same value.
//! `cargo xtask fuzz` runs the engine; the stored inputs are in `fixtures/fuzz/`, and a test runs
//! all of them.

pub mod corpus;
mod kernel;
mod machines;
mod people;
mod text;

/// A parser with a name.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name: that of its corpus, and the argument of `cargo xtask fuzz`.
    pub name: &'static str,
    /// What it parses.
    pub about: &'static str,
    /// Parses any bytes.
    pub run: fn(&[u8]),
}

/// All targets: kernel files, files of users, output of other programs.
pub const TARGETS: [Target; 35] = [
    Target { name: "cpu-list", about: "lists of CPUs", run: kernel::cpu_list },
    Target { name: "cpu-mask", about: "masks of CPUs", run: kernel::cpu_mask },
    Target { name: "proc-stat", about: "/proc/PID/stat", run: kernel::stat },
    Target { name: "proc-status", about: "/proc/PID/status", run: kernel::status },
    Target { name: "proc-cgroup", about: "/proc/PID/cgroup", run: kernel::cgroup },
    Target { name: "mountinfo", about: "/proc/PID/mountinfo", run: kernel::mounts },
    Target { name: "numa-maps", about: "numa_maps, page tables by node", run: kernel::maps },
    Target { name: "schedstat", about: "/proc/PID/schedstat", run: kernel::sched },
    Target { name: "proc-maps", about: "/proc/PID/maps", run: kernel::mappings },
    Target { name: "event-format", about: "formats of trace events", run: kernel::event_format },
    Target { name: "capture", about: "captured /proc and /sys", run: kernel::capture },
    Target { name: "hwloc-xml", about: "hwloc's XML", run: kernel::hwloc_xml },
    Target { name: "synthetic", about: "synthetic descriptions", run: kernel::synthetic },
    Target { name: "request", about: "request files (TOML)", run: people::request },
    Target { name: "platform", about: "platform files (TOML)", run: people::platform },
    Target { name: "study", about: "study files (TOML)", run: people::study },
    Target { name: "played", about: "speeds and loads over time (CSV)", run: people::played },
    Target { name: "words", about: "words of the command line", run: people::words },
    Target { name: "plan", about: "plans (JSON)", run: people::plan },
    Target { name: "claims", about: "files of owners of CPUs", run: people::claims },
    Target { name: "domain-xml", about: "libvirt's domain files", run: people::domain },
    Target { name: "qemu-argv", about: "command lines of QEMU", run: people::argv },
    Target { name: "journal", about: "journals (JSON lines)", run: machines::journal },
    Target { name: "qmp", about: "what a QMP socket says", run: machines::qmp },
    Target { name: "agent", about: "what a guest's agent says", run: machines::agent },
    Target { name: "ruler", about: "what a ruler prints", run: machines::benchmark },
    Target { name: "profile", about: "profiles of machines", run: machines::profile },
    Target { name: "workload", about: "what a study's workload prints", run: machines::workload },
    Target { name: "slurm", about: "what Slurm's programs answer", run: machines::slurm },
    Target { name: "result", about: "what a node delivers (JSON)", run: machines::result },
    Target { name: "program", about: "symbols of a program (ELF)", run: machines::program },
    Target {
        name: "anchor",
        about: "what instruments of others print",
        run: machines::reference_tool,
    },
    Target { name: "measurement", about: "saved measurements (JSON)", run: people::measurement },
    Target { name: "top", about: "recorded snapshots (JSON lines)", run: people::top },
    Target { name: "gaps", about: "recorded gaps (JSON lines)", run: people::gaps },
];

/// The target with this name.
#[must_use]
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
