//! Tests of `store`, as tables.

use std::io::{BufRead, BufReader, Write};
use std::time::Duration;

use pinfold_host::files;
use pinfold_model::{LoadState, Metric, Origin, Role};
use rusqlite::{Connection, OpenFlags};

use super::read::{CELLS, ROLES, SERIES, STARTS};
use super::study::{APPLY_FLAGS, FAILURES, FIGURES, STUDY_PROGRESS, TRIALS};
use super::*;
use crate::fixture;

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }
}

fn new_run(store: &mut Store) -> OpenRun {
    let candidates = fixture::candidates(&["none", "compact"]);
    let origin = fixture::origin();
    let new = NewRun {
        created_unix_s: 1_700_000_000,
        kind: "tune",
        config_json: "{}",
        origin: &origin,
        seed: u64::MAX,
        candidates: &candidates,
    };
    store.create_run(&new).unwrap()
}

fn record(block: u32, candidate: usize) -> StartRecord {
    StartRecord {
        slot: Slot { phase: Phase::Confirmation, block, candidate },
        position: 1,
        status: StartStatus::Ok,
        attempts: 1,
        error: None,
        began_unix_s: 1_700_000_010,
        duration_ns: 6_000_000_000,
    }
}

#[test]
fn everything_comes_back_as_it_went_in() {
    let folder = Folder::new();
    let path = folder.path("deep/er/store.sqlite");
    let mut store = Store::open_or_create(&path).unwrap();
    let run = new_run(&mut store);
    let mut busy = fixture::cell(LoadState::BOTH, vec![0.0, 1.5, f64::MIN_POSITIVE, 1e300]);
    busy.series[0].flags = vec!["preempted 12".to_owned(), "\"odd\", ünusual".to_owned()];
    busy.series[0].dropped = 7;
    busy.series.push(fixture::series(Metric::Wakeup, 3, Vec::new()));
    busy.roles.push(fixture::role_stats(Role::Emulator));
    busy.roles[0].migrations = None;
    let idle = fixture::cell(LoadState::ALL[0], vec![2.0]);
    let failed = StartRecord {
        status: StartStatus::Failed,
        attempts: 2,
        error: Some("QEMU said no".to_owned()),
        ..record(1, 0)
    };
    store.save_start(run, &record(0, 1), &[busy.clone(), idle.clone()]).unwrap();
    store.save_start(run, &failed, &[]).unwrap();
    store.set_confirmation(run, "{\"x\":1}").unwrap();
    drop(store);

    let mut store = Store::open(&path).unwrap();
    assert_eq!(store.runs().unwrap(), [run.id()]);
    assert_eq!(store.unfinished_run("tune").unwrap(), Some(run.id()));
    assert_eq!(store.unfinished_run("study").unwrap(), None);
    let found = store.run(run.id()).unwrap();
    assert_eq!((found.seed, found.kind.as_str()), (u64::MAX, "tune"));
    assert_eq!((found.origin, found.sessions.len()), (fixture::origin(), 1));
    assert_eq!(found.confirm_json.as_deref(), Some("{\"x\":1}"));
    assert_eq!(store.candidates(run.id()).unwrap(), fixture::candidates(&["none", "compact"]));
    let starts = store.starts(run.id()).unwrap();
    let records: Vec<&StartRecord> = starts.iter().map(|start| &start.record).collect();
    assert_eq!(records, [&record(0, 1), &failed]);
    busy.roles.reverse();
    busy.roles.sort_by(|a, b| a.role.cmp(&b.role));
    assert_eq!(store.cells(starts[0].id).unwrap(), [busy, idle]);
    assert_eq!(store.cells(starts[1].id).unwrap(), []);
    store.finish_run(run, 99).unwrap();
    store.finish_run(run, 100).unwrap();
    assert_eq!(store.run(run.id()).unwrap().finished_unix_s, Some(99));
    assert_eq!(store.unfinished_run("tune").unwrap(), None);
}

