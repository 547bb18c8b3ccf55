//! Studies in the store: cells at the start of a run, each trial in one transaction when it ends.

use std::collections::BTreeMap;

use pinfold_model::{Family, Figure, Unit};
use rusqlite::{Row, params};

use super::rows::RunId;
use super::save::is_duplicate;
use super::{OpenRun, Store, StoreError, sql_error};
use crate::schema;

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
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
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
    "SELECT status = 'ok', count(*), sum(duration_ns), sum(work_ns) FROM trial WHERE run = ?1
     GROUP BY status";
pub(super) const TRIALS: &str =
    "SELECT id, block, cell, start, twin, position, node, status, attempts, error, began_unix_s,
            duration_ns, work_ns
     FROM trial WHERE run = ?1 ORDER BY block, cell, start, twin";
pub(super) const FIGURES: &str =
    "SELECT probe, labels, unit, family, cpu, duration_ns, dropped, disturbed, flags, samples
     FROM figure WHERE trial = ?1 ORDER BY id";
pub(super) const APPLY_FLAGS: &str = "SELECT flags, count(*) FROM figure WHERE probe = 'apply'
     AND trial IN (SELECT id FROM trial WHERE run = ?1 AND status = 'ok') GROUP BY flags";
pub(super) const FAILURES: &str =
    "SELECT cell, count(*), max(error) FROM trial WHERE run = ?1 AND status = 'failed'
     GROUP BY cell ORDER BY cell";

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
        let levels: Vec<String> = cells
            .iter()
            .map(|cell| schema::words_to_json(&cell.levels).map_err(self.document("the levels")))
            .collect::<Result<_, _>>()?;
        let path = self.path.clone();
        let fail = |source| sql_error(&path, "save the cells", source);
        let transaction = self.begin().map_err(fail)?;
        for (position, (cell, levels)) in (0_i64..).zip(cells.iter().zip(&levels)) {
            let baseline = cell.baseline.and_then(|index| i64::try_from(index).ok());
            transaction
                .prepare_cached(
                    "INSERT INTO study_cell (run, position, workload, levels, baseline, skipped)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                )
                .and_then(|mut insert| {
                    insert.execute(params![
                        run.id.0,
                        position,
                        cell.workload,
                        levels,
                        baseline,
                        cell.skipped
                    ])
                })
                .map_err(fail)?;
        }
        transaction.commit().map_err(fail)
    }

    /// The cells of a study's run, in order.
    ///
    /// # Errors
    /// [`StoreError`] if the file cannot be read.
    pub fn study_cells(&self, run: RunId) -> Result<Vec<StudyCell>, StoreError> {
        type Read = (String, String, Option<i64>, Option<String>);
        let rows: Vec<Read> = self.rows(
            "read the cells",
            "SELECT workload, levels, baseline, skipped FROM study_cell WHERE run = ?1
             ORDER BY position",
            [run.0],
            |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)),
        )?;
        rows.into_iter()
            .map(|(workload, levels, baseline, skipped)| {
                Ok(StudyCell {
                    workload,
                    levels: schema::words_from_json(&levels)
                        .map_err(self.document("the levels"))?,
                    baseline: baseline.map(|index| self.index("baseline", index)).transpose()?,
                    skipped,
                })
            })
            .collect()
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
        let prepared = self.prepare_trial(trial, figures)?;
        let path = self.path.clone();
        let fail = |source| sql_error(&path, "save the trial", source);
        let transaction = self.begin().map_err(fail)?;
        let id = prepared.insert(&transaction, run.id, None).map_err(|source| {
            if is_duplicate(&source) {
                let start = format!("block {}, cell {}", trial.block + 1, trial.cell);
                StoreError::AlreadySaved { run: run.id, start }
            } else {
                fail(source)
            }
        })?;
        transaction.commit().map_err(fail)?;
        Ok(id)
    }

    /// A trial whose values were converted before the transaction starts.
    pub(super) fn prepare_trial<'a>(
        &self,
        trial: &'a TrialRecord,
        figures: &'a [Figure],
    ) -> Result<PreparedTrial<'a>, StoreError> {
        Ok(PreparedTrial {
            trial,
            cell: self.number("cell", trial.cell as u64)?,
            numbers: [
                self.number("time", trial.began_unix_s)?,
                self.number("duration", trial.duration_ns)?,
                self.number("duration", trial.work_ns)?,
            ],
            figures: figures
                .iter()
                .map(|figure| self.prepare_figure(figure))
                .collect::<Result<_, _>>()?,
        })
    }

    fn prepare_figure<'a>(&self, figure: &'a Figure) -> Result<PreparedFigure<'a>, StoreError> {
        let document = |what| self.document(what);
        Ok(PreparedFigure {
            figure,
            labels: schema::words_to_json(&figure.labels).map_err(document("the labels"))?,
            flags: schema::flags_to_json(&figure.flags).map_err(document("the flags"))?,
            numbers: [
                self.number("duration", figure.duration_ns)?,
                self.number("dropped", figure.dropped)?,
                self.number("disturbed", figure.disturbed)?,
            ],
            samples: figure.samples.iter().flat_map(|sample| sample.to_le_bytes()).collect(),
        })
    }

    /// The trials of a study's run that have ended, by block and cell.
    ///
    /// # Errors
    /// [`StoreError`] if the file cannot be read.
    pub fn trials(&self, run: RunId) -> Result<Vec<(TrialId, TrialRecord)>, StoreError> {
        let rows = self.rows("read the trials", TRIALS, [run.0], TrialRow::read)?;
        rows.into_iter().map(|row| self.trial_of(row)).collect()
    }

    fn trial_of(&self, row: TrialRow) -> Result<(TrialId, TrialRecord), StoreError> {
        let ok = match row.status.as_str() {
            "ok" => true,
            "failed" => false,
            other => return Err(self.value("status", other)),
        };
        let record = TrialRecord {
            block: row.block,
            cell: self.index("cell", row.cell)?,
            start: row.start,
            twin: row.twin,
            position: row.position,
            node: row.node,
            ok,
            attempts: row.attempts,
            error: row.error,
            began_unix_s: self.unsigned("began_unix_s", row.began)?,
            duration_ns: self.unsigned("duration_ns", row.duration)?,
            work_ns: self.unsigned("work_ns", row.work)?,
        };
        Ok((TrialId(row.id), record))
    }

    /// The figures of a trial.
    ///
    /// # Errors
    /// [`StoreError`] if the file cannot be read.
    pub fn figures(&self, trial: TrialId) -> Result<Vec<Figure>, StoreError> {
        let rows = self.rows("read the figures", FIGURES, [trial.0], FigureRow::read)?;
        rows.into_iter().map(|row| self.figure_of(row)).collect()
    }

    fn figure_of(&self, row: FigureRow) -> Result<Figure, StoreError> {
        let (numbers, rest) = row.samples.as_chunks::<8>();
        if !rest.is_empty() {
            return Err(self.value("samples", format!("{} bytes", row.samples.len())));
        }
        let unit = Unit::from_name(&row.unit).ok_or_else(|| self.value("unit", &row.unit))?;
        let family =
            Family::from_name(&row.family).ok_or_else(|| self.value("family", &row.family))?;
        let labels = schema::words_from_json(&row.labels).map_err(self.document("the labels"))?;
        Ok(Figure {
            probe: row.probe,
            labels,
            unit,
            family,
            cpu: row.cpu,
            duration_ns: self.unsigned("duration_ns", row.duration)?,
            samples: numbers.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect(),
            dropped: self.unsigned("dropped", row.dropped)?,
            disturbed: self.unsigned("disturbed", row.disturbed)?,
            flags: schema::flags_from_json(&row.flags).map_err(self.document("the flags"))?,
        })
    }

    /// Number and duration of the trials that have ended. Fast for stores of any size.
    ///
    /// # Errors
    /// [`StoreError`] if the file cannot be read.
    pub fn study_progress(&self, run: RunId) -> Result<StudyProgress, StoreError> {
        let rows: Vec<(bool, i64, i64, i64)> =
            self.rows("count the trials", STUDY_PROGRESS, [run.0], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
            })?;
        let mut progress = StudyProgress::default();
        for (ok, count, duration, work) in rows {
            let count = self.unsigned("count", count)?;
            *(if ok { &mut progress.ok } else { &mut progress.failed }) = count;
            progress.duration_ns += self.unsigned("duration_ns", duration)?;
            progress.work_ns += self.unsigned("work_ns", work)?;
        }
        Ok(progress)
    }

    /// The flags of the figures `apply` of the trials that were measured, with the number of
    /// trials.
    ///
    /// # Errors
    /// [`StoreError`] if the file cannot be read.
    pub fn apply_flags(&self, run: RunId) -> Result<Vec<(Vec<String>, u64)>, StoreError> {
        let rows: Vec<(String, i64)> =
            self.rows("read the findings", APPLY_FLAGS, [run.0], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })?;
        rows.into_iter()
            .map(|(flags, count)| {
                let flags = schema::flags_from_json(&flags).map_err(self.document("the flags"))?;
                Ok((flags, self.unsigned("count", count)?))
            })
            .collect()
    }

    /// Number of failed trials by cell, with one of the messages.
    ///
    /// # Errors
    /// [`StoreError`] if the file cannot be read.
    pub fn study_failures(&self, run: RunId) -> Result<Vec<(usize, u64, String)>, StoreError> {
        let rows: Vec<(i64, i64, Option<String>)> =
            self.rows("count the failures", FAILURES, [run.0], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?))
            })?;
        rows.into_iter()
            .map(|(cell, count, error)| {
                let count = self.unsigned("count", count)?;
                Ok((self.index("cell", cell)?, count, error.unwrap_or_default()))
            })
            .collect()
    }
}

