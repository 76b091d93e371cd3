#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Two routers, two worker groups and a speculator: every node attaches to both routers and serves both at once, with the
# tokens of one router alone; kill -9 of a router costs the other none of its requests, its work on the nodes is
# dropped, and the nodes attach to its successor. A dead address and a second address of a router are tolerated.
. "$(dirname "$0")/lib.sh"

choose_ports
first=$server first_nodes=$node_server
start_router() { # start_router NAME FLAGS...
    start "$1" "$bin/forepack-router" --model "$main_model" --heartbeat-ms 100 --prefill on --keep-rate 0.5 --drafts off "${@:2}"
}
start_router one "${listen[@]}"
one=$last_pid
one_flags=("${listen[@]}")
choose_ports
second=$server second_nodes=$node_server
start_router two "${listen[@]}"
dead=$(free_port)
list=$first_nodes,$second_nodes,127.0.0.1:$dead,localhost:${second_nodes##*:}
start_node() { # start_node ROLE ID MODEL
    probe=$(free_port)
    probes+=("$probe")
    start "$2" "$bin/forepack-$1" --model "$3" --router "$list" --node-id "$2" --threads 1 --probe-listen "$probe"
}
probes=()
start_node worker a "$main_model"
start_node worker b "$main_model"
start_node speculator s "$spec_model"

at() { server=$1 "${@:2}"; }
has_all() { at "$1" nodes worker 2 && at "$1" nodes speculator 1; }
wait_until 60 "the first router has all nodes" has_all "$first"
wait_until 60 "the second router has all nodes" has_all "$second"
metric() { curl -s "http://127.0.0.1:${probes[0]}/metrics" | sed -n "s/^forepack:$1 //p"; }
has_routers() { [ "$(metric node_routers_attached)" = 2 ] && [ "$(metric node_routers)" = 3 ]; }
wait_until 60 "the node knows that two addresses lead to one router, and that one is dead" has_routers
grep -q "router_duplicate" "$work/a.log" || fail "the second address of a router is not logged"
grep -q "router_unreachable.*127.0.0.1:$dead" "$work/a.log" || fail "the dead address is not logged"

# Both routers at once: the same tokens as from one router alone.
prompt="Packed prompts share the rows of one pass."
at "$first" generate --prompt "$prompt" --max-tokens 40 --ignore-eos >"$work/expected"
tokens() { jq -cS '[.token_ids, .usage.replays, .usage.kept_tokens]' "$1"; }
clients=()
for i in 1 2 3 4 5 6; do
    at "$([ $((i % 2)) = 0 ] && echo "$first" || echo "$second")" generate --prompt "$prompt" --max-tokens 40 --ignore-eos >"$work/answer$i" &
    clients+=($!)
done
for pid in "${clients[@]}"; do wait "$pid" || fail "a request of two routers at once"; done
for i in 1 2 3 4 5 6; do equal "$(tokens "$work/expected")" "$(tokens "$work/answer$i")" "tokens of request $i"; done
wait_until 20 "the first router's requests have returned" at "$first" all_returned
wait_until 20 "the second router's requests have returned" at "$second" all_returned

# kill -9 of a router with long streams at both: those of the other end as expected, without replay.
long=(--prompt "$prompt" --max-tokens 1500 --ignore-eos)
at "$second" generate "${long[@]}" >"$work/expected"
clients=()
for i in 1 2 3 4; do
    at "$first" generate "${long[@]}" --max-tokens 1900 >"$work/lost$i" 2>/dev/null &
    lost+=($!)
    at "$second" generate "${long[@]}" >"$work/kept$i" &
    clients+=($!)
done
streams() { at "$1" status_is '.queue.running >= 4'; }
wait_until 60 "the first router streams" streams "$first"
wait_until 60 "the second router streams" streams "$second"
kill -KILL "$one"
for pid in "${lost[@]}"; do
    if wait "$pid"; then fail "a stream of the killed router ended well"; fi
done
for pid in "${clients[@]}"; do wait "$pid" || fail "a stream of the other router"; done
for i in 1 2 3 4; do equal "$(tokens "$work/expected")" "$(tokens "$work/kept$i")" "tokens of stream $i"; done
equal 0 "$(grep -c "requests_lost\|node_ejected\|node_lost" "$work/two.log" || true)" "lost requests at the other router"
wait_until 20 "no work of the killed router is left on the nodes" at "$second" all_returned

# Its successor at the same address gets the nodes again.
start_router one_again "${one_flags[@]}"
wait_until 60 "the successor has all nodes" has_all "$first"
at "$first" generate --prompt "$prompt" --max-tokens 40 --ignore-eos >"$work/again"
equal "$(tokens "$work/answer1")" "$(tokens "$work/again")" "tokens after the kill"

# A drain at one router is a drain at both, and the node's process ends with 0.
"$bin/forepack" drain --server "$first" a >/dev/null || fail "the drain"
gone() { at "$1" nodes worker 1; }
wait_until 20 "the other router has lost the drained node" gone "$second"

# A bad list is one sentence and exit code 2.
for bad in "$first_nodes,$first_nodes" "$first_nodes,nowhere" "dns:nowhere"; do
    code=0
    "$bin/forepack-worker" --model "$main_model" --router "$bad" 2>"$work/error" || code=$?
    equal 2 "$code" "exit code with --router $bad"
    grep -q -- "--router" "$work/error" || fail "the error does not name the option: $(cat "$work/error")"
done
