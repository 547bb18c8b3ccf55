//! Reading: runs, candidates, starts, and the raw samples, one start at a time.

use pinfold_model::{LoadState, Metric, RoleStats, Series};
use rusqlite::{OptionalExtension, Row};
use serde::de::DeserializeOwned;

use super::rows::{
    CandidateRecord, CandidateRole, CellResult, Phase, RunId, RunRecord, SessionRecord, Slot,
    StartId, StartRecord, StartStatus, StoredStart,
};
use super::{Store, StoreError, sql_error};
use crate::schema::{SchemaError, role_from_word};

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
/// A row of a query, whose values are checked.
pub(super) struct Columns<'a> {
    store: &'a Store,
    row: &'a Row<'a>,
    doing: &'static str,
}

impl Columns<'_> {
    pub(super) fn get<T: rusqlite::types::FromSql>(
        &self,
        column: &'static str,
    ) -> Result<T, StoreError> {
        self.row.get(column).map_err(|error| {
            if let rusqlite::Error::IntegralValueOutOfRange(_, value) = error {
                self.store.value(column, value)
            } else {
                sql_error(&self.store.path, self.doing, error)
            }
        })
    }

    /// A value that is stored as text.
    pub(super) fn word<T>(
        &self,
        column: &'static str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Result<T, StoreError> {
        let text: String = self.get(column)?;
        parse(&text).ok_or_else(|| self.store.value(column, text))
    }

    /// A JSON document.
    pub(super) fn json<T: DeserializeOwned>(
        &self,
        column: &'static str,
        what: &'static str,
    ) -> Result<T, StoreError> {
        let text: String = self.get(column)?;
        serde_json::from_str(&text).map_err(SchemaError::from).map_err(self.store.document(what))
    }

    /// Host and software.
    pub(super) fn origin(&self) -> Result<pinfold_model::Origin, StoreError> {
        self.json("origin", "the origin")
    }

    /// The raw samples.
    pub(super) fn samples(&self) -> Result<Vec<f64>, StoreError> {
        let bytes: Vec<u8> = self.get("samples")?;
        let (numbers, rest) = bytes.as_chunks::<8>();
        if !rest.is_empty() {
            return Err(self.store.value("samples", format!("{} bytes", bytes.len())));
        }
        Ok(numbers.iter().map(|bytes| f64::from_le_bytes(*bytes)).collect())
    }
}

impl Store {
    /// Numbers of all runs, oldest first.
    ///
    /// # Errors
    /// [`StoreError`] if the file cannot be read.
    pub fn runs(&self) -> Result<Vec<RunId>, StoreError> {
        let query = "SELECT id FROM run ORDER BY id";
        self.rows("list the runs", query, [], |row| row.get("id").map(RunId))
    }

    /// The latest unfinished run of a kind, if any.
    ///
    /// # Errors
    /// [`StoreError`] if the file cannot be read.
    pub fn unfinished_run(&self, kind: &str) -> Result<Option<RunId>, StoreError> {
        self.connection
            .query_row(
                "SELECT id FROM run WHERE kind = ?1 AND finished_unix_s IS NULL
                 ORDER BY id DESC LIMIT 1",
                [kind],
                |row| row.get(0).map(RunId),
            )
            .optional()
            .map_err(self.sql("look for an unfinished run"))
    }

    /// One run.
    ///
    /// # Errors
    /// [`StoreError::NoRun`], or the file cannot be read.
    pub fn run(&self, run: RunId) -> Result<RunRecord, StoreError> {
        let query = "SELECT created_unix_s, kind, config, origin, seed, confirm, finished_unix_s
                     FROM run WHERE id = ?1";
        let found = self.rows("read the run", query, [run.0], |row| {
            Ok(RunRecord {
                id: run,
                created_unix_s: row.get("created_unix_s")?,
                kind: row.get("kind")?,
                config_json: row.get("config")?,
                origin: row.origin()?,
                seed: row.word("seed", |text| text.parse().ok())?,
                confirm_json: row.get("confirm")?,
                finished_unix_s: row.get("finished_unix_s")?,
                sessions: self.sessions(run)?,
            })
        })?;
        found.into_iter().next().ok_or_else(|| StoreError::NoRun { path: self.path.clone(), run })
    }

