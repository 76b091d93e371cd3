#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The prefix cache: prompts that share a head are prefilled at the cost of one head, with the same answers; a
# conversation's next turn finds the last one; nothing of it is missing when all have ended.
. "$(dirname "$0")/lib.sh"

jq '.vocab_size = 1536 | .max_position_embeddings = 4096' "$source_dir/tests/data/shapes/tiny.json" >"$work/main.json"
n=64 head=1000
jq -nc --argjson n $n --argjson head $head 'range($n) as $i | {id: "row\($i)", token_ids:
    ([range($head) | 300 + . % 701] + [range(20 + $i % 9) | 3 + (. * 37 + $i * 101) % 1400])}' >"$work/rows.jsonl"
tails=$(jq -s --argjson head $head 'map((.token_ids | length) - $head) | add' "$work/rows.jsonl")

# ask WORKERS ON|OFF: all rows through a cluster of its own.
ask() {
    start_up --workers "$1" --speculators 0 --shape "$work/main.json" --prefix-cache "$2"
    "$bin/forepack" batch --server "$server" --input "$work/rows.jsonl" --output "$work/$1-$2.jsonl" --max-tokens 6 \
        --ignore-eos 2>/dev/null
    wait_until 20 "every KV block is free" all_returned
    cached=$(status_json | jq '[.nodes[].cached_tokens] | add')
}
finish() {
    stop_up
    computed=$(awk -F 'prompt_rows=' '/served prompt_rows=/ { sum += $2 } END { print sum }' "$work/up.log")
    equal $((n * head + tails)) $((computed + cached)) "rows computed and rows found"
}

ask 1 off
equal 0 "$cached" "tokens found without a cache"
finish
ask 1 on
equal $(((n - 1) * (head / 16 * 16))) "$cached" "tokens of the head found again"
equal "$cached" "$(jq -s 'map(.usage.cached_tokens) | add' "$work/1-on.jsonl")" "tokens the clients were told of"

# A second turn: the prompt and the answer before it are found, all but the last block.
row=$(jq -c 'select(.id == "row3")' "$work/rows.jsonl")
answer=$(jq -c 'select(.id == "row3") | .token_ids' "$work/1-on.jsonl")
jq -nc --argjson row "$row" --argjson answer "$answer" '{id: "turn", token_ids: ($row.token_ids + $answer + [5, 6, 7])}' \
    >"$work/turn.jsonl"
"$bin/forepack" batch --server "$server" --input "$work/turn.jsonl" --output "$work/turn.out" --max-tokens 6 2>/dev/null
equal $(((head + 23 + 5) / 16 * 16)) "$(jq .usage.cached_tokens "$work/turn.out")" "tokens found by the next turn"
stop_up

# Two groups: each computes the head once at most, and few prompts go to the one that has not.
ask 2 on
finish
[ "$computed" -le $((2 * head + tails + 16 * n)) ] || fail "$computed rows computed by two groups"

for way in 1-on 2-on; do
    equal "$(jq -cS '{id, token_ids}' "$work/1-off.jsonl" | sort)" "$(jq -cS '{id, token_ids}' "$work/$way.jsonl" | sort)" \
        "answers without the cache and $way"
done
echo "prefix: all passed"
