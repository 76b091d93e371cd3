#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures whether decoding requests stall while a long prompt is prefilled: the inter-token latency of a few requests alone
# and during the prefill of the prompt, on a cluster with random weights. Nothing else should run.
# Usage: bench/stall.sh [--shape FILE] [--decodes N] [--tokens N] [--prompt N] [--bin DIR] [-- OPTIONS OF forepack up]
#   --shape FILE   config.json (default bench/shapes/llama-3.2-1b.json)
#   --decodes N    concurrent requests (default 4)
#   --tokens N     output tokens of each request (default 200)
#   --prompt N     tokens of the long prompt (default 30000)
#   --bin DIR      folder of the programs (default build/release/bin)
# Prints the two rows of `forepack bench serve` and the ratio of their 99th percentiles of ITL.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

shape=$here/shapes/llama-3.2-1b.json decodes=4 tokens=200 prompt=30000 bin=$here/../build/release/bin
while [ $# -gt 0 ]; do
    case $1 in
    --shape | --decodes | --tokens | --prompt | --bin)
        [ $# -gt 1 ] || { echo "$1: needs a value" >&2; exit 2; }
        printf -v "${1#--}" %s "$2"
        shift 2
        ;;
    --)
        shift
        break
        ;;
    *)
        echo "unknown option '$1': see the head of $0" >&2
        exit 2
        ;;
    esac
done

work=$(mktemp -d) port=$((20000 + RANDOM % 12000)) cluster= long=
clean_up() {
    [ -z "$long" ] || kill "$long" 2>/dev/null || true
    [ -z "$cluster" ] || kill "$cluster" 2>/dev/null || true
    wait
    rm -rf "$work"
}
trap clean_up EXIT
jq --argjson n "$((prompt + 4096))" '.max_position_embeddings = ([.max_position_embeddings, $n] | max)' "$shape" >"$work/shape.json"
"$bin/forepack" up --port "$port" --http-port -1 --shape "$work/shape.json" --speculators 0 --log-level warn --max-num-seqs 16 \
    --kv-blocks $((prompt / 16 + 16 * 64)) "$@" >"$work/up" &
cluster=$!
until grep -q ^ready: "$work/up"; do
    kill -0 "$cluster" || exit 1
    sleep 0.2
done

answers() { # answers NAME SEED: runs the requests once; another seed gives other prompts, which miss the prefix cache
    "$bin/forepack" bench serve --server "127.0.0.1:$port" --prompt-tokens 128 --concurrency "$decodes" --requests "$decodes" \
        --max-tokens "$tokens" --ignore-eos --timeout 0 --load-seed "$2" --json >"$work/$1.json"
}

answers alone 1
jq -nc --argjson n "$prompt" '{id: "long", token_ids: [range($n) | 5 + (. * 7919) % 1000]}' >"$work/long.jsonl"
"$bin/forepack" batch --server "127.0.0.1:$port" --input "$work/long.jsonl" --output "$work/long.out" --max-tokens 1 \
    --prefill off --ignore-eos 2>/dev/null &
long=$!
answers beside 2
echo "long prompt still in prefill when the answers ended: $([ -s "$work/long.out" ] && echo no || echo yes)"
jq -s '[.[] | (.levels // .rows // [.])[0]] | {alone: .[0], beside: .[1],
    p99_ratio: (.[1].itl_ms_p99 / .[0].itl_ms_p99)}' "$work/alone.json" "$work/beside.json"