    fn sessions(&self, run: RunId) -> Result<Vec<SessionRecord>, StoreError> {
        let query = "SELECT began_unix_s, origin FROM session WHERE run = ?1 ORDER BY id";
        self.rows("read the sessions", query, [run.0], |row| {
            Ok(SessionRecord { began_unix_s: row.get("began_unix_s")?, origin: row.origin()? })
        })
    }

    /// The run's candidates in order.
    ///
    /// # Errors
    /// [`StoreError`] if the file cannot be read.
    pub fn candidates(&self, run: RunId) -> Result<Vec<CandidateRecord>, StoreError> {
        let query =
            "SELECT name, plan, role, same_as FROM candidate WHERE run = ?1 ORDER BY position";
        self.rows("read the candidates", query, [run.0], |row| {
            Ok(CandidateRecord {
                name: row.get("name")?,
                plan_json: row.get("plan")?,
                role: row.word("role", CandidateRole::from_name)?,
                same_as: row.get("same_as")?,
            })
        })
    }

    /// The run's starts that have ended, in the order of their end.
    ///
    /// # Errors
    /// [`StoreError`] if the file cannot be read.
    pub fn starts(&self, run: RunId) -> Result<Vec<StoredStart>, StoreError> {
        self.rows("read the starts", STARTS, [run.0], |row| {
            Ok(StoredStart {
                id: StartId(row.get("id")?),
                record: StartRecord {
                    slot: Slot {
                        phase: row.word("phase", Phase::from_name)?,
                        block: row.get("block")?,
                        candidate: row.get("candidate")?,
                    },
                    position: row.get("position")?,
                    status: row.word("status", StartStatus::from_name)?,
                    attempts: row.get("attempts")?,
                    error: row.get("error")?,
                    began_unix_s: row.get("began_unix_s")?,
                    duration_ns: row.get("duration_ns")?,
                },
            })
        })
    }

    /// The results of a start, in the order of its load states.
    ///
    /// # Errors
    /// [`StoreError`] if the file cannot be read.
    pub fn cells(&self, start: StartId) -> Result<Vec<CellResult>, StoreError> {
        self.rows("read the cells", CELLS, [start.0], |row| {
            let cell = row.get("id")?;
            Ok(CellResult {
                load: LoadState { host: row.get("host_loaded")?, guest: row.get("guest_loaded")? },
                series: self.series_of(cell)?,
                roles: self.roles_of(cell)?,
                roles_ns: row.get("roles_ns")?,
            })
        })
    }

    fn series_of(&self, cell: i64) -> Result<Vec<Series>, StoreError> {
        self.rows("read the samples", SERIES, [cell], |row| {
            Ok(Series {
                metric: row.word("metric", Metric::from_name)?,
                cpu: row.get("cpu")?,
                duration_ns: row.get("duration_ns")?,
                observed_ns: row.get("observed_ns")?,
                dropped: row.get("dropped")?,
                samples: row.samples()?,
                flags: row.json("flags", "the flags")?,
            })
        })
    }

    fn roles_of(&self, cell: i64) -> Result<Vec<RoleStats>, StoreError> {
        let mut stats = self.rows("read the scheduler statistics", ROLES, [cell], |row| {
            let role: String = row.get("role")?;
            Ok(RoleStats {
                role: role_from_word(&role).map_err(self.document("a role"))?,
                threads: row.get("threads")?,
                run_ns: row.get("run_ns")?,
                run_delay_ns: row.get("run_delay_ns")?,
                migrations: row.get("migrations")?,
                voluntary_switches: row.get("voluntary_switches")?,
                involuntary_switches: row.get("involuntary_switches")?,
                lost_threads: row.get("lost_threads")?,
            })
        })?;
        stats.sort_by(|a, b| a.role.cmp(&b.role));
        Ok(stats)
    }

    pub(super) fn rows<T>(
        &self,
        doing: &'static str,
        query: &str,
        parameters: impl rusqlite::Params,
        mut read: impl FnMut(&Columns<'_>) -> Result<T, StoreError>,
    ) -> Result<Vec<T>, StoreError> {
        let fail = self.sql(doing);
        let mut statement = self.connection.prepare_cached(query).map_err(fail)?;
        let mut rows = statement.query(parameters).map_err(fail)?;
        let mut found = Vec::new();
        while let Some(row) = rows.next().map_err(fail)? {
            found.push(read(&Columns { store: self, row, doing })?);
        }
        Ok(found)
    }
}
