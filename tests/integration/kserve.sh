#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# KServe's Open Inference Protocol over gRPC: NVIDIA's tritonclient, unmodified, against a real cluster.
. "$(dirname "$0")/lib.sh"
packages=$source_dir/tests/integration/kserve.txt
. "$(dirname "$0")/venv.sh"

client=$source_dir/tests/integration/kserve_client.py
start_up --prefill off # which tokens are kept must not depend on the load
"$python" "$client" served "$server" "$prompts" "$bin/forepack" "$main_model"
wait_until 20 "every KV block is free" all_returned

stop_up

# Bounds: requests in flight (a stopped worker group answers none), and the memory of whole answers.
choose_ports
start router "$bin/forepack-router" --model "$main_model" "${listen[@]}" --max-answers-mb 1
router_pid=$last_pid
start worker "$bin/forepack-worker" --model "$main_model" --router "$node_server" --threads 1
worker_pid=$last_pid
wait_until 60 "the worker is ready" ready
kill -STOP "$worker_pid"
"$python" "$client" in_flight "$server"
kill -CONT "$worker_pid"
"$python" "$client" memory "$server"
wait_until 20 "every KV block is free" all_returned
kill -TERM "$router_pid" "$worker_pid"
wait "$router_pid" || fail "the router ended with $?"

# Callers by their API keys, and a server that is not ready: a router without nodes.
key() { (umask 077 && "$bin/forepack" keys add --file "$work/keys" --id "$1" --tenant acme "${@:2}" 2>/dev/null); }
key_of_many=$(key many) key_of_few=$(key few --requests-per-minute 1)
choose_ports
start router "$bin/forepack-router" --model "$main_model" --served-model-name main --served-model-name other "${listen[@]}" --api-keys "$work/keys"
answers() { curl -sS "http://127.0.0.1:$http_port/health"; }
wait_until 20 "the router answers" answers
"$python" "$client" keys "$server" "$key_of_many" "$key_of_few"