#[test]
fn every_bad_file_is_distinguished() {
    fn check(path: &str, expected: &str) {
        for result in [Store::open(path), Store::open_or_create(path)] {
            let error = result.unwrap_err();
            assert_eq!(error.to_string().replace(path, "FILE"), expected);
            assert!(error.hint().is_some(), "no hint for {error}");
        }
    }
    let folder = Folder::new();
    let text = folder.path("text");
    let words = "not a database, but longer than a header ".repeat(20);
    files::write_atomic(&text, words.as_bytes()).unwrap();
    check(&text, "FILE is not a store of Pinfold: it is not an SQLite file");
    assert_eq!(files::read(&text).unwrap(), words.as_bytes(), "it must not be touched");

    let other = folder.path("other.sqlite");
    Connection::open(&other).unwrap().execute_batch("CREATE TABLE recipe (id)").unwrap();
    let before = files::read(&other).unwrap();
    check(&other, "FILE is not a store of Pinfold: it is an SQLite file of another program");
    assert_eq!(files::read(&other).unwrap(), before, "it must not be touched");

    let newer = folder.path("newer.sqlite");
    Store::open_or_create(&newer).unwrap();
    Connection::open(&newer).unwrap().pragma_update(None, "user_version", 7).unwrap();
    check(&newer, "the store FILE has version 7, but this Pinfold supports versions up to 4");
}

#[test]
fn a_store_with_a_schema_of_its_own_making_is_refused() {
    fn check(folder: &Folder, name: &str, change: &str, expected: &str) {
        let path = folder.path(name);
        drop(Store::open_or_create(&path).unwrap());
        Connection::open(&path).unwrap().execute_batch(change).unwrap();
        let error = Store::open(&path).unwrap_err().to_string();
        assert!(error.contains(expected), "{name}: {error}");
    }

    let folder = Folder::new();
    check(
        &folder,
        "view",
        "ALTER TABLE run RENAME TO real_run; CREATE VIEW run AS WITH RECURSIVE r(x) AS \
         (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT real_run.* FROM real_run, r",
        "the view run of its schema",
    );
    check(
        &folder,
        "trigger",
        "CREATE TRIGGER more AFTER INSERT ON run BEGIN DELETE FROM run; END",
        "the trigger more of its schema",
    );
    check(
        &folder,
        "column",
        "CREATE TABLE other (a, b AS (a + 1))",
        "the column other.b of its schema",
    );
    check(
        &folder,
        "virtual",
        "CREATE VIRTUAL TABLE other USING fts5(a)",
        "the table other of its schema",
    );
    let pipe = Store::open("/proc/kmsg").unwrap_err().to_string();
    assert!(pipe.contains("it is a file of the kernel"), "{pipe}");
    let device = Store::open("/dev/zero").unwrap_err().to_string();
    assert!(device.contains("it is not a regular file"), "{device}");
}

