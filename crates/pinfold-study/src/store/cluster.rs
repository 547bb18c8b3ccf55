//! Runs on a cluster in the store: submitted tasks, and results by node.

use std::collections::BTreeMap;

use pinfold_model::{Figure, Origin};
use rusqlite::{OptionalExtension as _, params};

use super::rows::RunId;
use super::study::PreparedTrial;
use super::{OpenRun, Store, StoreError, TrialId, TrialRecord, sql_error};
use crate::schema;

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
pub struct NewDelivery {
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
    "SELECT trial.id, node.name, node.id, delivery.job, delivery.mask
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
    pub fn save_cluster(&mut self, run: OpenRun, options_json: &str) -> Result<(), StoreError> {
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
    pub fn cluster(&self, run: RunId) -> Result<Option<String>, StoreError> {
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
        let numbers: Vec<[i64; 2]> = tasks
            .iter()
            .map(|task| {
                Ok([self.number("job", task.job)?, self.number("time", task.submitted_unix_s)?])
            })
            .collect::<Result<_, StoreError>>()?;
        let path = self.path.clone();
        let fail = |source| sql_error(&path, "save the tasks", source);
        let transaction = self.begin().map_err(fail)?;
        for (task, [job, submitted]) in tasks.iter().zip(numbers) {
            transaction
                .prepare_cached(
                    "INSERT OR REPLACE INTO task
                     (run, part, attempt, job, element, submitted_unix_s, failed)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
                )
                .and_then(|mut insert| {
                    insert.execute(params![
                        run.id.0,
                        task.part,
                        task.attempt,
                        job,
                        task.element,
                        submitted,
                        task.failed
                    ])
                })
                .map_err(fail)?;
        }
        transaction.commit().map_err(fail)
    }

    /// Removes tasks that were cancelled, as if they had never been submitted.
    ///
    /// # Errors
    /// [`StoreError`] if the file cannot be written.
    pub fn forget_tasks(&mut self, run: OpenRun, tasks: &[(u32, u32)]) -> Result<(), StoreError> {
        let path = self.path.clone();
        let fail = |source| sql_error(&path, "forget tasks", source);
        let transaction = self.begin().map_err(fail)?;
        for (part, attempt) in tasks {
            transaction
                .prepare_cached("DELETE FROM task WHERE run = ?1 AND part = ?2 AND attempt = ?3")
                .and_then(|mut delete| delete.execute(params![run.id.0, part, attempt]))
                .map_err(fail)?;
        }
        transaction.commit().map_err(fail)
    }

    /// The submitted tasks of a run.
    ///
    /// # Errors
    /// [`StoreError`] if the file cannot be read.
    pub fn tasks(&self, run: RunId) -> Result<Vec<TaskRecord>, StoreError> {
        type Read = (u32, u32, i64, u32, i64, Option<String>);
        let rows: Vec<Read> = self.rows("read the tasks", TASKS, [run.0], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?))
        })?;
        rows.into_iter()
            .map(|(part, attempt, job, element, submitted, failed)| {
                Ok(TaskRecord {
                    part,
                    attempt,
                    job: self.unsigned("job", job)?,
                    element,
                    submitted_unix_s: self.unsigned("submitted_unix_s", submitted)?,
                    failed,
                })
            })
            .collect()
    }

    /// Saves results from nodes in one transaction. A part is skipped if the run has one of its
    /// trials already; its element of the result is then false.
    ///
    /// # Errors
    /// [`StoreError`] if the file cannot be written; then the store is unchanged.
    pub fn save_deliveries(
        &mut self,
        run: OpenRun,
        deliveries: &[NewDelivery],
    ) -> Result<Vec<bool>, StoreError> {
        let mut prepared = Vec::with_capacity(deliveries.len());
        for delivery in deliveries {
            let origin =
                schema::origin_to_json(&delivery.origin).map_err(self.document("the origin"))?;
            let began = self.number("time", delivery.began_unix_s)?;
            let trials: Vec<PreparedTrial<'_>> = delivery
                .trials
                .iter()
                .map(|(record, figures)| self.prepare_trial(record, figures))
                .collect::<Result<_, _>>()?;
            prepared.push((delivery, origin, began, trials));
        }
        let path = self.path.clone();
        let fail = |source| sql_error(&path, "save a delivery", source);
        let transaction = self.begin().map_err(fail)?;
        let mut saved = Vec::with_capacity(prepared.len());
        for (delivery, origin, began, trials) in &prepared {
            let mut is_there = false;
            for trial in trials {
                is_there |= trial.is_saved(&transaction, run.id).map_err(fail)?;
            }
            if !is_there {
                let id = insert_delivery(&transaction, run.id, delivery, origin, *began)
                    .map_err(fail)?;
                for trial in trials {
                    trial.insert(&transaction, run.id, Some(id)).map_err(fail)?;
                }
            }
            saved.push(!is_there);
        }
        transaction.commit().map_err(fail)?;
        Ok(saved)
    }

    /// Saves trials that were never run, all or none.
    ///
    /// # Errors
    /// [`StoreError`] if the file cannot be written, or the run has one of them.
    pub fn save_trials(&mut self, run: OpenRun, trials: &[TrialRecord]) -> Result<(), StoreError> {
        let prepared: Vec<PreparedTrial<'_>> =
            trials.iter().map(|trial| self.prepare_trial(trial, &[])).collect::<Result<_, _>>()?;
        let path = self.path.clone();
        let fail = |source| sql_error(&path, "save trials", source);
        let transaction = self.begin().map_err(fail)?;
        for trial in &prepared {
            trial.insert(&transaction, run.id, None).map_err(fail)?;
        }
        transaction.commit().map_err(fail)
    }

    /// The nodes that gave results for a run: number, name and origin data at that time.
    ///
    /// # Errors
    /// [`StoreError`] if the file cannot be read.
    pub fn nodes(&self, run: RunId) -> Result<Vec<(i64, String, Origin)>, StoreError> {
        type Read = (i64, String, String);
        let rows: Vec<Read> = self.rows("read the nodes", NODES, [run.0], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })?;
        rows.into_iter()
            .map(|(id, name, origin)| {
                let origin =
                    schema::origin_from_json(&origin).map_err(self.document("the origin"))?;
                Ok((id, name, origin))
            })
            .collect()
    }

    /// Where the trials of a run on a cluster were run.
    ///
    /// # Errors
    /// [`StoreError`] if the file cannot be read.
    pub fn trial_deliveries(
        &self,
        run: RunId,
    ) -> Result<BTreeMap<TrialId, DeliveryRecord>, StoreError> {
        let rows: Vec<(TrialId, DeliveryRecord)> =
            self.rows("read the deliveries", TRIAL_DELIVERIES, [run.0], |row| {
                let record = DeliveryRecord {
                    node: row.get(1)?,
                    identity: row.get(2)?,
                    job: row.get(3)?,
                    mask: row.get(4)?,
                };
                Ok((TrialId(row.get(0)?), record))
            })?;
        Ok(rows.into_iter().collect())
    }
}

fn insert_delivery(
    transaction: &rusqlite::Transaction<'_>,
    run: RunId,
    delivery: &NewDelivery,
    origin: &str,
    began: i64,
) -> rusqlite::Result<i64> {
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
            began
        ])?;
    Ok(transaction.last_insert_rowid())
}
