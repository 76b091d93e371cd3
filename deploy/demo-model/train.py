#!/usr/bin/env python3
"""The demo pair: a small main model and a smaller speculator that answer questions about facts planted in long text.

    train.py                                      train both and write main/, speculator/ and prompts.jsonl
    train.py eval [--documents N] [--tokens T] [--keep-rate R ...] [--form plain|chat] [--seed S] [--json FILE]
                                                  accuracy of the written models with all tokens kept and at each keep rate
    train.py prompts --count N --seed S --tokens T > F.jsonl
                                                  unseen prompts, one {"id", "prompt", "answer"} per line

Needs PyTorch and nothing else. One thread is fastest at this size.
"""
import argparse, collections, json, math, random, re, struct, sys, time
from pathlib import Path
import torch
import torch.nn.functional as F

HERE = Path(__file__).resolve().parent

# ---- The text --------------------------------------------------------------------------------------------------------
# A document is filler text about a harbour town with some facts in it, such as "The gate code of Mira Tolen is 4821.".
# The right answer depends on a dozen of a thousand tokens and cannot be guessed.

FIRST = [a + b for a in "Mi To Le Ka Ro Be Sa Ne Jo Da Fi Hu".split()
         for b in "ra lin mas na vik den tha lo ri sel wen ja".split()]
LAST = [a + b for a in "Tol Var Hes Brun Quil Mor Ast Fen Gar Ock Pell Win".split()
        for b in "en ow berg ley ett ova mark ane ik ford usk ard".split()]
ATTRIBUTE = [w + " code" for w in "harbour gate cellar radio alarm garden boathouse attic".split()] + \
            [w + " number" for w in "locker badge ticket cabin parcel permit ledger mailbox bicycle archive".split()]

FACT = ["The {a} of {n} is {v}.", "{n}'s {a} is {v}.", "{n} has the {a} {v}."]
QUESTION = ["What is the {a} of {n}?", "What is {n}'s {a}?", "Which {a} does {n} have?"]

def phrases(text):
    return [p.strip() for p in text.replace("\n", "|").split("|")]


WHEN = phrases("""In the morning|Before noon|Late in the afternoon|After the rain|On market day|Early in the week|At low tide
    That evening|When the fog lifted|Just before supper|On the first warm day|Towards the end of summer""")
WHO = phrases("""the baker|the ferryman|an old sailor|the schoolteacher|the lighthouse keeper|two fishermen|the postmaster
    a travelling painter|the gardener|the doctor|the innkeeper|a group of children|the carpenter|the librarian
    the harbour master|a young musician|the clockmaker|the neighbours""")
DID = phrases("""walked slowly down to|carried two heavy baskets to|told a long story about|painted a small picture of
    asked a few questions about|cleaned the windows of|waited for an hour near|found a silver coin beside
    lost a good umbrella near|argued quietly about|planted three rows of beans behind|wrote a short letter about
    repaired the wooden fence around|spent a happy hour at|took a wrong turn near|hung a bright lantern above""")
WHERE = phrases("""the old market|the stone bridge|the lighthouse|the empty warehouse|the village school|the railway station
    the apple orchard|the little museum|the fish market|the town hall|the north pier|the windmill|the public library
    the chapel on the hill|the boat shed|the bakery""")
TAIL = phrases("""and nobody was in a hurry|while the gulls circled overhead|and the rest of the day was quiet
    because the road was still wet|and then went home by the river|as people in this town often do
    although the wind was rather cold|and the bells rang soon after|while a dog slept in the sun
    and no one thought much of it|before the shops closed|as the light began to fade""")
WEATHER = phrases("""The sea was calm and grey|A thin mist lay over the fields|The streets were almost empty
    Smoke rose from every chimney|The tide was lower than usual|A warm wind came in from the south
    The clouds moved slowly to the east|The cobblestones shone after the shower|Snow had fallen on the hills
    The nets were drying along the wall""")


def sentence(rng):
    """One sentence of filler."""
    pick, kind = rng.choice, rng.random()
    if kind < 0.45:
        return f"{pick(WHEN)} {pick(WHO)} {pick(DID)} {pick(WHERE)}, {pick(TAIL)}."
    if kind < 0.70:
        who = pick(WHO)
        return f"{who[0].upper()}{who[1:]} {pick(DID)} {pick(WHERE)}."
    if kind < 0.88:
        return f"{pick(WEATHER)}, {pick(TAIL)}."
    return f"{pick(WHEN)} {pick(FIRST)} {pick(LAST)} {pick(DID)} {pick(WHERE)}."


