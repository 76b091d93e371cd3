#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# forepack drain: a node finishes the answer that it streams and its process ends with 0, while new requests go to other
# nodes; a node is drained twice, by a wrong name, without an operator's key; the last worker group ends readiness.
. "$(dirname "$0")/lib.sh"

(umask 077 && "$bin/forepack" keys add --file "$work/keys" --id boss --tenant ops --operator >"$work/boss.key" 2>/dev/null)
(umask 077 && "$bin/forepack" keys add --file "$work/keys" --id acme --tenant acme >"$work/acme.key" 2>/dev/null)
as() { "$bin/forepack" "$2" --server "$server" --api-key-file "$work/$1.key" "${@:3}"; }
status_json() { as boss status --json; }
generate() { as acme generate --json --ignore-eos "$@"; }
drain() { as boss drain "$@" 2>"$work/error"; }
code_of() { curl -s -o /dev/null -w '%{http_code}' "http://127.0.0.1:$http_port$1"; }
refused() { # refused WORDS COMMAND...
    if "${@:2}" >/dev/null 2>"$work/error"; then fail "was not refused: ${*:2}"; fi
    grep -q -- "$1" "$work/error" || fail "wrong reason: '$(cat "$work/error")' instead of '$1'"
}
state_is() { status_is "[.nodes[] | select(.node_id == \"$1\") | .state] == [\"$2\"]"; }
is_gone() { status_is "[.nodes[] | select(.node_id == \"$1\")] == []"; }

choose_ports
start router "$bin/forepack-router" --model "$main_model" "${listen[@]}" --api-keys "$work/keys" --worker-grace-ms 100 --heartbeat-ms 60000
start_worker() { start "$1" "$bin/forepack-worker" --model "$main_model" --router "$node_server" --node-id "$1" --threads 1; }
start_worker a
a=$last_pid
wait_until 60 "the first worker group is ready" ready
one=(--prompt "Count to a thousand" --max-tokens 1500)
generate "${one[@]}" >"$work/expected"

# A stream on the node: the drain waits for it, the answer is the same, and requests that come meanwhile go elsewhere.
kill -STOP "$a" # so that the answer is not over before the node is drained
generate "${one[@]}" >"$work/answer" &
client=$!
wait_until 60 "the request is on the first node" status_is '[.nodes[] | select(.node_id == "a") | .running] == [1]'
start_worker b
wait_until 60 "the second node is ready" state_is b ready
refused "an API key is required" "$bin/forepack" drain --server "$server" a
refused "operator's API key only" as acme drain a
refused "no node c is attached: attached are: b, a" as boss drain c
refused "give the id of one node" as boss drain a b
refused "give the id of one node" as boss drain
state_is a ready || fail "a refused drain changed the node"
drain --no-wait a >"$work/drain"
equal "a: draining; requests that it finishes: 1" "$(cat "$work/drain")" "a drain without waiting"
equal "" "$(cat "$work/error")" "warnings while another node takes work"
state_is a draining || fail "the node does not drain"
drain --no-wait a >"$work/drain"
equal "a: is draining already; requests that it finishes: 1" "$(cat "$work/drain")" "the second drain"
refused "a still has 1 requests after 1 s: it goes on draining" as boss drain --timeout-s 1 a
generate --prompt Hello --max-tokens 2 >/dev/null # on b: the other node is stopped
drain a >"$work/drain" &
waiting=$!
kill -CONT "$a"
wait "$client" || fail "the answer of the drained node"
equal "$(jq -cS '[.token_ids, .usage.replays]' "$work/expected")" "$(jq -cS '[.token_ids, .usage.replays]' "$work/answer")" "tokens"
wait "$waiting" || fail "the drain did not end: $(cat "$work/error")"
grep -q "^a: gone after " "$work/drain" || fail "the drain says: $(cat "$work/drain")"
wait "$a" || fail "the drained node did not exit with 0"
equal 0 "$(grep -c " warn \| error " "$work/a.log" || true)" "warnings of a node that was drained"
grep -q "drain_started by=router" "$work/a.log" || fail "the node does not say who drained it"
grep -q "drain_requested node=a key=boss" "$work/router.log" || fail "the router does not say who drained the node"
is_gone a || fail "the drained node is still attached"
status_is '.pools.worker | .nodes == 1 and .waiting == 0 and .queue_s == 0 and .busy_s > 0 and .attached_s > .busy_s' ||
    fail "the pool after a node has left: $(status_json | jq -c .pools)"
refused "no node a is attached: attached are: b" as boss drain a

# The last worker group.
equal 200 "$(code_of /ready)" "readiness with a worker group"
b=$last_pid
drain b >"$work/drain"
grep -q "no other worker group takes work" "$work/error" || fail "no warning about the last worker group"
equal 503 "$(code_of /ready)" "readiness without a worker group"
wait "$b" || fail "the last node did not exit with 0"
refused "did not come back\|no worker group is attached" generate --prompt Hello --max-tokens 2

# A node that a supervisor starts again under the same name is another process: it serves.
start_worker b
wait_until 60 "the node serves again" ready
b=$last_pid
kill -TERM "$b"
wait "$b" || fail "the node that drained by a signal did not exit with 0"
grep -q "drain_started by=SIGTERM" "$work/b.log" || fail "the node does not say that a signal drained it"
equal 0 "$(grep -c " warn \| error " "$work/b.log" || true)" "warnings of a node that drained by a signal"

# A starting node, here one that waits for a rank that never comes, keeps the first signal; a second signal ends it.
start c mpirun --oversubscribe --bind-to none -n 1 "$bin/forepack-worker" --model "$main_model" --router "$node_server" \
    --threads 1 : -n 1 sleep 60
wait_until 20 "the node starts" grep -q settings "$work/c.log"
c=$last_pid
rank=$(pgrep -P "$c" -x forepack-worker)
kill -TERM "$rank"
wait_until 20 "the node keeps the signal" grep -q "drain_postponed signal=SIGTERM" "$work/c.log"
kill -TERM "$rank"
code=0
wait "$c" || code=$?
equal 1 "$code" "exit code after a second signal"

# forepack up does not start a drained node again: it did not fail.
start_up --threads 1 --workers 2 --speculators 0 --api-keys "$work/keys"
wait_until 60 "both worker groups are ready" status_is '[.nodes[] | select(.state == "ready")] | length == 2'
drain worker-1 >/dev/null
wait_until 60 "up sees the node end" grep -q "node_drained node=worker-1" "$work/up.log"
equal 0 "$(grep -c node_failed "$work/up.log" || true)" "failed nodes"
generate --prompt Hello --max-tokens 2 >/dev/null
equal '["worker-0"]' "$(status_json | jq -c '[.nodes[].node_id]')" "nodes that are left"
stop_up
echo "drain: all passed"
