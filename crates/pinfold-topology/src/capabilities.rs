//! Features of a host that Pinfold can use, with reasons and hints.
//!
//! Each capability is a question with *yes* as the good answer. If a file cannot be read, the
//! capability counts as *partly* available, with the kernel's errno in its reason. The modules are
//! groups of questions: `cgroups`, `scheduling`, `guests` (KVM, QEMU, libvirt), `machine` (devices,
//! idle states, memory, the scheduler), `observing`, and `quiet` (services that move or slow down
//! tasks).
//!
//! *Required* marks what `pinfold tune` needs in any case.

mod cgroups;
mod guests;
mod machine;
mod noise_reduction;
mod observability;
mod scheduler;
mod scheduling;

use pinfold_host::{Host, HostError, SnapshotHost, paths, proc_status};

use crate::groups::Groups;
use crate::reader::describe_error;

/// The answer to one question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Available.
    Yes,
    /// Available with limits, or unknown.
    Partly,
    /// Not available.
    No,
}

/// A feature of a host.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Capability {
    /// Its name: `cgroup cpuset`, `KVM`.
    pub name: &'static str,
    /// Whether it is available.
    pub verdict: Verdict,
    /// The reason, as a sentence without full stop.
    pub why: String,
    /// A hint for the user, if there is one.
    pub hint: Option<String>,
    /// True if `pinfold tune` cannot run without it.
    pub required: bool,
}

impl Capability {
    fn new(name: &'static str, verdict: Verdict, why: impl Into<String>) -> Self {
        Self { name, verdict, why: why.into(), hint: None, required: false }
    }

    fn yes(name: &'static str, why: impl Into<String>) -> Self {
        Self::new(name, Verdict::Yes, why)
    }

    fn partly(name: &'static str, why: impl Into<String>) -> Self {
        Self::new(name, Verdict::Partly, why)
    }

    fn no(name: &'static str, why: impl Into<String>) -> Self {
        Self::new(name, Verdict::No, why)
    }

    /// A feature whose file could not be read counts as partly available.
    fn unread(name: &'static str, error: &HostError) -> Self {
        Self::partly(name, format!("not known: {}", describe_error(error)))
    }

    fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    fn require(mut self) -> Self {
        self.required = true;
        self
    }
}

/// A function that answers one question.
type Question = fn(&Context<'_>) -> Capability;

/// The questions whose answer depends only on the machine: a capture can contain them.
const OF_THE_MACHINE: [Question; 14] = [
    scheduling::throttle,
    scheduling::detailed_statistics,
    noise_reduction::cpufreq,
    noise_reduction::huge_pages,
    noise_reduction::numa_balancing,
    machine::iommu,
    machine::vfio,
    machine::same_page_merging,
    machine::swap,
    machine::idle_states,
    machine::halt_polling,
    scheduler::scheduler,
    scheduler::autogroup,
    scheduler::sched_ext,
];

/// Asks the questions that a capture can answer, so that their files are recorded; returns their
/// names.
pub(crate) fn ask_for_capture(host: &dyn Host) -> Vec<&'static str> {
    let context = Context::read(host);
    OF_THE_MACHINE
        .iter()
        .map(|question| question(&context).name)
        .filter(|name| is_known(host, name))
        .collect()
}

fn is_known(host: &dyn Host, name: &&str) -> bool {
    host.is_live() || captured_names(host).iter().any(|one| one == name)
}

