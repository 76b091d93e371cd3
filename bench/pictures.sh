#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the pictures of docs/how-it-works.md. Runs a cluster of the demo models on this machine, sends requests,
# measures a packed bin, and draws what the programs report. Takes about a minute on two idle cores.
#
# Usage: bench/pictures.sh [--out DIR] [--data DIR] [--bin DIR] [--port P] [--documents N] [--threads N]
#   --out DIR       folder for the four SVG files (default docs/pictures)
#   --data DIR      also keep the JSON that they are drawn from, in this folder
#   --bin DIR       folder of the programs (default build/release/bin)
#   --port P        first port to try (default 50051)
#   --documents N   documents asked about at each keep rate, 1 to 99 (default 7)
#   --threads N     compute threads of the worker and the speculator (default 0: all cores)
# Exit code: 0 if the pictures were written, 1 if not, 2 for wrong usage.
set -euo pipefail
export LC_ALL=C.UTF-8
cd "$(dirname "$0")/.."

out=docs/pictures data='' bin=build/release/bin first_port=50051 n_documents=7 threads=0
while [ $# -gt 0 ]; do
    case $1 in
    --out | --data | --bin | --port | --documents | --threads)
        [ $# -gt 1 ] || { echo "$1: needs a value" >&2; exit 2; }
        case $1 in
        --out) out=$(cd "$OLDPWD" && realpath -m "$2") ;;
        --data) data=$(cd "$OLDPWD" && realpath -m "$2") ;;
        --bin) bin=$(cd "$OLDPWD" && realpath -m "$2") ;;
        --port) first_port=$2 ;;
        --documents) n_documents=$2 ;;
        --threads) threads=$2 ;;
        esac
        shift 2
        ;;
    --help) sed -n '3,13s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "unknown option '$1' (--help lists all)" >&2; exit 2 ;;
    esac
done
[[ $n_documents =~ ^[1-9][0-9]?$ ]] || { echo "--documents $n_documents: expected a number from 1 to 99" >&2; exit 2; }
[[ $first_port =~ ^[1-9][0-9]{3}$|^[1-5][0-9]{4}$ ]] ||
    { echo "--port $first_port: expected a number from 1000 to 59999" >&2; exit 2; }
[[ $threads =~ ^[0-9]{1,3}$ ]] || { echo "--threads $threads: expected a number from 0 to 999" >&2; exit 2; }
[ -x "$bin/forepack" ] ||
    { echo "there is no program $bin/forepack: build it, or name its folder with --bin" >&2; exit 1; }
command -v jq >/dev/null || { echo "jq is not installed: run deploy/packages.sh" >&2; exit 1; }

pair=deploy/demo-model
work=$(mktemp -d)
log=$work/up.log
data=${data:-$work/data}
mkdir -p "$data"
. deploy/demo_cluster.sh
trap 'stop_cluster; rm -rf "$work"' EXIT

fail() {
    [ ! -s "$work/error" ] || tail -n 1 "$work/error" >&2
    echo "$*" >&2
    exit 1
}

# ask COMMAND FLAGS...: sends the prompt in $work/prompt and prints the answer as JSON.
ask() {
    local command=$1
    shift
    "$bin/forepack" "$command" --server "$server" --prompt-file "$work/prompt" --max-tokens 64 --json "$@" \
        2>"$work/error" || fail "a request was not answered"
}

# Prints the texts of kept and pruned runs of the prompt's tokens, in order.
print_runs() { # print_runs ANSWER-FILE
    "$bin/forepack" tokenize --model "$pair/main" --json - <"$work/prompt" >"$work/tokens"
    jq -r '.kept as $kept | (.usage.prompt_tokens - 1) as $last
        | reduce $kept[] as $k ({next: 0, runs: []};
              (if $k[0] > .next then .runs += [["pruned", .next, $k[0] - 1]] else . end)
              | .runs += [["kept"] + $k] | .next = $k[1] + 1)
        | (if .next <= $last then .runs += [["pruned", .next, $last]] else . end)
        | .runs[] | @tsv' "$1" >"$work/runs"
    local kind first last
    while IFS=$'\t' read -r kind first last; do
        jq -r --argjson first "$first" --argjson last "$last" '.token_ids[$first:$last + 1] | join(" ")' \
            "$work/tokens" |
            "$bin/forepack" detokenize --model "$pair/main" --json - |
            jq -c --arg kind "$kind" '{kept: ($kind == "kept"), text}'
    done <"$work/runs"
}

collect_kept() {
    cp "$pair/report.txt" "$work/prompt"
    ask generate --prefill off >"$work/whole"
    ask generate --prefill on --return-kept >"$work/pruned"
    print_runs "$work/pruned" | jq -s . >"$work/texts"
    jq -n --slurpfile runs "$work/texts" --slurpfile whole "$work/whole" --slurpfile pruned "$work/pruned" \
        '{runs: $runs[0], usage: $pruned[0].usage, text: $pruned[0].text, whole_text: $whole[0].text}' \
        >"$data/kept.json"
}

collect_bin() {
    head -n 12 tests/data/lengths/mmlu.txt >"$work/lengths"
    "$bin/forepack" bench prepack --model "$pair/main" --lengths "$work/lengths" --batch-size 12 --rounds 5 \
        --threads "$threads" --policies padded,batch --json >"$work/prepack" 2>"$work/error" ||
        fail "the packed bin was not measured"
    jq --slurpfile lengths "$work/lengths" '{lengths: $lengths, policies: .}' "$work/prepack" >"$data/bin.json"
}

# Asks each question at each keep rate in turn, so that a slow moment of the machine touches all of them.
collect_requests() {
    local row rate
    "$bin/forepack" bench documents --count "$n_documents" --tokens 4000 --seed 18 >"$work/documents"
    jq -rj .prompt <(head -n 1 "$work/documents") >"$work/prompt"
    ask explain --prefill on --keep-rate 0.2 >"$work/warm"
    ask explain --prefill off >"$work/warm"
    while read -r row; do
        jq -rj .prompt <<<"$row" >"$work/prompt"
        for rate in 0.1 0.2 0.3 0.5 0.7 1; do
            if [ $rate = 1 ]; then set -- --prefill off; else set -- --prefill on --keep-rate $rate; fi
            ask explain --drafts off "$@" >"$work/answer"
            jq -c --argjson rate $rate --argjson row "$row" \
                '{rate: $rate, expected: $row.answer, text, usage, timing}' "$work/answer"
        done
    done <"$work/documents" | jq -s . >"$data/requests.json"
}

choose_ports "$first_port"
# Caches are off: the same document is asked about at several keep rates.
start_cluster 60 --threads "$threads" --no-enable-prefix-caching --router-option selection-cache-mib=0 \
    --speculator-option enable-prefix-caching=false ||
    { cat "$log" >&2; fail "the cluster did not start"; }
collect_kept
collect_requests
stop_cluster
collect_bin
python3 bench/pictures.py "$data" "$out"
