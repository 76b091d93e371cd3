#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The capacity planner: the report of a small trace is tests/sim/plan.json to the letter, more groups and faster passes have
# the effect that they must have, and options that make no plan are refused with a sentence. Argument: forepack-sim.
# PLAN_RECORD=1 writes tests/sim/plan.json again.
set -euo pipefail
sim=$1
root=$(cd "$(dirname "$0")/.." && pwd)
trace=$root/tests/sim/plan.csv shape=$root/bench/shapes/llama-110m.json
golden=$root/tests/sim/plan.json
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
costs=(--pass-fixed-us 8000 --pass-row-us 1000 --pass-pair-us 0.2)
cluster=(--workers 2 --speculators 1 --spec-shape "$shape" --spec-pass-row-us 50 --max-num-batched-tokens 512 --kv-blocks 512)

plan() { "$sim" --shape "$shape" --log-level error "$@"; }
fail() { echo "$1"; exit 1; }
number() { plan --json "${@:2}" | sed -n "s/^ \"$1\": \([0-9.]*\),\$/\1/p"; }
less() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a < b) }' || fail "$3: $1, $2"; }
refused() { # SENTENCE OPTIONS...
    local status=0
    "$sim" "${@:2}" >"$work/out" 2>"$work/err" || status=$?
    [ $status = 2 ] || fail "not refused (exit code $status): ${*:2}"
    grep -qF -- "$1" "$work/err" || fail "${*:2}: the message lacks '$1': $(cat "$work/err")"
}

plan --trace "$trace" "${costs[@]}" "${cluster[@]}" --json >"$work/plan.json"
[ -z "${PLAN_RECORD:-}" ] || cp "$work/plan.json" "$golden"
diff "$golden" "$work/plan.json" || fail "the report differs from $golden"
grep -q '^worker groups ' <<<"$(plan --trace "$trace" "${costs[@]}")" || fail "no row of the pool in the text"

# Requests at a rate, with no trace. Costs from a status, and from figures of the machine.
load=(--prompt-tokens 200 --max-tokens 5 --qps 4 --requests 50)
one=$(number ttft_ms_p50 "${load[@]}" "${costs[@]}")
less "$(number ttft_ms_p50 "${load[@]}" "${costs[@]}" --workers 4)" "$one" "four groups are not faster than one"
printf '{"nodes": [{"role": "worker", "pass_fixed_us": 8000, "pass_row_us": 1000.0, "pass_pair_us": 0.2, "kv_blocks": 131072,
    "token_budget": 2048}]}' >"$work/status.json"
[ "$(number ttft_ms_p50 "${load[@]}" --status "$work/status.json")" = "$one" ] || fail "a status gives another report"
# Passes of measured times, on lines between 7 sizes: twice the time by the costs, and 3 ms more with prompt rows.
classes() { # EXTRA_US_OF_PROMPTS DEVIATIONS: the router's counts with costs 8000, 1000, 0.2
    jq -nc --argjson extra "$1" --argjson deviations "$2" '
        [(false, true) as $prompts | (1, 16, 32, 64, 256, 512, 2048) as $rows |
         {prompts: $prompts, passes: 10, rows: (10 * $rows), pairs: (100 * $rows), deviations: $deviations,
          s: ((10 * (8000 + (if $prompts then $extra else 0 end) + 1000 * $rows) + 20 * $rows) / 1e6)}]'
}
with_classes() { jq -c --argjson classes "$1" "$2" "$work/status.json"; }
with_classes "$(classes 0 '[]')" '.nodes[0] += {pass_classes: $classes, pass_fixed_us: 1}' >"$work/classes.json"
[ "$(number ttft_ms_p50 "${load[@]}" --status "$work/classes.json")" = "$one" ] ||
    fail "passes of the times that the costs say give another report"
with_classes "$(classes 3000 '[]')" '.nodes[0] += {pass_classes: $classes}' >"$work/kinds.json"
# Three milliseconds between two passes.
sed 's/"kv_blocks"/"pass_gap_count": 100, "pass_gap_s": 0.3, &/' "$work/status.json" >"$work/gaps.json"
slow=(--prompt-tokens 200 --max-tokens 5 --qps 0.1 --requests 10) # no two requests at once
without=$(number itl_ms_p50 "${slow[@]}" "${costs[@]}") with=$(number itl_ms_p50 "${slow[@]}" --status "$work/gaps.json")
awk -v a="$without" -v b="$with" 'BEGIN { exit !(b - a > 2.99 && b - a < 3.01) }' ||
    fail "3 ms between passes make the time between tokens $with instead of $without ms"
