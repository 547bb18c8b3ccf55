//! Studies in the store: cells at the start of a run, each trial in one transaction when it ends.

use std::collections::BTreeMap;

use pinfold_model::{Family, Figure, Unit};
use rusqlite::{Transaction, params};
use serde::{Deserialize, Serialize};

use super::rows::{RunId, StartStatus};
use super::save::{Json, bytes_of};
use super::{OpenRun, Store, StoreError};

/// A cell of a study in the store; its index is its position in the run's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StudyCell {
    /// Name of its workload.
    pub workload: String,
    /// Its level of each factor.
    pub levels: BTreeMap<String, String>,
    /// Index of the cell that it is compared with.
    pub baseline: Option<usize>,
    /// Why it is not run.
    pub skipped: Option<String>,
}

/// A trial that has ended, without its samples.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrialRecord {
    /// Block, from 0.
    pub block: u32,
    /// Index of the cell.
    pub cell: usize,
    /// Index of the start of the cell in the block, from 0.
    pub start: u32,
    /// True for the repeated run (twin) of a cell that others are compared with.
    #[serde(rename = "second_look")]
    pub twin: bool,
    /// Its position in the order of the block, from 0.
    pub position: u32,
    /// Name of the machine if several work on one run, else empty.
    #[serde(skip)]
    pub node: String,
    /// False if it failed, and the second attempt failed too.
    pub ok: bool,
    /// Number of attempts, 1 or 2.
    pub attempts: u32,
    /// Message of the last failed attempt, if any.
    pub error: Option<String>,
    /// Start of its last attempt (seconds since 1970).
    pub began_unix_s: u64,
    /// Duration of all attempts, each including its share of the start (ns).
    pub duration_ns: u64,
    /// Duration of the workload itself (ns); 0 if it failed.
    pub work_ns: u64,
}

/// Number of a trial in its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TrialId(pub i64);

/// Progress of a study.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StudyProgress {
    /// Number of trials that were measured.
    pub ok: u64,
    /// Number of trials that failed.
    pub failed: u64,
    /// Duration of all trials together (ns).
    pub duration_ns: u64,
    /// Duration of all workloads together (ns).
    pub work_ns: u64,
}

pub(super) const STUDY_PROGRESS: &str =
    "SELECT status = 'ok' AS ok, count(*) AS count, sum(duration_ns) AS duration_ns,
            sum(work_ns) AS work_ns
     FROM trial WHERE run = ?1 GROUP BY status";
pub(super) const TRIALS: &str =
    "SELECT id, block, cell, start, twin, position, node, status, attempts, error, began_unix_s,
            duration_ns, work_ns
     FROM trial WHERE run = ?1 ORDER BY block, cell, start, twin";
pub(super) const FIGURES: &str =
    "SELECT probe, labels, unit, family, cpu, duration_ns, dropped, disturbed, flags, samples
     FROM figure WHERE trial = ?1 ORDER BY id";
pub(super) const APPLY_FLAGS: &str =
    "SELECT flags, count(*) AS count FROM figure WHERE probe = 'apply'
     AND trial IN (SELECT id FROM trial WHERE run = ?1 AND status = 'ok') GROUP BY flags";
pub(super) const FAILURES: &str = "SELECT cell, count(*) AS count, max(error) AS error FROM trial
     WHERE run = ?1 AND status = 'failed' GROUP BY cell ORDER BY cell";

impl Store {
    /// Saves the cells of a new run of a study.
    ///
    /// # Errors
    /// [`StoreError`] if the file cannot be written.
    pub fn save_study_cells(
        &mut self,
        run: OpenRun,
        cells: &[StudyCell],
    ) -> Result<(), StoreError> {
        self.write("save the cells", |transaction| {
            for (position, cell) in cells.iter().enumerate() {
                transaction
                    .prepare_cached(
                        "INSERT INTO study_cell (run, position, workload, levels, baseline, skipped)
                         VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                    )?
                    .execute(params![
                        run.id.0,
                        position,
                        cell.workload,
                        Json(&cell.levels),
                        cell.baseline,
                        cell.skipped
                    ])?;
            }
            Ok(())
        })
    }

    /// The cells of a study's run, in order.
    ///
    /// # Errors
    /// [`StoreError`] if the file cannot be read.
    pub fn study_cells(&self, run: RunId) -> Result<Vec<StudyCell>, StoreError> {
        let query = "SELECT workload, levels, baseline, skipped FROM study_cell WHERE run = ?1
                     ORDER BY position";
        self.rows("read the cells", query, [run.0], |row| {
            Ok(StudyCell {
                workload: row.get("workload")?,
                levels: row.json("levels", "the levels")?,
                baseline: row.get("baseline")?,
                skipped: row.get("skipped")?,
            })
        })
    }

    /// Saves a trial that has ended, with all its samples, in one transaction.
    ///
    /// # Errors
    /// [`StoreError::AlreadySaved`] if the run has this trial, or the file cannot be written; then
    /// the store is unchanged.
    pub fn save_trial(
        &mut self,
        run: OpenRun,
        trial: &TrialRecord,
        figures: &[Figure],
    ) -> Result<TrialId, StoreError> {
        let saved = self.write("save the trial", |transaction| {
            insert_trial(transaction, run.id, None, trial, figures)
        });
        saved.map_err(|error| {
            let name = format!("block {}, cell {}", trial.block + 1, trial.cell);
            error.or_already_saved(run.id, &name)
        })
    }

