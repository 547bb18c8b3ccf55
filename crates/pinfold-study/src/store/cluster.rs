//! Runs on a cluster in the store: submitted tasks, and results by node.

use std::collections::BTreeMap;

use pinfold_model::{Figure, Origin};
use rusqlite::{OptionalExtension as _, Transaction, params};

use super::rows::RunId;
use super::save::Json;
use super::study::insert_trial;
use super::{OpenRun, Store, StoreError, TrialId, TrialRecord};

/// A submitted task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskRecord {
    /// Number of the part that it runs.
    pub part: u32,
    /// Attempt, 1 or 2.
    pub attempt: u32,
    /// Id of the array job.
    pub job: u64,
    /// Index in the array.
    pub element: u32,
    /// Time of submission (seconds since 1970).
    pub submitted_unix_s: u64,
    /// Why it gave no result, if that is known.
    pub failed: Option<String>,
}

/// A result from a node: a complete part.
#[derive(Clone, Debug, PartialEq)]
pub struct NewNodeResult {
    /// Number of the part.
    pub part: u32,
    /// Attempt, 1 or 2.
    pub attempt: u32,
    /// Name of the node.
    pub node: String,
    /// Origin data of the node at that time.
    pub origin: Origin,
    /// Id of the job.
    pub job: String,
    /// The CPUs that the job could use.
    pub mask: String,
    /// Start of the part (seconds since 1970).
    pub began_unix_s: u64,
    /// Its trials with their figures.
    pub trials: Vec<(TrialRecord, Vec<Figure>)>,
}

/// Where a trial was run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeliveryRecord {
    /// Name of the node.
    pub node: String,
    /// Index of the node's origin data in [`Store::nodes`].
    pub identity: i64,
    /// Id of the job.
    pub job: String,
    /// The CPUs that the job could use.
    pub mask: String,
}

pub(super) const TRIAL_DELIVERIES: &str =
    "SELECT trial.id AS trial, node.name AS node, node.id AS identity, job, mask
     FROM trial JOIN delivery ON delivery.id = trial.delivery JOIN node ON node.id = delivery.node
     WHERE trial.run = ?1";
pub(super) const NODES: &str = "SELECT id, name, origin FROM node WHERE run = ?1 ORDER BY id";
pub(super) const TASKS: &str =
    "SELECT part, attempt, job, element, submitted_unix_s, failed FROM task WHERE run = ?1
     ORDER BY part, attempt";

impl Store {
    /// Saves how the run's tasks are submitted, as JSON.
    ///
    /// # Errors
    /// [`StoreError`] if the file cannot be written.
    pub fn save_submission_options(
        &mut self,
        run: OpenRun,
        options_json: &str,
    ) -> Result<(), StoreError> {
        self.connection
            .execute(
                "INSERT INTO cluster (run, options) VALUES (?1, ?2)
                 ON CONFLICT (run) DO UPDATE SET options = ?2",
                params![run.id.0, options_json],
            )
            .map_err(self.sql("save the cluster"))
            .map(drop)
    }

    /// How the run's tasks are submitted, as JSON; `None` for a run on one machine.
    ///
    /// # Errors
    /// [`StoreError`] if the file cannot be read.
    pub fn submission_options(&self, run: RunId) -> Result<Option<String>, StoreError> {
        self.connection
            .query_row("SELECT options FROM cluster WHERE run = ?1", [run.0], |row| row.get(0))
            .optional()
            .map_err(self.sql("read the cluster"))
    }

    /// Saves submitted tasks, all or none.
    ///
    /// # Errors
    /// [`StoreError`] if the file cannot be written.
    pub fn save_tasks(&mut self, run: OpenRun, tasks: &[TaskRecord]) -> Result<(), StoreError> {
        self.write("save the tasks", |transaction| {
            for task in tasks {
                transaction
                    .prepare_cached(
                        "INSERT OR REPLACE INTO task
                         (run, part, attempt, job, element, submitted_unix_s, failed)
                         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
                    )?
                    .execute(params![
                        run.id.0,
                        task.part,
                        task.attempt,
                        task.job,
                        task.element,
                        task.submitted_unix_s,
                        task.failed
                    ])?;
            }
            Ok(())
        })
    }

    /// Removes tasks that were cancelled, as if they had never been submitted.
    ///
    /// # Errors
    /// [`StoreError`] if the file cannot be written.
    pub fn forget_tasks(&mut self, run: OpenRun, tasks: &[(u32, u32)]) -> Result<(), StoreError> {
        self.write("forget tasks", |transaction| {
            let query = "DELETE FROM task WHERE run = ?1 AND part = ?2 AND attempt = ?3";
            let mut delete = transaction.prepare_cached(query)?;
            for (part, attempt) in tasks {
                delete.execute(params![run.id.0, part, attempt])?;
            }
            Ok(())
        })
    }