#[test]
fn older_stores_are_read_and_get_the_tables_that_they_lack() {
    let trial = "INSERT INTO session (run, began_unix_s, origin) SELECT id, 1, origin FROM run;
        INSERT INTO study_cell (run, position, workload, levels) VALUES (1, 0, 'w', '{}');
        INSERT INTO trial (run, session, block, cell, start, twin, position, node, status,
                           attempts, began_unix_s, duration_ns, work_ns)
        VALUES (1, 1, 2, 0, 0, 0, 0, '', 'ok', 1, 0, 5, 4);";
    let second = format!("{}{trial}", include_str!("schema_2.sql"));
    let cell = "INSERT INTO candidate (run, position, name, plan, role) VALUES (1, 0, 'none', '{}', 'baseline');
        INSERT INTO start (run, phase, block, position, candidate, status, attempts, began_unix_s, duration_ns)
        VALUES (1, 'confirmation', 0, 0, 0, 'ok', 1, 0, 5);
        INSERT INTO cell (start, host_loaded, guest_loaded, position) VALUES (1, 0, 0, 0);";
    let third = format!("{second}{}{cell}", include_str!("schema_3.sql"));
    for (version, more, trials) in [(1, "", 0), (2, second.as_str(), 1), (3, third.as_str(), 1)] {
        let folder = Folder::new();
        let path = folder.path("old.sqlite");
        {
            let old = Connection::open(&path).unwrap();
            old.execute_batch(include_str!("schema.sql")).unwrap();
            old.pragma_update(None, "application_id", APPLICATION_ID).unwrap();
            old.pragma_update(None, "user_version", version).unwrap();
            let origin = save::Json(fixture::origin());
            old.execute(
                "INSERT INTO run (created_unix_s, kind, config, origin, seed, fingerprint)
                 VALUES (1700000000, 'tune', '{}', ?1, '1', 'c0ffee')",
                [origin],
            )
            .unwrap();
            old.execute_batch(more).unwrap();
        }
        for _ in 0..2 {
            let store = Store::open(&path).unwrap();
            let run = store.runs().unwrap()[0];
            assert_eq!(store.run(run).unwrap().kind, "tune");
            assert_eq!(store.trials(run).unwrap().len(), trials);
            assert!(
                store.submission_options(run).unwrap().is_none()
                    && store.nodes(run).unwrap().is_empty()
            );
            assert!(store.trial_deliveries(run).unwrap().is_empty());
            for start in store.starts(run).unwrap() {
                assert_eq!(store.cells(start.id).unwrap()[0].roles_ns, None, "not recorded then");
            }
            let found: i64 =
                store.connection.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
            assert_eq!(found, VERSION);
        }
    }
}

#[test]
fn missing_and_empty_files_are_made_only_on_demand() {
    let folder = Folder::new();
    let path = folder.path("store.sqlite");
    let error = Store::open(&path).unwrap_err();
    assert!(matches!(error, StoreError::Missing { .. }), "{error}");
    assert!(!files::exists(&path));
    files::write_atomic(&path, b"").unwrap();
    let error = Store::open(&path).unwrap_err();
    assert!(matches!(error, StoreError::Foreign { .. }), "{error}");
    let mut store = Store::open_or_create(&path).unwrap();
    new_run(&mut store);
    let blocked = folder.path("store.sqlite/below/store.sqlite");
    let error = Store::open_or_create(&blocked).unwrap_err();
    assert!(matches!(error, StoreError::Folder { .. }), "{error}");
    let error = Store::open_or_create(&folder.path("")).unwrap_err();
    assert!(matches!(error, StoreError::Open { .. }), "{error}");
}

fn fill_store(path: &str) -> OpenRun {
    let mut store = Store::open_or_create(path).unwrap();
    let run = new_run(&mut store);
    let samples: Vec<f64> = (0..40_000).map(f64::from).collect();
    for block in 0..3 {
        let cells = [fixture::cell(LoadState::BOTH, samples.clone())];
        store.save_start(run, &record(block, 1), &cells).unwrap();
    }
    run
}

fn read_all(path: &str, run: OpenRun) -> Result<usize, StoreError> {
    let store = Store::open(path)?;
    store.run(run.id())?;
    let starts = store.starts(run.id())?;
    starts.iter().map(|start| Ok(store.cells(start.id)?.len())).sum()
}

#[test]
fn a_damaged_file_is_called_damaged() {
    fn check(path: &str, run: OpenRun, content: &[u8]) {
        files::write_atomic(path, content).unwrap();
        let error = read_all(path, run).unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{error:?}");
        assert!(error.hint().unwrap().contains(".recover"));
    }

    let folder = Folder::new();
    let path = folder.path("store.sqlite");
    let run = fill_store(&path);
    let whole = files::read(&path).unwrap();
    assert_eq!(read_all(&path, run).unwrap(), 3);
    check(&path, run, &whole[..whole.len() * 6 / 10]);
    check(&path, run, &whole[..4096]);
    let mut scribbled = whole.clone();
    scribbled[4096..].fill(0xa5);
    check(&path, run, &scribbled);
    files::write_atomic(&path, &whole).unwrap();
    assert_eq!(read_all(&path, run).unwrap(), 3);
}