without=$(number ttft_ms_p50 "${slow[@]}" "${costs[@]}") with=$(number ttft_ms_p50 "${slow[@]}" --status "$work/kinds.json")
awk -v a="$without" -v b="$with" 'BEGIN { exit !(b - a > 2.99 && b - a < 3.01) }' ||
    fail "3 ms of passes with prompt rows make TTFT $with instead of $without ms"
[ "$(number ttft_ms_p50 "${load[@]}" "${costs[@]}" --pass-noise-percent 40)" != "$one" ] || fail "passes do not vary"
# Three of four passes took 0.75 to 0.82 of the predicted time, the fourth 1.6 to 2 times: 0.72 to 0.79 of the mean, and 1.54 to
# 1.93.
with_classes "$(classes 0 '[0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]')" \
    '.nodes[0] += {pass_classes: $classes}' >"$work/deviations.json"
varied=(--prompt-tokens 200 --max-tokens 50 --qps 0.1 --requests 20)
mean=$(number itl_ms_mean "${varied[@]}" "${costs[@]}")
less "$(awk -v m="$mean" 'BEGIN { print 0.72 * m }')" "$(number itl_ms_p50 "${varied[@]}" --status "$work/deviations.json")" \
    "the median of passes that vary is too low"
less "$(number itl_ms_p50 "${varied[@]}" --status "$work/deviations.json")" "$(awk -v m="$mean" 'BEGIN { print 0.79 * m }')" \
    "passes do not vary as measured"
varied_mean=$(number itl_ms_mean "${varied[@]}" --status "$work/deviations.json")
awk -v a="$mean" -v b="$varied_mean" 'BEGIN { exit !(b > 0.95 * a && b < 1.05 * a) }' ||
    fail "passes that vary take $varied_mean instead of $mean ms on average"
[ "$(number itl_ms_p50 "${varied[@]}" --status "$work/deviations.json" --pass-noise-percent 0)" = \
    "$(number itl_ms_p50 "${varied[@]}" "${costs[@]}")" ] || fail "--pass-noise-percent 0 leaves the measured deviations"
less "$(number ttft_ms_p50 "${load[@]}" --tflops 1 --gbytes-per-s 50)" "$one" "a faster machine is not faster"

# Costs of a GPU: FP8 weights are read in half of the time, decode reads K and V, and ranks sum. One request at a time.
gpu() { # KEY SHAPE OPTIONS...
    "$sim" --json --log-level error --shape "$root/bench/shapes/$2.json" --requests 6 --qps 0.01 --kv-blocks 9000 \
        --max-num-seqs 8 "${@:3}" | sed -n "s/^ \"$1\": \([0-9.]*\),\$/\1/p"
}
near() { # VALUE EXPECTED TEXT
    awk -v a="$1" -v b="$2" 'BEGIN { exit !(a > 0.98 * b && a < 1.02 * b) }' || fail "$3: $1 instead of $2"
}
short=(--prompt-tokens 16 --max-tokens 50)
# Weights of 60.4 GB at 83 % of 4,800 GB/s, 252 sums of 12 us, 9 kernels of 3.5 us in 126 layers, 40 us of the host.
near "$(gpu itl_ms_p50 llama-3.1-405b-fp8 --gpu h200 --tp 8 "${short[@]}")" 22.24 "decode of 405B in FP8"
near "$(gpu itl_ms_p50 llama-3.1-8b --gpu h100 "${short[@]}")" 6.26 "decode of 8B"
# 65,536 entries of 131,072 bytes at 63 % of 3,350 GB/s are 4.07 ms more.
near "$(gpu itl_ms_p50 llama-3.1-8b --gpu h100 --prompt-tokens 65536 --max-tokens 50)" 10.33 "decode after a long prompt"
less "$(gpu itl_ms_p50 llama-3.1-8b --gpu h100 --dtype fp8 "${short[@]}")" 5 "--dtype fp8 is not faster"
# A prefix that all prompts share is computed once.
shared=(--gpu h100 --prompt-tokens 8192 --max-tokens 2)
less "$(gpu ttft_ms_p50 llama-3.1-8b "${shared[@]}" --shared-prefix-tokens 6144)" \
    "$(awk -v a="$(gpu ttft_ms_p50 llama-3.1-8b "${shared[@]}")" 'BEGIN { print a / 2 }')" "a shared prefix saves no time"
