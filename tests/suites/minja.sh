#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Templates of minja, rendered by `forepack render`.
. "$(dirname "$0")/../integration/lib.sh"
. "$(dirname "$0")/lib.sh"
folder=$(suite_folder minja) || exit $?
packages=$source_dir/tests/suites/templates.txt
. "$source_dir/tests/integration/venv.sh"
"$python" "$source_dir/tests/suites/templates.py" minja "$folder" "$bin/forepack"
