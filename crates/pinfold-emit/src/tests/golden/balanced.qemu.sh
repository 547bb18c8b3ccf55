#!/bin/sh
# Starts QEMU with each thread on the CPUs of a Pinfold plan; stopped first, pinned, then let go.
# Runs with pinfold in the PATH, or without it by taskset (util-linux). Needs Linux.
# Further arguments of this script are added to QEMU's.
# balanced for win-10 'x': 6 vCPUs, 0→1, 1→5, 2→2, 3→6, 4→3, 5→7
# Other tasks are excluded from 1-3,5-7 only if pinfold is installed (isolation scope host).


vcpus=6
isolates=yes
stays_stopped=no
tunables=''

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

# The plan, for `pinfold apply`.
write_plan() {
cat <<'END_OF_PLAN'
{
  "format": "pinfold-plan/1",
  "strategy": "balanced",
  "fingerprint": "test-0-7",
  "vnodes": [
    {
      "name": "win-10 'x'",
      "kind": "virtual-machine",
      "threads": [
        {
          "role": "vcpu(0)",
          "pus": "1",
          "policy": null,
          "reason": "CPU 1 belongs to a core reserved for vCPUs (core 1, L3 0, node 0, package 0), like all cores outside the host's; its sibling, CPU 5, has a vCPU too"
        },
        {
          "role": "vcpu(1)",
          "pus": "5",
          "policy": null,
          "reason": "CPU 5 belongs to a core reserved for vCPUs (core 1, L3 0, node 0, package 0), like all cores outside the host's; its sibling, CPU 1, has a vCPU too"
        },
        {
          "role": "vcpu(2)",
          "pus": "2",
          "policy": null,
          "reason": "CPU 2 belongs to a core reserved for vCPUs (core 2, L3 0, node 0, package 0), like all cores outside the host's; its sibling, CPU 6, has a vCPU too"
        },
        {
          "role": "vcpu(3)",
          "pus": "6",
          "policy": null,
          "reason": "CPU 6 belongs to a core reserved for vCPUs (core 2, L3 0, node 0, package 0), like all cores outside the host's; its sibling, CPU 2, has a vCPU too"
        },
        {
          "role": "vcpu(4)",
          "pus": "3",
          "policy": null,
          "reason": "CPU 3 belongs to a core reserved for vCPUs (core 3, L3 0, node 0, package 0), like all cores outside the host's; its sibling, CPU 7, has a vCPU too"
        },
        {
          "role": "vcpu(5)",
          "pus": "7",
          "policy": null,
          "reason": "CPU 7 belongs to a core reserved for vCPUs (core 3, L3 0, node 0, package 0), like all cores outside the host's; its sibling, CPU 3, has a vCPU too"
        },
        {
          "role": "emulator",
          "pus": "0,4",
          "policy": null,
          "reason": "the emulator runs on the CPUs 0,4 of core 0 with the host's tasks: every other thread of the used cores has a vCPU"
        },
        {
          "role": "iothread(iothread1)",
          "pus": "0,4",
          "policy": null,
          "reason": "iothread iothread1 runs on the emulator's CPUs, the CPUs 0,4, so that its I/O does not use a vCPU's CPU"
        }
      ],
      "guest": {
        "sockets": 1,
        "cores": 3,
        "threads": 2,
        "reason": "vCPUs on siblings are shown as threads of one core; one socket, because all vCPUs are in package 0"
      },
      "memory": null,
      "speed_ppm": 1000000
    }
  ],
  "housekeeping_pus": "0,4",
  "housekeeping_reason": "the host keeps core 0, because it holds CPU 0, on which the kernel boots",
  "exclusive_pus": "1-3,5-7",
  "isolation": "host",
  "irqs": [],
  "cpus": {
    "online": "0-7",
    "nohz_full": "",
    "cores": [
      "0,4",
      "1,5",
      "2,6",
      "3,7"
    ],
    "l3": [
      {
        "cpus": "0-7",
        "size_bytes": 8388608
      }
    ],
    "nodes": [
      {
        "node": 0,
        "cpus": "0-7"
      }
    ]
  },
  "findings": []
}
END_OF_PLAN
}

