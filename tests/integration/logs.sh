#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The events of one request share its req= in the logs of router, speculator and worker; as JSON every line parses.
. "$(dirname "$0")/lib.sh"

start_up --log-level debug
jq -rj 'select(.id) | .prompt' <(sed -n 1p "$prompts") >"$work/prompt"
generate --id "my \"own\" id" --prompt-file "$work/prompt" --max-tokens 3 --ignore-eos --prefill on >/dev/null
request=$(sed -n 's/.* request_received req=\([0-9a-f]*\) client_id="my \\"own\\" id".*/\1/p' "$work/up.log")
[ ${#request} = 16 ] || fail "no request_received with the client's id"
has_event() { # has_event PROCESS EVENT
    grep -qE " $1[^ ]* $2 .*req=$request( |\$)" "$work/up.log" || fail "no $2 of req=$request in the log of the $1"
}
wait_until 10 "the request is done in the log" has_event router request_done
for event in request_received request_done; do has_event router $event; done
for event in score_received score_done; do has_event speculator $event; done
for event in sequence_received prefill_done sequence_done; do has_event worker $event; done
grep -q 'request_done .*client_id="my \\"own\\" id"' "$work/up.log" || fail "request_done without the client's id"
stop_up

start_up --log-level debug --log-format json
generate --prompt-file "$work/prompt" --max-tokens 3 --ignore-eos >/dev/null
stop_up
grep '^{' "$work/up.log" >"$work/lines"
jq -se 'all(has("time") and has("level") and has("process") and has("event"))' "$work/lines" >/dev/null || fail "a line is no event"
for event in settings node_attached request_done; do
    jq -se --arg event $event 'any(.event == $event)' "$work/lines" >/dev/null || fail "no $event as JSON"
done
