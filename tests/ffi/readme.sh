#!/usr/bin/env bash
# Runs the programs of README.md's section on languages as they stand there, in a directory where `model` is a model.
# tests/ffi/run.sh calls it with an empty directory, the model and a file with the line that they must print.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$1 model=$2 expected=$3
cd "$work"
ln -s "$model" model

program() { # LANGUAGE: what stands between the fences
    awk -v fence="\`\`\`$1" '$0 == "```" { inside = 0 } inside { print } $0 == fence { inside = 1 }' "$here/../../README.md"
}

run() { # LANGUAGE PROGRAM...
    local language=$1
    shift
    (timeout 120 "$@" && echo) | diff - "$expected" || { echo "README.md, $language: prints something else"; exit 1; }
    echo "README.md, $language: ok"
}

program cpp >prog.cpp
# shellcheck disable=SC2046 # words of the command line
c++ -std=c++17 prog.cpp -o cpp $(pkg-config --cflags --libs rie)
run C++ ./cpp

mkdir go
program go >go/main.go
printf 'module prog\n\ngo 1.19\n\nrequire rie v0.0.0\n\nreplace rie => %s\n' "$here/go" >go/go.mod
(cd go && go build -o ../go-prog .)
run Go ./go-prog

{ echo 'static class Program { static void Main() {' && program csharp && echo '} }'; } >prog.cs
mcs -out:prog.exe prog.cs "$here/csharp/Native.cs" "$here/csharp/Rie.cs"
run C# mono prog.exe

program python >prog.py
PYTHONPATH="$here/python" PYTHONDONTWRITEBYTECODE=1 run Python python3 prog.py

program js >prog.js
mkdir -p node_modules
ln -s "$here/node" node_modules/rie
run Node node prog.js
