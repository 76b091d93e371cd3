#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the pictures of docs/how-it-works.md from the JSON that bench/pictures.sh collects.

Usage: bench/pictures.py DATA OUT
  DATA   folder with kept.json, bin.json and requests.json
  OUT    folder for kept-tokens.svg, packed-bin.svg, timeline.svg and keep-rates.svg

Exit codes: 0 the pictures were written, 1 a file cannot be used or written, 2 wrong usage."""
import json
import os
import re
import sys
from html import escape

WIDTH = 940
MARGIN = 24
STYLE = """
text{font-family:system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif;font-size:13px;fill:#1f2328}
.title{font-size:17px;font-weight:600}.note{font-size:12.5px;fill:#59636e}.bold{font-weight:600}
.halo{paint-order:stroke;stroke:#fff;stroke-width:4px}
.end{text-anchor:end}.middle{text-anchor:middle}.white{fill:#fff}.right{fill:#1a7f37;font-weight:600;font-size:17px}
.mono{font-family:ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace;font-size:10.9px}
.keep{fill:#0a3069}.pale{fill:#b1bac4}.mark{fill:#b6dcff}
.page{fill:#fff;stroke:#d0d7de}.axis{stroke:#d0d7de}.first{stroke:#cf222e;stroke-dasharray:4 3}
.pad{fill:#eaeef2;stroke:#d0d7de;stroke-width:.6}.room{fill:#fff;stroke:#8c959f;stroke-dasharray:4 3}
.router{fill:#6e7781}.speculator{fill:#bf8700}.worker{fill:#0969da}.decode{fill:#1a7f37}
.hop{stroke:#6e7781}"""
PROMPT_COLOURS = ("#54aeff", "#4ac26b", "#d4a72c", "#c297ff", "#ff8182", "#76e3ea")


class Picture:
    """Collects the shapes of one SVG file."""

    def __init__(self, title, notes):
        self.title, self.shapes = title, []
        self.text(MARGIN, 36, title, "title")
        for i, note in enumerate(notes):
            self.text(MARGIN, 58 + 18 * i, note, "note")

    def text(self, x, y, words, style="", width=None):
        fit = ' textLength="%.1f" lengthAdjust="spacingAndGlyphs"' % width if width else ""
        self.shapes.append('<text x="%.1f" y="%.1f" class="%s"%s>%s</text>' % (x, y, style, fit, escape(words)))

    def rect(self, x, y, width, height, style="", fill=""):
        paint = ' fill="%s"' % fill if fill else ' class="%s"' % style
        self.shapes.append('<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" rx="2"%s/>'
                           % (x, y, width, height, paint))

    def line(self, x1, y1, x2, y2, style):
        self.shapes.append('<path d="M%.1f %.1fL%.1f %.1f" class="%s"/>' % (x1, y1, x2, y2, style))

    def svg(self, height):
        head = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d"' % (
            WIDTH, height, WIDTH, height)
        return "\n".join(['%s role="img" aria-label="%s">' % (head, escape(self.title)), "<style>%s\n</style>" % STYLE,
                          '<rect class="page" x=".5" y=".5" width="%d" height="%d" rx="8"/>' % (WIDTH - 1, height - 1),
                          *self.shapes, "</svg>\n"])


def ms(value):
    """Returns a time with its unit and about two significant digits."""
    if value >= 10:
        return "{:,.0f} ms".format(value)
    return "%.1f ms" % value if value >= 0.1 else "%.2f ms" % value


def percent(part, whole):
    return "%.0f %%" % (100 * part / whole)


def is_right(request):
    return request["text"].strip() == request["expected"].strip()


def median_request(requests, rate):
    """Returns the request with the median TTFT of a keep rate."""
    at_rate = sorted((r for r in requests if r["rate"] == rate), key=lambda r: r["timing"]["ttft_ms"])
    return at_rate[len(at_rate) // 2]


# --- tokens kept

COLUMNS = 136  # characters of a line
LINE = 14.5


def wrapped(runs):
    """Splits the runs into words: (line, column, word, kept). A gap between paragraphs is a part of a line."""
    line, column, words = 0, 0, []
    for run in runs:
        for part in re.findall(r"\n| +|[^ \n]+", run["text"]):
            if part == "\n":
                line, column = line + (1 if column else 0.5), 0
                continue
            if column + len(part) > COLUMNS:
                line, column = line + 1, 0
            if part.strip():
                words.append((line, column, part, run["kept"]))
            if column or part.strip():
                column += len(part)
    return words


def joined(words):
    """Joins neighbouring words of a line that are both kept or both pruned."""
    result = []
    for line, column, text, kept in words:
        last = result[-1] if result else None
        if last and last[0] == line and last[3] == kept and 0 <= column - last[1] - len(last[2]) <= 1:
            gap = column - last[1] - len(last[2])
            result[-1] = (line, last[1], last[2] + " " * gap + text, kept)
        else:
            result.append((line, column, text, kept))
    return result


def draw_kept(data):
    usage = data["usage"]
    n_kept, n = usage["kept_tokens"], usage["prompt_tokens"]
    picture = Picture("The main model reads {:,} of {:,} tokens".format(n_kept, n),
                      ["Blue: the %s of the prompt that the speculator kept. Pale: tokens that the main model never "
                       "reads." % percent(n_kept, n)])
    top, advance, bottom = 86, (WIDTH - 2 * MARGIN) / COLUMNS, 0
    for line, column, text, kept in joined(wrapped(data["runs"])):
        x, y, width = MARGIN + column * advance, top + line * LINE, len(text) * advance
        if kept:
            picture.rect(x - 1.5, y - 10.5, width + 3, 13.5, "mark")
        picture.text(x, y, text, "mono keep" if kept else "mono pale", width)
        bottom = max(bottom, y)
    answer, whole = data["text"].strip(), data["whole_text"].strip()
    same = "the same answer as with all {:,} tokens".format(n) if answer == whole else "with all tokens: " + whole
    picture.line(MARGIN, bottom + 14, WIDTH - MARGIN, bottom + 14, "axis")
    picture.text(MARGIN, bottom + 38, "The main model answers", "note")
    picture.text(MARGIN + 160, bottom + 38, answer, "right")
    picture.text(WIDTH - MARGIN, bottom + 38, same, "note end")
    return picture.svg(bottom + 56)


# --- a packed bin

def draw_bin(data):
    lengths = data["lengths"]
    padded, packed = ({p["policy"]: p for p in data["policies"]}[name] for name in ("padded", "batch"))
    if packed["bins"] != 1 or packed["rows"] != sum(lengths) or padded["rows"] != max(lengths) * len(lengths):
        raise ValueError("the prompts must be one padded batch and one bin")
    picture = Picture("%d prompts: a padded batch, and the same prompts in one bin" % len(lengths),
                      ["Each colour is a prompt of the MMLU set; its length is in tokens. Widths have the same scale."])
    scale, row, y = (WIDTH - 2 * MARGIN) / packed["capacity"], 17, 104
    picture.text(MARGIN, y - 12, "Padded batch", "bold")
    for i, length in enumerate(lengths):
        x = MARGIN + length * scale
        picture.rect(MARGIN, y + i * row, max(lengths) * scale, row - 3, "pad")
        picture.rect(MARGIN, y + i * row, length * scale, row - 3, fill=PROMPT_COLOURS[i % len(PROMPT_COLOURS)])
        inside = length == max(lengths)
        picture.text(x - 6 if inside else x + 6, y + i * row + 11.5, str(length), "end" if inside else "")
    x, middle = MARGIN + max(lengths) * scale + 30, y + len(lengths) * row / 2
    facts = ["{:,} rows to compute: {} prompts of {} rows".format(padded["rows"], len(lengths), max(lengths)),
             "%s of the rows are padding" % percent(padded["pad_fraction"], 1),
             "prefill %s, %.0f MB of KV cache and activations" % (ms(padded["prefill_ms_mean"]), padded["peak_mb"])]
    for i, fact in enumerate(facts):
        picture.text(x, middle - 18 + 22 * i, fact, "" if i else "bold")
    y += len(lengths) * row + 44
    picture.text(MARGIN, y - 12, "One bin of Forepack", "bold")
    picture.rect(MARGIN, y, packed["capacity"] * scale, 34, "room")
    x = MARGIN
    for i, length in enumerate(lengths):
        picture.rect(x, y, length * scale, 34, fill=PROMPT_COLOURS[i % len(PROMPT_COLOURS)])
        if length * scale > 24:
            picture.text(x + length * scale / 2, y + 21.5, str(length), "middle")
        x += length * scale
    picture.text((x + WIDTH - MARGIN) / 2, y + 21.5, "room for more prompts", "note middle")
    facts = ["{:,} rows to compute, no padding: each row attends to its own prompt only".format(packed["rows"]),
             "prefill %s (%.1f times faster), %.0f MB (%.1f times less); a bin has at most %s rows" % (
                 ms(packed["prefill_ms_mean"]), packed["padded_time_ratio"], packed["peak_mb"],
                 packed["padded_memory_ratio"], "{:,}".format(packed["capacity"]))]
    for i, fact in enumerate(facts):
        picture.text(MARGIN, y + 58 + 22 * i, fact, "" if i else "bold")
    return picture.svg(y + 102)


# --- a request's timeline

LANES = ("router", "speculator", "worker")
PLOT_X = 120
LANE = 34


def axis_step(longest):
    """Returns the smallest step of 1, 2 or 5 times a power of ten that makes at most eight steps."""
    return next(f * 10 ** e for e in range(-3, 9) for f in (1, 2, 5) if longest <= 8 * f * 10 ** e)


def stages(request):
    """Returns the stages of a request in order: (program, start, end, style)."""
    timing = request["timing"]
    scored = timing["queue_ms"] + timing["score_ms"]
    packed, first = scored + timing["pack_wait_ms"], timing["ttft_ms"]
    result = [("router", 0, timing["queue_ms"], "router")]
    if timing["score_ms"]:
        result += [("speculator", timing["queue_ms"], scored, "speculator"), ("router", scored, packed, "router")]
    return result + [("worker", packed, first, "worker"), ("worker", first, timing["total_ms"], "decode")]


def lane_words(request):
    """Returns what each program did for a request."""
    timing, usage = request["timing"], request["usage"]
    routed = "tokenise and queue: %s" % ms(timing["queue_ms"])
    words = {"worker": "prefill {:,} tokens: {}".format(usage["kept_tokens"], ms(timing["prefill_ms"]))}
    if timing["score_ms"]:
        routed += ", then pack a bin: %s" % ms(timing["pack_wait_ms"])
        words["speculator"] = "score {:,} tokens: {}".format(usage["scored_tokens"], ms(timing["score_ms"]))
    return dict(words, router=routed)


def draw_lanes(picture, y, request, scale):
    """Draws a lane for each program that the request visits, and returns the next free y."""
    words, first = lane_words(request), PLOT_X + request["timing"]["ttft_ms"] * scale
    lanes = [name for name in LANES if name in words]
    at, previous = {name: y + i * LANE for i, name in enumerate(lanes)}, None
    bottom, late, end_of = y + len(lanes) * LANE, first > 0.6 * WIDTH, {}
    for name, start, end, style in stages(request):
        x = PLOT_X + start * scale
        if previous and previous != name:
            top, low = sorted((at[previous], at[name]))
            picture.line(x, top + 23, x, low, "hop")
        picture.rect(x, at[name], max(3, (end - start) * scale), 23, style)
        previous, end_of[name] = name, PLOT_X + end * scale
    for name in lanes:
        picture.text(PLOT_X - 12, at[name] + 16, name, "end")
        if name == "worker" and late:
            picture.text((PLOT_X + first) / 2, at[name] + 16, words[name], "middle white")
        else:
            picture.text((end_of[name] if late else first) + 14, at[name] + 16, words[name])
    picture.line(first, y - 5, first, bottom + 8, "first")
    picture.text(first - 8 if late else first + 8, bottom + 8,
                 "first token after %s" % ms(request["timing"]["ttft_ms"]), "bold end" if late else "bold")
    return bottom + 18


def draw_timeline(requests):
    pruned, whole = median_request(requests, 0.3), median_request(requests, 1)
    longest = max(r["timing"]["total_ms"] for r in (pruned, whole))
    scale = (WIDTH - MARGIN - 10 - PLOT_X) / longest
    picture = Picture("A request on its way: with keep rate 0.3, and with all tokens",
                      ["A bar is the time that a program spends on the request. Dashed red: the first token of the "
                       "answer. Green: its further tokens."])
    y = 100
    for request, heading in ((pruned, "keep rate 0.3"), (whole, "all tokens")):
        usage = request["usage"]
        picture.text(MARGIN, y, "{}: the main model reads {:,} of {:,} tokens".format(
            heading, usage["kept_tokens"], usage["prompt_tokens"]), "bold")
        y = draw_lanes(picture, y + 16, request, scale) + 30
    y -= 24
    step = axis_step(longest)
    picture.line(PLOT_X, y, WIDTH - MARGIN, y, "axis")
    for i in range(int(longest / step) + 1):
        x = PLOT_X + i * step * scale
        picture.line(x, y, x, y + 5, "axis")
        picture.text(x, y + 20, "{:,g}".format(i * step), "note middle")
    picture.text(MARGIN, y + 20, "time in ms", "note")
    return picture.svg(y + 38)


# --- TTFT by keep rate

def draw_keep_rates(requests):
    rates = sorted({r["rate"] for r in requests})
    medians = [median_request(requests, rate) for rate in rates]
    n, length = len([r for r in requests if r["rate"] == rates[0]]), medians[0]["usage"]["prompt_tokens"]
    picture = Picture("Time to first token (TTFT) by keep rate",
                      ["Medians of {} documents of about {:,} tokens, demo models. The main model saves time for each "
                       "token".format(n, round(length, -2)),
                       "that it does not read. Scoring costs the same at every keep rate. Too low a keep rate costs "
                       "right answers."])
    top, height, left = 136, 250, 150
    longest = max(r["timing"]["ttft_ms"] for r in medians)
    step, slot = axis_step(longest), (WIDTH - MARGIN - left) / len(rates)
    base, scale = top + height, height / longest
    for i in range(int(longest / step) + 1):
        y = base - i * step * scale
        picture.line(left, y, WIDTH - MARGIN, y, "axis")
        picture.text(left - 10, y + 4, "{:,g} ms".format(i * step), "note end")
    for i, words in enumerate(("keep rate", "tokens read", "TTFT divided by", "right answers")):
        picture.text(left - 10, base + 24 + 22 * i, words, "note end")
    for i, (rate, request) in enumerate(zip(rates, medians)):
        timing, usage, x = request["timing"], request["usage"], left + slot * (i + 0.5)
        y = base
        for style, part in (("speculator", timing["score_ms"]), ("worker", timing["prefill_ms"])):
            y -= part * scale
            picture.rect(x - 28, y, 56, part * scale, style)
        picture.text(x, y - 7, ms(timing["ttft_ms"]), "bold middle halo")
        at_rate = [r for r in requests if r["rate"] == rate]
        gain = medians[-1]["timing"]["ttft_ms"] / timing["ttft_ms"]
        cells = ("all tokens" if rate == 1 else "%g" % rate,
                 "{:,} ({})".format(usage["kept_tokens"], percent(usage["kept_tokens"], usage["prompt_tokens"])),
                 "-" if rate == 1 else "%.1f" % gain, "%d of %d" % (sum(map(is_right, at_rate)), len(at_rate)))
        for row, words in enumerate(cells):
            picture.text(x, base + 24 + 22 * row, words, "middle" if row else "middle bold")
    for x, style, words in ((left, "speculator", "scoring by the speculator"),
                            (left + 210, "worker", "prefill by the main model")):
        picture.rect(x, 98, 14, 14, style)
        picture.text(x + 21, 110, words)
    return picture.svg(base + 110)


PICTURES = (("kept-tokens.svg", "kept.json", draw_kept), ("packed-bin.svg", "bin.json", draw_bin),
            ("timeline.svg", "requests.json", draw_timeline), ("keep-rates.svg", "requests.json", draw_keep_rates))


def main():
    if sys.argv[1:] in (["--help"], ["-h"]):
        print(__doc__)
        return
    if len(sys.argv) != 3:
        print("expected two folders: bench/pictures.py DATA OUT (--help says more)", file=sys.stderr)
        sys.exit(2)
    data_folder, out = sys.argv[1:]
    for name, source, draw in PICTURES:
        path = os.path.join(data_folder, source)
        try:
            with open(path, encoding="utf-8") as file:
                picture = draw(json.load(file))
        except OSError as error:
            sys.exit("%s: %s" % (path, error.strerror))
        except (KeyError, IndexError, TypeError, AttributeError, ZeroDivisionError) as error:
            sys.exit("%s: not what bench/pictures.sh collects (%s: %s)" % (path, type(error).__name__, error))
        except ValueError as error:
            sys.exit("%s: %s" % (path, error))
        try:
            os.makedirs(out, exist_ok=True)
            with open(os.path.join(out, name), "w", encoding="utf-8") as file:
                file.write(picture)
        except OSError as error:
            sys.exit("%s: %s" % (os.path.join(out, name), error.strerror))


if __name__ == "__main__":
    main()
