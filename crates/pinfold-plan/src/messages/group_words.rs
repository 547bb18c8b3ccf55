//! Texts for process groups, which have threads instead of vCPUs, and no guest.
//!
//! Strategies place both alike and write their reasons for virtual machines. If a request contains
//! only process groups, these texts are converted.

use pinfold_model::{Plan, Request, VnodeKind, Work};

use crate::error::PlanError;

/// Phrases for machines and their replacements for groups; longer phrases come first.
const WORDS: [(&str, &str); 11] = [
    ("the waiting vCPU may hold a guest spinlock", "the waiting thread may hold a lock"),
    ("part of the guest's memory is", "part of the memory is"),
    (
        "the guest assumes that all its CPUs are equally fast, but the speed of each one varies",
        "the speed of each thread varies",
    ),
    ("the guest mirrors the host, one vCPU for each CPU", "there is one core for each CPU"),
    ("no hypervisor on Linux runs a virtual machine with more", "no plan has more"),
    ("its machine's vCPUs", "its own threads"),
    ("virtual machine", "process group"),
    ("vCPUs of several machines", "threads of several groups"),
    ("each vCPU needs", "each requested core needs"),
    ("vCPU or task", "thread"),
    ("vCPU", "thread"),
];

/// Converts a text for machines to one for process groups.
pub(crate) fn of_groups(text: &str) -> String {
    WORDS.iter().fold(text.to_owned(), |text, (machine, group)| text.replace(machine, group))
}

/// True if a request contains only process groups.
pub(crate) fn are_meant(request: &Request) -> bool {
    request.vnodes.iter().all(|vnode| matches!(vnode.work, Work::Processes { .. }))
}

/// Converts the texts of a plan that contains only process groups.
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
    // The findings about the host itself being a virtual machine stay unchanged.
    for one in plan.findings.iter_mut().filter(|one| one.subject != "virtual host") {
        one.text = of_groups(&one.text);
        one.hint = one.hint.as_deref().map(of_groups);
    }
    plan
}

/// Converts the texts of an error for process groups.
pub(crate) fn error(mut error: PlanError) -> PlanError {
    if let PlanError::TooManyVcpus { why, .. }
    | PlanError::TooFewPus { why, .. }
    | PlanError::Policy { why, .. }
    | PlanError::Pin { why, .. } = &mut error
    {
        *why = of_groups(why);
    }
    if let PlanError::NoRoom { why, .. } = &mut error {
        *why = of_groups(why).into();
    }
    error
}
