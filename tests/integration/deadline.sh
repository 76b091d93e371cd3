#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A call with a deadline needs no ttft_deadline_ms: the router refuses it at once if the work ahead takes longer.
. "$(dirname "$0")/lib.sh"

bins=8
choose_ports
start router "$bin/forepack-router" --model "$main_model" "${listen[@]}" --heartbeat-ms 60000 --bins-ahead $bins
start worker "$bin/forepack-worker" --model "$main_model" --router "$node_server" --threads 1 --max-num-batched-tokens 4096 \
    --no-enable-prefix-caching
worker=$last_pid
wait_until 60 "the cluster is ready" ready
generate --prompt Hello --max-tokens 1 --timeout-ms 60000 >/dev/null || fail "a call with enough time ended with $?"

kill -STOP "$worker" # its requests stay unanswered
head -n 4 "$prompts" | jq -j .prompt >"$work/prompt" # a bin: more rows than half of a pass
clients=()
for i in $(seq $bins); do
    start "client$i" "$bin/forepack" generate --server "$server" --prompt-file "$work/prompt" --max-tokens 1 --prefill off
    clients+=("$last_pid")
done
running() { status_is ".queue.running == $1 and .queue.waiting == 0"; }
wait_until 20 "the group has $bins bins" running $bins
if generate --prompt Hello --max-tokens 1 --timeout-ms 1000 >/dev/null 2>"$work/error"; then fail "an answer within a second"; fi
grep -q "the call's deadline leaves" "$work/error" || fail "wrong reason: $(cat "$work/error")"

kill -CONT "$worker"
for client in "${clients[@]}"; do wait "$client" || fail "a request without a deadline ended with $?"; done
wait_until 20 "no request is left" running 0
echo "deadline: all passed"
