//! Why a plan was not applied, with a hint for the user.
//!
//! After any error the host is in its former state, unless the report of [`ApplyError::Step`] says
//! otherwise.

use std::io::ErrorKind;

use pinfold_host::HostError;
use pinfold_model::text::{cpus_text, select_verb};
use pinfold_model::{Command, CpuSet, Finding, Policy, Role, TaskId, Tid};

use crate::journal::JournalError;
use crate::undo_report::UndoReport;

/// Why a plan must not or cannot be applied to this host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The plan does not place exactly one vnode.
    #[error("{0}")]
    NotSingle(#[from] pinfold_model::NotSingleVnode),
    /// The plan leaves no CPU to the host.
    #[error("the plan leaves the host no CPU for its own tasks")]
    NoHousekeeping,
    /// The host's CPUs and those reserved for the machine overlap.
    #[error(
        "the plan gives {} to the host and also excludes the host's tasks from {}",
        cpus_text(.pus), select_verb(.pus.len(), "it", "them")
    )]
    Overlap {
        /// The CPUs in both sets.
        pus: CpuSet,
    },
    /// The plan takes CPUs offline on which the machine's threads are to run.
    #[error(
        "the plan takes {} offline and also places threads on {}",
        cpus_text(.pus), select_verb(.pus.len(), "it", "them")
    )]
    OfflineInUse {
        /// The CPUs concerned.
        pus: CpuSet,
    },
    /// The plan gives a role no CPU.
    #[error("the plan gives {role} no CPU")]
    NowhereToRun {
        /// The role without a CPU.
        role: Role,
    },
    /// Real-time threads may run on every CPU of the host.
    #[error("real-time threads on {} can occupy every CPU of the host", cpus_text(.pus))]
    RealTimeEverywhere {
        /// The CPUs of the real-time threads.
        pus: CpuSet,
    },
    /// A real-time vCPU would occupy all CPUs of a thread for which it waits.
    #[error(
        "{vcpu} is real-time on {}, the only {} of {starved_role}: it might never run, and the guest \
         would hang",
        cpus_text(.pus), select_verb(.pus.len(), "CPU", "CPUs")
    )]
    RealTimeStarvesHelper {
        /// The real-time vCPU.
        vcpu: Role,
        /// The emulator or iothread for which the vCPU waits.
        starved_role: Role,
        /// The CPUs of that thread.
        pus: CpuSet,
    },
    /// This user may lower the priority of a thread, and may not raise it again.
    #[error(
        "{task} is {original}: this user may make it {policy}, and not take that back (CAP_SYS_NICE)"
    )]
    NoWayBack {
        /// The thread.
        task: TaskId,
        /// Its present policy.
        original: Policy,
        /// The policy of the plan.
        policy: Policy,
    },
    /// Only a vCPU can have a deadline, because a thread with a deadline cannot create threads.
    #[error("{role} cannot have a deadline: a SCHED_DEADLINE thread cannot create threads")]
    DeadlineOf {
        /// The role that the plan gives a deadline.
        role: Role,
    },
    /// The kernel accepts a deadline only for threads that may run in their whole scheduling
    /// domain.
    #[error(
        "{role} cannot have a deadline on {}: the kernel admits only threads that may run on all of \
         {domain}, their scheduling domain",
        cpus_text(.pus)
    )]
    DeadlineTooNarrow {
        /// The vCPU's role.
        role: Role,
        /// The vCPU's CPUs in the plan.
        pus: CpuSet,
        /// The CPUs of its scheduling domain.
        domain: CpuSet,
    },
    /// The plan makes the partition too late for a deadline in it.
    #[error(
        "{role} cannot have a deadline in the partition of {} that the plan creates: the kernel \
         admits a sleeping thread in the domain in which it last ran",
        cpus_text(.pus)
    )]
    DeadlineBeforePartition {
        /// The vCPU's role.
        role: Role,
        /// The vCPU's CPUs in the plan.
        pus: CpuSet,
    },
    /// All isolated CPUs share one scheduling domain.
    #[error(
        "{role} cannot have a deadline on {} in an isolated partition: for the kernel all isolated \
         CPUs of the host are one domain, and a deadline needs all of them",
        cpus_text(.pus)
    )]
    DeadlineInIsolated {
        /// The vCPU's role.
        role: Role,
        /// The vCPU's CPUs in the plan.
        pus: CpuSet,
    },
    /// No real-time run time is left to assign.
    #[error(
        "{group} has no run time for real-time threads (RT_GROUP_SCHED), and {above} has none left"
    )]
    NoRunTime {
        /// The machine's group in the cpu controller.
        group: String,
        /// Its parent group.
        above: String,
    },
    /// One thread has two roles for which the plan has different CPUs.
    #[error("thread {tid} is both {} and {}, so they cannot be placed \
             separately", roles.0, roles.1)]
    SharedThread {
        /// The thread's ID.
        tid: Tid,
        /// Both roles.
        roles: (Role, Role),
    },
    /// The host has no cpuset controller.
    #[error("the host has no cpuset controller")]
    NoCpuset,
    /// The cgroup hierarchy is mounted read-only.
    #[error("{path} is mounted read-only")]
    ReadOnly {
        /// The mount point.
        path: String,
    },
    /// Only root can make cgroups.
    #[error("only root can create groups in {path}")]
    NotRoot {
        /// The mount point.
        path: String,
    },
    /// The plan requires its tunables, and the host lacks one.
    #[error("the plan requires its tunables: {}: {}", finding.subject, finding.text)]
    Lacks {
        /// The missing tunable, with a hint.
        finding: Box<Finding>,
    },
    /// A v2 group has processes and can therefore not have children with controllers.
    #[error("{group} has processes of its own, so no child group can be created in it")]
    NoRoom {
        /// The group's directory.
        group: String,
    },
}

