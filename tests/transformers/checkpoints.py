# SPDX-License-Identifier: Apache-2.0
"""Random small checkpoints of the supported architectures, with values drawn for the keys of config.json that affect
the result. Every case lists the keys that Forepack must refuse; with an empty list, Forepack must agree with transformers."""
import copy
import json
import random

import torch
from safetensors.torch import save_file

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "seed_oss": "SeedOssForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
    "granite": "GraniteForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "arcee": "ArceeForCausalLM",
    "apertus": "ApertusForCausalLM",
    "ministral3": "Ministral3ForCausalLM",
}
SAVED = (*ARCHITECTURES.values(), "Mistral3ForConditionalGeneration")
WIDE = ("qwen3", "seed_oss", "ministral3")  # families whose default head_dim is 128
BIASED = ("llama", "qwen3", "seed_oss", "smollm3", "granite", "olmo2", "arcee", "apertus")  # read attention_bias
MLP_BIASED = ("llama", "seed_oss", "smollm3", "granite", "arcee")  # read mlp_bias
ACTIVATIONS = {"arcee": "relu2", "apertus": "xielu"}
PROMPT, STEPS = 24, 12
TOTAL = PROMPT + STEPS


class Case:
    def __init__(self, name, config, refused=(), position=0, **weights):
        self.name = name
        self.config = config
        self.refused = list(refused)  # keys that a refusal may name; empty: must be computed
        self.position = position  # of the first token
        self.weights = weights


# yarn of Ministral 3. The positions of a prompt and its answer span several multiples of the original context.
QUERY_SCALE = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8, "mscale": 1.0,
               "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}


def base(model_type, **keys):
    """A config.json as transformers 4 writes it."""
    config = {
        "architectures": [ARCHITECTURES[model_type]],
        "model_type": model_type,
        "hidden_size": 48,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16 if model_type in WIDE else 12,
        "hidden_act": ACTIVATIONS.get(model_type, "silu"),
        "vocab_size": 96,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "rope_theta": 100.0,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
        "transformers_version": "4.51.3",
        "use_cache": True,
    }
    if model_type == "mistral":
        config["sliding_window"] = None
    if model_type in ("phi3", "smollm3", "olmo2", "apertus", "ministral3"):
        config["pad_token_id"] = 0
    if model_type == "granite":
        config.update(embedding_multiplier=12.0, residual_multiplier=0.22, attention_multiplier=0.05, logits_scaling=8.0)
    if model_type == "ministral3":
        config["rope_scaling"] = dict(QUERY_SCALE)
    config.update(keys)
    return {key: value for key, value in config.items() if value != "absent"}


def modern(config):
    """The same config.json as transformers 5 writes it: rope_parameters and dtype."""
    config = copy.deepcopy(config)
    rope = config.pop("rope_scaling", None) or {}
    if "type" in rope:
        rope.setdefault("rope_type", rope.pop("type"))
    rope.setdefault("rope_type", "default")
    if "rope_theta" in config:
        rope.setdefault("rope_theta", config.pop("rope_theta"))
    config["rope_parameters"] = rope
    config["dtype"] = config.pop("torch_dtype")
    config["transformers_version"] = "5.23.0"
    return config


# ---- weights ----


def heads_of(config):
    heads = config["num_attention_heads"]
    absent = {"mistral": 8, "qwen2": 32, "qwen3": 32, "seed_oss": 8, "smollm3": 4, "ministral3": 8}.get(config["model_type"], heads)
    kv_heads = config.get("num_key_value_heads", absent) or heads
    head = config.get("head_dim", 128 if config["model_type"] in WIDE else None)
    return heads, kv_heads, head or config["hidden_size"] // heads