#[test]
fn a_locked_file_is_called_locked() {
    let folder = Folder::new();
    let path = folder.path("store.sqlite");
    let mut store = Store::open_or_create(&path).unwrap();
    let run = new_run(&mut store);
    store.connection.busy_timeout(Duration::from_millis(10)).unwrap();
    let other = Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    // Reading is possible, writing is not.
    assert_eq!(store.runs().unwrap().len(), 1);
    let error = store.save_start(run, &record(0, 1), &[]).unwrap_err();
    assert!(matches!(error, StoreError::Locked { .. }), "{error:?}");
    other.execute_batch("ROLLBACK").unwrap();
    store.save_start(run, &record(0, 1), &[]).unwrap();
    drop(store);

    other.execute_batch("PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE").unwrap();
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE;
    let error = Store::connect(&path, flags, Duration::from_millis(10)).unwrap_err();
    assert!(matches!(error, StoreError::Locked { .. }), "{error:?}");
    assert!(error.hint().is_some());
}

#[test]
fn a_start_is_saved_once_and_whole() {
    let folder = Folder::new();
    let mut store = Store::open_or_create(&folder.path("store.sqlite")).unwrap();
    let run = new_run(&mut store);
    let cell = fixture::cell(LoadState::BOTH, vec![1.0]);
    let twice = [cell.clone(), cell.clone()];
    store.save_start(run, &record(0, 1), &twice).unwrap_err();
    assert_eq!(store.starts(run.id()).unwrap(), [], "a half-saved start is left");
    store.save_start(run, &record(0, 1), std::slice::from_ref(&cell)).unwrap();
    let error = store.save_start(run, &record(0, 1), &[cell]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "run 1 already holds this start: confirmation block 1, candidate 1"
    );
    store.save_start(run, &record(1, 1), &[]).unwrap();
    let unknown = record(0, 9);
    store.save_start(run, &unknown, &[]).unwrap_err();
    assert_eq!(store.starts(run.id()).unwrap().len(), 2);
}

#[test]
fn a_full_disk_loses_only_the_start_that_did_not_fit() {
    let folder = Folder::new();
    let path = folder.path("store.sqlite");
    let run = fill_store(&path);
    let mut store = Store::open(&path).unwrap();
    let pages: i64 = store.connection.query_row("PRAGMA page_count", [], |row| row.get(0)).unwrap();
    limit(&store, pages + 3);
    let cells = [fixture::cell(LoadState::BOTH, vec![1.0; 40_000])];
    let error = store.save_start(run, &record(7, 1), &cells).unwrap_err();
    assert!(matches!(error, StoreError::Full { .. }), "{error:?}");
    assert!(error.hint().is_some());
    assert_eq!(store.starts(run.id()).unwrap().len(), 3);
    limit(&store, 1_000_000);
    store.save_start(run, &record(7, 1), &cells).unwrap();
    assert_eq!(read_all(&path, run).unwrap(), 4);
}

fn limit(store: &Store, pages: i64) -> i64 {
    let query = format!("PRAGMA max_page_count = {pages}");
    store.connection.query_row(&query, [], |row| row.get::<_, i64>(0)).unwrap()
}

