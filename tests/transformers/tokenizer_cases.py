# SPDX-License-Identifier: Apache-2.0
"""Tokenizers with tokens in tokenizer.json and in other files, with the ids and texts of transformers' AutoTokenizer.
The class is always PreTrainedTokenizerFast, which follows tokenizer.json: the class LlamaTokenizer of
transformers 5 ignores parts of that file (docs/checkpoints.md)."""
import json
import random
import shutil
from pathlib import Path

from transformers import AutoTokenizer

FIXTURES = Path(__file__).resolve().parent.parent / "data/tokenizers"
CLASS = "PreTrainedTokenizerFast"
WORDS = [
    "the", "The licence", "in", "er", "123 45", "don't", "x=1;", "naïve", "e\u0301", "ﬁ", "漢字", "かな", "العربية", "עברית",
    "हिन्दी", "😀", "👩‍👩‍👧", "\u200b", "\ufeff", "\u00a0", "▁", "Ġ", "<0x0A>", "�", "ΑΒΓ", "ß", "İ", "a\u0300\u0301", "¹²³", "½",
]
BLANKS = [" ", "  ", "    ", "\t", "\n", "\n\n", "\r\n", " \n ", "\u3000", "\x0b", ""]


def texts(rng, special, n):
    """Texts of words, blanks and special tokens, with and without blanks around them."""
    yield from ("", " ", "\n", "a", " a", "a ", "  two  blanks  ", "".join(WORDS), " ".join(WORDS))
    for token in special:
        yield from (token, f"a{token}b", f" {token} ", f"{token}{token}", token[:-1], f"x {token}\n{token}y", token.upper())
    pieces = WORDS + BLANKS * 2 + special * 2
    for _ in range(n):
        yield "".join(rng.choice(pieces) for _ in range(rng.randrange(1, 24)))


def decodes_normalized(tokenizer):
    """Returns true if transformers decodes an added token to its normalized text, while Forepack gives the token as spelled."""
    normalizes = tokenizer.backend_tokenizer.normalizer is not None
    return normalizes and any(token.normalized for token in tokenizer.added_tokens_decoder.values())


def expect(folder, refused, seed, n):
    case = {"refused": refused}
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        special = sorted(str(token) for token in tokenizer.added_tokens_encoder)
        case["texts"] = rows = []
        for text in texts(random.Random(seed), special[:40], n):
            ids = tokenizer(text)["input_ids"]
            bare = tokenizer(text, add_special_tokens=False)["input_ids"]
            rows.append({"text": text, "ids": ids, "bare": bare})
            if not decodes_normalized(tokenizer):
                rows[-1]["decoded"] = tokenizer.decode(ids)
                rows[-1]["skipped"] = tokenizer.decode(ids, skip_special_tokens=True)
    except Exception as error:  # any kind: there is nothing to compare with
        case["peer_error"] = f"{type(error).__name__}: {error}"[:300]
    (folder / "case.json").write_text(json.dumps(case))


def write(folder, base, files, refused, seed, n=30):
    folder.mkdir(parents=True)
    shutil.copy(base / "tokenizer.json", folder)
    files = dict(files)
    files["tokenizer_config.json"] = {"tokenizer_class": CLASS, **files.get("tokenizer_config.json", {})}
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    expect(folder, refused, seed, n)


def flags(rng, content):
    item = {name: rng.random() < 0.3 for name in ("single_word", "lstrip", "rstrip", "normalized", "special")}
    return {"content": content, **item}


def facts(base):
    """The next id, letters, and the added tokens. Longer tokens of the vocabulary are results of merges: text that
    merges to a special token is that token in transformers, but never in Forepack."""
    tokenizer = json.loads((base / "tokenizer.json").read_text())
    vocab, added = tokenizer["model"]["vocab"], tokenizer["added_tokens"]
    next_id = max([len(vocab)] + [token["id"] + 1 for token in added])
    return next_id, [letter for letter in "qzjxkvwZQ" if letter in vocab], added


# ---- the fixed set ----


