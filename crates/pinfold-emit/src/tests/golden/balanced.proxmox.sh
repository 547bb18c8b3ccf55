#!/bin/sh
# Pinfold: balanced for win-10 'x': vCPUs 0→1, 1→5, 2→2, 3→6, 4→3, 5→7
# On the Proxmox host: sh THIS VMID. The machine takes it at its next start.
set -eu
vmid=${1:?"usage: sh $0 VMID"}

# One mask for all threads, until the hookscript pins each.
qm set "$vmid" --sockets 1 --cores 6 --vcpus 6 --affinity 0-7 --numa 1
# qm has no option for threads and dies: QEMU uses the last -smp. This replaces other --args.
# On an AMD host add `-cpu host,topoext=on` to it: without topoext QEMU hides the threads.
qm set "$vmid" --args '-smp 6,sockets=1,cores=3,threads=2,maxcpus=6'
# The plan excludes other tasks from 1-3,5-7; qm cannot. `pinfold apply` on the
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
vcpus=6

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
    # emulator: the emulator runs on the CPUs 0,4 of core 0 with the host's tasks: every other thread of the used cores has a vCPU
    pin_all 0,4 || return 1
    # vcpu(0): CPU 1 belongs to a core reserved for vCPUs (core 1, L3 0, node 0, package 0), like all cores outside the host's; its sibling, CPU 5, has a vCPU too
    pin_one 'CPU 0/' 1 || return 1
    # vcpu(1): CPU 5 belongs to a core reserved for vCPUs (core 1, L3 0, node 0, package 0), like all cores outside the host's; its sibling, CPU 1, has a vCPU too
    pin_one 'CPU 1/' 5 || return 1
    # vcpu(2): CPU 2 belongs to a core reserved for vCPUs (core 2, L3 0, node 0, package 0), like all cores outside the host's; its sibling, CPU 6, has a vCPU too
    pin_one 'CPU 2/' 2 || return 1
    # vcpu(3): CPU 6 belongs to a core reserved for vCPUs (core 2, L3 0, node 0, package 0), like all cores outside the host's; its sibling, CPU 2, has a vCPU too
    pin_one 'CPU 3/' 6 || return 1
    # vcpu(4): CPU 3 belongs to a core reserved for vCPUs (core 3, L3 0, node 0, package 0), like all cores outside the host's; its sibling, CPU 7, has a vCPU too
    pin_one 'CPU 4/' 3 || return 1
    # vcpu(5): CPU 7 belongs to a core reserved for vCPUs (core 3, L3 0, node 0, package 0), like all cores outside the host's; its sibling, CPU 3, has a vCPU too
    pin_one 'CPU 5/' 7 || return 1
}

[ "$(count_vcpus)" -eq "$vcpus" ] || {
    echo "$0: the machine does not have $vcpus vCPUs" >&2
    exit 1
}
pin_by_taskset
END_OF_HOOK
chmod +x /var/lib/vz/snippets/pinfold-win_10__x_.sh
qm set "$vmid" --hookscript local:snippets/pinfold-win_10__x_.sh
