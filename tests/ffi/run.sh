#!/usr/bin/env bash
# Every language makes the same tour of the library (c/tour.c) and must print the same as C; packages install and link.
set -euo pipefail
cd "$(dirname "$0")/../.."
# shellcheck source=tests/tools.sh
. tests/tools.sh
need cc:gcc g++:g++ clang++:clang make:make readelf:binutils pkg-config:pkg-config cmake:cmake go:golang mcs:mono-mcs \
    mono:mono-runtime node:nodejs npm:npm python3:python3 xz:xz-utils

model="$PWD/tests/golden/tiny_model/model"
target=${CARGO_TARGET_DIR:-$PWD/target}
work="$target/ffi"
here="$PWD/tests/ffi"
rm -rf "$work/run"
mkdir -p "$work/run"
expected="$work/run/expected"

# A program that hangs is one that cancellation does not reach.
tour() { # NAME PROGRAM...
    local name=$1
    shift
    timeout 120 "$@" "$model" >"$work/run/printed" || { echo "$name: status $?"; exit 1; }
    diff "$work/run/printed" "$expected" || { echo "$name: prints something else than C"; exit 1; }
    echo "$name: ok"
}

cargo build --quiet --release
PREFIX="$work/run/prefix" include/install.sh
export PKG_CONFIG_PATH="$work/run/prefix/lib/pkgconfig" LD_LIBRARY_PATH="$work/run/prefix/lib"
read -ra flags <<<"$(pkg-config --cflags --libs rie)"
warnings=(-Wall -Wextra -Wpedantic -Werror -pthread)

# The reference: the C program, and its text that of examples-c/generate.
cc -std=c11 "${warnings[@]}" -D_POSIX_C_SOURCE=200809L "$here/c/tour.c" -o "$work/run/c" "${flags[@]}"
timeout 120 "$work/run/c" "$model" >"$expected"
make --quiet --no-print-directory -C examples-c TARGET="$target/release" generate
examples-c/generate --model "$model" --prompt "Rust is a systems programming language that" -n 32 >"$work/run/text"
diff <(sed -n '/^text:/,/^before:/p' "$expected" | sed '$d' | sed '1s/^text://') "$work/run/text"
grep -q '^interrupted: RIE_ERR_CANCELLED$' "$expected"
echo "C: ok"

for cxx in g++ clang++ "g++ -fsanitize=address,undefined"; do
    # shellcheck disable=SC2086 # a compiler and its option
    $cxx -std=c++17 "${warnings[@]}" "$here/cpp/tour.cpp" -o "$work/run/cpp" "${flags[@]}"
    tour "C++, $cxx" "$work/run/cpp"
    # shellcheck disable=SC2086 # as above
    $cxx -std=c++17 "${warnings[@]}" "$here/cpp/sources.cpp" -o "$work/run/cpp-sources" "${flags[@]}"
    timeout 120 "$work/run/cpp-sources" "$model"
done

export GOCACHE="$work/gocache" GOFLAGS=-mod=mod GOTOOLCHAIN=local
(cd "$here/go" && go vet ./... && go build -race -o "$work/run/go" ./tour && RIE_MODEL=$model go test -race -count=1 .)
tour "Go, race detector" "$work/run/go"

mcs -warnaserror -out:"$work/run/tour.exe" "$here"/csharp/*.cs
tour "C#, mono" mono "$work/run/tour.exe"

# .NET's own runtime, and a grammar of Swift.
[ -d "$work/venv" ] || python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check -r "$here/requirements.txt"
dotnet=$(echo "$work"/venv/lib/python3*/site-packages/dotnetcore2/bin/dotnet)
cat >"$work/run/tour.runtimeconfig.json" <<'END'
{"runtimeOptions": {"framework": {"name": "Microsoft.NETCore.App", "version": "3.1.0"},
                    "configProperties": {"System.Globalization.Invariant": true}}}
END
chmod +x "$dotnet"
tour "C#, .NET Core" "$dotnet" exec --runtimeconfig "$work/run/tour.runtimeconfig.json" "$work/run/tour.exe"

PYTHONDONTWRITEBYTECODE=1 tour "Python" python3 "$here/python/tour.py"

mkdir -p "$work/node"
cp "$here/node/package.json" "$work/node"
npm install --prefix "$work/node" --silent --no-audit --no-fund
NODE_PATH="$work/node/node_modules" tour "Node" node "$here/node/tour.js"

clang -fmodules -fmodules-cache-path="$work/run/modules" -x objective-c "${warnings[@]}" -I"$work/run/prefix/include/rie" \
    -c "$here/swift/import.m" -o "$work/run/import.o"
if command -v swiftc >/dev/null; then
    swiftc "$here"/swift/*.swift -o "$work/run/swift" "${flags[@]}"
    tour "Swift" "$work/run/swift"
else
    "$work/venv/bin/python" "$here/swift/parse.py" "$here"/swift/*.swift
    echo "Swift: clang imports the module, the sources parse; they were not compiled, there is no swiftc"
fi

mkdir "$work/run/readme" "$work/run/packaging"
tests/ffi/readme.sh "$work/run/readme" "$model" "$work/run/text"
tests/ffi/packaging/run.sh "$work/run/packaging" "$model" "$expected"
