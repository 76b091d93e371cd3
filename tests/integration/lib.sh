# SPDX-License-Identifier: Apache-2.0
# Functions of the integration tests: real processes, real sockets on loopback, conditions polled with a time limit.
# Sourced; expects FOREPACK_BIN (programs) and FOREPACK_SOURCE (repository) in the environment.
set -euo pipefail

bin=${FOREPACK_BIN:?}
source_dir=${FOREPACK_SOURCE:?}
main_model=$source_dir/deploy/demo-model/main
spec_model=$source_dir/deploy/demo-model/speculator
prompts=$source_dir/deploy/demo-model/prompts.jsonl
work=$(mktemp -d "${TMPDIR:-/tmp}/forepack test XXXXXX") # a path with a space, on purpose
started=()

# Terminates all started processes; after 60 s, kills processes that a failed test left stopped or stuck.
clean_up() {
    local status=$?
    for pid in "${started[@]}"; do kill -TERM "$pid" 2>/dev/null && kill -CONT "$pid" 2>/dev/null || true; done
    local end=$((SECONDS + 60))
    while [ -n "$(jobs -pr)" ] && [ $SECONDS -lt $end ]; do sleep 0.05; done
    for pid in "${started[@]}"; do kill -KILL "$pid" 2>/dev/null || true; done
    wait
    # Finds reports of a sanitizer in processes whose exit code the test does not check.
    if grep -sE 'WARNING: ThreadSanitizer|ERROR: (Address|Leak)Sanitizer|runtime error: ' "$work"/*.log >&2; then status=1; fi
    if [ $status != 0 ]; then
        for log in "$work"/*.log; do
            [ -e "$log" ] || continue
            echo "--- ${log##*/}" >&2
            tail -n 40 "$log" >&2
        done
    fi
    rm -rf "$work"
    exit $status
}
trap clean_up EXIT

fail() {
    echo "FAILED: $*" >&2
    exit 1
}

# wait_until SECONDS WHAT COMMAND...: polls until the command succeeds, for up to five times SECONDS (SECONDS suit a fast machine).
wait_until() {
    local end=$((SECONDS + 5 * $1)) what=$2
    shift 2
    until "$@" >/dev/null 2>&1; do
        [ $SECONDS -lt $end ] || fail "waited too long until $what"
        sleep 0.1
    done
}

# Finds a free port below the range of outgoing connections: they could take a port of that range before it is listened on.
free_port() {
    local port
    while :; do
        port=$((20000 + RANDOM % 12000))
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break
    done
    echo "$port"
}

# Addresses of a router: for clients in $server, for nodes in $node_server; ${listen[@]} are its flags.
choose_ports() {
    port=$(free_port)
    server=127.0.0.1:$port
    node_port=$(free_port)
    while [ "$node_port" = "$port" ]; do node_port=$(free_port); done
    node_server=127.0.0.1:$node_port
    http_port=$(free_port)
    while [ "$http_port" = "$port" ] || [ "$http_port" = "$node_port" ]; do http_port=$(free_port); done
    listen=(--port "$port" --http-port "$http_port" --node-listen "$node_server")
}

# Opens descriptor 8: a pipe that has no reader, on which every write fails.
open_unread_pipe() {
    mkfifo "$work/unread"
    exec 9<>"$work/unread" 8>"$work/unread"
    exec 9>&-
    rm "$work/unread"
}

# Opens descriptor 7: a full pipe that nothing reads, on which every write blocks.
open_full_pipe() {
    mkfifo "$work/full"
    exec 7<>"$work/full"
    rm "$work/full"
    dd if=/dev/zero of=/dev/fd/7 bs=4096 count=1024 oflag=nonblock 2>/dev/null || true
}

# start NAME COMMAND...: runs in the background with its output in NAME.log; the pid is in $last_pid.
start() {
    local name=$1
    shift
    : >"$work/$name.log" # emptied before the command starts, so that a search finds no output of an earlier command
    "$@" >>"$work/$name.log" 2>&1 </dev/null &
    last_pid=$!
    started+=("$last_pid")
}

status_json() { "$bin/forepack" status --server "$server" --json; }
status_is() { [ "$(status_json | jq "$1")" = true ]; }
ready() { status_is .ready; }

# nodes ROLE N: N nodes of the role are attached and ready.
nodes() { status_is "[.nodes[] | select(.role == \"$1\" and .state == \"ready\")] | length == $2"; }

up_spoke() { grep -q ^ready: "$work/up.log" || ! kill -0 "$up_pid"; }

start_up() { # start_up FLAGS...: a whole cluster with `forepack up`
    choose_ports
    start up "$bin/forepack" up --port "$port" --http-port "$http_port" --node-port "$node_port" --main "$main_model" --spec "$spec_model" "$@"
    up_pid=$last_pid
    wait_until 120 "the cluster is ready" up_spoke
    grep -q ^ready: "$work/up.log" || fail "the cluster did not start"
}

stop_up() {
    kill -TERM "$up_pid"
    local code=0
    wait "$up_pid" || code=$?
    [ $code = 0 ] || fail "forepack up ended with $code"
}

generate() { "$bin/forepack" generate --server "$server" --json "$@"; }

equal() { [ "$1" = "$2" ] || fail "$3: expected '$1', got '$2'"; }

# No request is left, and all KV blocks are free.
all_returned() {
    status_is '.queue.waiting == 0 and .queue.running == 0 and ([.nodes[] | .running == 0 and .kv_blocks_free == .kv_blocks] | all)'
}
