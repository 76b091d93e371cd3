#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Fits a line to each series of bench/soak.sh and prints a Markdown table. Exit code 1: a series grows.

A series grows if its line rises by more than the bound of its unit over the fitted time, and if its slope differs from
zero: by more than T standard errors, with residuals taken between the means of BLOCKS stretches of time, which are nearly
independent while neighbouring samples are not.
"""
import argparse
import collections
import csv
import json
import math
import sys

BLOCKS = 12
T = 4.14  # Student's t, BLOCKS - 2 degrees of freedom: passed by chance once in 1,000 series
BOUNDS = {  # unit: growth that is allowed over the fitted time
    "rss_kib": 2048,
    "anonymous_kib": 2048,
    "descriptors": 2,
    "threads": 1,
    "kv_blocks_in_use": 64,
    "waiting": 5,
    "running": 5,
}


def means(points, blocks):
    """`blocks` points: the means of stretches with the same number of samples."""
    result = []
    for i in range(blocks):
        part = points[i * len(points) // blocks:(i + 1) * len(points) // blocks]
        result.append((sum(t for t, _ in part) / len(part), sum(v for _, v in part) / len(part)))
    return result


def fit(points):
    """Slope per second, its standard error, and the mean."""
    n = len(points)
    mean_t, mean_v = sum(t for t, _ in points) / n, sum(v for _, v in points) / n
    spread = sum((t - mean_t) ** 2 for t, _ in points)
    slope = sum((t - mean_t) * (v - mean_v) for t, v in points) / spread
    rest = sum((v - mean_v - slope * (t - mean_t)) ** 2 for t, v in points)
    return slope, math.sqrt(rest / (n - 2) / spread), mean_v


def plot(series, warm_up_s):
    """SVG: one small plot for each series; the warm-up is grey."""
    width, height, columns = 300, 90, 3
    rows = (len(series) + columns - 1) // columns
    out = ['<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="10">' %
           (columns * width, rows * height), '<rect width="100%" height="100%" fill="white"/>']
    for i, (name, points) in enumerate(sorted(series.items())):
        x0, y0 = i % columns * width + 10, i // columns * height + 20
        last, least, most = points[-1][0] or 1, min(v for _, v in points), max(v for _, v in points)
        place = lambda t, v: (x0 + t / last * (width - 20), y0 + 60 * (1 - (v - least) / ((most - least) or 1)))
        line = " ".join("%.1f,%.1f" % place(t, v) for t, v in points)
        out.append('<rect x="%d" y="%d" width="%.1f" height="60" fill="#eee"/>' %
                   (x0, y0, min(1, warm_up_s / last) * (width - 20)))
        out.append('<text x="%d" y="%d">%s: %g to %g</text>' % (x0, y0 - 5, name, least, most))
        out.append('<polyline points="%s" fill="none" stroke="#06c"/>' % line)
    return "\n".join(out + ["</svg>\n"])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("samples")
    parser.add_argument("--warm-up-s", type=float, required=True)
    parser.add_argument("--faults", type=int, required=True)
    parser.add_argument("--status", required=True)
    parser.add_argument("--svg", required=True)
    options = parser.parse_args()

    series = collections.defaultdict(list)
    with open(options.samples, encoding="utf-8") as file:
        for seconds, name, value in csv.reader(file):
            if value:
                series[name].append((float(seconds), float(value)))
    with open(options.svg, "w", encoding="utf-8") as file:
        file.write(plot(series, options.warm_up_s))
    with open(options.status, encoding="utf-8") as file:
        totals = json.load(file)["totals"]

    lasted = max(points[-1][0] for points in series.values())
    print("%.0f minutes, of these %.1f warm-up; %d processes killed or drained; %s\n" %
          (lasted / 60, options.warm_up_s / 60, options.faults,
           ", ".join("%d %s" % (totals[key], key) for key in ("requests", "done", "failed", "cancelled", "refused"))))
    print("| series | mean | growth in the fitted time | standard error | bound | |")
    print("| --- | ---: | ---: | ---: | ---: | --- |")
    growing = False
    for name, points in sorted(series.items()):
        points = [p for p in points if p[0] >= options.warm_up_s]
        if len(points) < BLOCKS:
            print("| %s | | | | | %d samples after the warm-up, %d needed |" % (name, len(points), BLOCKS))
            growing = True
            continue
        slope, error, mean = fit(means(points, BLOCKS))
        fitted, bound = points[-1][0] - points[0][0], BOUNDS[name.split()[1]]
        grows = slope * fitted > bound and slope > T * error
        growing = growing or grows
        print("| %s | %.0f | %.1f | %.1f | %d | %s |" %
              (name, mean, slope * fitted, error * fitted, bound, "**grows**" if grows else ""))
    sys.exit(1 if growing else 0)


main()
