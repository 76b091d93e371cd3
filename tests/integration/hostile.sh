#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Hostile clients and nodes of a router that may have 1,024 descriptors: its memory stays bounded and it keeps answering.
# Prints the numbers measured.
. "$(dirname "$0")/lib.sh"

choose_ports
start router prlimit --nofile=1024:1024 "$bin/forepack-router" --model "$main_model" "${listen[@]}"
wait_until 60 "the router listens" grep -q router_listening "$work/router.log"
protocol_version=$(sed -n 's/.*CLUSTER_PROTOCOL_VERSION = \([0-9]*\).*/\1/p' "$source_dir/lib/base/version.h.in")
code=0
/usr/bin/python3 -B "$source_dir/tests/integration/hostile_client.py" "$source_dir/proto" "$last_pid" "$port" "$node_port" "$http_port" "$protocol_version" || code=$?
[ $code = 77 ] && exit 77
[ $code = 0 ] || fail "the client ended with $code"
kill -TERM "$last_pid"
wait "$last_pid" || fail "the router ended with $?"
