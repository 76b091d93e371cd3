#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures this engine beside PyTorch with transformers and OpenVINO, on this machine's CPU, with random weights of one
# shape: each round runs every engine in turn. Prints a Markdown table of medians and of the smallest and largest value.
# Installs the peers from PyPI (about 2 GB) into a virtual environment of the output folder. Nothing else should run.
#
# Usage: bench/peers/engines.sh [--out DIR] [--bin DIR] [--shape FILE] [--rounds N] [--threads N] [--peers LIST]
#   --out DIR       folder for the environment, the checkpoint and the results (default bench-out/peers)
#   --bin DIR       folder of the programs (default build/release/bin)
#   --shape FILE    config.json of the model (default bench/shapes/llama-3.2-1b.json)
#   --rounds N      rounds (default 3)
#   --threads N     compute threads (default: all cores)
#   --peers LIST    comma-separated peers (default pytorch,openvino)
# Exit code: 0 measured, 1 if an engine failed, 2 for wrong usage, 77 if the peers cannot be installed.
set -euo pipefail
cd "$(dirname "$0")/../.."

out=bench-out/peers bin=build/release/bin shape=bench/shapes/llama-3.2-1b.json rounds=3 threads=$(nproc) peers=pytorch,openvino
while [ $# -gt 0 ]; do
    case $1 in
    --out | --bin | --shape | --rounds | --threads | --peers)
        [ $# -gt 1 ] || { echo "$1: needs a value" >&2; exit 2; }
        printf -v "${1#--}" %s "$2"
        shift 2
        ;;
    --help) sed -n '3,15s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "unknown option '$1' (--help lists all)" >&2; exit 2 ;;
    esac
done
mkdir -p "$out"
python=$out/venv/bin/python3
if ! cmp -s bench/peers/engines.txt "$out/installed.txt"; then
    { python3 -m venv "$out/venv" && "$out/venv/bin/pip" install --quiet -r bench/peers/engines.txt; } >&2 ||
        { echo "skipped: the peers cannot be installed from the package index"; exit 77; }
    cp bench/peers/engines.txt "$out/installed.txt"
fi

prompts=512,4096 batches=1,8,32 decode_tokens=16
ours() {
    "$bin/forepack" bench engine --shape "$shape" --threads "$threads" --prompt-tokens 0 --batch "$batches" \
        --decode-tokens "$decode_tokens" "$@" --json
    "$bin/forepack" bench engine --shape "$shape" --threads "$threads" --prompt-tokens "$prompts" --batch 1 \
        --decode-tokens 0 "$@" --json
}
for ((round = 1; round <= rounds; round++)); do
    echo "round $round of $rounds" >&2
    for dtype in bf16 int8; do
        ours --dtype "$dtype" | jq -c --arg engine "Forepack, $dtype" '.[] | {engine: $engine} + .'
    done
    for peer in ${peers//,/ }; do
        "$python" bench/peers/engines.py --engine "$peer" --shape "$shape" --folder "$out" --threads "$threads" \
            --prompt-tokens "$prompts" --batch "$batches" --decode-tokens "$decode_tokens" 2>>"$out/peers.log" | jq -c '.[]' ||
            { tail -n 5 "$out/peers.log" >&2; exit 1; }
    done
done >"$out/engines.jsonl"

{
    echo "$(grep -m1 '^model name' /proc/cpuinfo | cut -d: -f2- | sed 's/^ *//' || uname -m), $threads threads, $(date -u +%F)," \
        "commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown), $(basename "$shape" .json), $rounds rounds in turns."
    echo
    jq -rs '
        def r: if . >= 100 then round else . * 10 | round / 10 end;
        def cell: sort | if length == 0 then "-" else "\(.[length / 2 | floor] | r) (\(.[0] | r) to \(.[-1] | r))" end;
        (map([.phase, if .phase == "prefill" then .tokens else .batch end]) | unique | sort_by(.[0] == "decode")) as $columns |
        "| tokens/s, median (smallest to largest) | \($columns | map("\(.[0]) \(.[1])") | join(" | ")) |",
        "| --- |\($columns | map(" ---: |") | add)",
        (group_by(.engine)[] | . as $rows | "| \($rows[0].engine) | \($columns | map(. as $c | [$rows[] |
            select(.phase == $c[0] and (if .phase == "prefill" then .tokens else .batch end) == $c[1]) | .tokens_per_s] | cell) |
            join(" | ")) |")' "$out/engines.jsonl"
} | tee "$out/engines.md"
