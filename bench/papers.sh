#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Repeats the headline measurements of Speculative Prefill on this machine, with random weights of two shapes whose
# operations stand as those of Llama 3.1 405B and 8B (about 50 to 1): TTFT by prompt length, batch, keep rate and
# look-ahead, and the highest rate of a cluster within a TTFT limit. Writes JSON files, Markdown pages and two pictures.
# Takes about forty minutes on two cores; nothing else should run.
#
# Usage: bench/papers.sh [--out DIR] [--bin DIR] [--rounds N] [--limit-ms N]
#   --out DIR       folder for the results (default bench-out/papers)
#   --bin DIR       folder of the programs (default build/release/bin)
#   --rounds N      rounds of each TTFT, of which the median counts (default 3)
#   --limit-ms N    TTFT limit for the highest rate (default 4000)
# A measurement whose JSON file exists is skipped: delete the file to measure again.
set -euo pipefail
cd "$(dirname "$0")/.."

out=bench-out/papers bin=build/release/bin rounds=3 limit_ms=4000
while [ $# -gt 0 ]; do
    case $1 in
    --out | --bin | --rounds | --limit-ms)
        [ $# -gt 1 ] || { echo "$1: needs a value" >&2; exit 2; }
        name=${1#--}
        printf -v "${name//-/_}" %s "$2"
        shift 2
        ;;
    --help) sed -n '3,14s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "unknown option '$1' (--help lists all)" >&2; exit 2 ;;
    esac
done
mkdir -p "$out"
pair=(--shape bench/shapes/llama-250m.json --spec-shape bench/shapes/llama-5m.json)

# A look-ahead of 1 adds no pass to the prefill of the speculator, 2 adds one and 9 add eight.
if [ ! -s "$out/ttft.json" ]; then
    "$bin/forepack" bench prefill-quality --task ttft "${pair[@]}" --paper-exact --chunk-tokens 32 --rounds "$rounds" \
        --prompt-tokens 1024,4096,16384 --batch 1,4,16 --max-batch-tokens 32768 --look-aheads 1,2,9 \
        --keep-rates 0.9,0.7,0.5,0.3,0.1,0.05 --json >"$out/ttft.part"
    mv "$out/ttft.part" "$out/ttft.json"
fi
bench/serve.sh --bin "$bin" --out "$out" "${pair[@]}" --limit-ms "$limit_ms" --first-qps 2 --level-seconds 40 \
    --only 'rate-*' >"$out/serve.log"
{
    echo "$(grep -m1 '^model name' /proc/cpuinfo | cut -d: -f2- | sed 's/^ *//' || uname -m), $(nproc) CPUs," \
        "$(date -u +%F), commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)."
    python3 bench/papers.py "$out"
} >"$out/papers.md"
cat "$out/papers.md" "$out/serve.md"
