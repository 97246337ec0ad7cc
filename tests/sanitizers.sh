#!/usr/bin/env bash
# AddressSanitizer and LeakSanitizer over the library, and with UndefinedBehaviorSanitizer over the C programs: those of tests/c and
# the examples. Instrumented are this crate's code, which has all of its `unsafe`, and what is inlined into it; every block that
# the others allocate is watched as well.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tests/tools.sh
. tests/tools.sh
need gcc:gcc

target=${CARGO_TARGET_DIR:-$PWD/target}
programs=$target/sanitized
# The flag is unstable, and the compiler is the stable one. In the directory and with the profile of the tests, so that the
# dependencies, which are not instrumented, are there already.
RUSTC_BOOTSTRAP=1 cargo rustc --quiet --lib --crate-type cdylib -- -Zsanitizer=address -Cdebuginfo=line-tables-only
rm -rf "$programs"
mkdir -p "$programs"
mv "$target/debug/librie.so" "$programs/librie.so"
ln -s librie.so "$programs/librie.so.0"

# Sizes that no machine has are refused, as by malloc.
export ASAN_OPTIONS=allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1

# Compiles and runs: NAME SOURCES... -- ARGUMENTS...
sanitized() {
    local name=$1 sources=()
    shift
    while [ "$1" != -- ]; do
        sources+=("$1")
        shift
    done
    shift
    gcc -std=c11 -Wall -Wextra -Wpedantic -Werror -O1 -g -D_POSIX_C_SOURCE=200809L -Iinclude \
        -fsanitize=address,undefined -fno-sanitize-recover=undefined \
        "${sources[@]}" -o "$programs/$name" -L"$programs" -lrie -lpthread -lm -ldl "-Wl,-rpath,$programs"
    timeout 300 "$programs/$name" "$@" >"$programs/$name.out" 2>&1 || {
        echo "$name: status $?"
        cat "$programs/$name.out"
        exit 1
    }
    echo "$name: ok"
}

# Of the project's own C programs: NAME ARGUMENTS...
program() { local name=$1; shift; sanitized "$name" "tests/c/$name.c" -- "$@"; }

cases=$PWD/tests/golden/cases model=$PWD/tests/golden/tiny_model/model
scratch() { mkdir -p "$programs/$1.dir" && printf '%s' "$programs/$1.dir"; }
program bad_handles "$cases/padded_vocab"
program bad_input "$cases/padded_vocab"
program bad_files "$cases/bf16" "$(scratch bad-files)"
program roundtrip "$cases/padded_vocab" "$cases/base"
program threads "$cases/base"
program sessions "$cases/base" "$cases/gqa9_3"
program quantized "$cases/base" "$(scratch quantized)"
program chat "$cases/padded_vocab" "$cases/padded_vocab" own-templates-only
program sources "$cases/padded_vocab" "$cases/sharded" "$(scratch sources)"
program log "$cases/padded_vocab" "$cases/base" "$(scratch log)"
host=(examples-c/host.c examples-c/common.c)
prompt=(--prompt "Rust is" -n 8 --threads 2)
sanitized minimal examples-c/minimal.c -- "$model"
sanitized generate examples-c/{generate,profile,json}.c "${host[@]}" -- --model "$model" "${prompt[@]}" --profile --temp 0.8
sanitized inspect examples-c/{inspect,json,common}.c -- --model "$model"
printf 'Rust is\nA trait\nCargo\n' >"$programs/prompts"
sanitized batch examples-c/batch.c "${host[@]}" -- --model "$model" --prompts "$programs/prompts" -n 8 --at-once 2
sanitized quantize examples-c/quantize.c "${host[@]}" -- --model "$model" --weights int4 --out "$(scratch int4)"
