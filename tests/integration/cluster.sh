#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# One router, two worker groups of two ranks, two speculators: every command of the command line against them.
. "$(dirname "$0")/lib.sh"

# A long time limit, because an answer whose prompt was not scored in time differs.
start_up --workers 2 --tp 2 --speculators 2 --spec-tp 1 --score-timeout-ms 600000
nodes worker 2 || fail "two worker groups should be attached"
nodes speculator 2 || fail "two speculators should be attached"

# The nodes have measured their costs, so times are predicted for the first request. Keep rate 0.999 saves nothing.
equal true "$(status_json | jq '[.nodes[] | .pass_fixed_us + .pass_row_us > 0] | all')" "costs before the first request"
head -n 1 "$prompts" >"$work/row"
jq -rj .prompt "$work/row" >"$work/prompt"
generate --prompt-file "$work/prompt" --max-tokens 1 --keep-rate 0.999 >"$work/cost.json"
equal true "$(jq '.prefill == "whole:cost" and .usage.kept_tokens == .usage.prompt_tokens and .timing.predicted_whole_ms > 0
    and .timing.predicted_whole_ms <= .timing.predicted_pruned_ms' "$work/cost.json")" "the first prompt is kept whole"

# A thousand tokens in, with and without speculative prefill.
generate --prompt-file "$work/prompt" --max-tokens 16 --prefill off >"$work/full.json"
generate --prompt-file "$work/prompt" --max-tokens 16 --prefill on --keep-rate 0.3 --return-kept >"$work/kept.json"
equal true "$(jq '.usage.kept_tokens == .usage.prompt_tokens and .usage.scored_tokens == 0' "$work/full.json")" "prefill off"
equal true "$(jq '.usage.kept_tokens < 0.6 * .usage.prompt_tokens and .usage.scored_tokens == .usage.prompt_tokens' \
    "$work/kept.json")" "prefill on"
equal true "$(jq '.usage.kept_tokens == ([.kept[] | .[1] - .[0] + 1] | add)' "$work/kept.json")" "kept ranges add up"
equal '"whole:off" "speculated"' "$(jq .prefill "$work/full.json" "$work/kept.json" | paste -sd ' ')" "what was done"

# A request that gives no mode gets the router's default, off; with a keep rate, auto.
# The same prompt again: its score is reused, and the answer is the same.
generate --prompt-file "$work/prompt" --max-tokens 16 --prefill on --keep-rate 0.3 --return-kept >"$work/again.json"
equal true "$(jq -s '.[0].kept == .[1].kept and .[0].token_ids == .[1].token_ids and .[0].usage.score_cached_tokens == 0
    and .[1].usage.score_cached_tokens == .[1].usage.prompt_tokens' "$work/kept.json" "$work/again.json")" "a reused score"

decision() { generate --prompt-file "$work/prompt" --max-tokens 1 "$@" | jq -r .prefill; }
equal whole:off "$(decision)" "no mode"
equal speculated "$(decision --prefill required)" "required"
case $(decision --keep-rate 0.3) in
speculated | whole:cost) ;;
*) fail "a keep rate alone should mean auto" ;;
esac

equal null "$(jq .timing.predicted_whole_ms "$work/full.json")" "predicted times under off"

# The same tokens as the model alone in one process, greedy and sampled.
for flags in "--temperature 0" "--temperature 0.8 --seed 7 --top-p 0.9"; do
    # shellcheck disable=SC2086
    generate --prompt-file "$work/prompt" --max-tokens 16 --prefill off --ignore-eos $flags >"$work/cluster.json"
    # shellcheck disable=SC2086
    "$bin/forepack" generate --model "$main_model" --json --prompt-file "$work/prompt" --max-tokens 16 --ignore-eos \
        $flags >"$work/local.json"
    equal "$(jq -c .token_ids "$work/local.json")" "$(jq -c .token_ids "$work/cluster.json")" "in process and cluster, $flags"
done

# Many at once give the same answers as one at a time, and a second run of batch asks for nothing.
"$bin/forepack" batch --server "$server" --input "$prompts" --output "$work/out.jsonl" --max-tokens 16 --prefill on 2>/dev/null
equal "$(wc -l <"$prompts")" "$(wc -l <"$work/out.jsonl")" "rows of the batch"
equal "$(jq -c .text "$work/kept.json")" \
    "$(jq -c --arg id "$(jq -r .id "$work/row")" 'select(.id == $id) | .text' "$work/out.jsonl")" "batch and alone"
