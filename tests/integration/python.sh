#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A Python client that discovers the API by reflection, against a cluster of two worker groups of two ranks.
. "$(dirname "$0")/lib.sh"

if ! /usr/bin/python3 -c 'import grpc, google.protobuf' 2>/dev/null; then
    echo "skipped: python3-grpcio and python3-protobuf are not installed"
    exit 77
fi
start_up --workers 2 --tp 2 --speculators 2
/usr/bin/python3 "$source_dir/tests/integration/grpc_client.py" "$server" "$source_dir" "$prompts"
wait_until 20 "every KV block is free" all_returned
stop_up
