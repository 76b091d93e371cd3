#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The live page without a browser: who may see it, that its numbers equal those of `forepack status`, that a node's id is
# data, that pages are bounded, delay nothing, and end when the router stops. Also the page of `forepack score --html`.
. "$(dirname "$0")/lib.sh"

keys=$work/keys
key() { (umask 077 && "$bin/forepack" keys add --file "$keys" --id "$1" "${@:2}" >"$work/$1.key" 2>/dev/null); }
key tenant --tenant acme
key operator --tenant ops --operator
key former --tenant ops --operator
key few --tenant acme --requests-per-minute 4
choose_ports
start router "$bin/forepack-router" --model "$main_model" "${listen[@]}" --api-keys "$keys"
router=$last_pid
start worker "$bin/forepack-worker" --model "$main_model" --router "$node_server" --threads 1 --node-id "<b>&\"'"
start speculator "$bin/forepack-speculator" --model "$spec_model" --router "$node_server" --threads 1
status_json() { "$bin/forepack" status --server "$server" --api-key-file "$work/operator.key" --json; }
wait_until 30 "the worker group is ready" nodes worker 1
wait_until 30 "the speculator is ready" nodes speculator 1
"$bin/forepack" batch --server "$server" --api-key-file "$work/operator.key" --prefill on --max-tokens 3 \
    --input "$prompts" --output "$work/out.jsonl" 2>"$work/batch.log"
wait_until 20 "every KV block is free" all_returned

# A score as a page takes two calls, however many tokens the prompt has.
jq -rs ".[0].prompt[:600]" "$prompts" >"$work/prompt"
"$bin/forepack" score --server "$server" --api-key-file "$work/few.key" --prompt-file "$work/prompt" --html "$work/score.html" || fail "score --html"

# The same in a terminal.
"$bin/forepack" top --server "$server" --api-key-file "$work/operator.key" --once --interval 0.1 >"$work/top"
grep -q "^<b>&\"' *worker *ready" "$work/top" || fail "forepack top --once: $(cat "$work/top")"
if "$bin/forepack" top --server "$server" --api-key-file "$work/tenant.key" --once 2>"$work/error"; then fail "a tenant saw the nodes"; fi
grep -q "operator" "$work/error" || fail "wrong reason: $(cat "$work/error")"
/usr/bin/python3 "$source_dir/tests/integration/top_client.py" "$bin/forepack" top --server "$server" \
    --api-key-file "$work/operator.key" --interval 0.1

# Another page: the page of a score.
/usr/bin/python3 "$source_dir/tests/integration/score_page.py" "$work" "$bin/forepack" score --server "$server" --api-key-file "$work/operator.key"

start client /usr/bin/python3 "$source_dir/tests/integration/live_client.py" "http://127.0.0.1:$http_port" "$work" \
    "$bin/forepack" status --server "$server" --api-key-file "$work/operator.key" --json
client=$last_pid
client_spoke() { grep -q ^open "$work/client.log" || ! kill -0 "$client"; }
wait_until 30 "a page is open" client_spoke
kill -TERM "$router"
wait "$router" || fail "the router ended with $?"
wait "$client" || fail "the client ended with $?"