    /// The submitted tasks of a run.
    ///
    /// # Errors
    /// [`StoreError`] if the file cannot be read.
    pub fn tasks(&self, run: RunId) -> Result<Vec<TaskRecord>, StoreError> {
        self.rows("read the tasks", TASKS, [run.0], |row| {
            Ok(TaskRecord {
                part: row.get("part")?,
                attempt: row.get("attempt")?,
                job: row.get("job")?,
                element: row.get("element")?,
                submitted_unix_s: row.get("submitted_unix_s")?,
                failed: row.get("failed")?,
            })
        })
    }

    /// Saves results from nodes in one transaction. A part is skipped if the run has one of its
    /// trials already; its element of the result is then false.
    ///
    /// # Errors
    /// [`StoreError`] if the file cannot be written; then the store is unchanged.
    pub fn save_deliveries(
        &mut self,
        run: OpenRun,
        deliveries: &[NewNodeResult],
    ) -> Result<Vec<bool>, StoreError> {
        self.write("save a delivery", |transaction| {
            let mut saved = Vec::with_capacity(deliveries.len());
            for delivery in deliveries {
                let mut is_there = false;
                for (trial, _) in &delivery.trials {
                    is_there |= is_saved(transaction, run.id, trial)?;
                }
                if !is_there {
                    let id = insert_delivery(transaction, run.id, delivery)?;
                    for (trial, figures) in &delivery.trials {
                        insert_trial(transaction, run.id, Some(id), trial, figures)?;
                    }
                }
                saved.push(!is_there);
            }
            Ok(saved)
        })
    }

    /// Saves trials that were never run, all or none.
    ///
    /// # Errors
    /// [`StoreError`] if the file cannot be written, or the run has one of them.
    pub fn save_trials(&mut self, run: OpenRun, trials: &[TrialRecord]) -> Result<(), StoreError> {
        self.write("save trials", |transaction| {
            for trial in trials {
                insert_trial(transaction, run.id, None, trial, &[])?;
            }
            Ok(())
        })
    }

    /// The nodes that gave results for a run: number, name and origin data at that time.
    ///
    /// # Errors
    /// [`StoreError`] if the file cannot be read.
    pub fn nodes(&self, run: RunId) -> Result<Vec<(i64, String, Origin)>, StoreError> {
        self.rows("read the nodes", NODES, [run.0], |row| {
            Ok((row.get("id")?, row.get("name")?, row.origin()?))
        })
    }

    /// Where the trials of a run on a cluster were run.
    ///
    /// # Errors
    /// [`StoreError`] if the file cannot be read.
    pub fn trial_deliveries(
        &self,
        run: RunId,
    ) -> Result<BTreeMap<TrialId, DeliveryRecord>, StoreError> {
        let rows = self.rows("read the deliveries", TRIAL_DELIVERIES, [run.0], |row| {
            let record = DeliveryRecord {
                node: row.get("node")?,
                identity: row.get("identity")?,
                job: row.get("job")?,
                mask: row.get("mask")?,
            };
            Ok((TrialId(row.get("trial")?), record))
        })?;
        Ok(rows.into_iter().collect())
    }
}

/// True if the run has this trial.
fn is_saved(
    transaction: &Transaction<'_>,
    run: RunId,
    trial: &TrialRecord,
) -> rusqlite::Result<bool> {
    let TrialRecord { block, cell, start, twin, .. } = trial;
    transaction
        .prepare_cached(
            "SELECT 1 FROM trial WHERE run = ?1 AND block = ?2 AND cell = ?3 AND start = ?4
             AND twin = ?5",
        )?
        .exists(params![run.0, block, cell, start, twin])
}

fn insert_delivery(
    transaction: &Transaction<'_>,
    run: RunId,
    delivery: &NewNodeResult,
) -> rusqlite::Result<i64> {
    let origin = Json(&delivery.origin);
    transaction
        .prepare_cached("INSERT OR IGNORE INTO node (run, name, origin) VALUES (?1, ?2, ?3)")?
        .execute(params![run.0, delivery.node, origin])?;
    transaction
        .prepare_cached(
            "INSERT INTO delivery (run, part, attempt, node, job, mask, began_unix_s)
             VALUES (?1, ?2, ?3,
                     (SELECT id FROM node WHERE run = ?1 AND name = ?4 AND origin = ?5),
                     ?6, ?7, ?8)",
        )?
        .execute(params![
            run.0,
            delivery.part,
            delivery.attempt,
            delivery.node,
            origin,
            delivery.job,
            delivery.mask,
            delivery.began_unix_s
        ])?;
    Ok(transaction.last_insert_rowid())
}
