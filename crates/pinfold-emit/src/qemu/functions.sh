
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
