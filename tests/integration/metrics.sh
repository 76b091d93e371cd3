#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# GET /metrics of a running cluster, read by Prometheus' own parsers: its counts are those of the answers that clients got.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/venv.sh"

start_up --workers 2 --speculators 1
jq -c '. + {max_tokens: (4 + (.id | ltrimstr("demo-") | tonumber) % 7), ignore_eos: true,
            keep_rate: (if (.id | ltrimstr("demo-") | tonumber) % 2 == 0 then 0.3 else 1 end), prefill: "on"}' \
    "$prompts" >"$work/in.jsonl"
"$bin/forepack" batch --server "$server" --input "$work/in.jsonl" --output "$work/out.jsonl" 2>"$work/batch.log"
generate --prompt "$(printf 'word %.0s' {1..20000})" >/dev/null 2>&1 && fail "a prompt over the context was answered"
wait_until 20 "every KV block is free" all_returned
"$python" "$source_dir/tests/integration/metrics_client.py" "http://127.0.0.1:$http_port" "$work/out.jsonl"
stop_up
