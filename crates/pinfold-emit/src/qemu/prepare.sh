
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