impl Refusal {
    /// What the user can do about the refusal, if anything.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        let text = match self {
            Refusal::Lacks { finding } => return finding.hint.clone(),
            Refusal::NotSingle(_) => "make a plan for this process alone",
            Refusal::NoHousekeeping | Refusal::Overlap { .. } | Refusal::NowhereToRun { .. } => {
                "create the plan again on this host, with `pinfold plan`"
            }
            Refusal::OfflineInUse { .. } => {
                "plan without those CPUs (--avoid); with smt=off use a strategy with one thread \
                 per core"
            }
            Refusal::RealTimeEverywhere { .. } => {
                "leave one CPU without real-time threads, or plan without a real-time policy"
            }
            Refusal::RealTimeStarvesHelper { .. } => {
                "plan with --emulator real-time or apart, or without a real-time policy"
            }
            Refusal::NoWayBack { .. } => {
                "run it as root, or raise the machine's limit of nice values (RLIMIT_NICE)"
            }
            Refusal::DeadlineOf { .. } => "give only the vCPUs a deadline",
            Refusal::DeadlineTooNarrow { .. } => {
                "use fifo or rr, or put the machine into a partition of these CPUs alone (cpuset.cpus.partition=root; v1: cpuset.sched_load_balance=0 above it)"
            }
            Refusal::DeadlineBeforePartition { .. } => {
                "create that partition first (cpuset.cpus.partition=root), start the machine in \
                 it, and plan without --tunable partition; or use fifo or rr"
            }
            Refusal::DeadlineInIsolated { .. } => {
                "start the machine in a partition with load balancing \
                 (cpuset.cpus.partition=root), and plan without --tunable partition; or use fifo or rr"
            }
            Refusal::NoRunTime { above, .. } => {
                return Some(format!(
                    "lower cpu.rt_runtime_us of the other groups below {above}, or plan without \
                     fifo and rr"
                ));
            }
            Refusal::SharedThread { .. } => {
                "start QEMU with -accel tcg,thread=multi, or use --strategy none"
            }
            Refusal::NoCpuset => "use --isolate own or none, or boot a kernel with CONFIG_CPUSETS",
            Refusal::ReadOnly { .. } => {
                "use --isolate own or none, or run Pinfold outside the container"
            }
            Refusal::NotRoot { .. } => "run it as root, or use --isolate own or none",
            Refusal::NoRoom { .. } => {
                "use --isolate none, or move those processes to a group below"
            }
        };
        Some(text.to_owned())
    }
}

/// Why applying or watching failed.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The plan must not or cannot be applied to this host.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The virtual machine or process group has ended.
    #[error("process {pid} has ended")]
    VmGone {
        /// The process ID.
        pid: Tid,
    },
    /// The host could not be read while a step was being planned; that step changed nothing.
    #[error("cannot read the host")]
    Host(#[from] HostError),
    /// The kernel refused a step.
    #[error("step {index} ({change}) failed{}", undone(undone_report))]
    Step {
        /// Number of the step in the journal.
        index: usize,
        /// The attempted change, with path and value.
        change: String,
        /// The kernel's error.
        source: HostError,
        /// Report of undoing the earlier steps.
        undone_report: Box<UndoReport>,
    },
    /// The kernel accepted a step but shows another value.
    #[error(
        "step {index} ({change}) was accepted, but the kernel reports {found} instead of \
         {wanted}{}",
        undone(undone_report)
    )]
    ReadBackMismatch {
        /// Number of the step in the journal.
        index: usize,
        /// The change that was made.
        change: String,
        /// The requested value.
        wanted: String,
        /// The value that the kernel shows.
        found: String,
        /// Report of undoing the earlier steps.
        undone_report: Box<UndoReport>,
    },
    /// The host does not settle: each pass finds more to do.
    #[error(
        "the host keeps changing: after {passes} passes a step remains: {left}{}",
        undone(undone_report)
    )]
    NotConverged {
        /// Number of passes.
        passes: usize,
        /// A step that remains to be done.
        left: String,
        /// Report of undoing the steps.
        undone_report: Box<UndoReport>,
    },
    /// The journal could not be written; the step was not done.
    #[error(
        "the step was not executed, because the journal cannot be written{}",
        undone(undone_report)
    )]
    NotJournalled {
        /// The journal's error.
        source: JournalError,
        /// Report of undoing the earlier steps.
        undone_report: Box<UndoReport>,
    },
    /// Applying failed, and not every step could be undone.
    #[error("applying failed; not everything could be undone")]
    Left {
        /// Why applying failed.
        source: Box<ApplyError>,
        /// Report of undoing the steps.
        undone_report: Box<UndoReport>,
    },
    /// The journal could not be written while watching; the step was not done.
    #[error("the step was not executed, because the journal cannot be written")]
    Journal(#[from] JournalError),
    /// The observer stopped the apply; nothing was undone.
    #[error("interrupted at step {index}; the changes made before it are still active")]
    Abandoned {
        /// Number of the step in the journal.
        index: usize,
    },
}

