#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# forepack bench: every measurement runs on a tiny shape with made-up weights and its JSON has the promised keys. No
# speed is asserted.
source "$(dirname "$0")/lib.sh"

shape=$source_dir/tests/data/shapes/tiny.json
quick=(--threads 1 --rounds 2 --min-ms 1 --probe-ms 5)

check_json() { jq -e "$2" "$1" >/dev/null || fail "$1: not so: $2: $(cat "$1")"; }

# One process.
"$bin/forepack" bench engine --shape "$shape" --load dummy --prompt-tokens 16,100 --decode-tokens 3 --context 20 \
    --batch 1,3 --token-budget 64 --score "${quick[@]}" --json >"$work/engine.json" 2>"$work/engine.log"
check_json "$work/engine.json" '[.[] | [.phase, .batch, .tokens]] == [["prefill",1,16], ["prefill",3,16],
    ["prefill",1,100], ["decode",1,3], ["decode",3,3], ["score",1,16], ["score",1,100]]'
check_json "$work/engine.json" 'all(.[]; has("phase") and has("tokens") and has("batch")
    and .tokens_per_s > 0 and .gflops > 0 and .gbytes_per_s > 0 and .peak_rss_mb > 0
    and .peak_gflops > 0 and .dram_gbytes_per_s > 0 and .share > 0 and (.probes | length) == 3
    and (.limit == "compute" or .limit == "memory") and .dtype == "bf16" and .ranks == 1)'
check_json "$work/engine.json" 'all(.[] | select(.phase == "score"); .over_plain > 0 and .look_ahead >= 1)'
grep -q 'no prefill of 3 x 100 tokens' "$work/engine.log" || fail "nothing said of what was left out"

# A group of two ranks, no probe, as a table and as JSON.
"$bin/forepack" bench engine --shape "$shape" --tp 2 --dtype f32 --prompt-tokens 16 --decode-tokens 2 --batch 1 \
    --threads 1 --rounds 1 --min-ms 0 --probe-ms 0 --json >"$work/tp.json" 2>"$work/tp.log"
check_json "$work/tp.json" 'length == 2 and all(.[]; .ranks == 2 and .threads == 2 and .dtype == "f32"
    and .tokens_per_s > 0 and .peak_gflops == null and .share == null)'
# Both ranks together do what one does alone, and hold twice a process.
"$bin/forepack" bench engine --shape "$shape" --dtype f32 --prompt-tokens 16 --decode-tokens 2 --batch 1 \
    --threads 1 --rounds 1 --min-ms 0 --probe-ms 0 --json >"$work/one.json" 2>"$work/one.log"
jq -e --slurpfile one "$work/one.json" '[.[] | .linear_gflop, .attention_gflop, .gbytes] ==
    [$one[0][] | .linear_gflop, .attention_gflop, .gbytes]' "$work/tp.json" >/dev/null || fail "work of two ranks"
"$bin/forepack" bench engine --shape "$shape" --prompt-tokens 16 --decode-tokens 0 --batch 2 "${quick[@]}" \
    >"$work/table" 2>"$work/table.log"
grep -Eq '^prefill +2 +16 ' "$work/table" || fail "no row in the table: $(cat "$work/table")"

# Products alone, beside oneDNN where it was built.
"$bin/forepack" bench kernels --shape "$shape" --rows 1,33 "${quick[@]}" --json >"$work/kernels.json" 2>"$work/kernels.log"
check_json "$work/kernels.json" '[.[].m] == [1, 33] and all(.[]; .phase == "matmul" and .gflops > 0
    and .gbytes_per_s > 0 and .share > 0 and has("onednn_gflops")
    and [.products[].name] == ["qkv", "o", "gate_up", "down"] and all(.products[]; .gflops > 0))'
if [ -x "$bin/forepack-bench-onednn" ]; then
    check_json "$work/kernels.json" 'all(.[]; .onednn_gflops > 0)'
else
    echo "skipped: oneDNN was not found when this was built"
fi

# Wrong usage: one line that names what is wrong, exit code 2.
refused() {
    local text=$1 code=0
    shift
    "$bin/forepack" bench "$@" >"$work/out" 2>"$work/refused.log" || code=$?
    [ $code = 2 ] || fail "'$*' ended with $code: $(cat "$work/refused.log")"
    grep -qF -- "$text" "$work/refused.log" || fail "'$*' said: $(cat "$work/refused.log")"
}
refused "exactly one of --model DIR and --shape FILE" engine
refused "--batch '1,x': must be whole numbers from 1" engine --shape "$shape" --batch 1,x
refused "--prompt-tokens: 600 KV entries of a sequence, but the model's context is 512" \
    engine --shape "$shape" --prompt-tokens 600
refused "nothing to run" engine --shape "$shape" --prompt-tokens 0 --decode-tokens 0
refused "no-such.json" engine --shape "$work/no-such.json"
refused "unknown measurement 'nonsense': must be one of engine" nonsense
refused "tiny.json" engine --shape "$shape" --tp 4 --prompt-tokens 16 # 2 KV heads
