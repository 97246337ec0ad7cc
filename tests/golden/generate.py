#!/usr/bin/env python3
"""Writes cases/: small random checkpoints with what Hugging Face transformers computes for them.

    pip install -r requirements-generate.txt
    python generate.py [NAME…]  all cases or those named; run by hand (a few minutes); not part of CI

The cases of Llama are below, those of the other families in families.py.

A case is a model directory (config.json, model.safetensors …; some have a config_v5.json that says the same in
transformers v5's words) with golden.safetensors beside it: float32 with float32 KV, eager attention, on the CPU, for a
40-token prompt. Row-major [token, …], heads in order within a token:

    input_ids I32 [n] · embeddings [n, hidden] · final_norm [n, hidden] · logits [n, vocab]
    layers.{i}.q_rope [n, heads*head_dim], k_rope [n, kv_heads*head_dim]      as attention gets them
    layers.{i}.attention [n, heads*head_dim]                                  before o_proj
    layers.{i}.attention_out, mlp, hidden [n, hidden]     o_proj's and the MLP's output, the layer's output
    greedy I32 [60], greedy_margin [60]     greedy continuation through a KV cache, never stopping at EOS, and the
                                            lead of the best logit over the second best at each step

Cases about the container rather than the arithmetic leave out the layers.* tensors. manifest.json says what each case
is for, which versions wrote it, and how far the float32 reference itself is from the definition computed in float64,
as max |difference| / (1 + max |value|) over all tensors.
"""
import itertools
import json
import shutil
import struct
import sys
from pathlib import Path

import safetensors
import torch
import transformers
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

import families
from oracle import oracle
from weights import random_weights

OUT = Path(__file__).parent / "cases"
PROMPT, GREEDY = 40, 60
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}

# Sizes are odd on purpose: vocabularies and widths that no vector length divides.
TINY = dict(
    hidden_size=24, num_attention_heads=2, num_key_value_heads=1, head_dim=20, intermediate_size=37, vocab_size=97)

# name: (what it is for, config in transformers v4's words over DEFAULTS, options of write_case)
DEFAULTS = dict(
    architectures=["LlamaForCausalLM"], model_type="llama", hidden_act="silu", num_hidden_layers=2, rms_norm_eps=1e-5,
    rope_theta=10000.0, rope_scaling=None, max_position_embeddings=256, tie_word_embeddings=False, attention_bias=False,
    mlp_bias=False, bos_token_id=1, eos_token_id=2, torch_dtype="float32")
