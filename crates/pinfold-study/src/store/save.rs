//! Writing: runs, sessions, and each start in one transaction when it ends.

use pinfold_model::{Origin, shown_parameters};
use rusqlite::types::{ToSql, ToSqlOutput};
use rusqlite::{ErrorCode, Transaction, TransactionBehavior, params};
use serde::Serialize;

use super::rows::{CellResult, HostChange, NewRun, RunId, SessionRecord, StartId, StartRecord};
use super::{OpenRun, Store, StoreError, sql_error};
use crate::schema::role_to_word;

const SESSION: &str = "INSERT INTO session (run, began_unix_s, origin) VALUES (?1, ?2, ?3)";

/// A value that is stored as a JSON document.
pub(super) struct Json<T>(pub(super) T);

impl<T: Serialize> ToSql for Json<T> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        let text = serde_json::to_string(&self.0)
            .map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))?;
        Ok(text.into())
    }
}

/// Raw samples: eight bytes each, little-endian.
pub(super) fn bytes_of(samples: &[f64]) -> Vec<u8> {
    samples.iter().flat_map(|sample| sample.to_le_bytes()).collect()
}

impl Store {
    /// Creates a run: the run, its first session and its candidates.
    ///
    /// # Errors
    /// [`StoreError`] if the file cannot be written.
    pub fn create_run(&mut self, new: &NewRun<'_>) -> Result<OpenRun, StoreError> {
        let origin = Json(new.origin);
        self.write("save the run", |transaction| {
            transaction.execute(
                "INSERT INTO run (created_unix_s, kind, config, origin, seed, fingerprint)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                params![
                    new.created_unix_s,
                    new.kind,
                    new.config_json,
                    origin,
                    new.seed.to_string(),
                    new.origin.fingerprint
                ],
            )?;
            let run = transaction.last_insert_rowid();
            transaction.execute(SESSION, params![run, new.created_unix_s, origin])?;
            for (position, candidate) in new.candidates.iter().enumerate() {
                transaction.execute(
                    "INSERT INTO candidate (run, position, name, plan, role, same_as)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                    params![
                        run,
                        position,
                        candidate.name,
                        candidate.plan_json,
                        candidate.role.name(),
                        candidate.same_as
                    ],
                )?;
            }
            Ok(OpenRun { id: RunId(run) })
        })
    }

    /// Opens a run to continue it. The host is compared with that of the run's last session:
    /// topology, kernel and its command line, QEMU, accelerator, guest kernel.
    ///
    /// # Errors
    /// [`StoreError::HostChanged`] if they differ and the change is not accepted,
    /// [`StoreError::NoRun`], or the file cannot be read or written.
    pub fn open_run(
        &mut self,
        run: RunId,
        now: &SessionRecord,
        on_change: HostChange,
    ) -> Result<OpenRun, StoreError> {
        let record = self.run(run)?;
        let before = record.sessions.last().map_or(&record.origin, |session| &session.origin);
        let changes = host_changes(before, &now.origin);
        match on_change {
            HostChange::Refuse if !changes.is_empty() => {
                return Err(StoreError::HostChanged { run, changes });
            }
            HostChange::Refuse | HostChange::Accept => {}
        }
        let origin = Json(&now.origin);
        self.connection
            .execute(SESSION, params![run.0, now.began_unix_s, origin])
            .map_err(self.sql("save the session"))?;
        Ok(OpenRun { id: run })
    }

    /// Saves a start that has ended, with all its samples, in one transaction.
    ///
    /// # Errors
    /// [`StoreError::AlreadySaved`] if the run has this start, or the file cannot be written; then
    /// the store is unchanged.
    pub fn save_start(
        &mut self,
        run: OpenRun,
        start: &StartRecord,
        cells: &[CellResult],
    ) -> Result<StartId, StoreError> {
        let saved = self.write("save the start", |transaction| {
            transaction.execute(
                "INSERT INTO start (run, phase, block, position, candidate, status, attempts,
                                    error, began_unix_s, duration_ns)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
                params![
                    run.id.0,
                    start.slot.phase.name(),
                    start.slot.block,
                    start.position,
                    start.slot.candidate,
                    start.status.name(),
                    start.attempts,
                    start.error,
                    start.began_unix_s,
                    start.duration_ns
                ],
            )?;
            let id = StartId(transaction.last_insert_rowid());
            for (position, cell) in cells.iter().enumerate() {
                insert_cell(transaction, id, position, cell)?;
            }
            Ok(id)
        });
        saved.map_err(|error| error.or_already_saved(run.id, &start.slot))
    }

    /// Saves the result of the screening.
    ///
    /// # Errors
    /// [`StoreError`] if the file cannot be written.
    pub fn set_confirmation(&mut self, run: OpenRun, json: &str) -> Result<(), StoreError> {
        self.connection
            .execute("UPDATE run SET confirm = ?2 WHERE id = ?1", params![run.id.0, json])
            .map_err(self.sql("save the screening's outcome"))
            .map(drop)
    }

    /// Records the end of the run's last start.
    ///
    /// # Errors
    /// [`StoreError`] if the file cannot be written.
    pub fn finish_run(&mut self, run: OpenRun, unix_s: u64) -> Result<(), StoreError> {
        self.connection
            .execute(
                "UPDATE run SET finished_unix_s = coalesce(finished_unix_s, ?2) WHERE id = ?1",
                params![run.id.0, unix_s],
            )
            .map_err(self.sql("save the end of the run"))
            .map(drop)
    }

    /// Writes in one transaction: all, or after an error nothing.
    pub(super) fn write<T>(
        &mut self,
        doing: &'static str,
        write: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        // Takes the write lock at once: waiting for it later could fail in the middle of the
        // transaction.
        let transaction = self.connection.transaction_with_behavior(TransactionBehavior::Immediate);
        transaction
            .and_then(|transaction| {
                let written = write(&transaction)?;
                transaction.commit()?;
                Ok(written)
            })
            .map_err(|source| sql_error(&self.path, doing, source))
    }
}

