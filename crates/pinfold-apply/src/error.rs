//! Why a plan was not applied, and what the user can do about it.
//!
//! Whatever the error, the host is as it was before, unless the report that comes with
//! [`ApplyError::Step`] says otherwise.

use std::io::ErrorKind;

use pinfold_host::HostError;
use pinfold_model::{Command, CpuSet, Finding, Role, Tid};

use crate::journal::JournalError;
use crate::undo::UndoReport;

/// Why a plan must not or cannot be applied to this host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The plan does not place exactly one vnode.
    #[error("{0}")]
    NotSingle(#[from] pinfold_model::NotSingle),
    /// The plan leaves the host no PU.
    #[error("the plan leaves the host no PU for its own tasks")]
    NoHousekeeping,
    /// The host's PUs and those that are kept free for the machine overlap.
    #[error("PUs {pus} are the host's and kept free of the host's tasks at the same time")]
    Overlap {
        /// The PUs that are both.
        pus: CpuSet,
    },
    /// PUs of the machine's threads would go offline.
    #[error("PUs {pus} are to go offline, and threads of the plan are to run there")]
    OfflineInUse {
        /// Those PUs.
        pus: CpuSet,
    },
    /// A role has no PU.
    #[error("the plan gives {role} no PU")]
    NowhereToRun {
        /// The role.
        role: Role,
    },
    /// Real-time threads may run on every PU of the host.
    #[error("real-time threads on PUs {pus} leave the host no PU that they cannot hold")]
    RealTimeEverywhere {
        /// Where they run.
        pus: CpuSet,
    },
    /// A real-time vCPU would hold all PUs of a thread that it waits for.
    #[error(
        "{vcpu} is real-time on PUs {pus}, which are all that {servant} has: the guest would wait for it for ever"
    )]
    RealTimeOverServant {
        /// The vCPU.
        vcpu: Role,
        /// The emulator or an iothread.
        servant: Role,
        /// The PUs of that one.
        pus: CpuSet,
    },
    /// A thread with a deadline may start no other, so only vCPUs can have one.
    #[error("{role} may not have a deadline: such a thread can start no other")]
    DeadlineOf {
        /// The role.
        role: Role,
    },
    /// The kernel gives a deadline only to threads that may run in their whole domain.
    #[error(
        "{role} is to have a deadline on PUs {pus}, but the kernel gives one only to threads that may run on all of {domain}, their scheduling domain"
    )]
    DeadlineTooNarrow {
        /// The vCPU.
        role: Role,
        /// Its PUs by the plan.
        pus: CpuSet,
        /// The PUs among which it is balanced.
        domain: CpuSet,
    },
    /// The plan's own partition comes too late for a deadline.
    #[error(
        "{role} is to have a deadline in the partition of PUs {pus} that the plan makes, but the kernel counts a thread that sleeps to the domain in which it last ran, and admits it there"
    )]
    DeadlineBeforePartition {
        /// The vCPU.
        role: Role,
        /// Its PUs by the plan.
        pus: CpuSet,
    },
    /// Isolated PUs share one domain.
    #[error(
        "{role} is to have a deadline on PUs {pus} in an isolated partition, but the kernel counts all isolated PUs of the host as one domain, and a deadline needs the whole of it"
    )]
    DeadlineInIsolated {
        /// The vCPU.
        role: Role,
        /// Its PUs by the plan.
        pus: CpuSet,
    },
    /// All real-time run time is given away.
    #[error(
        "{group} has no run time for real-time threads (RT_GROUP_SCHED), and {above} has none left to give"
    )]
    NoRunTime {
        /// The machine's group in the cpu controller.
        group: String,
        /// The one above it.
        above: String,
    },
    /// One thread has two roles that are to run on different PUs.
    #[error("thread {tid} is {} and {} at once, so they cannot be placed apart", roles.0, roles.1)]
    SharedThread {
        /// The thread.
        tid: Tid,
        /// Its roles.
        roles: (Role, Role),
    },
    /// The host has no cpuset controller.
    #[error("the host has no cpuset controller")]
    NoCpuset,
    /// The hierarchy is mounted read-only.
    #[error("{path} is mounted read-only")]
    ReadOnly {
        /// The mount.
        path: String,
    },
    /// Only root can make groups.
    #[error("only root can make groups in {path}")]
    NotRoot {
        /// The mount.
        path: String,
    },
    /// The plan requires its knobs, and the host lacks one.
    #[error("the plan requires its knobs: {}: {}", finding.subject, finding.text)]
    Lacks {
        /// What is lacking, with the way out.
        finding: Box<Finding>,
    },
    /// A v2 group has processes of its own and can therefore not have children with controllers.
    #[error("{group} has processes of its own, so no group for others can be made in it")]
    NoRoom {
        /// The group.
        group: String,
    },
}