def fixed():
    for name in ("bytes", "pieces"):
        base = FIXTURES / name
        next_id, plain, added = facts(base)
        new = {str(next_id): {"content": "<new>", "special": True}, str(next_id + 1): {"content": "<plain>", "special": False}}
        other = {str(added[-1]["id"]): {"content": added[-1]["content"], "special": True, "lstrip": True, "rstrip": True}}
        far = {str(next_id + 7): {"content": "<far>", "special": True}}
        config = "tokenizer_config.json"
        yield f"{name}", base, {}, []
        yield f"{name}-decoder", base, {config: {"added_tokens_decoder": new}}, []
        yield f"{name}-flags", base, {config: {"added_tokens_decoder": other}}, []
        blanks = {str(next_id): {"content": "<r>", "special": True, "rstrip": True},
                  str(next_id + 1): {"content": " x", "special": False}}
        yield f"{name}-blanks", base, {config: {"added_tokens_decoder": blanks}}, []
        yield f"{name}-far", base, {config: {"added_tokens_decoder": far}}, ["added_tokens_decoder"]
        yield f"{name}-vocab", base, {config: {"added_tokens_decoder": {"5": {"content": plain[0], "special": True}}}}, []
        yield f"{name}-pad", base, {config: {"pad_token": plain[0]}}, []
        yield f"{name}-pad-unknown", base, {config: {"pad_token": "<pad>"}}, ["pad_token"]
        yield f"{name}-image", base, {config: {"image_token": plain[1]}}, []
        yield f"{name}-extra", base, {config: {"extra_special_tokens": plain[:2]}}, []
        yield f"{name}-extra-names", base, {config: {"extra_special_tokens": {"video_token": plain[2]}}}, []
        yield f"{name}-extra-unknown", base, {config: {"extra_special_tokens": ["<x>"]}}, ["extra_special_tokens"]
        yield f"{name}-additional", base, {config: {"additional_special_tokens": plain[:2]}}, []
        yield f"{name}-split", base, {config: {"split_special_tokens": True}}, ["split_special_tokens"]
        yield f"{name}-bos-eos", base, {config: {"add_bos_token": True, "add_eos_token": True, "eos_token": "</s>"}}, []
        yield f"{name}-no-bos", base, {config: {"add_bos_token": False}}, []
        yield f"{name}-map", base, {"special_tokens_map.json": {"pad_token": {"content": plain[0], "lstrip": True}}}, []
        yield f"{name}-map-ignored", base, {config: {"added_tokens_decoder": new},
                                            "special_tokens_map.json": {"pad_token": plain[0]}}, []
        yield f"{name}-added", base, {"added_tokens.json": {"<two>": next_id + 1, "<one>": next_id}}, []


# ---- drawn ----


def drawn(seed):
    rng = random.Random(seed)
    name = rng.choice(["bytes", "pieces"])
    next_id, plain, added = facts(FIXTURES / name)
    config, files = {}, {}
    # No token has two names: two names with different flags are refused.
    names = rng.sample(plain, 5)
    if rng.random() < 0.7:
        config["added_tokens_decoder"] = decoder = {}
        for token in rng.sample(added, rng.randrange(len(added) + 1)):
            decoder[str(token["id"])] = flags(rng, token["content"])
        for token in rng.sample(plain, rng.randrange(4)):
            decoder[str(rng.randrange(next_id))] = flags(rng, token)
        for i in range(rng.randrange(4)):
            decoder[str(next_id + i)] = flags(rng, f"<new {i}>" if i % 2 else f"[new{i}]")
    for key in ("pad_token", "cls_token", "image_token"):
        if rng.random() < 0.3:
            config[key] = names.pop()
    if rng.random() < 0.3:
        key = rng.choice(["extra_special_tokens", "additional_special_tokens"])
        config[key] = rng.sample(plain, rng.randrange(3))
    if rng.random() < 0.3:
        files["special_tokens_map.json"] = {"sep_token": names.pop(), "mask_token": flags(rng, names.pop())}
    if rng.random() < 0.3:
        files["added_tokens.json"] = {f"<file {i}>": next_id + i for i in range(2)}
    files["tokenizer_config.json"] = config
    return f"{name}-seed-{seed}", FIXTURES / name, files, []


def write_all(folder, seeds, first, data):
    cases = list(fixed()) + [drawn(seed) for seed in range(first, first + seeds)]
    for i, (name, base, files, refused) in enumerate(cases):
        write(folder / name, base, files, refused, i)
    for base in sorted((data / "tokenizers").iterdir()) if data else []:
        if (base / "tokenizer_config.json").exists():
            config = json.loads((base / "tokenizer_config.json").read_text())
            write(folder / base.name, base, {"tokenizer_config.json": {**config, "tokenizer_class": CLASS}}, [], 1, n=300)
