//! Why exits cannot be observed, with hints.

use pinfold_host::{Host, HostError, paths};

const EPERM: i32 = 1;
const ENOENT: i32 = 2;
const EACCES: i32 = 13;
const ENODEV: i32 = 19;
const EINVAL: i32 = 22;

/// Why exits cannot be observed.
#[derive(Debug, thiserror::Error)]
pub enum ExitsError {
    /// Kernel lockdown forbids the observation.
    #[error("this kernel is locked down ({mode}): no program may read its events")]
    LockedDown {
        /// The lockdown mode: `confidentiality`.
        mode: String,
        /// The operation that was refused.
        source: HostError,
    },
    /// The user lacks the privileges.
    #[error("the kernel does not permit this user to observe its events")]
    Rights {
        /// The operation that was refused.
        source: HostError,
    },
    /// The kernel has no trace file system.
    #[error("this kernel has no trace file system, so its events cannot be found")]
    NoTracing {
        /// The operation that failed.
        source: HostError,
    },
    /// KVM is not available.
    #[error("this kernel has no KVM events")]
    NoKvm {
        /// The operation that failed.
        source: HostError,
    },
    /// The BPF program was refused although the privileges suffice.
    #[error("the kernel rejects the BPF program that observes its events")]
    Refused {
        /// The operation that was refused.
        source: HostError,
    },
    /// This process is not in the initial PID namespace, whose process ids the events contain.
    #[error("this process is in a container's PID namespace, but trace events contain host PIDs")]
    Container,
    /// The events exist, but none fired.
    #[error(
        "no exit in {} s: neither kvm_exit nor kvm_userspace_exit fired for this machine",
        *timeout_ns as f64 / 1e9
    )]
    Silent {
        /// Length of the observation (ns).
        timeout_ns: u64,
    },
    /// The machine has ended.
    #[error("the machine exited before it could be observed")]
    Ended,
    /// The micro-guest did not do the requested work.
    #[error("the micro-guest {what}")]
    MicroGuest {
        /// What it did.
        what: String,
    },
    /// The reply to `query-stats` does not have the format that QEMU documents.
    #[error("query-stats: {why}")]
    Statistics {
        /// What is wrong with the reply.
        why: String,
    },
    /// Any other error of the host.
    #[error(transparent)]
    Host(HostError),
}

impl ExitsError {
    /// Classifies an error of this host.
    pub(crate) fn explain(host: &dyn Host, source: HostError) -> Self {
        let is_load = matches!(source, HostError::File { operation: "load", .. });
        match (lockdown(host), source.errno()) {
            (Some(mode), Some(EPERM | EACCES | EINVAL)) if mode == "confidentiality" => {
                ExitsError::LockedDown { mode, source }
            }
            (_, Some(EPERM | EACCES)) => ExitsError::Rights { source },
            (_, Some(ENODEV)) => ExitsError::NoTracing { source },
            (_, Some(ENOENT)) => ExitsError::NoKvm { source },
            (_, Some(_)) if is_load => ExitsError::Refused { source },
            (_, Some(_) | None) => ExitsError::Host(source),
        }
    }

    /// A hint for the user.
    pub fn hint(&self) -> Option<String> {
        let hint = match self {
            ExitsError::LockedDown { .. } => {
                "boot it without lockdown=confidentiality (integrity is enough), or name the machine \
                 by its QMP socket: KVM's own counts need no tracing (level C)"
            }
            ExitsError::Rights { .. } => {
                "run it as root, or with the capabilities CAP_BPF, CAP_PERFMON and CAP_SYS_ADMIN; \
                 before Linux 5.11 also `ulimit -l unlimited`"
            }
            ExitsError::NoTracing { .. } => {
                "use a kernel with CONFIG_TRACING and CONFIG_BPF_SYSCALL, or name the machine by its \
                 QMP socket: KVM's own counts need no tracing (level C)"
            }
            ExitsError::NoKvm { .. } => {
                "load it (modprobe kvm_intel or kvm_amd); machines without KVM have no exits"
            }
            ExitsError::Refused { .. } => {
                "Linux 5.5 or newer is needed, with CONFIG_BPF_SYSCALL and CONFIG_BPF_EVENTS; \
                 `pinfold doctor` shows more"
            }
            ExitsError::Container => {
                "run it on the host, or in a container with the host's process numbers (--pid=host)"
            }
            ExitsError::Silent { .. } => {
                "an idle or stopped guest causes none: give it work, or observe longer (--look \
                 10s); if no event fires, its QMP socket gives KVM's own counts (level C); \
                 `pinfold exits --micro-guest` shows what fires on this host"
            }
            ExitsError::Ended => "`pinfold` without arguments lists the running machines",
            ExitsError::MicroGuest { .. } => {
                "it needs /dev/kvm (run as root, or in the group kvm) of an x86-64 host; other machines are \
                 named with --qmp, --libvirt or --pid"
            }
            ExitsError::Statistics { .. } => "use QEMU 7.1 or newer, with KVM",
            ExitsError::Host(source) => return source.hint(),
        };
        Some(hint.to_owned())
    }
}

/// The lockdown mode, which is the word in brackets: `none [integrity] confidentiality`.
fn lockdown(host: &dyn Host) -> Option<String> {
    let text = host.read_text(&paths::lockdown()).ok()?;
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(mode, _)| mode.to_owned())
}

impl From<HostError> for ExitsError {
    fn from(error: HostError) -> Self {
        ExitsError::Host(error)
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use pinfold_host::SnapshotHost;

    use super::*;

    fn refusal(operation: &'static str, errno: i32) -> HostError {
        HostError::File {
            operation,
            path: "the BPF program exits".to_owned(),
            value: None,
            source: io::Error::from_raw_os_error(errno),
        }
    }

    #[test]
    fn each_refusal_has_its_way_out() {
        let check = |lockdown: &str, (operation, errno), text: &str, hint: &str| {
            let files = [(paths::lockdown(), lockdown.as_bytes().to_vec())];
            let error =
                ExitsError::explain(&SnapshotHost::from_files(files), refusal(operation, errno));
            assert!(error.to_string().contains(text), "{error}");
            assert!(error.hint().is_some_and(|reported| reported.contains(hint)), "{error}");
        };
        let (open, locked) =
            ("[none] integrity confidentiality", "none integrity [confidentiality]");
        check(locked, ("load", EINVAL), "locked down (confidentiality)", "level C");
        check(locked, ("mount", EPERM), "locked down", "without lockdown");
        check(open, ("load", EPERM), "not permit this user", "CAP_BPF");
        check(
            "none [integrity] confidentiality",
            ("attach", EACCES),
            "not permit this user",
            "root",
        );
        check(open, ("mount", ENODEV), "no trace file system", "CONFIG_TRACING");
        check(open, ("read", ENOENT), "no KVM events", "modprobe");
        check(open, ("load", EINVAL), "rejects the BPF program", "5.5");
        check("", ("load", EPERM), "not permit this user", "CAP_PERFMON");
    }

    #[test]
    fn what_is_not_a_refusal_is_reported_as_it_is() {
        let host = SnapshotHost::new();
        let error = ExitsError::explain(&host, refusal("mount", 5));
        assert!(error.to_string().contains("cannot mount"), "{error}");
        let silent = ExitsError::Silent { timeout_ns: 2_000_000_000 };
        assert!(silent.to_string().starts_with("no exit in 2 s"), "{silent}");
        assert!(silent.hint().is_some_and(|hint| hint.contains("--micro-guest")));
    }
}
