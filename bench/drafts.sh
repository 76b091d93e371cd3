#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compares drafts on with drafts off, with the demo models on this machine: sampled requests must have the same tokens. Prints a
# JSON object: requests, requests with the same tokens, the time of all requests, and, with drafts off and on, TTFT, the time per
# token after the first one, and the draft tokens and accepted tokens; also by class of question. Both ways take turns, after a
# warm-up. Exit code 1: tokens differ.
# Usage: bench/drafts.sh [--bin DIR] [--threads N] [--requests N] [--first N] [--at-once N] [--window N] [--max-tokens N]
#        [--keep-rate R] [--prefill on|off] [--rounds N] [--ignore-eos true|false] [--prefix-caching true|false]
#   --bin DIR          folder of the programs (default build/release/bin)
#   --threads N        compute threads of each node (default: all cores)
#   --requests N       requests, cycling through the demo's prompts (default 240)
#   --first N          number of the first request, to run many requests in parts (default 0)
#   --at-once N        concurrent sequences of the worker group (default 1)
#   --window N         requests in flight (default: twice --at-once)
#   --max-tokens N     most tokens of an answer (default 64)
#   --keep-rate R      keep rate (default 0.3)
#   --prefill MODE     off: all tokens are kept and nothing is scored (default on)
#   --rounds N         how often all requests are sent each way (default 1)
#   --ignore-eos B     true: answers go on after EOS, up to --max-tokens (default false)
#   --prefix-caching B false: each prompt is computed again (default true)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
bin=$here/../build/release/bin threads=0 requests=240 first=0 at_once=1 window=0 max_tokens=64 keep_rate=0.3
prefill=on rounds=1 ignore_eos=false prefix_caching=true
pair=$here/../deploy/demo-model
while [ $# -gt 0 ]; do
    case $1 in
    --bin | --threads | --requests | --first | --at-once | --window | --max-tokens | --keep-rate | --prefill | --rounds | --ignore-eos | \
        --prefix-caching)
        [ $# -gt 1 ] || { echo "$1: needs a value" >&2; exit 2; }
        name=${1#--}
        printf -v "${name//-/_}" %s "$2"
        shift 2
        ;;
    *) echo "unknown option '$1': see the head of $0" >&2; exit 2 ;;
    esac
done

work=$(mktemp -d)
pids=()
finish() {
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    wait
    rm -rf "$work"
}
trap finish EXIT
free() { ! (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
port=$((20000 + RANDOM % 10000))
until free $port && free $((port + 1)); do port=$((port + 2)); done
server=127.0.0.1:$port

"$bin/forepack-router" --model "$pair/main" --port $port --node-listen 127.0.0.1:$((port + 1)) --http-port -1 \
    --selection-cache-mib 0 --log-level error &
pids+=($!)
for node in worker:main:$at_once speculator:speculator:32; do
    IFS=: read -r role model seqs <<<"$node"
    "$bin/forepack-$role" --model "$pair/$model" --router 127.0.0.1:$((port + 1)) --threads "$threads" --max-num-seqs "$seqs" \
        --enable-prefix-caching="$prefix_caching" --log-level error &
    pids+=($!)
done
ready() { "$bin/forepack" status --server "$server" --json 2>/dev/null | jq -e '[.nodes[] | select(.state == "ready")] | length == 2' >/dev/null; }
for _ in $(seq 600); do
    if ready; then break; fi
    sleep 0.1
done

[ "$window" -gt 0 ] || window=$((2 * at_once))
jq -cs --argjson first "$first" --argjson n "$requests" --argjson rate "$keep_rate" --arg prefill "$prefill" '. as $rows | range($first; $first + $n) as $i |
    $rows[$i % ($rows | length)] | {id: "\($i) \(.task)", prompt, temperature: (0.7 * ($i % 4 / 3)), seed: $i,
    prefill: $prefill, keep_rate: $rate}' "$pair/prompts.jsonl" >"$work/rows.jsonl"
send() { # send WAY NAME ROWS
    "$bin/forepack" batch --server "$server" --input "$3" --output "$work/$2.jsonl" --drafts "$1" --window "$window" \
        --ignore-eos="$ignore_eos" --max-tokens "$max_tokens" 2>"$work/$2.log" || { cat "$work/$2.log" >&2; exit 1; }
}
head -n 24 "$work/rows.jsonl" >"$work/warm-up.jsonl" # every prompt once, for caches and cost models
send off warm "$work/warm-up.jsonl"
declare -A spent_ms=([off]=0 [auto]=0)
for round in $(seq "$rounds"); do
    for way in off auto; do
        begun_ms=$(date +%s%3N)
        send $way $way-$round "$work/rows.jsonl"
        spent_ms[$way]=$((spent_ms[$way] + $(date +%s%3N) - begun_ms))
    done
done
cat "$work"/off-*.jsonl >"$work/off.jsonl"
cat "$work"/auto-*.jsonl >"$work/auto.jsonl"
jq -n --argjson off_ms "${spent_ms[off]}" --argjson auto_ms "${spent_ms[auto]}" --slurpfile off "$work/off.jsonl" --slurpfile auto "$work/auto.jsonl" '
    def median: sort | .[length / 2 | floor];
    def after_first: (map(.usage.completion_tokens - 1) | add) as $n | if $n > 0 then $n else 1 end;
    def sums: {tokens: (map(.usage.completion_tokens) | add), drafted: (map(.usage.draft_tokens) | add),
        accepted: (map(.usage.draft_accepted_tokens) | add), ttft_ms: (map(.timing.ttft_ms) | median),
        ms_per_token: ((map(.timing.total_ms - .timing.ttft_ms) | add) / after_first)};
    def task: .id | split(" ")[1];
    def ratio($a; $b): if $b > 0 then $a / $b else null end;
    def both($off; $auto): {off: ($off | sums), auto: ($auto | sums)} | .ratio = ratio(.off.ms_per_token; .auto.ms_per_token)
        | .ttft_ratio = ratio(.auto.ttft_ms; .off.ttft_ms);
    ($off | map({key: .id, value: .token_ids}) | from_entries) as $expected
    | {requests: ($off | length), same: ($auto | map(select(.token_ids == $expected[.id])) | length),
       off_s: ($off_ms / 1000), auto_s: ($auto_ms / 1000), throughput_ratio: ($off_ms / $auto_ms)} + both($off; $auto)
    | .by_class = ($auto | map(task) | unique | map(. as $task | {key: $task,
        value: both($off | map(select(task == $task)); $auto | map(select(task == $task)))}) | from_entries)' |
    tee "$work/result.json"
jq -e '.requests > 0 and .same == .requests' "$work/result.json" >/dev/null
