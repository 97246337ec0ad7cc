#!/bin/sh
# Installs what `cargo build --release` built, for programs in any language: the shared and the static library, the headers,
# and what pkg-config, CMake and Swift look for. Linux; needs binutils.
#
#     [PREFIX=/usr/local] [LIBDIR=$PREFIX/lib] [DESTDIR=] [KEEP_DEBUG=] include/install.sh
#
# The headers get a directory of their own, because a module map can have but one name. DESTDIR stages a package: it is put
# before every path and stands in none of the files, which find each other by relative paths, so that the tree can be moved.
# KEEP_DEBUG=1 keeps the line tables of the shared library.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
prefix=${PREFIX:-/usr/local}
libdir=${LIBDIR:-$prefix/lib}
built=${CARGO_TARGET_DIR:-$here/../target}/release
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$here/../Cargo.toml")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

for library in librie.so librie.a; do
    [ -f "$built/$library" ] || { echo "install.sh: $built/$library is not there: run cargo build --release" >&2; exit 1; }
done

# The archive as one object whose only global names are those of the header: what else is in it, Rust's standard library
# before all, cannot collide with another Rust library in the same program. What nothing needs stays out, with rustc's
# bitcode and line tables nine tenths of it; names that ld leaves of it undefined would ask for functions of newer systems.
header_names=$(sed -n 's/^[a-z].*[ *]\(rie_[a-z_]*\)(.*/\1/p' "$here/rie.h" | sed 's/^/-u /')
# shellcheck disable=SC2086 # one argument for each word
ld -r --gc-sections --force-group-allocation $header_names "$built/librie.a" -o "$work/all.o"
objcopy --wildcard --keep-global-symbol='rie_*' --strip-unneeded \
    --remove-section=.llvmbc --remove-section=.llvmcmd "$work/all.o" "$work/rie.o"
ar rcsD "$work/librie.a" "$work/rie.o"
cp "$built/librie.so" "$work/librie.so"
[ -n "${KEEP_DEBUG:-}" ] || strip --strip-unneeded "$work/librie.so"

# Writes a template with its @NAMES@ filled in to a directory of the installation.
fill() {
    up=$(realpath -ms --relative-to="$2" "$prefix")
    lib=$(realpath -ms --relative-to="$prefix" "$libdir")
    mkdir -p "$DESTDIR$2"
    sed -e "s|@VERSION@|$version|; s|@PREFIX@|$up|; s|@LIBDIR@|$lib|" "$here/$1.in" >"$DESTDIR$2/$1"
    chmod 644 "$DESTDIR$2/$1"
}

DESTDIR=${DESTDIR:-}
install -d "$DESTDIR$libdir" "$DESTDIR$prefix/include/rie"
install -m 755 "$work/librie.so" "$DESTDIR$libdir/librie.so.$version"
ln -sf "librie.so.$version" "$DESTDIR$libdir/librie.so.0"
ln -sf librie.so.0 "$DESTDIR$libdir/librie.so"
install -m 644 "$work/librie.a" "$DESTDIR$libdir/librie.a"
install -m 644 "$here/rie.h" "$here/rie.hpp" "$here/module.modulemap" "$DESTDIR$prefix/include/rie"
fill rie.pc "$libdir/pkgconfig"
fill rieConfig.cmake "$libdir/cmake/rie"
fill rieConfigVersion.cmake "$libdir/cmake/rie"
