//! Creates a run: checks the candidates, merges equal placements, fits the budget, saves.

use pinfold_model::{Origin, Plan};

use super::budget::{Prediction, predict};
use super::config::TuneConfig;
use crate::error::RunError;
use crate::store::{CandidateRecord, CandidateRole, NewRun, OpenRun, Store};

/// Kind of a tuning run in the store.
pub const KIND: &str = "tune";

/// Name of the baseline among the candidates: the machine is not placed.
pub const NONE: &str = "none";

/// Name of the baseline's twin: the other half of the A/A pair.
pub const TWIN_NAME: &str = "none (again)";

/// A placement to be tried.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Name, unique among the candidates; usually the strategy's.
    pub name: String,
    /// The plan of the placement.
    pub plan: Plan,
    /// The plan as JSON, as it is stored and shown.
    pub plan_json: String,
}

impl Candidate {
    /// A plan as a candidate with the name of its strategy; `to_json` writes it.
    pub fn new(plan: Plan, to_json: impl Fn(&Plan) -> String) -> Self {
        let (name, plan_json) = (plan.strategy.clone(), to_json(&plan));
        Self { name, plan, plan_json }
    }
}

/// A new run.
#[derive(Clone, Debug)]
pub struct Created {
    /// The run, ready to be worked on.
    pub run: OpenRun,
    /// Its size and duration.
    pub prediction: Prediction,
    /// Candidates with the placement of an earlier one, and the name of that one: they are not
    /// started.
    pub same_as: Vec<(String, String)>,
}

/// Creates a run: checks everything that can be checked before the first start, and writes the run
/// into the store. Indexes of `candidates` are those of the later requests.
///
/// # Errors
/// [`RunError`]: a setting, the candidates, the budget, or the store. If the request is refused,
/// nothing is written.
pub fn create(
    store: &mut Store,
    config: &TuneConfig,
    candidates: &[Candidate],
    origin: &Origin,
    created_unix_s: u64,
) -> Result<Created, RunError> {
    config.check()?;
    let records = records(candidates)?;
    let distinct = records
        .iter()
        .filter(|record| record.role == CandidateRole::Candidate && record.same_as.is_none());
    let distinct = u32::try_from(distinct.count()).unwrap_or(u32::MAX);
    if distinct == 0 {
        return Err(RunError::refuse(
            "no candidate places the machine differently from the baseline",
            "this host has only one placement for this machine; use fewer vCPUs or other \
             strategies (`pinfold plan --list`)",
        ));
    }
    let prediction = predict(config, distinct)?;
    let config_json = serde_json::to_string(config).map_err(RunError::document("settings"))?;
    let run = store.create_run(&NewRun {
        created_unix_s,
        kind: KIND,
        config_json: &config_json,
        origin,
        seed: config.seed,
        candidates: &records,
    })?;
    let same_as = records
        .iter()
        .filter(|record| record.role == CandidateRole::Candidate)
        .filter_map(|record| {
            record.same_as.map(|other| (record.name.clone(), name(&records, other)))
        })
        .collect();
    Ok(Created { run, prediction, same_as })
}

fn name(records: &[CandidateRecord], index: usize) -> String {
    records[index].name.clone()
}

/// The error if no candidate leaves the machine without placement.
pub(super) fn no_baseline() -> RunError {
    let message = "the candidates lack the baseline \"none\"";
    RunError::refuse(message, "add a candidate called \"none\"")
}

/// The candidates for the store, in their order, the twin last.
fn records(candidates: &[Candidate]) -> Result<Vec<CandidateRecord>, RunError> {
    let baseline =
        candidates.iter().position(|candidate| candidate.name == NONE).ok_or_else(no_baseline)?;
    check_names(candidates)?;
    check_vcpus(candidates, &candidates[baseline])?;
    let mut records: Vec<CandidateRecord> = (0..)
        .zip(candidates)
        .map(|(index, candidate)| CandidateRecord {
            name: candidate.name.clone(),
            plan_json: candidate.plan_json.clone(),
            role: if index == baseline {
                CandidateRole::Baseline
            } else {
                CandidateRole::Candidate
            },
            same_as: same_placement(candidates, index, baseline),
        })
        .collect();
    records.push(CandidateRecord {
        name: TWIN_NAME.to_owned(),
        plan_json: candidates[baseline].plan_json.clone(),
        role: CandidateRole::Twin,
        same_as: Some(baseline),
    });
    Ok(records)
}

/// The candidate that represents this one: the baseline, else the first with the same placement.
fn same_placement(candidates: &[Candidate], index: usize, baseline: usize) -> Option<usize> {
    if index == baseline {
        return None;
    }
    let plan = &candidates[index].plan;
    if plan.same_placement(&candidates[baseline].plan) {
        return Some(baseline);
    }
    candidates[..index].iter().position(|earlier| earlier.plan.same_placement(plan))
}

fn check_names(candidates: &[Candidate]) -> Result<(), RunError> {
    for (index, Candidate { name, .. }) in candidates.iter().enumerate() {
        let earlier = candidates[..index].iter().any(|other| other.name == *name);
        if earlier || name == TWIN_NAME {
            return Err(RunError::refuse(
                format!("two candidates are called {name:?}"),
                "give each candidate its own name",
            ));
        }
    }
    Ok(())
}

fn check_vcpus(candidates: &[Candidate], baseline: &Candidate) -> Result<(), RunError> {
    let expected = vcpus_of(baseline);
    match candidates.iter().find(|candidate| vcpus_of(candidate) != expected) {
        None => Ok(()),
        Some(other) => Err(RunError::refuse(
            format!("{:?} has {} vCPUs, the baseline has {expected}", other.name, vcpus_of(other)),
            "only layouts of equal size can be compared: give the number of vCPUs",
        )),
    }
}

fn vcpus_of(candidate: &Candidate) -> usize {
    let vnodes = candidate.plan.vnodes.iter();
    vnodes.map(|vnode| vnode.vcpus().count()).sum::<usize>()
}
