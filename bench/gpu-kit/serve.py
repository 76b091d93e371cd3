#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Starts a cluster of one worker group and one speculator on the same GPU, with random weights, and sends requests, for the
GPU kit. Measures the time until the cluster is ready, the memory plan next to the memory in use, the time to the first token
of a long prompt without and with speculative prefill and of the same prompt with about 50 more tokens, whose prefix is cached,
and the time between tokens of concurrent sequences, greedy and with top-p. Prints JSON; the cluster's log goes to standard
error. The tokenizer is a small test model's."""
import argparse
import concurrent.futures
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time

KIT = os.path.dirname(os.path.abspath(__file__))
FOREPACK = os.path.join(KIT, "bin", "forepack")
TOKENIZER = os.path.join(KIT, "tests", "data", "models", "stories260K")

options = argparse.ArgumentParser()
options.add_argument("--backend", default="cuda")
options.add_argument("--shape", required=True)
options.add_argument("--spec-shape", required=True)
options.add_argument("--speculators", type=int, default=1)
options.add_argument("--tokens", type=int, default=32768)
options.add_argument("--max-num-batched-tokens", default="8192")
options.add_argument("--context", type=int, default=1024, help="prompt tokens of the sequences that decode together")
options.add_argument("--batch", default="1,8,64")
options.add_argument("--decode-tokens", type=int, default=128)
o = options.parse_args()

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]


def used_mib():
    """Memory in use on the GPU, None without nvidia-smi."""
    try:
        gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
        told = subprocess.run(["nvidia-smi", "-i", gpu, "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        return int(told.stdout.split("\n")[0])
    except (OSError, ValueError):
        return None


def generate(prompt, tokens=4, sampling=(), prefill=("--prefill", "off")):
    told = subprocess.run([FOREPACK, "generate", "--server", "127.0.0.1:%d" % port, "--prompt-file", "-", "--max-tokens",
                           str(tokens), "--ignore-eos", *prefill, "--json", *sampling], input=prompt,
                          stdout=subprocess.PIPE, text=True)
    if told.returncode != 0:
        sys.exit("forepack generate ended with %d: %s" % (told.returncode, told.stdout[:200]))
    return json.loads(told.stdout)


def worker():
    """The worker's part of the cluster's status."""
    told = subprocess.run([FOREPACK, "status", "--server", "127.0.0.1:%d" % port, "--json"], stdout=subprocess.PIPE, text=True)
    return next(node for node in json.loads(told.stdout)["nodes"] if node["role"] == "worker")


def words(first, n):
    return " ".join(str(i * 7919 % 9973) for i in range(first, first + n))


def follow(cluster, ready, plan):
    """Copies the cluster's log, and takes the worker's memory plan from it: the plan with more weights."""
    for line in cluster.stdout:
        sys.stderr.write(line)
        if "memory_plan" in line:
            told = {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)\b", line)}
            if told.get("weights_mib", 0) >= plan.get("weights_mib", 0):
                plan.update(told)
        if line.startswith("ready:"):
            ready.set()
    ready.set()


def decode_rows(tokens_per_word):
    """Time between tokens of sequences that run together. Their prompts are cached, so that all soon decode."""
    batches = [int(n) for n in o.batch.split(",")]
    prompts = [words(1000 * i, int(o.context / tokens_per_word)) for i in range(max(batches))]
    rows = []
    with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
        list(pool.map(generate, prompts))
        for batch in batches:
            for name, flags in (("greedy", ()), ("top-p 0.9", ("--temperature", "1", "--top-p", "0.9", "--seed", "1"))):
                before = worker()
                answers = list(pool.map(lambda prompt: generate(prompt, o.decode_tokens, flags), prompts[:batch]))
                times = sorted((a["timing"]["total_ms"] - a["timing"]["ttft_ms"]) / (o.decode_tokens - 1) for a in answers)
                told = worker()
                rows.append({"phase": "served_decode", "batch": batch, "sampling": name, "context": o.context,
                             "token_ms": times[len(times) // 2], "passes": told["passes"] - before["passes"],
                             "pass_s": told["pass_s"] - before["pass_s"],
                             "gap_s": told["pass_gap_s"] - before["pass_gap_s"]})
    return rows


def measure(cluster, ready, plan, begin, before_mib):
    ready.wait()
    row = {"phase": "serve", "ready_s": time.monotonic() - begin, "plan": plan}
    if cluster.poll() is not None:
        sys.exit("the cluster ended with %d before it was ready" % cluster.returncode)
    tokens_per_word = generate(words(5000, 200))["usage"]["prompt_tokens"] / 200  # also warms up
    n = int(o.tokens / tokens_per_word)
    whole = generate(words(0, n))
    kept = generate(words(100000, n), prefill=("--prefill", "required", "--keep-rate", "0.3")) if o.speculators else None
    more = generate(words(0, n + int(50 / tokens_per_word)))
    after_mib = used_mib()
    if after_mib is not None and before_mib is not None:
        row["used_mib"] = after_mib - before_mib
    if kept:
        row.update(pruned_ttft_ms=kept["timing"]["ttft_ms"], pruned_score_ms=kept["timing"]["score_ms"],
                   pruned_tokens=kept["usage"]["prompt_tokens"], pruned_kept_tokens=kept["usage"]["kept_tokens"])
    row.update(prompt_tokens=whole["usage"]["prompt_tokens"], ttft_ms=whole["timing"]["ttft_ms"],
               more_tokens=more["usage"]["prompt_tokens"] - more["usage"]["cached_tokens"],
               more_cached_tokens=more["usage"]["cached_tokens"], more_ttft_ms=more["timing"]["ttft_ms"])
    print(json.dumps([row] + decode_rows(tokens_per_word)))


def main():
    ready, plan, before_mib, begin = threading.Event(), {}, used_mib(), time.monotonic()
    cluster = subprocess.Popen(
        [FOREPACK, "up", "--port", str(port), "--http-port", "0", "--main", TOKENIZER, "--shape", o.shape, *(["--spec", TOKENIZER, "--spec-shape", o.spec_shape] if o.speculators else []), "--speculators", str(o.speculators), "--backend", o.backend, "--dtype", "bf16", "--max-num-batched-tokens",
         o.max_num_batched_tokens], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    follower = threading.Thread(target=follow, args=(cluster, ready, plan), daemon=True)
    follower.start()
    try:
        measure(cluster, ready, plan, begin, before_mib)
    finally:
        cluster.send_signal(signal.SIGTERM)
        cluster.wait(30)


main()
