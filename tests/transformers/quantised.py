# SPDX-License-Identifier: Apache-2.0
"""Checkpoints with quantised matrices, written from the descriptions of their formats, and the same checkpoints with
the dequantised matrices in f32, which transformers computes without the packages of the formats."""
import copy
import json

import torch
from safetensors.torch import save_file

import checkpoints

GROUP = 128
# Place of output j of a word in AutoAWQ's GEMM layout: a word has outputs 0, 2, 4, 6, 1, 3, 5, 7 from its lowest bits.
AWQ_PLACES = [0, 4, 1, 5, 2, 6, 3, 7]
PLACES = list(range(8))


def words(codes, dim, places=PLACES):
    """Packs eight neighbouring codes along `dim` into one int32."""
    codes = codes.to(torch.int64).movedim(dim, -1)
    eight = codes.reshape(*codes.shape[:-1], codes.shape[-1] // 8, 8)
    packed = sum((eight[..., j] & 15) << 4 * places[j] for j in range(8))
    packed = torch.where(packed >= 1 << 31, packed - (1 << 32), packed)
    return packed.to(torch.int32).movedim(-1, dim).contiguous()


def groups_of(weight, symmetric):
    """Returns codes [N, K], zeros [N, G] and f16 scales [N, G]."""
    n, k = weight.shape
    groups = weight.reshape(n, k // GROUP, GROUP)
    low, high = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
    if symmetric:
        scale = (torch.maximum(-low, high) / 7.5).half()
        zero = torch.full_like(low, 8)
    else:
        scale = ((high - low) / 15).half()
        zero = (-low / scale.float()).round().clamp(0, 15)
    codes = ((groups / scale.float()[..., None]).round() + zero[..., None]).clamp(0, 15)
    return codes.reshape(n, k).long(), zero.long(), scale


def dequantised(codes, zero, scale):
    n, k = codes.shape
    difference = codes.reshape(n, k // GROUP, GROUP) - zero[..., None]
    return (difference.float() * scale.float()[..., None]).reshape(n, k)


def awq(name, weight, symmetric):
    codes, zero, scale = groups_of(weight, symmetric)
    return {
        name + "qweight": words(codes.T, 1, AWQ_PLACES),
        name + "qzeros": words(zero.T, 1, AWQ_PLACES),
        name + "scales": scale.T.contiguous(),
    }, dequantised(codes, zero, scale)


def gptq(name, weight, symmetric, second):
    codes, zero, scale = groups_of(weight, symmetric)
    k = weight.shape[1]
    return {
        name + "qweight": words(codes.T, 0),
        name + "qzeros": words((zero if second else zero - 1).T, 1),
        name + "scales": scale.T.contiguous(),
        name + "g_idx": (torch.arange(k) // GROUP).to(torch.int32),
    }, dequantised(codes, zero, scale)


def packed(name, weight, symmetric):
    codes, zero, scale = groups_of(weight, symmetric)
    out = {
        name + "weight_packed": words(codes, 1),
        name + "weight_scale": scale,
        name + "weight_shape": torch.tensor(weight.shape),
    }
    if not symmetric:
        out[name + "weight_zero_point"] = words(zero, 0)
    return out, dequantised(codes, zero, scale)


def int8(name, weight):
    scale = (weight.abs().amax(1, keepdim=True) / 127).bfloat16()
    codes = (weight / scale.float()).round().clamp(-128, 127).to(torch.int8)
    return {name + "weight": codes, name + "weight_scale": scale}, codes.float() * scale.float()


def compressed(kind, symmetric):
    weights = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True, "dynamic": False}
    if kind == "pack-quantized":
        weights.update(num_bits=4, strategy="group", group_size=GROUP, symmetric=symmetric)
    activations = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True, "symmetric": True}
    group = {"targets": ["Linear"], "weights": weights}
    group["input_activations"] = activations if kind == "int-quantized" else None
    return {"quant_method": "compressed-tensors", "format": kind, "ignore": ["lm_head"], "config_groups": {"group_0": group}}


def gptq_config(symmetric, **keys):
    return {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": symmetric, "desc_act": False, **keys}


AWQ = {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True}
FORMATS = {
    "awq": (AWQ, lambda n, w: awq(n, w, False)),
    "gptq": (gptq_config(False), lambda n, w: gptq(n, w, False, False)),
    "gptq-sym": (gptq_config(True, checkpoint_format="gptq"), lambda n, w: gptq(n, w, True, False)),
    "gptq-v2": (gptq_config(False, checkpoint_format="gptq_v2"), lambda n, w: gptq(n, w, False, True)),
    "packed": (compressed("pack-quantized", True), lambda n, w: packed(n, w, True)),
    "packed-asym": (compressed("pack-quantized", False), lambda n, w: packed(n, w, False)),
    "int8": (compressed("int-quantized", True), int8),
}


def cases():
    shape = {"hidden_size": 256, "intermediate_size": 384, "num_attention_heads": 4, "head_dim": 64}
    for name in FORMATS:
        kind = {"awq": "qwen2", "packed": "phi3"}.get(name, "llama")
        case = checkpoints.Case(f"quantised-{name}", checkpoints.base(kind, **shape))
        case.quantised = name
        yield case


def write(folder, plain, case, seed):
    """Writes the quantised checkpoint to `folder` and the dequantised one to `plain`."""
    settings, quantise = FORMATS[case.quantised]
    stored, exact = {}, {}
    for name, tensor in checkpoints.tensors(case.config, seed).items():
        stored[name] = exact[name] = tensor
        if name.endswith("_proj.weight"):
            del stored[name]
            tensors, exact[name] = quantise(name.removesuffix("weight"), tensor)
            stored.update(tensors)
    config = copy.deepcopy(case.config)
    for at, tensors in ((plain, exact), (folder, stored)):
        at.mkdir(parents=True)
        (at / "config.json").write_text(json.dumps(config, indent=2))
        save_file(tensors, at / "model.safetensors", metadata={"format": "pt"})
        config["quantization_config"] = settings
