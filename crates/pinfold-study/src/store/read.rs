//! Reading: runs, candidates, starts, and the raw samples, one start at a time.

use std::collections::BTreeMap;

use pinfold_model::{LoadState, Metric, RoleStats, Series};
use rusqlite::{OptionalExtension, Row};

use super::rows::{
    CandidateRecord, CandidateRole, CellResult, Phase, RunId, RunRecord, SessionRecord, Slot,
    StartId, StartRecord, StartStatus, StoredStart,
};
use super::{Store, StoreError};
use crate::schema;

// The queries whose cost must not grow with the size of the store; a test checks SQLite's query
// plans.
pub(super) const STARTS: &str =
    "SELECT id, phase, block, position, candidate, status, attempts, error,
            began_unix_s, duration_ns
     FROM start WHERE run = ?1 ORDER BY id";
pub(super) const CELLS: &str =
    "SELECT id, host_loaded, guest_loaded, roles_ns FROM cell WHERE start = ?1 ORDER BY position";
pub(super) const SERIES: &str =
    "SELECT metric, cpu, duration_ns, observed_ns, dropped, flags, samples
     FROM series WHERE cell = ?1 ORDER BY id";
pub(super) const ROLES: &str =
    "SELECT role, threads, run_ns, run_delay_ns, migrations, voluntary_switches,
            involuntary_switches, lost_threads
     FROM role_stats WHERE cell = ?1";
pub(super) const PROGRESS: &str = "SELECT phase, status = 'ok', count(*) FROM start WHERE run = ?1
     GROUP BY phase, status = 'ok'";

impl Store {
    /// Numbers of all runs, oldest first.
    ///
    /// # Errors
    /// [`StoreError`] if the file cannot be read.
    pub fn runs(&self) -> Result<Vec<RunId>, StoreError> {
        self.rows("list the runs", "SELECT id FROM run ORDER BY id", [], |row| {
            row.get(0).map(RunId)
        })
    }

    /// The latest unfinished run of a kind, if any.
    ///
    /// # Errors
    /// [`StoreError`] if the file cannot be read.
    pub fn unfinished_run(&self, kind: &str) -> Result<Option<RunId>, StoreError> {
        self.connection
            .query_row(
                "SELECT max(id) FROM run WHERE kind = ?1 AND finished_unix_s IS NULL",
                [kind],
                |row| row.get::<_, Option<i64>>(0),
            )
            .map(|id| id.map(RunId))
            .map_err(self.sql("look for an unfinished run"))
    }

    /// One run.
    ///
    /// # Errors
    /// [`StoreError::NoRun`], or the file cannot be read.
    pub fn run(&self, run: RunId) -> Result<RunRecord, StoreError> {
        let row = self
            .connection
            .query_row(
                "SELECT created_unix_s, kind, config, origin, seed, confirm, finished_unix_s
                 FROM run WHERE id = ?1",
                [run.0],
                RunRow::read,
            )
            .optional()
            .map_err(self.sql("read the run"))?
            .ok_or_else(|| StoreError::NoRun { path: self.path.clone(), run })?;
        let origin = schema::origin_from_json(&row.origin).map_err(self.document("the origin"))?;
        let finished = row.finished.map(|time| self.unsigned("finished_unix_s", time));
        Ok(RunRecord {
            id: run,
            created_unix_s: self.unsigned("created_unix_s", row.created)?,
            kind: row.kind,
            config_json: row.config,
            origin,
            seed: row.seed.parse().map_err(|_| self.value("seed", &row.seed))?,
            confirm_json: row.confirm,
            finished_unix_s: finished.transpose()?,
            sessions: self.sessions(run)?,
        })
    }

    fn sessions(&self, run: RunId) -> Result<Vec<SessionRecord>, StoreError> {
        let rows: Vec<(i64, String)> = self.rows(
            "read the sessions",
            "SELECT began_unix_s, origin FROM session WHERE run = ?1 ORDER BY id",
            [run.0],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )?;
        rows.into_iter()
            .map(|(began, origin)| {
                Ok(SessionRecord {
                    began_unix_s: self.unsigned("began_unix_s", began)?,
                    origin: schema::origin_from_json(&origin)
                        .map_err(self.document("the origin"))?,
                })
            })
            .collect()
    }

