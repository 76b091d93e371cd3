#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Answers and stream events of the router, validated with OpenAI's specification of its API.
. "$(dirname "$0")/../integration/lib.sh"
. "$source_dir/tests/suites/lib.sh"
folder=$(suite_folder openai-openapi)
packages=$source_dir/tests/suites/openai-openapi.txt
. "$source_dir/tests/integration/venv.sh"
start_up --prefill off
echo "openai-openapi $(git -C "$folder" rev-parse --short HEAD)"
"$python" "$source_dir/tests/suites/openapi_answers.py" "$folder/openapi.json" "http://127.0.0.1:$http_port/v1"
stop_up
