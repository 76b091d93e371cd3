#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prompts that take the router seconds to tokenise delay nothing else: no node is lost, an answer that is being streamed
# stays the same, and the memory stays bounded.
. "$(dirname "$0")/lib.sh"

if ! /usr/bin/python3 -c 'import grpc, google.protobuf' 2>/dev/null; then
    echo "skipped: python3-grpcio and python3-protobuf are not installed"
    exit 77
fi

# The router's context holds the long prompts, so that it tokenises them whole. The worker group's does not: it refuses
# them afterwards, and prefills none.
jq '.max_position_embeddings = 131072' "$main_model/config.json" >"$work/long.json"
choose_ports
start router "$bin/forepack-router" --model "$main_model" --shape "$work/long.json" "${listen[@]}" --heartbeat-ms 500
router_pid=$last_pid
start worker "$bin/forepack-worker" --model "$main_model" --router "$node_server" --threads 1
wait_until 60 "the cluster is ready" ready
peak_mb() { echo $(($(awk '/^VmHWM/ { print $2 }' "/proc/$router_pid/status") / 1024)); }
before=$(peak_mb)
start client /usr/bin/python3 "$source_dir/tests/integration/load_client.py" "$server" "$source_dir" heavy 100
wait "$last_pid" || fail "the client: $(tail -n 5 "$work/client.log")"
echo "the router's peak went from $before to $(peak_mb) MiB"
! grep node_gone "$work/router.log" || fail "a node was lost"
equal 1 "$(grep -c node_attached "$work/router.log")" "attaches"
wait_until 60 "every KV block is free" all_returned
[ "$(peak_mb)" -lt $((before + 400)) ] || fail "the router took $(peak_mb) MiB"

# A router that is told to stop first reads the prompts that wait to be tokenised.
start drain /usr/bin/python3 "$source_dir/tests/integration/load_client.py" "$server" "$source_dir" drain 100
client_pid=$last_pid
said_sent() { grep -q sent "$work/drain.log" || ! kill -0 "$client_pid"; }
wait_until 60 "the prompts are sent" said_sent
kill -TERM "$router_pid"
wait "$client_pid" || fail "the client of a stopping router: $(tail -n 5 "$work/drain.log")"
cat "$work/drain.log"
wait "$router_pid" || fail "the router did not drain"

# A router whose queue of prompts is full refuses further prompts under their own ids.
start full "$bin/forepack-router" --model "$main_model" --shape "$work/long.json" "${listen[@]}" --tokenise-threads 1 \
    --tokenise-queue-mb 1
wait_until 60 "the router listens" grep -q router_listening "$work/full.log"
start refused /usr/bin/python3 "$source_dir/tests/integration/load_client.py" "$server" "$source_dir" full
wait "$last_pid" || fail "the client of a full router: $(tail -n 5 "$work/refused.log")"
echo "long prompts: all passed"
