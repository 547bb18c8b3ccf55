# CPU COUNT NOTES COMMAND…: runs it so often, on that CPU if one is named, and notes what it printed.
pu=$1 count=$2 notes=$3
shift 3
if [ -n "$pu" ]; then
    set -- taskset -c "$pu" "$@"
fi
while [ "$count" -gt 0 ]; do
    said=$("$@") || exit 1
    printf '%s\n' "$said" >> "$notes"
    count=$((count - 1))
done
