#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Nodes and the router stop and restart: the answers stay the same, and no other process needs a restart.
. "$(dirname "$0")/lib.sh"

choose_ports
start_router() { start router "$bin/forepack-router" --model "$main_model" "${listen[@]}" --heartbeat-ms 500 \
    --worker-grace-ms 600000 --score-timeout-ms 600000; router_pid=$last_pid; }
start_worker() { start "worker$1" "$bin/forepack-worker" --model "$main_model" --router "$node_server" --node-id "worker-$1" --threads 1; worker_pid=$last_pid; }
start_spec() { start "spec$1" "$bin/forepack-speculator" --model "$spec_model" --router "$node_server" --node-id "spec-$1" --threads 1; spec_pid=$last_pid; }

# No router.
if "$bin/forepack" generate --server "$server" --prompt hi 2>"$work/err"; then fail "generate without a router succeeded"; fi
grep -q "$server" "$work/err" || fail "the error does not name the router: $(cat "$work/err")"

start_router
wait_until 30 "the router answers" status_json
if generate --prompt hi 2>"$work/err"; then fail "generate without a worker group succeeded"; fi

start_worker 0
first_worker=$worker_pid
start_spec 0
wait_until 60 "the cluster is ready" ready
wait_until 60 "the speculator is there" nodes speculator 1

asking=(--server "$server" --input "$work/rows.jsonl" --ignore-eos --max-tokens 48)
batch() { "$bin/forepack" batch "${asking[@]}" --output "$@" 2>"$work/batch.log"; }
head -n 8 "$prompts" >"$work/rows.jsonl"

# The answers of an undisturbed cluster, with all prompt tokens and with kept tokens only.
calm_kept() {
    rm -f "$work/kept.jsonl"
    batch "$work/kept.jsonl" --prefill on && jq -es 'all(.usage.scored_tokens > 0)' "$work/kept.jsonl"
}
batch "$work/whole.jsonl" --prefill off
wait_until 60 "all prompts were scored" calm_kept

# as_calm FILE WHAT: every answer equals the undisturbed cluster's. A speculator that is delayed may count as lost; a
# prompt that was prefilled without its scores must have the answer of the whole prompt.
as_calm() {
    local expected='. as $row | (if .usage.scored_tokens > 0 then $kept else $whole end)[] | select(.id == $row.id)'
    local shown='{id, token_ids, finish_reason}'
    equal "$(jq -cS --slurpfile kept "$work/kept.jsonl" --slurpfile whole "$work/whole.jsonl" "$expected | $shown" "$1")" \
        "$(jq -cS "$shown" "$1")" "answers $2"
    equal 8 "$(wc -l <"$1")" "rows $2"
}

# The router restarts while the nodes are idle: they attach again by themselves.
kill -TERM "$router_pid"
wait "$router_pid" || fail "the router did not drain"
start_router
wait_until 60 "the nodes are back" ready
wait_until 60 "the speculator is back" nodes speculator 1
batch "$work/after-router.jsonl"
as_calm "$work/after-router.jsonl" "after a restart of the router"

# A worker group dies while it generates: the other one takes over, without repeated or missing tokens.
start_worker 1
wait_until 60 "two worker groups" nodes worker 2
kill -STOP "$first_worker" # it receives work and does not answer
start victim-batch "$bin/forepack" batch "${asking[@]}" --output "$work/faulty.jsonl"
batch_pid=$last_pid
wait_until 30 "the batch is running" status_is '.queue.running > 0 or .totals.done > 8'
kill -KILL "$first_worker"
wait "$batch_pid" || fail "the batch failed when a worker group died"
as_calm "$work/faulty.jsonl" "when a worker group died"

# The only worker group dies while it generates and is started again.
second_worker=$worker_pid
before=$(status_json | jq .totals.completion_tokens)
start replay-batch "$bin/forepack" batch "${asking[@]}" --output "$work/replayed.jsonl"
batch_pid=$last_pid
wait_until 30 "tokens are flowing" status_is ".totals.completion_tokens > $before + 16"
kill -KILL "$second_worker" 2>/dev/null || true
start_worker 2
wait "$batch_pid" || fail "the batch failed when the only worker group died"
as_calm "$work/replayed.jsonl" "when the only worker group died and came back"