before=$(status_json | jq .totals.requests)
head -n 5 "$work/out.jsonl" >"$work/part.jsonl"
printf '{"id":"cut off' >>"$work/part.jsonl"
"$bin/forepack" batch --server "$server" --input "$prompts" --output "$work/out.jsonl" --max-tokens 16 --prefill on 2>/dev/null
equal "$before" "$(status_json | jq .totals.requests)" "requests after a second run"
"$bin/forepack" batch --server "$server" --input "$prompts" --output "$work/part.jsonl" --max-tokens 16 --prefill on 2>/dev/null
equal "$(jq -cS '{id, text, token_ids}' "$work/out.jsonl" | sort)" "$(jq -cS '{id, text, token_ids}' "$work/part.jsonl" | sort)" \
    "a batch that was cut off and started again"

# Score, tokenize, detokenize, chat.
"$bin/forepack" score --server "$server" --prompt-file "$work/prompt" --keep-rate 0.2 --json >"$work/score.json"
equal true "$(jq '(.token_ids | length) == (.importance | length) and (.kept | length) > 0' "$work/score.json")" "score"
"$bin/forepack" score --server "$server" --prompt-file "$work/prompt" --chunk-tokens 32 --html "$work/score.html"
grep -q 'class="tok kept i[0-9]"' "$work/score.html" && grep -q 'class="edge"' "$work/score.html" || fail "score --html wrote no page"
equal "Hello there" "$("$bin/forepack" tokenize --model "$main_model" --no-special "Hello there" |
    "$bin/forepack" detokenize --model "$main_model" -)" "tokenize and back"
echo "What is this?" | "$bin/forepack" chat --server "$server" --max-tokens 8 >/dev/null

# Stop strings, stop ids, log-probabilities.
text=$(generate --prompt-file "$work/prompt" --max-tokens 16 --prefill off --ignore-eos --logprobs 3 | tee "$work/lp.json" | jq -r .text)
equal true "$(jq '(.logprobs | length) == (.token_ids | length) and (.logprobs[0].top | length) == 3' "$work/lp.json")" "logprobs"
stop=${text:3:2}
generate --prompt-file "$work/prompt" --max-tokens 16 --prefill off --ignore-eos --stop "$stop" >"$work/stop.json"
equal stop "$(jq -r .finish_reason "$work/stop.json")" "finish reason with a stop string"
equal "${text%%"$stop"*}" "$(jq -r .text "$work/stop.json")" "text before the stop string"
second=$(jq '.token_ids[1]' "$work/lp.json")
equal 1 "$(generate --prompt-file "$work/prompt" --prefill off --ignore-eos --max-tokens 16 --stop-token-id "$second" |
    jq '.token_ids | length')" "tokens before the stop id"

wait_until 20 "every KV block is free" all_returned
stop_up

# Workers with K and V in int8 give the same tokens as the model alone in one process.
start_up --kv-cache-dtype int8 --speculators 0
grep -q 'worker.* kv_dtype=int8' "$work/up.log" || fail "the worker's cache is not int8"
generate --prompt-file "$work/prompt" --max-tokens 16 --ignore-eos >"$work/cluster.json"
"$bin/forepack" generate --model "$main_model" --kv-cache-dtype int8 --json --prompt-file "$work/prompt" --max-tokens 16 \
    --ignore-eos >"$work/local.json"
equal "$(jq -c .token_ids "$work/local.json")" "$(jq -c .token_ids "$work/cluster.json")" "int8 cache in process and cluster"
stop_up

# A cluster whose standard error has no reader keeps its groups, although mpirun aborts a job after some tens of failed
# writes to its own.
open_unread_pipe
choose_ports
start up bash -c 'exec "$0" "$@" 2>&8' "$bin/forepack" up --port "$port" --http-port -1 --node-port "$node_port" --main "$main_model" --tp 2 \
    --speculators 0 --log-level debug
up_pid=$last_pid
exec 8>&-
wait_until 60 "the cluster without a reader of its standard error is ready" up_spoke
grep -q ^ready: "$work/up.log" || fail "the cluster without a reader of its standard error did not start"
for _ in {1..100}; do
    generate --prompt hello --max-tokens 2 >/dev/null || fail "a group without a reader of its standard error was lost"
done
stop_up
echo "cluster: all passed"
