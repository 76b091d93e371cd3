#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures what pruning gains at a real size: one prompt of 2,048 tokens through the shape of Llama 3.2 1B with a
# speculator of 110M weights, in a local cluster with random weights. Prints the times with all tokens kept and at keep
# rates 0.3 and 0.1, or one sentence if memory or time is short.
# Usage: deploy/demo_speed.sh --bin DIR [--shape FILE] [--spec-shape FILE] [--memory-mib N] [--seconds N]
#   --bin         folder of the programs
#   --shape, --spec-shape    config.json of the main model and of the speculator
#   --memory-mib  memory that must be free (4096); --seconds  limit of the whole run (55)
# Exit code: 0 measured or skipped, 1 if a request failed, 2 for wrong usage.
set -euo pipefail
export LC_ALL=C.UTF-8
cd "$(dirname "$0")/.."

bin='' shape=bench/shapes/llama-3.2-1b.json spec_shape=bench/shapes/llama-110m-128k.json memory_mib=4096 seconds=55
while [ $# -gt 0 ]; do
    case "$1" in
    --bin) bin=${2:?--bin: expected a folder}; shift ;;
    --shape) shape=${2:?--shape: expected a file}; shift ;;
    --spec-shape) spec_shape=${2:?--spec-shape: expected a file}; shift ;;
    --memory-mib) memory_mib=${2:?--memory-mib: expected a number}; shift ;;
    --seconds) seconds=${2:?--seconds: expected a number}; shift ;;
    --help) sed -n '3,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "unknown flag $1 (--help lists all)" >&2; exit 2 ;;
    esac
    shift
done
[ -n "$bin" ] || { echo "--bin: required" >&2; exit 2; }

n_tokens=2048 sample_tokens=128
stop_seconds=5 # of the end of a cluster in the middle of a pass
end=$((SECONDS + seconds - stop_seconds))
log=$(realpath "$bin/..")/demo-speed.log
work=$(mktemp -d)
. deploy/demo_cluster.sh
trap 'stop_cluster; rm -rf "$work"' EXIT

describe() { # describe SHAPE: its name and number of weights
    jq -r '(.num_attention_heads * .head_dim) as $q | (.num_key_value_heads * .head_dim) as $kv |
        .hidden_size * (.vocab_size + .num_hidden_layers * (2 * $q + 2 * $kv + 3 * .intermediate_size)) |
        "\($name) (\(. / 1e6 | round) million weights)"' --arg name "$(basename "$1" .json)" "$1"
}

skip() {
    echo "skipped: $*"
    exit 0
}

# Answers the first tokens of the document. Ends the script if that takes too long, or fails.
ask() { # ask TOKENS FLAGS...
    local n=$1 left=$((end - SECONDS)) code=0
    shift
    [ $left -gt 0 ] || skip "more than $seconds s are needed here now"
    jq -c --argjson n "$n" '{token_ids: .token_ids[:$n]}' "$work/document" >"$work/request"
    rm -f "$work/answer"
    timeout "$left" "$bin/forepack" batch --server "$server" --input "$work/request" --output "$work/answer" \
        --max-tokens 1 --ignore-eos --reconnect-s 0 "$@" 2>"$work/error" || code=$?
    [ $code != 124 ] || skip "more than $seconds s are needed here now"
    [ $code = 0 ] || { echo "a request failed: $(tail -n 1 "$work/error"); log of the cluster: $log"; exit 1; }
}

# Skips the rest if the time of a short prompt shows that the long one takes too long: its three runs take as long as
# about twice its tokens.
predict() {
    ask $sample_tokens --prefill off
    local left=$((end - SECONDS)) needed
    needed=$(jq "2 * .timing.ttft_ms * $n_tokens / $sample_tokens / 1000 | round" "$work/answer")
    [ "$needed" -lt $left ] || skip "about $needed s more are needed here now, and $left s of $seconds s are left"
}

row_format='%-13s | %13s | %10s | %10s | %11s | %s\n'

# shellcheck disable=SC2059
print_head() {
    printf '\n'"$row_format" '' 'tokens for' scoring prefill 'first token' 'the first'
    printf "$row_format" kept 'main model' 'in s' 'in s' 'after s' 'token comes'
}

print_row() { # print_row NAME FLAGS...
    local name=$1
    shift
    ask $n_tokens "$@"
    [ -s "$work/whole" ] || cp "$work/answer" "$work/whole"
    jq -r --slurpfile whole "$work/whole" '
        def tenths: . * 10 | round | "\(. / 10 | floor).\(. % 10)";
        def seconds: . / 10 | round | "\(. / 100 | floor).\(. % 100 + 100 | tostring[1:])";
        .usage as $u | .timing as $t |
        [if $u.scored_tokens == 0 then ("\($u.kept_tokens)", "-")
         else ("\($u.kept_tokens) (\(100 * $u.kept_tokens / $u.prompt_tokens | round) %)", ($t.score_ms | seconds)) end,
         ($t.prefill_ms | seconds), ($t.ttft_ms | seconds),
         if $u.scored_tokens == 0 then "-" else "\($whole[0].timing.ttft_ms / $t.ttft_ms | tenths) times sooner" end] |
        @tsv' "$work/answer" | while IFS=$'\t' read -r -a cells; do
            # shellcheck disable=SC2059
            printf "$row_format" "$name" "${cells[@]}"
        done
}

echo "Speed at a real size. One prompt of 2,048 tokens, with the shapes of two models:"
echo "main model $(describe "$shape"), speculator $(describe "$spec_shape")."
echo "The weights are random: the times are real, and the answers mean nothing."
free_mib=$(deploy/free_memory.sh)
[ "$free_mib" -ge "$memory_mib" ] || skip "$memory_mib MiB of memory are needed, and $free_mib MiB are free"

# A document is a few tokens shorter than asked for.
"$bin/forepack" bench documents --task needle --count 1 --seed 7 --tokens $((n_tokens + 100)) --token-ids >"$work/document"
choose_ports 50051
start_cluster $((end - SECONDS)) --shape "$shape" --spec-shape "$spec_shape" --kv-blocks 160 --max-num-seqs 4 \
    --speculator-option kv-blocks=160 --no-enable-prefix-caching --router-option selection-cache-mib=0 --drain-ms 500 || {
    kill -0 "$cluster" 2>/dev/null && skip "the weights were not in memory after $seconds s"
    echo "the cluster did not start; its log: $log"
    exit 1
}
ask $sample_tokens --prefill off # the first passes touch memory for the first time
ask $sample_tokens --prefill on
predict
print_head
print_row "all tokens" --prefill off
print_row "keep rate 0.3" --prefill on --keep-rate 0.3
print_row "keep rate 0.1" --prefill on --keep-rate 0.1
