-- Version 4 of the store: the tables of versions 1 to 3, and the time that role_stats covers.

-- From the sample of the counters before the benchmarks to the one after them. NULL in cells of
-- older versions: the benchmarks' own time is shorter, and must not be taken for it.
ALTER TABLE cell ADD COLUMN roles_ns INTEGER;
