#!/bin/sh
# Pinfold: low-latency for win-10 'x': vCPUs 0→1, 1→2
# sh THIS --live      what runs now, until it ends
# sh THIS --config    from the next start on
# sh THIS             both; needs a domain that runs
set -eu
[ $# -gt 0 ] || set -- --live --config
domain='win-10 '\''x'\'''

virsh emulatorpin --domain "$domain" --cpulist 5-6 "$@"
virsh vcpupin --domain "$domain" --vcpu 0 --cpulist 1 "$@"
virsh vcpupin --domain "$domain" --vcpu 1 --cpulist 2 "$@"
# huge-pages=0:2048:512: of the host, until it reboots
virsh allocpages --pagesize 2048 --pagecount 512 --cellno 0
# huge-pages=0:1048576:4: of the host, until it reboots
virsh allocpages --pagesize 1048576 --pagecount 4 --cellno 0
# cpu-weight=200: for cgroup v2; on a host with cgroup v1 2048
virsh schedinfo --domain "$domain" --set cpu_shares=200 "$@"
# cpu-quota=150000/100000
virsh schedinfo --domain "$domain" --set global_period=100000 "$@"
virsh schedinfo --domain "$domain" --set global_quota=150000 "$@"

# Not possible with a command, only in the domain file (`--emit libvirt --into FILE`):
# the guest's topology 1×2×1, from the next start on
# vcpu(0) under the policy fifo 1
# vcpu(1) under the policy fifo 1
# The plan excludes other tasks from 1-2,5-6; virsh cannot. `pinfold apply` on
# the running machine with the isolation scope host does, and `--emit systemd`
# or `--emit tuned` from boot on.
# virsh cannot express ksm=unmerge: virsh node-memory-tune tunes it, but does not start or stop it
# virsh cannot express share=L3:0=ff0: <cachetune> and <memorytune> are in the domain file only (`--emit libvirt`)
# virsh cannot express share=MB:0=50: <cachetune> and <memorytune> are in the domain file only (`--emit libvirt`)
# virsh cannot express partition=isolated: libvirt makes the groups of its domains itself, none of them a cpuset partition
# virsh cannot express required=yes: `pinfold apply` alone checks it
# Host settings that virsh cannot express: irq:0000:81:00.0=0,4, new-irqs=0,4, workqueues=0,4, writeback=0,4, watchdog-cpus=0,4, timer-migration=off, stat-interval=10, numa-balancing=off, llc-balancing=off, thp=never, khugepaged-defrag=off, halt-poll-ns=400000, wake-up-us=20, rt-throttle=off, governor=performance, max-khz=4400000, min-khz=4000000, smt=on, offline=7
# (`pinfold apply` sets them and `pinfold undo` resets them; the formats systemd and tuned write them for every boot)
