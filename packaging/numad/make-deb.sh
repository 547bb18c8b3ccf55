#!/bin/sh
# Makes the package pinfold-numad, which only has the link /usr/bin/numad to pinfold:
#   sh make-deb.sh FOLDER
# Prints the path of the .deb in FOLDER. Needs dpkg-deb.
set -eu
umask 022

here=$(dirname "$(readlink -f "$0")")
top=$(dirname "$(dirname "$here")")
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$top/Cargo.toml" | head -n 1)
[ -n "$version" ] || { echo "Cargo.toml has no version" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

mkdir -p "$work/DEBIAN" "$work/usr/bin" "$work/usr/share/doc/pinfold-numad"
sed "s/VERSION/$version/" "$here/control" > "$work/DEBIAN/control"
ln -s pinfold "$work/usr/bin/numad"
cp "$top/LICENSE-APACHE" "$work/usr/share/doc/pinfold-numad/copyright"
chmod 755 "$work"
deb=$1/pinfold-numad_${version}_all.deb
dpkg-deb --root-owner-group --build "$work" "$deb" > /dev/null
echo "$deb"
