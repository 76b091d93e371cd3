#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the CUDA backend for the GPU of this machine, tests it on the GPU, measures it, runs small tests under
# compute-sanitizer, and prints one table with a goal beside each figure. Every step has a time limit and all steps together
# have --limit, under ten minutes with the build. A step that fails or has no time left is marked in the table, and the other
# steps go on. Nothing else should run on the GPU.
# Needs the CUDA toolkit, NCCL and the packages of ./deploy/packages.sh; no network, no checkpoint.
# Usage: bench/gpu.sh [--out DIR] [--build DIR] [--lengths FILE] [--rounds N] [--shapes DIR] [--limit S] [--no-tests]
#   --out DIR       folder for the results (default bench-out-gpu)
#   --build DIR     build folder (default build/gpu)
#   --lengths FILE  one prompt length per line, such as mmlu's, to compare packed with padded prefill. Padded prefill also
#                   runs with Hugging Face transformers if Python has torch and transformers (bench/transformers_padded.py)
#   --rounds N      as in forepack bench engine --help (default 3)
#   --shapes DIR    folder with the config.json files of the models (default bench/shapes)
#   --limit S       seconds for all steps together (default 570)
#   --no-tests      only measure
# Exit codes: 0 all steps ran, 1 a step failed, 3 built, but this machine has no GPU. A measurement with an existing JSON
# file is skipped, so a second run does what the first had no time for.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd) root=$(cd "$(dirname "$0")/.." && pwd)

out=bench-out-gpu build=$root/build/gpu lengths= rounds=3 shapes=$here/shapes limit=570 tests=yes
while [ $# -gt 0 ]; do
    case $1 in
    --no-tests)
        tests=no
        shift
        ;;
    --out | --build | --lengths | --rounds | --shapes | --limit)
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
[ "$limit" -gt 0 ] 2>/dev/null || { echo "--limit '$limit': must be a number of seconds" >&2; exit 2; }
for tool in cmake jq; do
    command -v $tool >/dev/null || { echo "$tool is needed: ./deploy/packages.sh installs it" >&2; exit 2; }
done
mkdir -p "$out"
SECONDS=0
: >"$out/steps"
code=0

say() {
    echo "$(date +%T) $*" >&2
}

# note STEP OK WORDS: adds a row to the table; a failed step makes the exit code 1.
note() {
    jq -nc --arg step "$1" --argjson ok "$2" --arg said "$3" '{$step, $ok, $said}' >>"$out/steps"
    $2 || code=1
}

# bounded SECONDS COMMAND...: runs the command with this time limit, or with the time left of --limit if that is less.
bounded() {
    local left=$((limit - SECONDS)) bound=$1
    shift
    [ $left -gt 0 ] || return 124
    timeout --kill-after=5 $((bound < left ? bound : left)) "$@"
}

# why CODE LOG: the reason why a step failed.
why() {
    if [ $1 = 124 ] || [ $1 = 137 ]; then
        echo "stopped: it exceeded its time limit or no time was left"
    else
        { grep . "$2" || echo "ended with $1"; } | tail -1 | cut -c 1-200
    fi
}

# ask_gpu FIELD: a field of the first GPU as nvidia-smi reports it; empty without one.
ask_gpu() {
    nvidia-smi --query-gpu="$1" --format=csv,noheader,nounits 2>/dev/null | head -1 | tr -d ' ' || true
}

# ---- build, for this GPU only ----

case $(ask_gpu compute_cap) in
8.?) architecture=(-DCMAKE_CUDA_ARCHITECTURES="$(ask_gpu compute_cap | tr -d .)-real") ;;
9.0) architecture=(-DCMAKE_CUDA_ARCHITECTURES=90a-real) ;;
*) architecture=() ;; # every architecture of the toolkit
esac
[ ! -e "$build/CMakeCache.txt" ] || architecture=() # keep the existing configuration
targets=(forepack-bench forepack_cuda)
[ $tests = no ] || targets+=(gpu_tests)
say "building in $build"
rc=0
bounded 60 cmake -S "$root" --preset cuda -B "$build" "${architecture[@]}" >"$out/build.log" 2>&1 &&
    bounded 400 cmake --build "$build" --target "${targets[@]}" >>"$out/build.log" 2>&1 || rc=$?
if [ $rc != 0 ]; then
    tail -30 "$out/build.log" >&2
    echo "the build failed: $(why $rc "$out/build.log")" >&2
    exit 1
fi
note build true "in $SECONDS s"
bin=$build/bin

# A small run on the GPU; its error message says why there is none.
rc=0
bounded 90 "$bin/forepack-bench" engine --shape "$shapes/llama-110m.json" --backend cuda --prompt-tokens 16 --batch 1 \
    --decode-tokens 0 --rounds 1 --min-ms 0 --probe-ms 0 --json >"$out/first.log" 2>&1 || rc=$?
if [ $rc != 0 ]; then
    why $rc "$out/first.log" >&2
    grep -q "no CUDA device" "$out/first.log" || exit 1
    echo "this machine has no GPU: the CUDA backend was built and linked, but nothing was run" >&2
    exit 3
fi

# ---- test ----

if [ $tests = yes ]; then
    say "tests on the device"
    rc=0
    bounded 150 ctest --test-dir "$build" -L gpu -j 4 --timeout 140 --output-on-failure >"$out/tests.log" 2>&1 || rc=$?
    said=$(grep "tests passed" "$out/tests.log" || why $rc "$out/tests.log")
    failed=$(sed -n '/(Skipped)/d; s/^\t *[0-9][0-9]* - \([^ ]*\) (.*/\1/p' "$out/tests.log" | paste -sd ' ')
    skipped=$(grep -c '(Skipped)$' "$out/tests.log" || true)
    [ "$skipped" = 0 ] || said+=", $skipped of them skipped"
    if [ $rc = 0 ]; then note tests true "$said"; else note tests false "$said${failed:+: $failed}"; fi
