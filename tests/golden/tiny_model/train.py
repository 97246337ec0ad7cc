"""Train the tiny Llama-architecture model that is kept in this repository.

    apt-get install rust-doc                      # the text (Debian 12: 1.63)
    pip install torch transformers tokenizers safetensors numpy
    python train.py --minutes 60 --out model      # two CPU cores are enough

Everything is in this one file: (1) plain text from the HTML of Debian's
rust-doc package, (2) a byte-level BPE tokenizer, (3) the model, (4) training
for a given number of minutes, (5) export to BF16 SafeTensors in the layout of
transformers' LlamaForCausalLM, and a check of the logits against it.
"""
import argparse, json, math, re, time, zlib
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

EOS = "<|endoftext|>"
PROMPTS = ["Rust is a systems programming language that", "The borrow checker", "In this chapter, we will", "A vector is"]
CFG = dict(vocab_size=3072, hidden_size=192, intermediate_size=512, num_hidden_layers=5,
           num_attention_heads=6, num_key_value_heads=2, head_dim=32, rope_theta=10000.0,
           rms_norm_eps=1e-5, max_position_embeddings=512)
SEQ, BATCH = 256, 12           # every fourth step takes 2 x SEQ and BATCH / 2

# ---------------------------------------------------------------- 1. the text
# Parts of rust-doc that are MIT OR Apache-2.0, and the share of the training
# windows taken from each. (The Embedded Book is left out: CC-BY-SA prose.)
SOURCES = {
    "book": ("book/foreword.html book/ch*.html book/appendix*.html", 0.59),
    "introductions": ("book/foreword.html book/ch00*.html book/ch01-00*.html rust-by-example/index.html "
                      "nomicon/intro.html reference/introduction.html", 0.02),
    "reference": ("reference/**/*.html", 0.07),
    "nomicon": ("nomicon/*.html", 0.09),
    "by-example": ("rust-by-example/**/*.html", 0.06),
    "editions+rustc": ("edition-guide/**/*.html rustc/**/*.html rustdoc/**/*.html", 0.04),
    "std": ("std/**/*.html", 0.13),
    # The first chapters again without their listings: what the last legs learn by heart.
    "prose": ("book/foreword.html book/ch00*.html book/ch01*.html book/ch03*.html book/ch04*.html book/ch05*.html "
              "book/ch06*.html book/ch07*.html book/ch08*.html book/ch09*.html book/ch10*.html", 0.0),
}
SKIP_PAGES = re.compile(r"print\.html|SUMMARY|README|all\.html|std/(arch|simd|intrinsics|os)/|platform-support")
ASCII = str.maketrans({"‘": "'", "’": "'", "“": '"', "”": '"', "…": "...", "\u00a0": " "})
VOID = set("br img hr input meta link wbr col".split())
BLOCK = set("p div ul ol li blockquote table tr pre dt dd summary section details h1 h2 h3 h4 h5 h6".split())


class Text(HTMLParser):
    """Headings, paragraphs, lists and code of an mdBook page's <main>, or of
    the doc blocks of a rustdoc page (prose only there), as Markdown-like text."""
    def __init__(self, rustdoc):
        super().__init__()
        self.rustdoc, self.stack, self.blocks = rustdoc, [], []
        self.buf, self.prefix, self.keep, self.skip, self.pre = "", "", 0, 0, 0

    def flush(self):
        text = re.sub(r"\s+", " ", self.buf).strip()
        if text and not text.startswith(("Read more", "Notable traits for")):
            self.blocks.append((self.prefix, text))
            self.prefix = ""
        self.buf = ""

    def handle_starttag(self, tag, attrs):
        if tag in VOID:
            return
        cls = (dict(attrs).get("class") or "").split()
        skip = (tag in ("script", "style", "nav", "button", "svg") or "boring" in cls or "test-arrow" in cls
                or self.rustdoc and ("item-decl" in cls or "example-wrap" in cls or tag == "pre"))
        keep = not skip and (("fqn" in cls or "docblock" in cls) if self.rustdoc else tag == "main")
        self.stack.append((tag, skip, keep))
        self.skip, self.keep = self.skip + skip, self.keep + keep
        if not self.keep or self.skip:
            return
        if tag in BLOCK and not self.pre:
            self.flush()
        if tag[0] == "h" and tag[1:].isdigit() or tag == "li":
            self.prefix = "- " if tag == "li" else "#" * int(tag[1]) + " "
        elif tag in ("td", "th") and self.buf.strip():
            self.buf += " | "
        self.buf += "`" if tag == "code" and not self.pre else ""
        self.pre += tag == "pre"

    def handle_endtag(self, tag):
        while any(tag == t for t, _, _ in self.stack):
            top, skip, keep = self.stack.pop()
            if self.keep and not self.skip:
                self.pre -= top == "pre"
                self.buf += "`" if top == "code" and not self.pre else ""
                if top == "pre" and not self.pre:
                    if len(self.buf) < 1200:  # long listings would crowd out the prose
                        self.blocks.append(("", "```\n" + self.buf.strip("\n") + "\n```"))
                    self.buf = ""
                elif (top in BLOCK or keep) and not self.pre:
                    self.flush()
                    self.prefix = ""
            self.skip, self.keep = self.skip - skip, self.keep - keep
            if top == tag:
                return

    def handle_data(self, data):
        self.buf += data if self.keep and not self.skip else ""

