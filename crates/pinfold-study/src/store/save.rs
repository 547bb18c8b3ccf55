//! Writing: runs, sessions, and each start in one transaction when it ends.

use pinfold_model::{Origin, RoleStats, Series, shown_parameters};
use rusqlite::{ErrorCode, Transaction, TransactionBehavior, params};

use super::rows::{CellResult, HostChange, NewRun, RunId, SessionRecord, StartId, StartRecord};
use super::{OpenRun, Store, StoreError, sql_error};
use crate::schema;

impl Store {
    /// Creates a run: the run, its first session and its candidates.
    ///
    /// # Errors
    /// [`StoreError`] if the file cannot be written.
    pub fn create_run(&mut self, new: &NewRun<'_>) -> Result<OpenRun, StoreError> {
        let created = self.number("time", new.created_unix_s)?;
        let origin = schema::origin_to_json(new.origin).map_err(self.document("the origin"))?;
        let path = self.path.clone();
        let fail = |source| sql_error(&path, "save the run", source);
        let transaction = self.begin().map_err(fail)?;
        transaction
            .execute(
                "INSERT INTO run (created_unix_s, kind, config, origin, seed, fingerprint)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                params![
                    created,
                    new.kind,
                    new.config_json,
                    origin,
                    new.seed.to_string(),
                    new.origin.fingerprint
                ],
            )
            .map_err(fail)?;
        let run = transaction.last_insert_rowid();
        transaction
            .execute(
                "INSERT INTO session (run, began_unix_s, origin) VALUES (?1, ?2, ?3)",
                params![run, created, origin],
            )
            .map_err(fail)?;
        for (position, candidate) in (0_i64..).zip(new.candidates) {
            let same_as = candidate.same_as.and_then(|index| i64::try_from(index).ok());
            transaction
                .execute(
                    "INSERT INTO candidate (run, position, name, plan, role, same_as)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                    params![
                        run,
                        position,
                        candidate.name,
                        candidate.plan_json,
                        candidate.role.name(),
                        same_as
                    ],
                )
                .map_err(fail)?;
        }
        transaction.commit().map_err(fail)?;
        Ok(OpenRun { id: RunId(run) })
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
        let origin = schema::origin_to_json(&now.origin).map_err(self.document("the origin"))?;
        let began = self.number("time", now.began_unix_s)?;
        self.connection
            .execute(
                "INSERT INTO session (run, began_unix_s, origin) VALUES (?1, ?2, ?3)",
                params![run.0, began, origin],
            )
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
        let began = self.number("time", start.began_unix_s)?;
        let duration = self.number("duration", start.duration_ns)?;
        let candidate = self.number("candidate", start.slot.candidate as u64)?;
        let prepared: Vec<PreparedCell<'_>> =
            cells.iter().map(|cell| self.prepare(cell)).collect::<Result<_, _>>()?;
        let path = self.path.clone();
        let fail = |source| sql_error(&path, "save the start", source);
        let transaction = self.begin().map_err(fail)?;
        let inserted = transaction.execute(
            "INSERT INTO start (run, phase, block, position, candidate, status, attempts,
                                error, began_unix_s, duration_ns)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
            params![
                run.id.0,
                start.slot.phase.name(),
                start.slot.block,
                start.position,
                candidate,
                start.status.name(),
                start.attempts,
                start.error,
                began,
                duration
            ],
        );
        inserted.map_err(|source| {
            if is_duplicate(&source) {
                StoreError::AlreadySaved { run: run.id, start: start.slot.to_string() }
            } else {
                fail(source)
            }
        })?;
        let id = StartId(transaction.last_insert_rowid());
        for (position, cell) in (0_i64..).zip(&prepared) {
            cell.insert(&transaction, id, position).map_err(fail)?;
        }
        transaction.commit().map_err(fail)?;
        Ok(id)
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
        let finished = self.number("time", unix_s)?;
        self.connection
            .execute(
                "UPDATE run SET finished_unix_s = coalesce(finished_unix_s, ?2) WHERE id = ?1",
                params![run.id.0, finished],
            )
            .map_err(self.sql("save the end of the run"))
            .map(drop)
    }

    pub(super) fn begin(&mut self) -> rusqlite::Result<Transaction<'_>> {
        // Takes the write lock at once: waiting for it later could fail in the middle of the
        // transaction.
        self.connection.transaction_with_behavior(TransactionBehavior::Immediate)
    }

    pub(super) fn number(&self, what: &'static str, value: u64) -> Result<i64, StoreError> {
        i64::try_from(value).map_err(|_| self.value(what, value))
    }

    fn prepare<'a>(&self, cell: &'a CellResult) -> Result<PreparedCell<'a>, StoreError> {
        let series = cell.series.iter().map(|series| self.prepare_series(series));
        let roles = cell.roles.iter().map(|stats| self.prepare_role(stats));
        Ok(PreparedCell {
            cell,
            series: series.collect::<Result<_, _>>()?,
            roles: roles.collect::<Result<_, _>>()?,
            roles_ns: cell.roles_ns.map(|time| self.number("time", time)).transpose()?,
        })
    }

    fn prepare_series<'a>(&self, series: &'a Series) -> Result<PreparedSeries<'a>, StoreError> {
        Ok(PreparedSeries {
            series,
            duration_ns: self.number("duration", series.duration_ns)?,
            observed_ns: self.number("observed time", series.observed_ns)?,
            dropped: self.number("dropped", series.dropped)?,
            flags: schema::flags_to_json(&series.flags).map_err(self.document("the flags"))?,
            samples: series.samples.iter().flat_map(|sample| sample.to_le_bytes()).collect(),
        })
    }

    fn prepare_role(&self, stats: &RoleStats) -> Result<PreparedRole, StoreError> {
        let migrations = stats.migrations.map(|count| self.number("migrations", count));
        Ok(PreparedRole {
            role: schema::role_to_word(&stats.role),
            threads: stats.threads,
            lost_threads: stats.lost_threads,
            migrations: migrations.transpose()?,
            numbers: [
                self.number("run time", stats.run_ns)?,
                self.number("run delay", stats.run_delay_ns)?,
                self.number("switches", stats.voluntary_switches)?,
                self.number("switches", stats.involuntary_switches)?,
            ],
        })
    }
}

