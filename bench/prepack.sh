#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures the table of the Prepacking paper (arXiv 2404.09529): prefill of six prompt sets at five batch sizes under every
# policy, with random weights. Writes JSON files and one Markdown page. Takes an hour or more on two cores, a third of it
# for the larger model; nothing else should run.
# Usage: bench/prepack.sh [--lengths DIR] [--out DIR] [--bin DIR] [--threads N] [--rounds N] [--shapes DIR]
#                         [--sets "wiki256 mmlu"] [--sizes "4 64"] [--limit N] [--limit-1b N]
#   --lengths DIR   folder with SET.txt files, one prompt length per line (default tests/data/lengths, 256 of each set)
#   --out DIR       folder for the results (default bench-out)
#   --bin DIR       folder of the programs (default build/release/bin)
#   --threads N, --rounds N: as in forepack bench prepack --help
#   --shapes DIR    folder with llama-110m.json and llama-3.2-1b.json (default bench/shapes)
#   --sets, --sizes measure a part of the table; the page also has all earlier results
#   --limit N       prompts of each set for the small model (default 256; 0: none)
#   --limit-1b N    prompts for the large model, on mmlu and alpaca at batch sizes 16 and 64 (default 128; 0: none)
# A measurement with an existing JSON file is skipped: delete the file to measure again.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

out=bench-out bin=$here/../build/release/bin threads=0 rounds=1 shapes=$here/shapes lengths=$here/../tests/data/lengths
sets="wiki256 wiki512 mmlu alpaca samsum hh" sizes="4 8 16 32 64" limit=256 limit_1b=128
while [ $# -gt 0 ]; do
    case $1 in
    --out | --bin | --threads | --rounds | --shapes | --lengths | --sets | --sizes | --limit | --limit-1b)
        [ $# -gt 1 ] || { echo "$1: needs a value" >&2; exit 2; }
        name=${1#--}
        printf -v "${name//-/_}" %s "$2"
        shift 2
        ;;
    *)
        echo "unknown option '$1': see the head of $0" >&2
        exit 2
        ;;
    esac
done
[ -d "$lengths" ] || { echo "--lengths '$lengths': must be a directory with SET.txt files" >&2; exit 2; }
mkdir -p "$out"

# measure SHAPE SET SIZES LIMIT: writes one JSON file.
measure() {
    local file=$out/prepack-$1-$2.json shape=$shapes/llama-$1.json
    [ "$4" = 0 ] || [ -s "$file" ] && return
    [ "$1" != 1b ] || shape=$shapes/llama-3.2-1b.json
    echo "$(date +%T) ${file##*/}" >&2
    "$bin/forepack" bench prepack --shape "$shape" --lengths "$lengths/$2.txt" --limit "$4" --batch-size "${3// /,}" \
        --policies padded,length-ordered,batch,dataset,none --threads "$threads" --rounds "$rounds" --json >"$file.part"
    mv "$file.part" "$file"
}

for set in $sets; do
    measure 110m "$set" "$sizes" "$limit"
done
for set in $sets; do
    case $set in mmlu | alpaca) measure 1b "$set" "16 64" "$limit_1b" ;; esac
done

for file in "$out"/prepack-*-*.json; do
    [ -e "$file" ] || { echo "$out has no results: see the head of $0" >&2; exit 2; }
    name=$(basename "$file" .json)
    IFS=- read -r _ model set <<<"$name"
    jq --arg model "$model" --arg set "$set" '[.[] + {$model, $set}]' "$file"
done | jq -s 'add' >"$out/prepack.all"
{
    echo "# Packing"
    echo
    echo "$(grep -m1 '^model name' /proc/cpuinfo | cut -d: -f2- | sed 's/^ *//' || uname -m)," \
        "$(date -u +%F), commit $(git -C "$here" rev-parse --short HEAD 2>/dev/null || echo unknown)." \
        "Random weights, the first prompts of each set."
    echo
    jq -r -f "$here/prepack.jq" "$out/prepack.all"
} >"$out/prepack.md"
rm "$out/prepack.all"
cat "$out/prepack.md"
