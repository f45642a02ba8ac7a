#!/bin/sh
# Installs liblamella: headers, the static and the shared library, and a file for pkg-config.
#
#     crates/ffi/install.sh PREFIX [LIBRARIES]
#
# LIBRARIES is a directory with liblamella.a and liblamella.so; without it they are built. DESTDIR,
# if it is set, goes before PREFIX where files are written, for packages.
set -eu

if [ $# -lt 1 ] || [ $# -gt 2 ]; then
    echo "usage: install.sh PREFIX [LIBRARIES]" >&2
    exit 2
fi
case $1 in
    /*) prefix=$1 ;;
    *) prefix=$(pwd)/$1 ;;
esac
here=$(cd "$(dirname "$0")" && pwd)
if [ $# -eq 2 ]; then
    libraries=$(cd "$2" && pwd)
else
    target=${CARGO_TARGET_DIR:-$here/../../target}
    (cd "$here" && CARGO_TARGET_DIR=$target cargo build --release -p lamella-ffi)
    libraries=$target/release
fi
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$here/../../Cargo.toml" | head -n 1)
if [ -z "$version" ]; then
    echo "install.sh: Cargo.toml names no version" >&2
    exit 1
fi
if [ ! -f "$libraries/liblamella.a" ]; then
    echo "install.sh: there is no liblamella.a in $libraries" >&2
    exit 1
fi

root=${DESTDIR:-}$prefix
mkdir -p "$root/include" "$root/lib/pkgconfig"
for header in segment_runtime edge_runtime segment_adapters edge_adapters lamella; do
    cp "$here/include/$header.h" "$root/include/"
done
cp "$libraries/liblamella.a" "$root/lib/"
if [ -f "$libraries/liblamella.dylib" ]; then
    cp "$libraries/liblamella.dylib" "$root/lib/"
else
    # Not over a library that runs: programs that use it keep theirs.
    rm -f "$root/lib/liblamella.so.$version"
    cp "$libraries/liblamella.so" "$root/lib/liblamella.so.$version"
    ln -sf "liblamella.so.$version" "$root/lib/liblamella.so.0"
    ln -sf liblamella.so.0 "$root/lib/liblamella.so"
fi
escaped=$(printf '%s\n' "$prefix" | sed 's/[&|\\]/\\&/g')
sed -e "s|@PREFIX@|$escaped|" -e "s|@VERSION@|$version|" "$here/lamella.pc.in" \
    > "$root/lib/pkgconfig/lamella.pc"
echo "installed liblamella $version in $root"
