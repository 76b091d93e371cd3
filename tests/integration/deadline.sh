#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A call with a deadline needs no ttft_deadline_ms: the router dispatches its request in time, though the group is busy and
# max_wait alone would not make the request overdue.
. "$(dirname "$0")/lib.sh"

choose_ports
start router "$bin/forepack-router" --model "$main_model" "${listen[@]}" --heartbeat-ms 60000 --max-wait-ms 3600000 \
    --log-level debug
router=$last_pid
start worker "$bin/forepack-worker" --model "$main_model" --router "$node_server"
worker=$last_pid
wait_until 60 "the cluster is ready" ready
kill -STOP "$worker" # its requests stay unanswered, so that costs stay unknown

start first "$bin/forepack" generate --server "$server" --prompt "Hello" --max-tokens 2 --ignore-eos --json
first=$last_pid
running() { status_is ".queue.running == $1 and .queue.waiting == $2"; }
wait_until 20 "the group is busy" running 1 0
start waits "$bin/forepack" generate --server "$server" --prompt "Hello again" --max-tokens 2 --ignore-eos --json
waits=$last_pid
wait_until 20 "a request waits for a fuller bin" running 1 1
! grep -q "bin_dispatched .*overdue=true" "$work/router.log" || fail "a request is overdue too early"
start pressed "$bin/forepack" generate --server "$server" --prompt "Hello now" --max-tokens 2 --timeout-ms 10000
pressed=$last_pid
wait_until 10 "half of its time is over" grep "bin_dispatched .*overdue=true" "$work/router.log"

kill -CONT "$worker"
wait "$first" || fail "the first request ended with $?"
wait "$waits" || fail "the second request ended with $?"
wait "$pressed" || echo "the call's deadline passed: a slow machine"
wait_until 20 "no request is left" running 0 0
echo "deadline: all passed"
