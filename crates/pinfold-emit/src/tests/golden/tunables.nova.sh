#!/bin/sh
# Pinfold: low-latency for win-10 'x': vCPUs 0→1, 1→2
# sh THIS FLAVOR; the flavor has 2 vCPUs.
set -eu
flavor=${1:?"usage: sh $0 FLAVOR"}

openstack flavor set "$flavor" --property hw:cpu_policy=dedicated
openstack flavor set "$flavor" --property hw:cpu_thread_policy=isolate
openstack flavor set "$flavor" --property hw:cpu_sockets=1
openstack flavor set "$flavor" --property hw:cpu_cores=2
openstack flavor set "$flavor" --property hw:cpu_threads=1
openstack flavor set "$flavor" --property hw:emulator_threads_policy=share
openstack flavor set "$flavor" --property hw:cpu_realtime=yes
# cpu-weight=200: for cgroup v2; on a host with cgroup v1 2048
openstack flavor set "$flavor" --property quota:cpu_shares=200
# cpu-quota=150000/100000: for each of 2 vCPUs, and no limit for the emulator
openstack flavor set "$flavor" --property quota:cpu_period=100000
openstack flavor set "$flavor" --property quota:cpu_quota=75000

# On the compute node, in nova.conf (which CPUs, but not which vCPU on which):
# [compute]
# cpu_dedicated_set = 1-2
# (of this machine; a node with several has all of theirs in one list: plan them together)
# cpu_shared_set = 0,3-4,7
# [libvirt]
# policy:vcpu=fifo:1: hw:cpu_realtime gives it to vCPUs
# realtime_scheduler_priority = 1
# governor=performance: of dedicated CPUs in use
# cpu_power_management = true
# cpu_power_management_strategy = governor
# cpu_power_governor_high = performance
# Not expressible: the CPU of each vCPU, the emulator's own CPUs beyond cpu_shared_set, pins of iothreads.
# hw:cpu_thread_policy=isolate leaves the siblings of dedicated CPUs idle: threads that the plan puts there cannot be expressed.
# Nova cannot express huge-pages=0:2048:512: the compute node makes its pools at boot; [DEFAULT] reserved_huge_pages keeps some from Nova
# Nova cannot express huge-pages=0:1048576:4: the compute node makes its pools at boot; [DEFAULT] reserved_huge_pages keeps some from Nova
# Nova cannot express share=L3:0=ff0: Nova does not use resctrl
# Nova cannot express share=MB:0=50: Nova does not use resctrl
# Nova cannot express partition=isolated: Nova leaves groups to libvirt
# Nova cannot express offline=7: cpu_power_management_strategy = cpu_state takes dedicated CPUs offline that are not in use
# Nova cannot express required=yes: `pinfold apply` alone checks it
# Host settings that Nova cannot express: irq:0000:81:00.0=0,4, new-irqs=0,4, workqueues=0,4, writeback=0,4, watchdog-cpus=0,4, timer-migration=off, stat-interval=10, numa-balancing=off, llc-balancing=off, thp=never, khugepaged-defrag=off, ksm=unmerge, halt-poll-ns=400000, wake-up-us=20, rt-throttle=off, max-khz=4400000, min-khz=4000000, smt=on
# (`pinfold apply` sets them and `pinfold undo` resets them; the formats systemd and tuned write them for every boot)
# The plan excludes other tasks from 1-2,5-6; Nova excludes its other machines
# only. `pinfold apply` on the running machine with the isolation scope host
# does, and `--emit systemd` or `--emit tuned` from boot on.
