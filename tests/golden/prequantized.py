#!/usr/bin/env python3
"""Writes prequantized/: tiny random checkpoints in the layouts of GPTQ and AWQ, and what their weights compute.

    pip install -r requirements-generate.txt
    python prequantized.py [NAME…]  all cases or those named; run by hand; not part of CI

A case is a model directory (config.json with quantization_config, model.safetensors in F16 and packed I32) with
golden.safetensors beside it:

    input_ids I32 [n]
    logits [n, vocab]           by transformers in float32, with the weights (q - z) · s, which float32 holds exactly
    logits_rounded [n, vocab]   the same, where the inputs of every quantized matrix are rounded as RIE rounds them: groups of
                                32 in the order of the matrix's groups, to whole numbers in ±127
    and some of the weights, under the names they would have if they were not quantized

The quantizing is plain rounding to nearest: a test of the layouts, not of the methods. When these were made, AutoGPTQ 0.7.1,
GPTQModel 7.7.0 and AutoAWQ 0.2.7 unpacked the weights that are kept to the same bits (AutoGPTQ but for rows beside zeros of 0,
which it cannot store).
"""
import json
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from generate import DEFAULTS, load, read_config, write_json
from weights import random_weights

OUT = Path(__file__).parent / "prequantized"
PROMPT = 24
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
KEPT = ("layers.0.self_attn.k_proj", "layers.1.mlp.down_proj", "layers.1.self_attn.qkv_proj", "lm_head")

SIZES = dict(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, intermediate_size=96, vocab_size=96,
             max_position_embeddings=128, torch_dtype="float16")
LLAMA = dict(DEFAULTS, **SIZES)
QWEN2 = dict(LLAMA, architectures=["Qwen2ForCausalLM"], model_type="qwen2", use_sliding_window=False)
del QWEN2["attention_bias"], QWEN2["mlp_bias"]
PHI3 = dict(LLAMA, architectures=["Phi3ForCausalLM"], model_type="phi3", pad_token_id=0)

GPTQ = dict(quant_method="gptq", bits=4, group_size=32, sym=True, desc_act=False, damp_percent=0.01, static_groups=False,
            true_sequential=True, lm_head=False, checkpoint_format="gptq")
AWQ = dict(quant_method="awq", bits=4, group_size=32, zero_point=True, version="gemm", modules_to_not_convert=None)


def everything(name):
    return "_proj" in name


# name: (what it is for, config, quantization_config, which matrices are quantized)
CASES = {
    "gptq_sym": ("symmetric, groups of 32, zeros stored less one", LLAMA, GPTQ, everything),
    "gptq_asym": (
        "asymmetric, groups of 64 of which the last of 96 inputs is half one; zeros of 0 and 15, stored less one, with borrows",
        LLAMA, dict(GPTQ, group_size=64, sym=False), everything),
    "gptq_v2_act_order": (
        "Qwen 2 with biases; asymmetric, desc_act with another order for each matrix, checkpoint_format gptq_v2", QWEN2,
        dict(GPTQ, sym=False, desc_act=True, checkpoint_format="gptq_v2"), everything),
    "gptq_sym_act_order": (
        "symmetric, desc_act, groups of 64", LLAMA, dict(GPTQ, group_size=64, desc_act=True), everything),
    "gptq_rows": (
        "one group for each row, asymmetric, and lm_head is quantized too; no checkpoint_format", LLAMA,
        dict({k: v for k, v in GPTQ.items() if k != "checkpoint_format"}, group_size=-1, sym=False, lm_head=True),
        lambda name: everything(name) or name == "lm_head"),
    "gptq_some": (
        "modules_in_block_to_quantize: q but not k and v, up but not gate; groups of 16; no g_idx", LLAMA,
        dict(GPTQ, group_size=16, modules_in_block_to_quantize=[["self_attn.q_proj"], ["mlp.up_proj", "mlp.down_proj"]]),
        lambda name: any(part in name for part in ("q_proj", "up_proj", "down_proj"))),
    "gptq_fused": (
        "Phi-3: q, k and v in one matrix, gate and up in another; desc_act", PHI3, dict(GPTQ, sym=False, desc_act=True),
        everything),
    "awq": ("AWQ, groups of 32", LLAMA, AWQ, everything),
    "awq_some": (
        "AWQ, Qwen 2 with biases, groups of 64, modules_to_not_convert", dict(QWEN2, intermediate_size=128),
        dict(AWQ, group_size=64, modules_to_not_convert=["v_proj", "gate_proj"]),
        lambda name: everything(name) and "v_proj" not in name and "gate_proj" not in name),
}


def quantize(w, group_of, sym):
    """Codes [in, out], zeros and scales [groups, out] of w [out, in]: the codes of an input belong to its group."""
    groups, (rows, inputs) = int(group_of.max()) + 1, w.shape
    zeros, scales = np.zeros((groups, rows), np.int64), np.zeros((groups, rows), np.float16)
    for g in range(groups):
        part = w[:, group_of == g]
        low, high = np.minimum(part.min(1), 0), np.maximum(part.max(1), 0)
        if sym:
            scale, zero = 2 * np.maximum(-low, high) / 15, np.full(rows, 8)
        else:
            scale = (high - low) / 15
            zero = np.rint(-low / scale)
        zeros[g], scales[g] = zero, scale
    scale = scales.astype(np.float32)[group_of]
    codes = np.clip(np.rint(w.T / scale) + zeros[group_of], 0, 15).astype(np.int64)
    return codes, zeros, scales