/// A cell whose values were converted before the transaction starts.
struct PreparedCell<'a> {
    cell: &'a CellResult,
    series: Vec<PreparedSeries<'a>>,
    roles: Vec<PreparedRole>,
    roles_ns: Option<i64>,
}

struct PreparedSeries<'a> {
    series: &'a Series,
    duration_ns: i64,
    observed_ns: i64,
    dropped: i64,
    flags: String,
    samples: Vec<u8>,
}

struct PreparedRole {
    role: String,
    threads: u32,
    lost_threads: u32,
    migrations: Option<i64>,
    /// Run time, run delay, voluntary and involuntary switches.
    numbers: [i64; 4],
}

impl PreparedCell<'_> {
    fn insert(
        &self,
        transaction: &Transaction<'_>,
        start: StartId,
        position: i64,
    ) -> rusqlite::Result<()> {
        transaction
            .prepare_cached(
                "INSERT INTO cell (start, host_loaded, guest_loaded, position, roles_ns)
                 VALUES (?1, ?2, ?3, ?4, ?5)",
            )?
            .execute(params![
                start.0,
                self.cell.load.host,
                self.cell.load.guest,
                position,
                self.roles_ns
            ])?;
        let cell = transaction.last_insert_rowid();
        let mut insert = transaction.prepare_cached(
            "INSERT INTO series (cell, metric, cpu, duration_ns, observed_ns, dropped, flags,
                                 samples)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        )?;
        for prepared in &self.series {
            insert.execute(params![
                cell,
                prepared.series.metric.name(),
                prepared.series.cpu,
                prepared.duration_ns,
                prepared.observed_ns,
                prepared.dropped,
                prepared.flags,
                prepared.samples
            ])?;
        }
        let mut insert = transaction.prepare_cached(
            "INSERT INTO role_stats (cell, role, threads, run_ns, run_delay_ns,
                                     voluntary_switches, involuntary_switches, migrations,
                                     lost_threads)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        )?;
        for prepared in &self.roles {
            let [run, delay, voluntary, involuntary] = prepared.numbers;
            insert.execute(params![
                cell,
                prepared.role,
                prepared.threads,
                run,
                delay,
                voluntary,
                involuntary,
                prepared.migrations,
                prepared.lost_threads
            ])?;
        }
        Ok(())
    }
}

pub(super) fn is_duplicate(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::ConstraintViolation)
        && error
            .sqlite_error()
            .is_some_and(|code| code.extended_code == rusqlite::ffi::SQLITE_CONSTRAINT_UNIQUE)
}

/// The differences between the hosts of two sessions, as sentences.
#[must_use]
pub fn host_changes(then: &Origin, now: &Origin) -> Vec<String> {
    let known = |text: &Option<String>| text.clone().unwrap_or_else(|| "none".to_owned());
    let [old, new] = [then, now].map(|origin| shown_parameters(&origin.cmdline));
    let is_hidden = then.cmdline != now.cmdline && old == new;
    let hidden = "kernel parameters: other than those for CPUs or memory";
    [
        ("topology", then.fingerprint.clone(), now.fingerprint.clone()),
        ("kernel", then.kernel.clone(), now.kernel.clone()),
        ("kernel parameters", old, new),
        ("QEMU", known(&then.qemu), known(&now.qemu)),
        ("accelerator", then.accelerator.to_string(), now.accelerator.to_string()),
        ("guest kernel", known(&then.guest_kernel), known(&now.guest_kernel)),
    ]
    .into_iter()
    .filter(|(_, then, now)| then != now)
    .map(|(what, then, now)| format!("{what}: {then} then, {now} now"))
    .chain(is_hidden.then(|| hidden.to_owned()))
    .collect()
}
