-- Version 1 of the store. Times end in _unix_s (seconds since 1970) or _ns.

CREATE TABLE run (
    id              INTEGER PRIMARY KEY,
    created_unix_s  INTEGER NOT NULL,
    kind            TEXT    NOT NULL,
    config          TEXT    NOT NULL,  -- JSON
    origin          TEXT    NOT NULL,  -- JSON
    seed            TEXT    NOT NULL,  -- decimal: it may exceed SQLite's signed integers
    fingerprint     TEXT    NOT NULL,
    confirm         TEXT,              -- JSON, set when the screening has ended
    finished_unix_s INTEGER
) STRICT;

CREATE TABLE session (
    id           INTEGER PRIMARY KEY,
    run          INTEGER NOT NULL REFERENCES run (id),
    began_unix_s INTEGER NOT NULL,
    origin       TEXT    NOT NULL      -- JSON
) STRICT;
CREATE INDEX session_of_run ON session (run);

CREATE TABLE candidate (
    run         INTEGER NOT NULL REFERENCES run (id),
    position    INTEGER NOT NULL,
    name        TEXT    NOT NULL,
    plan        TEXT    NOT NULL,      -- JSON
    role        TEXT    NOT NULL CHECK (role IN ('baseline', 'candidate', 'twin')),
    is_baseline INTEGER NOT NULL GENERATED ALWAYS AS (role = 'baseline') VIRTUAL,
    same_as     INTEGER,
    PRIMARY KEY (run, position),
    UNIQUE (run, name)
) STRICT, WITHOUT ROWID;

-- One row per start that has ended. UNIQUE is what keeps it from being repeated.
CREATE TABLE start (
    id           INTEGER PRIMARY KEY,
    run          INTEGER NOT NULL REFERENCES run (id),
    phase        TEXT    NOT NULL CHECK (phase IN ('screening', 'confirmation')),
    block        INTEGER NOT NULL,
    position     INTEGER NOT NULL,
    candidate    INTEGER NOT NULL,
    status       TEXT    NOT NULL CHECK (status IN ('ok', 'failed')),
    attempts     INTEGER NOT NULL,
    error        TEXT,
    began_unix_s INTEGER NOT NULL,
    duration_ns  INTEGER NOT NULL,
    UNIQUE (run, phase, block, candidate),
    FOREIGN KEY (run, candidate) REFERENCES candidate (run, position)
) STRICT;

CREATE TABLE cell (
    id           INTEGER PRIMARY KEY,
    start        INTEGER NOT NULL REFERENCES start (id),
    host_loaded  INTEGER NOT NULL CHECK (host_loaded IN (0, 1)),
    guest_loaded INTEGER NOT NULL CHECK (guest_loaded IN (0, 1)),
    position     INTEGER NOT NULL,
    UNIQUE (start, host_loaded, guest_loaded)
) STRICT;

CREATE TABLE series (
    id          INTEGER PRIMARY KEY,
    cell        INTEGER NOT NULL REFERENCES cell (id),
    metric      TEXT    NOT NULL,
    cpu         INTEGER NOT NULL,
    duration_ns INTEGER NOT NULL,
    observed_ns INTEGER NOT NULL,
    dropped     INTEGER NOT NULL,
    flags       TEXT    NOT NULL,      -- JSON
    samples     BLOB    NOT NULL       -- 64-bit floats, little endian
) STRICT;
CREATE INDEX series_of_cell ON series (cell, metric);

CREATE TABLE role_stats (
    cell                 INTEGER NOT NULL REFERENCES cell (id),
    role                 TEXT    NOT NULL,
    threads              INTEGER NOT NULL,
    run_ns               INTEGER NOT NULL,
    run_delay_ns         INTEGER NOT NULL,
    migrations           INTEGER,      -- NULL where the kernel does not tell
    voluntary_switches   INTEGER NOT NULL,
    involuntary_switches INTEGER NOT NULL,
    lost_threads         INTEGER NOT NULL,
    PRIMARY KEY (cell, role)
) STRICT, WITHOUT ROWID;
