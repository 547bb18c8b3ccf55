#!/bin/sh
# Pinfold: balanced for win-10 'x': vCPUs 0→1, 1→5, 2→2, 3→6, 4→3, 5→7
# sh THIS --kernel FILE --disk path=FILE …
set -eu
# Cloud Hypervisor has no option for iothread(iothread1): the plan wants 0,4.
exec taskset -c 0,4 cloud-hypervisor \
    --cpus 'boot=6,topology=2:3:1:1,affinity=[0@[1],1@[5],2@[2],3@[6],4@[3],5@[7]]' \
    "$@"
# The plan excludes other tasks from 1-3,5-7; Cloud Hypervisor cannot.
# `pinfold apply` on the running machine with the isolation scope host does, and
# `--emit systemd` or `--emit tuned` from boot on.
