#!/usr/bin/env python3
"""Writes SmolLM2-135M-Instruct as a GGUF file for llama.cpp, its norms in F32 and its matrices in F32, F16, BF16, Q8_0 or
Q4_0; with Q4_0 the embedding, which is the output matrix too, is Q8_0, as llama.cpp's own converter does it.

    python gguf_model.py --dtype f32|f16|bf16|q8_0|q4_0 --out FILE [--wheel FILE]

The weights are those that tests/golden/smollm2.py writes as SafeTensors; needs the same packages.
"""
import argparse
import sys
import tempfile
from pathlib import Path

from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, LlamaFileType
from gguf.quants import quantize

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "golden"))
from smollm2 import extract  # noqa: E402
from unpack_gguf import values as tensor_values  # noqa: E402

TYPES = {
    "f32": (GGMLQuantizationType.F32, LlamaFileType.ALL_F32),
    "f16": (GGMLQuantizationType.F16, LlamaFileType.MOSTLY_F16),
    "bf16": (GGMLQuantizationType.BF16, LlamaFileType.MOSTLY_BF16),
    "q8_0": (GGMLQuantizationType.Q8_0, LlamaFileType.MOSTLY_Q8_0),
    "q4_0": (GGMLQuantizationType.Q4_0, LlamaFileType.MOSTLY_Q4_0),
}
EMBEDDING = {"q4_0": GGMLQuantizationType.Q8_0}


def copy_metadata(reader, writer):
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type", "general.quantization_version"):
            continue
        kind = field.types[0]
        element = field.types[-1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, sub_type=element)


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("--dtype", choices=TYPES, required=True)
    args.add_argument("--out", type=Path, required=True)
    args.add_argument("--wheel", type=Path, help="the package's wheel, if it is here already")
    args = args.parse_args()
    kind, file_type = TYPES[args.dtype]
    with tempfile.TemporaryDirectory() as folder:
        reader = GGUFReader(extract(args.wheel, folder))
        writer = GGUFWriter(args.out, reader.fields["general.architecture"].contents())
        copy_metadata(reader, writer)
        writer.add_file_type(file_type)
        for tensor in reader.tensors:
            values = tensor_values(tensor)
            if values.ndim == 1:
                writer.add_tensor(tensor.name, values)
            else:
                stored = EMBEDDING.get(args.dtype, kind) if tensor.name == "token_embd.weight" else kind
                writer.add_tensor(tensor.name, quantize(values, stored), raw_dtype=stored)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        del reader, values, tensor  # lets go of the mapped file before its folder goes


if __name__ == "__main__":
    main()