def extract(docs):
    """{source: [document]}; what std repeats (docs of traits) is kept once."""
    out, seen = {n: [] for n in SOURCES}, set()
    for name, (globs, _) in SOURCES.items():
        for path in sorted({p for g in globs.split() for p in docs.glob(g)}):
            if SKIP_PAGES.search(str(path.relative_to(docs))):
                continue
            parser = Text(rustdoc=name == "std")
            parser.feed(path.read_text("utf-8", "replace"))
            text, last = "", ""
            for prefix, block in parser.blocks:
                if name == "std" and prefix[:1] == "#":
                    if prefix != "# ":        # "Examples", "Panics", ...: nothing under it
                        continue
                    block = re.sub(r"(1\.\d+\.\d.*|source|\[.\]|·).*", "", block).strip()
                if name == "prose" and block.startswith("```"):
                    continue
                key = re.sub(r"\b[iuf](8|16|32|64|128|size)\b|\d+", "#", block)
                if name != "std" or key not in seen:
                    text += ("\n" if prefix == last == "- " else "\n\n") + prefix + block
                    last = prefix
                seen.add(key)
            if len(text.strip()) > 300:
                out[name].append(text.strip().translate(ASCII))
    return out

# ----------------------------------------------------------- 2. the tokenizer
def make_tokenizer(texts):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer, tok.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tok.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=CFG["vocab_size"], special_tokens=[EOS], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tok

# ------------------------------- 3. the model (names as transformers has them)
class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        h, f, hd = CFG["hidden_size"], CFG["intermediate_size"], CFG["head_dim"]
        q, kv = CFG["num_attention_heads"] * hd, CFG["num_key_value_heads"] * hd
        block = lambda **shapes: nn.ModuleDict({n: nn.Linear(*s, bias=False) for n, s in shapes.items()})
        self.input_layernorm = nn.RMSNorm(h, CFG["rms_norm_eps"])
        self.post_attention_layernorm = nn.RMSNorm(h, CFG["rms_norm_eps"])
        self.self_attn = block(q_proj=(h, q), k_proj=(h, kv), v_proj=(h, kv), o_proj=(q, h))
        self.mlp = block(gate_proj=(h, f), up_proj=(h, f), down_proj=(f, h))

    def forward(self, x, cos, sin):
        (B, T, _), a, m = x.shape, self.self_attn, self.mlp
        heads = lambda t: t.view(B, T, -1, CFG["head_dim"]).transpose(1, 2)
        pairs = lambda a, b: torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
        rope = lambda t: pairs(*t.chunk(2, -1))         # the two halves of a head are the pairs
        y = self.input_layernorm(x)
        q, k, v = rope(heads(a["q_proj"](y))), rope(heads(a["k_proj"](y))), heads(a["v_proj"](y))
        k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v))
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + a["o_proj"](o.transpose(1, 2).reshape(B, T, -1))
        y = self.post_attention_layernorm(x)
        return x + m["down_proj"](F.silu(m["gate_proj"](y)) * m["up_proj"](y))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        h, hd = CFG["hidden_size"], CFG["head_dim"]
        self.embed_tokens = nn.Embedding(CFG["vocab_size"], h)
        self.layers = nn.ModuleList(Layer() for _ in range(CFG["num_hidden_layers"]))
        self.norm = nn.RMSNorm(h, CFG["rms_norm_eps"])
        for n, p in self.named_parameters():
            if p.dim() == 2:
                out = n.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(p, std=0.04 / (math.sqrt(2 * len(self.layers)) if out else 1))
        freq = CFG["rope_theta"] ** (-torch.arange(0, hd, 2).float() / hd)
        angle = torch.arange(CFG["max_position_embeddings"]).float()[:, None] * freq
        self.cos, self.sin = angle.cos(), angle.sin()

    def forward(self, ids):
        x, T = self.embed_tokens(ids), ids.shape[1]
        for layer in self.layers:
            x = layer(x, self.cos[:T], self.sin[:T])
        return F.linear(self.norm(x), self.embed_tokens.weight)

