#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A whole cluster of the demo pair under load on this machine, in one command: the highest rate held with and without
# speculative prefill, and traces replayed under each packing policy, with and without the prefix cache. JSON files and
# one page of Markdown. Some fifteen minutes; nothing else should run.
# Usage: bench/serve.sh [--out DIR] [--bin DIR] [--threads N] [--traces DIR] [--seconds N] [--limit-ms N] [--only PATTERN]
#   --out DIR       where the files go (default bench-out)
#   --bin DIR       programs (default build/release/bin)
#   --threads N     compute threads of each node (default: all cores)
#   --traces DIR    azure_conv.csv and mooncake_conversation.csv; without it no trace is replayed
#   --seconds N     how long a trace is replayed (default 30)
#   --limit-ms N    of the time to the first token, for the highest rate (default 250)
#   --only PATTERN  only the measurements whose names match this shell pattern
# Measures nothing again whose JSON file is there already: delete what shall be measured anew.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

out=bench-out bin=$here/../build/release/bin threads=$(nproc) traces= seconds=30 limit_ms=250 only='*'
pair=$here/../deploy/demo-model
while [ $# -gt 0 ]; do
    case $1 in
    --out | --bin | --threads | --traces | --seconds | --limit-ms | --only)
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
server=127.0.0.1:$port

# start_cluster SPECULATORS "ROUTER FLAGS" "WORKER FLAGS"
start_cluster() {
    local n router_flags worker_flags
    read -ra router_flags <<<"$2"
    read -ra worker_flags <<<"$3"
    "$bin/forepack-router" --model "$pair/main" --port "$port" --log-level warn "${router_flags[@]}" 2>>"$out/serve.log" &
    pids+=($!)
    "$bin/forepack-worker" --model "$pair/main" --router "$server" --threads "$threads" --log-level warn \
        "${worker_flags[@]}" 2>>"$out/serve.log" &
    pids+=($!)
    for ((n = 0; n < $1; n++)); do
        "$bin/forepack-speculator" --model "$pair/speculator" --router "$server" --threads "$threads" --node-id "spec-$n" \
            --log-level warn 2>>"$out/serve.log" &
        pids+=($!)
    done
    for ((n = 0; n < 300; n++)); do
        [ "$("$bin/forepack" status --server "$server" --json 2>/dev/null | jq ".ready and (.nodes | length) == $1 + 1")" = true ] &&
            return
        read -rt 0.1 <> <(:) || true
    done
    echo "the cluster did not start: see $out/serve.log" >&2
    exit 1
}

# measure NAME SPECULATORS "ROUTER FLAGS" "WORKER FLAGS" ARGUMENTS...: one cluster of its own, one JSON file
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

# The highest rate: prompts of 1,000 random tokens, 4 tokens of answer, 95 % of the first ones in time.
search=(--prompt-tokens 1000 --max-tokens 4 --duration 6 --warm-up 20 --search --ttft-limit-ms "$limit_ms" --timeout 5)
measure rate-plain 0 "" "" "${search[@]}" --qps 32 --prefill off
for keep in 0.3 0.1; do
    measure "rate-keep-$keep-one" 1 "" "" "${search[@]}" --qps 32 --prefill on --keep-rate "$keep"
    measure "rate-keep-$keep-two" 2 "" "" "${search[@]}" --qps 32 --prefill on --keep-rate "$keep"
done

# Traces, everything kept, so that a prefix cache finds what it can. Azure's lengths as they are; Mooncake's requests a
# quarter as long, to fit the pair's context. Both at 4/3 of their rate: what two cores can do.
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

# Operations of a prompt of the search's length in the small model over those in the large one, attention included.
prompt_tflop() { "$bin/forepack" plan --model "$pair/$1" --prompt-tokens 1000 --json | jq .prompt_tflop; }
spec_share=$(jq -n "$(prompt_tflop speculator) / $(prompt_tflop main)")
plain_qps=$(jq .highest_qps "$out/serve-rate-plain.json" 2>/dev/null || echo null)

{
    echo "# A cluster under load"
    echo
    echo "$(grep -m1 '^model name' /proc/cpuinfo | cut -d: -f2- | sed 's/^ *//' || uname -m), $(nproc) CPUs, $threads threads a" \
        "node, $(date -u +%F), commit $(git -C "$here" rev-parse --short HEAD 2>/dev/null || echo unknown). The demo pair."
    echo
    echo "Highest rate with 95 % of first tokens within $limit_ms ms (prompts of 1,000 tokens, 4 of answer):"
    echo
    echo "| cluster | requests/s | gain | bound | share of it | bound, machines of their own | tokens kept | TTFT ms p50 / p90 / p99 there |"
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
    echo "\`gain\`: over the requests/s of \`plain\`. \`bound\`: 1 / (share of tokens kept + FLOPs of the speculator over FLOPs of the main" \
        "model), the latter $(jq -n "$spec_share * 1000 | round / 1000") for such a prompt, attention included: that of all the work, since all" \
        "processes share this machine's cores, and a second speculator adds none. Were each node on a machine of its own, the slower pool would" \
        "be the bound: 1 / tokens kept, or speculators x FLOPs of the main model over FLOPs of the speculator."
    echo
    echo "$seconds s of each trace, everything kept:"
    echo
    echo "| trace, policy, prefix cache | TTFT ms p50 / p90 / p99 | between tokens ms p50 / p90 / p99 | answers/s | from the cache | failed |"
    echo "| --- | ---: | ---: | ---: | ---: | ---: |"
    for file in "$out"/serve-{azure,mooncake}-*.json; do
        [ -e "$file" ] || continue
        jq -r --arg name "$(basename "$file" .json)" 'def r: . * 10 | round / 10; .levels[0] |
            "| \($name | ltrimstr("serve-")) | \(.ttft_ms_p50 | r) / \(.ttft_ms_p90 | r) / \(.ttft_ms_p99 | r) | \(.itl_ms_p50 | r) / \(.itl_ms_p90 | r) / \(.itl_ms_p99 | r) | \(.requests_per_s | r) | \(100 * .cached_tokens / .prompt_tokens | r) % | \(.failed) |"' "$file"
    done
} >"$out/serve.md"
cat "$out/serve.md"