    /// The trials of a study's run that have ended, by block and cell.
    ///
    /// # Errors
    /// [`StoreError`] if the file cannot be read.
    pub fn trials(&self, run: RunId) -> Result<Vec<(TrialId, TrialRecord)>, StoreError> {
        self.rows("read the trials", TRIALS, [run.0], |row| {
            let record = TrialRecord {
                block: row.get("block")?,
                cell: row.get("cell")?,
                start: row.get("start")?,
                twin: row.get("twin")?,
                position: row.get("position")?,
                node: row.get("node")?,
                ok: row.word("status", StartStatus::from_name)? == StartStatus::Ok,
                attempts: row.get("attempts")?,
                error: row.get("error")?,
                began_unix_s: row.get("began_unix_s")?,
                duration_ns: row.get("duration_ns")?,
                work_ns: row.get("work_ns")?,
            };
            Ok((TrialId(row.get("id")?), record))
        })
    }

    /// The figures of a trial.
    ///
    /// # Errors
    /// [`StoreError`] if the file cannot be read.
    pub fn figures(&self, trial: TrialId) -> Result<Vec<Figure>, StoreError> {
        self.rows("read the figures", FIGURES, [trial.0], |row| {
            Ok(Figure {
                probe: row.get("probe")?,
                labels: row.json("labels", "the labels")?,
                unit: row.word("unit", Unit::from_name)?,
                family: row.word("family", Family::from_name)?,
                cpu: row.get("cpu")?,
                duration_ns: row.get("duration_ns")?,
                samples: row.samples()?,
                dropped: row.get("dropped")?,
                disturbed: row.get("disturbed")?,
                flags: row.json("flags", "the flags")?,
            })
        })
    }

    /// Number and duration of the trials that have ended. Fast for stores of any size.
    ///
    /// # Errors
    /// [`StoreError`] if the file cannot be read.
    pub fn study_progress(&self, run: RunId) -> Result<StudyProgress, StoreError> {
        let mut progress = StudyProgress::default();
        self.rows("count the trials", STUDY_PROGRESS, [run.0], |row| {
            let is_ok: bool = row.get("ok")?;
            *(if is_ok { &mut progress.ok } else { &mut progress.failed }) = row.get("count")?;
            progress.duration_ns += row.get::<u64>("duration_ns")?;
            progress.work_ns += row.get::<u64>("work_ns")?;
            Ok(())
        })?;
        Ok(progress)
    }

    /// The flags of the figures `apply` of the trials that were measured, with the number of
    /// trials.
    ///
    /// # Errors
    /// [`StoreError`] if the file cannot be read.
    pub fn apply_flags(&self, run: RunId) -> Result<Vec<(Vec<String>, u64)>, StoreError> {
        self.rows("read the findings", APPLY_FLAGS, [run.0], |row| {
            Ok((row.json("flags", "the flags")?, row.get("count")?))
        })
    }

    /// Number of failed trials by cell, with one of the messages.
    ///
    /// # Errors
    /// [`StoreError`] if the file cannot be read.
    pub fn study_failures(&self, run: RunId) -> Result<Vec<(usize, u64, String)>, StoreError> {
        self.rows("count the failures", FAILURES, [run.0], |row| {
            let message = row.get::<Option<String>>("error")?.unwrap_or_default();
            Ok((row.get("cell")?, row.get("count")?, message))
        })
    }
}

pub(super) fn insert_trial(
    transaction: &Transaction<'_>,
    run: RunId,
    delivery: Option<i64>,
    trial: &TrialRecord,
    figures: &[Figure],
) -> rusqlite::Result<TrialId> {
    transaction
        .prepare_cached(
            "INSERT INTO trial (run, session, block, cell, start, twin, position, node, status,
                                attempts, error, began_unix_s, duration_ns, work_ns, delivery)
             VALUES (?1, (SELECT max(id) FROM session WHERE run = ?1), ?2, ?3, ?4, ?5, ?6, ?7,
                     ?8, ?9, ?10, ?11, ?12, ?13, ?14)",
        )?
        .execute(params![
            run.0,
            trial.block,
            trial.cell,
            trial.start,
            trial.twin,
            trial.position,
            trial.node,
            if trial.ok { StartStatus::Ok } else { StartStatus::Failed }.name(),
            trial.attempts,
            trial.error,
            trial.began_unix_s,
            trial.duration_ns,
            trial.work_ns,
            delivery
        ])?;
    let id = TrialId(transaction.last_insert_rowid());
    for figure in figures {
        transaction
            .prepare_cached(
                "INSERT INTO figure (trial, probe, labels, unit, family, cpu, duration_ns, dropped,
                                     disturbed, flags, samples)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
            )?
            .execute(params![
                id.0,
                figure.probe,
                Json(&figure.labels),
                figure.unit.name(),
                figure.family.name(),
                figure.cpu,
                figure.duration_ns,
                figure.dropped,
                figure.disturbed,
                Json(&figure.flags),
                bytes_of(&figure.samples)
            ])?;
    }
    Ok(id)
}
