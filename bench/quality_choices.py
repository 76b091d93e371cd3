#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Tables and the picture of bench/quality_choices.sh, from its JSON files: baselines.md, baselines.svg, ablations.md. Scores are
means over the classes of documents; the interval is the binomial one of 95 % (Wilson).

Usage: bench/quality_choices.py FOLDER EARLY_LAYERS"""
import json
import math
import os
import sys

from pictures import MARGIN, WIDTH, Picture

COLOURS = ("#0969da", "#1a7f37", "#bf8700", "#cf222e", "#8250df", "#6e7781", "#0a3069", "#d4a72c", "#76e3ea", "#ff8182")
NAMES = {"importance": "importance by the speculator", "oracle": "oracle: the main model's own answer", "bm25": "BM25",
         "perplexity": "perplexity, spans", "random": "random spans", "positional": "first and last tokens",
         "first": "first tokens", "last": "last tokens"}


class Cell:
    """The classes of one way to choose tokens at one keep rate."""

    def __init__(self, rows):
        self.documents = sum(row["documents"] for row in rows)
        self.score = sum(row["score"] * row["documents"] for row in rows) / self.documents
        self.kept = sum(row["kept_ratio"] for row in rows) / len(rows)
        times = [row["ttft_ms"] for row in rows if row["ttft_ms"] is not None]
        self.ttft_ms = sum(times) / len(times) if times else None

    def interval(self):
        n, p, z = self.documents, self.score, 1.96
        middle, reach = (p + z * z / 2 / n), z * math.sqrt(p * (1 - p) / n + z * z / 4 / n / n)
        return (middle - reach) / (1 + z * z / n), (middle + reach) / (1 + z * z / n)

    def text(self):
        low, high = self.interval()
        return "%.1f (%.0f-%.0f), %.0f %%" % (100 * self.score, 100 * low, 100 * high, 100 * self.kept)


def read(folder, name):
    """Returns {(policy, look-ahead, chunk): {keep rate: Cell}} of a file; None if it was not measured."""
    try:
        with open(os.path.join(folder, name + ".json"), encoding="utf-8") as file:
            rows = json.load(file)
    except FileNotFoundError:
        return None
    groups = {}
    for row in rows:
        key = (row["policy"], row["look_ahead"], row["chunk_tokens"])
        groups.setdefault(key, {}).setdefault(row["keep_rate"], []).append(row)
    return {key: {rate: Cell(of) for rate, of in rates.items()} for key, rates in groups.items()}


def baseline_lines(folder, early):
    measured = read(folder, "baselines")
    if measured is None:
        return None
    lines = [(NAMES[key[0]], cells) for key, cells in measured.items() if key[0] != "everything"]
    tokens = read(folder, "baselines-tokens") or {}
    lines += [("perplexity, single tokens", cells) for key, cells in tokens.items() if key[0] == "perplexity"]
    layers = read(folder, "baselines-early") or {}
    lines += [("attention of the main model's first %s layers" % early, cells)
              for key, cells in layers.items() if key[0] == "importance"]
    whole = next(cells[1] for key, cells in measured.items() if key[0] == "everything")
    return whole, lines


def table(whole, lines):
    rates = sorted({rate for _, cells in lines for rate in cells}, reverse=True)
    out = ["Right answers in %% (95 %% interval) and tokens kept, by keep rate; %d documents each. All tokens: %s." % (
        whole.documents, whole.text().split(",")[0]), "",
           "| chosen by | %s |" % " | ".join("%g" % rate for rate in rates), "| --- |" + " --- |" * len(rates)]
    for name, cells in lines:
        out.append("| %s | %s |" % (name, " | ".join(cells[rate].text() if rate in cells else "-" for rate in rates)))
    if whole.ttft_ms:
        out += ["", "TTFT in ms, one prompt at a time; all tokens: %.1f." % whole.ttft_ms, "",
                "| chosen by | %s |" % " | ".join("%g" % rate for rate in rates), "| --- |" + " ---: |" * len(rates)]
        for name, cells in lines:
            if any(cell.ttft_ms for cell in cells.values()):
                out.append("| %s | %s |" % (name, " | ".join("%.1f" % cells[rate].ttft_ms for rate in rates)))
    return "\n".join(out) + "\n"


# --- the picture

PLOT_W, PLOT_H, TOP = 400, 300, 110


def draw_plot(picture, left, title, lines, whole, value, most):
    base = TOP + PLOT_H
    for tick in range(0, 101, 20):
        y = base - PLOT_H * tick / 100
        picture.line(left, y, left + PLOT_W, y, "axis")
        picture.text(left - 6, y + 4, "%d" % tick, "note end")
    for tick in range(0, 6):
        picture.text(left + PLOT_W * tick / 5, base + 18, "%.0f" % (most * tick / 5), "note middle")
    picture.text(left + PLOT_W / 2, base + 38, title, "note middle")
    for i, (_, cells) in enumerate(lines):
        points = sorted((value(cell), cell.score) for cell in [*cells.values(), whole] if value(cell) is not None)
        if len(points) < 2:
            continue
        path = "L".join("%.1f %.1f" % (left + PLOT_W * x / most, base - PLOT_H * y) for x, y in points)
        picture.shapes.append('<path d="M%s" fill="none" stroke="%s" stroke-width="2"/>' % (path, COLOURS[i % len(COLOURS)]))


def draw(whole, lines):
    picture = Picture("Right answers by what chooses the kept tokens",
                      ["Right answers in %, with the demo pair. Left: by the share of tokens kept. Right: by the time to",
                       "first token, which includes the choice. The rightmost point of each line keeps all tokens."])
    draw_plot(picture, MARGIN + 30, "tokens kept in %", lines, whole, lambda cell: 100 * cell.kept, 100)
    timed = [(name, {rate: cell for rate, cell in cells.items() if cell.ttft_ms}) for name, cells in lines]
    longest = max([cell.ttft_ms for _, cells in timed for cell in cells.values()] + [whole.ttft_ms or 1])
    draw_plot(picture, WIDTH - MARGIN - PLOT_W, "TTFT in ms", [(n, c) for n, c in timed], whole, lambda cell: cell.ttft_ms,
              longest)
    y = TOP + PLOT_H + 66
    for i, (name, _) in enumerate(lines):
        x = MARGIN + 30 + 300 * (i % 3)
        picture.rect(x, y - 10, 14, 4, fill=COLOURS[i % len(COLOURS)])
        picture.text(x + 22, y - 3, name)
        y += 20 * (i % 3 == 2)
    return picture.svg(y + 30)


# --- ablations

def ablation_rows(folder, early):
    for name, words in (("look-ahead", "look-ahead {look_ahead} rows"), ("chunk", "chunks of {chunk}"),
                        ("pool-1", "no smoothing"), ("pool-5", "smoothing window 5"), ("pool-25", "smoothing window 25"),
                        ("contiguous", "contiguous positions"), ("early", "scored by the main model's first %s layers" % early),
                        ("paper", "the paper's selection: chunks of 32, no tail window")):
        for (policy, look_ahead, chunk), cells in (read(folder, name) or {}).items():
            if policy == "importance":
                text = words.format(look_ahead=look_ahead, chunk="%s tokens" % chunk if chunk else "single tokens")
                yield text.replace("chunks of single", "single") + (" (default)" if (name, look_ahead) == ("look-ahead", 8) else ""), cells


def main():
    folder, early = sys.argv[1:]
    drawn = baseline_lines(folder, early)
    if drawn:
        with open(os.path.join(folder, "baselines.md"), "w", encoding="utf-8") as file:
            file.write(table(*drawn))
        with open(os.path.join(folder, "baselines.svg"), "w", encoding="utf-8") as file:
            file.write(draw(*drawn))
        print(table(*drawn))
    rows = list(ablation_rows(folder, early))
    if rows:
        rates = sorted({rate for _, cells in rows for rate in cells}, reverse=True)
        text = ["Right answers in % (95 % interval) and tokens kept, by keep rate. The default has spans, look-ahead 8, a smoothing",
                "window of 13 and restored positions; each row changes one of them.", "",
                "| choice | %s |" % " | ".join("%g" % rate for rate in rates), "| --- |" + " --- |" * len(rates)]
        text += ["| %s | %s |" % (name, " | ".join(cells[rate].text() for rate in rates)) for name, cells in rows]
        with open(os.path.join(folder, "ablations.md"), "w", encoding="utf-8") as file:
            file.write("\n".join(text) + "\n")
        print("\n".join(text))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        print("expected FOLDER EARLY_LAYERS: bench/quality_choices.py", file=sys.stderr)
        sys.exit(2)
    main()
