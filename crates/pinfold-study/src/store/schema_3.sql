-- Version 3 of the store: the tables of versions 1 and 2, and these of runs on a cluster.

CREATE TABLE cluster (
    run     INTEGER PRIMARY KEY REFERENCES run (id),
    options TEXT    NOT NULL            -- JSON: how its tasks are submitted
) STRICT;

-- A node that delivered, as it was then: with another kernel it is another row.
CREATE TABLE node (
    id     INTEGER PRIMARY KEY,
    run    INTEGER NOT NULL REFERENCES run (id),
    name   TEXT    NOT NULL,
    origin TEXT    NOT NULL,            -- JSON
    UNIQUE (run, name, origin)
) STRICT;

-- One row per part of a block that a node delivered. UNIQUE is what makes merging idempotent.
CREATE TABLE delivery (
    id           INTEGER PRIMARY KEY,
    run          INTEGER NOT NULL REFERENCES run (id),
    part         INTEGER NOT NULL,
    attempt      INTEGER NOT NULL,
    node         INTEGER NOT NULL REFERENCES node (id),
    job          TEXT    NOT NULL,      -- its number in Slurm, as `17_3`
    mask         TEXT    NOT NULL,      -- the PUs that the job might use
    began_unix_s INTEGER NOT NULL,
    UNIQUE (run, part)
) STRICT;

-- One row per task that was submitted and not taken back.
CREATE TABLE task (
    run              INTEGER NOT NULL REFERENCES run (id),
    part             INTEGER NOT NULL,
    attempt          INTEGER NOT NULL,
    job              INTEGER NOT NULL,  -- the array job's number
    element          INTEGER NOT NULL,
    submitted_unix_s INTEGER NOT NULL,
    failed           TEXT,              -- why it gave nothing
    PRIMARY KEY (run, part, attempt)
) STRICT, WITHOUT ROWID;

ALTER TABLE trial ADD COLUMN delivery INTEGER REFERENCES delivery (id);
