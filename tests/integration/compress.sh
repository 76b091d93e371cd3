#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compression by a speculator without any worker group: HTTP, gRPC and the command line cut the same text, under the limits and
# rules of API keys. Bad input is refused with a sentence, and a client that leaves ends its request.
. "$(dirname "$0")/lib.sh"

keys=$work/keys
key() { (umask 077 && "$bin/forepack" keys add --file "$keys" --id "$1" --tenant "$1" "${@:2}" >"$work/$1.key" 2>/dev/null); }
key free
key legal --prune never
key half --prune keep-at-least:0.5
key small --tokens-per-day 500
key boss --operator
choose_ports
start router "$bin/forepack-router" --model "$main_model" "${listen[@]}" --api-keys "$keys" --image-text '[image]' \
    --score-timeout-ms 600000

as() { "$bin/forepack" "$2" --server "$server" --api-key-file "$work/$1.key" "${@:3}" 2>"$work/error"; }
refused() { # refused WORDS COMMAND...
    if "${@:2}" >/dev/null; then fail "was not refused: ${*:2}"; fi
    grep -qF -- "$1" "$work/error" || fail "wrong reason: '$(cat "$work/error")' instead of '$1'"
}
status_of() { as boss status --json; }
wait_until 60 "the router answers" status_of
report=$source_dir/deploy/demo-model/report.txt
refused "no speculator is attached: start a forepack-speculator" as free compress --keep-rate 0.3 "$report"

start speculator "$bin/forepack-speculator" --model "$spec_model" --router "$node_server" --threads 1 --max-model-len 3072
speculator=$last_pid
speculator_is_there() { status_of | jq -e '.nodes | length == 1'; }
wait_until 60 "the speculator is there" speculator_is_there

# The text has the answer, fewer tokens, and is what the ranges say.
as free compress --keep-rate 0.3 --json "$report" >"$work/compressed"
jq -e '(.text | contains("4892") and endswith("Answer:")) and .tokens_after <= .tokens_before * 0.3 + 1 and
       .decided_by == "keep_rate"' "$work/compressed" >/dev/null || fail "$(cat "$work/compressed")"
as free compress --keep-rate 0.3 - <"$report" >"$work/text"
jq -j .text "$work/compressed" | cmp - "$work/text" || fail "the text is not the text of the JSON"
as free compress --token-budget 200 --json "$report" | jq -e '.tokens_after <= 200 and .decided_by == "token_budget"' >/dev/null ||
    fail "more tokens than the budget"
as free compress --token-budget 100000 --json "$report" | jq -e '.tokens_after == .tokens_before and .decided_by == "off"' \
    >/dev/null || fail "a budget that needs no cut"
as free compress --quality 0.9 --json "$report" | jq -e '.decided_by == "quality" and .keep_rate < 1' >/dev/null ||
    fail "no quality without a worker group"
refused "give at most one of --keep-rate, --quality and --token-budget" as free compress --keep-rate 1 --quality 1 "$report"
refused "keep-rate" as free compress --keep-rate 1.1 "$report"
refused "give one file" as free compress
for _ in 1 2 3 4; do cat "$report"; done >"$work/long"
refused "is over the context of every speculator: at most 3065" as free compress --keep-rate 0.5 "$work/long"

# Rules and limits of keys.
as legal compress --keep-rate 0.1 "$report" | cmp - "$report" || fail "a key of 'never' cuts"
as half compress --keep-rate 0.1 --json "$report" | jq -e '.keep_rate == 0.5' >/dev/null || fail "a key goes below its rule"
as small compress --keep-rate 0.5 "$report" >/dev/null
refused "500 tokens per day, which are used up" as small compress --keep-rate 0.5 "$report"

/usr/bin/python3 "$source_dir/tests/integration/compress_client.py" "$http_port" "$server" "$work/free.key" "$work/half.key" \
    "$report" "$source_dir"

# A client that leaves: its request ends while the speculator hangs, and costs no later one.
kill -STOP "$speculator"
curl -s -H @<(printf 'x-api-key: '; cat "$work/free.key") "http://127.0.0.1:$http_port/v1/compress" \
    -d '{"prompt": "Some text that is long enough to be cut.", "keep_rate": 0.5}' >/dev/null &
client=$!
waiting() { status_of | jq -e '.nodes[0].running == 1'; }
wait_until 60 "the request is on the speculator" waiting
kill "$client"
left() { status_of | jq -e '.nodes[0].running == 0 and .totals.cancelled == 1'; }
wait_until 60 "the request is cancelled" left
kill -CONT "$speculator"
as free compress --keep-rate 0.3 - <"$report" | cmp - "$work/text" || fail "another text after a cancel"

metric() { curl -sf -H @<(printf 'x-api-key: '; cat "$work/boss.key") "http://127.0.0.1:$http_port/metrics" |
    sed -n "s/^forepack:$1 //p"; }
[ "$(metric compressions_total)" -ge 10 ] || fail "compressions are not counted"
[ "$(metric compress_tokens_before_total)" -gt "$(metric compress_tokens_after_total)" ] || fail "tokens are not counted"