def tensors(config, seed, dtype="float32", head=None):
    """head: None, or "equal" or "other" to store a head in addition to a tied table."""
    generator = torch.Generator().manual_seed(seed)
    hidden, vocab, middle = config["hidden_size"], config["vocab_size"], config["intermediate_size"]
    heads, kv_heads, size = heads_of(config)
    kind = config["model_type"]
    attention_bias = config.get("attention_bias", kind == "seed_oss") and kind in BIASED
    out_bias = config.get("attention_out_bias", False) if kind == "seed_oss" else attention_bias

    def draw(*shape, gain=1.0):
        return torch.randn(*shape, generator=generator) * gain

    def matrix(rows, columns, gain=1.0):
        return draw(rows, columns, gain=gain / columns**0.5)

    def norm(n):
        return 1 + draw(n, gain=0.1)

    out = {"model.embed_tokens.weight": draw(vocab, hidden), "model.norm.weight": norm(hidden)}
    for layer in range(config["num_hidden_layers"]):
        p = f"model.layers.{layer}."
        norms = {"olmo2": ("post_attention", "post_feedforward"), "apertus": ("attention", "feedforward")}
        for name in norms.get(kind, ("input", "post_attention")):
            out[p + f"{name}_layernorm.weight"] = norm(hidden)
        qkv = (("q", heads * size), ("k", kv_heads * size), ("v", kv_heads * size))
        if kind == "phi3":
            out[p + "self_attn.qkv_proj.weight"] = torch.cat([matrix(rows, hidden, gain=1.5) for _, rows in qkv])
            out[p + "mlp.gate_up_proj.weight"] = matrix(2 * middle, hidden)
            out[p + "mlp.down_proj.weight"] = matrix(hidden, middle)
            out[p + "self_attn.o_proj.weight"] = matrix(hidden, heads * size)
            continue
        for name, rows in qkv:
            out[p + f"self_attn.{name}_proj.weight"] = matrix(rows, hidden, gain=1.5)
            if attention_bias or kind == "qwen2":
                out[p + f"self_attn.{name}_proj.bias"] = draw(rows, gain=0.5)
        out[p + "self_attn.o_proj.weight"] = matrix(hidden, heads * size)
        if out_bias:
            out[p + "self_attn.o_proj.bias"] = draw(hidden, gain=0.5)
        if kind in ("qwen3", "olmo2", "apertus"):
            out[p + "self_attn.q_norm.weight"] = norm(size * (heads if kind == "olmo2" else 1))
            out[p + "self_attn.k_norm.weight"] = norm(size * (kv_heads if kind == "olmo2" else 1))
        if kind == "apertus":
            for name, value in (("alpha_p", 0.3), ("alpha_n", -0.4)):
                out[p + f"mlp.act_fn.{name}"] = value + draw(1, gain=0.3)
            out[p + "mlp.act_fn.beta"], out[p + "mlp.act_fn.eps"] = torch.tensor(0.5), torch.tensor(-1e-6)
        for name, rows, columns in (("gate", middle, hidden), ("up", middle, hidden), ("down", hidden, middle)):
            if name == "gate" and kind in ACTIVATIONS:
                continue
            out[p + f"mlp.{name}_proj.weight"] = matrix(rows, columns)
            if config.get("mlp_bias") and kind in MLP_BIASED:
                out[p + f"mlp.{name}_proj.bias"] = draw(rows, gain=0.5)
    if config.get("tie_word_embeddings"):
        out["model.embed_tokens.weight"] *= 3 / hidden**0.5
        if head == "equal":
            out["lm_head.weight"] = out["model.embed_tokens.weight"].clone()
    if not config.get("tie_word_embeddings") or head == "other":
        out["lm_head.weight"] = matrix(vocab, hidden, gain=3)
    return {name: tensor.to(getattr(torch, dtype)).contiguous() for name, tensor in out.items()}


