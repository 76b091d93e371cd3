#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The HTTP API: shapes of answers and events, errors, cancellation, the same tokens as over gRPC. Python's standard
# library only.
. "$(dirname "$0")/lib.sh"

start_up --threads 1 --router-option max-answers-mb=1
/usr/bin/python3 "$source_dir/tests/integration/http_client.py" "http://127.0.0.1:$http_port" "$bin/forepack" "$server" "$prompts"
wait_until 20 "every KV block is free" all_returned
stop_up
