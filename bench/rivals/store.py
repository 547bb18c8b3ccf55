"""count STORE | export STORE DIRECTORY: what a store of studies holds, by its tables alone."""

import csv
import os
import sqlite3
import struct
import sys

how, path = sys.argv[1:3]
store = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
if how == "count":
    for status, count in store.execute("SELECT status, count(*) FROM trial GROUP BY status"):
        print(status, count)
else:
    folder = sys.argv[3]
    os.makedirs(folder, exist_ok=True)
    with open(f"{folder}/trials.csv", "w", newline="", encoding="utf-8") as file:
        rows = store.execute("SELECT * FROM trial")
        out = csv.writer(file)
        out.writerow(column[0] for column in rows.description)
        out.writerows(rows)
    with open(f"{folder}/samples.csv", "w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(["trial", "figure", "unit", "index", "value"])
        for trial, probe, unit, samples in store.execute(
            "SELECT trial, probe, unit, samples FROM figure"
        ):
            for index, (value,) in enumerate(struct.iter_unpack("<d", samples)):
                out.writerow([trial, probe, unit, index, value])
    print("written")
