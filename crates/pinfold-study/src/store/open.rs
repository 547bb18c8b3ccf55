//! Opens a store: checks its format, owner and version.

use std::path::Path;
use std::time::Duration;

use pinfold_model::escape;
use rusqlite::{Connection, OpenFlags, OptionalExtension as _, TransactionBehavior};

use super::{APPLICATION_ID, Store, StoreError, VERSION, sql_error};

/// The additional tables of each version.
const TABLES: [(i64, &str); 4] = [
    (1, include_str!("schema.sql")),
    (2, include_str!("schema_2.sql")),
    (3, include_str!("schema_3.sql")),
    (4, include_str!("schema_4.sql")),
];

/// Time to wait for a lock of another process.
const BUSY: Duration = Duration::from_secs(5);

/// Fails unless the path is a file on a disk: SQLite would wait for ever in a pipe, a device or a
/// file of the kernel that waits for events (`/proc/kmsg`).
fn require_plain_file(path: &str) -> Result<(), StoreError> {
    match pinfold_host::files::why_not_plain(path) {
        None => Ok(()),
        Some(why) => Err(StoreError::Foreign { path: path.to_owned(), why: why.to_owned() }),
    }
}

/// The identification of the file.
struct FileIdentity {
    application: i64,
    version: i64,
    tables: i64,
}