    /// The run's candidates in order.
    ///
    /// # Errors
    /// [`StoreError`] if the file cannot be read.
    pub fn candidates(&self, run: RunId) -> Result<Vec<CandidateRecord>, StoreError> {
        let rows: Vec<(String, String, String, Option<i64>)> = self.rows(
            "read the candidates",
            "SELECT name, plan, role, same_as FROM candidate WHERE run = ?1 ORDER BY position",
            [run.0],
            |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)),
        )?;
        rows.into_iter()
            .map(|(name, plan_json, role, same_as)| {
                let role =
                    CandidateRole::from_name(&role).ok_or_else(|| self.value("role", role))?;
                let same_as = same_as.map(|index| self.index("same_as", index)).transpose()?;
                Ok(CandidateRecord { name, plan_json, role, same_as })
            })
            .collect()
    }

    /// The run's starts that have ended, in the order of their end.
    ///
    /// # Errors
    /// [`StoreError`] if the file cannot be read.
    pub fn starts(&self, run: RunId) -> Result<Vec<StoredStart>, StoreError> {
        let rows = self.rows("read the starts", STARTS, [run.0], StartRow::read)?;
        rows.into_iter().map(|row| self.start_of(row)).collect()
    }

    fn start_of(&self, row: StartRow) -> Result<StoredStart, StoreError> {
        let phase = Phase::from_name(&row.phase).ok_or_else(|| self.value("phase", &row.phase))?;
        let status =
            StartStatus::from_name(&row.status).ok_or_else(|| self.value("status", &row.status))?;
        let slot =
            Slot { phase, block: row.block, candidate: self.index("candidate", row.candidate)? };
        Ok(StoredStart {
            id: StartId(row.id),
            record: StartRecord {
                slot,
                position: row.position,
                status,
                attempts: row.attempts,
                error: row.error,
                began_unix_s: self.unsigned("began_unix_s", row.began)?,
                duration_ns: self.unsigned("duration_ns", row.duration)?,
            },
        })
    }

    /// The results of a start, in the order of its load states.
    ///
    /// # Errors
    /// [`StoreError`] if the file cannot be read.
    pub fn cells(&self, start: StartId) -> Result<Vec<CellResult>, StoreError> {
        let rows: Vec<(i64, LoadState, Option<i64>)> =
            self.rows("read the cells", CELLS, [start.0], |row| {
                let load = LoadState { host: row.get(1)?, guest: row.get(2)? };
                Ok((row.get(0)?, load, row.get(3)?))
            })?;
        rows.into_iter()
            .map(|(cell, load, roles_ns)| {
                let (series, roles) = (self.series_of(cell)?, self.roles_of(cell)?);
                let roles_ns = roles_ns.map(|time| self.unsigned("roles_ns", time)).transpose()?;
                Ok(CellResult { load, series, roles, roles_ns })
            })
            .collect()
    }

    fn series_of(&self, cell: i64) -> Result<Vec<Series>, StoreError> {
        let rows = self.rows("read the samples", SERIES, [cell], SeriesRow::read)?;
        rows.into_iter().map(|row| self.series_from(row)).collect()
    }

    fn series_from(&self, row: SeriesRow) -> Result<Series, StoreError> {
        let metric =
            Metric::from_name(&row.metric).ok_or_else(|| self.value("metric", &row.metric))?;
        let (numbers, rest) = row.samples.as_chunks::<8>();
        if !rest.is_empty() {
            return Err(self.value("samples", format!("{} bytes", row.samples.len())));
        }
        Ok(Series {
            metric,
            cpu: row.cpu,
            duration_ns: self.unsigned("duration_ns", row.duration)?,
            observed_ns: self.unsigned("observed_ns", row.observed)?,
            dropped: self.unsigned("dropped", row.dropped)?,
            samples: numbers.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect(),
            flags: schema::flags_from_json(&row.flags).map_err(self.document("the flags"))?,
        })
    }

    fn roles_of(&self, cell: i64) -> Result<Vec<RoleStats>, StoreError> {
        let rows = self.rows("read the scheduler statistics", ROLES, [cell], RoleRow::read)?;
        let stats = rows.into_iter().map(|row| {
            let migrations = row.migrations.map(|count| self.unsigned("migrations", count));
            Ok(RoleStats {
                role: schema::role_from_word(&row.role).map_err(self.document("a role"))?,
                threads: row.threads,
                run_ns: self.unsigned("run_ns", row.run)?,
                run_delay_ns: self.unsigned("run_delay_ns", row.run_delay)?,
                migrations: migrations.transpose()?,
                voluntary_switches: self.unsigned("voluntary_switches", row.voluntary)?,
                involuntary_switches: self.unsigned("involuntary_switches", row.involuntary)?,
                lost_threads: row.lost_threads,
            })
        });
        let mut stats = stats.collect::<Result<Vec<RoleStats>, StoreError>>()?;
        stats.sort_by(|a, b| a.role.cmp(&b.role));
        Ok(stats)
    }

    /// Number of starts that have ended, by phase and status. Fast for stores of any size.
    ///
    /// # Errors
    /// [`StoreError`] if the file cannot be read.
    pub fn progress(&self, run: RunId) -> Result<BTreeMap<(Phase, bool), u64>, StoreError> {
        let rows: Vec<(String, bool, i64)> =
            self.rows("count the starts", PROGRESS, [run.0], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?))
            })?;
        rows.into_iter()
            .map(|(name, ok, count)| {
                let phase = Phase::from_name(&name).ok_or_else(|| self.value("phase", name))?;
                Ok(((phase, ok), self.unsigned("count", count)?))
            })
            .collect()
    }

    pub(super) fn rows<T>(
        &self,
        doing: &'static str,
        query: &str,
        parameters: impl rusqlite::Params,
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>, StoreError> {
        let fail = self.sql(doing);
        let mut statement = self.connection.prepare_cached(query).map_err(fail)?;
        let rows = statement.query_map(parameters, read).map_err(fail)?;
        rows.collect::<Result<_, _>>().map_err(fail)
    }

    pub(super) fn unsigned(&self, what: &'static str, value: i64) -> Result<u64, StoreError> {
        u64::try_from(value).map_err(|_| self.value(what, value))
    }

    pub(super) fn index(&self, what: &'static str, value: i64) -> Result<usize, StoreError> {
        usize::try_from(value).map_err(|_| self.value(what, value))
    }
}

