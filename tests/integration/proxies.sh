#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The configurations of deploy/proxy with the nginx and HAProxy of this machine: prompts of 5 MB, connections that are
# used again, streams that wait for a stopped worker group, limits per address, CORS, --allowed-hosts and gRPC.
. "$(dirname "$0")/lib.sh"
PATH=$PATH:/usr/sbin
. "$source_dir/tests/integration/proxies_start.sh"

if ! command -v nginx >/dev/null || ! command -v haproxy >/dev/null; then
    [ "${CI:-}" != true ] || fail "nginx or haproxy is not installed (deploy/packages.sh --proxy)"
    echo "skipped: nginx or haproxy is not installed (deploy/packages.sh --proxy)"
    exit 77
fi

choose_ports
start router "$bin/forepack-router" --model "$main_model" "${listen[@]}" --worker-grace-ms 3600000 \
    --cors-origin http://chat.example.org --allowed-hosts llm.example.org --trusted-proxies 127.0.0.1 \
    --max-connections-per-address 8
start worker "$bin/forepack-worker" --model "$main_model" --router "$node_server" --threads 1
worker=$last_pid
wait_until 60 "the worker group is ready" ready
start_proxies 25s # a stream sends a comment every 15 to 20 s; the test waits for two

generate --prompt "Count to ten" --max-tokens 20 >"$work/direct.json"
for proxy in nginx haproxy; do
    proxied=127.0.0.1:${grpc_at[$proxy]}
    "$bin/forepack" generate --server "$proxied" --json --prompt "Count to ten" --max-tokens 20 >"$work/proxied.json"
    equal "$(jq -r .text "$work/direct.json")" "$(jq -r .text "$work/proxied.json")" "gRPC through $proxy"
    /usr/bin/python3 "$source_dir/tests/integration/proxies_client.py" requests "${http_at[$proxy]}" "$http_port"
    /usr/bin/python3 "$source_dir/tests/integration/proxies_client.py" grpc_limits "${grpc_at[$proxy]}"
done

kill -STOP "$worker"
client() { start "$1_$2" /usr/bin/python3 "$source_dir/tests/integration/proxies_client.py" "$1" "${http_at[$2]}" "${@:3}"; }
clients=()
for run in "stream nginx" "stream haproxy" "limits nginx 127.0.0.3 127.0.0.4" "limits haproxy 127.0.0.5 127.0.0.6"; do
    client $run
    clients+=("$last_pid")
done
waited() { [ "$(cat "$work"/stream_*.log "$work"/limits_*.log | grep -c "^waited")" = 4 ] || [ "$(jobs -pr | wc -l)" -lt 8 ]; }
wait_until 60 "the streams got their comments" waited
kill -CONT "$worker"
for client in "${clients[@]}"; do wait "$client" || fail "a client of a proxy failed"; done