#[test]
fn a_run_goes_on_only_on_its_own_host() {
    let folder = Folder::new();
    let mut store = Store::open_or_create(&folder.path("store.sqlite")).unwrap();
    let run = new_run(&mut store).id();
    let mut open = |origin: Origin, on_change| {
        let now = SessionRecord { began_unix_s: 1_700_000_100, origin };
        store.open_run(run, &now, on_change)
    };
    open(fixture::origin(), HostChange::Refuse).unwrap();
    let moved = Origin { kernel: "6.13.0".to_owned(), qemu: None, seed: 5, ..fixture::origin() };
    let error = open(moved.clone(), HostChange::Refuse).unwrap_err();
    assert_eq!(
        error.to_string(),
        "run 1 began on another host: kernel: 6.12.1 then, 6.13.0 now, QEMU: 9.2.0 then, none now"
    );
    assert!(error.hint().is_some());
    open(moved.clone(), HostChange::Accept).unwrap();
    open(moved, HostChange::Refuse).unwrap();
    let gone = open(fixture::origin(), HostChange::Refuse);
    assert!(matches!(gone, Err(StoreError::HostChanged { .. })));
    assert_eq!(store.run(run).unwrap().sessions.len(), 4);
    let now = SessionRecord { began_unix_s: 0, origin: fixture::origin() };
    let error = store.open_run(RunId(77), &now, HostChange::Accept).unwrap_err();
    assert!(matches!(error, StoreError::NoRun { .. }), "{error}");
}

#[test]
fn strange_values_are_named() {
    fn check(folder: &Folder, path: &str, run: OpenRun, change: &str, expected: &str) {
        let copy = folder.path("copy.sqlite");
        files::write_atomic(&copy, &files::read(path).unwrap()).unwrap();
        Connection::open(&copy).unwrap().execute_batch(change).unwrap();
        let error = read_all(&copy, run).unwrap_err();
        assert_eq!(error.to_string().replace(&copy, "FILE"), expected);
        assert!(error.hint().is_some());
    }

    let folder = Folder::new();
    let path = folder.path("store.sqlite");
    let run = fill_store(&path);
    check(
        &folder,
        &path,
        run,
        "UPDATE series SET samples = x'00112233'",
        "the store FILE: samples holds \"4 bytes\"",
    );
    check(
        &folder,
        &path,
        run,
        "UPDATE series SET metric = 'mood'",
        "the store FILE: metric holds \"mood\"",
    );
    check(
        &folder,
        &path,
        run,
        "UPDATE start SET duration_ns = -1",
        "the store FILE: duration_ns holds \"-1\"",
    );
    check(&folder, &path, run, "UPDATE run SET seed = 'x'", "the store FILE: seed holds \"x\"");
    check(&folder, &path, run, "UPDATE run SET origin = '{'", "the store FILE: the origin");
    check(&folder, &path, run, "UPDATE role_stats SET role = 'cook'", "the store FILE: a role");
}

#[test]
fn a_hundred_thousand_cells_are_found_by_index() {
    let folder = Folder::new();
    let mut store = Store::open_or_create(&folder.path("store.sqlite")).unwrap();
    let run = new_run(&mut store);
    store
        .connection
        .execute_batch(
            "BEGIN;
             WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 24999)
             INSERT INTO start (run, phase, block, position, candidate, status, attempts,
                                began_unix_s, duration_ns)
             SELECT 1, 'confirmation', i / 2, i % 2, i % 2, 'ok', 1, 1700000000, 1 FROM n;
             INSERT INTO cell (start, host_loaded, guest_loaded, position)
             SELECT start.id, load.h, load.g, load.h * 2 + load.g FROM start,
                 (SELECT 0 AS h, 0 AS g UNION SELECT 0, 1 UNION SELECT 1, 0 UNION SELECT 1, 1)
                 AS load;
             INSERT INTO series (cell, metric, cpu, duration_ns, observed_ns, dropped, flags,
                                 samples)
             SELECT id, 'spin-gap', 0, 1, 1, 0, '[]', zeroblob(64) FROM cell;
             COMMIT;",
        )
        .unwrap();
    let starts = store.starts(run.id()).unwrap();
    let cells = store.cells(starts[24_999].id).unwrap();
    assert_eq!((cells.len(), cells[3].series[0].samples.len()), (4, 8));
    for query in [STARTS, CELLS, SERIES, ROLES] {
        let explain = format!("EXPLAIN QUERY PLAN {query}");
        let mut statement = store.connection.prepare(&explain).unwrap();
        let steps: Vec<String> =
            statement.query_map([1], |row| row.get(3)).unwrap().map(Result::unwrap).collect();
        assert!(steps.iter().all(|step| !step.starts_with("SCAN")), "{query}: {steps:?}");
    }
}

