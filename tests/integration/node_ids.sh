#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Two processes with one node id do not evict each other: the second waits, warned in both logs, until the first is gone.
# A router that drains ends the streams of its nodes without a warning.
. "$(dirname "$0")/lib.sh"

choose_ports
start router "$bin/forepack-router" --model "$main_model" "${listen[@]}"
router_pid=$last_pid
start_twin() { start "$1" "$bin/forepack-worker" --model "$main_model" --router "$node_server" --node-id twin --threads 1; }

start_twin first
first_pid=$last_pid
wait_until 60 "the first node is ready" ready
start_twin second
second_pid=$last_pid
refusals() { grep -c "warn router node_refused node=twin .*another process, .* is attached with this id" "$work/router.log"; }
refused_thrice() { [ "$(refusals)" -ge 3 ]; }
wait_until 60 "the second node was refused three times" refused_thrice
grep -q "warn worker router_refused .*give each node its own --node-id" "$work/second.log" || fail "the second node was not warned"
equal 1 "$(grep -c node_attached "$work/router.log")" "nodes that attached"
equal 0 "$(grep -c node_gone "$work/router.log" || true)" "nodes that were evicted"
generate --prompt Hello --max-tokens 2 >"$work/answer"

kill -KILL "$first_pid"
attached_twice() { [ "$(grep -c node_attached "$work/router.log")" = 2 ]; }
wait_until 60 "the second node takes the id" attached_twice
wait_until 60 "the second node is ready" ready
equal "$(jq -cS .token_ids "$work/answer")" "$(generate --prompt Hello --max-tokens 2 | jq -cS .token_ids)" "answer of the second node"

# A node that computes differently is refused.
start other "$bin/forepack-worker" --model "$main_model" --router "$node_server" --threads 1 --kv-cache-dtype int8
wait_until 60 "a node with another KV type is refused" grep -q "router_refused .*--mixed-numerics" "$work/other.log"
kill -TERM "$last_pid"
wait "$last_pid" || fail "the refused node did not end"

kill -TERM "$router_pid"
wait "$router_pid" || fail "the router did not drain"
wait_until 60 "the node sees the end of its stream" grep -q "info worker router_detached" "$work/second.log"
equal 0 "$(grep -c router_lost "$work/second.log" || true)" "warnings about a lost router"
kill -TERM "$second_pid"
wait "$second_pid" || fail "the node did not drain"
echo "node_ids: all passed"
