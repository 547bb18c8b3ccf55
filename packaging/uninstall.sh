#!/bin/sh
# Reverts what Pinfold changed on this host, and removes what install.sh installed.
#
#   uninstall.sh [--purge | --files]
#   --purge: also the state, the cache and the plans of the libvirt hook
#   --files: only the installed files; with DESTDIR this is the default
#
# Variables: DESTDIR and PREFIX, as for install.sh.
set -eu

destdir=${DESTDIR:-}
prefix=${PREFIX:-/usr/local}
own=$destdir$prefix/share/pinfold
[ -e "$own/installed" ] || { echo "there is no $own/installed; set PREFIX" >&2; exit 1; }
case ${1:-} in
    '') what=remove ;;
    --purge) what=purge ;;
    --files) what=files ;;
    *) echo "uninstall.sh takes --purge or --files, not $1" >&2; exit 2 ;;
esac
[ -z "$destdir" ] || what=files

# This folder is removed too.
after=$(cat "$own/postrm")
[ $what = files ] || sh "$own/prerm" remove
# Files before their folders; folders with other files stay.
sort -r "$own/installed" | while read -r path; do
    if [ -d "$destdir$path" ]; then
        rmdir --ignore-fail-on-non-empty "$destdir$path"
    else
        rm -f "$destdir$path"
    fi
done
[ $what = files ] || sh -c "$after" postrm $what