struct RunRow {
    created: i64,
    kind: String,
    config: String,
    origin: String,
    seed: String,
    confirm: Option<String>,
    finished: Option<i64>,
}

impl RunRow {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            created: row.get(0)?,
            kind: row.get(1)?,
            config: row.get(2)?,
            origin: row.get(3)?,
            seed: row.get(4)?,
            confirm: row.get(5)?,
            finished: row.get(6)?,
        })
    }
}

struct StartRow {
    id: i64,
    phase: String,
    block: u32,
    position: u32,
    candidate: i64,
    status: String,
    attempts: u32,
    error: Option<String>,
    began: i64,
    duration: i64,
}

impl StartRow {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            id: row.get(0)?,
            phase: row.get(1)?,
            block: row.get(2)?,
            position: row.get(3)?,
            candidate: row.get(4)?,
            status: row.get(5)?,
            attempts: row.get(6)?,
            error: row.get(7)?,
            began: row.get(8)?,
            duration: row.get(9)?,
        })
    }
}

struct SeriesRow {
    metric: String,
    cpu: u32,
    duration: i64,
    observed: i64,
    dropped: i64,
    flags: String,
    samples: Vec<u8>,
}

impl SeriesRow {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            metric: row.get(0)?,
            cpu: row.get(1)?,
            duration: row.get(2)?,
            observed: row.get(3)?,
            dropped: row.get(4)?,
            flags: row.get(5)?,
            samples: row.get(6)?,
        })
    }
}

struct RoleRow {
    role: String,
    threads: u32,
    run: i64,
    run_delay: i64,
    migrations: Option<i64>,
    voluntary: i64,
    involuntary: i64,
    lost_threads: u32,
}

impl RoleRow {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            role: row.get(0)?,
            threads: row.get(1)?,
            run: row.get(2)?,
            run_delay: row.get(3)?,
            migrations: row.get(4)?,
            voluntary: row.get(5)?,
            involuntary: row.get(6)?,
            lost_threads: row.get(7)?,
        })
    }
}
