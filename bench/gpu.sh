#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything that needs a GPU in one command, for the day there is one: builds the CUDA backend, tests it on the device,
# runs the small tests under compute-sanitizer, measures, and prints one table. Under ten minutes on one H100 or H200
# once it is built; nothing else should run on the device.
# Usage: bench/gpu.sh [--out DIR] [--build DIR] [--lengths FILE] [--rounds N] [--shapes DIR] [--no-tests]
#   --out DIR       where the files go (default bench-out-gpu)
#   --build DIR     build folder (default build/cuda: made by the preset cuda)
#   --lengths FILE  prompt lengths in tokens, one a line, for packed against padded (mmlu's); left out without it
#   --rounds N      as in forepack bench engine --help (default 3)
#   --shapes DIR    config.json files of the models (default bench/shapes)
#   --no-tests      measure alone
# Exit code 3: it was built, but there is no GPU here. Measures nothing again whose JSON file is there already.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd) root=$(cd "$(dirname "$0")/.." && pwd)

out=bench-out-gpu build=$root/build/cuda lengths= rounds=3 shapes=$here/shapes tests=yes
while [ $# -gt 0 ]; do
    case $1 in
    --no-tests)
        tests=no
        shift
        ;;
    --out | --build | --lengths | --rounds | --shapes)
        [ $# -gt 1 ] || { echo "$1: needs a value" >&2; exit 2; }
        printf -v "${1#--}" %s "$2"
        shift 2
        ;;
    *)
        echo "unknown option '$1': see the head of $0" >&2
        exit 2
        ;;
    esac
done
[ -z "$lengths" ] || [ -r "$lengths" ] || { echo "--lengths '$lengths': cannot be read" >&2; exit 2; }
command -v jq >/dev/null || { echo "jq is needed: ./deploy/packages.sh installs it" >&2; exit 2; }
mkdir -p "$out"

say() {
    echo "$(date +%T) $*" >&2
}

say "building in $build"
cmake -S "$root" --preset cuda -B "$build" >"$out/build.log"
cmake --build "$build" >>"$out/build.log" 2>&1 || { tail -30 "$out/build.log" >&2; exit 1; }
bin=$build/bin

# The smallest thing that needs the device; its sentence says why there is none.
if ! "$bin/forepack" bench engine --shape "$shapes/llama-110m.json" --backend cuda --prompt-tokens 16 --batch 1 \
    --decode-tokens 0 --rounds 1 --min-ms 0 --probe-ms 0 --json >"$out/first.log" 2>&1; then
    tail -1 "$out/first.log" >&2
    if grep -q "no CUDA device" "$out/first.log"; then
        echo "there is no GPU here: the CUDA backend was built and linked, nothing of it was run" >&2
        exit 3
    fi
    exit 1
fi

if [ $tests = yes ]; then
    say "tests on the device"
    ctest --test-dir "$build" -L gpu --output-on-failure >"$out/tests.log" 2>&1 || { tail -40 "$out/tests.log" >&2; exit 1; }
    tail -3 "$out/tests.log" >&2
    if command -v compute-sanitizer >/dev/null; then
        for test in check_draws check_cuda_attention check_cuda_exactness; do
            [ -x "$bin/${test}_gpu" ] || continue
            say "compute-sanitizer $test"
            compute-sanitizer --error-exitcode 1 --tool memcheck "$bin/${test}_gpu" cuda >"$out/sanitizer-$test.log" 2>&1 ||
                { tail -40 "$out/sanitizer-$test.log" >&2; exit 1; }
        done
    else
        say "compute-sanitizer is not installed: left out"
    fi
fi

# measure NAME ARGUMENTS...: one JSON file.
measure() {
    local file=$out/$1.json
    shift
    [ -s "$file" ] && return
    say "${file##*/}: bench $*"
    "$bin/forepack" bench "$@" --json >"$file.part" 2>>"$out/bench.log" || { tail -3 "$out/bench.log" >&2; exit 1; }
    mv "$file.part" "$file"
}

engine=(engine --backend cuda --dtype bf16 --shape "$shapes/llama-3.1-8b.json" --rounds "$rounds" --min-ms 300
    --probe-ms 200)
measure prefill "${engine[@]}" --prompt-tokens 8192,16384 --batch 1 --decode-tokens 0 --token-budget 16384
measure packed "${engine[@]}" --prompt-tokens 1024 --batch 8,16 --decode-tokens 0 --token-budget 16384
measure decode "${engine[@]}" --prompt-tokens 0 --batch 1,64 --context 1024 --decode-tokens 64
measure score "${engine[@]}" --prompt-tokens 32768 --batch 1 --decode-tokens 0 --token-budget 8192 --score
measure ttft prefill-quality --task ttft --backend cuda --dtype bf16 --shape "$shapes/llama-3.1-70b-20-layers.json" \
    --spec-shape "$shapes/llama-3.1-8b.json" --prompt-tokens 16384 --keep-rates 0.1,0.3 --look-aheads 8 \
    --token-budget 8192 --rounds "$rounds"
if [ -n "$lengths" ]; then
    measure prepack prepack --backend cuda --dtype bf16 --shape "$shapes/llama-3.2-1b.json" --lengths "$lengths" \
        --limit 1024 --batch-size 64 --policies padded,batch --token-budget 16384 --rounds "$rounds"
fi

for file in "$out"/*.json; do
    jq --arg name "$(basename "$file" .json)" '{($name): .}' "$file"
done | jq -s add >"$out/all"
{
    echo "# One GPU"
    echo
    echo "$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | sed -n 1p || echo unknown GPU)," \
        "$(date -u +%F), commit $(git -C "$here" rev-parse --short HEAD 2>/dev/null || echo unknown)," \
        "dummy weights, $rounds rounds;"
    jq -r -f "$here/gpu.jq" "$out/all"
} >"$out/gpu.md"
rm "$out/all"
cat "$out/gpu.md"
