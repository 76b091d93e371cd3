#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The prefix cache: a shared prefix is prefilled once, with the same answers; the next turn of a conversation reuses the
# last turn; prompts with different prefixes are dispatched prefix by prefix; all KV blocks are free at the end.
. "$(dirname "$0")/lib.sh"

jq '.vocab_size = 1536 | .max_position_embeddings = 4096' "$source_dir/tests/data/shapes/tiny.json" >"$work/main.json"
n=64 head=1000
jq -nc --argjson n $n --argjson head $head 'range($n) as $i | {id: "row\($i)", token_ids:
    ([range($head) | 300 + . % 701] + [range(20 + $i % 9) | 3 + (. * 37 + $i * 101) % 1400])}' >"$work/rows.jsonl"
tails=$(jq -s --argjson head $head 'map((.token_ids | length) - $head) | add' "$work/rows.jsonl")

# caching_flag ON|OFF
caching_flag() { if [ "$1" = on ]; then echo --enable-prefix-caching; else echo --no-enable-prefix-caching; fi; }

# ask WORKERS ON|OFF: sends all rows to a new cluster.
ask() {
    start_up --workers "$1" --speculators 0 --shape "$work/main.json" "$(caching_flag "$2")"
    "$bin/forepack" batch --server "$server" --input "$work/rows.jsonl" --output "$work/$1-$2.jsonl" --max-tokens 6 \
        --ignore-eos 2>/dev/null
    wait_until 20 "every KV block is free" all_returned
    cached=$(status_json | jq '[.nodes[].cached_tokens] | add')
}
finish() {
    stop_up
    computed=$(awk -F 'prompt_rows=' '/served prompt_rows=/ { sum += $2 } END { print sum }' "$work/up.log")
    equal $((n * head + tails)) $((computed + cached)) "rows computed and rows reused"
}

ask 1 off
equal 0 "$cached" "tokens reused without a cache"
finish
ask 1 on
equal $(((n - 1) * (head / 16 * 16))) "$cached" "tokens of the prefix reused"
equal "$cached" "$(jq -s 'map(.usage.cached_tokens) | add' "$work/1-on.jsonl")" "reused tokens reported to the clients"

# A second turn: the earlier prompt and answer are reused, except for the last block.
row=$(jq -c 'select(.id == "row3")' "$work/rows.jsonl")
answer=$(jq -c 'select(.id == "row3") | .token_ids' "$work/1-on.jsonl")
jq -nc --argjson row "$row" --argjson answer "$answer" '{id: "turn", token_ids: ($row.token_ids + $answer + [5, 6, 7])}' \
    >"$work/turn.jsonl"
"$bin/forepack" batch --server "$server" --input "$work/turn.jsonl" --output "$work/turn.out" --max-tokens 6 2>/dev/null
equal $(((head + 23 + 5) / 16 * 16)) "$(jq .usage.cached_tokens "$work/turn.out")" "tokens reused by the next turn"
stop_up

# Two groups: each computes the prefix at most once, and few prompts go to a group that has not computed it.
ask 2 on
finish
[ "$computed" -le $((2 * head + tails + 16 * n)) ] || fail "$computed rows computed by two groups"

for way in 1-on 2-on; do
    equal "$(jq -cS '{id, token_ids}' "$work/1-off.jsonl" | sort)" "$(jq -cS '{id, token_ids}' "$work/$way.jsonl" | sort)" \
        "answers without the cache and $way"
done

# Mixed prompts with eight prefixes, for a group whose KV cache holds three: each prefix is computed once and used by all
# its prompts before it is evicted. The prompts queue up while the group is stopped with a request before them.
heads=8 each=8 head=800
jq -nc --argjson n $((heads * each)) --argjson heads $heads --argjson head $head 'range($n) as $i | {id: "row\($i)",
    token_ids: ([range($head) | 300 + . * ($i % $heads + 3) % 701] + [range(20 + $i % 9) | 3 + (. * 37 + $i * 101) % 1400])}' \
    >"$work/mixed.jsonl"
tails=$(jq -s --argjson head $head 'map((.token_ids | length) - $head) | add' "$work/mixed.jsonl")

