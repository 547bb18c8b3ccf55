//! The words for process groups: they have threads where a virtual machine has vCPUs, and no guest.
//!
//! Strategies place both alike and give their reasons once, in the words of virtual machines. Where
//! a request places process groups alone, its texts are put into the words of those.

use pinfold_model::{Finding, Plan, Request, VnodeKind, Work};

use crate::PlanError;

/// What is said of machines, and of groups instead; longer phrases come first.
const WORDS: [(&str, &str); 11] = [
    ("a guest spinlock may be held by one that waits", "a lock may be held by one that waits"),
    ("part of the guest's memory is", "part of the memory is"),
    (
        "the guest takes all its CPUs for equal, and each is now fast, now slow",
        "a thread is now fast, now slow",
    ),
    ("the guest mirrors the host, one vCPU for each PU", "there is one core for each PU"),
    ("no hypervisor on Linux runs a virtual machine with more", "no plan has more"),
    ("its machine's vCPUs", "its own threads"),
    ("virtual machine", "process group"),
    ("vCPUs of several machines", "threads of several groups"),
    ("each vCPU needs", "each core that is asked for needs"),
    ("vCPU or task", "thread"),
    ("vCPU", "thread"),
];

/// A text in the words of process groups.
pub(crate) fn of_groups(text: &str) -> String {
    WORDS.iter().fold(text.to_owned(), |text, (machine, group)| text.replace(machine, group))
}

/// True if a request places process groups alone.
pub(crate) fn are_meant(request: &Request) -> bool {
    request.vnodes.iter().all(|vnode| matches!(vnode.work, Work::Processes { .. }))
}

/// A plan of process groups alone in their words.
pub(crate) fn plan(mut plan: Plan) -> Plan {
    if plan.vnodes.iter().any(|vnode| vnode.kind != VnodeKind::ProcessGroup) {
        return plan;
    }
    let threads = plan.vnodes.iter_mut().flat_map(|vnode| &mut vnode.threads);
    let reasons = threads.map(|thread| &mut thread.reason);
    let irqs = plan.irqs.iter_mut().map(|irq| &mut irq.reason);
    let all = reasons.chain(irqs).chain([&mut plan.housekeeping_reason]);
    all.for_each(|reason| *reason = of_groups(reason));
    for vnode in &mut plan.vnodes {
        if let Some(memory) = &mut vnode.memory {
            memory.reason = of_groups(&memory.reason);
        }
    }
    // What this host itself runs in is a virtual machine.
    let is_of_host = |finding: &Finding| finding.subject == "virtual host";
    for one in plan.findings.iter_mut().filter(|one| !is_of_host(one)) {
        one.text = of_groups(&one.text);
        one.hint = one.hint.as_deref().map(of_groups);
    }
    plan
}

/// Why there is no plan for process groups, in their words.
pub(crate) fn error(mut error: PlanError) -> PlanError {
    if let PlanError::TooManyVcpus { why, .. }
    | PlanError::TooFewPus { why, .. }
    | PlanError::NoRoom { why, .. }
    | PlanError::Policy { why, .. }
    | PlanError::Pin { why, .. } = &mut error
    {
        *why = of_groups(why);
    }
    error
}