/// The names of the questions that a captured machine can answer.
fn captured_names(host: &dyn Host) -> Vec<String> {
    let text = host.read_text(&paths::captured_answers()).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Reason for an unknown capability of a captured machine: it depends on permissions, programs or
/// states that only the machine itself has.
pub const NOT_IN_CAPTURE: &str = "not in the capture";

/// The capabilities of a captured machine. What the capture does not contain is unknown.
pub fn captured_capabilities(host: &SnapshotHost) -> Vec<Capability> {
    let names = captured_names(host);
    capabilities(host)
        .into_iter()
        .map(|found| {
            if names.iter().any(|name| name == found.name) {
                found
            } else {
                Capability {
                    verdict: Verdict::Partly,
                    why: NOT_IN_CAPTURE.to_owned(),
                    hint: None,
                    ..found
                }
            }
        })
        .collect()
}

/// All capabilities, in the order of the output.
#[must_use]
pub fn capabilities(host: &dyn Host) -> Vec<Capability> {
    let context = Context::read(host);
    vec![
        guests::qemu(&context),
        scheduling::affinity(&context),
        scheduling::run_delay(&context),
        guests::kvm(&context),
        guests::libvirt(&context),
        cgroups::controllers(&context),
        cgroups::cpuset(&context),
        cgroups::partitions(&context),
        scheduling::real_time(&context),
        scheduling::throttle(&context),
        scheduling::detailed_statistics(&context),
        observability::perf(&context),
        observability::tracefs(&context),
        observability::bpf(&context),
        noise_reduction::cpufreq(&context),
        noise_reduction::resctrl(&context),
        noise_reduction::irqbalance(&context),
        noise_reduction::huge_pages(&context),
        noise_reduction::numa_balancing(&context),
        noise_reduction::tunables(&context),
        machine::same_page_merging(&context),
        machine::swap(&context),
        machine::idle_states(&context),
        machine::halt_polling(&context),
        scheduler::scheduler(&context),
        scheduler::autogroup(&context),
        scheduler::sched_ext(&context),
        machine::iommu(&context),
        machine::vfio(&context),
    ]
}

/// Whether KVM runs ordinary guests on this host.
pub fn kvm_capability(host: &dyn Host) -> Capability {
    guests::kvm(&Context::read(host))
}

/// True if no required capability is missing.
#[must_use]
pub fn has_required_capabilities(capabilities: &[Capability]) -> bool {
    capabilities.iter().all(|one| !one.required || one.verdict != Verdict::No)
}

/// Linux capabilities that matter; numbers of `capabilities(7)`.
#[derive(Clone, Copy)]
enum LinuxCapability {
    SysAdmin = 21,
    SysNice = 23,
    Perfmon = 38,
    Bpf = 39,
}

/// Data that several questions need, read once.
struct Context<'h> {
    host: &'h dyn Host,
    groups: Result<Groups, HostError>,
    status: Result<String, HostError>,
    filesystems: Result<String, HostError>,
}

impl<'h> Context<'h> {
    fn read(host: &'h dyn Host) -> Self {
        Self {
            host,
            groups: Groups::read(host),
            status: host.read_text(&paths::own_status()),
            filesystems: host.read_text(&paths::filesystems()),
        }
    }

    /// True if this process has the Linux capability in its effective set.
    fn has(&self, right: LinuxCapability) -> bool {
        self.status
            .as_ref()
            .ok()
            .and_then(|status| proc_status::field(status, "CapEff"))
            .and_then(|mask| u64::from_str_radix(mask, 16).ok())
            .is_some_and(|mask| mask & (1 << right as u32) != 0)
    }

    /// The trimmed text of a file; `None` if it does not exist.
    fn text(&self, path: &str) -> Result<Option<String>, HostError> {
        match self.host.read_text(path) {
            Ok(text) => Ok(Some(text.trim().to_owned())),
            Err(error) if error.is_gone() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Names in a directory; `None` if it does not exist.
    fn names(&self, path: &str) -> Result<Option<Vec<String>>, HostError> {
        match self.host.list(path) {
            Ok(names) => Ok(Some(names)),
            Err(error) if error.is_gone() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// True if the kernel supports this file system.
    fn knows_filesystem(&self, kind: &str) -> Result<bool, &HostError> {
        self.filesystems
            .as_ref()
            .map(|text| text.lines().any(|line| line.split('\t').next_back() == Some(kind)))
    }

    /// Mount point of a file system, if it is mounted.
    fn find_mount(&self, kind: &str) -> Option<&str> {
        let mounts = self.groups.as_ref().ok()?.mounts();
        mounts.iter().rev().find(|mount| mount.kind == kind).map(|mount| mount.path.as_str())
    }
}

#[cfg(test)]
mod tests;