impl Store {
    /// Opens an existing store.
    ///
    /// # Errors
    /// [`StoreError`]: missing, foreign, newer, locked or damaged.
    pub fn open(path: &str) -> Result<Store, StoreError> {
        if !pinfold_host::files::exists(path) {
            return Err(StoreError::Missing { path: path.to_owned() });
        }
        require_plain_file(path)?;
        Self::connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE, BUSY)
    }

    /// Opens a store, and creates file and folder if needed.
    ///
    /// # Errors
    /// [`StoreError`]: as [`Store::open`], or the folder cannot be created.
    pub fn open_or_create(path: &str) -> Result<Store, StoreError> {
        if let Some(folder) = Path::new(path).parent().and_then(Path::to_str)
            && !folder.is_empty()
        {
            pinfold_host::files::make_dirs(folder)
                .map_err(|source| StoreError::Folder { path: path.to_owned(), source })?;
        }
        if pinfold_host::files::exists(path) {
            require_plain_file(path)?;
        }
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
        Self::connect(path, flags, BUSY)
    }

    /// A store in memory, for data that are passed on as a whole.
    ///
    /// # Errors
    /// [`StoreError`] if SQLite cannot create it.
    pub fn in_memory() -> Result<Store, StoreError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
        Self::connect(":memory:", flags, BUSY)
    }

    pub(super) fn connect(
        path: &str,
        flags: OpenFlags,
        busy: Duration,
    ) -> Result<Store, StoreError> {
        let may_create = flags.contains(OpenFlags::SQLITE_OPEN_CREATE);
        let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)
            .map_err(|source| sql_error(path, "open it", source))?;
        let mut store = Store { connection, path: path.to_owned() };
        store.set_busy_timeout(busy)?;
        // The file is not modified before it is identified as a store.
        if store.is_blank()? {
            if !may_create {
                let why = "it is empty".to_owned();
                return Err(StoreError::Foreign { path: path.to_owned(), why });
            }
            store.configure()?;
            store.make_tables()?;
        } else {
            store.configure()?;
            if store.marks()?.version < VERSION {
                store.make_tables()?;
            }
        }
        Ok(store)
    }

    /// Sets the time after which a file that another process has locked is an error.
    ///
    /// # Errors
    /// [`StoreError`] if SQLite refuses it.
    pub fn set_busy_timeout(&self, busy: Duration) -> Result<(), StoreError> {
        self.connection.busy_timeout(busy).map_err(self.sql("set the waiting time"))
    }

    /// True for an empty file, false for a store of a known version.
    fn is_blank(&self) -> Result<bool, StoreError> {
        let marks = self.marks()?;
        if marks.application == APPLICATION_ID {
            return match marks.version {
                1..=VERSION => self.require_own_schema().map(|()| false),
                version if version > VERSION => Err(StoreError::Newer {
                    path: self.path.clone(),
                    found: version,
                    known: VERSION,
                }),
                version => Err(self.value("user_version", version)),
            };
        }
        if marks.application == 0 && marks.version == 0 && marks.tables == 0 {
            return Ok(true);
        }
        Err(StoreError::Foreign {
            path: self.path.clone(),
            why: "it is an SQLite file of another program".to_owned(),
        })
    }

    /// Fails if the file holds more than Pinfold's tables and indexes: a view, a trigger, a virtual
    /// table or a generated column computes something of its maker when it is read.
    fn require_own_schema(&self) -> Result<(), StoreError> {
        // Virtual tables first: their columns are known only after their module has started.
        self.refuse_found(
            "SELECT type || ' ' || name FROM sqlite_schema WHERE type NOT IN ('table', 'index') \
             OR (type = 'table' AND (sql IS NULL OR sql NOT LIKE 'CREATE TABLE%')) LIMIT 1",
        )?;
        self.refuse_found(
            "SELECT 'column ' || own.name || '.' || x.name \
             FROM sqlite_schema own, pragma_table_xinfo(own.name) x \
             WHERE own.type = 'table' AND x.hidden <> 0 AND NOT (own.name = 'candidate' \
             AND x.name = 'is_baseline' \
             AND own.sql LIKE '%GENERATED ALWAYS AS (role = ''baseline'') VIRTUAL%') LIMIT 1",
        )
    }

    /// Fails with the first row of a query, if there is one.
    fn refuse_found(&self, query: &str) -> Result<(), StoreError> {
        let found: Option<String> = self
            .connection
            .query_row(query, [], |row| row.get(0))
            .optional()
            .map_err(self.sql("read its schema"))?;
        let Some(found) = found else { return Ok(()) };
        let why = format!("Pinfold did not create the {} of its schema", escape::name(&found));
        Err(StoreError::Foreign { path: self.path.clone(), why })
    }

    fn marks(&self) -> Result<FileIdentity, StoreError> {
        Ok(FileIdentity {
            application: self.number("PRAGMA application_id")?,
            version: self.number("PRAGMA user_version")?,
            tables: self.number("SELECT count(*) FROM sqlite_schema")?,
        })
    }

    fn number(&self, query: &str) -> Result<i64, StoreError> {
        self.connection
            .query_row(query, [], |row| row.get::<_, i64>(0))
            .map_err(self.sql("read its marks"))
    }

    fn configure(&self) -> Result<(), StoreError> {
        let fail = self.sql("set its journal mode");
        let mode: String = self
            .connection
            .query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))
            .map_err(fail)?;
        if mode != "wal" {
            // File systems without shared memory keep the rollback journal, which is equally safe.
            self.connection.pragma_update(None, "journal_mode", "DELETE").map_err(fail)?;
        }
        self.connection.pragma_update(None, "synchronous", "FULL").map_err(fail)?;
        self.connection.pragma_update(None, "foreign_keys", true).map_err(fail)
    }

    fn make_tables(&mut self) -> Result<(), StoreError> {
        let path = self.path.clone();
        let transaction = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(|source| sql_error(&path, "make its tables", source))?;
        // Another process may have created tables in the meantime, or an older version of Pinfold
        // the first ones.
        let made: i64 = transaction
            .query_row("PRAGMA user_version", [], |row| row.get(0))
            .map_err(|source| sql_error(&path, "make its tables", source))?;
        if made < VERSION {
            for (_, tables) in TABLES.iter().filter(|(version, _)| *version > made) {
                transaction
                    .execute_batch(tables)
                    .map_err(|source| sql_error(&path, "make its tables", source))?;
            }
            transaction
                .pragma_update(None, "application_id", APPLICATION_ID)
                .map_err(|source| sql_error(&path, "make its tables", source))?;
            transaction
                .pragma_update(None, "user_version", VERSION)
                .map_err(|source| sql_error(&path, "make its tables", source))?;
        }
        transaction.commit().map_err(|source| sql_error(&path, "make its tables", source))
    }
}