def whole(text, seed, prefix, **weights):
    """Returns the tensors of a Mistral 3 model with text and vision parts. `text` is the config of its text model."""
    prefixes = {"old": ("language_model.", ""), "new": ("model.language_model.", "model.")}
    of_text, of_rest = prefixes[prefix]
    out = {}
    for name, tensor in tensors(text, seed, **weights).items():
        is_head = name.startswith("lm_head")
        out[name if is_head and prefix == "new" else of_text + (name if prefix == "old" else name[len("model."):])] = tensor
    generator = torch.Generator().manual_seed(seed + 1)
    for name, shape in VISION_TENSORS.items():
        out[of_rest + name] = torch.randn(*shape, generator=generator) * 0.1
    return out


VISION = {"model_type": "pixtral", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
          "num_attention_heads": 2, "head_dim": 8, "image_size": 28, "patch_size": 14, "num_channels": 3,
          "hidden_act": "silu"}
VISION_TENSORS = {
    "vision_tower.patch_conv.weight": (16, 3, 14, 14),
    "vision_tower.ln_pre.weight": (16,),
    "vision_tower.transformer.layers.0.attention_norm.weight": (16,),
    "vision_tower.transformer.layers.0.ffn_norm.weight": (16,),
    **{f"vision_tower.transformer.layers.0.attention.{n}_proj.weight": (16, 16) for n in "qkvo"},
    **{f"vision_tower.transformer.layers.0.feed_forward.{n}_proj.weight": (24, 16) for n in ("gate", "up")},
    "vision_tower.transformer.layers.0.feed_forward.down_proj.weight": (16, 24),
    "multi_modal_projector.norm.weight": (16,),
    "multi_modal_projector.patch_merger.merging_layer.weight": (16, 64),
    "multi_modal_projector.linear_1.weight": (48, 16),
    "multi_modal_projector.linear_2.weight": (48, 48),
}


def with_vision(text, **keys):
    """A config.json of a Mistral 3 that reads images."""
    text = {key: value for key, value in text.items() if key not in ("architectures", "torch_dtype")}
    return {"architectures": ["Mistral3ForConditionalGeneration"], "model_type": "mistral3", "text_config": text,
            "vision_config": VISION, "image_token_index": 10, "torch_dtype": "float32", **keys}


def write(folder, case, seed):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(case.config, indent=2))
    text = case.config.get("text_config")
    content = whole(text, seed, **case.weights) if text else tensors(case.config, seed, **case.weights)
    save_file(content, folder / "model.safetensors", metadata={"format": "pt"})


