//! Tunables as libvirt elements: `<shares>`, the quota of the domain, `<cachetune>`, `<memorytune>`
//! (<https://libvirt.org/formatdomain.html#cpu-tuning>).

use pinfold_model::tunables::{Scope, cpu_quota, cpu_weight, resctrl};
use pinfold_model::{Plan, Topology, VnodePlan};

use super::super::tunable_answers::{Answers, Line};
use super::FORMAT;

/// Parent element of all its lines.
pub(crate) const CPUTUNE: &str = "cputune";

/// libvirt's answers for the plan's tunables.
pub(crate) fn answers(plan: &Plan, vnode: &VnodePlan, topology: &Topology) -> Answers {
    let scope = Scope { topology: Some(topology), ..Scope::of_vnode(plan, vnode) };
    FORMAT.answers(scope)
}

/// Changes of the tunables to `<cputune>` of a domain file.
pub(crate) struct CputuneChanges {
    /// Names of the elements that are removed.
    pub names: Vec<&'static str>,
    /// The new elements.
    pub lines: Vec<String>,
    /// Differences from the plan, and tunables that libvirt cannot express.
    pub notes: Vec<String>,
}

/// The changes for a domain file.
pub(crate) fn tune_domain(plan: &Plan, vnode: &VnodePlan, topology: &Topology) -> CputuneChanges {
    let answers = answers(plan, vnode, topology);
    let names = exchange_elements(plan);
    let mut notes = Vec::new();
    let mut lines = Vec::new();
    for line in answers.lines(CPUTUNE) {
        match line {
            Line::Comment(note) => notes.push(note),
            Line::Text(line) => lines.push(line),
        }
    }
    // If libvirt cannot express the plan's shares, those of the file stay.
    let names: Vec<&str> = if lines
        .iter()
        .any(|line| line.starts_with("<cachetune") || line.starts_with("<memorytune"))
    {
        names
    } else {
        names.into_iter().filter(|name| !name.ends_with("tune")).collect()
    };
    notes.extend(answers.missing("libvirt"));
    CputuneChanges { names, lines, notes }
}

/// The elements of a domain file that are replaced by the plan's.
fn exchange_elements(plan: &Plan) -> Vec<&'static str> {
    let tuning = &plan.tuning;
    let mut names = Vec::new();
    if tuning.has(&cpu_weight::TUNABLE) {
        names.push("shares");
    }
    if tuning.has(&cpu_quota::TUNABLE) {
        names.extend(["global_period", "global_quota"]);
    }
    // The plan's shares apply to all vCPUs, and libvirt refuses two elements whose vCPUs overlap.
    if tuning.has(&resctrl::TUNABLE) {
        names.extend(["cachetune", "memorytune"]);
    }
    names
}