def facts_for(rng, count, twice=0.1):
    """`count` facts (attribute, name, value). Names share parts, and with probability `twice` a fact is about a person that
    already has one, so that a model must match the whole key."""
    facts = []
    while len(facts) < count:
        name = rng.choice(facts)[1] if facts and rng.random() < twice else f"{rng.choice(FIRST)} {rng.choice(LAST)}"
        attribute = rng.choice(ATTRIBUTE)
        if not any((a, n) == (attribute, name) for a, n, _ in facts):
            facts.append((attribute, name, f"{rng.randrange(10000):04d}"))
    return facts


def document(rng, tok, facts, tokens, variants=len(FACT)):
    """About `tokens` tokens of text, as pieces (text, fact or None). Tokenising the pieces one by one gives the same ids as
    tokenising the whole text."""
    lines = [(rng.choice(FACT[:variants]).format(a=f[0], n=f[1], v=f[2]), f) for f in facts]
    used = sum(len(tok.encode(" " + t)) for t, _ in lines)
    while used < tokens:
        lines.append((sentence(rng), None))
        used += len(tok.encode(" " + lines[-1][0]))
    rng.shuffle(lines)
    pieces, start = [], True
    for i, (text, fact) in enumerate(lines):
        end = i == len(lines) - 1 or rng.random() < 0.12        # of a paragraph; the pattern does not split ".\n\n"
        pieces.append((("" if start else " ") + text + ("\n\n" if end else ""), fact))
        start = end
    return pieces


# ---- The tokenizer ---------------------------------------------------------------------------------------------------
# Byte-level BPE in the layout of the Hugging Face "tokenizers" library. The pattern splits numbers into digits, so that
# values are copied digit by digit and all numbers are equally frequent.

PATTERN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLIT = re.compile(PATTERN.replace(r"[^\r\n\p{L}\p{N}]", r"(?:[^\r\n\w]|_)").replace(r"[^\s\p{L}\p{N}]", r"(?:[^\s\w]|_)")
                   .replace(r"\p{L}", r"[^\W\d_]").replace(r"\p{N}", r"\d"))       # PATTERN in the syntax of Python's re
SPECIAL = ["<|begin_of_text|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"]
VOCABULARY, CONTEXT = 1536, 4096   # embedding rows: bytes, merges of this text, special tokens, spare rows
SYSTEM = "You answer questions about the text."
CHAT_TEMPLATE = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
                 "'<|im_end|>' + '\\n' }}{% endfor %}"
                 "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")


