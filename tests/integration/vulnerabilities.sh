#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Kinds of vulnerabilities that were published for other servers (vulnerabilities_client.py), on a router with API keys.
# Usage: vulnerabilities.sh [times]: print CPU time and growth of each kind
. "$(dirname "$0")/lib.sh"
if ! /usr/bin/python3 -c 'import grpc, google.protobuf' 2>/dev/null || ! type protoc >/dev/null 2>&1; then
    echo "vulnerabilities: needs python3-grpcio, python3-protobuf and protoc"
    exit 77
fi
"$source_dir/deploy/llguidance.sh" "$(cd "$bin/../.." && pwd)/llguidance" || { [ "${CI:-}" != true ] && exit 77; }

for tenant in acme globex; do
    (umask 077 && "$bin/forepack" keys add --file "$work/keys" --id "$tenant-1" --tenant "$tenant" >"$work/$tenant.key" 2>/dev/null)
done
choose_ports
start router "$bin/forepack-router" --model "$main_model" "${listen[@]}" --api-keys "$work/keys" --batch-dir "$work/batches" \
    --chat-template "$source_dir/tests/integration/tools.jinja"
router=$last_pid
start worker "$bin/forepack-worker" --model "$main_model" --router "$node_server" --threads 1 --kv-blocks 512
worker=$last_pid
is_ready() { curl -fs "http://127.0.0.1:$http_port/ready"; }
wait_until 60 "the worker is ready" is_ready
/usr/bin/python3 -B "$source_dir/tests/integration/vulnerabilities_client.py" "$work" "$source_dir/proto" "$router" "$worker" \
    "$http_port" "$port" "$node_port" "$@" || fail "a kind is not refused"
kill -TERM "$router" "$worker"
wait "$router" || fail "the router ended with $?"
