-- Version 2 of the store: the tables of version 1, and these of studies.

CREATE TABLE study_cell (
    run      INTEGER NOT NULL REFERENCES run (id),
    position INTEGER NOT NULL,
    workload TEXT    NOT NULL,
    levels   TEXT    NOT NULL,      -- JSON: factor → level
    baseline INTEGER,               -- the cell that it is compared with
    skipped  TEXT,                  -- why it is not run; NULL if it is
    PRIMARY KEY (run, position)
) STRICT, WITHOUT ROWID;

-- One row per trial that has ended. UNIQUE is what keeps it from being repeated.
CREATE TABLE trial (
    id           INTEGER PRIMARY KEY,
    run          INTEGER NOT NULL REFERENCES run (id),
    session      INTEGER NOT NULL REFERENCES session (id),
    block        INTEGER NOT NULL,
    cell         INTEGER NOT NULL,
    start        INTEGER NOT NULL,
    twin         INTEGER NOT NULL CHECK (twin IN (0, 1)),
    position     INTEGER NOT NULL,  -- its place in the block's order
    node         TEXT    NOT NULL,  -- the machine, where several work on one run
    status       TEXT    NOT NULL CHECK (status IN ('ok', 'failed')),
    attempts     INTEGER NOT NULL,
    error        TEXT,
    began_unix_s INTEGER NOT NULL,
    duration_ns  INTEGER NOT NULL,  -- with its share of the start
    work_ns      INTEGER NOT NULL,  -- of the workload itself
    UNIQUE (run, block, cell, start, twin),
    FOREIGN KEY (run, cell) REFERENCES study_cell (run, position)
) STRICT;
CREATE INDEX trial_status ON trial (run, status, duration_ns, work_ns);

CREATE TABLE figure (
    id          INTEGER PRIMARY KEY,
    trial       INTEGER NOT NULL REFERENCES trial (id),
    probe       TEXT    NOT NULL,
    labels      TEXT    NOT NULL,   -- JSON
    unit        TEXT    NOT NULL,
    family      TEXT    NOT NULL,
    cpu         INTEGER,
    duration_ns INTEGER NOT NULL,
    dropped     INTEGER NOT NULL,
    disturbed   INTEGER NOT NULL,
    flags       TEXT    NOT NULL,   -- JSON
    samples     BLOB    NOT NULL    -- 64-bit floats, little endian
) STRICT;
CREATE INDEX figure_of_trial ON figure (trial);
