#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the picture of docs/sizing.md: GPU hours of a cluster that forepack plan sizes, against the limit on TTFT, with and
# without speculators. Computed and simulated, so no GPU is needed. Takes some minutes.
#
# Usage: bench/sizing.sh [--out FILE] [--data FILE] [--bin DIR]
#   --out FILE    the picture (default docs/pictures/sizing.svg)
#   --data FILE   also keep the JSON from which it is drawn
#   --bin DIR     folder of the programs (default build/release/bin)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
out=$here/../docs/pictures/sizing.svg data='' bin=$here/../build/release/bin
while [ $# -gt 0 ]; do
    case $1 in
    --out | --data | --bin)
        [ $# -gt 1 ] || { echo "$1: needs a value" >&2; exit 2; }
        printf -v "${1#--}" %s "$2"
        shift 2
        ;;
    --help) sed -n '3,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "unknown option '$1' (--help lists all)" >&2; exit 2 ;;
    esac
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

plan() { # NAME SHAPE QPS LIMIT DTYPE
    local code=0
    "$bin/forepack" plan --gpu h200 --shape "$here/shapes/$2.json" --spec-shape "$here/shapes/llama-3.1-8b.json" --dtype "$5" \
        --spec-dtype fp8 --qps "$3" --prompt-tokens 8192 --output-tokens 100 --ttft-p95 "$4" --itl-p95 0.1 --keep-rate 0.3 --json \
        >"$work/plan" || code=$?
    [ $code -lt 2 ] || exit 1 # 1: the limit cannot be kept
    jq -c --arg name "$1" --argjson limit "$4" '{name: $name, limit: $limit, plan: .}' "$work/plan"
}

for limit in 0.5 1 2 4 8; do plan 70B llama-3.1-70b 8 "$limit" fp8; done >"$work/plans"
for limit in 2 3 5 8 16; do plan 405B llama-3.1-405b-fp8 2 "$limit" auto; done >>"$work/plans"
jq -s . "$work/plans" >"$work/data.json"
[ -z "$data" ] || cp "$work/data.json" "$data"
python3 "$here/sizing.py" "$work/data.json" "$out"
