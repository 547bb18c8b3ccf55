#!/bin/sh
# Pinfold: low-latency for win-10 'x': vCPUs 0→1, 1→2
# On the Proxmox host: sh THIS VMID. The machine takes it at its next start.
set -eu
vmid=${1:?"usage: sh $0 VMID"}

# One mask for all threads, until the hookscript pins each.
qm set "$vmid" --sockets 1 --cores 2 --vcpus 2 --affinity 1-2,5-6 --numa 1
# cpu-weight=200: for cgroup v2; on a host with cgroup v1 2048
qm set "$vmid" --cpuunits 200
# cpu-quota=150000/100000: CPUs' worth of time; qm has no option for the period: it is 100 ms
qm set "$vmid" --cpulimit 1.50
# qm cannot express ksm=unmerge: ksmtuned starts and stops it; qm of newer releases keeps one machine out by --allow-ksm 0
# qm cannot express huge-pages=0:2048:512: Proxmox makes the pool for a machine with --hugepages when it starts, and frees it after
# qm cannot express huge-pages=0:1048576:4: Proxmox makes the pool for a machine with --hugepages when it starts, and frees it after
# qm cannot express share=L3:0=ff0: Proxmox does not use resctrl
# qm cannot express share=MB:0=50: Proxmox does not use resctrl
# qm cannot express partition=isolated: Proxmox starts the machine in a scope that is not a cpuset partition
# qm cannot express required=yes: `pinfold apply` alone checks it
# Host settings that qm cannot express: irq:0000:81:00.0=0,4, new-irqs=0,4, workqueues=0,4, writeback=0,4, watchdog-cpus=0,4, timer-migration=off, stat-interval=10, numa-balancing=off, llc-balancing=off, thp=never, khugepaged-defrag=off, halt-poll-ns=400000, wake-up-us=20, rt-throttle=off, governor=performance, max-khz=4400000, min-khz=4000000, smt=on, offline=7
# (`pinfold apply` sets them and `pinfold undo` resets them; the formats systemd and tuned write them for every boot)
# The plan excludes other tasks from 1-2,5-6; qm cannot. `pinfold apply` on the
# running machine with the isolation scope host does, and `--emit systemd` or
# `--emit tuned` from boot on.

# Not possible with qm: iothreads follow its disks (iothread=1), and keep the CPUs of the emulator here.
# The storage "local" must allow snippets: Datacenter, Storage, local, Content.
mkdir -p /var/lib/vz/snippets
cat >/var/lib/vz/snippets/pinfold-win_10__x_.sh <<'END_OF_HOOK'
#!/bin/sh
# Pins each thread of the machine after its start. Arguments: VMID PHASE.
[ "$2" = post-start ] || exit 0
qemu=$(cat "/run/qemu-server/$1.pid") || exit 1
vcpus=2

# The ids of QEMU's threads whose name is $1, or begins with it if it ends in "/".
threads_named() {
    for task in /proc/"$qemu"/task/*; do
        { IFS= read -r name <"$task/comm"; } 2>/dev/null || continue
        case $1 in
        */) case $name in "$1"*) echo "${task##*/}" ;; esac ;;
        *) [ "$name" != "$1" ] || echo "${task##*/}" ;;
        esac
    done
}

# The id of the one such thread.
thread_named() {
    found=$(threads_named "$1")
    case $found in
    '' | *[!0-9]*) echo "$0: QEMU has not one thread named $1" >&2 && return 1 ;;
    *) echo "$found" ;;
    esac
}

count_vcpus() {
    count=0
    while [ "$count" -lt "$vcpus" ] && [ -n "$(threads_named "CPU $count/")" ]; do
        count=$((count + 1))
    done
    echo "$count"
}

pin_all() {
    taskset -apc "$1" "$qemu" >/dev/null
}

pin_one() {
    tid=$(thread_named "$1") && taskset -pc "$2" "$tid" >/dev/null
}

schedule() {
    tid=$(thread_named "$1") && shift && chrt "$@" "$tid" >/dev/null
}

# All threads as the emulator, then those with a name.
pin_by_taskset() {
    # emulator: the emulator runs on the CPUs 5-6, the siblings of the vCPUs' CPUs: near their caches, never on a vCPU's CPU, and not on the host's core 0
    pin_all 5-6 || return 1
    # vcpu(0): CPU 1 is the first of its core (core 1, L3 0, node 0, package 0), chosen because it is near the cores of the other vCPUs; its sibling 5 goes to the emulator, not to a vCPU; core 0 is the host's
    pin_one 'CPU 0/' 1 || return 1
    # vcpu(1): CPU 2 is the first of its core (core 2, L3 0, node 0, package 0), chosen because it is near the cores of the other vCPUs; its sibling 6 goes to the emulator, not to a vCPU; core 0 is the host's
    pin_one 'CPU 1/' 2 || return 1
    schedule 'CPU 0/' -f -p 1 || return 1
    schedule 'CPU 1/' -f -p 1 || return 1
}

[ "$(count_vcpus)" -eq "$vcpus" ] || {
    echo "$0: the machine does not have $vcpus vCPUs" >&2
    exit 1
}
pin_by_taskset
END_OF_HOOK
chmod +x /var/lib/vz/snippets/pinfold-win_10__x_.sh
qm set "$vmid" --hookscript local:snippets/pinfold-win_10__x_.sh