# ---- the fixed set: every key alone ----

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def fixed():
    for kind in ARCHITECTURES:
        yield Case(f"{kind}", base(kind))
        yield Case(f"{kind}-modern", modern(base(kind)))
        yield Case(f"{kind}-tied", base(kind, tie_word_embeddings=True))
        yield Case(f"{kind}-bias", base(kind, attention_bias=True))
        yield Case(f"{kind}-mlp-bias", base(kind, mlp_bias=True), [] if kind in MLP_BIASED else ["mlp_bias"])
        yield Case(f"{kind}-gelu", base(kind, hidden_act="gelu"), ["hidden_act"])
        yield Case(f"{kind}-wide-heads", base(kind, head_dim=32, num_key_value_heads=1))
        if kind != "mistral":  # whose class refuses it
            yield Case(f"{kind}-null-kv-heads", base(kind, num_key_value_heads=None))
    yield Case("eps", base("llama", rms_norm_eps=0.05))
    yield Case("eps-absent", base("llama", rms_norm_eps="absent"))
    yield Case("theta-absent", base("llama", rope_theta="absent"))
    yield Case("bf16", base("llama"), dtype="bfloat16")
    yield Case("f16", base("qwen2"), dtype="float16")
    yield Case("swish", base("llama", hidden_act="swish"))
    yield Case("mistral-class-kv-heads", base("mistral", num_attention_heads=16, head_dim=4, num_key_value_heads="absent"))
    yield Case("tied-head-equal", base("llama", tie_word_embeddings=True), head="equal")
    yield Case("tied-head-other", base("llama", tie_word_embeddings=True), ["tie_word_embeddings"], head="other")
    yield Case("no-architectures", base("qwen3", architectures="absent"))
    yield Case("partial", base("llama", partial_rotary_factor=0.5), ["partial_rotary_factor"])
    yield Case("not-causal", base("llama", is_causal=False), ["is_causal"])
    layers = {"1": {"intermediate_size": 32}}
    yield Case("per-layer", base("llama", per_layer_config=layers), ["per_layer_config"])
    # positions
    rope = "rope_scaling"
    yield Case("linear", base("llama", rope_scaling={"type": "linear", "factor": 4.0}))
    yield Case("linear-1", base("llama", rope_scaling={"type": "linear", "factor": 1.0}))
    yield Case("linear-modern", modern(base("qwen2", rope_scaling={"rope_type": "linear", "factor": 2.0})))
    yield Case("dynamic", base("llama", rope_scaling={"type": "dynamic", "factor": 4.0}))
    for original in (16, None):
        for top in (32, None):
            scaling = dict(LLAMA3, **({"original_max_position_embeddings": original} if original else {}))
            keys = {"original_max_position_embeddings": top} if top else {}
            config = base("llama", rope_scaling=scaling, max_position_embeddings=128, rope_theta=1000.0, **keys)
            yield Case(f"llama3-{original}-{top}", config)
            yield Case(f"llama3-{original}-{top}-modern", modern(config))
    yield Case("rope-empty", base("llama", rope_theta="absent", rope_parameters={}))
    yield Case("rope-theta-alone", base("llama", rope_theta="absent", rope_parameters={"rope_theta": 50.0}))
    both = modern(base("llama"))
    yield Case("both-linear", dict(both, rope_scaling={"rope_type": "linear", "factor": 4.0}))
    yield Case("both-top-theta", dict(both, rope_theta=30.0, rope_scaling={"rope_type": "linear", "factor": 4.0}))
    yield Case("both-empty", dict(both, rope_scaling={}))
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
    yield Case("yarn", base("qwen2", rope_scaling=yarn))
    yield Case("yarn-modern", modern(base("llama", rope_scaling=yarn)))
    yield Case("both-yarn", dict(both, rope_scaling=yarn))
    for name, keys in (
        ("mscale", {"mscale": 1.5, "mscale_all_dim": 0.7}),
        ("mscale-alone", {"mscale": 1.5}),
        ("attention", {"attention_factor": 0.8}),
        ("betas", {"beta_fast": 4, "beta_slow": 2}),
        ("exact", {"truncate": False}),
        ("no-original", {"original_max_position_embeddings": None}),
    ):
        scaling = {key: value for key, value in dict(yarn, **keys).items() if value is not None}
        yield Case(f"yarn-{name}", base("llama", head_dim=32, rope_theta=10000.0, rope_scaling=scaling))
    half = [1.0 + 0.1 * i for i in range(6)]
    for original in (16, 32, 64):  # shorter than the prompt, than prompt and answer, and longer
        longrope = {"rope_type": "longrope", "short_factor": half, "long_factor": [2 * f for f in half], "factor": 2.0,
                    "original_max_position_embeddings": original}
        yield Case(f"longrope-{original}", base("llama", rope_scaling=longrope))
    del longrope["factor"]
    yield Case("longrope-no-factor", base("llama", rope_scaling=longrope, max_position_embeddings=256))
    yield Case("longrope-attention", base("llama", rope_scaling=dict(longrope, attention_factor=1.3)))
    # Phi-3
    for original in (16, 32, 64):
        scaling = {"type": "longrope", "short_factor": half, "long_factor": [3 * f for f in half]}
        if original == 16:
            scaling.update(type="su", original_max_position_embeddings=16)
        yield Case(f"phi3-longrope-{original}", base("phi3", head_dim="absent", rope_scaling=scaling,
                                                     max_position_embeddings=128, original_max_position_embeddings=original))
    scaling = {"type": "longrope", "short_factor": half[:3], "long_factor": [3 * f for f in half[:3]]}
    partial = {"partial_rotary_factor": 0.5, "original_max_position_embeddings": 64}
    yield Case("phi3-partial", base("phi3", head_dim="absent", partial_rotary_factor=0.5))
    yield Case("phi3-partial-longrope", base("phi3", head_dim="absent", rope_scaling=scaling, **partial))
    yield Case("phi3-yarn", base("phi3", head_dim="absent", rope_scaling={"type": "linear", "factor": 2.0}), [rope])
    yield Case("untyped", base("llama", rope_scaling={"factor": 4.0}), [rope])
    # Far positions, where the rounding of angles to f32 matters. With dynamic scaling the frequencies of each row are
    # powers of another base, and torch's power is off by one unit in the last place for some of them.
    half = [1.0 + i for i in range(16)]
    for name, scaling in (
        ("default", None),
        ("linear", {"type": "linear", "factor": 4.0}),
        ("dynamic", {"type": "dynamic", "factor": 4.0}),
        ("llama3", dict(LLAMA3, original_max_position_embeddings=8192)),
        ("yarn", {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 8192}),
        ("longrope", {"rope_type": "longrope", "short_factor": half, "long_factor": [2 * f for f in half],
                      "original_max_position_embeddings": 8192}),
    ):
        position, context = {"dynamic": (20000, 8192), "linear": (100000, 32768)}.get(name, (100000, 131072))
        keys = {"max_position_embeddings": context, "rope_theta": 500000.0}
        yield Case(f"far-{name}", base("llama", head_dim=32, rope_scaling=scaling, **keys), position=position)
    # Seed-OSS and SmolLM3
    yield Case("seed_oss-out-bias", base("seed_oss", attention_out_bias=True))
    yield Case("seed_oss-no-bias", base("seed_oss", attention_bias=False))
    five = {"num_hidden_layers": 5}
    yield Case("smollm3-layers", base("smollm3", no_rope_layers=[1, 0, 1, 1, 0], **five))
    yield Case("smollm3-interval", base("smollm3", no_rope_layer_interval=2, **five))
    yield Case("smollm3-default", base("smollm3", tie_word_embeddings=True, rope_theta="absent", **five))
    yield Case("smollm3-yarn", base("smollm3", rope_scaling=yarn, **five))
    yield Case("smollm3-short-list", base("smollm3", no_rope_layers=[1], **five), ["no_rope_layers"])
    yield from later_families(yarn)
    # windows
    full, sliding = "full_attention", "sliding_attention"
    yield Case("mistral-window", base("mistral", sliding_window=16))
    yield Case("mistral-window-layers", base("mistral", sliding_window=16, layer_types=[full, full]))
    yield Case("llama-window", base("llama", sliding_window=16))
    for kind in ("qwen2", "qwen3"):
        on = {"use_sliding_window": True, "sliding_window": 16, "num_hidden_layers": 3}
        yield Case(f"{kind}-window-off", base(kind, use_sliding_window=False, sliding_window=16, max_window_layers=0))
        yield Case(f"{kind}-window-late", base(kind, max_window_layers=3, **on))
        yield Case(f"{kind}-window-default", base(kind, **on))
        yield Case(f"{kind}-window", base(kind, max_window_layers=1, **on))
        yield Case(f"{kind}-layers", base(kind, max_window_layers=28, layer_types=[full, sliding, sliding], **on))
        yield Case(f"{kind}-full-layers", base(kind, max_window_layers=0, layer_types=[full, full, full], **on))
        yield Case(f"{kind}-layers-off", base(kind, layer_types=[full, sliding]), ["layer_types"])
    yield Case("chunked", base("qwen2", layer_types=[full, "chunked_attention"]), ["layer_types"])


