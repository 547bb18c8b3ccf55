#!/bin/sh
# Starts QEMU with each thread on the CPUs of a Pinfold plan; stopped first, pinned, then let go.
# Runs with pinfold in the PATH, or without it by taskset (util-linux). Needs Linux.
# Further arguments of this script are added to QEMU's.
# low-latency for win-10 'x': 2 vCPUs, 0→1, 1→2
# Other tasks are excluded from 1-2,5-6 only if pinfold is installed (isolation scope host).
# Tunables, set only if pinfold is installed: irq:0000:81:00.0=0,4, new-irqs=0,4, workqueues=0,4, writeback=0,4, watchdog-cpus=0,4, timer-migration=off, stat-interval=10, numa-balancing=off, llc-balancing=off, thp=never, khugepaged-defrag=off, ksm=unmerge, halt-poll-ns=400000, wake-up-us=20, rt-throttle=off, governor=performance, max-khz=4400000, min-khz=4000000, huge-pages=0:2048:512, huge-pages=0:1048576:4, share=L3:0=ff0, share=MB:0=50, cpu-weight=200, cpu-quota=150000/100000, partition=isolated, smt=on, offline=7, required=yes


vcpus=2
isolates=yes
stays_stopped=no
tunables='irq:0000:81:00.0=0,4, new-irqs=0,4, workqueues=0,4, writeback=0,4, watchdog-cpus=0,4, timer-migration=off, stat-interval=10, numa-balancing=off, llc-balancing=off, thp=never, khugepaged-defrag=off, ksm=unmerge, halt-poll-ns=400000, wake-up-us=20, rt-throttle=off, governor=performance, max-khz=4400000, min-khz=4000000, huge-pages=0:2048:512, huge-pages=0:1048576:4, share=L3:0=ff0, share=MB:0=50, cpu-weight=200, cpu-quota=150000/100000, partition=isolated, smt=on, offline=7, required=yes'

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
  "strategy": "low-latency",
  "fingerprint": "test-0-7",
  "vnodes": [
    {
      "name": "win-10 'x'",
      "kind": "virtual-machine",
      "threads": [
        {
          "role": "vcpu(0)",
          "pus": "1",
          "policy": {
            "fifo": {
              "priority": 1
            }
          },
          "reason": "CPU 1 is the first of its core (core 1, L3 0, node 0, package 0), chosen because it is near the cores of the other vCPUs; its sibling 5 goes to the emulator, not to a vCPU; core 0 is the host's"
        },
        {
          "role": "vcpu(1)",
          "pus": "2",
          "policy": {
            "fifo": {
              "priority": 1
            }
          },
          "reason": "CPU 2 is the first of its core (core 2, L3 0, node 0, package 0), chosen because it is near the cores of the other vCPUs; its sibling 6 goes to the emulator, not to a vCPU; core 0 is the host's"
        },
        {
          "role": "emulator",
          "pus": "5-6",
          "policy": null,
          "reason": "the emulator runs on the CPUs 5-6, the siblings of the vCPUs' CPUs: near their caches, never on a vCPU's CPU, and not on the host's core 0"
        }
      ],
      "guest": {
        "sockets": 1,
        "cores": 2,
        "threads": 1,
        "reason": "no SMT is shown, because each vCPU has a core of its own; one socket, because all vCPUs are in package 0"
      },
      "memory": null,
      "speed_ppm": 1000000
    }
  ],
  "housekeeping_pus": "0,3-4,7",
  "housekeeping_reason": "the host keeps core 0, because it holds CPU 0, on which the kernel boots, and 3,7, which no role of the plan needs",
  "exclusive_pus": "1-2,5-6",
  "isolation": "host",
  "irqs": [
    {
      "device": "0000:81:00.0",
      "pus": "0,4",
      "reason": "requested on the command line"
    }
  ],
  "tuning": {
    "new_irqs_pus": "0,4",
    "workqueues_pus": "0,4",
    "writeback_pus": "0,4",
    "watchdog_pus": "0,4",
    "timer_migration": false,
    "stat_interval_s": 10,
    "numa_balancing": false,
    "llc_balancing": false,
    "transparent_huge_pages": "never",
    "khugepaged_defrag": false,
    "same_page_merging": "unmerge",
    "halt_poll_ns": 400000,
    "wake_up_us": 20,
    "real_time_throttle": false,
    "governor": "performance",
    "max_khz": 4400000,
    "min_khz": 4000000,
    "huge_pages": [
      {
        "node": 0,
        "page_bytes": 2097152,
        "pages": 512
      },
      {
        "node": 0,
        "page_bytes": 1073741824,
        "pages": 4
      }
    ],
    "shares": [
      "L3:0=ff0",
      "MB:0=50"
    ],
    "cpu_weight": 200,
    "cpu_quota": {
      "quota_us": 150000,
      "period_us": 100000
    },
    "partition": "isolated",
    "smt": true,
    "offline_pus": "7",
    "required": true
  },
  "cpus": {
    "online": "0-7",
    "nohz_full": "",
    "cores": [
      "1,5",
      "2,6"
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
    # emulator: the emulator runs on the CPUs 5-6, the siblings of the vCPUs' CPUs: near their caches, never on a vCPU's CPU, and not on the host's core 0
    pin_all 5-6 || return 1
    # vcpu(0): CPU 1 is the first of its core (core 1, L3 0, node 0, package 0), chosen because it is near the cores of the other vCPUs; its sibling 5 goes to the emulator, not to a vCPU; core 0 is the host's
    pin_one 'CPU 0/' 1 || return 1
    # vcpu(1): CPU 2 is the first of its core (core 2, L3 0, node 0, package 0), chosen because it is near the cores of the other vCPUs; its sibling 6 goes to the emulator, not to a vCPU; core 0 is the host's
    pin_one 'CPU 1/' 2 || return 1
    schedule 'CPU 0/' -f -p 1 || return 1
    schedule 'CPU 1/' -f -p 1 || return 1
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
    -smp 2,sockets=1,cores=2,threads=1 \
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