fi

# ---- measure ----

# record NAME SECONDS COMMAND...: writes the command's output to one JSON file.
record() {
    local name=$1 bound=$2 file=$out/$1.json rc=0 from=$SECONDS
    shift 2
    if [ -s "$file" ]; then
        note "$name" true "from an earlier run"
        return
    fi
    say "$name: $*"
    bounded "$bound" "$@" >"$file.part" 2>"$out/$name.log" || rc=$?
    if [ $rc = 0 ]; then
        mv "$file.part" "$file"
        note "$name" true "in $((SECONDS - from)) s"
    else
        note "$name" false "$(why $rc "$out/$name.log")"
        say "$name: $(why $rc "$out/$name.log")"
    fi
}

# measure NAME SECONDS ARGUMENTS...
measure() {
    record "$1" "$2" "$bin/forepack-bench" "${@:3}" --json
}

engine=(engine --backend cuda --dtype bf16 --shape "$shapes/llama-3.1-8b.json" --rounds "$rounds" --min-ms 300
    --probe-ms 200)
measure prefill 60 "${engine[@]}" --prompt-tokens 8192,16384 --batch 1 --decode-tokens 0 --max-num-batched-tokens 16384
measure packed 60 "${engine[@]}" --prompt-tokens 1024 --batch 8,16 --decode-tokens 0 --max-num-batched-tokens 16384
measure products 60 kernels --backend cuda --dtype bf16 --shape "$shapes/llama-3.1-8b.json" --rows 8192,16384 \
    --rounds "$rounds" --min-ms 300 --probe-ms 200
measure decode 60 "${engine[@]}" --prompt-tokens 0 --batch 1,64 --context 1024 --decode-tokens 64
measure score 60 "${engine[@]}" --prompt-tokens 32768 --batch 1 --decode-tokens 0 --max-num-batched-tokens 8192 --score
if [ -n "$lengths" ]; then
    measure prepack 60 prepack --backend cuda --dtype bf16 --shape "$shapes/llama-3.2-1b.json" --lengths "$lengths" \
        --limit 1024 --batch-size 64 --policies padded,batch --max-num-batched-tokens 16384 --rounds "$rounds"
    if python3 -c 'import torch, transformers' 2>/dev/null; then
        record transformers 60 python3 "$here/transformers_padded.py" --shape "$shapes/llama-3.2-1b.json" \
            --lengths "$lengths" --limit 1024 --batch-size 64 --rounds "$rounds"
    else
        say "transformers is not installed: the comparison with it is skipped"
    fi
fi

# As many layers of the 70B model as fit beside the 8B model, at most 40 because of the load time. A layer needs 1,632 MiB and
# 64 MiB of KV for the prompt; 29,000 MiB are the 8B model with its KV, the 70B's embedding and head, and workspaces.
free_mib=$(ask_gpu memory.free)
[[ $free_mib =~ ^[0-9]+$ ]] || free_mib=65000
layers=$(((free_mib * 95 / 100 - 29000) / 1700))
[ $layers -le 40 ] || layers=40
if [ -s "$out/ttft.json" ]; then
    layers=$(jq .num_hidden_layers "$out/main/config.json")
elif [ $layers -ge 1 ]; then
    mkdir -p "$out/main"
    jq ".num_hidden_layers = $layers" "$shapes/llama-3.1-70b.json" >"$out/main/config.json"
fi
if [ $layers -ge 1 ]; then
    measure ttft 120 prefill-quality --task ttft --backend cuda --dtype bf16 --shape "$out/main/config.json" \
        --spec-shape "$shapes/llama-3.1-8b.json" --prompt-tokens 16384 --keep-rates 0.1,0.3 --look-aheads 8 \
        --max-num-batched-tokens 8192 --rounds "$rounds"
else
    note ttft false "no layer of the 70B model fits beside the 8B model: $free_mib MiB are free"
fi

# ---- memory errors: last, with the time that is left ----

sanitize() {
    local rc=0
    say "compute-sanitizer $1"
    CK_FORK=no bounded 60 compute-sanitizer --error-exitcode 1 --tool memcheck "$bin/${1}_gpu" cuda \
        >"$out/sanitizer-$1.log" 2>&1 || rc=$?
    if [ $rc = 0 ]; then note "sanitizer $1" true "no errors"; else note "sanitizer $1" false "$(why $rc "$out/sanitizer-$1.log")"; fi
}

if [ $tests = yes ] && command -v compute-sanitizer >/dev/null; then
    for test in check_draws check_cuda_attention check_cuda_exactness; do
        [ ! -x "$bin/${test}_gpu" ] || sanitize $test
    done
elif [ $tests = yes ]; then
    say "compute-sanitizer is not installed: skipped"
fi

# ---- report ----

for name in prefill packed products decode score prepack transformers ttft; do
    [ ! -s "$out/$name.json" ] || jq --arg name "$name" '{($name): .}' "$out/$name.json"
done | jq -s --slurpfile steps "$out/steps" --argjson layers "$layers" '(add // {}) + {$steps, $layers}' >"$out/all"
{
    echo "# One GPU"
    echo
    echo "$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | sed -n 1p || echo unknown GPU)," \
        "$(date -u +%F), commit $(git -C "$here" rev-parse --short HEAD 2>/dev/null || echo unknown)," \
        "random weights, $rounds rounds;"
    jq -r -f "$here/gpu.jq" "$out/all"
} >"$out/gpu.md"
rm "$out/all"
cat "$out/gpu.md"
say "done in $SECONDS s"
exit $code
