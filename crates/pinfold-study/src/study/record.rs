//! A study in the store: the document of the run, creating a run, reading one back.

use std::collections::BTreeMap;

use pinfold_config::ConfigError;
use pinfold_config::fault::Fault;
use pinfold_model::Origin;
use pinfold_model::text::count_noun;
use serde::{Deserialize, Serialize};

use super::cells::Cells;
use super::file::{HostFacts, Study};
use super::preset_selection::PresetSelection;
use super::read::from_toml;
use super::runner::Runner;
use crate::error::RunError;
use crate::schema::SchemaError;
use crate::store::{NewRun, OpenRun, RunId, Store, StoreError, StudyCell};

/// Kind of a study's run in the store.
pub const KIND: &str = "study";

const FORMAT: &str = "pinfold-study/1";

/// The data that the run stores besides its cells: enough to resume it and to render the page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StudyRecord {
    format: String,
    /// The study file's text.
    pub toml: String,
    /// The form that was run.
    #[serde(rename = "quick")]
    pub form: PresetSelection,
    /// The command line that started it.
    pub command: String,
    facts: HostFacts,
}

/// The early end of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EarlyEnd {
    /// Number of blocks that were run.
    pub blocks: u32,
    /// Why the run ended.
    pub reason: String,
}

/// A run read back from the store.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The study, in the form that is run.
    pub study: Study,
    /// Its cells; those that the runner refused are marked as skipped.
    pub cells: Cells,
    /// The host on which it started.
    pub facts: HostFacts,
    /// The stored document of the run.
    pub record: StudyRecord,
    /// Set if it ended before its last block.
    pub early: Option<EarlyEnd>,
    /// True if statements, charts and tables are those of another text than the stored one.
    pub is_shown_as_another: bool,
}

/// The data of a new run.
#[derive(Clone, Copy, Debug)]
pub struct NewStudy<'a> {
    /// The study, as in its file.
    pub study: &'a Study,
    /// The form that is run.
    pub form: &'a PresetSelection,
    /// The command line.
    pub command: &'a str,
    /// Host and software.
    pub origin: &'a Origin,
    /// Facts of the host.
    pub facts: &'a HostFacts,
    /// Start of the run (seconds since 1970).
    pub now_unix_s: u64,
}

/// The cells of a study on this host, those that the runner refuses marked as skipped.
///
/// # Errors
/// As [`Cells::new`], and if none can be run [`RunError::Refused`], or the line of the preset.
pub fn cells(study: &Study, facts: &HostFacts, runner: &dyn Runner) -> Result<Cells, RunError> {
    let mut cells = Cells::new(study, facts)?;
    for cell in &mut cells.all {
        if cell.skipped.is_none() {
            cell.skipped = runner.refusal(study, cell);
        }
    }
    if cells.running().next().is_some() {
        return Ok(cells);
    }
    let mut reasons = BTreeMap::new();
    for reason in cells.all.iter().filter_map(|cell| cell.skipped.clone()) {
        *reasons.entry(reason).or_default() += 1;
    }
    let error = RunError::refuse(
        format!("none of the {} cells can be run here: {}", cells.all.len(), most_first(&reasons)),
        "`pinfold doctor` shows what is missing; with --preset a study may have other cells",
    );
    let preset = study.preset.as_ref().and_then(|name| Some((name, study.presets.get(name)?)));
    let Some((name, preset)) = preset else { return Err(error) };
    let fault = Fault::new(preset.at, format!("preset {name}: {error}"));
    let fault = match error.hint() {
        Some(hint) => fault.with_hint(hint),
        None => fault,
    };
    Err(RunError::Rule(ConfigError::in_file(&study.text, fault)))
}

/// The reasons, that of the most cells first.
fn most_first(reasons: &BTreeMap<String, usize>) -> String {
    let mut sorted: Vec<(&String, &usize)> = reasons.iter().collect();
    sorted.sort_by_key(|(_, cells)| std::cmp::Reverse(**cells));
    let text = sorted.iter().map(|(why, cells)| format!("{why} ({})", count_noun(**cells, "cell")));
    text.collect::<Vec<_>>().join("; ")
}

/// The error if the cells of a run differ from those of its text.
pub fn cell_mismatch_error(stored: usize, found: usize) -> RunError {
    RunError::refuse(
        format!("the store has {stored} cells, but its study has {found}"),
        "another version of Pinfold created it; use that version, or start a new store",
    )
}

/// Creates a run: when this returns, its document and its cells are in the store.
///
/// # Errors
/// [`RunError`]: nothing can be run, or the store has another study or an unfinished run.
pub fn create(
    store: &mut Store,
    new: &NewStudy<'_>,
    runner: &dyn Runner,
) -> Result<OpenRun, RunError> {
    create_with(store, new, runner, None)
}

/// Checks that a store can take a new run of the study with this name.
///
/// # Errors
/// [`RunError`]: it has another study, or an unfinished run.
pub fn require_no_unfinished_run(store: &Store, name: &str) -> Result<(), RunError> {
    for run in store.runs()? {
        let record = store.run(run)?;
        if record.kind != KIND {
            continue;
        }
        let path = store.path().to_owned();
        let held = Loaded::read(store, run)?;
        if held.study.name != name {
            let found = held.study.name;
            return Err(RunError::refuse(
                format!("the store {path} holds the study {found:?}, not {name:?}"),
                "name another store with --store",
            ));
        }
        if record.finished_unix_s.is_none() {
            return Err(RunError::refuse(
                format!("the store {path} contains an unfinished run of this study"),
                "continue with `pinfold study resume STORE`, or name another store with --store",
            ));
        }
    }
    Ok(())
}