impl Refusal {
    /// What the user can do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        let text = match self {
            Refusal::Lacks { finding } => return finding.hint.clone(),
            Refusal::NotSingle(_) => "make a plan for this process alone",
            Refusal::NoHousekeeping | Refusal::Overlap { .. } | Refusal::NowhereToRun { .. } => {
                "make the plan again with `pinfold plan`, for this host"
            }
            Refusal::OfflineInUse { .. } => {
                "plan without those PUs: --avoid, with a strategy of one thread per core for smt=off"
            }
            Refusal::RealTimeEverywhere { .. } => {
                "leave one PU without real-time threads, or plan without a real-time policy"
            }
            Refusal::RealTimeOverServant { .. } => {
                "plan with --emulator real-time or apart, or without a real-time policy"
            }
            Refusal::DeadlineOf { .. } => "give the deadline to the vCPUs alone",
            Refusal::DeadlineTooNarrow { .. } => {
                "use fifo or rr, or put the machine into a partition of these PUs alone (cpuset.cpus.partition=root; v1: cpuset.sched_load_balance=0 above it)"
            }
            Refusal::DeadlineBeforePartition { .. } => {
                "make that partition before (cpuset.cpus.partition=root), start the machine in it, and plan without --knob partition; or use fifo or rr"
            }
            Refusal::DeadlineInIsolated { .. } => {
                "start the machine in a partition that balances (cpuset.cpus.partition=root), and plan without --knob partition; or use fifo or rr"
            }
            Refusal::NoRunTime { above, .. } => {
                return Some(format!(
                    "take some from its siblings (cpu.rt_runtime_us below {above}), or plan without fifo and rr"
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

/// Why a plan was not applied.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// It must not or cannot be applied.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The virtual machine or process group has ended.
    #[error("process {pid} has ended")]
    VmGone {
        /// Its process.
        pid: Tid,
    },
    /// The host could not be read; nothing was changed by the step that was being planned.
    #[error("the host cannot be read")]
    Host(#[from] HostError),
    /// A step was refused by the kernel.
    #[error("step {index} ({change}) failed{}", undone(undone_report))]
    Step {
        /// Number of the step in the journal.
        index: usize,
        /// What it was to change, with path and value.
        change: String,
        /// The kernel's answer.
        source: HostError,
        /// What became of the steps before it.
        undone_report: Box<UndoReport>,
    },
    /// The kernel took a step and shows another value.
    #[error(
        "step {index} ({change}) was taken, but the kernel shows {found} instead of {wanted}{}",
        undone(undone_report)
    )]
    NotSo {
        /// Number of the step in the journal.
        index: usize,
        /// What it was to change.
        change: String,
        /// What was asked.
        wanted: String,
        /// What the kernel shows.
        found: String,
        /// What became of the steps before it.
        undone_report: Box<UndoReport>,
    },
    /// The host does not come to rest: each look finds more to do.
    #[error(
        "the host does not come to rest: after {passes} passes there is still {left}{}",
        undone(undone_report)
    )]
    Restless {
        /// How often it was tried.
        passes: usize,
        /// A step that is still to be done.
        left: String,
        /// What became of the steps.
        undone_report: Box<UndoReport>,
    },
    /// The journal could not be kept; the step was not done.
    #[error(
        "the step was not done, because the journal cannot be written{}",
        undone(undone_report)
    )]
    NotJournalled {
        /// Why.
        source: JournalError,
        /// What became of the steps before it.
        undone_report: Box<UndoReport>,
    },
    /// It failed for a reason of its own, and then not everything could be undone.
    #[error("applying failed; not everything could be undone")]
    Left {
        /// The reason.
        source: Box<ApplyError>,
        /// What became of the steps before it.
        undone_report: Box<UndoReport>,
    },
    /// The journal could not be kept while watching; the step was not done.
    #[error("the step was not done, because the journal cannot be written")]
    Journal(#[from] JournalError),
    /// The observer asked to stop at once; nothing was undone.
    #[error("applying was interrupted at step {index}; what was done is still active")]
    Abandoned {
        /// Number of the step in the journal.
        index: usize,
    },
}

