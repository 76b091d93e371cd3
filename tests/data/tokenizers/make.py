#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the tokenizer fixtures next to it: two small tokenizers trained on the LICENSE file, and what Hugging Face's
`tokenizers` library (pip install tokenizers; 0.23.3 was used) makes of hard texts with them and with variants of them.
The tests need only the files; run this again when a case is added."""
import copy
import json
import os

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Regex

HERE = os.path.dirname(os.path.abspath(__file__))
CORPUS = open(os.path.join(HERE, "../../../LICENSE"), encoding="utf-8").read()
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
            r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")

TEXTS = [
    "", " ", "  ", "   ", "\n", "\n\n", "\n\n\n", "\t\n", "\r\n\r\n", " \n \n", "a", " a", "  a", "a ", "a  ", "a\n b\n  c",
    "Hello, world!", "  the License  shall\tbe\nthe   work ", "don't I'LL you'VE 'S 'ſ we'Ｄ", "1 12 123 1234 12345678 1.5e-10",
    "٣٤٥ ²½ Ⅷ ㊿", "\u00a0x\u2003y\u3000z\u2028w\u0085v\u180eu\u200bt\ufefft", "caf\u00e9 cafe\u0301 \u0301\u0327 a\u0327\u0301",
    "\u1100\u1161\u11a8 \uac00\u11a8 か\u3099 \u212b \u2126 \u0958 \u1e9b\u0323 >\u0338", "漢字かな交じり文 한국어 ไทย हिन्दी עברית",
    "😀👩\u200d👩\u200d👧🇩🇪🏽", "\U00020000\U0001d15e\U0010ffff", "▁ ▁▁ a▁b ▁a", "<0x0A><0xFF>", "Ġ Ċ ĠĠ",
    "\x00a\x00\x01\x7f\x1c", "<|im_start|>user\nhi<|im_end|>\n", "<s>x</s> <s> y", "<tool>a<tool> <tool", "a<|im_end|>b <|im_end|> c",
    "the<mark>the the <mark> the <mark>", "xword word, word wordy 漢word", "  <left> a <left>", "<right>   b<right>\n\nc",
    "http://www.apache.org/licenses/LICENSE-2.0", "((a+b)*[c]) == {d}; // e\\f \"g\" `h` ~i ^j |k & %l $m @n #o",
    "\u00a2\u00a7\u00ab\u00b1\u00b7\u00d7 \u24d0\u2460 a\u0363\uff21\uff10 \u203f\u200d \ua000\u3001\ua001\u3002",
]


def added(ids, content, **flags):
    return dict({"id": ids, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
                 "normalized": False, "special": False}, **flags)


def make_bytes():
    t = Tokenizer(models.BPE())
    t.normalizer = normalizers.NFC()
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    t.train_from_iterator([CORPUS], trainers.BpeTrainer(vocab_size=500, show_progress=False,
                                                        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    n = t.get_vocab_size()
    data = json.loads(t.to_str())
    data["added_tokens"] = [added(n + i, s, special=True) for i, s in
                            enumerate(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])]
    data["added_tokens"] += [added(n + 3, "<tool>"), added(n + 4, "<s>", special=True), added(n + 5, "</s>", special=True)]
    return data


def make_pieces():
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")  # for training only
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
                                   decoders.Strip(" ", 1, 0)])
    specials = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % b for b in range(256)]
    t.train_from_iterator([CORPUS], trainers.BpeTrainer(vocab_size=560, show_progress=False, special_tokens=specials))
    data = json.loads(t.to_str())
    data["pre_tokenizer"] = None
    data["added_tokens"] = [added(i, s, special=True) for i, s in enumerate(specials[:3])]
    data["model"]["merges"] = [" ".join(m) for m in data["model"]["merges"]]
    bos = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    data["post_processor"] = {
        "type": "TemplateProcessing", "single": [bos, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [bos, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}}
    return data


def split(regex, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: regex}, "behavior": behavior, "invert": invert}


def bytes_after(*steps, **flags):
    last = dict({"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}, **flags)
    return {"type": "Sequence", "pretokenizers": list(steps) + [last]}


def variants(base):
    """Members of tokenizer.json to put in place of the fixture's own; "model.x" for one inside the model."""
    n = len(base["bytes"]["model"]["vocab"])
    for behavior in ("Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext"):
        for invert in (False, True):
            yield "bytes", {"pre_tokenizer": bytes_after(split(r"\s+|\p{N}", behavior, invert))}
    yield "bytes", {"pre_tokenizer": bytes_after(split(LLAMA3, "Removed", True))}
    yield "bytes", {"pre_tokenizer": bytes_after(use_regex=True), "normalizer": None}
    yield "bytes", {"pre_tokenizer": bytes_after(add_prefix_space=True, use_regex=True)}
    yield "bytes", {"pre_tokenizer": bytes_after(split(O200K))}
    yield "bytes", {"pre_tokenizer": bytes_after({"type": "Digits", "individual_digits": True}, use_regex=True)}
    yield "bytes", {"pre_tokenizer": bytes_after({"type": "Digits", "individual_digits": False})}
    yield "bytes", {"pre_tokenizer": bytes_after(split(r"\p{N}{1,3}"), split(r"[\u4e00-\u9fa5\u3040-\u30ff]+"), split(DEEPSEEK))}
    yield "bytes", {"pre_tokenizer": bytes_after(split(r"\w+|\d|[^\w\s]+|\S|x*"))}
    yield "bytes", {"pre_tokenizer": bytes_after(split(r"\p{Han}+|[[:punct:]]+|^\s|.$|\u00e9"))}
    for regex in ("[[:alpha:]]", "[[:alnum:]]", "[[:word:]]", "[[:space:][:digit:][:punct:]]",
                  r"[[:xdigit:]]|[^[:ascii:]\p{Yi}]", "a|(?i)th|e|(?:(?i)l|w)i", r"\w"):
        yield "bytes", {"pre_tokenizer": bytes_after(split(regex, "Removed"))}
    yield "bytes", {"pre_tokenizer": bytes_after(split(" ", "MergedWithNext", kind="String"))}
    yield "bytes", {"pre_tokenizer": bytes_after(split(r"[^a]+")), "model.ignore_merges": True}
    yield "bytes", {"added_tokens": [
        added(n, "<mark>", lstrip=True, special=True), added(n + 1, "word", single_word=True),
        added(n + 2, "<left>", lstrip=True), added(n + 3, "<right>", rstrip=True),
        added(n + 4, "e\u0301", normalized=True), added(n + 5, "the the"), added(n + 6, "the"), added(n + 7, "<|im_x"),
        added(n + 8, "<|im_start|>", special=True)]}
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    for scheme in ({"prepend_scheme": "first", "split": False}, {"prepend_scheme": "always", "split": True},
                   {"prepend_scheme": "never", "split": True}, {"add_prefix_space": True}):
        metaspace = dict({"type": "Metaspace", "replacement": "▁"}, **scheme)
        yield "pieces", {"normalizer": None, "pre_tokenizer": metaspace, "decoder": metaspace}
    yield "pieces", {"model.byte_fallback": False}
    yield "pieces", {"model.byte_fallback": False, "model.fuse_unk": False}
    yield "pieces", {"model.byte_fallback": False, "model.unk_token": None}
    yield "pieces", {"normalizer": replace, "decoder": {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]}}
    yield "pieces", {"normalizer": {"type": "Sequence", "normalizers": [
        {"type": "NFC"}, {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "},
        {"type": "Prepend", "prepend": "▁"}, replace]}}
    yield "pieces", {"added_tokens": [added(0, "<unk>", special=True), added(1, "<s>", special=True, normalized=True),
                                      added(2, "</s>", special=True)]}


def cases(data):
    t = Tokenizer.from_str(json.dumps(data))
    rows = []
    for text in TEXTS:
        t.encode_special_tokens = False
        row = {"text": text, "ids": t.encode(text, add_special_tokens=False).ids}
        t.encode_special_tokens = True
        plain = t.encode(text, add_special_tokens=False).ids
        if plain != row["ids"]:
            row["plain_ids"] = plain  # special tokens in the text not recognised
        decoded = t.decode(row["ids"], skip_special_tokens=True)
        if any(a["normalized"] for a in data["added_tokens"]):
            row["decoded"] = None  # not compared: newer versions decode these to their normalized form
        elif decoded != text:
            row["decoded"] = decoded
        rows.append(row)
    return rows


def main():
    base = {"bytes": make_bytes(), "pieces": make_pieces()}
    for name, data in base.items():
        os.makedirs(os.path.join(HERE, name), exist_ok=True)
        with open(os.path.join(HERE, name, "tokenizer.json"), "w", encoding="utf-8") as f:
            json.dump(data, f, ensure_ascii=False)
            f.write("\n")
    with open(os.path.join(HERE, "vectors.jsonl"), "w", encoding="ascii") as f:
        for name, change in [("bytes", {}), ("pieces", {})] + list(variants(base)):
            data = copy.deepcopy(base[name])
            for key, value in change.items():
                (data["model"] if key.startswith("model.") else data)[key.removeprefix("model.")] = value
            f.write(json.dumps({"base": name, "change": change, "cases": cases(data)}) + "\n")


if __name__ == "__main__":
    main()
