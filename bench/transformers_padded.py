#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prefill of padded batches with Hugging Face transformers and random weights, for comparison with `forepack bench prepack`
on the same GPU. As there, batches are formed from a file of lengths in its order. Each batch is padded on the left to its
longest prompt, as generate() requires, and one pass yields the first tokens. Prints JSON; needs torch and transformers, no
network. Exits with 77 if they are not installed.

Usage: transformers_padded.py --shape CONFIG.json --lengths FILE [--limit N] [--batch-size N] [--rounds N] [--device NAME]
"""
import argparse
import contextlib
import json
import statistics
import sys
import time

try:
    import torch
    import transformers
except ImportError as error:
    print("skipped: %s" % error, file=sys.stderr)
    sys.exit(77)

options = argparse.ArgumentParser()
options.add_argument("--shape", required=True)
options.add_argument("--lengths", required=True)
options.add_argument("--limit", type=int, default=1024)
options.add_argument("--batch-size", type=int, default=64)
options.add_argument("--rounds", type=int, default=3)
options.add_argument("--device", default="cuda")
o = options.parse_args()

with open(o.lengths) as file:
    lengths = [int(line) for line in file if line.strip()][: o.limit]
batches = [lengths[i : i + o.batch_size] for i in range(0, len(lengths), o.batch_size)]

with open(o.shape) as file:
    config = transformers.LlamaConfig.from_dict(json.load(file))
torch.manual_seed(1)
torch.set_default_dtype(torch.bfloat16)
device = torch.device(o.device)
with device if hasattr(device, "__enter__") else contextlib.nullcontext():  # torch 2 makes the weights there
    model = transformers.LlamaForCausalLM(config).to(device).eval()


def wait():
    if device.type == "cuda":
        torch.cuda.synchronize()


@torch.inference_mode()
def prefill(batch):
    longest = max(batch)
    tokens = torch.randint(3, config.vocab_size, (len(batch), longest), device=device)
    lengths_of = torch.tensor(batch, device=device).unsqueeze(1)
    mask = (torch.arange(longest, device=device) >= longest - lengths_of).long()
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    wait()
    begin = time.perf_counter()
    hidden = model.model(input_ids=tokens, attention_mask=mask, position_ids=positions, use_cache=True)[0][:, -1]
    model.lm_head(hidden).argmax(-1).tolist()
    return time.perf_counter() - begin


prefill(batches[0])  # warm-up
seconds = statistics.median(sum(prefill(batch) for batch in batches) for _ in range(o.rounds))
print(json.dumps([{
    "policy": "transformers padded", "version": transformers.__version__, "batch_size": o.batch_size, "prompts": len(lengths),
    "tokens": sum(lengths), "rows": sum(len(batch) * max(batch) for batch in batches),
    "us_per_token": 1e6 * seconds / sum(lengths)}]))
