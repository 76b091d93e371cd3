#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures the delay that nginx and HAProxy add with the configurations of deploy/proxy: streams of 16 tokens from the
# demo model, in turn directly and through each proxy. Nothing else should run.
# Usage: bench/proxies.sh [ROUNDS] (default 200)
here=$(cd "$(dirname "$0")" && pwd)
export FOREPACK_SOURCE=${FOREPACK_SOURCE:-$here/..} FOREPACK_BIN=${FOREPACK_BIN:-$here/../build/release/bin}
. "$here/../tests/integration/lib.sh"
. "$here/../tests/integration/proxies_start.sh"
PATH=$PATH:/usr/sbin

choose_ports
start router "$bin/forepack-router" --model "$main_model" "${listen[@]}"
start worker "$bin/forepack-worker" --model "$main_model" --router "$node_server" --threads 1
wait_until 60 "the worker group is ready" ready
start_proxies 1h
python3 "$here/proxies.py" "${1:-200}" "direct=$http_port" "nginx=${http_at[nginx]}" "haproxy=${http_at[haproxy]}"