def byte_letters():
    """The character for each byte in a byte-level vocabulary: the byte itself if printable, otherwise from U+0100 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spare = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(spare)) for b in range(256)]


class Tokenizer:
    def __init__(self, merges):
        self.letters, self.merges = byte_letters(), merges
        self.rank = {m: i for i, m in enumerate(merges)}
        self.vocab = {t: i for i, t in enumerate(self.letters + [a + b for a, b in merges])}
        self.special = {t: len(self.vocab) + i for i, t in enumerate(SPECIAL)}      # ids without a gap
        self.bos, self.eos, self.im_start, self.im_end = self.special.values()
        self.words = {}

    @classmethod
    def train(cls, text, merges):
        """Plain BPE: repeatedly merge the most frequent pair of neighbours; of equals the pair that sorts first."""
        letters = byte_letters()
        counts = collections.Counter(SPLIT.findall(text))
        words = [([letters[b] for b in w.encode()], c) for w, c in sorted(counts.items())]
        learnt = []
        while len(learnt) < merges:
            pairs = collections.Counter()
            for w, c in words:
                for pair in zip(w, w[1:]):
                    pairs[pair] += c
            if not pairs:
                break
            best = min(pairs, key=lambda p: (-pairs[p], p))
            learnt.append(best)
            for w, _ in words:
                join(w, best)
        return cls(learnt)

    def encode(self, text):
        ids = []
        for word in SPLIT.findall(text):
            if word not in self.words:
                parts = [self.letters[b] for b in word.encode()]
                while len(parts) > 1:
                    best = min(zip(parts, parts[1:]), key=lambda p: self.rank.get(p, math.inf))
                    if best not in self.rank:
                        break
                    join(parts, best)
                self.words[word] = [self.vocab[p] for p in parts]
            ids += self.words[word]
        return ids

    def decode(self, ids):
        names, byte = {i: t for t, i in self.vocab.items()}, {c: b for b, c in enumerate(self.letters)}
        return bytes(byte[c] for i in ids if i in names for c in names[i]).decode(errors="replace")

    def files(self):
        """tokenizer.json and tokenizer_config.json."""
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        added = [{"id": i, "content": t, **flags, "special": True} for t, i in self.special.items()]
        bos = SPECIAL[0]
        begin = lambda which, n: [{"SpecialToken": {"id": bos, "type_id": n}}, {"Sequence": {"id": which, "type_id": n}}]
        full = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
                "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                    {"type": "Split", "pattern": {"Regex": PATTERN}, "behavior": "Isolated", "invert": False},
                    {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]},
                "post_processor": {"type": "TemplateProcessing", "single": begin("A", 0), "pair": begin("A", 0) + begin("B", 1),
                                   "special_tokens": {bos: {"id": bos, "ids": [self.bos], "tokens": [bos]}}},
                "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
                "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                          "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                          "vocab": self.vocab, "merges": [f"{a} {b}" for a, b in self.merges]}}
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": bos, "eos_token": SPECIAL[1],
                  "model_max_length": CONTEXT, "clean_up_tokenization_spaces": False, "chat_template": CHAT_TEMPLATE,
                  "added_tokens_decoder": {str(a["id"]): {k: v for k, v in a.items() if k != "id"} for a in added}}
        return full, config


def join(parts, pair):
    """Merge every occurrence of `pair` in the list `parts` in place, from left to right."""
    i = 0
    while i < len(parts) - 1:
        if (parts[i], parts[i + 1]) == pair:
            parts[i:i + 2] = [parts[i] + parts[i + 1]]
        i += 1


def learn_tokenizer():
    rng, text = random.Random(1), "".join("\n" + n for n in FIRST) * 3              # names also start paragraphs
    for _ in range(3000):
        a, n, v = facts_for(rng, 1)[0]
        text += (f"\n\n{sentence(rng)} {rng.choice(FACT).format(a=a, n=n, v=v)}\n\n"
                 f"Question: {rng.choice(QUESTION).format(a=a, n=n)}\nAnswer: {v}\n{SYSTEM}\nuser\nassistant")
    return Tokenizer.train(text, VOCABULARY - 256 - len(SPECIAL))


# ---- Samples ---------------------------------------------------------------------------------------------------------
# A sample is a prompt that ends in questions with their answers: token ids; position ids; the target token of each row
# (-1: none); and the owner of each row: the number of the fact it states or answers from (0: none). Only answers
# are targets, because the rest of the text is random.

CHUNK, TAIL_WINDOW, LOOK_AHEAD, WINDOW = 32, 128, 8, 13         # of the selection, as the cluster's defaults


def render(rng, tok, pieces, facts, form, system=False):
    """The prompt with its questions: ids, targets, owners, [start, end) of each fact asked for, length of the first prompt."""
    ids, spans = [tok.bos], {}
    if form == "chat":
        if rng.random() < 0.3:                           # most servers send ChatML without BOS
            ids = []
        if system:
            ids += [tok.im_start, *tok.encode("system\n" + SYSTEM), tok.im_end, *tok.encode("\n")]
        ids += [tok.im_start, *tok.encode("user\n")]
    for text, fact in pieces:
        start, ids = len(ids), ids + tok.encode(text)
        spans[fact] = (start, len(ids))
    targets, owners, first = [-1] * len(ids), [0] * len(ids), 0
    for i, (a, n, v) in enumerate(facts):
        asked = rng.choice(QUESTION).format(a=a, n=n)
        if form == "restate":                            # an early stage: the same sentence again
            ask, answer = tok.encode(f"The {a} of {n} is"), [*tok.encode(f" {v}"), *tok.encode(".\n\n")]
        elif form == "plain":
            ask = tok.encode(("\n\n" if i else "") + f"Question: {asked}\nAnswer:")
            answer = [*tok.encode(f" {v}"), tok.eos]
        else:
            ask = [tok.im_start, *tok.encode("user\n")] if i else []
            ask += [*tok.encode(asked), tok.im_end, *tok.encode("\n"), tok.im_start, *tok.encode("assistant\n")]
            answer = [*tok.encode(v), tok.im_end]
        start, end = spans[facts[i]]
        owners[start:end] = [i + 1] * (end - start)
        first = first or len(ids) + len(ask)
        rest = tok.encode("\n") if form == "chat" else []
        ids += ask + answer + rest
        targets += [-1] * (len(ask) - 1) + answer + [-1] * (1 + len(rest))
        owners += [0] * (len(ask) - 1) + [i + 1] * len(answer) + [0] * (1 + len(rest))
    return ids, targets, owners, [spans[f] for f in facts], first


def drop_chunks(rng, rate, ids, targets, owners, spans, prompt):
    """A sample after pruning: the first token, the tail, the chunks of the values asked for, and other chunks with
    probability `rate`. Of a fact in two chunks the first is sometimes pruned, so that the model learns to answer from
    the second. Kept tokens keep their positions."""
    tail = prompt - min(TAIL_WINDOW, prompt // 4)
    chunks = {c for c in range(len(ids) // CHUNK + 1) if rng.random() < rate}
    for a, b in spans:
        chunks |= {(b - 6) // CHUNK, (b - 1) // CHUNK} | ({a // CHUNK} if rng.random() < 0.75 else set())
    keep = [i for i in range(len(ids)) if i == 0 or i >= tail or i // CHUNK in chunks]
    return [ids[i] for i in keep], keep, [targets[i] for i in keep], [owners[i] for i in keep]


def recall_sample(rng, tok, names, pairs, queries=6):
    """Pure recall: (name, digit) pairs, then names alone, each to be answered with its digit."""
    chosen = rng.sample(names, pairs)
    digits = [tok.encode(str(rng.randrange(10)))[0] for _ in chosen]
    ids, targets = [], []
    for name, digit in zip(chosen, digits):
        ids, targets = ids + [name, digit], targets + [-1, -1]
    for i in rng.sample(range(pairs), queries):
        ids, targets = ids + [chosen[i], digits[i]], targets + [digits[i], -1]
    return ids, list(range(len(ids))), targets, [0] * len(ids)


def text_sample(rng, tok, tokens, asked, forms, others=(2, 12), variants=len(FACT), twice=0.0, keep=None):
    facts = facts_for(rng, asked + rng.randint(*others), twice)
    form = rng.choice(forms)
    pieces = document(rng, tok, facts, tokens - 24 * asked, variants)
    sample = render(rng, tok, pieces, rng.sample(facts, asked), form, system=rng.random() < 0.3)
    if keep is not None:
        return drop_chunks(rng, keep, *sample)
    ids, targets, owners, _, _ = sample
    return ids, list(range(len(ids))), targets, owners


def collate(samples):
    """Pads on the right, which a causal mask makes harmless."""
    width = max(len(s[0]) for s in samples)
    fill = lambda row, value: row + [value] * (width - len(row))
    return [torch.tensor([fill(s[k], value) for s in samples]) for k, value in enumerate((0, 0, -1, 0))]


# ---- The model -------------------------------------------------------------------------------------------------------
# Llama as Hugging Face defines it. A model is a config and a dict of weights under their names in the file.

def shape(layers, width, heads, kv_heads, mlp):
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": width,
            "intermediate_size": mlp, "num_hidden_layers": layers, "num_attention_heads": heads,
            "num_key_value_heads": kv_heads, "head_dim": 32, "max_position_embeddings": CONTEXT, "rope_theta": 100000.0,
            "rope_scaling": None, "rms_norm_eps": 1e-5, "hidden_act": "silu", "attention_bias": False, "mlp_bias": False,
            "attention_dropout": 0.0, "tie_word_embeddings": True, "initializer_range": 0.02, "use_cache": True,
            "torch_dtype": "bfloat16"}


SPECULATOR = shape(layers=2, width=128, heads=4, kv_heads=4, mlp=384)
MAIN = shape(layers=4, width=384, heads=12, kv_heads=4, mlp=1024)


def initial(c, seed):
    """Weights of standard deviation 1/sqrt(fan in), smaller where they write to the residual stream. With the usual 0.02
    models of this width do not learn."""
    torch.manual_seed(seed)
    d, m = c["hidden_size"], c["intermediate_size"]
    q, kv = c["num_attention_heads"] * c["head_dim"], c["num_key_value_heads"] * c["head_dim"]
    writers = 1 / math.sqrt(2 * c["num_hidden_layers"])
    matrix = lambda rows, columns, scale=1.0: torch.randn(rows, columns) * scale / math.sqrt(columns)
    w = {"model.embed_tokens.weight": matrix(c["vocab_size"], d), "model.norm.weight": torch.ones(d)}
    for i in range(c["num_hidden_layers"]):
        layer = {"input_layernorm": torch.ones(d), "self_attn.q_proj": matrix(q, d), "self_attn.k_proj": matrix(kv, d),
                 "self_attn.v_proj": matrix(kv, d), "self_attn.o_proj": matrix(d, q, writers),
                 "post_attention_layernorm": torch.ones(d), "mlp.gate_proj": matrix(m, d), "mlp.up_proj": matrix(m, d),
                 "mlp.down_proj": matrix(d, m, writers)}
        w |= {f"model.layers.{i}.{name}.weight": t for name, t in layer.items()}
    return w


def forward(c, w, ids, positions, cache=None, probe=None):
    """Hidden states [B, T, width] after the last norm. `cache`, a list, holds each layer's keys and values; `probe`, a list,
    receives each layer's queries and keys, [B, H, rows or entries, D]."""
    B, T = ids.shape
    H, KV, D = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
    angle = positions[:, None, :, None] * c["rope_theta"] ** (-torch.arange(0, D, 2) / D)
    cos, sin = torch.cat([angle.cos()] * 2, -1), torch.cat([-angle.sin(), angle.sin()], -1)
    rotate = lambda x: x * cos + x.roll(D // 2, -1) * sin
    norm = lambda x, name: F.rms_norm(x, x.shape[-1:], w[name + ".weight"], c["rms_norm_eps"])
    x = F.embedding(ids, w["model.embed_tokens.weight"])
    for i in range(c["num_hidden_layers"]):
        at = f"model.layers.{i}."
        linear = lambda x, name: F.linear(x, w[at + name + ".weight"])
        h = norm(x, at + "input_layernorm")
        q, k, v = (linear(h, f"self_attn.{p}_proj").view(B, T, -1, D).transpose(1, 2) for p in "qkv")
        q, k = rotate(q), rotate(k)
        if cache is not None:
            if len(cache) > i:
                k, v = torch.cat([cache[i][0], k], 2), torch.cat([cache[i][1], v], 2)
                cache[i] = k, v
            else:
                cache.append((k, v))
        k, v = k.repeat_interleave(H // KV, 1), v.repeat_interleave(H // KV, 1)
        if probe is not None:
            probe.append((q, k))
        a = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, is_causal=T > 1)
        x = x + linear(a.transpose(1, 2).reshape(B, T, H * D), "self_attn.o_proj")
        h = norm(x, at + "post_attention_layernorm")
        x = x + linear(F.silu(linear(h, "mlp.gate_proj")) * linear(h, "mlp.up_proj"), "mlp.down_proj")
    return norm(x, "model.norm")


# ---- The training ----------------------------------------------------------------------------------------------------
# A stage ends when its running accuracy reaches `until` or its steps are used up. A model that starts with whole
# documents learns to guess and does not get beyond it.

def stages(tok):
    """The stages of the small model in order: (name, maximum of steps, running accuracy to reach, batch of samples)."""
    names = [tok.encode(" " + n)[0] for n in FIRST + LAST]
    few = random.Random(5).sample(names, 32)
    recall = lambda pool, pairs: lambda rng: [recall_sample(rng, tok, pool, pairs) for _ in range(64)]
    text = lambda rows, **k: lambda rng: [text_sample(rng, tok, **k) for _ in range(rows)]
    every = ["restate", "plain", "chat"]
    return [
        ("recall 8 of 32", 4000, 0.96, recall(few, 8)),
        ("recall 8 of all", 3000, 0.96, recall(names, 8)),
        ("recall 16 of all", 3000, 0.96, recall(names, 16)),
        ("text of 160", 4000, 0.92, text(32, tokens=160, asked=4, forms=["restate"], others=(0, 0), variants=1)),
        ("text of 192", 4000, 0.94, text(32, tokens=192, asked=4, forms=every, others=(0, 2), variants=1)),
        ("text of 256", 4000, 0.95, text(24, tokens=256, asked=5, forms=every, others=(0, 4))),
    ]


def mixture(tok, drop, budget):
    """The last stage: batches of about `budget` tokens, of all lengths, with chunks pruned in a fraction `drop` of them."""
    def batch(rng):
        asked, keep = rng.choice([3, 6, 10]), None
        if rng.random() < drop:
            tokens, keep = rng.choice([400, 700, 1000, 1000, 1500, 2500, 3900]), rng.choice([0.0, 0.1, 0.25, 0.5])
            rows = int(budget / (150 + 45 * asked + tokens * keep))
        else:
            tokens = rng.choice([100 + 24 * asked, 300 + 24 * asked, 600, 1000, 1000, 1500])
            rows = budget // tokens
        return [text_sample(rng, tok, tokens, asked, ["plain", "chat"], others=(0, 2 + tokens // 70), twice=0.15, keep=keep)
                for _ in range(max(2, rows))]
    return batch


def look_loss(c, probe, targets, owners):
    """Loss of the last head of the last layer against equal attention to every token of the fact, in the rows of the answer.
    Heads that copy attend to the value only; for a fact in two chunks the selection also needs the first chunk."""
    (q, k), total, count = probe[-1], 0.0, 0
    for b in range(len(targets)):
        rows = ((targets[b] >= 0) & (owners[b] > 0)).nonzero()[:, 0]
        scores = (q[b, -1, rows] @ k[b, -1].T).float() / math.sqrt(c["head_dim"])
        scores = scores.masked_fill(torch.arange(len(targets[b])) > rows[:, None], -math.inf)
        fact = (owners[b] == owners[b][rows, None]) & (targets[b] < 0)
        total, count = total - scores.log_softmax(-1)[fact].sum(), count + fact.sum()
    return total / count


def learn(c, w, tok, stage, seed, log, rate=1e-3, warm=100, decay=False, look=0.0):
    """Trains `w` in place for one stage, until the accuracy is reached or, with `decay`, for all steps."""
    name, steps, until, batch = stage
    rng, started, running, seen = random.Random(seed), time.time(), 0.0, 0
    for p in w.values():
        p.requires_grad_(True)
    matrices, norms = [p for p in w.values() if p.dim() == 2], [p for p in w.values() if p.dim() == 1]
    opt = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.01}, {"params": norms, "weight_decay": 0.0}],
                            betas=(0.9, 0.98), fused=True)
    digits = torch.tensor([tok.encode(str(d))[0] for d in range(10)])
    for step in range(1, steps + 1):
        scale = min(1.0, step / warm) * (max(0.02, 1 - step / steps) if decay else 1.0)
        for g in opt.param_groups:
            g["lr"] = rate * scale
        ids, positions, targets, owners = collate(batch(rng))
        rows_asked, probe = targets >= 0, [] if look else None
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = forward(c, w, ids, positions, probe=probe)[rows_asked]
            logits = F.linear(hidden, w["model.embed_tokens.weight"]).float()
        loss = look * look_loss(c, probe, targets, owners) if look else 0.0
        targets = targets[rows_asked]
        (loss + F.cross_entropy(logits, targets)).backward()
        torch.nn.utils.clip_grad_norm_(w.values(), 1.0)
        opt.step()
        opt.zero_grad()
        is_digit = torch.isin(targets, digits)
        accuracy = (logits.argmax(-1) == targets)[is_digit].float().mean().item()
        running += (accuracy - running) / min(step, 50)
        seen += ids.numel()
        if step % 50 == 0:
            log(f"{name}: step {step}, digits right {running:.3f}, {seen} tokens, {time.time() - started:.0f} s"
                + (f", look {float(loss) / look:.2f}" if look else ""))
        if step >= 50 and running >= until and not decay:
            break
    for p in w.values():
        p.requires_grad_(False)
    return running


