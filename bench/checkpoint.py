#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a checkpoint with random bf16 weights in the shape of a config.json, to measure the time from start to first
token with real files. Standard library only.

    bench/checkpoint.py bench/shapes/llama-3.2-1b.json DIR

The tokenizer is the demo model's; answers are meaningless."""
import json
import random
import shutil
import struct
import sys
from pathlib import Path

BLOCK = 1 << 20  # random numbers; all tensors are slices of these


def bf16(values):
    return b"".join(struct.pack("<f", value)[2:] for value in values)


def tensors(config):
    """Names and shapes of a Llama checkpoint in Hugging Face's format."""
    hidden, intermediate = config["hidden_size"], config["intermediate_size"]
    head = config.get("head_dim") or hidden // config["num_attention_heads"]
    q, kv = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    yield "model.embed_tokens.weight", [config["vocab_size"], hidden]
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", [hidden]
        yield prefix + "self_attn.q_proj.weight", [q, hidden]
        yield prefix + "self_attn.k_proj.weight", [kv, hidden]
        yield prefix + "self_attn.v_proj.weight", [kv, hidden]
        yield prefix + "self_attn.o_proj.weight", [hidden, q]
        yield prefix + "post_attention_layernorm.weight", [hidden]
        yield prefix + "mlp.gate_proj.weight", [intermediate, hidden]
        yield prefix + "mlp.up_proj.weight", [intermediate, hidden]
        yield prefix + "mlp.down_proj.weight", [hidden, intermediate]
    yield "model.norm.weight", [hidden]
    if not config.get("tie_word_embeddings"):
        yield "lm_head.weight", [config["vocab_size"], hidden]


def count(shape):
    return shape[0] * (shape[1] if len(shape) > 1 else 1)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    shape_file, folder = Path(sys.argv[1]), Path(sys.argv[2])
    config = json.loads(shape_file.read_text())
    if config.get("model_type") != "llama":
        sys.exit(f"{shape_file}: model_type must be llama")
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(shape_file, folder / "config.json")
    demo = Path(__file__).resolve().parent.parent / "deploy/demo-model/main"
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(demo / name, folder / name)

    header, offset = {}, 0
    for name, shape in tensors(config):
        end = offset + 2 * count(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    generator = random.Random(1)
    block = bf16(generator.gauss(0, 0.02) for _ in range(BLOCK))
    one = bf16([1.0])
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape in tensors(config):
            left = 2 * count(shape)
            if len(shape) == 1:
                file.write(one * count(shape))
                continue
            start = 2 * generator.randrange(BLOCK)
            while left:
                piece = block[start : start + left]
                file.write(piece)
                left -= len(piece)
                start = 0


if __name__ == "__main__":
    main()
