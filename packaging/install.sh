#!/bin/sh
# Installs Pinfold, from an unpacked archive or from a checkout after `cargo build --release`.
#
# Variables:
#   PREFIX=/usr/local   where to
#   DESTDIR=            the root of the file system, for packages
#   BINARY=FILE         the program, which also writes its man pages and completions
#   UNINSTALLER=no      without uninstall.sh and its list: a package manager has its own
set -eu
umask 022

here=$(dirname "$(readlink -f "$0")")
top=$(dirname "$here")
destdir=${DESTDIR:-}
prefix=${PREFIX:-/usr/local}
binary=${BINARY:-$top/bin/pinfold}
[ -x "$binary" ] || binary=$top/target/release/pinfold
[ -x "$binary" ] || { echo "there is no program; build it with: cargo build --release" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Makes a folder; new folders are in the list of the uninstaller.
folder() {
    [ ! -d "$destdir$1" ] || return 0
    folder "$(dirname "$1")"
    mkdir "$destdir$1"
    echo "$1" >> "$work/installed"
}

# put FILE FOLDER [NAME]: installs a file below the prefix.
put() {
    target=$prefix/$2/${3:-$(basename "$1")}
    mode=644
    [ ! -x "$1" ] || mode=755
    folder "$prefix/$2"
    # A program that runs cannot be overwritten.
    rm -f "$destdir$target"
    case $1 in
        # These run the program by its path.
        *.service | */libvirt/qemu | */scripts/*)
            sed "s|/usr/bin/pinfold|$prefix/bin/pinfold|g" "$1" > "$destdir$target" ;;
        *) cp "$1" "$destdir$target" ;;
    esac
    chmod $mode "$destdir$target"
    echo "$target" >> "$work/installed"
}

# An earlier version may have installed files that this one does not have.
if [ -e "$destdir$prefix/share/pinfold/installed" ]; then
    DESTDIR=$destdir PREFIX=$prefix sh "$here/uninstall.sh" --files
fi
mkdir -p "$destdir/"

put "$binary" bin pinfold
"$binary" man "$work/man"
for page in "$work"/man/*.1; do put "$page" share/man/man1; done
for shell in bash zsh fish; do "$binary" completions $shell > "$work/$shell"; done
put "$work/bash" share/bash-completion/completions pinfold
put "$work/fish" share/fish/vendor_completions.d pinfold.fish
# Debian's zsh reads only the second.
put "$work/zsh" share/zsh/site-functions _pinfold
put "$work/zsh" share/zsh/vendor-completions _pinfold

grep -v '^#' "$here/files" | while read -r pattern below; do
    # Without quotes: it may be a pattern.
    for source in "$top"/$pattern; do
        if [ -d "$source" ]; then
            find "$source" -type f | sort | while read -r file; do
                put "$file" "$below/$(dirname "${file#"$top/"}")"
            done
        else
            put "$source" "$below"
        fi
    done
done

[ "${UNINSTALLER:-yes}" = yes ] || exit 0
put "$here/uninstall.sh" share/pinfold
put "$here/scripts/prerm" share/pinfold
put "$here/scripts/postrm" share/pinfold
echo "$prefix/share/pinfold/installed" >> "$work/installed"
cp "$work/installed" "$destdir$prefix/share/pinfold/installed"
if [ -z "$destdir" ]; then
    sh "$here/scripts/postinst"
fi
echo "Pinfold is installed in $destdir$prefix; to remove it:"
echo "  PREFIX=$prefix sh $prefix/share/pinfold/uninstall.sh"