def pack(values, order=range(8)):
    """Eight columns of four bits in a word: column order[i] of each eight at bit 4·i."""
    eights = values.reshape(len(values), -1, 8).astype(np.uint32)
    words = np.zeros(eights.shape[:2], np.uint32)
    for i, column in enumerate(order):
        words |= eights[:, :, column] << np.uint32(4 * i)
    return torch.from_numpy(words.view(np.int32).copy())


def packed(codes, zeros, scales, group_of, config, with_groups):
    """The tensors of one matrix, by their suffixes."""
    if config["quant_method"] == "awq":
        return {"qweight": pack(codes, AWQ_ORDER), "qzeros": pack(zeros, AWQ_ORDER), "scales": torch.from_numpy(scales)}
    words = pack(zeros)
    if config.get("checkpoint_format", "gptq") == "gptq":
        words -= 0x11111111  # borrows between the eight, as GPTQModel has it
    tensors = {"qweight": pack(codes.T).T.contiguous(), "qzeros": words, "scales": torch.from_numpy(scales)}
    if with_groups:
        tensors["g_idx"] = torch.from_numpy(group_of.astype(np.int32))
    return tensors


def rounded(x, order):
    """x as RIE's arithmetic of integers sees it: groups of 32 along `order` (-1: nothing), scale = max / 127."""
    taken = torch.nn.functional.pad(x, (0, 1))[..., order]  # -1 is the zero behind the end
    taken = torch.nn.functional.pad(taken, (0, -len(order) % 32))
    groups = taken.reshape(*taken.shape[:-1], -1, 32)
    most = groups.abs().amax(-1, keepdim=True)
    codes = torch.where(most > 0, torch.round(groups * (127 / most)), 0)
    values = (codes * (most / 127)).flatten(-2)[..., :len(order)]
    out = torch.zeros_like(x)
    out[..., order[order >= 0]] = values[..., order >= 0]
    return out


def order_of(group_of):
    """Inputs by their groups, each group filled up to a multiple of 32."""
    pieces = [np.flatnonzero(group_of == g) for g in range(int(group_of.max()) + 1)]
    return torch.from_numpy(np.concatenate([np.pad(p, (0, -len(p) % 32), constant_values=-1) for p in pieces]))


@torch.no_grad()
def logits(folder, ids, orders):
    """Those of the float model in `folder`; the inputs of the matrices in `orders` are rounded."""
    model = load(folder)
    for name, order in orders.items():
        module = model.get_submodule(name)
        module.register_forward_pre_hook(lambda m, args, order=order: (rounded(args[0], order),))
    return model(input_ids=ids[None].long(), use_cache=False).logits[0]


def write_case(name, about, settings, quantization, is_quantized):
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_json(folder / "config.json", dict(settings, quantization_config=quantization))
    seed = sum(name.encode())
    generator, random = torch.Generator().manual_seed(seed), np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as plain:
        plain = Path(plain)
        write_json(plain / "config.json", settings)
        config = read_config(plain)
        stored, exact, orders = {}, {}, {}
        for key, tensor in random_weights(config, torch.float16, generator).items():
            stem, suffix = key.rsplit(".", 1)
            if suffix != "weight" or not is_quantized(stem):
                stored[key], exact[key] = tensor, tensor.float()
                continue
            w = tensor.float().numpy()
            w[0], w[1] = abs(w[0]), -abs(w[1])  # asymmetric zeros of 0 and 15
            inputs = w.shape[1]
            size = inputs if quantization["group_size"] == -1 else quantization["group_size"]
            group_of = np.arange(inputs) // size
            if quantization.get("desc_act"):
                group_of = random.permutation(group_of)
            codes, zeros, scales = quantize(w, group_of, quantization.get("sym", False))
            for part, t in packed(codes, zeros, scales, group_of, quantization, name != "gptq_some").items():
                stored[f"{stem}.{part}"] = t
            exact[key] = torch.from_numpy(((codes - zeros[group_of]) * scales.astype(np.float32)[group_of]).T.copy()).float()
            orders[stem] = order_of(group_of)
        save_file(stored, folder / "model.safetensors", {"format": "pt"})
        save_file(exact, plain / "model.safetensors", {"format": "pt"})
        ids = torch.from_numpy(random.integers(0, config.vocab_size, PROMPT).astype(np.int32))
        golden = {"input_ids": ids, "logits": logits(plain, ids, {}), "logits_rounded": logits(plain, ids, orders)}
        difference = (golden["logits"] - golden["logits_rounded"]).abs().max()
        golden |= {key: w for key, w in exact.items() if key.removeprefix("model.").rsplit(".", 1)[0] in KEPT
                   and key.rsplit(".", 1)[0] in orders}
        save_file(golden, folder / "golden.safetensors", {"about": about})
    print(f"{name}: {len(orders)} quantized matrices, rounding inputs moves logits by up to {difference:.3f}")


if __name__ == "__main__":
    for case in sys.argv[1:] or CASES:
        write_case(case, *CASES[case])
