#!/usr/bin/env bash
# Runs the programs of README.md as they stand there, by the lines that stand before them, in directories where `model` is a model.
# tests/ffi/run.sh calls it with an empty directory, the model and a file with the line that they must print.
set -euo pipefail
RIE=$(cd "$(dirname "$0")/../.." && pwd)
work=$1 model=$2 expected=$3
export RIE PYTHONDONTWRITEBYTECODE=1

fenced() { # SECTION LANGUAGE: the first block of that language below that heading
    awk -v heading="^##+ $1\$" -v fence="\`\`\`$2" '
        /^##/ { below = $0 ~ heading }
        $0 == "```" && inside { exit }
        inside { print }
        below && $0 == fence { inside = 1 }' "$RIE/README.md"
}

run() { # SECTION LANGUAGE FILE
    local directory=$work/$2
    mkdir -p "$directory"
    cd "$directory"
    [ "$2" = c ] || ln -s "$model" model # the section on C makes it
    fenced "$1" "$2" >"$3"
    fenced "$1" sh >lines
    head -n -1 lines >setup
    tail -n 1 lines >last
    timeout 300 bash -euo pipefail setup >setup.out
    (timeout 120 bash -euo pipefail last && echo) | diff - "$expected" || {
        echo "README.md, ${1//\\/}: prints something else"
        exit 1
    }
    echo "README.md, ${1//\\/}: ok"
}

# Its lines stand in the repository.
mkdir -p "$work/c"
ln -s "$RIE/include" "$RIE/tests" "$work/c"
mkdir "$work/c/target"
ln -s "${CARGO_TARGET_DIR:-$RIE/target}/release" "$work/c/target/release"

run "The ABI in a page" c prog.c
run "C\\\\+\\\\+" cpp prog.cpp
run Go go prog.go
run C# csharp prog.cs
run Python python prog.py
run Node js prog.js
