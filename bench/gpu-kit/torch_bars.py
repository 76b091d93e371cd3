#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's matrix products and attention on the shapes of `forepack bench kernels`, in bf16 on random data, to compare with.
Prints JSON; exits with 77 if torch is not installed.

Usage: torch_bars.py --shape CONFIG.json --rows M,... --tokens T,... [--device NAME]"""
import argparse
import json
import sys
import time

options = argparse.ArgumentParser()
options.add_argument("--shape", required=True)
options.add_argument("--rows", required=True)
options.add_argument("--tokens", required=True)
options.add_argument("--device", default="cuda")
o = options.parse_args()

try:
    import torch
    import torch.nn.functional as functional
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError as error:
    print("skipped: %s" % error, file=sys.stderr)
    sys.exit(77)


def wait():
    if o.device == "cuda":
        torch.cuda.synchronize()


def median_seconds(run):
    """Median over five rounds of at least 50 ms each, after a warm-up."""
    for _ in range(3):
        run()
    wait()
    times, repeats = [], 1
    while len(times) < 5:
        begin = time.perf_counter()
        for _ in range(repeats):
            run()
        wait()
        seconds = time.perf_counter() - begin
        if seconds < 0.05 and repeats < 4096:
            repeats *= 2
        else:
            times.append(seconds / repeats)
    return sorted(times)[2]


def random(*size):
    return torch.randn(size, device=o.device, dtype=torch.bfloat16)


def gemm_rows(config):
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    head_size = config.get("head_dim") or hidden // heads
    query, inner = heads * head_size, config["intermediate_size"]
    key_value = 2 * config.get("num_key_value_heads", heads) * head_size
    for m in map(int, o.rows.split(",")):
        total_seconds = total_flop = 0
        for name, n, k in (("qkv", query + key_value, hidden), ("o", hidden, query), ("gate_up", 2 * inner, hidden),
                           ("down", hidden, inner)):
            # Copies, so that small products read their weights from memory, as a model does.
            copies = max(2, min(16, int(4e8 // (2 * n * k))))
            x, weights, turn = random(m, k), [random(n, k) for _ in range(copies)], [0]

            def run():
                turn[0] = (turn[0] + 1) % copies
                return torch.matmul(x, weights[turn[0]].t())

            seconds, flop = median_seconds(run), 2 * m * n * k
            total_seconds, total_flop = total_seconds + seconds, total_flop + flop
            yield {"phase": "matmul", "name": name, "m": m, "n": n, "k": k, "us": 1e6 * seconds,
                   "gflops": flop / seconds / 1e9}
        yield {"phase": "matmul", "name": "layer", "m": m, "us": 1e6 * total_seconds,
               "gflops": total_flop / total_seconds / 1e9}


def attention_rows(config):
    heads, key_value_heads = config["num_attention_heads"], config.get("num_key_value_heads",
                                                                       config["num_attention_heads"])
    backends = (("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION))
    for head_size in (64, 128):
        for tokens in map(int, o.tokens.split(",")):
            q = random(1, heads, tokens, head_size)
            # Repeated K and V: not every backend supports grouped heads.
            k, v = (random(1, key_value_heads, tokens, head_size).repeat_interleave(heads // key_value_heads, 1)
                    for _ in range(2))
            flop = 4 * heads * head_size * tokens * (tokens + 1) / 2
            for name, backend in backends:
                row = {"phase": "attention", "name": name, "tokens": tokens, "head_size": head_size}
                try:
                    with sdpa_kernel(backend):
                        seconds = median_seconds(lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=True))
                    row.update(ms=1e3 * seconds, gflops=flop / seconds / 1e9)
                except RuntimeError as error:
                    row["error"] = str(error).split("\n")[0][:160]
                yield row


with open(o.shape) as file:
    shape = json.load(file)
torch.manual_seed(1)
with torch.inference_mode():
    print(json.dumps(list(gemm_rows(shape)) + list(attention_rows(shape))))
