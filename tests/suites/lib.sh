# SPDX-License-Identifier: Apache-2.0
# What the scripts of this folder share. They source this file after tests/integration/lib.sh.

# suite_folder NAME: prints the checkout of the suite NAME, or ends the script as skipped.
suite_folder() {
    local folder="${FOREPACK_SUITES:-}/$1"
    if [ -z "${FOREPACK_SUITES:-}" ] || [ ! -d "$folder" ]; then
        echo "skipped: FOREPACK_SUITES names no folder with a checkout of $1" >&2
        exit 77
    fi
    printf '%s\n' "$folder"
}
