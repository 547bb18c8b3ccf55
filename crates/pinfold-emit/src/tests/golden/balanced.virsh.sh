#!/bin/sh
# Pinfold: balanced for win-10 'x': vCPUs 0→1, 1→5, 2→2, 3→6, 4→3, 5→7
# sh THIS --live      what runs now, until it ends
# sh THIS --config    from the next start on
# sh THIS             both; needs a domain that runs
set -eu
[ $# -gt 0 ] || set -- --live --config
domain='win-10 '\''x'\'''

virsh emulatorpin --domain "$domain" --cpulist 0,4 "$@"
# iothread(iothread1)
virsh iothreadpin --domain "$domain" --iothread 1 --cpulist 0,4 "$@"
virsh vcpupin --domain "$domain" --vcpu 0 --cpulist 1 "$@"
virsh vcpupin --domain "$domain" --vcpu 1 --cpulist 5 "$@"
virsh vcpupin --domain "$domain" --vcpu 2 --cpulist 2 "$@"
virsh vcpupin --domain "$domain" --vcpu 3 --cpulist 6 "$@"
virsh vcpupin --domain "$domain" --vcpu 4 --cpulist 3 "$@"
virsh vcpupin --domain "$domain" --vcpu 5 --cpulist 7 "$@"

# Not possible with a command, only in the domain file (`--emit libvirt --into FILE`):
# the guest's topology 1×3×2, from the next start on
# The plan excludes other tasks from 1-3,5-7; virsh cannot. `pinfold apply` on
# the running machine with the isolation scope host does, and `--emit systemd`
# or `--emit tuned` from boot on.
