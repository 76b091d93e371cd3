#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a cluster of the demo models on this machine at the highest load it holds, with faults, and fails if memory,
# descriptors, threads, KV blocks in use or the queue grow. Ctrl-C ends it early and reports the samples taken so far.
# Usage: bench/soak.sh [--minutes N] [--warm-up-s N] [--out DIR] [--bin DIR] [--concurrency N] [--sample-s N] [--fault-s N]
#   --minutes N      length of the run (default 60)
#   --warm-up-s N    seconds at the start that the fitted lines leave out (default: a sixth of the run)
#   --out DIR        folder for samples.csv, report.md, report.html and the logs (default bench-out/soak)
#   --bin DIR        folder of the programs (default build/release/bin)
#   --concurrency N  concurrent gRPC requests, half of them pruned, in addition to the clients of soak_clients.py (default 24)
#   --sample-s N     seconds between two samples (default 10)
#   --fault-s N      seconds between two faults (default 20)
# The router, one worker and one speculator run throughout; another worker and another speculator are killed or drained
# and started again, and the clients are killed. Exit codes: 0 no series grows, 1 a series grows or requests or blocks are left.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

minutes=60 warm_up_s= out=bench-out/soak bin=$here/../build/release/bin concurrency=24 sample_s=10 fault_s=20
pair=$here/../deploy/demo-model
while [ $# -gt 0 ]; do
    case $1 in
    --minutes | --warm-up-s | --out | --bin | --concurrency | --sample-s | --fault-s)
        [ $# -gt 1 ] || { echo "$1: needs a value" >&2; exit 2; }
        name=${1#--}
        printf -v "${name//-/_}" %s "$2"
        shift 2
        ;;
    *)
        echo "unknown option '$1': see the head of $0" >&2
        exit 2
        ;;
    esac
done
mkdir -p "$out"
samples=$out/samples.csv
rm -f "$out"/*.log "$samples"

declare -A pids=()
stop_all() {
    for name in "${!pids[@]}"; do kill -KILL "${pids[$name]}" 2>/dev/null || true; done
}
trap stop_all EXIT
interrupted=
trap 'interrupted=yes' INT TERM

free_port() {
    local port
    while :; do
        port=$((20000 + RANDOM % 12000))
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break
    done
    echo "$port"
}

# start NAME COMMAND...: in a separate process group, which Ctrl-C at the terminal does not reach.
start() {
    local name=$1
    shift
    setsid "$@" >>"$out/$name.log" 2>&1 </dev/null &
    pids[$name]=$!
}

port=$(free_port) http_port=$(free_port) node_port=$(free_port)
server=127.0.0.1:$port node_server=127.0.0.1:$node_port
start_node() { # start_node worker|speculator NAME
    local model=main
    [ "$1" = worker ] || model=speculator
    # So few KV blocks that every block has been used before the warm-up ends.
    start "$2" "$bin/forepack-$1" --model "$pair/$model" --router "$node_server" --node-id "$2" --threads 1 --kv-blocks 2048 \
        --log-level warn
}
status_json() { "$bin/forepack" status --server "$server" --json 2>/dev/null; }
status_is() { [ "$(status_json | jq "$1")" = true ]; }
wait_until() { # wait_until SECONDS WHAT FILTER
    local end=$((SECONDS + $1))
    until status_is "$3"; do
        [ $SECONDS -lt $end ] || { echo "waited $1 s until $2" >&2; return 1; }
        sleep 0.2
    done
}

start router env HEAP_BYTES="$out/router.heap" LD_LIBRARY_PATH="$bin" LD_PRELOAD=heap_bytes.so "$bin/forepack-router" --model "$pair/main" \
    --port "$port" --http-port "$http_port" --node-listen "$node_server" --log-level warn
for node in a b; do
    start_node worker worker-$node
    start_node speculator speculator-$node
done
wait_until 60 "all nodes are attached" '.ready and (.nodes | length) == 4'

# One row: seconds since the start, series, value.
begin=$SECONDS
put() { echo "$((SECONDS - begin)),$1,$2" >>"$samples"; }
sample() {
    local name pid
    for name in router worker-a speculator-a; do
        pid=${pids[$name]}
        put "$name rss_kib" "$(awk '$1 == "Rss:" { print $2 }' "/proc/$pid/smaps_rollup")"
        put "$name anonymous_kib" "$(awk '$1 == "Anonymous:" { print $2 }' "/proc/$pid/smaps_rollup")" # heap and stacks
        put "$name descriptors" "$(find "/proc/$pid/fd" -mindepth 1 2>/dev/null | wc -l)"
        put "$name threads" "$(find "/proc/$pid/task" -mindepth 1 -maxdepth 1 | wc -l)"
    done
    put "router allocated_kib" $(($(od -An -td8 "$out/router.heap") / 1024)) # without what malloc caches
    status_json | jq -r '"cluster waiting,\(.queue.waiting)", "cluster running,\(.queue.running)",
        (.nodes[] | select(.node_id | endswith("-a")) | "\(.node_id) kv_blocks_in_use,\(.kv_blocks - .kv_blocks_free)")' |
        while IFS=, read -r series value; do put "$series" "$value"; done
}

start_load() { # start_load on|off: with or without pruning
    start "load-$1" "$bin/forepack" bench serve --server "$server" --prompts "$pair/prompts.jsonl" --concurrency $((concurrency / 2)) \
        --requests 2000 --max-tokens 24 --timeout 0 --prefill "$1" --keep-rate 0.3 --json
}
alive() { kill -0 "${pids[$1]}" 2>/dev/null; }

start_clients() {
    start clients /usr/bin/python3 "$here/soak_clients.py" "$server" "127.0.0.1:$http_port" "$here/.." "$pair/prompts.jsonl"
}

# fault NAME SIGNAL: ends a process and starts it again. Python's gRPC keeps connections of closed channels, up to the end
# of the process.
fault() {
    if alive "$1"; then
        kill "-$2" "${pids[$1]}"
        wait "${pids[$1]}" 2>/dev/null || true
    fi
    if [ "$1" = clients ]; then start_clients; else start_node "${1%-b}" "$1"; fi
}
faults=("worker-b KILL" "speculator-b KILL" "clients KILL" "worker-b TERM" "speculator-b TERM")

start_clients
for pruning in on off; do start_load $pruning; done
n_faults=0 next_sample=$SECONDS next_fault=$((SECONDS + fault_s)) end=$((begin + minutes * 60))
while [ -z "$interrupted" ] && [ $SECONDS -lt $end ]; do
    for name in router worker-a speculator-a clients; do
        alive "$name" || { echo "$name has ended: see $out/$name.log" >&2; exit 1; }
    done
    for pruning in on off; do alive load-$pruning || start_load $pruning; done
    if [ $SECONDS -ge $next_sample ]; then
        sample
        next_sample=$((next_sample + sample_s))
    fi
    if [ $SECONDS -ge $next_fault ]; then
        # shellcheck disable=SC2086 # two words
        fault ${faults[n_faults++ % ${#faults[@]}]}
        next_fault=$((next_fault + fault_s))
    fi
    sleep 1
done
lasted=$((SECONDS - begin))

# At rest: the clients are gone, every request has ended once, every KV block is free.
kill "${pids[load-on]}" "${pids[load-off]}" "${pids[clients]}" 2>/dev/null || true
rest='.queue.waiting == 0 and .queue.running == 0 and ([.nodes[] | .running == 0 and .kv_blocks_free == .kv_blocks] | all)
    and (.totals | .requests == .done + .failed + .cancelled + .refused)'
code=0
wait_until 120 "the cluster is at rest" "$rest" || code=1
status_json >"$out/status.json"
for name in router worker-a speculator-a; do # list of open descriptors
    find "/proc/${pids[$name]}/fd" -type l -printf '%l\n' | sed 's/\[[0-9]*\]//' | sort | uniq -c >"$out/$name.descriptors"
done
cat "$out/clients.log"

"$here/soak_report.py" "$samples" --warm-up-s "${warm_up_s:-$((lasted / 6))}" --faults "$n_faults" --status "$out/status.json" --html "$out/report.html" \
    >"$out/report.md" || code=1
cat "$out/report.md"
exit $code
