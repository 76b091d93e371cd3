#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the picture of docs/sizing.md from the plans that bench/sizing.sh collects.

Usage: bench/sizing.py DATA OUT
  DATA   JSON list of {"name", "limit", "plan"}
  OUT    the SVG file

Exit codes: 0 the picture was written, 1 a file cannot be used or written, 2 wrong usage."""
import json
import sys

from pictures import MARGIN, WIDTH, Picture, axis_step

WAYS = (("all tokens", "router", "all tokens"), ("with speculators", "worker", "keep rate 0.3, with speculators"))
LEFT, RIGHT, TOP, HEIGHT = MARGIN + 50, WIDTH / 2, 120, 230


def points(plans, way):
    """Returns the limits that can be kept and the cost of the cluster for each."""
    for row in plans:
        cluster = next(c for c in row["plan"]["clusters"] if c["way"] == way)
        if row["plan"]["limits_kept"] and cluster["possible"]:
            yield row["limit"], cluster["gpu_hours_per_million_output_tokens"], cluster["gpus"]


def draw_axes(picture, x0, width, limits, most):
    step = axis_step(most)
    for i in range(int(most / step) + 1):
        y = TOP + HEIGHT * (1 - i * step / most)
        picture.line(x0, y, x0 + width, y, "axis")
        picture.text(x0 - 8, y + 4, "%g" % (i * step), "note end")
    for i, limit in enumerate(limits):
        picture.text(x0 + width * (i + 0.5) / len(limits), TOP + HEIGHT + 20, "%g s" % limit, "note middle")


def draw_model(picture, x0, name, plans):
    width, limits = WIDTH / 2 - MARGIN - 60, [row["limit"] for row in plans]
    costs = {way: list(points(plans, way)) for way, *_ in WAYS}
    most = 1.1 * max(cost for found in costs.values() for _, cost, _ in found)
    picture.text(x0, TOP - 18, "%s: GPU hours per million output tokens" % name, "bold")
    draw_axes(picture, x0, width, limits, most)
    bar = width / len(limits) / 2.8
    for k, (way, style, _) in enumerate(WAYS):
        for limit, cost, gpus in costs[way]:
            x = x0 + width * (limits.index(limit) + 0.5) / len(limits) + (k - 1) * bar
            height = HEIGHT * cost / most
            picture.rect(x, TOP + HEIGHT - height, bar - 2, height, style)
            picture.text(x + bar / 2 - 1, TOP + HEIGHT - height - 4, "%d" % gpus, "note middle")


def draw(data):
    picture = Picture("Cost of a cluster on H200 against the limit on TTFT",
                      ["Limits hold for 95 % of requests: prompts of 8,192 tokens, 100 tokens of output, ITL at most "
                       "100 ms.", ])
    names = list(dict.fromkeys(row["name"] for row in data))
    for i, name in enumerate(names):
        draw_model(picture, LEFT + i * (RIGHT - MARGIN / 2), name, [row for row in data if row["name"] == name])
    y = TOP + HEIGHT + 48
    for k, (_, style, text) in enumerate(WAYS):
        picture.rect(MARGIN + 50 + 300 * k, y - 10, 12, 12, style)
        picture.text(MARGIN + 68 + 300 * k, y, text)
    picture.text(MARGIN + 650, y, "Numbers over bars: GPUs", "note")
    return picture.svg(y + 24)


def main():
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        with open(sys.argv[1], encoding="utf-8") as file:
            text = draw(json.load(file))
        with open(sys.argv[2], "w", encoding="utf-8") as file:
            file.write(text)
    except (OSError, ValueError, KeyError, StopIteration) as error:
        print("%s: %s" % (sys.argv[1], error), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