def grow(small, w, big, seed):
    """Weights of the bigger shape that compute the function of the smaller one. New units read at random and write zeros,
    so that training starts from the accuracy of the smaller model and can use all of them."""
    new, head = initial(big, seed), small["head_dim"]
    # Layer i becomes layer i * spread; head h the first of the group of query heads that shares KV head h.
    group = big["num_attention_heads"] // big["num_key_value_heads"]
    spread = big["num_hidden_layers"] // small["num_hidden_layers"]
    heads = torch.cat([torch.arange(head) + h * group * head for h in range(small["num_attention_heads"])])
    old = {re.sub(r"(?<=layers\.)\d+", lambda i: str(int(i[0]) * spread), name): t for name, t in w.items()}
    for name, t in new.items():
        if name.endswith(("o_proj.weight", "down_proj.weight", "embed_tokens.weight")):
            t.zero_()
        if "norm" in name:
            t *= math.sqrt(small["hidden_size"] / big["hidden_size"])    # a mean over more dimensions, the new ones zero
        if name not in old:
            continue
        rows = heads if "q_proj" in name else torch.arange(old[name].shape[0])
        if t.dim() == 1:
            t[rows] *= old[name]
        else:
            columns = heads if "o_proj" in name else torch.arange(old[name].shape[1])
            t[rows[:, None], columns] = old[name]
    return new