# Scores cancelled during their passes leave no KV blocks allocated, even if no request follows.
kill -TERM "$spec_pid"
wait_until 30 "the speculator is gone" nodes speculator 0
start slow "$bin/forepack-speculator" --model "$spec_model" --router "$node_server" --node-id slow --threads 1 --max-num-batched-tokens 1
spec_pid=$last_pid
wait_until 60 "the slow speculator is there" nodes speculator 1
jq -rsj 'map(.prompt) | add | .[0:16000]' "$prompts" >"$work/long"
done_before=$(status_json | jq .totals.done)
victims=()
for i in 1 2 3 4 5 6 7 8; do
    start "victim$i" "$bin/forepack" score --server "$server" --prompt-file "$work/long"
    victims+=("$last_pid")
done
reading='[.nodes[] | select(.role == "speculator") | .kv_blocks_free < .kv_blocks] == [true]'
wait_until 30 "the prompt is being read" status_is "$reading or .totals.done >= $done_before + 8"
kill -KILL "${victims[@]}" 2>/dev/null || true
wait_until 20 "every KV block is free" all_returned

# No speculator: requests are served with all tokens kept.
kill -KILL "$spec_pid"
wait_until 30 "the speculator is gone" nodes speculator 0
head -n 1 "$work/rows.jsonl" | jq -rj .prompt >"$work/prompt"
equal true "$(generate --prompt-file "$work/prompt" --max-tokens 4 --prefill on |
    jq '.usage.kept_tokens == .usage.prompt_tokens')" "everything kept without a speculator"
status_is '.totals.degraded > 0' || fail "the degraded request was not counted"

# A speculator with another tokenizer is refused with the reason, each time that it tries.
cp -r "$spec_model" "$work/other"
rm -f "$work/other/calibration.json" # made for the right tokenizer
jq '.model.vocab as $v | .model.merges |= .[0:-1]' "$spec_model/tokenizer.json" >"$work/other/tokenizer.json"
start other "$bin/forepack-speculator" --model "$work/other" --router "$node_server"
refused_twice() { [ "$(grep -c "router_refused .*tokenizer" "$work/other.log")" -ge 2 ]; }
wait_until 60 "a speculator with another tokenizer is refused twice" refused_twice
kill -TERM "$last_pid"
wait "$last_pid" || fail "the refused speculator did not end"

# The requests of a client that disconnects are cancelled.
done_before=$(status_json | jq .totals.done)
start leaver "$bin/forepack" generate --server "$server" --prompt-file "$work/prompt" --ignore-eos --max-tokens 3000 \
    --prefill off
leaver_pid=$last_pid
wait_until 30 "its request runs" status_is ".queue.running > 0 or .totals.done > $done_before"
kill -KILL "$leaver_pid" 2>/dev/null || true
wait_until 20 "every KV block is free" all_returned

# Nodes continue when the reader of their standard error is gone.
kill -TERM "$worker_pid"
wait "$worker_pid" || fail "the worker did not drain"
open_unread_pipe
"$bin/forepack-worker" --model "$main_model" --router "$node_server" --node-id unread --threads 1 2>&8 &
worker_pid=$!
"$bin/forepack-speculator" --model "$spec_model" --router "$node_server" --node-id unread-spec --threads 1 --log-level debug 2>&8 &
spec_pid=$!
exec 8>&-
started+=("$worker_pid" "$spec_pid")
alive() { kill -0 "$worker_pid" && kill -0 "$spec_pid"; }
serve_or_ended() { ! alive || { nodes worker 1 && nodes speculator 1; }; }
wait_until 60 "nodes without a reader of their standard error are ready" serve_or_ended
alive || fail "a node ended with the reader of its standard error"
equal true "$(generate --prompt-file "$work/prompt" --max-tokens 4 --prefill on |
    jq '.usage.scored_tokens > 0')" "an answer by nodes without a reader of their standard error"
alive || fail "a node ended with the reader of its standard error"

# SIGTERM drains a node: exit code 0.
kill -TERM "$worker_pid"
code=0
wait "$worker_pid" || code=$?
equal 0 "$code" "exit code of a drained worker"
echo "faults: all passed"