# ------------------------------------------------------------- 4. the training
@torch.no_grad()
def muon(params, momenta, lr, wd=0.1):
    """One step of momentum whose update is orthogonalised (five Newton-Schulz
    steps): for the layers' matrices. AdamW does the embeddings and the norms."""
    for p, buf in zip(params, momenta):
        buf.lerp_(p.grad, 0.05)
        u = p.grad.lerp(buf, 0.95)
        tall = u.shape[0] > u.shape[1]
        x = (u.T if tall else u) / (u.norm() + 1e-7)
        for _ in range(5):
            s = x @ x.T
            x = 3.4445 * x + (-4.7750 * s + 2.0315 * s @ s) @ x
        p.mul_(1 - lr * wd).add_(x.T if tall else x, alpha=-lr * 0.2 * math.sqrt(max(p.shape)))


def train(model, data, minutes, ckpt, seed, peak, noise):
    """Random windows for `minutes` of wall clock. The learning rate follows
    the share of the time gone by, so that a run always ends annealed."""
    names, share = list(SOURCES), np.array([s for _, s in SOURCES.values()])

    def loss_of(held_out, r, long=False):
        rows, seq = [], SEQ << long
        for s in r.choice(len(names), BATCH >> long, p=share / share.sum()):
            t = data[names[s]][held_out] if len(data[names[s]][held_out]) else data["book"][held_out]
            o = r.integers(0, len(t) - seq)
            rows.append(t[o:o + seq + 1])
        b = torch.from_numpy(np.stack(rows).astype(np.int64))
        read = b[:, :-1]
        if noise and not held_out:
            read = torch.where(torch.rand(read.shape) < noise, torch.randint(CFG["vocab_size"], read.shape), read)
        return F.cross_entropy(model(read).flatten(0, 1), b[:, 1:].flatten())

    @torch.no_grad()
    def held_out_loss(r):
        return sum(loss_of(1, r).item() for _ in range(8)) / 8

    mats = [p for p in model.layers.parameters() if p.dim() == 2]
    rest = [model.embed_tokens.weight] + [p for p in model.parameters() if p.dim() == 1]
    momenta = [torch.zeros_like(p) for p in mats]
    adamw = torch.optim.AdamW(rest, peak, betas=(0.9, 0.95), weight_decay=0.1)
    rng, step, ema, start, done, saved = np.random.default_rng(seed), 0, None, time.time(), 0.0, 0.0
    while done < 1:
        done = min(1.0, (time.time() - start) / (60 * minutes))
        lr = peak * min(1, (step + 1) / 100) * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done)))
        loss = loss_of(0, rng, long=step % 4 == 3)
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        muon(mats, momenta, lr)
        adamw.param_groups[0]["lr"] = lr
        adamw.step()
        step += 1
        ema = loss.item() if ema is None else 0.98 * ema + 0.02 * loss.item()
        if step % 100 == 0 or done == 1:
            print(f"{done * minutes:5.1f} min  step {step}  {step * BATCH * SEQ / 1e6:.2f} M tokens  lr {lr:.1e}  "
                  f"loss {ema:.3f}  held out {held_out_loss(np.random.default_rng(1)):.3f}", flush=True)
        if time.time() - saved > 240 or done == 1:
            saved = time.time()
            torch.save(model.state_dict(), ckpt)

