#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Downloads llguidance, the library of structured output, and puts libllguidance.so and its licence into a folder.
# Programs find it in build/llguidance, and in the folder lib/forepack of an installation. The library is a part of the
# Python package llguidance: llguidance.txt has its version and the SHA-256 of its files, which pip checks. The system's
# Python stays as it is. Does nothing, and needs no network, if the folder has this version.
# Usage: llguidance.sh [FOLDER]   (default: build/llguidance of the repository)
# Exit code: 0 if the folder has the library, 1 if it could not be downloaded.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
[ "${1:-}" != --help ] || { sed -n '3,8s/^# \{0,1\}//p' "$0"; exit 0; }
folder=${1:-$here/../build/llguidance}
package=$here/llguidance.txt

! cmp -s "$package" "$folder/installed.txt" || exit 0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

download() {
    python3 -m venv "$work/venv" &&
        "$work/venv/bin/pip" download --quiet --disable-pip-version-check --retries 1 --timeout 20 --no-deps \
            --only-binary :all: --require-hashes --dest "$work" -r "$package" &&
        python3 -m zipfile -e "$work"/llguidance-*.whl "$work/files"
}
if ! download >"$work/log" 2>&1; then
    echo "llguidance is not installed, so structured output will be refused: $(tail -n 1 "$work/log")" >&2
    exit 1
fi
mkdir -p "$folder"
install -m 644 "$work"/files/llguidance-*.dist-info/licenses/LICENSE "$folder/llguidance.LICENSE"
install -m 644 "$work/files/llguidance/_lib.abi3.so" "$folder/libllguidance.so.new"
mv "$folder/libllguidance.so.new" "$folder/libllguidance.so"
install -m 644 "$package" "$folder/installed.txt" # last: the folder is complete
echo "installed llguidance in $(realpath "$folder")" >&2
