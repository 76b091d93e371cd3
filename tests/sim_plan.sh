#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The capacity planner: the report of a small trace is tests/sim/plan.json to the letter, more groups and faster passes do
# what they must, and options that make no plan are refused with a sentence. Argument: forepack-sim.
# PLAN_RECORD=1 writes tests/sim/plan.json anew.
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
plan --trace "$trace" "${costs[@]}" | grep -q '^worker groups ' || fail "no row of the pool in the text"

# Requests at a rate, without a trace. Costs from a status, and from figures of the machine.
load=(--prompt-tokens 200 --max-tokens 5 --qps 4 --requests 50)
one=$(number ttft_ms_p50 "${load[@]}" "${costs[@]}")
less "$(number ttft_ms_p50 "${load[@]}" "${costs[@]}" --workers 4)" "$one" "four groups are not faster than one"
printf '{"nodes": [{"role": "worker", "pass_fixed_us": 8000, "pass_row_us": 1000.0, "pass_pair_us": 0.2, "kv_blocks": 131072,
    "token_budget": 2048}]}' >"$work/status.json"
[ "$(number ttft_ms_p50 "${load[@]}" --status "$work/status.json")" = "$one" ] || fail "a status gives another report"
# Passes that took twice as long as the fit says: the plan takes them as they were.
printf '{"nodes": [{"role": "worker", "pass_fixed_us": 4000, "pass_row_us": 500.0, "pass_pair_us": 0.1, "kv_blocks": 131072,
    "token_budget": 2048, "passes": 10, "pass_rows": 700, "pass_pairs": 5000, "pass_s": 0.781}]}' >"$work/sums.json"
[ "$(number ttft_ms_p50 "${load[@]}" --status "$work/sums.json")" = "$one" ] || fail "the sums of passes do not count"
# Passes with prompt rows take 3 ms more than their rows: 5 of 15 passes.
printf '{"nodes": [{"role": "worker", "pass_fixed_us": 9000, "pass_row_us": 1000.0, "pass_pair_us": 0.2, "kv_blocks": 131072,
    "token_budget": 2048, "passes": 15, "pass_rows": 220, "pass_pairs": 5000, "pass_s": 0.356, "prompt_passes": 5,
    "prompt_pass_rows": 200, "prompt_pass_pairs": 4000, "prompt_pass_s": 0.2558}]}' >"$work/kinds.json"
kinds=$(number ttft_ms_p50 "${load[@]}" --status "$work/kinds.json")
[ "$kinds" = "$(number ttft_ms_p50 "${load[@]}" "${costs[@]}" --pass-prompt-us 3000)" ] ||
    fail "the sums of passes with prompt rows do not count"
# Three milliseconds between two passes.
sed 's/"pass_s": 0.781/&, "pass_gap_count": 100, "pass_gap_s": 0.3/' "$work/sums.json" >"$work/gaps.json"
slow=(--prompt-tokens 200 --max-tokens 5 --qps 0.1 --requests 10) # no two requests at once
without=$(number itl_ms_p50 "${slow[@]}" "${costs[@]}") with=$(number itl_ms_p50 "${slow[@]}" --status "$work/gaps.json")
awk -v a="$without" -v b="$with" 'BEGIN { exit !(b - a > 2.99 && b - a < 3.01) }' ||
    fail "3 ms between passes make the time between tokens $with instead of $without ms"
without=$(number ttft_ms_p50 "${slow[@]}" "${costs[@]}") with=$(number ttft_ms_p50 "${slow[@]}" --status "$work/kinds.json")
awk -v a="$without" -v b="$with" 'BEGIN { exit !(b - a > 2.99 && b - a < 3.01) }' ||
    fail "3 ms of passes with prompt rows make TTFT $with instead of $without ms"
[ "$(number ttft_ms_p50 "${load[@]}" "${costs[@]}" --pass-noise-percent 40)" != "$one" ] || fail "passes do not vary"
# A deviation of 20 % was measured: times spread evenly by 34.6 % have it.
sed 's/"pass_row_us"/"pass_noise": 0.2, &/' "$work/status.json" >"$work/noise.json"
[ "$(number ttft_ms_p50 "${load[@]}" --status "$work/noise.json")" = \
    "$(number ttft_ms_p50 "${load[@]}" "${costs[@]}" --pass-noise-percent 35)" ] || fail "the measured noise does not count"
less "$(number ttft_ms_p50 "${load[@]}" --tflops 1 --gbytes-per-s 50)" "$one" "a faster machine is not faster"
[ "$(number failed --prompt-tokens 5000 --max-tokens 9 --qps 9 "${costs[@]}" --max-queue-tokens 20000)" -gt 0 ] ||
    fail "no request is refused by a full queue"

refused "give one of --trace and --prompt-tokens" --trace "$trace" --prompt-tokens 3
refused "--prompt-tokens: give --qps too" --prompt-tokens 3 --shape "$shape"
refused "--shape: give the config.json" --trace "$trace"
refused "--spec-shape: give the config.json" --trace "$trace" --shape "$shape" --speculators 1
refused "costs of a pass of a worker are not known: give --pass-fixed-us" --trace "$trace" --shape "$shape"
refused "costs of a pass of a speculator are not known: give --spec-pass-fixed-us" --trace "$trace" --shape "$shape" \
    "${costs[@]}" --speculators 1 --spec-shape "$shape"
refused "are not known to --status" --trace "$trace" --shape "$shape" --speculators 1 --spec-shape "$shape" \
    --status "$work/status.json"
refused 'has no list "nodes"' --trace "$trace" --shape "$shape" --status "$shape"
refused "--max-num-seqs 64: must be at most --max-num-batched-tokens (32)" --trace "$trace" --shape "$shape" "${costs[@]}" \
    --max-num-batched-tokens 32
refused "$work/no.csv" --trace "$work/no.csv" --shape "$shape" "${costs[@]}"
echo "report and refusals are as they must be"
