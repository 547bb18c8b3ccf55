//! One chart per plan, with its pinning, reasons and fallbacks as text.

use pinfold_model::{CpuSet, Finding, Plan, ThreadPlan, VnodePlan, describe_pins};

use super::Name;
use crate::charts::placement::{self, Scale};
use crate::page::{CandidateId, CandidateKind, Page};

/// A plan on its host.
pub(crate) struct Picture {
    pub(crate) name: Name,
    pub(crate) html: String,
    /// The same as one line of text.
    pub(crate) words: String,
    pub(crate) reasons: Vec<Reason>,
    pub(crate) findings: Vec<Finding>,
    /// Large machines show the baseline and the winner unfolded, the rest folded.
    pub(crate) open: bool,
}

/// Why a role got its CPUs.
pub(crate) struct Reason {
    pub(crate) who: String,
    pub(crate) pus: String,
    pub(crate) why: String,
}

/// All charts: the winner first, then in the order of the candidates; a repeat of the baseline has
/// no chart of its own.
pub(crate) fn pictures(page: &Page) -> Vec<Picture> {
    let mut order: Vec<CandidateId> = (0..page.candidates.len()).map(CandidateId).collect();
    order.sort_by_key(|id| (page.answer.winner != Some(*id), *id));
    let shown = order.into_iter().filter_map(|id| Some((id, page.candidate(id)?)));
    shown
        .filter(|(_, candidate)| candidate.kind != CandidateKind::Repeat)
        .map(|(id, candidate)| {
            let plan = &candidate.plan;
            let name = Name::new(page, id);
            let folds = Scale::from_topology(&page.topology).folds();
            Picture {
                html: placement::draw(&page.topology, plan),
                words: words(plan),
                reasons: reasons(plan),
                findings: plan.findings.clone(),
                open: !folds || name.winner || candidate.kind == CandidateKind::Baseline,
                name,
            }
        })
        .collect()
}

fn words(plan: &Plan) -> String {
    let mut parts: Vec<String> = Vec::new();
    if let Some((first, others)) = vcpus(plan).split_first() {
        let alike = !others.is_empty() && others.iter().all(|other| other.pus == first.pus);
        parts.push(if alike {
            format!("all vCPUs on {}", pus(&first.pus))
        } else {
            format!("vCPU {}", describe_pins(plan))
        });
    }
    for (vnode, thread) in plan.threads() {
        if !thread.role.is_vcpu() {
            parts.push(format!("{} {}", plan.role_name(vnode, &thread.role), pus(&thread.pus)));
        }
    }
    parts.push(format!("host {}", pus(&plan.housekeeping)));
    if !plan.exclusive.is_empty() {
        parts.push(format!("exclusive {} ({})", pus(&plan.exclusive), plan.isolation));
    }
    parts.join(" · ")
}

fn pus(set: &CpuSet) -> String {
    if set.is_empty() { "none".to_owned() } else { format!("CPU {set}") }
}

fn vcpus(plan: &Plan) -> Vec<&ThreadPlan> {
    plan.vnodes.iter().flat_map(VnodePlan::vcpus).collect()
}

fn reasons(plan: &Plan) -> Vec<Reason> {
    let of_threads = plan.threads().map(|(vnode, thread)| Reason {
        who: match thread.policy {
            Some(policy) => format!("{}, {policy}", plan.role_name(vnode, &thread.role)),
            None => plan.role_name(vnode, &thread.role),
        },
        pus: thread.pus.to_string(),
        why: thread.reason.clone(),
    });
    let host = Reason {
        who: "host".to_owned(),
        pus: plan.housekeeping.to_string(),
        why: plan.housekeeping_reason.clone(),
    };
    let guests = plan.vnodes.iter().filter_map(|vnode| vnode.guest.as_ref());
    let guests = guests.map(|guest| Reason {
        who: "guest sees".to_owned(),
        pus: format!("{} × {} × {}", guest.sockets, guest.cores, guest.threads),
        why: guest.reason.clone(),
    });
    merge_alike(of_threads.chain([host]).chain(guests).collect())
}

/// Merges adjacent rows with the same CPUs and the same reason.
fn merge_alike(reasons: Vec<Reason>) -> Vec<Reason> {
    let mut merged: Vec<Reason> = Vec::new();
    for reason in reasons {
        match merged.last_mut() {
            Some(last) if last.pus == reason.pus && last.why == reason.why => {
                last.who = format!("{}, {}", last.who, reason.who);
            }
            _ => merged.push(reason),
        }
    }
    merged
}