pub(super) struct PreparedTrial<'a> {
    trial: &'a TrialRecord,
    cell: i64,
    /// Start time, duration, duration of the work.
    numbers: [i64; 3],
    figures: Vec<PreparedFigure<'a>>,
}

impl PreparedTrial<'_> {
    /// True if the run has this trial.
    pub(super) fn is_saved(
        &self,
        transaction: &rusqlite::Transaction<'_>,
        run: RunId,
    ) -> rusqlite::Result<bool> {
        let TrialRecord { block, start, twin, .. } = self.trial;
        transaction
            .prepare_cached(
                "SELECT 1 FROM trial WHERE run = ?1 AND block = ?2 AND cell = ?3 AND start = ?4
                 AND twin = ?5",
            )?
            .exists(params![run.0, block, self.cell, start, twin])
    }

    pub(super) fn insert(
        &self,
        transaction: &rusqlite::Transaction<'_>,
        run: RunId,
        delivery: Option<i64>,
    ) -> rusqlite::Result<TrialId> {
        let trial = self.trial;
        let [began, duration, work] = self.numbers;
        transaction
            .prepare_cached(
                "INSERT INTO trial (run, session, block, cell, start, twin, position, node,
                                    status, attempts, error, began_unix_s, duration_ns, work_ns,
                                    delivery)
                 VALUES (?1, (SELECT max(id) FROM session WHERE run = ?1), ?2, ?3, ?4, ?5, ?6, ?7,
                         ?8, ?9, ?10, ?11, ?12, ?13, ?14)",
            )?
            .execute(params![
                run.0,
                trial.block,
                self.cell,
                trial.start,
                trial.twin,
                trial.position,
                trial.node,
                if trial.ok { "ok" } else { "failed" },
                trial.attempts,
                trial.error,
                began,
                duration,
                work,
                delivery
            ])?;
        let id = TrialId(transaction.last_insert_rowid());
        self.figures.iter().try_for_each(|figure| figure.insert(transaction, id))?;
        Ok(id)
    }
}

