#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A worker group that loads its weights: status, metrics and refusals name it, requests do not reach it, a killed one
# disappears, and a loaded one is ready. A preloaded open() holds the start before the weights are read.
. "$(dirname "$0")/lib.sh"

cp -r "$main_model" "$work/model"
held=$work/model/model.safetensors
mkfifo "$held.release"
status_json() { "$bin/forepack" status --server "$server" --json; }
loads() { status_is '[.loading[] | [.node_id, .role, .ranks, .percent]] == [["late", "worker", 1, 0]] and .nodes == []'; }
start_late() { start "$1" env LD_LIBRARY_PATH="$bin" LD_PRELOAD=hold_open.so HOLD_OPEN="$held" "$bin/forepack-worker" --model "$work/model" --router "$node_server" --node-id late --threads 1; }
code_of() { curl -s -o /dev/null -w '%{http_code}' "http://127.0.0.1:$http_port$1"; }
worker_nodes() { curl -s "http://127.0.0.1:$http_port/metrics" | grep '^forepack:nodes{.*worker' | grep "\"$1\"" | sed 's/.* //'; }

choose_ports
start router "$bin/forepack-router" --model "$main_model" "${listen[@]}" --heartbeat-ms 200
start_late killed
wait_until 30 "the node is shown as loading" loads
"$bin/forepack" status --server "$server" >"$work/text"
grep -q "late  *worker  *loading 0 % after" "$work/text" || fail "status says: $(cat "$work/text")"
equal 503 "$(code_of /ready)" "readiness while the only worker group loads"
equal 1 "$(worker_nodes loading)" "the metric of loading worker groups"
equal 0 "$(worker_nodes ready)" "the metric of ready worker groups"
if "$bin/forepack" generate --server "$server" --prompt Hello --max-tokens 2 >"$work/answer" 2>&1; then fail "a node that loads answered"; fi
grep -q "no worker group is ready: one loads its weights (0 % done)" "$work/answer" || fail "refused with: $(cat "$work/answer")"
if "$bin/forepack" drain --server "$server" late >"$work/answer" 2>&1; then fail "a node that loads was drained"; fi
grep -q "node late loads its weights" "$work/answer" || fail "not drained with: $(cat "$work/answer")"

# A process that dies while it loads disappears, and another one may have its id.
kill -KILL "$last_pid"
wait_until 30 "the killed node is gone" status_is '.loading == []'
grep -q "loading_node_gone node=late" "$work/router.log" || fail "the router does not say that the node is gone"
start_late late
wait_until 30 "the second process is shown as loading" loads
echo >"$held.release"
wait_until 60 "a ready worker group" ready
status_is '.loading == [] and [.nodes[].node_id] == ["late"]' || fail "the loaded node: $(status_json)"
equal 200 "$(code_of /ready)" "readiness with a loaded worker group"
"$bin/forepack" generate --server "$server" --prompt Hello --max-tokens 2 >/dev/null