# The same pins without Pinfold: all threads as the emulator, then those with a name.
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
    # iothread(iothread1): iothread iothread1 runs on the emulator's CPUs, the CPUs 0,4, so that its I/O does not use a vCPU's CPU
    pin_one 'IO iothread1' 0,4 || return 1
}

dir=$(mktemp -d "${XDG_RUNTIME_DIR:-/tmp}/pinfold.XXXXXX") || exit 1
reader=
trap 'rm -rf "$dir"; [ -z "$reader" ] || kill "$reader" 2>/dev/null' EXIT
mkfifo "$dir/qmp.in" "$dir/qmp.out" || exit 1

fail() {
    echo "$0: $1; QEMU is ended before its guest has run" >&2
    kill -KILL "$qemu" "$child" 2>/dev/null
    exit 1
}

alive() {
    state=$(sed -n 's/^State:[[:space:]]*\(.\).*/\1/p' "/proc/$1/status" 2>/dev/null)
    [ -n "$state" ] && [ "$state" != Z ]
}

descendants() {
    for below in $(cat "/proc/$1/task/"*/children 2>/dev/null); do
        echo "$below"
        descendants "$below"
    done
}

# Sets qemu to the process that has the vCPU threads: what was started, or a descendant of it
# (sudo, a script).
find_qemu() {
    for process in "$child" $(descendants "$child"); do
        qemu=$process
        [ -z "$(threads_named 'CPU 0/')$(threads_named 'ALL CPUs/')" ] || return 0
    done
    qemu=$child
}

# The command. What follows its own options is what pinning needs.
set -- "$@" \
    -smp 6,sockets=1,cores=3,threads=2 \
    -name debug-threads=on -S \
    -qmp "unix:$dir/qmp.sock,server=on,wait=off" -qmp "pipe:$dir/qmp"

# In the background, with this script's own input (sh would give it /dev/null).
exec 3<&0
"$@" <&3 3<&- &
child=$!
qemu=$child
exec 3<&-
trap 'kill -TERM "$qemu" 2>/dev/null || kill -TERM "$child" 2>/dev/null' INT TERM HUP

# Memory that is preallocated can keep QEMU busy for minutes before it makes its vCPU threads.
tries=0
until find_qemu && [ "$(count_vcpus)" -eq "$vcpus" ]; do
    alive "$child" || { wait "$child"; exit $?; }
    [ -z "$(threads_named 'ALL CPUs/')" ] ||
        fail "TCG with thread=single runs all vCPUs in one thread, use -accel tcg,thread=multi"
    tries=$((tries + 1))
    [ "$tries" -le 6000 ] || fail "$vcpus vCPU threads did not appear within 10 minutes"
    sleep 0.1
done

if command -v pinfold >/dev/null 2>&1; then
    write_plan >"$dir/plan.json"
    pinfold apply --qmp "$dir/qmp.sock" --plan "$dir/plan.json" || fail "pinfold did not pin it"
else
    [ -z "$tunables" ] || echo "$0: without pinfold these tunables are not set: $tunables" >&2
    [ "$isolates" = no ] || echo "$0: without pinfold other tasks are not excluded" >&2
    pin_by_taskset || fail "taskset did not pin it"
fi

# Its answers are read, or its events would fill the FIFO; an error among them is shown.
sed -n '/^{"error"/p' "$dir/qmp.out" >&2 &
reader=$!
if [ "$stays_stopped" = no ]; then
    # Opened for reading too (<>): that does not block if QEMU has just ended.
    printf '%s\n' '{"execute":"qmp_capabilities"}' '{"execute":"cont"}' 1<>"$dir/qmp.in"
fi

# A signal ends the wait, but not QEMU at once.
wait "$child"
status=$?
while alive "$child"; do
    wait "$child"
    status=$?
done
if [ "$isolates" = yes ] && command -v pinfold >/dev/null 2>&1; then
    echo "$0: QEMU has ended; \`pinfold undo\` gives the host its CPUs back" >&2
fi
exit "$status"
