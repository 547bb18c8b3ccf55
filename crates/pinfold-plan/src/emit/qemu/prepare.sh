
dir=$(mktemp -d "${XDG_RUNTIME_DIR:-/tmp}/pinfold.XXXXXX") || exit 1
reader=
trap 'rm -rf "$dir"; [ -z "$reader" ] || kill "$reader" 2>/dev/null' EXIT
mkfifo "$dir/qmp.in" "$dir/qmp.out" || exit 1
