#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures how much another process slows the engine: the engine alone, then with a busy loop on each named core.
# Usage: bench/foreign.sh [--cores 0,1] [--rounds N] [arguments of `forepack bench engine`...]
# Prints tokens/s of each case and their share of the speed alone. Nothing else should run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cores=0,1 rounds=3
while [ $# -gt 1 ]; do
    case $1 in
    --cores) cores=$2 ;;
    --rounds) rounds=$2 ;;
    *) break ;;
    esac
    shift 2
done
[ $# -gt 0 ] || set -- --shape bench/shapes/llama-110m.json --prompt-tokens 512 --batch 1,8 --decode-tokens 64
busy=
out=$(mktemp -d)
trap '[ -z "$busy" ] || kill "$busy"; rm -rf "$out"' EXIT

for ((round = 1; round <= rounds; round++)); do
    for core in alone ${cores//,/ }; do
        if [ "$core" != alone ]; then
            taskset -c "$core" bash -c 'while :; do :; done' &
            busy=$!
        fi
        build/release/bin/forepack bench engine "$@" --rounds 1 --probe-ms 0 --json 2>/dev/null |
            jq -c --arg core "$core" '.[] | {core: $core} + .' >>"$out/rows"
        [ -z "$busy" ] || { kill "$busy" && wait "$busy" 2>/dev/null || true; }
        busy=
    done
done
jq -rs 'def median: sort | .[length / 2 | floor];
    group_by([.phase, .batch, .tokens])[] |
    ([.[] | select(.core == "alone").tokens_per_s] | median) as $alone |
    group_by(.core)[] | ([.[].tokens_per_s] | median) as $speed |
    "\(.[0].phase) \(.[0].batch) x \(.[0].tokens), busy core \(.[0].core): \($speed | round) tokens/s, \(100 * $speed / $alone | round) %"' "$out/rows"
