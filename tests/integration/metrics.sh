#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# GET /metrics of a running cluster, read by Prometheus' own parsers: its counts equal the answers that clients got.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/venv.sh"

start_up --workers 2 --speculators 1
jq -c '. + {max_tokens: (4 + (.id | ltrimstr("demo-") | tonumber) % 7), ignore_eos: true,
            keep_rate: (if (.id | ltrimstr("demo-") | tonumber) % 2 == 0 then 0.3 else 1 end), prefill: "on"}' \
    "$prompts" >"$work/in.jsonl"
"$bin/forepack" batch --server "$server" --input "$work/in.jsonl" --output "$work/out.jsonl" 2>"$work/batch.log"
generate --prompt "$(printf 'word %.0s' {1..20000})" >/dev/null 2>&1 && fail "a prompt over the context was answered"
wait_until 20 "every KV block is free" all_returned
"$python" "$source_dir/tests/integration/metrics_client.py" "http://127.0.0.1:$http_port" "$work/out.jsonl"
stop_up

# With API keys metrics are for operators, unless the router is told otherwise. Callers without a key are counted.
keys=$work/keys
key() { (umask 077 && "$bin/forepack" keys add --file "$keys" --id "$1" "${@:2}" >"$work/$1.key" 2>/dev/null); }
key tenant --tenant acme
key operator --tenant ops --operator
code() { curl -s -o "$work/answer" -w '%{http_code}' "$@" "http://127.0.0.1:$http_port/metrics"; }
as() { code -H "Authorization: Bearer $(cat "$work/$1.key")"; }
answers() { [ "$(code)" = "$1" ]; }
choose_ports
start router "$bin/forepack-router" --model "$main_model" "${listen[@]}" --api-keys "$keys"
wait_until 30 "the router answers" answers 401
equal 401 "$(code)" "without a key"
equal 403 "$(as tenant)" "with the key of a tenant"
equal 200 "$(as operator)" "with the key of an operator"
[ "$(sed -n 's/^forepack:requests_refused_total{reason="unauthenticated"} //p' "$work/answer")" -ge 2 ] || fail "refusals are not counted"
kill -TERM "$last_pid" && wait "$last_pid"
choose_ports
start router "$bin/forepack-router" --model "$main_model" "${listen[@]}" --api-keys "$keys" --metrics-open
wait_until 30 "the router answers" answers 200
kill -TERM "$last_pid" && wait "$last_pid"
