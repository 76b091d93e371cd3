#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Templates of huggingface.js, rendered by `forepack render`.
. "$(dirname "$0")/../integration/lib.sh"
. "$(dirname "$0")/lib.sh"
folder=$(suite_folder huggingface.js) || exit $?
command -v node >/dev/null || { echo "skipped: node is not installed" >&2; exit 77; }
packages=$source_dir/tests/suites/templates.txt
. "$source_dir/tests/integration/venv.sh"
"$python" "$source_dir/tests/suites/templates.py" huggingface.js "$folder" "$bin/forepack"
