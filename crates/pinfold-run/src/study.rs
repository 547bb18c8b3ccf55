//! Runs the trials of a study on this host.
//!
//! ```text
//! file ─► pinfold_study::study (cells, design, store) ─► HostRunner: plan → apply → run → undo
//!                                                          or: boot → plan → apply → run in it
//! ```
//!
//! The design, the store and the statistics are in `pinfold-study`; this module places and runs the
//! workloads. The engine of a cluster uses the same [`HostRunner`] on its nodes.

mod cell_context;
mod copies;
mod environment;
mod figure;
mod futex_cycles;
mod guest_trials;
mod guests;
mod interference;
pub(crate) mod job;
mod local;
mod machines;
pub mod page;
mod probes;
mod runner;
mod trials;

use pinfold_host::{LiveHost, files};
use pinfold_model::Topology;
use pinfold_study::RunError;
use pinfold_study::store::{RunId, Store};
use pinfold_study::study::{HostFacts, PresetSelection, Progress, Study, from_toml};

pub use self::local::{NewRun, StoredRun, require_own, resume, run};
pub use self::runner::HostRunner;

use crate::{Exit, Failure, host, inputs};

/// Lock held while trials run: only one process may measure at a time.
pub const LOCK: &str = "measuring";

/// Name of the measured vnode and cgroup.
const NAME: &str = "study";

/// What the caller shows while trials run.
pub struct Display<'a> {
    /// Called before the first trial.
    pub begins: &'a dyn Fn(&Store, RunId) -> Result<(), Failure>,
    /// Receives the progress.
    pub progress: &'a mut dyn Progress,
}

/// This host, as a study sees it.
pub struct Machine {
    /// Access to the host.
    pub host: LiveHost,
    /// Its topology, with the CPUs that the study may use.
    pub topology: Topology,
    /// The facts for the expressions of the study.
    pub facts: HostFacts,
}

impl Machine {
    /// This host, with the CPUs that the study may use; `file` names the study in errors.
    ///
    /// # Errors
    /// [`Failure`] if this host has none of these CPUs, or cannot be read.
    pub fn from_study(study: &Study, file: &str) -> Result<Self, Failure> {
        let host = host::live()?;
        let mut topology = inputs::topology(&host, None)?;
        if let Some(pus) = &study.pus {
            inputs::require_known(&format!("{file}: pus"), pus, &topology)?;
            topology.allowed = topology.allowed.intersection(pus);
            if topology.allowed.is_empty() {
                return Err(Failure::new(
                    Exit::Input,
                    format!("{file}: pus: none may be used here"),
                ));
            }
        }
        let facts = facts(&topology);
        Ok(Self { host, topology, facts })
    }
}

/// The facts about this host for the expressions of the file.
fn facts(topology: &Topology) -> HostFacts {
    let usable = &topology.allowed;
    let cores = topology.cores.iter().filter(|core| !core.pus.is_disjoint(usable)).count();
    HostFacts {
        pus: usable.len(),
        cores,
        nodes: topology.nodes.len(),
        packages: topology.packages.len(),
        smt: topology.has_smt(),
        cpufreq: !topology.frequency_domains.is_empty(),
    }
}

/// A study from its file, in the form that is run.
///
/// # Errors
/// [`Failure`] with the place of the error in the file.
pub fn read(path: &str) -> Result<Study, Failure> {
    let text = files::read_text(path).map_err(|error| inputs::input_failure(&error))?;
    inputs::name_option(path, from_toml(&text))
}

/// The form of the study that is run.
///
/// # Errors
/// [`Failure`] if the file has no such preset.
pub fn choose_form(study: &Study, form: &PresetSelection, file: &str) -> Result<Study, Failure> {
    study.apply_preset(form).map_err(|error| in_file(file, error.into()))
}

/// The failure for an error that refers to a file.
pub fn file_failure(file: &str, error: RunError) -> Failure {
    let is_of_file = matches!(error, RunError::Rule(_));
    let failure = Failure::from(error);
    if is_of_file { in_file(file, failure) } else { failure }
}

/// The failure with the name of the file to which it refers.
pub fn in_file(file: &str, failure: Failure) -> Failure {
    Failure { message: format!("{file}: {}", failure.message), ..failure }
}
