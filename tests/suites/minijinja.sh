#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Templates of minijinja, rendered by `forepack render`.
. "$(dirname "$0")/../integration/lib.sh"
. "$(dirname "$0")/lib.sh"
folder=$(suite_folder minijinja) || exit $?
packages=$source_dir/tests/suites/templates.txt
. "$source_dir/tests/integration/venv.sh"
"$python" "$source_dir/tests/suites/templates.py" minijinja "$folder" "$bin/forepack"
