#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# MaskBench (guidance-ai/jsonschemabench): its schemas and instances through the product's matcher, and every 100th schema
# over HTTP as response_format.
. "$(dirname "$0")/../integration/lib.sh"
. "$(dirname "$0")/lib.sh"
folder=$(suite_folder jsonschemabench)
packages=$source_dir/deploy/llguidance.txt
. "$source_dir/tests/integration/venv.sh"
"$source_dir/deploy/llguidance.sh" "$(cd "$bin/../.." && pwd)/llguidance" || exit 77
start_up --no-enable-prefix-caching
"$python" "$source_dir/tests/suites/schemas.py" maskbench "$folder" "$main_model" "$bin/schema_suite" "http://127.0.0.1:$http_port"
stop_up
