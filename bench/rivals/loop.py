"""note|sync COUNT NOTES COMMAND…: runs it so often, notes time and output; `sync` with fsync."""

import os
import subprocess
import sys
import time

how, count, path, command = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4:]
with open(path, "a", encoding="utf-8") as notes:
    for _ in range(count):
        begin = time.monotonic_ns()
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        notes.write(f"{time.monotonic_ns() - begin} {said}")
        notes.flush()
        if how == "sync":
            os.fsync(notes.fileno())
