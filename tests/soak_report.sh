#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# bench/soak_report.py: a series that grows fails the run and is named in the table and on the page; a steady one does not;
# too few samples fail too. The page loads nothing, and names are text.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
    echo "FAILED: $*" >&2
    exit 1
}

echo '{"totals": {"requests": 10, "done": 8, "failed": 0, "cancelled": 2, "refused": 0}}' >"$work/status.json"
# report CODE: reports $work/samples.csv, and must exit with CODE.
report() {
    local code=0
    /usr/bin/python3 "$here/../bench/soak_report.py" "$work/samples.csv" --warm-up-s 100 --faults 3 --status "$work/status.json" \
        --html "$work/report.html" >"$work/report.md" || code=$?
    [ $code = "$1" ] || fail "exit code $code instead of $1: $(cat "$work/report.md")"
}

for ((t = 0; t < 700; t += 10)); do echo "$t,router rss_kib,$((40000 + t % 30))"; done >"$work/samples.csv"
report 0
grep -q '^| router rss_kib | 40,0.. | .* | 2,048 |  |$' "$work/report.md" || fail "table: $(cat "$work/report.md")"
grep -q 'No series grows' "$work/report.html" || fail "the page finds a fault"

for ((t = 0; t < 700; t += 10)); do echo "$t,<b>worker rss_kib,$((90000 + 10 * t + t % 30))"; done >>"$work/samples.csv"
report 1
grep -q '^| <b>worker rss_kib .*\*\*grows\*\* |$' "$work/report.md" || fail "table: $(cat "$work/report.md")"
grep -q '<th scope="row">&lt;b&gt;worker rss_kib</th>.*data-state="bad">grows' "$work/report.html" || fail "the page does not say what grows"
[ "$(grep -c '<svg class="spark"' "$work/report.html")" = 2 ] || fail "a plot for each series"
if grep -nE '<b>|<script|<link|src=|href=|@import|url\((")?(http|//)' "$work/report.html"; then fail "the page is not self-contained"; fi

echo "200,worker threads,5" >>"$work/samples.csv"
report 1
grep -q '1 samples after the warm-up, 12 needed' "$work/report.md" || fail "table: $(cat "$work/report.md")"
