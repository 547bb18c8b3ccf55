#!/bin/sh
# Pinfold: balanced for win-10 'x': vCPUs 0→1, 1→5, 2→2, 3→6, 4→3, 5→7
# sh THIS FLAVOR; the flavor has 6 vCPUs.
set -eu
flavor=${1:?"usage: sh $0 FLAVOR"}

openstack flavor set "$flavor" --property hw:cpu_policy=dedicated
openstack flavor set "$flavor" --property hw:cpu_thread_policy=require
openstack flavor set "$flavor" --property hw:cpu_sockets=1
openstack flavor set "$flavor" --property hw:cpu_cores=3
openstack flavor set "$flavor" --property hw:cpu_threads=2
openstack flavor set "$flavor" --property hw:emulator_threads_policy=share

# On the compute node, in nova.conf (which CPUs, but not which vCPU on which):
# [compute]
# cpu_dedicated_set = 1-3,5-7
# (of this machine; a node with several has all of theirs in one list: plan them together)
# cpu_shared_set = 0,4
# Not expressible: the CPU of each vCPU, the emulator's own CPUs beyond cpu_shared_set, pins of iothreads.
# The plan excludes other tasks from 1-3,5-7; Nova excludes its other machines
# only. `pinfold apply` on the running machine with the isolation scope host
# does, and `--emit systemd` or `--emit tuned` from boot on.
