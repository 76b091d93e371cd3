#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures a cluster of the demo models under load on this machine: the highest rate held with and without speculative
# prefill, and traces replayed under each packing policy, with and without the prefix cache. Writes JSON files and one
# Markdown page. Takes about fifteen minutes; nothing else should run.
# Usage: bench/serve.sh [options]
#   --out DIR       folder for the results (default bench-out)
#   --bin DIR       folder of the programs (default build/release/bin)
#   --threads N     compute threads of each node (default: all cores)
#   --traces DIR    folder with azure_conv.csv and mooncake_conversation.csv; if it is missing, no trace is replayed
#   --seconds N     seconds of each trace to replay (default 30)
#   --limit-ms N    TTFT limit for the highest rate (default 250)
#   --prompt-tokens N   length of the prompts of the highest rate (default 1000)
#   --first-qps N   rate at which the search begins (default 32)
#   --level-seconds N   seconds of each rate that the search tries (default 6)
#   --shape FILE --spec-shape FILE   random weights of these shapes instead of the demo models' weights; their
#                   vocabulary must have the size of the demo models'
#   --only PATTERN  run only the measurements with names that match this shell pattern
# A measurement with an existing JSON file is skipped: delete the file to measure again.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

out=bench-out bin=$here/../build/release/bin threads=$(nproc) traces= seconds=30 limit_ms=250 only='*'
prompt_tokens=1000 level_seconds=6 first_qps=32 shape='' spec_shape=''
pair=$here/../deploy/demo-model
while [ $# -gt 0 ]; do
    case $1 in
    --out | --bin | --threads | --traces | --seconds | --limit-ms | --only | --prompt-tokens | --level-seconds | --first-qps | --shape | --spec-shape)
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
[ "${shape:+given}" = "${spec_shape:+given}" ] || { echo "--shape and --spec-shape: expected both or neither" >&2; exit 2; }
main_shape=(${shape:+--shape "$shape"}) speculator_shape=(${spec_shape:+--shape "$spec_shape"})
mkdir -p "$out"

pids=()
stop_cluster() {
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
    pids=()
}
trap stop_cluster EXIT

port=52051
while (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 1)); done
server=127.0.0.1:$port node_port=$((port + 1000))
while (exec 3<>"/dev/tcp/127.0.0.1/$node_port") 2>/dev/null; do node_port=$((node_port + 1)); done

# start_cluster SPECULATORS "ROUTER FLAGS" "WORKER FLAGS"
start_cluster() {
    local n router_flags worker_flags
    read -ra router_flags <<<"$2"
    read -ra worker_flags <<<"$3"
    # Levels of load send the same prompts, and every prompt is scored.
    "$bin/forepack-router" --model "$pair/main" "${main_shape[@]}" --port "$port" --http-port -1 --selection-cache-mib 0 \
        --node-listen "127.0.0.1:$node_port" --log-level warn "${router_flags[@]}" 2>>"$out/serve.log" &
    pids+=($!)
    "$bin/forepack-worker" --model "$pair/main" "${main_shape[@]}" --router "127.0.0.1:$node_port" --threads "$threads" --log-level warn \
        "${worker_flags[@]}" 2>>"$out/serve.log" &
    pids+=($!)
    for ((n = 0; n < $1; n++)); do
        "$bin/forepack-speculator" --model "$pair/speculator" "${speculator_shape[@]}" --router "127.0.0.1:$node_port" --threads "$threads" --node-id "spec-$n" \
            --log-level warn 2>>"$out/serve.log" &
        pids+=($!)
    done
    for ((n = 0; n < 300; n++)); do
        [ "$("$bin/forepack" status --server "$server" --json 2>/dev/null | jq ".ready and (.nodes | length) == $1 + 1")" = true ] &&
            return
        sleep 0.1
    done
    echo "the cluster did not start: see $out/serve.log" >&2
    exit 1
}

# measure NAME SPECULATORS "ROUTER FLAGS" "WORKER FLAGS" ARGUMENTS...: starts a cluster and writes one JSON file
measure() {
    local name=$1 file=$out/serve-$1.json speculators=$2 router_flags=$3 worker_flags=$4
    shift 4
    # shellcheck disable=SC2053 # a pattern
    [[ ! -s $file && $name == $only ]] || return 0
    echo "$(date +%T) ${file##*/}: bench serve $*" >&2
    start_cluster "$speculators" "$router_flags" "$worker_flags"
    "$bin/forepack" bench serve --server "$server" "$@" --json >"$file.part"
    mv "$file.part" "$file"
    stop_cluster
}

# The highest rate: prompts of random tokens, answers of 4 tokens, 95 % of the first tokens within the limit.
search=(--prompt-tokens "$prompt_tokens" --max-tokens 4 --duration "$level_seconds" --warm-up 20 --search
    --ttft-limit-ms "$limit_ms" --timeout $((limit_ms / 1000 * 2 + 5)))
measure rate-plain 0 "" "" "${search[@]}" --qps "$first_qps" --prefill off
for keep in 0.3 0.1; do
    measure "rate-keep-$keep-one" 1 "" "" "${search[@]}" --qps "$first_qps" --prefill on --keep-rate "$keep"
    measure "rate-keep-$keep-two" 2 "" "" "${search[@]}" --qps "$first_qps" --prefill on --keep-rate "$keep"
done