CASES = {
    "base": (
        "GQA 6/2, default RoPE, tied (embed_tokens alone is stored), generation_config.json with a list of EOS ids",
        dict(hidden_size=48, num_attention_heads=6, num_key_value_heads=2, intermediate_size=100, vocab_size=259,
             tie_word_embeddings=True), dict(v5_too=True, generation=dict(bos_token_id=1, eos_token_id=[2, 7]))),
    "gqa9_3": (
        "GQA 9/3 as in SmolLM, 3 layers, untied",
        dict(hidden_size=72, num_attention_heads=9, num_key_value_heads=3, intermediate_size=83, vocab_size=131,
             num_hidden_layers=3, rope_theta=100000), {}),
    "mha": (
        "Llama 1 and 2: as many KV heads as heads and no num_key_value_heads in the config, eps 1e-6",
        dict(hidden_size=48, num_attention_heads=4, intermediate_size=100, vocab_size=131, rms_norm_eps=1e-6), {}),
    "mqa": (
        "one KV head for five heads",
        dict(hidden_size=40, num_attention_heads=5, num_key_value_heads=1, intermediate_size=51, vocab_size=101), {}),
    "attention_bias": (
        "biases on q, k, v and o; head_dim null, so 60/6 = 10; no width a multiple of 8",
        dict(hidden_size=60, num_attention_heads=6, num_key_value_heads=2, head_dim=None, intermediate_size=83,
             vocab_size=131, attention_bias=True), {}),
    "mlp_bias": (
        "biases on gate, up and down; head_dim 14",
        dict(hidden_size=42, num_attention_heads=3, num_key_value_heads=1, intermediate_size=45, vocab_size=101,
             mlp_bias=True), {}),
    "head_dim": (
        "explicit head_dim 20 where hidden/heads is 8, so q is wider than the hidden state",
        dict(hidden_size=48, num_attention_heads=6, num_key_value_heads=2, head_dim=20, intermediate_size=67,
             vocab_size=101), {}),
    "rope_linear": (
        "RoPE 'linear', spelled with the old key 'type' and with an integer rope_theta",
        dict(TINY, rope_theta=10000, rope_scaling={"type": "linear", "factor": 4.0}), dict(v5_too=True)),
    "rope_dynamic": (
        "RoPE 'dynamic': 32 positions, then the base grows with the length; see DYNAMIC in generate.py",
        dict(TINY, max_position_embeddings=32, rope_scaling={"rope_type": "dynamic", "factor": 4.0}), dict(v5_too=True)),
    "rope_yarn": (
        "RoPE 'yarn' with its defaults",
        dict(TINY, max_position_embeddings=128, rope_scaling={
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}), dict(v5_too=True)),
    "rope_yarn_mscale": (
        "RoPE 'yarn' with beta_fast, beta_slow, mscale, mscale_all_dim and truncate = false",
        dict(TINY, max_position_embeddings=256, rope_theta=500.0, rope_scaling={
            "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32, "beta_fast": 4.5,
            "beta_slow": 0.75, "mscale": 1.5, "mscale_all_dim": 0.5, "truncate": False}), dict(v5_too=True)),
    "rope_yarn_factor": (
        "RoPE 'yarn' with an attention_factor (mscale is then unused) and no original_max_position_embeddings, for "
        "which max_position_embeddings stands in",
        dict(TINY, max_position_embeddings=256, rope_scaling={
            "rope_type": "yarn", "factor": 2.0, "attention_factor": 1.25, "mscale": 3.0, "mscale_all_dim": 0.5,
            "beta_fast": 8, "beta_slow": 2}), dict(v5_too=True)),
    "rope_llama3": (
        "RoPE 'llama3' with wavelengths in all three bands",
        dict(TINY, max_position_embeddings=256, rope_theta=500.0, rope_scaling={
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32}), dict(v5_too=True)),
    "f16": ("weights in F16, computed in float32", dict(TINY, torch_dtype="float16"), {}),
    "bf16": ("weights in BF16, computed in float32", dict(TINY, torch_dtype="bfloat16", tie_word_embeddings=True), {}),
    "sharded": ("two shards and model.safetensors.index.json", dict(TINY), dict(outer=True, layout="sharded")),
    "prefixless": (
        "names without 'model.' and an extra layers.0.self_attn.rotary_emb.inv_freq",
        dict(TINY, tie_word_embeddings=True), dict(outer=True, layout="prefixless")),
    "unaligned": (
        "tensor data at odd offsets: the header's length is odd; norms in BF16 come first, then F32",
        dict(TINY, hidden_size=22), dict(outer=True, layout="unaligned")),
    "padded_vocab": (
        "259 tokens in tokenizer.json, 272 rows in the embedding; greedy ids may lie beyond the tokenizer",
        dict(TINY, hidden_size=16, intermediate_size=29, vocab_size=272), dict(outer=True, layout="tokenizer")),
    "tied_lm_head_only": (
        "tied, but lm_head.weight is the one stored: it serves as the embedding as well",
        dict(TINY, tie_word_embeddings=True), dict(outer=True, layout="lm_head_only")),
    "tied_equal": (
        "tied, and both are stored with equal values", dict(TINY, tie_word_embeddings=True),
        dict(outer=True, layout="both_equal")),
    "tied_different": (
        "tie_word_embeddings is true, but both are stored and differ: transformers doesn't tie them then",
        dict(TINY, tie_word_embeddings=True), dict(outer=True, layout="both_different")),
}


def write_unaligned(path, w):
    """A legal file whose tensors all begin at odd offsets; safetensors' own writer would align them."""
    norms = [n for n in w if "norm" in n]
    header, data = {}, b""
    for name in norms + [n for n in w if n not in norms]:
        t = w[name].to(torch.bfloat16) if name in norms else w[name]
        raw = t.contiguous().view(torch.uint8).numpy().tobytes()
        header[name] = {"dtype": "BF16" if name in norms else "F32", "shape": list(t.shape),
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (1 + len(head) % 2)  # 8 + an odd length
    path.write_bytes(struct.pack("<Q", len(head)) + head + data)


def write_tokenizer(path):
    """Byte-level without merges: 3 special tokens and 256 bytes."""
    special = ["<unk>", "<s>", "</s>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    t = Tokenizer(models.BPE(vocab={s: i for i, s in enumerate(special + alphabet)}, merges=[]))
    t.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in special])
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.save(str(path))


