#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A local cluster for the scripts of the demo. Sourced; expects $bin, a folder with programs, and $log, a file.

cluster=          # its process
taken() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# Sets $port, the first of two free ports from $1 on (nodes attach at the second), $http_port and $server.
choose_ports() {
    port=$1
    while taken "$port" || taken "$((port + 1))"; do port=$((port + 2)); done
    http_port=8000
    while taken "$http_port"; do http_port=$((http_port + 1)); done
    server=127.0.0.1:$port
}

cluster_is_ready() {
    [ "$("$bin/forepack" status --server "$server" --json 2>/dev/null |
        jq '.ready and ([.nodes[].role] | index("speculator") != null)')" = true ]
}

# Returns 1 if the cluster ended, or was not ready in time.
start_cluster() { # start_cluster SECONDS FLAGS...
    local end=$((SECONDS + $1))
    shift
    setsid "$bin/forepack" up --port "$port" --http-port "$http_port" "$@" >"$log" 2>&1 </dev/null &
    cluster=$!
    until cluster_is_ready; do
        kill -0 "$cluster" 2>/dev/null && [ $SECONDS -lt $end ] || return 1
        sleep 0.1
    done
}

stop_cluster() {
    [ -n "$cluster" ] || return 0
    kill "$cluster" 2>/dev/null || true
    wait "$cluster" 2>/dev/null || true
    cluster=
}
