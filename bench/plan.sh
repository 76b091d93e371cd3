#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compares the capacity planner with runs: runs a trace on a cluster with random weights, then plans the same trace with the
# costs that the router learned in the run. Six loads, from a quarter of the recorded rate to four times, which saturates the
# cluster; each without a speculator and with one. Each run has its own cluster and plan, because a machine is not always
# equally fast. In both, pacing learns from the start. Takes half an hour on a machine that runs nothing else.
# Usage: bench/plan.sh [--shape FILE] [--trace FILE] [--scales "1 0.25"] [--speculators "0 1"] [--runs N] [--bin DIR]
#   --shape FILE         config.json of the workers; speculators have a quarter of its layers
#                        (default bench/shapes/llama-110m.json)
#   --trace FILE         trace to run and plan (default tests/sim/plan.csv)
#   --scales LIST        factors on the gaps between arrivals (default "4 2 1 0.5 0.35 0.25")
#   --speculators LIST   numbers of speculators
#   --runs N             runs of each load (default 3), each with different prompts
#   --bin DIR            folder of the programs (default build/release/bin)
# Prints one line for each load: medians over the runs, measured / planned, of TTFT p50 and p99, ITL p50, requests/s and the
# share of the time that the workers compute (measured with the warm-up); planned / measured of the medians, which should be
# within 5 % for p50 and 10 % for p99; and planned / measured TTFT of each run. At saturation small changes of the costs
# change the waiting times of 40 requests much, so medians are compared.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

shape=$here/shapes/llama-110m.json trace=$here/../tests/sim/plan.csv
scales="4 2 1 0.5 0.35 0.25" speculators="0 1" runs=3
bin=$here/../build/release/bin
while [ $# -gt 0 ]; do
    case $1 in
    --shape | --trace | --scales | --speculators | --runs | --bin)
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

work=$(mktemp -d) port=$((20000 + RANDOM % 12000)) cluster=
jq '.num_hidden_layers = ([.num_hidden_layers / 4 | floor, 1] | max)' "$shape" >"$work/spec.json"
stop_cluster() {
    [ -z "$cluster" ] || kill "$cluster" 2>/dev/null || true
    wait
    cluster=
}
trap 'stop_cluster; rm -rf "$work"' EXIT

start_cluster() { # SPECULATORS
    local spec=()
    [ "$1" = 0 ] || spec=(--spec-shape "$work/spec.json")
    : >"$work/up"
    "$bin/forepack" up --port "$port" --http-port -1 --shape "$shape" --speculators "$1" "${spec[@]}" --threads 1 \
        --max-num-batched-tokens 512 --kv-blocks 2048 --log-level warn >"$work/up" &
    cluster=$!
    until grep -q ^ready: "$work/up"; do
        kill -0 "$cluster" || exit 1
        sleep 0.2
    done
}

compare() { # SPECULATORS SCALE LOAD_SEED
    local spec=() load=(--trace "$trace" --time-scale "$2" --load-seed "$3")
    [ "$1" = 0 ] || spec=(--spec-shape "$work/spec.json") load+=(--prefill on --keep-rate 0.3)
    start_cluster "$1"
    "$bin/forepack" bench serve --server "127.0.0.1:$port" "${load[@]}" --json >"$work/measured.json" 2>/dev/null
    "$bin/forepack" status --server "127.0.0.1:$port" --json >"$work/status.json"
    stop_cluster
    "$bin/forepack-sim" --shape "$shape" --speculators "$1" "${spec[@]}" "${load[@]}" --status "$work/status.json" --json \
        >"$work/planned.json"
    jq -cn --slurpfile m "$work/measured.json" --slurpfile p "$work/planned.json" --slurpfile s "$work/status.json" '
        def busy: [$s[0].nodes[] | select(.role == "worker") | .pass_s] | add;
        def row: [.ttft_ms_p50, .itl_ms_p50, .requests_per_s, .ttft_ms_p99];
        $m[0].levels[0] as $m | $p[0] as $p |
        [($m | row) + [busy / $m.seconds], ($p | row) + [$p.pools[0].utilisation]]'
}

medians() { # SPECULATORS SCALE
    jq -rs --arg spec "$1" --arg scale "$2" '
        def median: sort | .[length / 2 | floor];
        def fixed(d): . * pow(10; d) | round / pow(10; d);
        [range(2) as $k | [range(5) as $i | [.[][$k][$i]] | median]] as [$m, $p] |
        def pair($i; d): "\($m[$i] | fixed(d)) / \($p[$i] | fixed(d))";
        def ratio($i): $p[$i] / $m[$i] | fixed(2);
        "speculators \($spec), time scale \($scale): TTFT p50 \(pair(0; 0)) ms, ITL p50 \(pair(1; 1)) ms, "
        + "\(pair(2; 2)) requests/s, TTFT p99 \(pair(3; 1)) ms, workers compute \(pair(4; 2)); "
        + "planned / measured: TTFT p50 \(ratio(0)), p99 \(ratio(3)), requests/s \(ratio(2)), "
        + "TTFT of each run \([.[] | .[1][0] / .[0][0] | fixed(2)] | join(", "))"'
}

for n in $speculators; do
    for scale in $scales; do
        for ((run = 0; run < runs; run++)); do compare "$n" "$scale" "$run" >>"$work/runs"; done
        medians "$n" "$scale" <"$work/runs"
        rm "$work/runs"
    done
done
