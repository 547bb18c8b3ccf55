#!/bin/sh
# Starts QEMU with each thread on the CPUs of a Pinfold plan; stopped first, pinned, then let go.
# Runs with pinfold in the PATH, or without it by taskset (util-linux). Needs Linux.
# Further arguments of this script are added to QEMU's.
