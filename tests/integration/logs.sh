#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The events of one request share its req= in the logs of router, speculator and worker; as JSON every line parses. A
# cluster serves while its standard error is not read, or while both of its standard streams have lost their reader.
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

start_up_on() { # start_up_on REDIRECTION: a cluster with its standard streams redirected
    choose_ports
    start up bash -c "exec \"\$0\" \"\$@\" $1" "$bin/forepack" up --port "$port" --http-port "$http_port" \
        --node-port "$node_port" --main "$main_model" --spec "$spec_model" --log-level debug
    up_pid=$last_pid
    wait_until 60 "a cluster with $1 is ready" ready
    equal 3 "$(generate --prompt-file "$work/prompt" --prefill on --max-tokens 3 --ignore-eos | jq .usage.completion_tokens)" "tokens with $1"
    kill -TERM "$up_pid"
}
open_full_pipe
start_up_on "2>&7"
wait "$up_pid" || fail "forepack up with a full standard error ended with $?"
open_unread_pipe
start_up_on ">&8 2>&8"
code=0
wait "$up_pid" || code=$?
equal 1 "$code" "exit code of forepack up without a reader of its standard output"
echo "logs: all passed"