# Traces with everything kept, so that prompts with a shared prefix stay equal. Azure's lengths are unchanged; Mooncake's are
# divided by 4 to fit the demo models' context. Both run at 4/3 of their rate, which two cores can serve.
replay() { # replay NAME ARGUMENTS...
    local name=$1 policy cache
    shift
    for policy in none batch dataset; do
        for cache in on off; do
            local flag=--enable-prefix-caching
            [ $cache = on ] || flag=--no-enable-prefix-caching
            measure "$name-$policy-cache-$cache" 0 "--bin-policy $policy" "$flag" "$@" --duration "$seconds" \
                --prefill off
        done
    done
}
if [ -n "$traces" ]; then
    replay azure --trace "$traces/azure_conv.csv" --time-scale 0.75
    replay mooncake --trace "$traces/mooncake_conversation.csv" --time-scale 0.75 --length-scale 0.25
fi

# FLOPs of the speculator's model over FLOPs of the main model for one prompt, attention included.
prompt_tflop() { "$bin/forepack" plan "$@" --prompt-tokens "$prompt_tokens" --json | jq .prompt_tflop; }
if [ -n "$shape" ]; then
    models="Random weights of $(basename "$shape" .json) and $(basename "$spec_shape" .json)."
    spec_share=$(jq -n "$(prompt_tflop "${speculator_shape[@]}") / $(prompt_tflop "${main_shape[@]}")")
else
    models="Demo models."
    spec_share=$(jq -n "$(prompt_tflop --model "$pair/speculator") / $(prompt_tflop --model "$pair/main")")
fi
plain_qps=$(jq .highest_qps "$out/serve-rate-plain.json" 2>/dev/null || echo null)

{
    echo "# A cluster under load"
    echo
    echo "$(grep -m1 '^model name' /proc/cpuinfo | cut -d: -f2- | sed 's/^ *//' || uname -m), $(nproc) CPUs, $threads threads per" \
        "node, $(date -u +%F), commit $(git -C "$here" rev-parse --short HEAD 2>/dev/null || echo unknown). $models"
    echo
    echo "Highest rate with 95 % of first tokens within $limit_ms ms (prompts of $prompt_tokens tokens, answers of 4):"
    echo
    echo "| cluster | requests/s | gain | bound | share of bound | bound, separate machines | kept tokens | TTFT ms p50 / p90 / p99 at that rate |"
    echo "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for file in "$out"/serve-rate-*.json; do
        [ -e "$file" ] || continue
        jq -r --arg name "$(basename "$file" .json)" --argjson plain "$plain_qps" --argjson spec "$spec_share" '
            def r($n): if . == null then "-" else . * $n | round / $n end;
            def percent: if . == null then "-" else "\(100 * . | r(10)) %" end;
            ($name | ltrimstr("serve-rate-")) as $cluster | .highest_qps as $qps |
            ([.levels[] | select(.qps == $qps and .qps)][0]) as $l |
            (if $l then $l.kept_tokens / $l.prompt_tokens else null end) as $kept |
            (if $qps and $plain then $qps / $plain else null end) as $gain |
            (if $kept and $cluster != "plain" then 1 / ($kept + $spec) else null end) as $bound |
            (if $cluster | endswith("-two") then 2 else 1 end) as $speculators |
            (if $bound then [1 / $kept, $speculators / $spec] | min else null end) as $apart |
            (if $gain and $bound then $gain / $bound else null end) as $share |
            "| \($cluster) | \($qps | r(10)) | \($gain | r(100)) | \($bound | r(100)) | \($share | percent) | \($apart | r(100)) | \($kept | percent) | \($l.ttft_ms_p50 | r(10)) / \($l.ttft_ms_p90 | r(10)) / \($l.ttft_ms_p99 | r(10)) |"' "$file"
    done
    echo
    echo "\`gain\`: requests/s over those of \`plain\`. \`bound\`: 1 / (kept share + FLOPs of the speculator over FLOPs of the main model)." \
        "The FLOPs ratio of a prompt of $prompt_tokens tokens is $(jq -n "$spec_share * 1000 | round / 1000"), attention included. All processes share" \
        "this machine's cores, so a second speculator does not raise the bound. With each node on a separate machine the slower pool would be" \
        "the bound: 1 / kept share, or speculators x FLOPs of the main model over FLOPs of the speculator."
    echo
    echo "$seconds s of each trace, everything kept:"
    echo
    echo "| trace, policy, prefix cache | TTFT ms p50 / p90 / p99 | ITL ms p50 / p90 / p99 | answers/s | cached tokens | failed |"
    echo "| --- | ---: | ---: | ---: | ---: | ---: |"
    for file in "$out"/serve-{azure,mooncake}-*.json; do
        [ -e "$file" ] || continue
        jq -r --arg name "$(basename "$file" .json)" 'def r: . * 10 | round / 10; .levels[0] |
            "| \($name | ltrimstr("serve-")) | \(.ttft_ms_p50 | r) / \(.ttft_ms_p90 | r) / \(.ttft_ms_p99 | r) | \(.itl_ms_p50 | r) / \(.itl_ms_p90 | r) / \(.itl_ms_p99 | r) | \(.requests_per_s | r) | \(100 * .cached_tokens / .prompt_tokens | r) % | \(.failed) |"' "$file"
    done
} >"$out/serve.md"
cat "$out/serve.md"
