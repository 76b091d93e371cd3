#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Fits a line to each series of bench/soak.sh, prints a Markdown table and writes a page with plots. Exit code 1: a series
grows.

A series grows if its line rises by more than the bound of its unit over the fitted time, and if its slope differs from
zero: by more than T standard errors, with residuals taken between the means of BLOCKS stretches of time, which are nearly
independent while neighbouring samples are not.
"""
import argparse
import collections
import csv
import html
import json
import math
import pathlib
import sys

BLOCKS = 12
T = 4.14  # Student's t, BLOCKS - 2 degrees of freedom: passed by chance once in 1,000 series
BOUNDS = {  # unit: growth that is allowed over the fitted time
    "rss_kib": 2048,
    "anonymous_kib": 2048,
    "allocated_kib": 128,
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


number = "{:,.0f}".format


def judge(name, points):
    """A row of the table: name, mean, growth, standard error, bound, and the remark."""
    if len(points) < BLOCKS:
        return [name, "", "", "", "", "%d samples after the warm-up, %d needed" % (len(points), BLOCKS)]
    slope, error, mean = fit(means(points, BLOCKS))
    fitted, bound = points[-1][0] - points[0][0], BOUNDS[name.split()[1]]
    grows = slope * fitted > bound and slope > T * error
    return [name, number(mean), "{:,.1f}".format(slope * fitted), "{:,.1f}".format(error * fitted), number(bound), "grows" if grows else ""]


COLUMNS = ["series", "mean", "growth in the fitted time", "standard error", "bound", ""]


def markdown(summary, rows):
    lines = [COLUMNS, ["---", "---:", "---:", "---:", "---:", "---"]]
    lines += [row[:5] + ["**%s**" % row[5] if row[5] else ""] for row in rows]
    return summary + "\n\n" + "\n".join("| %s |" % " | ".join(line) for line in lines)


def figure(name, points, warm_up_s):
    """A small plot; the warm-up is grey."""
    last, least, most = points[-1][0] or 1, min(v for _, v in points), max(v for _, v in points)
    line = "L".join("%.1f %.1f" % (300 * t / last, 42 - 40 * (v - least) / ((most - least) or 1)) for t, v in points)
    span = number(least) + " to " + number(most) if least != most else "steady"
    name, label = html.escape(name), html.escape(name + ": " + span + ", at the end " + number(points[-1][1]))
    return """<div class="card figure"><h3>%s</h3><div class="value">%s</div>
<svg class="spark" viewBox="0 0 300 44" preserveAspectRatio="none" role="img" aria-label="%s"><rect class="room" width="%.1f" height="43"/>
<path class="base" d="M0 43H300"/><path class="line" d="M%s"/></svg><div class="range">%s</div></div>""" % (
        name, number(points[-1][1]), label, 300 * min(1, warm_up_s / last), line, span)


def page(summary, rows, series, warm_up_s):
    style = pathlib.Path(__file__).resolve().parent.parent.joinpath("lib", "page", "style.css").read_text(encoding="utf-8")
    cell = lambda text: '<td class="state" data-state="bad">%s</td>' % html.escape(text) if text else "<td></td>"
    table = ["<tr>%s</tr>" % "".join('<th scope="col">%s</th>' % text for text in COLUMNS)]
    table += ['<tr><th scope="row">%s</th>%s%s</tr>' %
              (html.escape(row[0]), "".join("<td>%s</td>" % text for text in row[1:5]), cell(row[5])) for row in rows]
    figures = [figure(name, points, warm_up_s) for name, points in sorted(series.items())]
    return """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Load with faults</title>
<style>%s</style></head><body>
<h1>Load with faults</h1>
<p>%s.</p>
<p class="dim">%s</p>
<div class="wide card"><table><thead>%s</thead><tbody>
%s
</tbody></table></div>
<h2>Series</h2>
<p class="dim small">The value at the end, and from the least to the greatest. The warm-up is grey.</p>
<div class="figures">
%s
</div>
</body></html>
""" % (style, html.escape(summary), "No series grows." if not any(row[5] for row in rows) else "The series with a remark fail the run.",
       table[0], "\n".join(table[1:]), "\n".join(figures))


def read_series(path):
    series = collections.defaultdict(list)
    with open(path, encoding="utf-8") as file:
        for seconds, name, value in csv.reader(file):
            if value:
                series[name].append((float(seconds), float(value)))
    return series


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("samples")
    parser.add_argument("--warm-up-s", type=float, required=True)
    parser.add_argument("--faults", type=int, required=True)
    parser.add_argument("--status", required=True)
    parser.add_argument("--html", required=True)
    options = parser.parse_args()

    series = read_series(options.samples)
    with open(options.status, encoding="utf-8") as file:
        totals = json.load(file)["totals"]
    summary = "%.0f minutes, of these %.1f warm-up; %d processes killed or drained; %s" % (
        max(points[-1][0] for points in series.values()) / 60, options.warm_up_s / 60, options.faults,
        ", ".join("%d %s" % (totals[key], key) for key in ("requests", "done", "failed", "cancelled", "refused")))
    rows = [judge(name, [p for p in points if p[0] >= options.warm_up_s]) for name, points in sorted(series.items())]
    with open(options.html, "w", encoding="utf-8") as file:
        file.write(page(summary, rows, series, options.warm_up_s))
    print(markdown(summary, rows))
    sys.exit(1 if any(row[5] for row in rows) else 0)


main()