/// As [`create`]; with options of a cluster (JSON), the run's tasks are submitted to it.
///
/// # Errors
/// As [`create`].
pub fn create_with(
    store: &mut Store,
    new: &NewStudy<'_>,
    runner: &dyn Runner,
    cluster: Option<&str>,
) -> Result<OpenRun, RunError> {
    require_no_unfinished_run(store, &new.study.name)?;
    let study = new.study.apply_preset(new.form)?;
    let cells = cells(&study, new.facts, runner)?;
    let record = StudyRecord {
        format: FORMAT.to_owned(),
        toml: new.study.text.clone(),
        form: new.form.clone(),
        command: new.command.to_owned(),
        facts: new.facts.clone(),
    };
    let config_json = serde_json::to_string(&record).map_err(RunError::document("study"))?;
    let run = store.create_run(&NewRun {
        created_unix_s: new.now_unix_s,
        kind: KIND,
        config_json: &config_json,
        origin: new.origin,
        seed: study.seed,
        candidates: &[],
    })?;
    if let Some(options_json) = cluster {
        store.save_submission_options(run, options_json)?;
    }
    let rows: Vec<StudyCell> = cells.all.iter().map(|cell| row_of(&study, cell)).collect();
    store.save_study_cells(run, &rows)?;
    Ok(run)
}

fn row_of(study: &Study, cell: &super::cells::Cell) -> StudyCell {
    let levels = study.factors.iter().filter_map(|factor| {
        Some((factor.name.clone(), cell.level(study, &factor.name)?.to_owned()))
    });
    StudyCell {
        workload: cell.workload(study).name.clone(),
        levels: levels.collect::<BTreeMap<_, _>>(),
        baseline: cell.baseline,
        skipped: cell.skipped.clone(),
    }
}

impl Loaded {
    /// Reads a run back.
    ///
    /// # Errors
    /// [`RunError`]: the run is not one of a study, or its documents have another version.
    pub fn read(store: &Store, run: RunId) -> Result<Self, RunError> {
        let row = store.run(run)?;
        if row.kind != KIND {
            let path = store.path().to_owned();
            return Err(StoreError::Kind { path, run, found: row.kind, wanted: KIND }.into());
        }
        let record: StudyRecord =
            serde_json::from_str(&row.config_json).map_err(RunError::document("study"))?;
        if record.format != FORMAT {
            let word = record.format;
            let source = SchemaError::Word { what: "format", word };
            return Err(RunError::Document { what: "study", source });
        }
        let early = row.confirm_json.as_deref().map(serde_json::from_str).transpose();
        let early = early.map_err(RunError::document("study"))?;
        let whole = from_toml(&record.toml).map_err(RunError::Stored)?;
        let study = whole.apply_preset(&record.form)?;
        let facts = record.facts.clone();
        let mut cells = Cells::new(&study, &facts)?;
        let stored = store.study_cells(run)?;
        if stored.len() != cells.all.len()
            || !cells.all.iter().zip(&stored).all(|(cell, row)| {
                StudyCell { skipped: row.skipped.clone(), ..row_of(&study, cell) } == *row
            })
        {
            return Err(cell_mismatch_error(stored.len(), cells.all.len()));
        }
        for (cell, row) in cells.all.iter_mut().zip(stored) {
            cell.skipped = row.skipped;
        }
        Ok(Self { study, cells, facts, record, early, is_shown_as_another: false })
    }

    /// The same run with the statements, charts, tables and published values of another text of its
    /// study.
    ///
    /// # Errors
    /// [`RunError::Refused`] if that text would not have measured the same.
    pub fn replace_report_text(self, other: &Study) -> Result<Self, RunError> {
        let study = other.apply_preset(&self.record.form)?;
        if study.name != self.study.name {
            return Err(refuse_changed("name"));
        }
        if study.values != self.study.values || study.repetitions != self.study.repetitions {
            return Err(refuse_changed("values or its number of repetitions"));
        }
        for own in &self.study.workloads {
            let named = study.workloads.iter().find(|workload| workload.name == own.name);
            if named.is_none_or(|workload| workload.program != own.program) {
                return Err(refuse_changed(&format!("workload {}", own.name)));
            }
        }
        let cells = Cells::new(&study, &self.facts)?.all;
        if rows_of(&study, &cells) != rows_of(&self.study, &self.cells.all) {
            return Err(refuse_changed("cells"));
        }
        Ok(Self { study, is_shown_as_another: true, ..self })
    }

    /// Checks that a file equals the one at the start of the run.
    ///
    /// # Errors
    /// [`RunError::Refused`] with the first line that differs.
    pub fn require_same_text(&self, file: &str, text: &str) -> Result<(), RunError> {
        if self.record.toml == text {
            return Ok(());
        }
        let same = text.lines().zip(self.record.toml.lines()).take_while(|(a, b)| a == b).count();
        let line = same + 1;
        Err(RunError::refuse(
            format!("{file} is not the file that the run started with: line {line} differs"),
            "continue without naming the file, because the store has its own copy; or start a \
             new store",
        ))
    }
}

fn rows_of(study: &Study, cells: &[super::cells::Cell]) -> Vec<StudyCell> {
    cells.iter().map(|cell| StudyCell { skipped: None, ..row_of(study, cell) }).collect()
}

fn refuse_changed(what: &str) -> RunError {
    RunError::refuse(
        format!("the file's {what} is not what the run in the store measured"),
        "only statements, charts, tables and published values may differ: start a new run",
    )
}

impl EarlyEnd {
    /// Saves it: the run is not continued.
    ///
    /// # Errors
    /// [`RunError`] if the store failed.
    pub fn save(&self, store: &mut Store, run: OpenRun) -> Result<(), RunError> {
        let json = serde_json::to_string(self).map_err(RunError::document("study"))?;
        Ok(store.set_confirmation(run, &json)?)
    }
}
