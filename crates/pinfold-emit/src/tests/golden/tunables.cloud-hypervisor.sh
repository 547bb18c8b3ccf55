#!/bin/sh
# Pinfold: low-latency for win-10 'x': vCPUs 0→1, 1→2
# sh THIS --kernel FILE --disk path=FILE …
set -eu
# vcpu(0) under the policy fifo 1: `pinfold apply` on the running machine sets
# it.
# vcpu(1) under the policy fifo 1: `pinfold apply` on the running machine sets
# it.
exec taskset -c 5-6 cloud-hypervisor \
    --cpus 'boot=2,topology=1:2:1:1,affinity=[0@[1],1@[2]]' \
    "$@"
# The plan excludes other tasks from 1-2,5-6; Cloud Hypervisor cannot.
# `pinfold apply` on the running machine with the isolation scope host does, and
# `--emit systemd` or `--emit tuned` from boot on.
# Host settings that Cloud Hypervisor cannot express: policy:vcpu=fifo:1, irq:0000:81:00.0=0,4, new-irqs=0,4, workqueues=0,4, writeback=0,4, watchdog-cpus=0,4, timer-migration=off, stat-interval=10, numa-balancing=off, llc-balancing=off, thp=never, khugepaged-defrag=off, ksm=unmerge, halt-poll-ns=400000, wake-up-us=20, rt-throttle=off, governor=performance, max-khz=4400000, min-khz=4000000, huge-pages=0:2048:512, huge-pages=0:1048576:4, share=L3:0=ff0, share=MB:0=50, cpu-weight=200, cpu-quota=150000/100000, partition=isolated, smt=on, offline=7, required=yes
# (`pinfold apply` sets them and `pinfold undo` resets them; the formats systemd and tuned write them for every boot)
