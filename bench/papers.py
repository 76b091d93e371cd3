#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the table of bench/papers.sh and draws its two pictures.

Usage: bench/papers.py FOLDER
  FOLDER   holds ttft.json and serve-rate-*.json; speed-up.svg and load.svg are written there

Exit codes: 0 done, 1 a file cannot be used or written, 2 wrong usage."""
import glob
import json
import math
import os
import statistics
import sys

from pictures import MARGIN, PROMPT_COLOURS, WIDTH, Picture

LEFT, TOP, HEIGHT, LEGEND = 80, 110, 330, 230


class Plot:
    """Draws lines over two logarithmic axes."""

    def __init__(self, title, notes, x_values, y_values, x_name, y_name):
        self.picture = Picture(title, notes)
        self.x = (math.log(min(x_values)), math.log(max(x_values)))
        self.y = (math.log(min(y_values)), math.log(max(y_values)))
        self.n_lines = 0
        self.axis(x_values, y_values, x_name, y_name)

    def at(self, x, y):
        width = WIDTH - LEGEND - MARGIN - LEFT
        return (LEFT + width * (math.log(x) - self.x[0]) / (self.x[1] - self.x[0]),
                TOP + HEIGHT * (1 - (math.log(y) - self.y[0]) / (self.y[1] - self.y[0])))

    def axis(self, x_values, y_values, x_name, y_name):
        ticks = [f * 10.0 ** e for e in range(-3, 6) for f in (1, 2, 5)]
        low_x, low_y = min(x_values), min(y_values)
        for tick in (t for t in ticks if low_y <= t <= max(y_values)):
            x, y = self.at(low_x, tick)
            self.picture.line(LEFT, y, WIDTH - LEGEND - MARGIN, y, "axis")
            self.picture.text(LEFT - 8, y + 4, "%g" % tick, "note end")
        for tick in sorted(set(x_values)) if len(set(x_values)) < 9 else [t for t in ticks if low_x <= t <= max(x_values)]:
            x, y = self.at(tick, low_y)
            self.picture.line(x, y, x, y + 5, "axis")
            self.picture.text(x, y + 20, "%g" % tick, "note middle")
        self.picture.text(LEFT, TOP - 14, y_name, "note")
        self.picture.text(WIDTH - LEGEND - MARGIN, TOP + HEIGHT + 40, x_name, "note end")

    def line(self, points, name):
        colour = PROMPT_COLOURS[self.n_lines % len(PROMPT_COLOURS)]
        path = "L".join("%.1f %.1f" % self.at(*point) for point in points)
        self.picture.shapes.append('<path d="M%s" fill="none" stroke="%s" stroke-width="2.5"/>' % (path, colour))
        for point in points:
            x, y = self.at(*point)
            self.picture.rect(x - 3, y - 3, 6, 6, fill=colour)
        y = TOP + 12 + 22 * self.n_lines
        self.picture.rect(WIDTH - LEGEND, y - 9, 14, 10, fill=colour)
        self.picture.text(WIDTH - LEGEND + 22, y, name)
        self.n_lines += 1

    def svg(self):
        return self.picture.svg(TOP + HEIGHT + 60)


def print_grid(rows):
    """Prints a table of speed-ups: a row for each cell of prompt length, batch and look-ahead."""
    rates = sorted({r["keep_rate"] for r in rows}, reverse=True)
    print("\nTTFT with everything kept, divided by TTFT, by keep rate. In brackets: the share of the bound that the "
          "remaining operations set.\n")
    print("| prompt tokens | batch | look-ahead passes | everything kept, ms | %s |" % " | ".join("%g" % r for r in rates))
    print("| ---: | ---: | ---: | ---: |%s" % (" ---: |" * len(rates)))
    for cell in sorted({(r["tokens"], r["batch"], r["look_ahead"]) for r in rows}):
        at = {r["keep_rate"]: r for r in rows if (r["tokens"], r["batch"], r["look_ahead"]) == cell}
        values = ("%.2f (%.0f %%)" % (at[r]["speed_up"], 100 * at[r]["share_flops"]) for r in rates)
        print("| %s | %d | %d | %.0f | %s |" % ("{:,}".format(cell[0]), cell[1], cell[2] - 1, at[rates[0]]["plain_ms"],
                                               " | ".join(values)))
    print("\nThe median cell reaches %.0f %% of its bound." % (100 * statistics.median(r["share_flops"] for r in rows)))


def draw_grid(rows):
    few = min(r["look_ahead"] for r in rows)
    rows = [r for r in rows if r["look_ahead"] == few]
    plot = Plot("Speed-up of TTFT by keep rate", ["Random weights of two shapes whose operations stand as those of "
                                                  "Llama 3.1 405B and 8B; no look-ahead passes."],
                [r["keep_rate"] for r in rows], [1] + [r["speed_up"] for r in rows], "keep rate", "speed-up")
    for tokens, batch in sorted({(r["tokens"], r["batch"]) for r in rows}):
        plot.line([(r["keep_rate"], r["speed_up"]) for r in sorted(rows, key=lambda r: r["keep_rate"])
                   if (r["tokens"], r["batch"]) == (tokens, batch)], "%d x %s tokens" % (batch, "{:,}".format(tokens)))
    return plot.svg()


def draw_load(clusters):
    levels = {name: sorted((l["qps"], l["ttft_ms_p90"]) for l in data["levels"] if l["completed"] and l["qps"])
              for name, data in clusters.items()}
    points = [point for line in levels.values() for point in line]
    plot = Plot("TTFT of a cluster under load", ["90th percentile of TTFT at each rate that the search tried."],
                [p[0] for p in points], [p[1] for p in points], "requests/s", "ms")
    for name, line in sorted(levels.items()):
        plot.line(line, name)
    return plot.svg()


def read(path):
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def main():
    if sys.argv[1:] in (["--help"], ["-h"]):
        print(__doc__)
        return
    if len(sys.argv) != 2:
        print("expected one folder: bench/papers.py FOLDER (--help says more)", file=sys.stderr)
        sys.exit(2)
    folder = sys.argv[1]
    try:
        rows = read(os.path.join(folder, "ttft.json"))
        prefix = os.path.join(folder, "serve-rate-")
        clusters = {path[len(prefix):-len(".json")]: read(path) for path in glob.glob(glob.escape(prefix) + "*.json")}
        print_grid(rows)
        pictures = {"speed-up.svg": draw_grid(rows)}
        if clusters:
            pictures["load.svg"] = draw_load(clusters)
        for name, picture in pictures.items():
            with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                file.write(picture)
    except OSError as error:
        sys.exit("%s: %s" % (error.filename, error.strerror))
    except (KeyError, ValueError, TypeError) as error:
        sys.exit("%s: not what bench/papers.sh collects (%s: %s)" % (folder, type(error).__name__, error))


if __name__ == "__main__":
    main()