# Lists of rates and lengths: one report for each rate.
"$sim" --json --log-level error --shape "$shape" "${costs[@]}" --prompt-tokens 100,300 --qps 1,2 --requests 10 >"$work/rates"
[ "$(jq -c '[.[].prompt_tokens]' "$work/rates")" = '[2000,2000]' ] || fail "lists of rates and lengths: $(cat "$work/rates")"

[ "$(number failed --prompt-tokens 5000 --max-tokens 9 --qps 9 "${costs[@]}" --max-queue-tokens 20000)" -gt 0 ] ||
    fail "no request is refused by a full queue"

# One request at a time, with drafts of a speculator whose pass takes a tenth of the group's, for whole prompts as for pruned ones.
long=(--prompt-tokens 600 --max-tokens 200 --qps 0.1 --requests 4 --speculate-min-tokens 1 "${costs[@]}" --speculators 1
    --spec-shape "$shape" --spec-pass-fixed-us 800 --spec-pass-row-us 10 --pass-row-us 100)
without=$(number tpot_ms_p50 "${long[@]}")
for keep_rate in 1 0.3; do
    with=$(number tpot_ms_p50 "${long[@]}" --keep-rate $keep_rate --draft-acceptance 0.8)
    awk -v a="$without" -v b="$with" 'BEGIN { exit !(a > 1.8 * b && a < 5 * b) }' ||
        fail "drafts make the time per token $with instead of $without ms at keep rate $keep_rate"
done
drafted=$(number draft_tokens "${long[@]}" --draft-acceptance 0.5) accepted=$(number draft_accepted_tokens "${long[@]}" --draft-acceptance 0.5)
awk -v n="$drafted" -v k="$accepted" 'BEGIN { exit !(n > 200 && k > 0.1 * n && k < 0.5 * n) }' ||
    fail "$accepted of $drafted draft tokens were accepted"
[ "$(number draft_tokens "${long[@]}")" = 0 ] || fail "tokens are drafted by default"

refused "give one of --trace and --prompt-tokens" --trace "$trace" --prompt-tokens 3
refused "--prompt-tokens: give --qps too" --prompt-tokens 3 --shape "$shape"
refused "--duration: at --qps 10000 these are 1e+10 requests, at most 10000000" --prompt-tokens 3 --qps 10000 --duration 1e6
refused "--shape: give the config.json" --trace "$trace"
refused "--spec-shape: give the config.json" --trace "$trace" --shape "$shape" --speculators 1
refused "costs of a pass of a worker are not known: give --gpu, or --pass-fixed-us" --trace "$trace" --shape "$shape"
refused "costs of a pass of a speculator are not known: give --gpu, or --spec-pass-fixed-us" --trace "$trace" --shape "$shape" \
    "${costs[@]}" --speculators 1 --spec-shape "$shape"
refused "give one of --gpu and --status" --trace "$trace" --shape "$shape" --gpu h100 --status "$work/status.json"
refused "give one of --gpu and --tflops" --trace "$trace" --shape "$shape" --gpu h100 --tflops 5
refused "--gpu 'h300': must be one of h100|h200|b200|a100|l40s" --trace "$trace" --shape "$shape" --gpu h300
refused "--qps '1,x': must be numbers" --prompt-tokens 3 --qps 1,x --shape "$shape" "${costs[@]}"
refused "--prompt-tokens '3,': must be whole numbers" --prompt-tokens 3, --qps 1 --shape "$shape" "${costs[@]}"
refused "--shared-prefix-tokens 100: must be a multiple of 512" --prompt-tokens 900 --qps 1 --shape "$shape" "${costs[@]}" \
    --shared-prefix-tokens 100
refused "--shared-prefix-tokens: a trace names" --trace "$trace" --shared-prefix-tokens 512 --shape "$shape" "${costs[@]}"
refused "are not known to --status" --trace "$trace" --shape "$shape" --speculators 1 --spec-shape "$shape" \
    --status "$work/status.json"
refused 'has no list "nodes"' --trace "$trace" --shape "$shape" --status "$shape"
refused "--max-num-seqs 64: must be at most --max-num-batched-tokens (32)" --trace "$trace" --shape "$shape" "${costs[@]}" \
    --max-num-batched-tokens 32
refused "$work/no.csv" --trace "$work/no.csv" --shape "$shape" "${costs[@]}"
echo "report and refusals are as they must be"
