# SPDX-License-Identifier: Apache-2.0
"""The models of the demo pair: Llama as Hugging Face defines it. A model is a config and a dict of f32 weights under their
names in the file."""
import ctypes, json, struct
from pathlib import Path
import torch
import torch.nn.functional as F


def rotation(c, positions):
    """cos and sin for queries and keys of [B, heads, T, head_dim]."""
    angle = positions[:, None, :, None] * c["rope_theta"] ** (-torch.arange(0, c["head_dim"], 2) / c["head_dim"])
    return torch.cat([angle.cos()] * 2, -1), torch.cat([-angle.sin(), angle.sin()], -1)


def forward(c, w, ids, positions):
    """Hidden states [B, T, width] after the last norm; the residual stream after each layer; each layer's (queries, keys),
    both [B, heads, T, head_dim]."""
    B, T = ids.shape
    H, KV, D = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
    cos, sin = rotation(c, positions)
    rotate = lambda x: x * cos + x.roll(D // 2, -1) * sin
    norm = lambda x, name: F.rms_norm(x, x.shape[-1:], w[name + ".weight"], c["rms_norm_eps"])
    x = F.embedding(ids, w["model.embed_tokens.weight"])
    streams, heads = [], []
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}."
        linear = lambda x, name: F.linear(x, w[at + name + ".weight"])
        h = norm(x, at + "input_layernorm")
        q, k, v = (linear(h, f"self_attn.{p}_proj").view(B, T, -1, D).transpose(1, 2) for p in "qkv")
        q, k = rotate(q), rotate(k).repeat_interleave(H // KV, 1)
        heads.append((q, k))
        a = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v.repeat_interleave(H // KV, 1), is_causal=True)
        x = x + linear(a.transpose(1, 2).reshape(B, T, H * D), "self_attn.o_proj")
        h = norm(x, at + "post_attention_layernorm")
        x = x + linear(F.silu(linear(h, "mlp.gate_proj")) * linear(h, "mlp.up_proj"), "mlp.down_proj")
        streams.append(x)
    return norm(x, "model.norm"), streams, heads


def load(folder: Path):
    """Config, weights and vocabulary (id to text) of the model in `folder`."""
    raw = (folder / "model.safetensors").read_bytes()
    size, = struct.unpack("<Q", raw[:8])
    w = {}
    for name, t in json.loads(raw[8:8 + size]).items():
        if name != "__metadata__":
            a, b = (8 + size + o for o in t["data_offsets"])
            w[name] = torch.frombuffer(bytearray(raw[a:b]), dtype=torch.bfloat16).view(t["shape"]).float()
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    texts = {i: t.replace("Ġ", " ").replace("Ċ", "\n") for t, i in tokenizer["model"]["vocab"].items()}
    texts |= {t["id"]: t["content"] for t in tokenizer["added_tokens"]}
    return json.loads((folder / "config.json").read_text()), w, texts


def save(path: Path, w):
    """Writes the weights as bf16."""
    header, blobs, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name in sorted(w):
        rounded = w[name].detach().to(torch.bfloat16).contiguous()
        blob = ctypes.string_at(rounded.data_ptr(), rounded.nbytes)
        header[name] = {"dtype": "BF16", "shape": list(w[name].shape), "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))
