#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes checkpoints and the results of Hugging Face transformers for them, for against_transformers.

    generate.py DIR [--seeds N] [--first SEED]

Each case is a folder with the checkpoint, case.json (tokens, and the keys that a refusal may name) and logprobs.f32
[tokens, vocabulary]: a prompt in one pass, then greedy tokens one by one through transformers' cache. Every third
checkpoint is also written once more by transformers itself (save_pretrained)."""
import argparse
import json
import logging
import shutil
import sys
import warnings
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, Mistral3ForConditionalGeneration

import checkpoints
import quantised
import tokenizer_cases

torch.set_num_threads(1)
torch.set_grad_enabled(False)
transformers.logging.set_verbosity(logging.CRITICAL)
transformers.utils.logging.disable_progress_bar()
warnings.simplefilter("ignore")


def run(model, vocab, seed, position):
    """Returns the tokens of a prompt at `position` and of its greedy answer, and their log-probabilities."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, vocab, (1, checkpoints.PROMPT), generator=generator)
    out = model(tokens, position_ids=torch.arange(position, position + checkpoints.PROMPT).view(1, -1), use_cache=True)
    rows, cache = [out.logits[0]], out.past_key_values
    for _ in range(checkpoints.STEPS):
        token = rows[-1][-1:].argmax(dim=-1).view(1, 1)
        position_ids = torch.tensor([[position + tokens.shape[1]]])
        tokens = torch.cat((tokens, token), dim=1)
        out = model(token, position_ids=position_ids, past_key_values=cache, use_cache=True)
        rows.append(out.logits[0])
    return tokens[0].tolist(), torch.log_softmax(torch.cat(rows).double(), dim=-1).float()


def expect(folder, case, seed, source):
    """Writes the results of transformers for the checkpoint in `source`. Returns its model, or None if it refuses it."""
    described = {"refused": case.refused, "prompt": checkpoints.PROMPT, "position": case.position}
    model = None
    try:
        of_any = AutoModelForCausalLM if "text_config" not in case.config else Mistral3ForConditionalGeneration
        model = of_any.from_pretrained(source, dtype=torch.float32, attn_implementation="eager").eval()
        tokens, logprobs = run(model, (case.config.get("text_config") or case.config)["vocab_size"], seed, case.position)
        described["tokens"] = tokens
        logprobs.numpy().tofile(folder / "logprobs.f32")
    except Exception as error:  # any kind: in each case there is nothing to compare with
        described["peer_error"] = f"{type(error).__name__}: {error}"[:300]
        model = None
    (folder / "case.json").write_text(json.dumps(described))
    return model


def write(folder, case, seed, resave):
    checkpoints.write(folder, case, seed)
    model = expect(folder, case, seed, folder)
    if model is None or not resave or case.refused or type(model).__name__ not in checkpoints.SAVED:
        return
    again = folder.with_name(folder.name + "-saved")
    model.save_pretrained(again)
    for name in ("case.json", "logprobs.f32"):
        shutil.copy(folder / name, again / name)


def write_quantised(folder, case, seed):
    plain = folder.parent.parent / "dequantised" / folder.name
    quantised.write(folder, plain, case, seed)
    expect(folder, case, seed, plain)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", type=Path)
    parser.add_argument("--seeds", type=int, default=0, help="drawn checkpoints in addition to the fixed ones")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--data", type=Path, help="folder with more tokenizers")
    options = parser.parse_args()
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    cases = list(checkpoints.fixed())
    cases += [checkpoints.drawn(seed) for seed in range(options.first, options.first + options.seeds)]
    for i, case in enumerate(cases):
        write(options.dir / "checkpoints" / case.name, case, i, resave=i % 3 == 0)
    for i, case in enumerate(quantised.cases()):
        write_quantised(options.dir / "checkpoints" / case.name, case, i)
    tokenizer_cases.write_all(options.dir / "tokenizers", options.seeds, options.first, options.data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
