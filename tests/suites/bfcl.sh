#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Calls of BFCL (ShishirPatil/gorilla) in the forms of published chat templates, which FOREPACK_DATA holds.
. "$(dirname "$0")/../integration/lib.sh"
. "$(dirname "$0")/lib.sh"
folder=$(suite_folder gorilla) || exit $?
templates=${FOREPACK_DATA:-}/chat_templates
[ -d "$templates" ] || { echo "skipped: FOREPACK_DATA has no chat_templates" >&2; exit 77; }
python3 "$source_dir/tests/suites/bfcl.py" "$folder" "$templates" "$bin"
