//! Serialised forms of the model's types ("twins"), field by field as in the file.
//!
//! Twins contain texts where the model has types with rules. Converting a twin to the model names
//! the field whose text violates a rule.

use pinfold_model::{
    CpuSet, Finding, GuestTopology, IrqPlan, IsolationScope, MemoryPlan, NodeId, Plan, Policy,
    PuId, ROLES, Role, RoleKind, Severity, Speed, ThreadPlan, Tuning, VnodeKind, VnodePlan, shown,
};
use serde::{Deserialize, Serialize};

use super::cpus::{CpusV1, pus};
use super::tuning::TuningV1;
use super::{FORMAT, SchemaError};

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PlanV1 {
    format: String,
    strategy: String,
    fingerprint: String,
    vnodes: Vec<VnodeV1>,
    housekeeping_pus: String,
    housekeeping_reason: String,
    exclusive_pus: String,
    isolation: ScopeV1,
    irqs: Vec<IrqV1>,
    /// Missing if the plan sets no tunable of the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tuning: Option<TuningV1>,
    /// Missing in plans of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cpus: Option<CpusV1>,
    findings: Vec<FindingV1>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct VnodeV1 {
    name: String,
    kind: KindV1,
    threads: Vec<ThreadV1>,
    guest: Option<GuestV1>,
    memory: Option<MemoryV1>,
    /// Millionths of full speed.
    speed_ppm: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MemoryV1 {
    nodes: String,
    size_bytes: Option<u64>,
    page_bytes: Option<u64>,
    reason: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct IrqV1 {
    device: String,
    pus: String,
    reason: String,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum KindV1 {
    VirtualMachine,
    ProcessGroup,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ThreadV1 {
    role: String,
    pus: String,
    policy: Option<PolicyV1>,
    reason: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
enum PolicyV1 {
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
struct GuestV1 {
    sockets: u32,
    cores: u32,
    threads: u32,
    reason: String,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ScopeV1 {
    None,
    Own,
    Host,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FindingV1 {
    severity: SeverityV1,
    subject: String,
    text: String,
    hint: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum SeverityV1 {
    Note,
    Warning,
    Problem,
}

impl PlanV1 {
    pub fn from_plan(plan: &Plan) -> Self {
        Self {
            format: FORMAT.to_owned(),
            strategy: plan.strategy.clone(),
            fingerprint: plan.fingerprint.clone(),
            vnodes: plan.vnodes.iter().map(VnodeV1::from_vnode).collect(),
            housekeeping_pus: plan.housekeeping.to_string(),
            housekeeping_reason: plan.housekeeping_reason.clone(),
            exclusive_pus: plan.exclusive.to_string(),
            isolation: match plan.isolation {
                IsolationScope::None => ScopeV1::None,
                IsolationScope::Own => ScopeV1::Own,
                IsolationScope::Host => ScopeV1::Host,
            },
            irqs: plan.irqs.iter().map(IrqV1::from_irq).collect(),
            tuning: TuningV1::from_tuning(&plan.tuning),
            cpus: plan.cpus.as_ref().map(CpusV1::from_cpus),
            findings: plan.findings.iter().map(FindingV1::from_finding).collect(),
        }
    }

    pub fn into_plan(self) -> Result<Plan, SchemaError> {
        Ok(Plan {
            housekeeping: pus("housekeeping_pus", &self.housekeeping_pus)?,
            exclusive: pus("exclusive_pus", &self.exclusive_pus)?,
            strategy: plain("strategy", self.strategy)?,
            fingerprint: plain("fingerprint", self.fingerprint)?,
            vnodes: self
                .vnodes
                .into_iter()
                .enumerate()
                .map(|(place, vnode)| vnode.into_vnode(place))
                .collect::<Result<_, _>>()?,
            irqs: self
                .irqs
                .into_iter()
                .enumerate()
                .map(|(place, irq)| irq.into_irq(place))
                .collect::<Result<_, _>>()?,
            tuning: match self.tuning {
                Some(twin) => twin.into_tuning()?,
                None => Tuning::default(),
            },
            cpus: self.cpus.map(CpusV1::into_cpus).transpose()?,
            isolation: match self.isolation {
                ScopeV1::None => IsolationScope::None,
                ScopeV1::Own => IsolationScope::Own,
                ScopeV1::Host => IsolationScope::Host,
            },
            housekeeping_reason: line(&self.housekeeping_reason),
            findings: self.findings.into_iter().map(FindingV1::into_finding).collect(),
        })
    }
}

impl VnodeV1 {
    fn from_vnode(vnode: &VnodePlan) -> Self {
        Self {
            name: vnode.name.clone(),
            kind: match vnode.kind {
                VnodeKind::VirtualMachine => KindV1::VirtualMachine,
                VnodeKind::ProcessGroup => KindV1::ProcessGroup,
            },
            threads: vnode
                .threads
                .iter()
                .map(|thread| ThreadV1 {
                    role: thread.role.to_string(),
                    pus: thread.pus.to_string(),
                    policy: thread.policy.map(PolicyV1::from_policy),
                    reason: thread.reason.clone(),
                })
                .collect(),
            guest: vnode.guest.as_ref().map(|guest| GuestV1 {
                sockets: guest.sockets,
                cores: guest.cores,
                threads: guest.threads,
                reason: guest.reason.clone(),
            }),
            memory: vnode.memory.as_ref().map(MemoryV1::from_memory),
            speed_ppm: vnode.speed.millionths(),
        }
    }

    fn into_vnode(self, vnode: usize) -> Result<VnodePlan, SchemaError> {
        let threads = self.threads.into_iter().enumerate();
        let speed = Speed::from_millionths(self.speed_ppm).ok_or_else(|| SchemaError::Field {
            field: format!("vnodes[{vnode}].speed_ppm"),
            why: format!("{} is not in 1 to 1000000", self.speed_ppm),
        })?;
        let memory = self.memory.map(|memory| memory.into_memory(vnode)).transpose()?;
        Ok(VnodePlan {
            name: self.name,
            kind: match self.kind {
                KindV1::VirtualMachine => VnodeKind::VirtualMachine,
                KindV1::ProcessGroup => VnodeKind::ProcessGroup,
            },
            threads: threads
                .map(|(place, twin)| {
                    into_thread(&format!("vnodes[{vnode}].threads[{place}]"), twin)
                })
                .collect::<Result<_, _>>()?,
            guest: self.guest.map(|guest| GuestTopology {
                sockets: guest.sockets,
                cores: guest.cores,
                threads: guest.threads,
                reason: line(&guest.reason),
            }),
            memory,
            speed,
        })
    }
}

impl MemoryV1 {
    fn from_memory(memory: &MemoryPlan) -> Self {
        let nodes: CpuSet = memory.nodes.iter().map(|node| PuId(node.0)).collect();
        Self {
            nodes: nodes.to_string(),
            size_bytes: memory.bytes,
            page_bytes: memory.page_bytes,
            reason: memory.reason.clone(),
        }
    }

    fn into_memory(self, vnode: usize) -> Result<MemoryPlan, SchemaError> {
        // Nodes use the same list format as CPUs.
        let nodes = pus(&format!("vnodes[{vnode}].memory.nodes"), &self.nodes)?;
        Ok(MemoryPlan {
            nodes: nodes.iter().map(|number| NodeId(number.0)).collect(),
            bytes: self.size_bytes,
            page_bytes: self.page_bytes,
            reason: line(&self.reason),
        })
    }
}

impl IrqV1 {
    fn from_irq(irq: &IrqPlan) -> Self {
        Self { device: irq.device.clone(), pus: irq.pus.to_string(), reason: irq.reason.clone() }
    }

    fn into_irq(self, place: usize) -> Result<IrqPlan, SchemaError> {
        let pus = pus(&format!("irqs[{place}].pus"), &self.pus)?;
        let device = plain(&format!("irqs[{place}].device"), self.device)?;
        Ok(IrqPlan { device, pus, reason: line(&self.reason) })
    }
}

fn into_thread(at: &str, twin: ThreadV1) -> Result<ThreadPlan, SchemaError> {
    let field = |name: &str| format!("{at}.{name}");
    let wrong = |name: &str, why: String| SchemaError::Field { field: field(name), why };
    let role = Role::parse(&plain(&field("role"), twin.role.clone())?).ok_or_else(|| {
        let known = ROLES.map(RoleKind::form).join(", ");
        wrong("role", format!("{:?} is not a role; there are {known}", twin.role))
    })?;
    let policy = twin.policy.map(PolicyV1::into_policy);
    if let Some(why) = policy.and_then(bad_policy) {
        return Err(wrong("policy", why));
    }
    Ok(ThreadPlan { role, pus: pus(&field("pus"), &twin.pus)?, policy, reason: line(&twin.reason) })
}

impl PolicyV1 {
    fn from_policy(policy: Policy) -> Self {
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

/// The reason if `sched(7)` does not allow a policy.
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

impl FindingV1 {
    fn from_finding(finding: &Finding) -> Self {
        Self {
            severity: match finding.severity {
                Severity::Note => SeverityV1::Note,
                Severity::Warning => SeverityV1::Warning,
                Severity::Problem => SeverityV1::Problem,
            },
            subject: finding.subject.clone(),
            text: finding.text.clone(),
            hint: finding.hint.clone(),
        }
    }

    fn into_finding(self) -> Finding {
        Finding {
            severity: match self.severity {
                SeverityV1::Note => Severity::Note,
                SeverityV1::Warning => Severity::Warning,
                SeverityV1::Problem => Severity::Problem,
            },
            subject: line(&self.subject),
            text: line(&self.text),
            hint: self.hint.as_deref().map(line),
        }
    }
}

/// A sentence of a plan as one line, so that it cannot imitate other output of Pinfold.
fn line(text: &str) -> String {
    shown::name(text).into_owned()
}

/// A name in a plan that is printed unchanged.
fn plain(field: &str, name: String) -> Result<String, SchemaError> {
    if shown::is_plain(&name) {
        return Ok(name);
    }
    let why = format!("\"{}\" has a line break or another control character", shown::name(&name));
    Err(SchemaError::Field { field: field.to_owned(), why })
}