struct PreparedFigure<'a> {
    figure: &'a Figure,
    labels: String,
    flags: String,
    /// Duration, dropped, disturbed.
    numbers: [i64; 3],
    samples: Vec<u8>,
}

impl PreparedFigure<'_> {
    fn insert(
        &self,
        transaction: &rusqlite::Transaction<'_>,
        trial: TrialId,
    ) -> rusqlite::Result<()> {
        let [duration, dropped, disturbed] = self.numbers;
        transaction
            .prepare_cached(
                "INSERT INTO figure (trial, probe, labels, unit, family, cpu, duration_ns, dropped,
                                     disturbed, flags, samples)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
            )?
            .execute(params![
                trial.0,
                self.figure.probe,
                self.labels,
                self.figure.unit.name(),
                self.figure.family.name(),
                self.figure.cpu,
                duration,
                dropped,
                disturbed,
                self.flags,
                self.samples
            ])
            .map(drop)
    }
}

struct TrialRow {
    id: i64,
    block: u32,
    cell: i64,
    start: u32,
    twin: bool,
    position: u32,
    node: String,
    status: String,
    attempts: u32,
    error: Option<String>,
    began: i64,
    duration: i64,
    work: i64,
}

impl TrialRow {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            id: row.get(0)?,
            block: row.get(1)?,
            cell: row.get(2)?,
            start: row.get(3)?,
            twin: row.get(4)?,
            position: row.get(5)?,
            node: row.get(6)?,
            status: row.get(7)?,
            attempts: row.get(8)?,
            error: row.get(9)?,
            began: row.get(10)?,
            duration: row.get(11)?,
            work: row.get(12)?,
        })
    }
}