# ---- The files -------------------------------------------------------------------------------------------------------

def save(folder, c, w, tok):
    folder.mkdir(parents=True, exist_ok=True)
    header, blobs, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name in sorted(w):
        blob = w[name].detach().to(torch.bfloat16).contiguous().view(torch.int16).numpy().tobytes()
        header[name] = {"dtype": "BF16", "shape": list(w[name].shape), "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))
    tokenizer, tokenizer_config = tok.files()
    ends = {"bos_token_id": tok.bos, "eos_token_id": [tok.eos, tok.im_end]}
    for name, value in {"config": {**c, **ends}, "generation_config": {**ends, "do_sample": False}, "tokenizer": tokenizer,
                        "tokenizer_config": tokenizer_config}.items():
        indent = None if name == "tokenizer" else 2
        (folder / f"{name}.json").write_text(json.dumps(value, indent=indent, ensure_ascii=False) + "\n")


def load(folder):
    """Config, weights (as f32) and tokenizer of a written model."""
    raw = (folder / "model.safetensors").read_bytes()
    size, = struct.unpack("<Q", raw[:8])
    w = {}
    for name, t in json.loads(raw[8:8 + size]).items():
        if name != "__metadata__":
            a, b = (8 + size + o for o in t["data_offsets"])
            w[name] = torch.frombuffer(bytearray(raw[a:b]), dtype=torch.bfloat16).view(t["shape"]).float()
    merges = json.loads((folder / "tokenizer.json").read_text())["model"]["merges"]
    return json.loads((folder / "config.json").read_text()), w, Tokenizer([tuple(m.split(" ")) for m in merges])


# ---- The evaluation --------------------------------------------------------------------------------------------------

def question(rng, tok, tokens, form):
    """An unseen prompt: token ids, answer, and the [start, end) of its fact."""
    facts = facts_for(rng, rng.randint(6, 16))
    ids, _, _, spans, end = render(rng, tok, document(rng, tok, facts, tokens - 20), facts[:1], form, system=rng.random() < 0.3)
    return ids[:end], facts[0][2], spans[0]


def greedy(c, w, ids, positions, count, probe=None):
    """Prefills and decodes up to `count` tokens from the position after the last, up to and including a stop token."""
    cache, out, at = [], [], positions[-1] + 1
    ids, positions = torch.tensor([ids]), torch.tensor([positions])
    for _ in range(count):
        seen = [] if probe is not None else None
        hidden = forward(c, w, ids, positions, cache, seen)[0, -1]
        if probe is not None:
            probe.append(seen)
        out.append(int((w["model.embed_tokens.weight"] @ hidden).argmax()))
        if out[-1] in c["eos_token_id"]:
            break
        ids, positions, at = torch.tensor([[out[-1]]]), torch.tensor([[at]]), at + 1
    return out


def importance(c, w, ids):
    """Attention to each prompt token of the last prompt token and of the tokens decoded after it."""
    n, steps = len(ids), []
    greedy(c, w, ids, list(range(n)), LOOK_AHEAD, steps)
    total = torch.zeros(n)
    for layers in steps:
        best = torch.zeros(n)
        for q, k in layers:
            p = ((k[0, :, :n] @ q[0, :, -1, :, None])[..., 0] / math.sqrt(c["head_dim"])).softmax(-1)
            best = torch.maximum(best, F.avg_pool1d(p, WINDOW, 1, WINDOW // 2, count_include_pad=True).amax(0))
        total += best
    return total / len(steps)


def select(score, keep_rate):
    """Indices of the kept tokens: the best chunks within the budget, always with the first and the last chunk, and the tail
    window beyond the budget."""
    n = len(score)
    chunks = [score[i:i + CHUNK].mean().item() for i in range(0, n, CHUNK)]
    budget = math.ceil(len(chunks) * keep_rate)
    forced = {0, len(chunks) - 1}
    order = sorted(set(range(len(chunks))) - forced, key=lambda i: -chunks[i])
    kept = forced | set(order[:max(0, budget - len(forced))])
    tail = n - min(TAIL_WINDOW, n // 4)
    return [i for i in range(n) if i // CHUNK in kept or i >= tail]


@torch.no_grad()
def evaluate(documents, tokens, rates, form, seed):
    """Fraction of exact answers, stop token included: with all tokens kept, at each keep rate, of the speculator alone."""
    (mc, mw, tok), (sc, sw, _) = load(HERE / "main"), load(HERE / "speculator")
    right, kept = collections.Counter(), collections.Counter()
    for d in range(1, documents + 1):
        rng = random.Random(f"{seed}/{d}")
        kind = rng.choice(["plain", "chat"]) if form == "both" else form
        ids, answer, _ = question(rng, tok, tokens, kind)
        want = [*tok.encode(" " + answer), tok.eos] if kind == "plain" else [*tok.encode(answer), tok.im_end]
        everything, score = list(range(len(ids))), importance(sc, sw, ids)
        right["speculator alone"] += greedy(sc, sw, ids, everything, 8) == want
        for rate in ["full", *rates]:
            keep = everything if rate == "full" else select(score, rate)
            right[str(rate)] += greedy(mc, mw, [ids[i] for i in keep], keep, 8) == want
            kept[str(rate)] += len(keep) / len(ids)
        if d % 20 == 0 or d == documents:
            print(f"{d} documents:", ", ".join(f"{k} {n / d:.3f}" for k, n in right.items()), flush=True)
    share = lambda counter: {k: round(n / documents, 4) for k, n in counter.items()}
    return {"documents": documents, "tokens": tokens, "form": form, "seed": seed, "questions_per_document": 1,
            "look_ahead": LOOK_AHEAD, "chunk_tokens": CHUNK, "window": WINDOW, "tail_window": TAIL_WINDOW,
            "accuracy": share(right), "kept": share(kept)}


def write_prompts(out, tok, count, seed, tokens):
    for i in range(count):
        ids, answer, _ = question(random.Random(f"prompts/{seed}/{i}"), tok, tokens, "plain")
        out.write(json.dumps({"id": f"demo-{i:03d}", "prompt": tok.decode(ids), "answer": answer}) + "\n")


# ---- The command line ------------------------------------------------------------------------------------------------

def progress_log(model):
    started = time.time()
    return lambda text: print(f"{time.time() - started:6.0f} s  {model}: {text}", flush=True)


def train_all():
    tok, log = learn_tokenizer(), progress_log("speculator")
    for seed in range(1, 9):             # with some seeds the model never gets beyond guessing
        small = initial(SPECULATOR, seed)
        first, *rest = stages(tok)
        if learn(SPECULATOR, small, tok, first, seed, log) >= first[2]:
            break
    for i, stage in enumerate(rest):
        learn(SPECULATOR, small, tok, stage, 100 + i, log)
    learn(SPECULATOR, small, tok, ("mixture", 3500, 1, mixture(tok, drop=0.5, budget=8192)), 11, log, decay=True, look=0.1)
    save(HERE / "speculator", SPECULATOR, small, tok)

    big = grow(SPECULATOR, small, MAIN, seed=7)
    log = progress_log("main")
    learn(MAIN, big, tok, ("mixture", 600, 1, mixture(tok, drop=0.5, budget=3072)), 12, log, rate=1.5e-4, decay=True)
    save(HERE / "main", MAIN, big, tok)
    with open(HERE / "prompts.jsonl", "w") as out:
        write_prompts(out, tok, 20, 2024, 1000)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command")
    e = commands.add_parser("eval", help="accuracy of the written models")
    e.add_argument("--documents", type=int, default=200)
    e.add_argument("--tokens", type=int, default=1000)
    e.add_argument("--keep-rate", type=float, nargs="+", default=[0.3, 0.1])
    e.add_argument("--form", choices=["plain", "chat", "both"], default="both")
    e.add_argument("--seed", type=int, default=77)
    e.add_argument("--json", type=Path, help="also write the result to this file")
    p = commands.add_parser("prompts", help="unseen prompts, one JSON object per line")
    p.add_argument("--count", type=int, default=20)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--tokens", type=int, default=1000)
    a = parser.parse_args()
    torch.set_num_threads(1)
    if a.command == "eval":
        result = evaluate(a.documents, a.tokens, a.keep_rate, a.form, a.seed)
        if a.json:
            a.json.write_text(json.dumps(result, indent=2) + "\n")
    elif a.command == "prompts":
        write_prompts(sys.stdout, load(HERE / "main")[2], a.count, a.seed, a.tokens)
    else:
        train_all()


if __name__ == "__main__":
    main()