def later_families(yarn):
    """Granite, Arcee, Apertus, OLMo 2, Ministral 3, and Mistral 3 with vision."""
    plain = {"embedding_multiplier": "absent", "residual_multiplier": "absent", "logits_scaling": "absent"}
    yield Case("granite-defaults", base("granite", **plain))
    yield Case("granite-attention-absent", base("granite", attention_multiplier="absent"))
    yield Case("granite-bf16", base("granite", tie_word_embeddings=True), dtype="bfloat16")
    yield Case("granite-yarn", base("granite", rope_scaling=yarn, mlp_bias=True, attention_bias=True))
    yield Case("granite-zero", base("granite", residual_multiplier=0.0), ["residual_multiplier"])
    for key in ("embedding_multiplier", "logits_scaling", "attention_multiplier", "scale_emb", "final_logit_softcapping"):
        yield Case(f"llama-{key}", base("llama", **{key: 2.0}), [key])
    yield Case("llama-neutral", base("llama", embedding_multiplier=1.0, logits_scaling=1, mlp_bias=False))
    yield Case("apertus-no-rope", base("apertus", rope_theta="absent", max_position_embeddings=4096))
    yield Case("apertus-llama3", base("apertus", rope_scaling=dict(LLAMA3, original_max_position_embeddings=16)))
    yield Case("apertus-theta-alone", base("apertus"))
    yield Case("ministral3-no-rope", base("ministral3", rope_scaling="absent", rope_theta="absent"))
    far = dict(QUERY_SCALE, original_max_position_embeddings=1024)
    yield Case("ministral3-far", base("ministral3", rope_scaling=far, max_position_embeddings=32768), position=7000)
    yield Case("ministral3-no-beta", base("ministral3", rope_scaling=yarn), ["llama_4_scaling_beta"])
    yield Case("llama-beta", base("llama", rope_scaling=QUERY_SCALE), ["llama_4_scaling_beta"])
    for kind in ("mistral", "ministral3"):
        for prefix in ("old", "new"):
            yield Case(f"vision-{kind}-{prefix}", with_vision(base(kind)), prefix=prefix)
            tied = base(kind, tie_word_embeddings=True)
            yield Case(f"vision-{kind}-{prefix}-tied", with_vision(tied, tie_word_embeddings=True), prefix=prefix)
            yield Case(f"vision-{kind}-{prefix}-absent", with_vision(tied), prefix=prefix)