impl ApplyError {
    /// What the user can do about the error, if anything.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            ApplyError::Refused(refusal) => refusal.hint(),
            ApplyError::VmGone { .. } => Some("start it again".to_owned()),
            ApplyError::Host(_) => None,
            ApplyError::Step { change, source, .. } => hint_for(change, source),
            ApplyError::ReadBackMismatch { .. } => Some(
                "another program manages this value, or the parent group has less: see pinfold \
                 doctor"
                    .to_owned(),
            ),
            ApplyError::NotConverged { .. } => Some(
                "another program keeps changing these values: stop it, or use --isolate none"
                    .to_owned(),
            ),
            ApplyError::NotJournalled { source, .. } | ApplyError::Journal(source) => source.hint(),
            ApplyError::Left { source, .. } => source.hint(),
            ApplyError::Abandoned { .. } => Some(format!("revert it: `{}`", Command::new("undo"))),
        }
    }

    /// Report of undoing the earlier steps, if any were done.
    #[must_use]
    pub fn undone(&self) -> Option<&UndoReport> {
        match self {
            ApplyError::Step { undone_report, .. }
            | ApplyError::ReadBackMismatch { undone_report, .. }
            | ApplyError::NotConverged { undone_report, .. }
            | ApplyError::NotJournalled { undone_report, .. }
            | ApplyError::Left { undone_report, .. } => Some(undone_report),
            ApplyError::Refused(_)
            | ApplyError::VmGone { .. }
            | ApplyError::Host(_)
            | ApplyError::Journal(_)
            | ApplyError::Abandoned { .. } => None,
        }
    }
}

fn undone(report: &UndoReport) -> &'static str {
    if report.is_complete() {
        "; the host is unchanged"
    } else {
        "; not everything could be undone"
    }
}

fn hint_for(change: &str, error: &HostError) -> Option<String> {
    let (HostError::File { source, .. } | HostError::Thread { source, .. }) = error else {
        return None;
    };
    if change.starts_with("write ")
        && let Some(hint) = crate::actuators::tunable_hint(error)
    {
        return Some(hint);
    }
    let is_thread = matches!(error, HostError::Thread { .. });
    let is = |kinds: &[ErrorKind]| kinds.contains(&source.kind());
    let is_policy = change.starts_with("set policy");
    let text = if is(&[ErrorKind::ResourceBusy]) && is_policy {
        "other deadline threads have reserved too much already: request less run time per period"
    } else if is(&[ErrorKind::ResourceBusy]) && is_thread {
        "a thread with a deadline must keep all CPUs of its domain: remove the deadline first \
         (chrt --other --pid 0 TID)"
    } else if is(&[ErrorKind::PermissionDenied]) && is_policy {
        "run it as root, or plan without this policy; under CONFIG_RT_GROUP_SCHED a real-time policy needs run time of the group"
    } else if is(&[ErrorKind::PermissionDenied, ErrorKind::ReadOnlyFilesystem]) {
        "run it as root, or use --isolate none"
    } else if is(&[ErrorKind::InvalidInput]) && is_thread {
        "none of these CPUs is in the thread's cpuset, or the kernel has bound the thread: pinfold topo shows which CPUs are allowed"
    } else if is(&[ErrorKind::InvalidInput]) {
        "another cpuset may be exclusive (cpuset.cpu_exclusive), or the task is bound by the kernel"
    } else if is(&[ErrorKind::ResourceBusy, ErrorKind::Unsupported]) {
        "the group has processes or child groups of its own: give the process a group of its own, or use --isolate own"
    } else if is(&[ErrorKind::StorageFull]) {
        "the group has no CPUs or memory nodes: its parent's cpuset is empty"
    } else {
        return None;
    };
    Some(text.to_owned())
}
