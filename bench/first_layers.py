#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a model of the first N layers of a checkpoint, to score prompts with a model's own early layers. Weights are copied
unchanged, and the other files are linked.

Usage: bench/first_layers.py MODEL_DIR N OUT_DIR"""
import json
import os
import re
import struct
import sys

LAYER = re.compile(r"model\.layers\.(\d+)\.")


def is_kept(name, layers):
    layer = LAYER.match(name)
    return not layer or int(layer.group(1)) < layers


def copy_tensors(source, target, layers):
    with open(source, "rb") as file:
        size = struct.unpack("<Q", file.read(8))[0]
        header = json.loads(file.read(size))
        kept, at = {}, 0
        for name, tensor in header.items():
            if name != "__metadata__" and is_kept(name, layers):
                begin, end = tensor["data_offsets"]
                kept[name] = tensor | {"data_offsets": [at, at + end - begin]}
                at += end - begin
        text = json.dumps(kept).encode()
        text += b" " * (-len(text) % 8)
        with open(target, "wb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            for name in kept:
                begin, end = header[name]["data_offsets"]
                file.seek(8 + size + begin)
                out.write(file.read(end - begin))


def copy_index(source, target, layers):
    with open(source, encoding="utf-8") as file:
        index = json.load(file)
    index["weight_map"] = {name: file for name, file in index["weight_map"].items() if is_kept(name, layers)}
    with open(target, "w", encoding="utf-8") as file:
        json.dump(index, file)


def main():
    model, layers, out = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    with open(os.path.join(model, "config.json"), encoding="utf-8") as file:
        config = json.load(file)
    if not 0 < layers <= config["num_hidden_layers"]:
        sys.exit("%d layers: %s has %d" % (layers, model, config["num_hidden_layers"]))
    config["num_hidden_layers"] = layers
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][:layers]
    os.makedirs(out, exist_ok=True)
    for name in os.listdir(model):
        source, target = os.path.join(model, name), os.path.join(out, name)
        if os.path.lexists(target):
            os.remove(target)
        if name.endswith(".safetensors"):
            copy_tensors(source, target, layers)
        elif name.endswith(".safetensors.index.json"):
            copy_index(source, target, layers)
        elif name == "config.json":
            with open(target, "w", encoding="utf-8") as file:
                json.dump(config, file, indent=1)
        else:
            os.symlink(os.path.realpath(source), target)


if __name__ == "__main__":
    if len(sys.argv) != 4 or not sys.argv[2].isdigit():
        print("expected MODEL_DIR N OUT_DIR: bench/first_layers.py", file=sys.stderr)
        sys.exit(2)
    main()
