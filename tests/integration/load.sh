#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Overload: every request is answered, or refused with a reason; memory stays bounded, other clients get the same answers
# as before, and all KV blocks are free at the end.
. "$(dirname "$0")/lib.sh"

if ! /usr/bin/python3 -c 'import grpc, google.protobuf' 2>/dev/null; then
    echo "skipped: python3-grpcio and python3-protobuf are not installed"
    exit 77
fi
# Sanitizers are slow and keep freed memory.
if [[ $(ldd "$bin/forepack-router") == *libasan* ]]; then
    crowd=5000 slow=2 vanish=100 most_mb=2000
else
    crowd=10000 slow=8 vanish=500 most_mb=400
fi
hoard=16 hoard_mb=512 # connections with endless messages, and the memory that they may add

choose_ports
start router "$bin/forepack-router" --model "$main_model" "${listen[@]}" --max-queue-requests $((crowd / 10)) \
    --heartbeat-ms 4000 --log-level warn
router_pid=$last_pid
start worker "$bin/forepack-worker" --model "$main_model" --router "$node_server" --log-level warn
worker_pid=$last_pid
start speculator "$bin/forepack-speculator" --model "$spec_model" --router "$node_server" --log-level warn
wait_until 60 "the cluster is ready" ready
wait_until 60 "the speculator is there" nodes speculator 1

client() { /usr/bin/python3 "$source_dir/tests/integration/load_client.py" "$server" "$source_dir" "$@"; }
# said WORD NAME: the client that was started last has printed WORD, or has ended.
said() { grep -q "$1" "$work/$2.log" || ! kill -0 "$last_pid"; }
start_client() { start "$1" /usr/bin/python3 "$source_dir/tests/integration/load_client.py" "$server" "$source_dir" "$@"; }

# Another client. Its answers must not change. Its requests may be refused while the queue is full; batch sends them
# again.
jq -cn 'range(8) | {id: "\(.)", prompt: "The lighthouse", max_tokens: 16, ignore_eos: true}' >"$work/rows.jsonl"
bystander() {
    rm -f "$work/answers.jsonl"
    "$bin/forepack" batch --server "$server" --input "$work/rows.jsonl" --output "$work/answers.jsonl" 2>"$work/bystander.log" ||
        fail "another client's batch failed $1"
    equal "$calm" "$(jq -cS '{id, text, token_ids}' "$work/answers.jsonl" | sort)" "another client's answers $1"
}
"$bin/forepack" batch --server "$server" --input "$work/rows.jsonl" --output "$work/calm.jsonl" 2>/dev/null
calm=$(jq -cS '{id, text, token_ids}' "$work/calm.jsonl" | sort)

# accounts WHEN: every request has ended exactly once, no KV block is allocated, and the router's peak memory is bounded.
accounts() {
    wait_until 60 "every KV block is free $1" all_returned
    equal true "$(status_json | jq '.totals | .requests == .done + .failed + .cancelled + .refused')" "the totals add up $1"
    local peak_kb
    peak_kb=$(awk '/^VmHWM/ { print $2 }' "/proc/$router_pid/status")
    echo "$1: the router's peak is $((peak_kb / 1024)) MiB"
    [ "$peak_kb" -lt $((most_mb * 1024)) ] || fail "the router took $((peak_kb / 1024)) MiB $1"
}

client bad
accounts "after requests that cannot be served"

# The worker group is stopped while the queue fills, for less time than it takes to be declared lost.
start_client crowd "$crowd"
crowd_pid=$last_pid
wait_until 60 "the crowd is connected" said here crowd
kill -STOP "$worker_pid"
kill -USR1 "$crowd_pid" || true
wait_until 60 "the queue is full" said full crowd
kill -CONT "$worker_pid"
bystander "beside a crowd"
wait "$crowd_pid" || fail "the crowd: $(tail -n 3 "$work/crowd.log")"
cat "$work/crowd.log"
accounts "after $crowd requests at once"

start_client slow "$slow"
slow_pid=$last_pid
wait_until 60 "slow clients are connected" said reading slow
bystander "beside clients that do not read"
wait_until 60 "their requests are done" all_returned
kill -USR1 "$slow_pid" || true
wait "$slow_pid" || fail "slow clients: $(tail -n 3 "$work/slow.log")"
accounts "after clients that do not read"

before=$(status_json | jq -c .totals)
start_client vanish "$vanish"
vanish_pid=$last_pid
wait_until 60 "some are streaming and the others wait" \
    status_is "$before as \$before | (.totals | .requests >= \$before.requests + $vanish and
        .completion_tokens > \$before.completion_tokens + 64) and
        ([.nodes[] | select(.role == \"speculator\") | .kv_blocks_free < .kv_blocks] == [true])"
kill -KILL "$vanish_pid"
bystander "while $vanish clients vanish"
wait_until 60 "all of them are cancelled" status_is ".totals.cancelled >= $((vanish / 2))"
accounts "after $vanish clients vanished"

most_mb=$((most_mb + hoard_mb))
start_client hoard "$hoard"
hoard_pid=$last_pid
wait_until 60 "the router reads no more of them" said hoarding hoard
grep -q hoarding "$work/hoard.log" || fail "clients with endless messages: $(tail -n 3 "$work/hoard.log")"
cat "$work/hoard.log"
bystander "beside endless messages"
kill -KILL "$hoard_pid"
wait_until 60 "all nodes are attached" status_is '[.nodes[].role] | sort == ["speculator", "worker"]'
accounts "after endless messages"
echo "load: all passed"