def write_weights(folder, config, w, layout):
    """Stores w the way the case asks for."""
    lm_head, embed, file = "lm_head.weight", "model.embed_tokens.weight", folder / "model.safetensors"
    if layout == "lm_head_only":
        w[lm_head] = w.pop(embed)
    elif layout == "both_equal":
        w[lm_head] = w[embed].clone()
    elif config.tie_word_embeddings and layout != "both_different":
        del w[lm_head]
    if layout == "prefixless":
        w = {name.removeprefix("model."): t for name, t in w.items()}
        # deliberately not what the config says: it must be ignored
        w["layers.0.self_attn.rotary_emb.inv_freq"] = torch.linspace(1, 0.5, config.head_dim // 2)
    if layout == "unaligned":
        write_unaligned(file, w)
    elif layout == "sharded":
        first = [n for n in w if "layers.1." not in n and n not in (lm_head, "model.norm.weight")]
        files = {n: f"model-0000{1 if n in first else 2}-of-00002.safetensors" for n in w}
        for shard in sorted(set(files.values())):
            save_file({n: t for n, t in w.items() if files[n] == shard}, folder / shard, {"format": "pt"})
        size = sum(t.nbytes for t in w.values())
        write_json(folder / "model.safetensors.index.json", {"metadata": {"total_size": size}, "weight_map": files})
    else:
        save_file(w, file, {"format": "pt"})
    if layout == "tokenizer":
        write_tokenizer(folder / "tokenizer.json")


def v5(config):
    """The same config as transformers v5 writes it: dtype, and RoPE's settings together in rope_parameters."""
    config = dict(config)
    scaling = dict(config.pop("rope_scaling") or {})
    kind = scaling.pop("rope_type", None) or scaling.pop("type", None) or "default"
    config["rope_parameters"] = {"rope_theta": config.pop("rope_theta"), "rope_type": kind, **scaling}
    config["dtype"] = config.pop("torch_dtype")
    return config


def read_config(folder, config="config.json"):
    """The file as the class of its model_type understands it."""
    settings = json.loads((folder / config).read_text(encoding="utf-8"))
    return AutoConfig.for_model(settings.pop("model_type"), **settings)


def load(folder, config="config.json"):
    """A model as a user of transformers gets it, fresh: dynamic RoPE keeps state from call to call."""
    model, info = AutoModelForCausalLM.from_pretrained(
        folder, config=read_config(folder, config), dtype=torch.float32, attn_implementation="eager",
        experts_implementation="eager", output_loading_info=True)
    assert not info["missing_keys"] and not info["mismatched_keys"], info
    assert all("inv_freq" in key for key in info["unexpected_keys"]), info
    return model.eval()


@torch.no_grad()
def forward(model, ids, chunks):
    """Runs ids through a fresh cache in pieces of the given sizes; returns what passed by, joined, and the cache."""
    taps, layers = {}, model.model.layers
    modeling = sys.modules[type(model).__module__]
    attend = modeling.eager_attention_forward

    def add(name, t):  # [1, n, …]
        taps.setdefault(name, []).append(t[0].clone())

    def attention(module, query, key, *args, **kwargs):
        n = query.shape[2]  # the keys of earlier pieces come first
        for name, t in [("q_rope", query), ("k_rope", key[:, :, -n:])]:  # [1, heads, n, head_dim]
            add(f"layers.{module.layer_idx}.{name}", t.transpose(1, 2).flatten(2))
        return attend(module, query, key, *args, **kwargs)

    def output(module, name):
        module.register_forward_hook(lambda m, args, out: add(name, out))

    def argument(module, name):
        module.register_forward_pre_hook(lambda m, args: add(name, args[0]))

    argument(layers[0], "embeddings")
    for i, layer in enumerate(layers):
        argument(layer.self_attn.o_proj, f"layers.{i}.attention")
        output(layer.self_attn.o_proj, f"layers.{i}.attention_out")
        output(layer.mlp, f"layers.{i}.mlp")
        output(layer, f"layers.{i}.hidden")
    output(model.model.norm, "final_norm")
    modeling.eager_attention_forward = attention
    cache = DynamicCache(config=model.config)
    for piece in torch.split(ids, chunks):
        add("logits", model(input_ids=piece[None], cache=cache, use_cache=True).logits)
    modeling.eager_attention_forward = attend
    return {name: torch.cat(pieces) for name, pieces in taps.items()}, cache


@torch.no_grad()
def greedy(model, ids, logits, cache, steps):
    """Goes on from the logits after ids. Where longrope's factors change, the cache begins anew, as in generate."""
    rope = model.config.rope_parameters
    switch = rope["original_max_position_embeddings"] + 1 if rope.get("rope_type") == "longrope" else None
    tokens, margins = [], []
    for _ in range(steps):
        best, second = torch.topk(logits, 2).values
        tokens.append(int(logits.argmax()))
        margins.append(float(best - second))
        new = tokens[-1:]
        if len(ids) + len(tokens) == switch:
            new, cache = ids.tolist() + tokens, DynamicCache(config=model.config)
        logits = model(input_ids=torch.tensor([new]), cache=cache, use_cache=True).logits[0, -1]
    return torch.tensor(tokens, dtype=torch.int32), torch.tensor(margins)


def try_case(name, seed, about, settings, v5_too=False, generation=None, outer=False, layout=None):
    """Writes the case with this seed; None if its greedy continuation has a near tie or falls into a short cycle."""
    folder = OUT / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    llama = "model_type" not in settings
    settings = {**(DEFAULTS if llama else families.FAMILY_DEFAULTS), **settings}
    write_json(folder / "config.json", settings)
    config = read_config(folder)
    if v5_too:
        write_json(folder / "config_v5.json", v5(settings) if llama else config.to_diff_dict())
    if generation:
        write_json(folder / "generation_config.json", generation)
    generator = torch.Generator().manual_seed(seed)
    write_weights(folder, config, random_weights(config, DTYPES[settings["torch_dtype"]], generator), layout)
    ids = torch.randint(config.vocab_size, (PROMPT,), generator=generator)

    # DYNAMIC: transformers takes the base of dynamic RoPE from the length of the sequence at each call, for all
    # positions of that call, and leaves the keys in the cache as they are. Called token by token beyond
    # max_position_embeddings, position p is rotated for length p + 1; that is the definition taken here. So the
    # prompt goes in as 24 tokens at once (within the 32 positions) and then one at a time.
    dynamic = config.rope_parameters.get("rope_type") == "dynamic"
    chunks = [24] + [1] * (PROMPT - 24) if dynamic else [PROMPT]
    model = load(folder)
    taps, cache = forward(model, ids, chunks)
    tokens, margins = greedy(model, ids, taps["logits"][-1], cache, GREEDY)

    exact = oracle(model, ids)
    assert taps.keys() == exact.keys() and all(t.dtype == torch.float32 for t in taps.values())
    error = max(float((taps[n] - t).abs().max() / (1 + t.abs().max())) for n, t in exact.items())
    assert error < 1e-5
    tied = model.lm_head.weight is model.model.embed_tokens.weight
    assert tied == (config.tie_word_embeddings and layout != "both_different")
    if v5_too:
        assert torch.equal(forward(load(folder, "config_v5.json"), ids, chunks)[0]["logits"], taps["logits"])
    if name == "rope_llama3":
        rope = model.model.rotary_emb
        ratio = rope.compute_default_rope_parameters(config)[0] / rope.inv_freq
        assert (ratio == 1).any() and (ratio == 8).any() and ((ratio > 1.01) & (ratio < 7.99)).any(), ratio

    if outer:
        taps = {n: t for n, t in taps.items() if not n.startswith("layers.")}
    save_file({"input_ids": ids.to(torch.int32), "greedy": tokens, "greedy_margin": margins,
               **{n: t.contiguous() for n, t in taps.items()}}, folder / "golden.safetensors")
    size = sum(f.stat().st_size for f in folder.iterdir())
    low, distinct = float(margins.min()), len(set(tokens.tolist()))
    print(f"{name:18} {size:7} bytes, margins from {low:.4f}, {distinct} distinct tokens, float32 off by {error:.1e}")
    if low < 2e-3 or distinct < 12:
        return None
    return {"about": about, "seed": seed, "files": sorted(f.name for f in folder.iterdir()),
            "smallest_margin": round(low, 5), "float32_error_of_reference": float(f"{error:.1e}")}


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def main():
    torch.set_num_threads(2)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    every = {**CASES, **families.CASES}
    wanted = sys.argv[1:] or list(every)
    manifest = OUT / "manifest.json"
    cases = json.loads(manifest.read_text(encoding="utf-8"))["cases"] if manifest.exists() else {}
    for i, (name, (about, settings, options)) in enumerate(every.items()):
        if name in wanted:
            tries = (try_case(name, seed, about, settings, **options) for seed in itertools.count(1000 * (i + 1)))
            cases[name] = next(case for case in tries if case)
    versions = {m.__name__: m.__version__ for m in (torch, transformers, safetensors)}
    write_json(manifest, {"versions": versions, "cases": {name: cases[name] for name in every if name in cases}})


if __name__ == "__main__":
    main()
