#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The commands of README.md and of the pages for users and operators, as they stand there.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/venv.sh"

"$python" "$source_dir/tests/docs_commands.py" "$bin"