fn insert_cell(
    transaction: &Transaction<'_>,
    start: StartId,
    position: usize,
    cell: &CellResult,
) -> rusqlite::Result<()> {
    transaction
        .prepare_cached(
            "INSERT INTO cell (start, host_loaded, guest_loaded, position, roles_ns)
             VALUES (?1, ?2, ?3, ?4, ?5)",
        )?
        .execute(params![start.0, cell.load.host, cell.load.guest, position, cell.roles_ns])?;
    let id = transaction.last_insert_rowid();
    let mut insert = transaction.prepare_cached(
        "INSERT INTO series (cell, metric, cpu, duration_ns, observed_ns, dropped, flags, samples)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
    )?;
    for series in &cell.series {
        insert.execute(params![
            id,
            series.metric.name(),
            series.cpu,
            series.duration_ns,
            series.observed_ns,
            series.dropped,
            Json(&series.flags),
            bytes_of(&series.samples)
        ])?;
    }
    let mut insert = transaction.prepare_cached(
        "INSERT INTO role_stats (cell, role, threads, run_ns, run_delay_ns, voluntary_switches,
                                 involuntary_switches, migrations, lost_threads)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
    )?;
    for stats in &cell.roles {
        insert.execute(params![
            id,
            role_to_word(&stats.role),
            stats.threads,
            stats.run_ns,
            stats.run_delay_ns,
            stats.voluntary_switches,
            stats.involuntary_switches,
            stats.migrations,
            stats.lost_threads
        ])?;
    }
    Ok(())
}

impl StoreError {
    /// The error of an insertion; if the run has this start or trial already, it says so.
    pub(super) fn or_already_saved(self, run: RunId, start: &dyn ToString) -> Self {
        if let StoreError::Sql { source, .. } = &self
            && source.sqlite_error_code() == Some(ErrorCode::ConstraintViolation)
            && source.sqlite_extended_error_code() == Some(rusqlite::ffi::SQLITE_CONSTRAINT_UNIQUE)
        {
            return StoreError::AlreadySaved { run, start: start.to_string() };
        }
        self
    }
}

/// The differences between the hosts of two sessions, as sentences.
#[must_use]
pub fn host_changes(then: &Origin, now: &Origin) -> Vec<String> {
    let [old, new] = [then, now].map(|origin| shown_parameters(&origin.cmdline));
    let is_hidden = then.cmdline != now.cmdline && old == new;
    let hidden = "kernel parameters: other than those for CPUs or memory";
    [
        ("topology", then.fingerprint.clone(), now.fingerprint.clone()),
        ("kernel", then.kernel.clone(), now.kernel.clone()),
        ("kernel parameters", old, new),
        ("QEMU", text_or_unknown(&then.qemu), text_or_unknown(&now.qemu)),
        ("accelerator", then.accelerator.to_string(), now.accelerator.to_string()),
        ("guest kernel", text_or_unknown(&then.guest_kernel), text_or_unknown(&now.guest_kernel)),
    ]
    .into_iter()
    .filter(|(_, then, now)| then != now)
    .map(|(what, then, now)| format!("{what}: {then} then, {now} now"))
    .chain(is_hidden.then(|| hidden.to_owned()))
    .collect()
}

fn text_or_unknown(text: &Option<String>) -> String {
    text.clone().unwrap_or_else(|| "none".to_owned())
}