# ---- drawn ----


def draw_rope(rng, config, refused):
    kind = rng.choice(["plain"] * 3 + ["linear", "dynamic", "llama3", "llama3", "yarn", "longrope", "untyped", "partial"])
    key = rng.choice(["type", "rope_type"])
    factor = rng.choice([1.0, 2, 4.0, 8.5])
    if kind in ("linear", "dynamic"):
        config["rope_scaling"] = {key: kind, "factor": factor}
    elif kind == "llama3":
        low = rng.choice([0.5, 1.0, 2])
        scaling = {key: "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": low * rng.choice([2, 4])}
        if rng.random() < 0.6:
            scaling["original_max_position_embeddings"] = rng.choice([8, 16, 32])
        config["rope_scaling"] = scaling
    elif kind == "yarn":
        config["rope_scaling"] = {key: "yarn", "factor": factor, "original_max_position_embeddings": rng.choice([16, 40])}
    elif kind == "longrope":
        half = heads_of(config)[2] // 2
        config["rope_scaling"] = {key: "longrope", "short_factor": [rng.uniform(1, 2) for _ in range(half)],
                                  "long_factor": [rng.uniform(1, 8) for _ in range(half)],
                                  "factor": factor, "original_max_position_embeddings": rng.choice([16, 40])}
    elif kind == "untyped":
        config["rope_scaling"] = {"factor": factor}
        refused.append("rope_scaling")
    elif kind == "partial":
        config["partial_rotary_factor"] = 0.5
        refused.append("partial_rotary_factor")
    if rng.random() < 0.3:
        config["original_max_position_embeddings"] = rng.choice([8, 16, 32])