# --------------------------------------------------------------- 5. the export
def export(model, tok, out):
    eos = tok.token_to_id(EOS)
    out.mkdir(parents=True, exist_ok=True)
    weights = {n: t.detach().to(torch.bfloat16) for n, t in model.state_dict().items()}
    save_file({"model." + n: t for n, t in weights.items()}, out / "model.safetensors", {"format": "pt"})
    tok.save(str(out / "tokenizer.json"), pretty=False)
    (out / "config.json").write_text(json.dumps(dict(
        architectures=["LlamaForCausalLM"], model_type="llama", torch_dtype="bfloat16", **CFG,
        rope_scaling=None, hidden_act="silu", attention_bias=False, mlp_bias=False, attention_dropout=0.0,
        initializer_range=0.02, tie_word_embeddings=True, use_cache=True,
        bos_token_id=eos, eos_token_id=eos), indent=2) + "\n")
    gen = dict(bos_token_id=eos, eos_token_id=eos, do_sample=False)
    (out / "generation_config.json").write_text(json.dumps(gen, indent=2) + "\n")

    # The weights as written (rounded to BF16) through transformers, computed in f32.
    model.load_state_dict({n: t.float() for n, t in weights.items()})
    hf = LlamaForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    hf_tok = PreTrainedTokenizerFast(tokenizer_file=str(out / "tokenizer.json"))
    for prompt in PROMPTS:
        ids = hf_tok(prompt, return_tensors="pt").input_ids
        ids = hf.generate(ids, max_new_tokens=60, do_sample=False, pad_token_id=eos)
        with torch.no_grad():
            diff = (hf(ids).logits - model(ids)).abs().max().item()
        print(f"--- logits differ from transformers' by at most {diff:.1e}\n{hf_tok.decode(ids[0])}")
        assert diff < 1e-3


def main():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--docs", type=Path, default=Path("/usr/share/doc/rust-doc/html"))
    ap.add_argument("--minutes", type=float, default=60)
    ap.add_argument("--out", type=Path, default=Path("model"))
    ap.add_argument("--ckpt", type=Path, default=Path("checkpoint.pt"), help="written every four minutes")
    ap.add_argument("--resume", action="store_true", help="start from the checkpoint (--minutes 0: export it)")
    ap.add_argument("--average", nargs=2, metavar=("FILE", "SHARE"), help="with --resume: take this share of the weights of "
                    "another checkpoint; the average of a leg that generalises and one that knows the text reads best")
    ap.add_argument("--seed", type=int, default=0, help="of the order of the text; another one for each leg")
    ap.add_argument("--lr", type=float, default=4e-3, help="its peak")
    ap.add_argument("--noise", type=float, default=0, help="share of the tokens read that are replaced at random: what "
                    "knows its text by heart finds back into it after words that aren't there")
    ap.add_argument("--shares", help='of the sources, such as "book=0.9,introductions=0.1"; default: as above')
    a = ap.parse_args()
    if a.shares:
        shares = dict(s.split("=") for s in a.shares.split(","))
        SOURCES.update({n: (globs, float(shares.get(n, 0))) for n, (globs, _) in SOURCES.items()})
    torch.manual_seed(0)
    docs = extract(a.docs)
    tok = make_tokenizer(t for n, ts in docs.items() if n != "prose" for t in ts * (3 if n == "book" else 1))
    data = {}
    for n, ts in docs.items():                # documents are held out by a hash of their text
        parts = ([], [])
        for t in ts:
            parts[zlib.crc32(t.encode()) % 32 == 0].extend(tok.encode(t + EOS).ids)
        data[n] = [np.array(p, dtype=np.int32) for p in parts]
        print(f"{n}: {len(ts)} documents, {len(parts[0])} tokens, {len(parts[1])} held out", flush=True)
    model = Llama()
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f} M parameters")
    if a.resume:
        weights = torch.load(a.ckpt)
        if a.average:
            other, share = torch.load(a.average[0]), float(a.average[1])
            weights = {n: (1 - share) * w + share * other[n] for n, w in weights.items()}
        model.load_state_dict(weights)
    if a.minutes:
        train(model, data, a.minutes, a.ckpt, a.seed, a.lr, a.noise)
    export(model, tok, a.out)


if __name__ == "__main__":
    main()