impl ApplyError {
    /// What the user can do about it.
    #[must_use]
    pub fn hint(&self) -> Option<String> {
        match self {
            ApplyError::Refused(refusal) => refusal.hint(),
            ApplyError::VmGone { .. } => Some("start it again".to_owned()),
            ApplyError::Host(_) => None,
            ApplyError::Step { change, source, .. } => hint_for(change, source),
            ApplyError::NotSo { .. } => Some(
                "something else manages this value, or the parent group has less: pinfold doctor"
                    .to_owned(),
            ),
            ApplyError::Restless { .. } => Some(
                "something keeps changing these values: stop it, or use --isolate none".to_owned(),
            ),
            ApplyError::NotJournalled { source, .. } | ApplyError::Journal(source) => source.hint(),
            ApplyError::Left { source, .. } => source.hint(),
            ApplyError::Abandoned { .. } => Some(format!("revert it: `{}`", Command::new("undo"))),
        }
    }

    /// What became of the steps before, if any were done.
    #[must_use]
    pub fn undone(&self) -> Option<&UndoReport> {
        match self {
            ApplyError::Step { undone_report, .. }
            | ApplyError::NotSo { undone_report, .. }
            | ApplyError::Restless { undone_report, .. }
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
        "; the host is as it was"
    } else {
        "; not everything could be undone"
    }
}

fn hint_for(change: &str, error: &HostError) -> Option<String> {
    let (HostError::File { source, .. } | HostError::Thread { source, .. }) = error else {
        return None;
    };
    if change.starts_with("write ")
        && let Some(hint) = crate::actuators::knob_hint(error)
    {
        return Some(hint);
    }
    let is_thread = matches!(error, HostError::Thread { .. });
    let is = |kinds: &[ErrorKind]| kinds.contains(&source.kind());
    let is_policy = change.starts_with("set policy");
    let text = if is(&[ErrorKind::ResourceBusy]) && is_policy {
        "the kernel has promised so much to other deadlines already: ask for less run time per period"
    } else if is(&[ErrorKind::ResourceBusy]) && is_thread {
        "the thread has a deadline, and keeps all PUs of its domain as long: take the deadline away first (chrt --other --pid 0 TID)"
    } else if is(&[ErrorKind::PermissionDenied]) && is_policy {
        "run it as root; under CONFIG_RT_GROUP_SCHED give the group run time, or plan without a real-time policy"
    } else if is(&[ErrorKind::PermissionDenied, ErrorKind::ReadOnlyFilesystem]) {
        "run it as root, or use --isolate none"
    } else if is(&[ErrorKind::InvalidInput]) && is_thread {
        "none of these PUs is in the thread's cpuset, or the kernel has bound the thread: pinfold topo shows which PUs are allowed"
    } else if is(&[ErrorKind::InvalidInput]) {
        "another cpuset may be exclusive (cpuset.cpu_exclusive), or the task is bound by the kernel"
    } else if is(&[ErrorKind::ResourceBusy, ErrorKind::Unsupported]) {
        "the group has processes or child groups of its own: give the process a group of its own, or use --isolate own"
    } else if is(&[ErrorKind::StorageFull]) {
        "the group has no PUs or memory nodes: its parent's cpuset is empty"
    } else {
        return None;
    };
    Some(text.to_owned())
}