waiting() { status_is ".queue.running == 1 and .queue.waiting == $1"; }
# mixed ON|OFF: sends all of them through a group with or without a prefix cache.
mixed() {
    choose_ports
    start router "$bin/forepack-router" --model "$main_model" --shape "$work/main.json" "${listen[@]}" --bins-ahead 1 \
        --heartbeat-ms 60000 --max-wait-ms 3600000
    local router=$last_pid
    start worker "$bin/forepack-worker" --model "$main_model" --shape "$work/main.json" --router "$node_server" \
        "$(caching_flag "$1")" --kv-blocks $((3 * head / 16 + 20))
    local worker=$last_pid
    wait_until 60 "the cluster is ready" ready
    kill -STOP "$worker"
    start first "$bin/forepack" generate --server "$server" --prompt "Hello" --max-tokens 1 --ignore-eos --json
    local first=$last_pid
    wait_until 60 "the group is busy" waiting 0
    start batch "$bin/forepack" batch --server "$server" --input "$work/mixed.jsonl" --output "$work/mixed-$1.jsonl" \
        --max-tokens 6 --ignore-eos
    local batch=$last_pid
    wait_until 60 "all of them wait" waiting $((heads * each))
    kill -CONT "$worker"
    wait "$first" || fail "the first request ended with $?"
    wait "$batch" || fail "the batch of mixed prefixes ended with $?"
    wait_until 20 "every KV block is free" all_returned
    kill -TERM "$worker"
    wait "$worker" || fail "the worker ended with $?"
    kill -TERM "$router"
    wait "$router" || fail "the router ended with $?"
    computed=$(sed -n 's/.*served prompt_rows=\([0-9]*\).*/\1/p' "$work/worker.log")
    computed=$((computed - $(jq .usage.prompt_tokens "$work/first.log")))
}
mixed off
equal $((heads * each * head + tails)) "$computed" "rows computed without a cache"
mixed on
equal $((heads * head + tails)) "$computed" "rows computed of $heads mixed prefixes"
equal "$(jq -cS '{id, token_ids}' "$work/mixed-off.jsonl" | sort)" "$(jq -cS '{id, token_ids}' "$work/mixed-on.jsonl" | sort)" \
    "answers of mixed prefixes with and without the cache"

# 64 questions on one document of 8,192 tokens run at once, although unshared KV blocks would hold only two of them.
questions=64 document=8192 output=60
two_documents=$((2 * (document + 64 + output) / 16))
jq '.vocab_size = 1536 | .max_position_embeddings = 16384' "$source_dir/tests/data/shapes/tiny.json" >"$work/main.json"
jq -nc --argjson n $questions --argjson document $document 'range($n) as $i | {id: "row\($i)", token_ids:
    ([range($document) | 300 + . % 701] + [range(48 + $i % 9) | 3 + (. * 37 + $i * 101) % 1400])}' >"$work/questions.jsonl"
# The questions run in one pass after the document, or in several passes with the first questions' decodes. Then some may end
# before the last ones start.
for budget in $document 2048; do
    choose_ports
    # The stopped group must get all questions, however many bins the router makes of them as they arrive.
    start router "$bin/forepack-router" --model "$main_model" --shape "$work/main.json" "${listen[@]}" --heartbeat-ms 60000 \
        --bins-ahead $((budget == document ? questions : 4))
    router=$last_pid
    start worker "$bin/forepack-worker" --model "$main_model" --shape "$work/main.json" --router "$node_server" \
        --kv-blocks $two_documents --max-num-batched-tokens "$budget" --itl-target-ms 100000
    worker=$last_pid
    wait_until 60 "the cluster is ready" ready
    if [ $budget = $document ]; then kill -STOP "$worker"; fi
    start batch "$bin/forepack" batch --server "$server" --input "$work/questions.jsonl" --output "$work/answers-$budget.jsonl" \
        --max-tokens $output --ignore-eos
    batch=$last_pid
    if [ $budget = $document ]; then
        wait_until 60 "all questions are at the group" status_is ".queue.running == $questions"
        kill -CONT "$worker"
    fi
    wait "$batch" || fail "the batch of questions ended with $?"
    wait_until 20 "every KV block is free" all_returned
    kill -TERM "$worker"
    wait "$worker" || fail "the worker ended with $?"
    kill -TERM "$router"
    wait "$router" || fail "the router ended with $?"
    served=$(grep -o "served.*" "$work/worker.log")
    at_once=$(sed 's/.*most_running=\([0-9]*\).*/\1/' <<<"$served")
    [ "$at_once" -ge $((budget == document ? questions : questions * 7 / 8)) ] ||
        fail "$at_once questions ran at once with a budget of $budget ($served)"
    equal 0 "$(sed 's/.*preemptions=\([0-9]*\).*/\1/' <<<"$served")" "preemptions"
    equal $((document + $(jq -s --argjson document $document 'map((.token_ids | length) - $document) | add' "$work/questions.jsonl"))) \
        "$(sed 's/.*prompt_rows=\([0-9]*\).*/\1/' <<<"$served")" "rows computed of the document and $questions questions"
done
echo "prefix: all passed ($at_once of $questions questions on one document ran at once)"
