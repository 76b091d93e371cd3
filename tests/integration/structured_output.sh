#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Structured output: answers match the grammar of the request, over HTTP, gRPC and the command line; the loss of a worker
# group during an answer does not change the answer; requests without llguidance or with wrong grammars are refused. Tool
# calls and reasoning are split from the content.
# Usage: structured_output.sh [ROUNDS ["CHUNK ..."]]: rounds of 8 answers, and the chunks after which the group is killed
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/venv.sh"

tests=$source_dir/tests/integration
"$source_dir/deploy/llguidance.sh" "$(cd "$bin/../.." && pwd)/llguidance" || { [ "${CI:-}" != true ] && exit 77; }
"$bin/check_grammar" "$main_model" >"$work/grammar.txt" || fail "$(cat "$work/grammar.txt")"

choose_ports
http=http://127.0.0.1:$http_port
start router "$bin/forepack-router" --model "$main_model" "${listen[@]}" --prefill off --heartbeat-ms 500 \
    --worker-grace-ms 600000 --chat-template "$tests/tools.jinja"
start_worker() {
    start worker "$bin/forepack-worker" --model "$main_model" --router "$node_server" --threads 1 "$@"
    worker_pid=$last_pid
}
start_worker
wait_until 60 "the cluster is ready" ready
grep -q 'structured_output_ready llguidance=' "$work/router.log" || fail "the router did not load llguidance"

"$python" "$tests/structured_output.py" "$http" "${1:-5}"
"$python" "$tests/tool_calls.py" "$http"
"$python" "$tests/responses_client.py" "$http"

# The command line, over gRPC.
text=$(generate --prompt 'The answer is ' --guided-choice yes --guided-choice 'no (never)' --temperature 1 --seed 3 | jq -r .text)
case $text in yes | 'no (never)') ;; *) fail "a choice: '$text'" ;; esac
generate --prompt 'Number: ' --guided-regex '[0-9]{3}' | jq -e '.text | test("^[0-9]{3}$")' >/dev/null || fail "a regex"
if generate --prompt a --guided-regex '(' 2>"$work/err"; then fail "a wrong regex was taken"; fi
grep -q 'structured output: ' "$work/err" || fail "the error: $(cat "$work/err")"

# The worker group dies while it generates: the answer stays the same.
expected=$("$python" "$tests/structured_replay.py" "$http" 0 0)
for at in ${2:-1 2 5 9 14 20}; do
    "$python" "$tests/structured_replay.py" "$http" $at "$worker_pid" >"$work/replayed.txt" &
    client=$!
    wait "$worker_pid" || true
    start_worker
    wait $client || fail "the stream failed"
    equal "$expected" "$(cat "$work/replayed.txt")" "the answer after a loss at chunk $at"
done
[ "$(grep -c 'replays=1' "$work/router.log")" -ge 4 ] || fail "few answers were replayed"

# A worker that has no llguidance refuses the request and goes on.
kill -TERM "$worker_pid"
wait "$worker_pid" || fail "the worker did not drain"
start_worker --grammar-library "$work/none.so"
wait_until 60 "the cluster is ready" ready
if generate --prompt a --guided-regex a 2>"$work/err"; then fail "a worker without llguidance took a grammar"; fi
grep -q 'llguidance is not installed on this worker' "$work/err" || fail "the error: $(cat "$work/err")"
generate --prompt a --max-tokens 1 >/dev/null
wait_until 20 "every KV block is free" all_returned

# A router does the same.
choose_ports
export FOREPACK_GRAMMAR_LIBRARY=$work/none.so # the environment, as the option does above
start other "$bin/forepack-router" --model "$main_model" "${listen[@]}"
wait_until 20 "the router answers" status_json
if generate --prompt a --guided-regex a 2>"$work/err"; then fail "a router without llguidance took a grammar"; fi
grep -q 'llguidance is not installed on the router' "$work/err" || fail "the error: $(cat "$work/err")"
unset FOREPACK_GRAMMAR_LIBRARY

# A router that closes the objects of every schema.
choose_ports
start closing "$bin/forepack-router" --model "$main_model" "${listen[@]}" --close-schemas
start_worker
wait_until 60 "the cluster is ready" ready
for seed in 1 2 3 4; do
    generate --prompt a --temperature 1 --seed $seed --max-tokens 200 \
        --guided-json '{"type":"object","properties":{"a":{"type":"boolean"}},"required":["a"]}' |
        jq -e '.text | fromjson | keys == ["a"]' >/dev/null || fail "--close-schemas"
done
