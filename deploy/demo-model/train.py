#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains the models of the demo pair, from the weights in this folder, on documents of `forepack bench documents`.

    train.py main|speculator [--forepack FILE] [--output FILE] [--stage N] [--steps N] [--save-every N]

--stage N runs one stage, from 0, and --steps N runs this many steps of each. Needs PyTorch and the program forepack. One thread is
fastest at this size.
"""
import argparse, json, math, random, re, subprocess, time
from pathlib import Path
import torch
import torch.nn.functional as F
import model

HERE = Path(__file__).resolve().parent
TASKS = "needle facts two_hop count copy instruction".split()

# By task: the share of batches, and the weight of the answers' loss. The speculator only has to find what other tasks need.
SHARES = {"main": [0.9, 1.4, 1.1, 0.7, 1.8, 1.2], "speculator": [3, 1.5, 1.5, 0.5, 0.7, 1]}
WEIGHTS = {"main": [1] * 6, "speculator": [1, 0.2, 0.2, 0.03, 0.02, 0.2]}
COUNTING = [0.9, 1.4, 1.1, 6.4, 1.8, 1.2]      # half of the batches count
FINDING = [1, 2, 2, 1, 2, 1]

# lengths: ranges of tokens, one for each batch; rows: tokens in a batch; pruned: share of batches with pruned prompts;
# rate: learning rate, falls to zero in the stage with `decay`; shares: shares of the tasks in the stage; importance: trained
# instead of the attention of the speculator's last head
STAGES = {
    "main": [
        dict(steps=6000, lengths=[(256, 300), (300, 450)], rows=2500, pruned=0.0, rate=3.5e-4, decay=False),
        dict(steps=3000, lengths=[(256, 450), (450, 1000)], rows=2200, pruned=0.35, rate=3.5e-4, decay=False),
        dict(steps=1500, lengths=[(256, 450), (450, 1000), (1000, 2000), (2000, 4000)], rows=2300, pruned=0.5, rate=3.5e-4,
             decay=False),
        dict(steps=8000, lengths=[(256, 450), (450, 1000), (1000, 2000), (2000, 4000)], rows=2300, pruned=0.5, rate=3.5e-4,
             decay=True, shares=COUNTING)],
    "speculator": [
        dict(steps=2000, lengths=[(256, 450), (450, 1000), (1000, 1400)], rows=2600, pruned=0.0, rate=1.2e-4, decay=False),
        dict(steps=2000, lengths=[(256, 450), (450, 1000), (1000, 2200)], rows=2600, pruned=0.0, rate=3e-4, decay=True,
             shares=FINDING, importance=True)],
}

# ---- Samples ---------------------------------------------------------------------------------------------------------
# A sample is a document with several questions and their answers. Only the answers are targets: the rest is random.


class Question:
    """Rows [begin, row] ask it; row `row + i` predicts token i of the answer; `spans` are the [first, end) that it needs."""

    def __init__(self, begin, row, answer, spans):
        self.begin, self.row, self.answer, self.spans = begin, row, answer, [(a, b + 1) for a, b in spans]
        self.rows = range(row, row + len(answer))


class Sample:
    def __init__(self, row):
        self.task, self.ids, self.questions = row["task"], list(row["token_ids"]), []
        self.prompt, begin = len(self.ids), max(0, len(self.ids) - 70)      # the first question is in the last 70 tokens
        for q in [row, *row.get("questions", [])]:
            self.ids += q.get("question_ids", [])
            self.questions.append(Question(begin, len(self.ids) - 1, q["answer_ids"], q["spans"]))
            self.ids += q["answer_ids"]
            begin = len(self.ids)
        self.positions, self.targets = list(range(len(self.ids))), [-1] * len(self.ids)
        for q in self.questions:
            self.targets[q.row:q.row + len(q.answer)] = q.answer


def documents(forepack, task, lengths, seed):
    """Samples of one task without end. Seeds from 2000 are for training."""
    process = subprocess.Popen([forepack, "bench", "documents", "--model", HERE / "main", "--task", task, "--form", "mixed",
                                "--tokens", "%d-%d" % lengths, "--seed", str(seed), "--questions", "8", "--count",
                                "4000000000", "--token-ids"], stdout=subprocess.PIPE)
    try:
        for line in process.stdout:
            yield Sample(json.loads(line))
    finally:
        process.kill()
        process.wait()


def tail_of(prompt):
    """The first of the tokens that are kept at the end of a prompt: the last 128, at most a quarter."""
    return prompt - min(128, prompt // 4)


def sentences(ids, ends, tail):
    """Divides the tokens before `tail` as the selection does: [first, end) of each sentence (`ends`: ids that end one); short
    ones are joined until they have 8 tokens."""
    found, first = [], 1
    for i in range(1, tail):
        if i == tail - 1 or ids[i] in ends and i - first >= 7:
            found.append((first, i + 1))
            first = i + 1
    return found


def prune(rng, sample, ends):
    """Prunes tokens as a speculator does: whole chunks of 32 or whole sentences at random, but not what the answers need, the
    first token and the tail."""
    tail, rate = tail_of(sample.prompt), rng.choice([0, 0.1, 0.25, 0.5])
    needed = [span for q in sample.questions for span in q.spans]
    if rng.random() < 0.5:
        parts = [(a, a + 32) for a in range(0, tail, 32)]
        needed = [(a // 32 * 32, -(-b // 32) * 32) for a, b in needed]
    else:
        parts = sentences(sample.ids, ends, tail)
        before, after = rng.randint(0, 3), rng.randint(0, 3)
        needed = [(a - before, b + after) for a, b in needed]
    needed += [part for part in parts if rng.random() < rate]
    kept = sorted({0, *range(tail, len(sample.ids)), *(i for a, b in needed for i in range(max(0, a), min(b, tail)))})
    place = {old: new for new, old in enumerate(kept)}
    for q in sample.questions:
        q.begin, q.row = place[max(q.begin, tail)], place[q.row]
        q.spans, q.rows = [(place[a], place[b - 1] + 1) for a, b in q.spans], range(q.row, q.row + len(q.answer))
    sample.ids, sample.targets = [sample.ids[i] for i in kept], [sample.targets[i] for i in kept]
    sample.positions = kept


def randomise(rng, sample, digits):
    """Random digits in the answers, as those that the speculator decodes often are. The targets remain."""
    for q in sample.questions:
        for i in q.rows[1:]:
            if sample.ids[i] in digits:
                sample.ids[i] = rng.choice(digits)


# ---- What heads should attend to ---------------------------------------------------------------------------------------
# The loss of the answers alone does not lead a model of this size to two hops, counts or copies within hours. Some heads
# therefore have a task each, as (layer, heads...): the rows in which a head attends and the tokens it should attend to.
#
# A mean over n parcels does not depend on n, so one of them has a mark that comes out as 1 / n: `earlier` looks, at the end
# of a parcel's sentence, for an earlier parcel of the same person, and the row learns whether it is the first. `parcels`
# attends to all of the person evenly; `ratio` too, and to the question as to three parcels.

HEADS = {"value": (3, 0), "line": (3, 3), "keeper": (2, 9), "asked": (1, 0), "thing": (0, 4), "person": (0, 7),
         "demand": (1, 6), "earlier": (1, 3), "parcels": (2, 1, 3, 7), "ratio": (2, 4, 6)}
EVEN = ("parcels", "ratio", "asked", "thing", "person")     # other heads may attend to any of the tokens
FIRST, LATER = 1534, 1535       # rows of the embedding that no token uses
PARTS = ("(?:Mi|To|Le|Ka|Ro|Be|Sa|Ne|Jo|Da|Fi|Hu)(?:ra|lin|mas|na|vik|den|tha|lo|ri|sel|wen|ja)",
         "(?:Tol|Var|Hes|Brun|Quil|Mor|Ast|Fen|Gar|Ock|Pell|Win)(?:en|ow|berg|ley|ett|ova|mark|ane|ik|ford|usk|ard)")
NAME, DIGITS = r"\b%s %s\b" % PARTS, r"\b\d{4}\b"
THING = (r"\b(?:grey|silver|old|little|empty|wooden|heavy|bright|small|stone|long|low) "
         r"(?:boat|lantern|umbrella|letter|bicycle|fence)\b")


class Text:
    """Finds the tokens of a sample by patterns."""

    def __init__(self, texts, ids):
        parts, self.at = [texts.get(i, "") for i in ids], [0]
        for p in parts:
            self.at.append(self.at[-1] + len(p))
        self.text = "".join(parts)

    def find(self, pattern, first, end):
        """Lists of tokens that contain a match in [first, end)."""
        return [[i for i in range(first, end) if self.at[i] < m.end() and self.at[i + 1] > m.start()]
                for m in re.finditer(pattern, self.text[:self.at[end]]) if m.start() >= self.at[first]]


def attend_to_values(text, sample, q, into):
    values = [v for a, b in q.spans for v in text.find(DIGITS, a, b)]
    written = text.find(r"\d{4}", q.row + 1, q.row + 1 + len(q.answer)) if q.row + 1 < len(sample.ids) else []
    names = text.find(NAME, q.begin, q.row + 1)
    for n, digits in enumerate(written):
        if sample.task == "facts" and n < len(names):
            into["asked"] += [(i - 1, names[n]) for i in digits]
        want = [sample.ids[i] for i in digits]
        source = next((list(v) for v in values for v in (v, v[::-1]) if [sample.ids[i] for i in v] == want), [])
        into["value"] += [(i - 1, [s]) for i, s in zip(digits, source)]


def attend_to_sentences(text, sample, q, into):
    """The last token of a sentence collects whom and what it is about; rows of the answer find it there."""
    for a, b in q.spans:
        names, things, digits = (text.find(p, a, b) for p in (NAME, THING, DIGITS))
        keeps = sample.task == "two_hop" and things and not digits
        ends = [b - 2, b - 1] if keeps else [b - 1]
        if len(names) == 1:
            into["person"] += [(i, names[0]) for i in ends if names[0][-1] <= i]
        if keeps:
            into["thing"] += [(i, things[0]) for i in ends if things[0][-1] <= i]
            into["keeper"] += [(row, ends) for row in q.rows]
        if sample.task == "instruction" and not names and not digits:
            into["demand"] += [(row, list(range(a, b))) for row in q.rows]


def attend_to_parcels(text, q, into):
    ends, mark = [b - 1 for _, b in q.spans], text.find(r"\?", q.begin, q.row + 1)[-1]
    into["earlier"] += [(b - 1, ends[:i] or list(range(a, b))) for i, (a, b) in enumerate(q.spans)]
    for row in q.rows[:-1]:
        into["parcels"].append((row, ends))
        into["ratio"].append((row, mark * 3 + ends))


def attention_targets(text, sample):
    """{head's task: [(row, tokens)]}"""
    into = {kind: [] for kind in HEADS}
    for q in sample.questions:
        subject = text.find(THING if sample.task == "two_hop" else NAME, q.begin, q.row + 1)
        if subject and sample.task not in ("facts", "copy"):
            into["asked"] += [(row, subject[-1]) for row in q.rows]
        if sample.task == "count":
            attend_to_parcels(text, q, into)
        elif sample.task == "copy":
            (a, b), lines = q.spans[0], q.answer[:-1]
            start = next((i for i in range(a, b) if sample.ids[i:i + len(lines)] == lines), None)
            if start is not None:
                into["line"] += [(row, [start + i]) for i, row in enumerate(q.rows) if row < len(sample.ids)]
        else:
            attend_to_values(text, sample, q, into)
        attend_to_sentences(text, sample, q, into)
    return into


def attention(heads, layer, head, sample, rows):
    """Logarithm of the attention of one head in some rows of a sample, [rows, T]."""
    (q, k), rows = heads[layer], torch.tensor(rows)
    scores = (q[sample, head, rows] @ k[sample, head].T).float() / math.sqrt(q.shape[-1])
    return scores.masked_fill(torch.arange(k.shape[2]) > rows[:, None], -math.inf).log_softmax(-1)


def attention_loss(heads, targets):
    """Distance from equal attention to the tokens, a token that is listed twice counts twice. For kinds that are not
    EVEN: distance from attention to any of them."""
    total = 0.0
    for kind, (layer, *which) in HEADS.items():
        loss, count = 0.0, sum(len(t[kind]) for t in targets) * len(which)
        for b, t in enumerate(targets):
            for head in which if t[kind] else ():
                logs = attention(heads, layer, head, b, [row for row, _ in t[kind]])
                for log, (_, tokens) in zip(logs, t[kind]):
                    want = sum(math.log(tokens.count(i) / len(tokens)) for i in tokens) / len(tokens)
                    loss = loss + (want - log[tokens].mean() if kind in EVEN else -log[tokens].logsumexp(0))
        total = total + loss / max(count, 1) * (3 if kind == "parcels" else 1)
    return total


def content_loss(streams, targets, samples, reader, stems):
    """The residual stream in a row should carry the tokens attended to: those of `asked` after layer 1, of `thing` and
    `person` after layer 0, of `keeper` after layer 2. After layer 1 it should also tell whether a parcel is the first. `reader` is an embedding used
    for this alone."""
    total = 0.0
    for layer, kinds, weight in ((0, ("thing", "person"), 0.3), (1, ("asked",), 0.3), (1, ("earlier",), 0.3),
                                 (2, ("keeper",), 0.5)):
        where, want = [], []
        for b, (t, s) in enumerate(zip(targets, samples)):
            named = dict((row, tokens) for row, tokens in t["person"])
            for kind in kinds:
                for row, tokens in t[kind]:
                    tokens = named.get(tokens[-1], []) if kind == "keeper" else tokens
                    ids = [stems.get(s.ids[i], s.ids[i]) for i in tokens]
                    if kind == "earlier":
                        ids = [FIRST if row in tokens else LATER]
                    where, want = where + [(b, row)] * len(ids), want + ids
        if where:
            b, row = torch.tensor(where).T
            x = streams[layer][b, row]
            total = total + weight * F.cross_entropy(F.linear(F.rms_norm(x, x.shape[-1:]), reader).float(), torch.tensor(want))
    return total


def look_loss(heads, samples):
    """Distance of the speculator's last head from equal attention to all tokens that the answer needs, in its first rows: the
    selection keeps what heads attend to, and heads that copy attend to the value alone."""
    total, count = 0.0, 0
    for b, sample in enumerate(samples):
        for q in sample.questions:
            rows, needed = [row for row in q.rows[:3] if row < len(sample.ids)], [i for a, e in q.spans for i in range(a, e)]
            total = total - attention(heads, 1, 3, b, rows)[:, needed].mean(-1).sum()
            count += len(rows)
    return total / count


LOOK_AHEAD, WINDOW = 8, 13


def importance(heads, sample, q):
    """Importance of each token of a question's prompt, as speculator/scorer.h computes it: attention over the prompt,
    smoothed, the maximum over the heads, the mean over the steps."""
    rows = list(q.rows[:LOOK_AHEAD])
    each = [attention(heads, layer, head, sample, rows)[:, :q.row + 1].softmax(-1)
            for layer, (queries, _) in enumerate(heads) for head in range(queries.shape[1])]
    return F.avg_pool1d(torch.stack(each), WINDOW, 1, WINDOW // 2).amax(0).mean(0)


def importance_loss(heads, samples, ends):
    """Each sentence that an answer needs should have more importance, in the mean over its tokens, than all other sentences before
    the tail. The power of 4 makes the largest of the other sentences count."""
    total, count = 0.0, 0
    for b, sample in enumerate(samples):
        for q in sample.questions:
            parts = sentences(sample.ids, ends, tail_of(q.row + 1))
            means = importance(heads, b, q)[1:parts[-1][1]].split([end - first for first, end in parts])
            logs = 4 * torch.stack([m.mean() for m in means]).log()
            needed = torch.tensor([any(a < end and first < e for a, e in q.spans) for first, end in parts])
            total = total + F.softplus(logs[~needed].logsumexp(0) - logs[needed]).sum()
            count += needed.sum().item()
    return total / max(count, 1)


# ---- The training ----------------------------------------------------------------------------------------------------


class Muon:
    """Momentum with orthogonal steps, for the matrices of attention (Jordan et al., 2024): AdamW alone learns neither copies
    nor lists in the same time."""

    def __init__(self, matrices):
        self.momentum = [(p, torch.zeros_like(p)) for p in matrices]

    @torch.no_grad()
    def step(self, rate):
        for p, m in self.momentum:
            m.mul_(0.95).add_(p.grad, alpha=0.05)
            x = p.grad * 0.05 + m * 0.95
            x = x.T if x.shape[0] > x.shape[1] else x
            x = (x / (x.norm() + 1e-7)).to(torch.bfloat16)
            for _ in range(5):           # Newton-Schulz
                a = x @ x.T
                x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
            x = x.T if p.shape[0] > p.shape[1] else x
            p.mul_(1 - rate * 0.01).add_(x.float(), alpha=-rate * max(1, p.shape[0] / p.shape[1]) ** 0.5)
            p.grad = None


def collate(samples):
    """Pads on the right, which a causal mask makes harmless."""
    width = max(len(s.ids) for s in samples)
    fill = lambda rows, value: torch.tensor([r + [value] * (width - len(r)) for r in rows])
    return fill([s.ids for s in samples], 0), fill([s.positions for s in samples], 0), fill([s.targets for s in samples], -1)


def answer_loss(w, hidden, targets):
    """Cross entropy of the answers, each with weight sqrt(tokens), and the share of right answers."""
    asked = targets >= 0
    logits, want = F.linear(hidden[asked], w["model.embed_tokens.weight"]).float(), targets[asked]
    rows = asked.flatten().nonzero()[:, 0]
    answer = torch.cat([torch.zeros(1, dtype=torch.long), (rows.diff() != 1).long()]).cumsum(0)
    sizes = answer.bincount()
    weight = sizes[answer].float().rsqrt()
    wrong = torch.zeros(len(sizes)).index_add(0, answer, (logits.argmax(-1) != want).float())
    return (F.cross_entropy(logits, want, reduction="none") * weight).sum() / weight.sum(), (wrong == 0).float().mean().item()


class Trainer:
    def __init__(self, which, forepack, seed):
        self.which, self.forepack, self.rng, self.pools = which, forepack, random.Random(seed), {}
        self.c, self.w, self.texts = model.load(HERE / which)
        ids = {t: i for i, t in self.texts.items()}
        self.ends = {i for i, t in self.texts.items() if t.endswith((".", "\n"))}
        self.digits = [ids[d] for d in "0123456789"]
        self.stems = {i: ids[" " + t] for t, i in ids.items() if " " + t in ids}    # a name with and without its blank
        self.reader = self.w["model.embed_tokens.weight"].clone()
        attention = [p for n, p in self.w.items() if which == "main" and "self_attn" in n]
        others = [p for p in self.w.values() if not any(p is a for a in attention)]
        for p in [*self.w.values(), self.reader]:
            p.requires_grad_(True)
        self.muon = Muon(attention)
        self.adam = torch.optim.AdamW([{"params": [p for p in others if p.dim() == 2] + [self.reader], "weight_decay": 0.01},
                                       {"params": [p for p in others if p.dim() == 1], "weight_decay": 0.0}],
                                      betas=(0.9, 0.98), fused=True)

    def batch(self, stage):
        shares = stage.get("shares", SHARES[self.which])
        task, lengths = self.rng.choices(TASKS, shares)[0], self.rng.choice(stage["lengths"])
        if (task, lengths) not in self.pools:
            self.pools[task, lengths] = documents(self.forepack, task, lengths, self.rng.randrange(2000, 10**9))
        samples, pruned = [], self.rng.random() < stage["pruned"]
        randomised = "importance" in stage and self.rng.random() < 0.5
        while not samples or max(len(s.ids) for s in samples) * len(samples) < stage["rows"]:
            samples.append(next(self.pools[task, lengths]))
            if pruned:
                prune(self.rng, samples[-1], self.ends)
            if randomised:
                randomise(self.rng, samples[-1], self.digits)
        return samples

    def step(self, stage, rate):
        """Loss, name of the batch's task and the share of right answers."""
        samples = self.batch(stage)
        ids, positions, targets = collate(samples)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden, streams, heads = model.forward(self.c, self.w, ids, positions)
            loss, right = answer_loss(self.w, hidden, targets)
            loss = loss * WEIGHTS[self.which][TASKS.index(samples[0].task)]
            if self.which == "main":
                wanted = [attention_targets(Text(self.texts, s.ids), s) for s in samples]
                loss = loss + 0.4 * attention_loss(heads, wanted)
                loss = loss + content_loss(streams, wanted, samples, self.reader, self.stems)
            elif "importance" in stage:
                loss = loss + importance_loss(heads, samples, self.ends)
            else:
                loss = loss + 0.1 * look_loss(heads, samples)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.w.values(), 1.0)
        self.muon.step(rate * 11)
        for group in self.adam.param_groups:
            group["lr"] = rate
        self.adam.step()
        self.adam.zero_grad()
        return loss.item(), samples[0].task, right

    def run(self, stages, steps, output, save_every):
        started, right = time.time(), dict.fromkeys(TASKS, 0.0)
        for number, stage in stages:
            last = steps or stage["steps"]
            for step in range(1, last + 1):
                scale = min(1.0, step / 50) * (1 - step / (last + 1) if stage["decay"] else 1.0)
                loss, task, share = self.step(stage, stage["rate"] * scale)
                right[task] += 0.05 * (share - right[task])
                if step % 25 == 0 or step == last:
                    print(f"{time.time() - started:6.0f} s  stage {number}, step {step}: loss {loss:.3f}, right "
                          + ", ".join(f"{t} {r:.2f}" for t, r in right.items()), flush=True)
                if step % save_every == 0 or step == last:
                    model.save(output, self.w)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=list(STAGES))
    parser.add_argument("--forepack", type=Path, default=Path("forepack"))
    parser.add_argument("--output", type=Path, help="default: the model's file in this folder")
    parser.add_argument("--stage", type=int, help="one stage; default: all")
    parser.add_argument("--steps", type=int, help="steps of each stage")
    parser.add_argument("--save-every", type=int, default=200, help="steps")
    parser.add_argument("--seed", type=int, default=1)
    a = parser.parse_args()
    stages = list(enumerate(STAGES[a.model]))
    if a.stage is not None:
        if not 0 <= a.stage < len(stages):
            parser.error(f"--stage {a.stage}: must be from 0 to {len(stages) - 1}")
        stages = stages[a.stage:a.stage + 1]
    torch.set_num_threads(1)
    output = a.output or HERE / a.model / "model.safetensors"
    Trainer(a.model, a.forepack, a.seed).run(stages, a.steps, output, a.save_every)


if __name__ == "__main__":
    main()