def draw_window(rng, config, refused):
    kind, layers = config["model_type"], config["num_hidden_layers"]
    if kind.startswith("qwen"):
        config["use_sliding_window"] = rng.random() < 0.6
        if rng.random() < 0.7:
            config["max_window_layers"] = rng.choice([0, 1, layers, 28])
    if rng.random() < 0.7:
        config["sliding_window"] = rng.choice([None, 9, 16, 30, 4096])
    if rng.random() < 0.5:
        types = [rng.choice(["full_attention", "sliding_attention"]) for _ in range(layers)]
        if rng.random() < 0.1:
            types[0] = "chunked_attention"
            refused.append("layer_types")
        config["layer_types"] = types
        window = config.get("sliding_window", None if kind == "llama" else 4096)
        if kind.startswith("qwen") and not config["use_sliding_window"]:
            window = None
        if "sliding_attention" in types and window is None:
            refused.append("layer_types")


def drawn(seed):
    rng = random.Random(seed)
    kind = rng.choice(["llama", "mistral", "qwen2", "qwen3", "granite", "olmo2", "arcee", "apertus"])
    heads = rng.choice([2, 4, 6])
    head = rng.choice([8, 12, 16, 24])
    hidden = heads * rng.choice([8, 12, 16])
    refused, weights = [], {}
    config = base(
        kind,
        hidden_size=hidden,
        intermediate_size=rng.choice([40, 64, 96]),
        num_hidden_layers=rng.choice([1, 2, 3]),
        num_attention_heads=heads,
        num_key_value_heads=rng.choice(
            [n for n in (1, 2, 3, 4, 6) if heads % n == 0] + ([] if kind == "mistral" else [None])
        ),
        head_dim=head if kind in ("mistral", "qwen3") else rng.choice([head, "absent"]),
        vocab_size=rng.choice([61, 96, 128]),
        max_position_embeddings=rng.choice([40, 64, 2048]),
        rms_norm_eps=rng.choice([1e-6, 1e-5, 1e-3, "absent"]),
        rope_theta=rng.choice([30.0, 1e4, 1e6, "absent"]),
        tie_word_embeddings=rng.random() < 0.4,
    )
    if kind not in ACTIVATIONS:
        config["hidden_act"] = rng.choice(["silu"] * 8 + ["swish", "gelu"])
    if config["hidden_act"] == "gelu":
        refused.append("hidden_act")
    if kind == "granite":
        config.update(embedding_multiplier=rng.uniform(0.5, 12), residual_multiplier=rng.uniform(0.2, 1.5),
                      attention_multiplier=rng.uniform(0.02, 0.5), logits_scaling=rng.uniform(0.5, 9))
    if rng.random() < 0.4:
        config["attention_bias"] = rng.random() < 0.7
    if rng.random() < 0.05:
        config["mlp_bias"] = True
        if kind not in MLP_BIASED:
            refused.append("mlp_bias")
    draw_rope(rng, config, refused)
    draw_window(rng, config, refused)
    if rng.random() < 0.5:
        config = modern(config)
        refused = [key for key in refused if key != "rope_scaling"]
        if rng.random() < 0.3:  # added by hand to the output of transformers 5
            config["rope_scaling"] = rng.choice([{}, None, {"rope_type": "linear", "factor": 2.0}, {"type": "default"}])
            if config["rope_scaling"]:
                refused = [key for key in refused if not key.startswith("rope_")]
    if config["tie_word_embeddings"] and rng.random() < 0.3:
        weights["head"] = rng.choice(["equal", "other"])
        if weights["head"] == "other":
            refused.append("tie_word_embeddings")
    weights["dtype"] = rng.choice(["float32", "float32", "bfloat16", "float16"])
    return Case(f"seed-{seed}", config, refused, **weights)