struct FigureRow {
    probe: String,
    labels: String,
    unit: String,
    family: String,
    cpu: Option<u32>,
    duration: i64,
    dropped: i64,
    disturbed: i64,
    flags: String,
    samples: Vec<u8>,
}

impl FigureRow {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            probe: row.get(0)?,
            labels: row.get(1)?,
            unit: row.get(2)?,
            family: row.get(3)?,
            cpu: row.get(4)?,
            duration: row.get(5)?,
            dropped: row.get(6)?,
            disturbed: row.get(7)?,
            flags: row.get(8)?,
            samples: row.get(9)?,
        })
    }
}

#[cfg(test)]
impl Store {
    /// Adds this number of trials of the first cell.
    pub(crate) fn fill_with_trials(&self, run: RunId, count: u64) -> rusqlite::Result<()> {
        self.connection.execute(
            "WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < ?2 - 1)
             INSERT INTO trial (run, session, block, cell, start, twin, position, node, status,
                                attempts, began_unix_s, duration_ns, work_ns)
             SELECT ?1, 1, i, 0, 0, 0, 0, '', 'ok', 1, 0, 5, 4 FROM n",
            params![run.0, i64::try_from(count).unwrap_or(i64::MAX)],
        )?;
        Ok(())
    }

    /// SQLite's plans for the queries whose cost must not grow with other runs.
    pub(crate) fn study_query_plans(&self) -> rusqlite::Result<Vec<String>> {
        let mut steps = Vec::new();
        for query in [STUDY_PROGRESS, TRIALS, FIGURES, FAILURES, APPLY_FLAGS] {
            let mut statement = self.connection.prepare(&format!("EXPLAIN QUERY PLAN {query}"))?;
            let rows = statement.query_map([1], |row| row.get::<_, String>(3))?;
            steps.extend(rows.collect::<rusqlite::Result<Vec<_>>>()?);
        }
        Ok(steps)
    }
}
