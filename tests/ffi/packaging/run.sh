#!/usr/bin/env bash
# Installs the library as a distribution would and builds programs against it from outside. tests/ffi/run.sh calls it with
# an empty directory, the model and what the tour prints.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$1 model=$2 expected=$3
fail() { echo "packaging: $*" >&2; exit 1; }

# Staged, in a library directory like Debian's: everything must find everything else below the stage.
libdir=/usr/lib/$(cc -print-multiarch)
PREFIX=/usr LIBDIR="$libdir" DESTDIR="$work/stage" "$here/../../../include/install.sh"
lib="$work/stage$libdir"
export PKG_CONFIG_PATH="$lib/pkgconfig"
unset LD_LIBRARY_PATH
cflags=(-std=c11 -Wall -Wextra -Werror -D_POSIX_C_SOURCE=200809L -pthread)

tour() { # NAME PROGRAM...
    local name=$1
    shift
    "$@" "$model" | diff - "$expected" || fail "$name: the tour is another"
    echo "$name: ok"
}

shared() { readelf -d "$1" | grep -q 'NEEDED.*\[librie.so.0\]'; }

# pkg-config's words are words of the command line.
# shellcheck disable=SC2046
cc "${cflags[@]}" "$here/../c/tour.c" -o "$work/shared" $(pkg-config --cflags --libs rie)
shared "$work/shared" || fail "the program does not need librie.so.0"
tour "pkg-config, shared" env LD_LIBRARY_PATH="$lib" "$work/shared"
# shellcheck disable=SC2046
cc "${cflags[@]}" -static "$here/../c/tour.c" -o "$work/static" $(pkg-config --static --cflags --libs rie) 2>"$work/warnings"
tour "pkg-config, static" "$work/static"

cmake -S "$here" -B "$work/cmake" -DCMAKE_PREFIX_PATH="$work/stage/usr" >"$work/cmake.log"
cmake --build "$work/cmake" >>"$work/cmake.log"
shared "$work/cmake/tour_rie" || fail "rie::rie is not the shared library"
! shared "$work/cmake/tour_rie_static" || fail "rie::rie_static is not the archive"
tour "CMake, shared" "$work/cmake/tour_rie"
tour "CMake, static" "$work/cmake/tour_rie_static"

# Two Rust libraries in one program.
names=$(nm --defined-only --extern-only --format=posix "$lib/librie.a" | awk 'NF > 1 { print $1 }' | LC_ALL=C sort)
diff <(echo "$names") "$here/../../abi/symbols.txt" || fail "librie.a has other global names than the ABI"
rustc --edition 2024 -O --crate-type staticlib "$here/other.rs" -o "$work/libother.a"
cc "${cflags[@]}" "$here/both.c" -o "$work/both" -I"$work/stage/usr/include/rie" "$lib/librie.a" "$work/libother.a" -lm -ldl
"$work/both" "$model" || fail "two Rust libraries in one program: $?"
echo "beside another Rust library: ok"

# The archive of a release, unpacked elsewhere; its SBOM names each crate that cargo says is linked in.
archive=$("$here/../../../.ci/release" "$work")
tar -C "$work" -xf "$archive"
unpacked=${archive%.tar.xz}
export PKG_CONFIG_PATH="$unpacked/lib/pkgconfig"
# shellcheck disable=SC2046
cc "${cflags[@]}" "$here/../c/tour.c" -o "$work/release" $(pkg-config --cflags --libs rie)
tour "release archive" env LD_LIBRARY_PATH="$unpacked/lib" "$work/release"
crates=$(cargo tree --locked --edges normal,no-proc-macro --prefix none | awk '{ print $1, substr($2, 2) }' | sort -u)
while read -r crate version; do
    grep -A1 "\"name\": \"$crate\"" "$unpacked/rie.spdx.json" | grep -q "\"$version\"" || fail "the SBOM lacks $crate $version"
    [ "$crate" = rie ] || grep -q "^$crate $version (" "$unpacked/THIRD-PARTY-LICENSES.txt" || fail "no licence of $crate"
done <<<"$crates"
echo "SBOM and licences: ok"

# What the shared library asks of a machine.
needed=$(readelf -d "$lib/librie.so" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
others=$(grep -vxE 'libc\.so\.6|libm\.so\.6|libgcc_s\.so\.1|ld-linux-.*' <<<"$needed" || true)
[ -n "$needed" ] && [ -z "$others" ] || fail "librie.so needs ${others:-nothing at all}"
glibc=$(readelf -V "$lib/librie.so" | grep -oE 'GLIBC_[0-9.]+' | sort -Vu | tail -1)
grep -q "glibc ${glibc#GLIBC_} or newer" "$here/../../../README.md" || fail "$glibc is needed; README.md says otherwise"
echo "librie.so: needs ${needed//$'\n'/, } and $glibc; $(stat -Lc %s "$lib/librie.so") bytes, librie.a $(stat -c %s "$lib/librie.a")"
