
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
