#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# JSON-Schema-Test-Suite, draft 2020-12: its schemas and instances through the product's matcher.
. "$(dirname "$0")/../integration/lib.sh"
. "$(dirname "$0")/lib.sh"
folder=$(suite_folder JSON-Schema-Test-Suite)
packages=$source_dir/deploy/llguidance.txt
. "$source_dir/tests/integration/venv.sh"
"$source_dir/deploy/llguidance.sh" "$(cd "$bin/../.." && pwd)/llguidance" || exit 77
"$python" "$source_dir/tests/suites/schemas.py" json_schema_test_suite "$folder" "$main_model" "$bin/schema_suite"
