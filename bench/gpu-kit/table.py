# SPDX-License-Identifier: Apache-2.0
"""Makes the Markdown table of the GPU kit from a folder of results (steps.py)."""
import glob
import html
import json
import os

NOT_MEASURED = (
    "groups of several GPUs: the kit is built without MPI",
    "checkpoints: all weights are random, except those of the golden tests",
)


def read(folder, name, default):
    try:
        with open(os.path.join(folder, name + ".json")) as file:
            return json.load(file)
    except (OSError, ValueError):
        return default


def over(a, b):
    return a / b if a is not None and b else None


def number(value, digits=1, unit=""):
    return "" if value is None else "%.*f%s" % (digits, value, unit)


def percent(value):
    return "" if value is None else "%.1f %%" % (100 * value)


def markdown(columns, rows):
    """A table; columns that start with '-' are aligned to the right."""
    if not rows:
        return []
    heads = [column.lstrip("-") for column in columns]
    lines = [heads, ["---:" if column.startswith("-") else "---" for column in columns]]
    lines += [[str(cell).replace("|", "/").replace("\n", " ") for cell in row] for row in rows]
    return ["| %s |" % " | ".join(line) for line in lines] + [""]


class Results:
    def __init__(self, folder):
        self.folder = folder
        self.machine = read(folder, "machine", {})
        self.scale = self.machine.get("scale", 1)
        steps = [read(folder, os.path.join("steps", os.path.basename(path)[:-5]), {})
                 for path in glob.glob(os.path.join(folder, "steps", "*.json"))]
        self.steps = {step["step"]: step for step in steps if "step" in step}

    def rows(self, name):
        return read(self.folder, name, [])

    def row(self, name, /, **wanted):
        """The first row with these values; None without one. Numbers of tokens and rows refer to a run on a GPU."""
        scaled = {key: max(1, value // self.scale) if key in ("tokens", "m") else value for key, value in wanted.items()}
        return next((row for row in self.rows(name) if all(row.get(key) == value for key, value in scaled.items())), None)

    def said(self, name, begin):
        """Returns the lines of a step's log that begin with this text."""
        try:
            with open(os.path.join(self.folder, name + ".log"), errors="replace") as file:
                return [line.strip() for line in file if line.startswith(begin)]
        except OSError:
            return []

    def why_missing(self, name):
        step = self.steps.get(name)
        return "%s: %s" % (step["state"], step["said"]) if step and step["state"] != "passed" else "not measured"


def arithmetic_share(row):
    return over(row["gflops"], row.get("peak_gflops")) if row else None


def memory_share(row):
    return over(row["gbytes_per_s"], row.get("dram_gbytes_per_s")) if row else None


def field(row, key):
    return row.get(key) if row else None


# Prompts in one pass: batch and tokens.
PROMPTS = ((16, 1024), (1, 16384))


def prompt_name(prompts):
    return "one prompt of {1:,}".format(*prompts) if prompts[0] == 1 else "{0} x {1:,} in one pass".format(*prompts)


def fp8_over_bf16(r, name, prompts):
    wanted = {"phase": "prefill", "batch": prompts[0], "tokens": prompts[1]}
    return over(field(r.row(name, **wanted), "tokens_per_s"), field(r.row("prefill", **wanted), "tokens_per_s"))


# Figures computed for Hopper from the compiled code and the limits that the machine probe measures. The key is a step and the
# index of the figure in the step. docs/gpus.md explains them.
COMPUTED = {("prefill", 0): "70 to 82 %", ("prefill", 1): "69 to 80 %", ("attention-128", 0): "63 to 72 %",
            ("score", 0): "6.7 to 8.2 ms", ("decode", 0): "86 to 90 %", ("decode", 1): "74 to 79 %",
            ("transformers", 0): "8 to 9.5", ("score", 1): "1.028 to 1.031", ("ttft", 0): "0.88 to 0.91",
            ("ttft", 1): "0.92 to 0.95", ("fp8-fast", 0): "1.6", ("fp8-fast", 1): "1.4"}


def figures(r):
    """Returns rows of (step, figure, goal, reached or not, value, text of the value)."""
    def share(step, what, goal, value):
        return step, what, "at least %g %%" % (100 * goal), value is not None and value >= goal, value, percent(value)

    def at_least(step, what, goal, value, digits=2):
        return step, what, "at least %g" % goal, value is not None and value >= goal, value, number(value, digits)

    def at_most(step, what, goal, value, digits=2, unit=""):
        return (step, what, "at most %g%s" % (goal, unit), value is not None and value <= goal, value,
                number(value, digits, unit))

    yield share("prefill", "prefill 8B bf16, 16 x 1,024 tokens in one pass, of the matrix limit", 0.75,
                arithmetic_share(r.row("prefill", batch=16, tokens=1024)))
    yield share("prefill", "prefill 8B bf16, one prompt of 16,384", 0.72,
                arithmetic_share(r.row("prefill", batch=1, tokens=16384)))
    attention = r.row("attention-128", phase="attention_prefill", tokens=16384)
    yield share("attention-128", "attention alone, one prompt of 16,384, head size 128", 0.65, arithmetic_share(attention))
    cudnn = r.row("torch", phase="attention", name="cudnn", head_size=128, tokens=16384)
    yield at_least("torch", "the same over PyTorch's cuDNN path, by speed", 1,
                   over(field(attention, "gflops"), field(cudnn, "gflops")))
    yield at_most("score", "50 new tokens on 32,768 cached, 8B bf16, a pass", 8, field(r.row("score", phase="more"), "ms"),
                  2, " ms")
    for batch, goal in ((1, 0.8), (64, 0.75)):
        yield share("decode", "decode 8B bf16, batch %d, context 1,024, of copy bandwidth" % batch, goal,
                    memory_share(r.row("decode", phase="decode", batch=batch)))
    padded = next(iter(r.rows("transformers")), None)
    yield at_least("transformers", "padded by Hugging Face transformers over packed, mmlu lengths, batches of 64", 9,
                   over(field(padded, "us_per_token"), field(r.row("prepack", policy="batch"), "us_per_token")))
    yield at_most("score", "scoring 32,768 tokens, look-ahead 8, over prefill", 1.03,
                  over(field(r.row("score", phase="score"), "ms"), field(r.row("score", phase="prefill"), "ms")), 3)
    layers = read(r.folder, os.path.join("main", "config"), {}).get("num_hidden_layers", "some")
    for rate in (0.1, 0.3):
        value = field(r.row("ttft", task="ttft", keep_rate=rate), "share")
        yield at_least("ttft", "TTFT at keep rate %g, 70B cut to %s layers with 8B speculator, speed-up over its bound"
                       % (rate, layers), 0.85, value, 3)
    for prompts in PROMPTS:
        yield at_least("fp8-fast", "prefill 8B FP8 over bf16, %s, fast accumulation" % prompt_name(prompts), 1.5,
                       fp8_over_bf16(r, "fp8-fast", prompts))


def figure_table(r):
    lines, places = [], {}
    for step, what, goal, reached, value, shown in figures(r):
        places[step] = places.get(step, -1) + 1
        lines.append((what, COMPUTED.get((step, places[step]), ""), goal,
                      shown if value is not None else r.why_missing(step),
                      "" if value is None else "yes" if reached else "no"))
    return markdown(("figure", "computed", "goal", "measured", "reached"), lines)


def speed_table(r):
    """Figures without a goal: padding, passes of scoring, FP8, and figures of a cluster."""
    def ratio(step, what, value):
        return what, r.why_missing(step) if value is None else number(value, 3)

    lines = [ratio("prepack", "padded over packed by this engine, mmlu lengths, batches of 64",
                   field(r.row("prepack", policy="batch"), "padded_time_ratio")),
             ratio("score", "scoring 32,768 tokens over the same passes without importance",
                   field(r.row("score", phase="score"), "over_plain"))]
    lines += [ratio(name, "prefill 8B FP8%s over bf16, %s" % (how, prompt_name(prompts)), fp8_over_bf16(r, name, prompts))
              for name, how, some in (("fp8", "", PROMPTS), ("fp8-blocks", " with scales of blocks", PROMPTS[1:]))
              for prompts in some]
    for step, what, row in (("fp8", "prefill 8B FP8, one prompt of 16,384", r.row("fp8", phase="prefill", batch=1, tokens=16384)),
                      ("fp8", "decode 8B FP8, batch 1", r.row("fp8", phase="decode", batch=1)),
                      ("fp8", "decode 8B FP8, batch 64", r.row("fp8", phase="decode", batch=64)),
                      ("fp8-fast", "prefill 8B FP8 with fast accumulation, 16,384", r.row("fp8-fast", phase="prefill", tokens=16384)),
                      ("fp8-blocks", "prefill 8B FP8 with scales of blocks, 16,384", r.row("fp8-blocks", phase="prefill", tokens=16384))):
        lines.append((what, "%.0f tokens/s" % row["tokens_per_s"] if row else r.why_missing(step)))
    lines += [("what fast accumulation loses", line) for line in r.said("check_cuda_fp8_gpu", "fp8 sums of ")]
    served = r.row("serve", phase="serve")
    if not served:
        return markdown(("figure", "measured"), lines + [("a cluster", r.why_missing("serve"))])
    plan, used = served["plan"], served.get("used_mib")
    lines.append(("a cluster of 8B bf16, from start to ready", number(served["ready_s"], 1, " s")))
    parts = ("weights_mib", "pass_mib", "workspace_mib", "kv_mib")
    planned = sum(plan.get(key, 0) for key in parts)
    lines.append(("its memory, MiB", "weights %s + activations %s + workspace %s + KV %s = %d allocated; libraries %s, where "
                  "forepack plan assumes 640 and rounding to pages; all by nvidia-smi %s" % (
                      *(plan.get(key, "?") for key in parts), planned, plan.get("runtime_mib", "?"),
                      "unknown" if used is None else used)))
    lines.append(("TTFT of %d tokens" % served["prompt_tokens"], number(served["ttft_ms"], 1, " ms")))
    if served.get("pruned_ttft_ms"):
        lines.append(("TTFT of %d tokens, of which %d are kept (keep rate 0.3)" % (
            served["pruned_tokens"], served["pruned_kept_tokens"]),
                      "%.1f ms, of which scoring %.1f ms" % (served["pruned_ttft_ms"], served["pruned_score_ms"])))
    lines.append(("TTFT of %d new tokens on %d cached" % (served["more_tokens"], served["more_cached_tokens"]),
                  number(served["more_ttft_ms"], 1, " ms")))
    lines += [("time between tokens, %d sequences of %d, %s" % (row["batch"], row["context"], row["sampling"]),
               number(row["token_ms"], 2, " ms")) for row in r.rows("serve") if row["phase"] == "served_decode"]
    return markdown(("figure", "measured"), lines)


def gemm_table(r):
    """Our rates next to torch.matmul's, in TFLOP/s."""
    ours = {row["m"]: row for row in r.rows("gemms")}
    torch = {(row["m"], row["name"]): row["gflops"] for row in r.rows("torch") if row["phase"] == "matmul"}
    lines = []
    for m in sorted(set(ours) | {m for m, _ in torch}):
        own = {gemm["name"]: gemm["gflops"] for gemm in ours[m]["products"]} if m in ours else {}
        if m in ours:
            own["layer"] = ours[m]["gflops"]
        for name in ("qkv", "o", "gate_up", "down", "layer"):
            lines.append((m, name, number(over(own.get(name), 1000)), number(over(torch.get((m, name)), 1000)),
                          number(over(own.get(name), torch.get((m, name))), 2)))
    return markdown(("-rows", "gemm", "-TFLOP/s", "-torch.matmul", "-ratio"), lines)


def attention_table(r):
    """Our rates next to those of PyTorch's scaled_dot_product_attention, in TFLOP/s."""
    torch = {(row["head_size"], row["tokens"], row["name"]): row for row in r.rows("torch") if row["phase"] == "attention"}
    lines = []
    for name in ("attention-128", "attention-64", "attention-cached", "attention-fp8"):
        for row in r.rows(name):
            prefill = row["phase"] == "attention_prefill" and not row["context"]
            bars = [torch.get((row["head_size"], row["tokens"], bar), {}) if prefill else {} for bar in ("flash", "cudnn")]
            lines.append((row["phase"].split("_")[1], row["head_size"], row["batch"], row["tokens"], row["context"],
                          number(row["ms"], 3), number(over(row["gflops"], 1000)), number(row["gbytes_per_s"], 0),
                          percent(row.get("share")), *(number(over(bar.get("gflops"), 1000)) for bar in bars)))
    lines += [("missing", name, "", "", "", "", "", "", r.why_missing(name), "", "")
              for name in ("attention-128", "attention-64", "attention-cached", "attention-fp8") if not r.rows(name)]
    return markdown(("attention", "-head size", "-batch", "-tokens", "-cached", "-ms", "-TFLOP/s", "-GB/s", "-of the limit",
                     "-PyTorch flash", "-PyTorch cuDNN"), lines)


def run_table(r):
    lines = [(name, row["phase"], row["batch"], row["tokens"], row["context"], number(row["tokens_per_s"]),
              number(row["ms"], 2), percent(row["spread"]), number(row["gflops"] / 1000), number(row["gbytes_per_s"], 0),
              number(row.get("open_s")))
             for name in ("prefill", "decode", "decode-without-graphs", "decode-without-early-launch", "score", "fp8", "fp8-fast", "fp8-blocks") for row in r.rows(name)]
    return markdown(("run", "phase", "-batch", "-tokens", "-context", "-tokens/s", "-ms", "-spread", "-TFLOP/s", "-GB/s",
                     "-opened in s"), lines)


def ttft_table(r):
    lines = [(row["keep_rate"], number(row["kept_share"], 3), number(row["plain_ms"]), number(row["score_ms"]),
              number(row["ttft_ms"]), number(row["speed_up"], 2), number(row["bound"], 2)) for row in r.rows("ttft")]
    return markdown(("-keep rate", "-kept", "-TTFT with all tokens, ms", "-scoring, ms", "-TTFT, ms", "-speed-up", "-bound"),
                    lines)


def step_table(r):
    lines = [(step["step"], step["state"], number(step["seconds"]), step.get("kit", "").split(",")[0], step["said"])
             for _, step in sorted(r.steps.items(), key=lambda item: (item[0].startswith(("check", "memcheck", "racecheck", "synccheck")), item[0]))]
    return markdown(("step", "state", "-s", "kit", "message"), lines)


def heading(r):
    machine = r.machine
    probe = next(iter(r.rows("prefill") + r.rows("decode") + r.rows("gemms")), {})
    limits = "matrix limit %s TFLOP/s in bf16, copy bandwidth %s GB/s, by the machine probe" % (
        number(over(probe.get("peak_gflops"), 1000)) or "unknown", number(probe.get("dram_gbytes_per_s"), 0) or "unknown")
    lines = ["# One GPU", "", "%s; %s; %s; %s; random weights" % (machine.get("gpu"), machine.get("host"), machine.get("date"),
                                                                  machine.get("kit")), "", limits, ""]
    if machine.get("trial"):
        lines += ["**A trial on the CPU with tiny shapes: the figures mean nothing.**", ""]
    return lines


def make(folder):
    r = Results(folder)
    lines = heading(r) + figure_table(r) + speed_table(r) + gemm_table(r) + attention_table(r) + ttft_table(r) + run_table(r)
    lines += step_table(r) + ["Not measured:", ""] + ["- %s" % line for line in NOT_MEASURED]
    return "\n".join(lines) + "\n"


def page(text):
    """The same tables as an HTML page."""
    lines, rows = [], []
    for line in text.split("\n") + [""]:
        if line.startswith("| "):
            rows.append([html.escape(cell.strip()) for cell in line[1:-1].split("|")])
            continue
        if rows:
            numbers = [mark.endswith(":") for mark in rows[1]]
            lines.append("<table>")
            for i, row in enumerate(rows[:1] + rows[2:]):
                tag = "td" if i else "th"
                lines.append("<tr>%s</tr>" % "".join("<%s%s>%s</%s>" % (tag, ' class="number"' if number else "", cell, tag)
                                                     for cell, number in zip(row, numbers)))
            lines.append("</table>")
            rows = []
        if line.startswith("# "):
            lines.append("<h1>%s</h1>" % html.escape(line[2:]))
        elif line:
            lines.append("<p>%s</p>" % html.escape(line.strip("*- ")))
    return ("<!doctype html><meta charset=utf-8><title>GPU kit</title><style>body{font:14px sans-serif;margin:2em}table{"
            "border-collapse:collapse;margin:1em 0}td,th{border-bottom:1px solid #ccc;padding:2px 8px;text-align:left}"
            ".number{text-align:right}</style>" + "\n".join(lines) + "\n")
