#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures the CPU engine: prefill, decode, scoring, gemms, two ranks and start-up, with the machine probe around every
# round. Writes JSON files and one Markdown page. Takes about half an hour on two cores; nothing else should run.
# Usage: bench/engine.sh [--out DIR] [--bin DIR] [--threads N] [--rounds N] [--probe-ms N] [--min-ms N]
#                        [--shapes DIR] [--long A,B] [--dtypes "bf16 int8"]
#   --out DIR      folder for the results (default bench-out)
#   --bin DIR      folder of the programs (default build/release/bin)
#   --threads N    compute threads in total, an even number (default: all cores)
#   --rounds N, --probe-ms N, --min-ms N, --dtypes "bf16 int8": as in forepack bench engine --help
#   --shapes DIR   folder with llama-3.2-1b.json and llama-110m.json (default bench/shapes)
#   --long A,B     lengths of the long prompts (default 4096,16384)
# A measurement with an existing JSON file is skipped: delete the file to measure again.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

out=bench-out bin=$here/../build/release/bin threads=$(nproc) rounds=3 probe_ms=500 min_ms=300
shapes=$here/shapes long=4096,16384 dtypes="bf16 int8"
while [ $# -gt 0 ]; do
    case $1 in
    --out | --bin | --threads | --rounds | --probe-ms | --min-ms | --shapes | --long | --dtypes)
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
[ $((threads % 2)) = 0 ] || { echo "--threads $threads: must be even, since two ranks divide them" >&2; exit 2; }
mkdir -p "$out"

# measure NAME ARGUMENTS...: writes one JSON file. A measurement that the build refuses (such as a dtype) is left out.
measure() {
    local file=$out/$1.json code=0
    shift
    [ -s "$file" ] && return
    echo "$(date +%T) ${file##*/}: bench $*" >&2
    "$bin/forepack" bench "$@" --rounds "$rounds" --probe-ms "$probe_ms" --min-ms "$min_ms" --json >"$file.part" ||
        code=$?
    case $code in
    0) mv "$file.part" "$file" ;;
    2) rm "$file.part" ;; # refused; it has printed the reason
    *) exit $code ;;
    esac
}

# Time from exec to the first token, with the checkpoint in the page cache.
measure_start() {
    local file=$out/1b-start.json model=$out/checkpoint round seconds=() TIMEFORMAT=%R
    [ -s "$file" ] && return
    echo "$(date +%T) ${file##*/}: writes and reads a checkpoint of the shape" >&2
    "$here/checkpoint.py" "$shapes/llama-3.2-1b.json" "$model"
    cat "$model"/* >/dev/null
    for ((round = 0; round < rounds; round++)); do
        seconds+=("$({ time "$bin/forepack" generate --model "$model" --prompt Hello --max-tokens 1 \
            --threads "$threads" >/dev/null; } 2>&1)") || { echo "${seconds[*]}" >&2; exit 1; }
    done
    rm -r "$model"
    jq -n '[{phase: "start", seconds: ($ARGS.positional | map(tonumber) | sort)}]' --args "${seconds[@]}" >"$file"
}

big=$shapes/llama-3.2-1b.json small=$shapes/llama-110m.json
for dtype in $dtypes; do
    all=(--dtype "$dtype" --threads "$threads")
    # Decodes from 128 to 172 KV entries, 150 on average.
    all+=(--context 128 --decode-tokens 44)
    for name in 1b 110m; do
        shape=$big
        [ "$name" = 1b ] || shape=$small
        measure "$name-$dtype" engine --shape "$shape" "${all[@]}" --prompt-tokens 512 --batch 1
        measure "$name-$dtype-packed" engine --shape "$shape" "${all[@]}" --prompt-tokens 128 --batch 8,32
    done
    measure "1b-$dtype-kernels" kernels --shape "$big" --dtype "$dtype" --threads "$threads"
    measure "110m-$dtype-kernels" kernels --shape "$small" --dtype "$dtype" --threads "$threads"
done
bf16=(--dtype bf16 --batch 1 --decode-tokens 0)
measure 1b-long engine --shape "$big" "${bf16[@]}" --threads "$threads" --prompt-tokens "$long"
measure 1b-score engine --shape "$big" "${bf16[@]}" --threads "$threads" --prompt-tokens "${long%%,*}" --score
# One rank with all threads, two ranks with half of them each, and one rank again.
group=(--dtype bf16 --prompt-tokens 512 --batch 1,8 --decode-tokens 32)
measure 1b-one engine --shape "$big" "${group[@]}" --threads "$threads"
measure 1b-two engine --shape "$big" "${group[@]}" --threads $((threads / 2)) --tp 2
measure 1b-one-again engine --shape "$big" "${group[@]}" --threads "$threads"
measure_start

# Merges the files into one object with a list per file, then makes the page.
for file in "$out"/*.json; do
    jq --arg name "$(basename "$file" .json)" '{($name): .}' "$file"
done | jq -s add >"$out/all"
{
    echo "# CPU engine"
    echo
    echo "$(grep -m1 '^model name' /proc/cpuinfo | cut -d: -f2- | sed 's/^ *//' || uname -m), $threads threads," \
        "$(date -u +%F), commit $(git -C "$here" rev-parse --short HEAD 2>/dev/null || echo unknown)." \
        "Random weights, $rounds rounds."
    echo
    jq -r -f "$here/engine.jq" "$out/all"
} >"$out/engine.md"
rm "$out/all"
cat "$out/engine.md"