const KILL_STORE: &str = "PINFOLD_TEST_KILL_STORE";
const KILL_SAMPLES: u32 = 60_000;

/// Child process of the test below; it does nothing when run alone.
#[test]
fn killed_child() {
    let Ok(path) = std::env::var(KILL_STORE) else {
        return;
    };
    let mut store = Store::open(&path).unwrap();
    let now = SessionRecord { began_unix_s: 0, origin: fixture::origin() };
    let run = store.open_run(RunId(1), &now, HostChange::Refuse).unwrap();
    let first = u32::try_from(store.starts(run.id()).unwrap().len()).unwrap();
    let samples: Vec<f64> = (0..KILL_SAMPLES).map(f64::from).collect();
    let cells = LoadState::ALL.map(|load| fixture::cell(load, samples.clone()));
    for block in first.. {
        store.save_start(run, &record(block, 1), &cells).unwrap();
        let mut out = std::io::stdout().lock();
        writeln!(out, "saved {block}").unwrap();
        out.flush().unwrap();
    }
}

#[test]
fn nothing_is_lost_when_killed_but_the_running_start() {
    let folder = Folder::new();
    let path = folder.path("store.sqlite");
    let run = new_run(&mut Store::open_or_create(&path).unwrap());
    let mut before = 0;
    for wanted in [1, 4, 2] {
        let acknowledged = kill_after(&path, wanted);
        let store = Store::open(&path).unwrap();
        let starts = store.starts(run.id()).unwrap();
        // The start that was being saved is either complete or absent.
        assert!(starts.len() >= before + acknowledged, "a saved start is lost");
        for start in &starts {
            let cells = store.cells(start.id).unwrap();
            assert_eq!(cells.len(), 4);
            assert!(cells.iter().all(|cell| cell.series[0].samples.len() == 60_000));
        }
        before = starts.len();
    }
    let check: String = Connection::open(&path)
        .unwrap()
        .query_row("PRAGMA integrity_check", [], |row| row.get(0))
        .unwrap();
    assert_eq!(check, "ok");
}

/// Runs [`killed_child`] until it has reported `wanted` saved starts, kills it with SIGKILL, and
/// returns the number of all starts that it reported.
#[expect(clippy::disallowed_methods, reason = "the test binary starts itself")]
fn kill_after(path: &str, wanted: usize) -> usize {
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "store::tests::killed_child", "--nocapture", "--test-threads=1"])
        .env(KILL_STORE, path)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut acknowledged = 0;
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        acknowledged += usize::from(line.unwrap().contains("saved "));
        if acknowledged == wanted {
            child.kill().unwrap();
        }
    }
    let status = child.wait().unwrap();
    assert!(!status.success(), "the child ended by itself");
    assert!(acknowledged >= wanted, "the child saved too little");
    acknowledged
}

impl Store {
    /// Adds this number of trials of the first cell.
    pub(crate) fn fill_with_trials(&self, run: RunId, count: u64) -> rusqlite::Result<()> {
        self.connection.execute(
            "WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < ?2 - 1)
             INSERT INTO trial (run, session, block, cell, start, twin, position, node, status,
                                attempts, began_unix_s, duration_ns, work_ns)
             SELECT ?1, 1, i, 0, 0, 0, 0, '', 'ok', 1, 0, 5, 4 FROM n",
            rusqlite::params![run.0, i64::try_from(count).unwrap_or(i64::MAX)],
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
