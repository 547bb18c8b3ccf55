//! The twins of the model's types, field by field as the file has them.
//!
//! Twins hold texts where the model holds types with rules; going from twin to model
//! names the field whose text breaks them.

use pinfold_model::{
    CpuSet, Finding, GuestTopology, IsolationScope, Plan, Policy, Role, Severity, ThreadPlan,
    VnodeKind, VnodePlan,
};
use serde::{Deserialize, Serialize};

use super::{FORMAT, SchemaError};

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PlanTwin {
    format: String,
    strategy: String,
    fingerprint: String,
    vnode: VnodeTwin,
    housekeeping_pus: String,
    housekeeping_reason: String,
    exclusive_pus: String,
    isolation: ScopeTwin,
    findings: Vec<FindingTwin>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct VnodeTwin {
    name: String,
    kind: KindTwin,
    threads: Vec<ThreadTwin>,
    guest: Option<GuestTwin>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum KindTwin {
    VirtualMachine,
    ProcessGroup,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ThreadTwin {
    role: String,
    pus: String,
    policy: Option<PolicyTwin>,
    reason: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
enum PolicyTwin {
    Other { nice: i8 },
    Batch { nice: i8 },
    Idle,
    Fifo { priority: u8 },
    RoundRobin { priority: u8 },
    Deadline { runtime_ns: u64, deadline_ns: u64, period_ns: u64 },
    Unknown { number: u32 },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct GuestTwin {
    sockets: u32,
    cores: u32,
    threads: u32,
    reason: String,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ScopeTwin {
    None,
    Own,
    Host,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FindingTwin {
    severity: SeverityTwin,
    subject: String,
    text: String,
    hint: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum SeverityTwin {
    Note,
    Warning,
    Problem,
}

impl PlanTwin {
    pub fn of(plan: &Plan) -> Self {
        Self {
            format: FORMAT.to_owned(),
            strategy: plan.strategy.clone(),
            fingerprint: plan.fingerprint.clone(),
            vnode: VnodeTwin::of(&plan.vnode),
            housekeeping_pus: plan.housekeeping.to_string(),
            housekeeping_reason: plan.housekeeping_reason.clone(),
            exclusive_pus: plan.exclusive.to_string(),
            isolation: match plan.isolation {
                IsolationScope::None => ScopeTwin::None,
                IsolationScope::Own => ScopeTwin::Own,
                IsolationScope::Host => ScopeTwin::Host,
            },
            findings: plan.findings.iter().map(FindingTwin::of).collect(),
        }
    }

    pub fn into_plan(self) -> Result<Plan, SchemaError> {
        Ok(Plan {
            housekeeping: pus("housekeeping_pus", &self.housekeeping_pus)?,
            exclusive: pus("exclusive_pus", &self.exclusive_pus)?,
            strategy: self.strategy,
            fingerprint: self.fingerprint,
            vnode: self.vnode.into_vnode()?,
            isolation: match self.isolation {
                ScopeTwin::None => IsolationScope::None,
                ScopeTwin::Own => IsolationScope::Own,
                ScopeTwin::Host => IsolationScope::Host,
            },
            housekeeping_reason: self.housekeeping_reason,
            findings: self.findings.into_iter().map(FindingTwin::into_finding).collect(),
        })
    }
}

impl VnodeTwin {
    fn of(vnode: &VnodePlan) -> Self {
        let thread = |thread: &ThreadPlan| ThreadTwin {
            role: thread.role.to_string(),
            pus: thread.pus.to_string(),
            policy: thread.policy.map(PolicyTwin::of),
            reason: thread.reason.clone(),
        };
        let guest = |guest: &GuestTopology| GuestTwin {
            sockets: guest.sockets,
            cores: guest.cores,
            threads: guest.threads,
            reason: guest.reason.clone(),
        };
        Self {
            name: vnode.name.clone(),
            kind: match vnode.kind {
                VnodeKind::VirtualMachine => KindTwin::VirtualMachine,
                VnodeKind::ProcessGroup => KindTwin::ProcessGroup,
            },
            threads: vnode.threads.iter().map(thread).collect(),
            guest: vnode.guest.as_ref().map(guest),
        }
    }

    fn into_vnode(self) -> Result<VnodePlan, SchemaError> {
        let threads = self.threads.into_iter().enumerate();
        let guest = |guest: GuestTwin| GuestTopology {
            sockets: guest.sockets,
            cores: guest.cores,
            threads: guest.threads,
            reason: guest.reason,
        };
        Ok(VnodePlan {
            name: self.name,
            kind: match self.kind {
                KindTwin::VirtualMachine => VnodeKind::VirtualMachine,
                KindTwin::ProcessGroup => VnodeKind::ProcessGroup,
            },
            threads: threads.map(into_thread).collect::<Result<_, _>>()?,
            guest: self.guest.map(guest),
        })
    }
}

fn into_thread((place, twin): (usize, ThreadTwin)) -> Result<ThreadPlan, SchemaError> {
    let field = |name: &str| format!("vnode.threads[{place}].{name}");
    let wrong = |name: &str, why: String| SchemaError::Field { field: field(name), why };
    let role = role(&twin.role).ok_or_else(|| {
        let known = "vcpu(N), emulator, iothread(ID), vhost(N), worker, task";
        wrong("role", format!("{:?} is not a role; there are {known}", twin.role))
    })?;
    let policy = twin.policy.map(PolicyTwin::into_policy);
    if let Some(why) = policy.and_then(bad_policy) {
        return Err(wrong("policy", why));
    }
    Ok(ThreadPlan { role, pus: pus(&field("pus"), &twin.pus)?, policy, reason: twin.reason })
}

impl PolicyTwin {
    fn of(policy: Policy) -> Self {
        match policy {
            Policy::Other { nice } => Self::Other { nice },
            Policy::Batch { nice } => Self::Batch { nice },
            Policy::Idle => Self::Idle,
            Policy::Fifo { priority } => Self::Fifo { priority },
            Policy::RoundRobin { priority } => Self::RoundRobin { priority },
            Policy::Deadline { runtime_ns, deadline_ns, period_ns } => {
                Self::Deadline { runtime_ns, deadline_ns, period_ns }
            }
            Policy::Unknown(number) => Self::Unknown { number },
        }
    }

    fn into_policy(self) -> Policy {
        match self {
            Self::Other { nice } => Policy::Other { nice },
            Self::Batch { nice } => Policy::Batch { nice },
            Self::Idle => Policy::Idle,
            Self::Fifo { priority } => Policy::Fifo { priority },
            Self::RoundRobin { priority } => Policy::RoundRobin { priority },
            Self::Deadline { runtime_ns, deadline_ns, period_ns } => {
                Policy::Deadline { runtime_ns, deadline_ns, period_ns }
            }
            Self::Unknown { number } => Policy::Unknown(number),
        }
    }
}

/// What `sched(7)` refuses in a policy.
fn bad_policy(policy: Policy) -> Option<String> {
    match policy {
        Policy::Other { nice } | Policy::Batch { nice } => (!(-20..=19).contains(&nice))
            .then(|| format!("the nice value {nice} is not in -20 to 19")),
        Policy::Fifo { priority } | Policy::RoundRobin { priority } => (!(1..=99)
            .contains(&priority))
        .then(|| format!("the real-time priority {priority} is not in 1 to 99")),
        Policy::Deadline { runtime_ns, deadline_ns, period_ns } => {
            let ordered = 0 < runtime_ns && runtime_ns <= deadline_ns && deadline_ns <= period_ns;
            (!ordered).then(|| "it must hold 0 < runtime_ns <= deadline_ns <= period_ns".to_owned())
        }
        Policy::Idle | Policy::Unknown(_) => None,
    }
}

impl FindingTwin {
    fn of(finding: &Finding) -> Self {
        Self {
            severity: match finding.severity {
                Severity::Note => SeverityTwin::Note,
                Severity::Warning => SeverityTwin::Warning,
                Severity::Problem => SeverityTwin::Problem,
            },
            subject: finding.subject.clone(),
            text: finding.text.clone(),
            hint: finding.hint.clone(),
        }
    }

    fn into_finding(self) -> Finding {
        Finding {
            severity: match self.severity {
                SeverityTwin::Note => Severity::Note,
                SeverityTwin::Warning => Severity::Warning,
                SeverityTwin::Problem => Severity::Problem,
            },
            subject: self.subject,
            text: self.text,
            hint: self.hint,
        }
    }
}

fn pus(field: &str, text: &str) -> Result<CpuSet, SchemaError> {
    CpuSet::parse_list(text)
        .map_err(|error| SchemaError::Field { field: field.to_owned(), why: error.to_string() })
}

/// The inverse of the role's `Display`.
fn role(text: &str) -> Option<Role> {
    let argument = |name: &str| text.strip_prefix(name)?.strip_prefix('(')?.strip_suffix(')');
    match text {
        "emulator" => return Some(Role::Emulator),
        "worker" => return Some(Role::Worker),
        "task" => return Some(Role::Task),
        _ => {}
    }
    if let Some(id) = argument("iothread") {
        return Some(Role::Iothread(id.to_owned()));
    }
    if let Some(index) = argument("vcpu") {
        return index.parse().ok().map(Role::Vcpu);
    }
    argument("vhost").and_then(|index| index.parse().ok()).map(Role::Vhost)
}
