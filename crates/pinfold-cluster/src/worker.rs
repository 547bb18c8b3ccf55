//! The work of a node: checks that it equals the first node, and runs a part in memory.

use std::collections::BTreeMap;

use pinfold_model::{Figure, Origin};
use pinfold_study::RunError;
use pinfold_study::store::{OpenRun, Store, TrialRecord};
use pinfold_study::study::{
    self, Cell, Cells, Environment, Finished, HostFacts, Loaded, NewStudy, Outcome,
    PresetSelection, Runner, StartRequest, Study, TrialError, from_toml,
};

use super::documents::{JobDocument, NodeProperties, Options};
use super::parts::Parts;

/// The study of a job.
#[derive(Debug)]
pub struct JobStudy {
    /// As in the file.
    pub whole: Study,
    /// In the form that is run.
    pub study: Study,
    form: PresetSelection,
}

/// The result of a node.
#[derive(Debug)]
pub enum PartResult {
    /// All trials of the part.
    Whole(Vec<(TrialRecord, Vec<Figure>)>),
    /// Interrupted after this number of trials, of this total.
    Interrupted(u64, u64),
}

/// Parses the study of a job.
///
/// # Errors
/// [`RunError::Stored`] if it is not a study file, [`RunError::Refused`] if it has
/// not the form of the job.
pub fn scout(job: &JobDocument) -> Result<JobStudy, RunError> {
    let whole = from_toml(&job.toml).map_err(RunError::Stored)?;
    let study = whole.apply_preset(&job.form)?;
    Ok(JobStudy { whole, study, form: job.form.clone() })
}

impl JobStudy {
    /// The properties of this node for the study.
    ///
    /// # Errors
    /// [`RunError`] if nothing can be run here.
    pub fn read_properties(
        &self,
        facts: &HostFacts,
        runner: &dyn Runner,
    ) -> Result<NodeProperties, RunError> {
        let cells = study::cells(&self.study, facts, runner)?;
        let skipped = cells.all.into_iter().map(|cell| cell.skipped).collect();
        Ok(NodeProperties { facts: facts.clone(), skipped })
    }
}

/// The differences that prevent this node from running a design of the first node; `None` if there
/// are none.
pub fn differences(
    scout: &JobStudy,
    first: &NodeProperties,
    here: &NodeProperties,
) -> Option<String> {
    for ((what, then), (_, now)) in numbers(&first.facts).iter().zip(numbers(&here.facts)) {
        if *then != now {
            return Some(format!("it has {now} {what}, the first node had {then}"));
        }
    }
    let cells = Cells::new(&scout.study, &here.facts).ok()?;
    let pairs = first.skipped.iter().zip(&here.skipped).zip(&cells.all);
    for ((then, now), cell) in pairs {
        let name = cell.name(&scout.study);
        match (then, now) {
            (None, Some(why)) => return Some(format!("it cannot run {name}: {why}")),
            (Some(why), None) => {
                return Some(format!("it can run {name}, which the first node could not: {why}"));
            }
            (Some(_), Some(_)) | (None, None) => {}
        }
    }
    (first.skipped.len() != here.skipped.len())
        .then(|| "it generates different cells from the study".to_owned())
}

fn numbers(facts: &HostFacts) -> [(&str, usize); 6] {
    [
        ("CPUs", facts.pus),
        ("cores", facts.cores),
        ("NUMA nodes", facts.nodes),
        ("packages", facts.packages),
        ("cores with several CPUs", usize::from(facts.smt)),
        ("governed frequencies", usize::from(facts.cpufreq)),
    ]
}

/// Runs a part with the runner of this node; nothing is stored on disk.
///
/// # Errors
/// [`RunError`]: there is no such part, or no trial can be run.
pub fn work(
    scout: &JobStudy,
    number: u32,
    origin: &Origin,
    facts: &HostFacts,
    environment: &mut Environment<'_>,
) -> Result<PartResult, RunError> {
    let mut store = Store::in_memory()?;
    let new = NewStudy {
        study: &scout.whole,
        form: &scout.form,
        command: "",
        origin,
        facts,
        now_unix_s: environment.clock.unix_seconds(),
    };
    let run = study::create(&mut store, &new, &*environment.runner)?;
    let loaded = Loaded::read(&store, run.id())?;
    let parts = Parts::new(&loaded.study, &loaded.cells);
    let part = parts.part(&loaded.study, &loaded.cells, number).ok_or_else(|| {
        let message = format!("the study has no part {number}, only {}", parts.count());
        RunError::Runner { what: "run the study", message, hint: None }
    })?;
    match study::run_starts(&mut store, run, &part.starts, environment)? {
        Outcome::Interrupted { done, total } => Ok(PartResult::Interrupted(done, total)),
        Outcome::Finished => {
            let mut trials = Vec::new();
            for (id, trial) in store.trials(run.id())? {
                trials.push((trial, store.figures(id)?));
            }
            Ok(PartResult::Whole(trials))
        }
    }
}

/// Creates a run on a cluster, with the properties of the first node.
///
/// # Errors
/// [`RunError`] as [`study::create`]; [`RunError::Refused`] if the cells of the node
/// differ.
pub fn create_on_cluster(
    store: &mut Store,
    new: &NewStudy<'_>,
    scouted: &NodeProperties,
    options: &Options,
) -> Result<OpenRun, RunError> {
    let cells = Cells::new(&new.study.apply_preset(new.form)?, new.facts)?;
    if cells.all.len() != scouted.skipped.len() {
        return Err(study::cell_mismatch_error(scouted.skipped.len(), cells.all.len()));
    }
    let reasons = cells.all.iter().zip(&scouted.skipped);
    let reasons = reasons
        .filter_map(|(cell, why)| Some(((cell.workload, cell.levels.clone()), why.clone()?)))
        .collect();
    let json =
        options.to_json().map_err(|source| RunError::Document { what: "cluster", source })?;
    study::create_with(store, new, &RemoteRunner { reasons }, Some(&json))
}

/// A runner for another machine: it has the list of cells that that machine refused.
struct RemoteRunner {
    reasons: BTreeMap<(usize, Vec<usize>), String>,
}

impl Runner for RemoteRunner {
    fn refusal(&self, _: &Study, cell: &Cell) -> Option<String> {
        self.reasons.get(&(cell.workload, cell.levels.clone())).cloned()
    }

    fn start(&mut self, _: &StartRequest<'_>, _: &mut Finished<'_>) -> Result<(), TrialError> {
        Err(TrialError::fatal("only the nodes of its cluster run the trials of this run"))
    }
}
