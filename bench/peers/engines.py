#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures prefill and decode of another engine on the CPU, with random weights of a shape. Prints JSON: a list of rows with
`engine`, `phase` (prefill or decode), `tokens`, `batch` and `tokens_per_s`. bench/peers/engines.sh installs what it needs.

Usage: engines.py --engine pytorch|openvino --shape CONFIG.json --folder DIR [--threads N] [--prompt-tokens 512,4096]
                  [--batch 1,8,32] [--decode-tokens N]
  --folder DIR        the random checkpoint is made there once, and the peer's own form of it
  --prompt-tokens     lengths of one prompt that is prefilled, comma-separated
  --batch             numbers of sequences that decode together, comma-separated; each has 128 tokens at the start
  --decode-tokens     tokens that each sequence decodes
"""
import argparse
import json
import os
import sys
import time

PROMPT_TOKENS = 128  # of each sequence before it decodes


def counts(text):
    return [int(part) for part in text.split(",")]


options = argparse.ArgumentParser()
options.add_argument("--engine", required=True, choices=("pytorch", "openvino"))
options.add_argument("--shape", required=True)
options.add_argument("--folder", required=True)
options.add_argument("--threads", type=int, default=os.cpu_count())
options.add_argument("--prompt-tokens", type=counts, default=[512, 4096])
options.add_argument("--batch", type=counts, default=[1, 8, 32])
options.add_argument("--decode-tokens", type=int, default=16)
o = options.parse_args()
os.environ["OMP_NUM_THREADS"] = str(o.threads)

import torch  # noqa: E402, after the number of threads is set
import transformers  # noqa: E402

torch.set_num_threads(o.threads)
transformers.logging.set_verbosity_error()


def checkpoint():
    """Returns the folder of a random bf16 checkpoint of the shape."""
    folder = os.path.join(o.folder, os.path.basename(o.shape).removesuffix(".json"))
    if not os.path.exists(os.path.join(folder, "config.json")):
        with open(o.shape, encoding="utf-8") as file:
            config = transformers.LlamaConfig.from_dict(json.load(file))
        torch.manual_seed(1)
        torch.set_default_dtype(torch.bfloat16)
        transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def open_pytorch():
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint(), dtype=torch.bfloat16).eval()
    return model, "PyTorch %s, bf16" % torch.__version__


def open_openvino():
    import openvino
    from optimum.intel import OVModelForCausalLM
    exported = checkpoint() + "-openvino"
    settings = {"INFERENCE_NUM_THREADS": o.threads, "PERFORMANCE_HINT": "LATENCY"}
    if not os.path.exists(exported):
        OVModelForCausalLM.from_pretrained(checkpoint(), export=True, compile=False).save_pretrained(exported)
    return OVModelForCausalLM.from_pretrained(exported, ov_config=settings), "OpenVINO %s" % openvino.get_version().split("-")[0]


def seconds(model, batch, prompt_tokens, new_tokens):
    """Times the greedy answers to random prompts, with exactly this number of new tokens."""
    tokens = torch.randint(3, model.config.vocab_size, (batch, prompt_tokens))
    begin = time.perf_counter()
    with torch.inference_mode():
        model.generate(input_ids=tokens, attention_mask=torch.ones_like(tokens), do_sample=False, min_new_tokens=new_tokens,
                       max_new_tokens=new_tokens, pad_token_id=0)
    return time.perf_counter() - begin


model, name = open_pytorch() if o.engine == "pytorch" else open_openvino()
rows = []
seconds(model, 1, PROMPT_TOKENS, 2)  # warm-up
for n in o.prompt_tokens:
    rows.append({"engine": name, "phase": "prefill", "tokens": n, "batch": 1, "tokens_per_s": n / seconds(model, 1, n, 1)})
for batch in o.batch:
    prefill = seconds(model, batch, PROMPT_TOKENS, 1)
    decode = seconds(model, batch, PROMPT_TOKENS, 1 + o.decode_tokens) - prefill
    rows.append({"engine": name, "phase": "decode", "tokens": o.decode_tokens, "batch": batch,
                 "tokens_per_s": batch * o.decode_tokens / decode})
json.dump(rows, sys.stdout)
